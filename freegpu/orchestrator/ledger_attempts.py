"""Writes about attempts: allocation with its epoch, what is heard of them, their end, checkpoints, results.

Decides: which epoch an attempt gets (durable before any ticket), what a fence means, and which checkpoint is
a job's current one. Does not know stores or tickets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import col, delete, select

from freegpu.errors import InvalidTransitionError, StaleEpochError
from freegpu.jobs.lifecycle import (
    ATTEMPT_TRANSITIONS,
    JOB_TRANSITIONS,
    AttemptEvent,
    AttemptState,
    EndReason,
    JobEvent,
    JobState,
    SessionState,
    advance,
)
from freegpu.jobs.retry import Verdict
from freegpu.orchestrator import ledger_jobs, rows
from freegpu.orchestrator.model import Checkpoint, Progress
from freegpu.orchestrator.tables import AttemptRow, CheckpointRow, JobRow
from freegpu.orchestrator.writing import Writing

#: patience is not doubled beyond this many times the default
MOST_PATIENCE = 64

_FIELDS = frozenset(
    {
        "card",
        "detail",
        "outputs_key",
        "outputs_sha256",
        "progress",
        "run_s",
        "saved_at",
        "started_at",
        "stop_reason",
        "stop_seq",
        "ticket_seq",
    }
)


def allocate(
    w: Writing,
    session_id: str,
    job_id: str,
    slot: int,
    *,
    why: str,
    place: int = 0,
    decision: Mapping[str, Any] | None = None,
) -> str:
    """PENDING -> ACTIVE with a new epoch and an ALLOCATED attempt; its id.

    `place` is its place among those allocated in the same moment: they keep this order. `decision`: what was seen
    when it was placed (`record.to_json`), for its audit line.

    StaleEpochError: the job is not pending any more, or the session has ended.
    """
    session = w.session_row(session_id)
    if session.state in (SessionState.ENDED, SessionState.ENDING):
        raise StaleEpochError(f"session {session_id} is {session.state}: it takes no more jobs")
    job = w.job(job_id)
    if job.state != JobState.PENDING:
        raise StaleEpochError(f"job {job_id} is {job.state} by now, not pending")
    number, epoch = job.attempts + 1, job.epoch + 1
    base = w.session.get(CheckpointRow, job.checkpoint_id) if job.checkpoint_id else None
    w.change(
        JobRow,
        {"id": job_id, "state": JobState.PENDING.value, "epoch": job.epoch},
        state=advance(JOB_TRANSITIONS, JobState.PENDING, JobEvent.ASSIGNED).value,
        epoch=epoch,
        attempts=number,
        why=why,
        not_before=None,
        updated_at=w.now,
    )
    # an older attempt that is still stopping has lost its right: the base of the new one is chosen now
    w.try_change(AttemptRow, {"job": job_id, "fenced": False}, fenced=True)
    attempt_id = f"{job_id}-{number}"
    w.session.add(
        AttemptRow(
            id=attempt_id,
            job=job_id,
            number=number,
            epoch=epoch,
            session=session_id,
            slot=slot,
            state=AttemptState.ALLOCATED.value,
            platform=session.platform,
            card=session.card_seen or session.card,
            created_at=w.now + timedelta(microseconds=place),
            base_epoch=base.epoch if base else 0,
            base_generation=base.generation if base else 0,
        )
    )
    w.session.flush()
    w.record(
        "attempt.allocated",
        why,
        job=job_id,
        attempt=attempt_id,
        session=session_id,
        platform=session.platform,
        data={"epoch": epoch, "slot": slot, **({"decision": decision} if decision else {})},
    )
    return attempt_id


def event(w: Writing, attempt_id: str, happened: AttemptEvent, **given: Any) -> None:
    """Move the attempt by the table. InvalidTransitionError; END goes through `end`."""
    if happened is AttemptEvent.END:
        raise InvalidTransitionError("an attempt is ended together with its reason: end_attempt")
    attempt = w.attempt(attempt_id)
    before = AttemptState(attempt.state)
    state = advance(ATTEMPT_TRANSITIONS, before, happened)
    w.change(
        AttemptRow,
        {"id": attempt_id, "state": before.value, "epoch": attempt.epoch},
        state=state.value,
        **_columns(given),
    )
    w.record(
        f"attempt.{happened}",
        f"{before} -> {state}",
        job=attempt.job,
        attempt=attempt_id,
        session=attempt.session,
        platform=attempt.platform,
        data={name: value for name, value in given.items() if name != "progress"},
    )
    _progress(w, attempt, given)


def note(w: Writing, attempt_id: str, **given: Any) -> None:
    """Keep what was heard of it, without a change of state. No audit line: this happens at every poll."""
    if given:
        attempt = w.attempt(attempt_id)
        w.change(AttemptRow, {"id": attempt_id, "epoch": attempt.epoch}, **_columns(given))
        _progress(w, attempt, given)


def end(
    w: Writing,
    attempt_id: str,
    *,
    reason: EndReason,
    detail: str,
    exit_code: int | None,
    run_s: float,
    lost_s: float,
    outputs: tuple[str, str] | None,
    brought_checkpoint: bool,
    verdict: Verdict | None,
    not_before: datetime | None,
    at: datetime,
) -> bool:
    """ENDED and fenced, once; what it means for the job if it is the job's newest. False if it had ended."""
    attempt = w.attempt(attempt_id)
    if attempt.state == AttemptState.ENDED:
        return False
    moment = rows.aware(at)
    manifest = (
        {"outputs_key": outputs[0], "outputs_sha256": outputs[1]} if outputs is not None else {}
    )
    w.change(
        AttemptRow,
        {"id": attempt_id, "state": attempt.state, "epoch": attempt.epoch},
        state=AttemptState.ENDED.value,
        reason=reason.value,
        detail=detail,
        exit_code=exit_code,
        run_s=run_s,
        lost_s=lost_s,
        ended_at=moment,
        fenced=True,
        **manifest,
    )
    job = w.job(attempt.job)
    values: dict[str, Any] = {"lost_s": job.lost_s + lost_s}
    if attempt.number == job.attempts:
        if brought_checkpoint:
            values["patience"] = 1
        elif reason is EndReason.LOST:
            values["patience"] = min(MOST_PATIENCE, job.patience * 2)
        if job.state == JobState.ACTIVE and verdict is not None:
            values |= _verdict(job, attempt, verdict, outputs, not_before, moment)
    guard = {"id": job.id, "state": job.state, "epoch": job.epoch}
    w.change(JobRow, guard, updated_at=w.now, **values)
    w.record(
        "attempt.ended",
        f"{reason}: {detail}" if detail else str(reason),
        job=attempt.job,
        attempt=attempt_id,
        session=attempt.session,
        platform=attempt.platform,
        data={"exit_code": exit_code, "run_s": run_s, "lost_s": lost_s},
    )
    if "state" in values:
        w.record(f"job.{values['state']}", values["why"], job=attempt.job, attempt=attempt_id)
    return True


def _verdict(
    job: JobRow,
    attempt: AttemptRow,
    verdict: Verdict,
    outputs: tuple[str, str] | None,
    not_before: datetime | None,
    at: datetime,
) -> dict[str, Any]:
    """The columns of the job after the verdict."""
    state = advance(JOB_TRANSITIONS, JobState(job.state), verdict.event)
    values: dict[str, Any] = {
        "state": state.value,
        "why": verdict.why,
        "failures": verdict.failures,
        "preemptions": verdict.preemptions,
        "not_before": rows.aware(not_before) if not_before and not state.final else None,
        "ended_at": at if state.final else None,
    }
    if state is JobState.SUCCEEDED and outputs is not None:
        values |= {
            "result_attempt": attempt.id,
            "result_key": outputs[0],
            "result_sha256": outputs[1],
        }
    return values


def accept_result(
    w: Writing, job_id: str, attempt_id: str, outputs: tuple[str, str], *, at: datetime
) -> bool:
    """SUCCEEDED with this result, if the job has none and may still succeed; the first wins.

    Other open attempts of the job are asked to stop. StaleEpochError: the attempt is not of this job.
    """
    job, attempt = w.job(job_id), w.attempt(attempt_id)
    if attempt.job != job_id:
        raise StaleEpochError(f"attempt {attempt_id} is not of job {job_id}")
    state = JOB_TRANSITIONS.get((JobState(job.state), JobEvent.SUCCEED))
    if state is None or job.result_attempt:
        return False
    w.change(
        JobRow,
        {"id": job_id, "state": job.state, "result_attempt": ""},
        state=state.value,
        why="completed",
        ended_at=rows.aware(at),
        not_before=None,
        updated_at=w.now,
        result_attempt=attempt_id,
        result_key=outputs[0],
        result_sha256=outputs[1],
    )
    ledger_jobs.stop_open(w, job_id, EndReason.SUPERSEDED, but=attempt_id)
    w.record("job.succeeded", "its result was accepted", job=job_id, attempt=attempt_id)
    return True


def confirm_checkpoint(
    w: Writing, checkpoint: Checkpoint, job_id: str, *, saved_at: datetime
) -> bool:
    """Make it the job's current one; False if its attempt is fenced or it is not newer."""
    attempt = w.attempt(checkpoint.attempt)
    if attempt.job != job_id or attempt.epoch != checkpoint.epoch:
        raise StaleEpochError(
            f"checkpoint {checkpoint.key} is not of attempt {attempt.id}, epoch {attempt.epoch}"
        )
    job = w.job(job_id)
    current = w.session.get(CheckpointRow, job.checkpoint_id) if job.checkpoint_id else None
    newer = current is None or (
        (checkpoint.epoch, checkpoint.generation) > (current.epoch, current.generation)
    )
    if attempt.fenced or not newer:
        return False
    row = CheckpointRow(
        job=job_id,
        key=checkpoint.key,
        sha256=checkpoint.sha256,
        attempt=checkpoint.attempt,
        epoch=checkpoint.epoch,
        generation=checkpoint.generation,
        step=checkpoint.step,
        size=checkpoint.size,
        confirmed_at=rows.aware(checkpoint.confirmed_at),
        sent=checkpoint.sent,
        confirmed_by=checkpoint.confirmed_by,
    )
    w.session.add(row)
    w.session.flush()
    w.change(
        JobRow,
        {"id": job_id, "checkpoint_id": job.checkpoint_id},
        checkpoint_id=row.id,
        patience=1,
        updated_at=w.now,
    )
    w.change(
        AttemptRow,
        {"id": attempt.id, "epoch": checkpoint.epoch, "fenced": False},
        saved_at=rows.aware(saved_at),
    )
    w.record(
        "checkpoint.confirmed",
        f"generation {checkpoint.generation}, {checkpoint.size} bytes",
        job=job_id,
        attempt=attempt.id,
        session=attempt.session,
        data={"key": checkpoint.key, "step": checkpoint.step},
    )
    return True


def drop_checkpoints(w: Writing, job_id: str, keys: Collection[str]) -> None:
    """Forget collected checkpoints; the job's current one stays whatever is asked."""
    job = w.job(job_id)
    wanted = set(keys)
    found = w.session.exec(select(CheckpointRow).where(CheckpointRow.job == job_id)).all()
    gone = [row for row in found if row.key in wanted and row.id != job.checkpoint_id]
    if gone:
        w.run(delete(CheckpointRow).where(col(CheckpointRow.id).in_([row.id for row in gone])))
        w.record(
            "checkpoint.dropped",
            f"{len(gone)} collected",
            job=job_id,
            data={"keys": [row.key for row in gone]},
        )


def forget_checkpoint(w: Writing, job_id: str, key: str, *, why: str) -> None:
    """Its files are gone: fall back to the next older confirmed one, or to none."""
    job = w.job(job_id)
    found = w.session.exec(
        select(CheckpointRow)
        .where(CheckpointRow.job == job_id)
        .order_by(col(CheckpointRow.epoch).desc(), col(CheckpointRow.generation).desc())
    ).all()
    lost = [row for row in found if row.key == key]
    if not lost:
        return
    left = [row for row in found if row.key != key]
    if job.checkpoint_id in {row.id for row in lost}:
        w.change(
            JobRow,
            {"id": job_id, "checkpoint_id": job.checkpoint_id},
            checkpoint_id=left[0].id if left else None,
            updated_at=w.now,
        )
    w.run(delete(CheckpointRow).where(col(CheckpointRow.id).in_([row.id for row in lost])))
    data = {"key": key, "now": left[0].key if left else ""}
    w.record("checkpoint.forgotten", why, job=job_id, data=data)


def _progress(w: Writing, attempt: AttemptRow, given: dict[str, Any]) -> None:
    """The newest attempt's progress is its job's."""
    told = given.get("progress")
    if isinstance(told, Progress):
        w.try_change(
            JobRow,
            {"id": attempt.job, "attempts": attempt.number},
            progress=rows.progress_to_json(told),
        )


def _columns(given: dict[str, Any]) -> dict[str, Any]:
    unknown = given.keys() - _FIELDS
    if unknown:
        raise TypeError(f"an attempt has no such field to set: {', '.join(sorted(unknown))}")
    values = dict(given)
    if "progress" in values:
        values["progress"] = rows.progress_to_json(values["progress"])
    if "stop_reason" in values and values["stop_reason"] is not None:
        values["stop_reason"] = EndReason(values["stop_reason"]).value
    return values

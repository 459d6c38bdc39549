"""Writes about jobs: submission, cancelling, trying again, places to stay away from.

Decides: ids, what `after` names mean, and what a user's wish does to a job and its open attempts. Does not
know sessions, quota or stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import func, or_
from sqlmodel import col, delete, insert, select

from freegpu.errors import InvalidTransitionError, JobNotFoundError
from freegpu.jobs import matrix
from freegpu.jobs.after import refuse_circles
from freegpu.jobs.lifecycle import (
    JOB_TRANSITIONS,
    AttemptState,
    EndReason,
    JobEvent,
    JobState,
    advance,
)
from freegpu.orchestrator import rows
from freegpu.orchestrator.model import NewJob
from freegpu.orchestrator.tables import (
    AfterRow,
    AttemptRow,
    AvoidRow,
    CheckpointRow,
    EventRow,
    JobRow,
    SpeedRow,
)
from freegpu.orchestrator.writing import Writing


def add(w: Writing, new: Sequence[NewJob], *, why: str) -> list[str]:
    """Insert jobs in this order; their ids. JobNotFoundError, JobSpecError: an `after` that cannot be met."""
    ids = w.new_ids(len(new), "", 6, JobRow)
    afters = _resolve(w, new, ids)
    first = (w.session.exec(select(func.max(JobRow.seq))).one() or 0) + 1
    jobs: list[dict[str, Any]] = []
    for number, (job_id, each) in enumerate(zip(ids, new, strict=True)):
        spec = replace(each.spec, after=afters[job_id])
        jobs.append(
            {
                **_BLANK,
                "id": job_id,
                "seq": first + number,
                "name": spec.name,
                "state": JobState.PENDING.value,
                "why": why,
                "spec": rows.to_json(spec.to_json()),
                "needs": rows.needs_to_json(spec.needs),
                "estimate_s": spec.estimate.seconds if spec.estimate else None,
                "estimate_card": spec.estimate.card if spec.estimate else "",
                "grace_s": spec.checkpoint.grace_s,
                "priority": spec.priority,
                "deadline": spec.deadline,
                "bundle": each.bundle,
                "created_at": w.now,
                "updated_at": w.now,
            }
        )
    if jobs:
        w.run(insert(JobRow), jobs)
        w.run(
            insert(EventRow),
            [
                {
                    "at": w.now,
                    "action": "job.submitted",
                    "message": why,
                    "job": job["id"],
                    "attempt": "",
                    "session": "",
                    "platform": "",
                    "data": rows.to_json({"name": job["name"], "bundle": job["bundle"]}),
                }
                for job in jobs
            ],
        )
    waits = [{"job": job, "after": after} for job, needed in afters.items() for after in needed]
    if waits:
        w.run(insert(AfterRow), waits)
    return ids


_BLANK: dict[str, Any] = {
    "ended_at": None,
    "epoch": 0,
    "attempts": 0,
    "failures": 0,
    "preemptions": 0,
    "not_before": None,
    "patience": 1,
    "checkpoint_id": None,
    "progress": "{}",
    "lost_s": 0.0,
    "result_attempt": "",
    "result_key": "",
    "result_sha256": "",
}


def _resolve(w: Writing, new: Sequence[NewJob], ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """For each new id, the ids it waits for: all of that name in this batch, else that id, else what was submitted last
    of that name: a job, or all cells of a matrix."""
    batch: dict[str, list[str]] = {}
    for job_id, each in zip(ids, new, strict=True):
        batch.setdefault(each.spec.name, []).append(job_id)
    known: dict[str, list[str]] = {}

    def earlier(text: str, waiting: str) -> list[str]:
        if text not in known:
            exact = w.session.get(JobRow, text)
            known[text] = [exact.id] if exact else _newest(w, text)
        if not known[text]:
            raise JobNotFoundError(
                f"job {waiting!r} waits for {text!r}, and no job has that id or name",
                hint="submit that one first; `freegpu jobs` lists all",
            )
        return known[text]

    afters = {
        job_id: tuple(
            dict.fromkeys(
                needed
                for text in each.spec.after
                for needed in batch.get(text) or earlier(text, each.spec.name)
            )
        )
        for job_id, each in zip(ids, new, strict=True)
    }
    names = {job_id: each.spec.name for job_id, each in zip(ids, new, strict=True)}
    refuse_circles(afters, names)
    return afters


def _newest(w: Writing, name: str) -> list[str]:
    """The newest job of this name, or all cells of the newest submission of a matrix of this name."""
    columns = (JobRow.id, JobRow.name, JobRow.spec, JobRow.created_at)
    begins = func.substr(JobRow.name, 1, len(name) + 1) == f"{name}-"
    like = select(*columns).where(or_(col(JobRow.name) == name, begins))
    cells: list[str] = []
    submitted: datetime | None = None
    for job_id, called, spec, at in w.session.exec(like.order_by(col(JobRow.seq).desc())):
        if submitted is not None and at != submitted:
            break
        cell = rows.from_json(spec).get("cell") or {}
        if called == name and not cells:
            return [job_id]
        if cell and matrix.stem(called, cell) == name:
            submitted = at
            cells.append(job_id)
    return cells[::-1]


def bump_epoch(w: Writing, job_id: str) -> int:
    """A new epoch for a ticket that is no attempt, e.g. a stop."""
    job = w.job(job_id)
    epoch = job.epoch + 1
    w.change(JobRow, {"id": job_id, "epoch": job.epoch}, epoch=epoch, updated_at=w.now)
    w.record("job.epoch", f"epoch {epoch}", job=job_id, data={"epoch": epoch})
    return epoch


def cancel(w: Writing, job_id: str, *, at: datetime) -> None:
    """CANCELLED, and its open attempts asked to stop. Cancelling twice changes nothing."""
    job = w.job(job_id)
    if job.state == JobState.CANCELLED:
        return
    _advance(w, job, JobEvent.CANCEL, why="cancelled", ended_at=rows.aware(at))
    stop_open(w, job_id, EndReason.CANCELLED)
    w.record("job.cancelled", "cancelled by the user", job=job_id)


def retry(w: Writing, job_id: str, *, from_scratch: bool) -> None:
    """PENDING again, with nothing held against it; from scratch, its checkpoints are forgotten too."""
    job = w.job(job_id)
    values: dict[str, Any] = {
        "failures": 0,
        "preemptions": 0,
        "patience": 1,
        "not_before": None,
        "ended_at": None,
    }
    if from_scratch:
        values |= {"checkpoint_id": None, "progress": "{}"}
    why = "tried again from scratch" if from_scratch else "tried again"
    _advance(w, job, JobEvent.RETRY, why=why, **values)
    if from_scratch:
        w.run(delete(CheckpointRow).where(col(CheckpointRow.job) == job_id))
        # what still runs must not bring a checkpoint of the progress that was given up
        w.try_change(AttemptRow, {"job": job_id, "fenced": False}, fenced=True)
    w.run(delete(AvoidRow).where(col(AvoidRow.job) == job_id))
    w.record("job.retried", why, job=job_id)


def avoid(w: Writing, job_id: str, platform: str, why: str, until: datetime) -> None:
    """Keep the job away from a platform until then."""
    w.job(job_id)
    w.session.merge(AvoidRow(job=job_id, platform=platform, why=why, until=rows.aware(until)))
    w.record("job.avoids", why, job=job_id, platform=platform, data={"until": until})


def note_speed(
    w: Writing,
    *,
    job: str,
    card: str,
    workload: str,
    steps_per_s: float,
    at: datetime,
    span_s: float,
) -> None:
    """Remember how fast it went."""
    w.session.add(
        SpeedRow(
            job=job,
            card=card,
            workload=workload,
            steps_per_s=steps_per_s,
            at=rows.aware(at),
            span_s=span_s,
        )
    )
    w.record("speed.noted", f"{steps_per_s:.4g} steps/s on {card}", job=job)


def stop_open(w: Writing, job_id: str, reason: EndReason, *, but: str = "") -> None:
    """Every open attempt of the job, but one, becomes STOPPING for this reason."""
    found = w.session.exec(
        select(AttemptRow).where(
            AttemptRow.job == job_id, AttemptRow.state != AttemptState.ENDED.value
        )
    ).all()
    for attempt in found:
        if attempt.id == but:
            continue
        w.change(
            AttemptRow,
            {"id": attempt.id, "state": attempt.state},
            state=AttemptState.STOPPING.value,
            stop_reason=reason.value,
        )
        w.record("attempt.stop", f"asked to stop: {reason}", job=job_id, attempt=attempt.id)


def _advance(w: Writing, job: JobRow, event: JobEvent, **values: Any) -> None:
    """Move the job by the table. InvalidTransitionError names the job."""
    try:
        state = advance(JOB_TRANSITIONS, JobState(job.state), event)
    except InvalidTransitionError as error:
        raise InvalidTransitionError(
            f"job {job.id} ({job.name}): {error.message}", hint=f"see `freegpu show {job.id}`"
        ) from None
    guard = {"id": job.id, "state": job.state, "epoch": job.epoch}
    w.change(JobRow, guard, state=state.value, updated_at=w.now, **values)

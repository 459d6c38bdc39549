"""Why a job is where it is: the record of the decision that placed it, and what the whole queue would decide now. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from freegpu.jobs.lifecycle import JobState
from freegpu.orchestrator import placement, record
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Action, AuditEvent, Job, Session, Snapshot
from freegpu.orchestrator.reconcile import Reconciler
from freegpu.orchestrator.record import Decision
from freegpu.orchestrator.witness import Witness

__all__ = [
    "ALLOCATED",
    "Placed",
    "foreseen",
    "gave_way",
    "job_reasons",
    "placed",
    "session_reasons",
    "with_job",
]

#: the audit line that keeps the record
ALLOCATED = "attempt.allocated"
#: waiting jobs that `status` tells a reason for: as many as it shows
TOLD = 20


@dataclass(frozen=True, slots=True)
class Placed:
    """What is kept of the decision that placed a job last."""

    attempt: str
    session: str
    decision: Decision


def placed(ledger: Ledger, jobs: Collection[str]) -> dict[str, Placed]:
    """job -> the record of its newest attempt; jobs without one are left out (placed by an older freegpu)."""
    found = {}
    for job, line in ledger.newest_events(ALLOCATED, jobs).items():
        decision = _decision(line)
        if decision is not None:
            found[job] = Placed(line.attempt, line.session, decision)
    return found


def _decision(line: AuditEvent) -> Decision | None:
    told = line.data.get("decision")
    if not isinstance(told, Mapping) or not told:
        return None
    try:
        return record.from_json(told)
    except (KeyError, TypeError, ValueError):
        return None  # written by another version: as good as none


def gave_way(ledger: Ledger, job: str) -> AuditEvent | None:
    """When the job last gave up its slot to a shorter one, and the sentence."""
    return ledger.newest_events(record.GIVES_WAY, [job]).get(job)


def with_job(looking: Reconciler, ledger: Ledger, snapshot: Snapshot, job: Job) -> Snapshot:
    """The snapshot with the job in the queue, as a tick would put it there, whatever it does now."""
    if any(waiting.id == job.id for waiting in snapshot.waiting):
        return snapshot
    (told,) = looking.with_learned_lengths((ledger.as_waiting(job.id),))
    running = tuple(one for one in snapshot.running if one.job.id != job.id)
    return replace(snapshot, waiting=(*snapshot.waiting, told), running=running)


def foreseen(
    ledger: Ledger, snapshot: Snapshot, about: Collection[str], now: datetime
) -> tuple[Mapping[str, Decision], Sequence[Action]]:
    """What a tick would decide now for these jobs, with the whole queue, and all that it would do."""
    witness = Witness(about, _holders(ledger, snapshot))
    actions = placement.decide(snapshot, now, witness)
    return {job: found for job, found in witness.decisions.items() if job in about}, actions


def _holders(ledger: Ledger, snapshot: Snapshot) -> dict[str, list[str]]:
    """platform -> jobs in its sessions that a decision is not told of: they start, stop, or nothing reaches them."""
    known = {one.job.id for one in snapshot.running}
    found: dict[str, list[str]] = {}
    for attempt in ledger.attempts(open_only=True):
        if attempt.job not in known:
            name = ledger.job(attempt.job).name
            found.setdefault(attempt.platform, []).append(f"{name} is {attempt.state} there")
    return found


def job_reasons(
    ledger: Ledger, jobs: Sequence[Job], snapshot: Snapshot | None, now: datetime
) -> dict[str, str]:
    """job -> its reason in a few words: of active ones by the record, of the first that wait by the queue as it is."""
    kept = placed(ledger, [job.id for job in jobs if job.state is JobState.ACTIVE])
    found = {job: record.brief(one.decision) for job, one in kept.items()}
    if snapshot is not None:
        there = {waiting.id for waiting in snapshot.waiting}
        pending = [job.id for job in jobs if job.state is JobState.PENDING and job.id in there]
        if pending:
            decisions, _ = foreseen(ledger, snapshot, frozenset(pending[:TOLD]), now)
            found |= dict(_expected(decisions))
    return found


def _expected(decisions: Mapping[str, Decision]) -> Iterator[tuple[str, str]]:
    for job, decision in decisions.items():
        best = decision.chosen
        where = f"will go to {record.place_name(best)}: " if best is not None else ""
        yield job, where + record.brief(decision)


def session_reasons(ledger: Ledger, sessions: Sequence[Session]) -> dict[str, str]:
    """session -> for which job it was started and what spoke for it, by the record of its first attempt."""
    found = {}
    for session in sessions:
        lines = ledger.events(session=session.id, actions=[ALLOCATED], limit=1)
        decision = _decision(lines[0]) if lines else None
        if decision is None or decision.chosen is None or decision.chosen.where == session.id:
            continue  # a person started it, or an older freegpu
        name = ledger.job(lines[0].job).name
        found[session.id] = f"for {name}: {record.brief(decision)}"
    return found

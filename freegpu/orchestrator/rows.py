"""Rows to values and back, the same for reading and writing. Pure.

Decides: how a mapping, an enum or a time looks in a column. Does not know SQL. Parsed needs are shared
between jobs with equal text: ten thousand cells of one matrix parse once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from freegpu.adapters.base import Offer
from freegpu.errors import LedgerCorruptError
from freegpu.jobs.lifecycle import AttemptState, EndReason, JobState, SessionState
from freegpu.jobs.model import Accelerator, Estimate, JobSpec, Needs
from freegpu.orchestrator.model import (
    Attempt,
    AuditEvent,
    Checkpoint,
    Entry,
    EntryKind,
    Job,
    Progress,
    Session,
    Waiting,
)

Row = Mapping[str, Any]

#: columns of a joined checkpoint, in the order in which `job` expects them
CHECKPOINT_COLUMNS = (
    "key",
    "sha256",
    "attempt",
    "epoch",
    "generation",
    "step",
    "size",
    "confirmed_at",
    "sent",
    "confirmed_by",
)

_OFFER_FIELDS = frozenset(field.name for field in fields(Offer))


def to_json(value: Mapping[str, Any]) -> str:
    """A mapping as text; times as ISO, anything else that JSON lacks as its string."""
    return json.dumps(dict(value), ensure_ascii=False, sort_keys=True, default=_plain)


def from_json(text: str) -> dict[str, Any]:
    """The inverse of `to_json`, but for times."""
    return json.loads(text) if text != "{}" else {}


def time(value: str | datetime | None) -> datetime | None:
    """A time column: SQLite keeps UTC as text without an offset, PostgreSQL answers aware."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return datetime.fromisoformat(value + "+00:00")


def sure(value: str | datetime | None) -> datetime:
    """A time column that is never empty."""
    found = time(value)
    if found is None:
        raise ValueError("a time is missing in a row that must have one")
    return found


def aware(value: datetime) -> datetime:
    """The same moment in UTC. ValueError for a naive one."""
    if value.utcoffset() is None:
        raise ValueError(f"a time without a zone cannot enter the ledger: {value!r}")
    return value.astimezone(UTC)


def progress_to_json(progress: Progress) -> str:
    """A progress as text."""
    return to_json({name: value for name, value in asdict(progress).items() if value is not None})


def progress(text: str) -> Progress:
    """The inverse of `progress_to_json`."""
    if text == "{}":
        return Progress()
    raw = json.loads(text)
    at = raw.pop("at", None)
    return Progress(at=datetime.fromisoformat(at) if at else None, **raw)


def offer_to_json(offer: Offer) -> str:
    """An offer as text."""
    return to_json(asdict(offer))


def offer(text: str) -> Offer:
    """The inverse of `offer_to_json`; fields that this version does not know are left out."""
    raw = {name: value for name, value in json.loads(text).items() if name in _OFFER_FIELDS}
    raw["devices"] = tuple(raw.get("devices", ()))
    return Offer(**raw)


def needs_to_json(needs: Needs) -> str:
    """Needs as text."""
    return to_json(asdict(needs))


@lru_cache(maxsize=4096)
def needs(text: str) -> Needs:
    """The inverse of `needs_to_json`."""
    raw = json.loads(text)
    raw["accelerators"] = tuple(Accelerator(**each) for each in raw["accelerators"])
    raw["platforms"] = tuple(raw["platforms"])
    return Needs(**raw)


@lru_cache(maxsize=4096)
def estimate(seconds: float, card: str) -> Estimate:
    """An estimate from its two columns."""
    return Estimate(seconds=seconds, card=card)


@lru_cache(maxsize=2048)
def spec(text: str) -> JobSpec:
    """The inverse of `JobSpec.to_json`; equal texts share one value."""
    return JobSpec.from_json(json.loads(text))


def checkpoint(row: Row) -> Checkpoint:
    """A row of checkpoints."""
    return Checkpoint(
        key=row["key"],
        sha256=row["sha256"],
        attempt=row["attempt"],
        epoch=row["epoch"],
        generation=row["generation"],
        step=row["step"],
        size=row["size"],
        confirmed_at=sure(row["confirmed_at"]),
        sent=row["sent"],
        confirmed_by=row["confirmed_by"],
    )


def job(row: Row) -> Job:
    """A row of jobs, joined with its current checkpoint as `c_...` (all None: it has none).

    LedgerCorruptError names the job whose row makes no sense: somebody edited the file, or a disk did.
    """
    try:
        return _job(row)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerCorruptError(
            f"the ledger's row of job {row['id']} ({row['name']}) is damaged: {error}",
            hint="restore state.db from a backup; `freegpu doctor` lists every damaged row",
        ) from error


def _job(row: Row) -> Job:
    current = None
    if row["c_key"] is not None:
        current = checkpoint({name: row["c_" + name] for name in CHECKPOINT_COLUMNS})
    return Job(
        id=row["id"],
        seq=row["seq"],
        name=row["name"],
        state=JobState(row["state"]),
        why=row["why"],
        spec=spec(row["spec"]),
        bundle=row["bundle"],
        created_at=sure(row["created_at"]),
        updated_at=sure(row["updated_at"]),
        ended_at=time(row["ended_at"]),
        epoch=row["epoch"],
        attempts=row["attempts"],
        failures=row["failures"],
        preemptions=row["preemptions"],
        not_before=time(row["not_before"]),
        patience=row["patience"],
        checkpoint=current,
        progress=progress(row["progress"]),
        lost_s=row["lost_s"],
        result_attempt=row["result_attempt"],
        result_key=row["result_key"],
        result_sha256=row["result_sha256"],
    )


#: columns of jobs j and its checkpoint c, in the order in which `waiting` expects them
WAITING_COLUMNS = (
    "j.id",
    "j.seq",
    "j.name",
    "j.needs",
    "j.estimate_s",
    "j.estimate_card",
    "j.priority",
    "j.deadline",
    "j.created_at",
    "j.grace_s",
    "j.progress",
    "c.step",
)


def waiting(row: Sequence[Any], avoid: Mapping[str, str]) -> Waiting:
    """A pending job as a decision sees it; a tuple, not a mapping: there may be ten thousand.

    What remains is by its confirmed step and the total that it told.
    """
    job_id, seq, name, need, seconds, card, priority, deadline, created, grace, told, step = row
    remaining = 1.0
    if step is not None and told != "{}":
        total = json.loads(told).get("total")
        if total:
            remaining = min(1.0, max(0.0, 1.0 - step / total))
    return Waiting(
        id=job_id,
        seq=seq,
        name=name,
        needs=needs(need),
        estimate=None if seconds is None else estimate(seconds, card),
        priority=priority,
        deadline=None if deadline is None else time(deadline),
        created_at=sure(created),
        remaining=remaining,
        grace_s=grace,
        avoid=avoid,
    )


def attempt(row: Row) -> Attempt:
    """A row of attempts."""
    raw = dict(row)
    raw["state"] = AttemptState(raw["state"])
    for name in ("reason", "stop_reason"):
        raw[name] = EndReason(raw[name]) if raw[name] else None
    raw["created_at"] = sure(raw["created_at"])
    for name in ("started_at", "ended_at", "saved_at"):
        raw[name] = time(raw[name])
    raw["progress"] = progress(raw["progress"])
    raw["fenced"] = bool(raw["fenced"])
    return Attempt(**raw)


def session(row: Row) -> Session:
    """A row of sessions."""
    raw = dict(row)
    raw["state"] = SessionState(raw["state"])
    raw["created_at"] = sure(raw["created_at"])
    for name in ("started_at", "live_at", "ended_at", "polled_at"):
        raw[name] = time(raw[name])
    raw["offer"] = offer(raw["offer"])
    raw["beat"] = from_json(raw["beat"])
    return Session(**raw)


def entry(row: Row) -> Entry:
    """A row of entries."""
    raw = dict(row)
    raw["kind"] = EntryKind(raw["kind"])
    raw["at"] = sure(raw["at"])
    return Entry(**raw)


def event(row: Row) -> AuditEvent:
    """A row of events."""
    raw = dict(row)
    raw["at"] = sure(raw["at"])
    raw["data"] = from_json(raw["data"])
    return AuditEvent(**raw)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)

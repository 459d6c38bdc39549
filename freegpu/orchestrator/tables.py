"""The ledger's rows, for writing. Reading does not come here: see `reader`.

Decides: the type of every column. Does not know when a row may change. Enums are kept by value in text
columns, mappings as JSON text, times as aware UTC (naive ones are refused). The tables themselves are made
by `migrations`; a test holds both together.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from sqlmodel import Field, SQLModel, UTCDateTime


def _utc(default: object = ...) -> datetime:
    """A column of aware UTC times."""
    if default is None:
        return Field(default=None, sa_type=UTCDateTime, nullable=True)  # type: ignore[no-any-return]
    return Field(sa_type=UTCDateTime, nullable=False)  # type: ignore[no-any-return]


class MetaRow(SQLModel, table=True):
    """A fact about the ledger itself."""

    __tablename__: ClassVar[str] = "meta"
    key: str = Field(primary_key=True)
    value: str


class AccountRow(SQLModel, table=True):
    """The one account that a platform is used with."""

    __tablename__: ClassVar[str] = "accounts"
    platform: str = Field(primary_key=True)
    account: str
    since: datetime = _utc()


class JobRow(SQLModel, table=True):
    """A job; needs, estimate and grace are copies out of the spec, so that waiting jobs are read quickly."""

    __tablename__: ClassVar[str] = "jobs"
    id: str = Field(primary_key=True)
    seq: int
    name: str
    state: str
    why: str
    spec: str
    needs: str
    estimate_s: float | None = None
    estimate_card: str = ""
    grace_s: float
    priority: int
    deadline: datetime | None = _utc(None)
    bundle: str
    created_at: datetime = _utc()
    updated_at: datetime = _utc()
    ended_at: datetime | None = _utc(None)
    epoch: int = 0
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    not_before: datetime | None = _utc(None)
    patience: int = 1
    checkpoint_id: int | None = None
    progress: str = "{}"
    lost_s: float = 0.0
    result_attempt: str = ""
    result_key: str = ""
    result_sha256: str = ""


class AfterRow(SQLModel, table=True):
    """`job` waits until `after` has succeeded."""

    __tablename__: ClassVar[str] = "afters"
    job: str = Field(primary_key=True)
    after: str = Field(primary_key=True)


class SessionRow(SQLModel, table=True):
    """A session."""

    __tablename__: ClassVar[str] = "sessions"
    id: str = Field(primary_key=True)
    platform: str
    account: str
    key: str
    ref: str = ""
    state: str
    raw_state: str = ""
    reason: str = ""
    card: str
    count: int
    offer: str
    card_seen: str = ""
    created_at: datetime = _utc()
    started_at: datetime | None = _utc(None)
    live_at: datetime | None = _utc(None)
    ended_at: datetime | None = _utc(None)
    limit_s: float | None = None
    reserved_s: float = 0.0
    charged_s: float = 0.0
    pool: str
    rate: float
    beat_counter: int = 0
    silent_polls: int = 0
    polled_at: datetime | None = _utc(None)
    inbox_next: int = 1
    outbox_seen: int = 0
    our_counter: int = 0
    beat: str = "{}"


class AttemptRow(SQLModel, table=True):
    """An attempt."""

    __tablename__: ClassVar[str] = "attempts"
    id: str = Field(primary_key=True)
    job: str
    number: int
    epoch: int
    session: str
    slot: int
    state: str
    reason: str | None = None
    detail: str = ""
    exit_code: int | None = None
    platform: str
    card: str
    created_at: datetime = _utc()
    started_at: datetime | None = _utc(None)
    ended_at: datetime | None = _utc(None)
    ticket_seq: int = 0
    stop_reason: str | None = None
    stop_seq: int = 0
    base_epoch: int = 0
    base_generation: int = 0
    saved_at: datetime | None = _utc(None)
    run_s: float = 0.0
    lost_s: float = 0.0
    outputs_key: str = ""
    outputs_sha256: str = ""
    progress: str = "{}"
    fenced: bool = False


class CheckpointRow(SQLModel, table=True):
    """A confirmed checkpoint."""

    __tablename__: ClassVar[str] = "checkpoints"
    id: int | None = Field(default=None, primary_key=True)
    job: str
    key: str
    sha256: str
    attempt: str
    epoch: int
    generation: int
    step: int | None = None
    size: int
    confirmed_at: datetime = _utc()
    sent: int | None = None
    confirmed_by: str


class EntryRow(SQLModel, table=True):
    """A ledger entry; the database refuses to change or remove it."""

    __tablename__: ClassVar[str] = "entries"
    id: int | None = Field(default=None, primary_key=True)
    at: datetime = _utc()
    kind: str
    platform: str
    account: str
    pool: str
    session: str = ""
    amount_s: float
    note: str = ""


class ReadingRow(SQLModel, table=True):
    """What a platform said about a pool."""

    __tablename__: ClassVar[str] = "readings"
    id: int | None = Field(default=None, primary_key=True)
    platform: str
    account: str
    pool: str
    used_s: float
    limit_s: float | None = None
    resets_at: datetime | None = _utc(None)
    as_of: datetime = _utc()


class SpeedRow(SQLModel, table=True):
    """How fast a job went on a card."""

    __tablename__: ClassVar[str] = "speeds"
    id: int | None = Field(default=None, primary_key=True)
    job: str
    card: str
    workload: str
    steps_per_s: float
    at: datetime = _utc()
    span_s: float = 0.0


class EventRow(SQLModel, table=True):
    """A line of the audit."""

    __tablename__: ClassVar[str] = "events"
    id: int | None = Field(default=None, primary_key=True)
    at: datetime = _utc()
    action: str
    message: str
    job: str = ""
    attempt: str = ""
    session: str = ""
    platform: str = ""
    data: str = "{}"


class BlockRow(SQLModel, table=True):
    """A platform that is left alone until then."""

    __tablename__: ClassVar[str] = "blocks"
    platform: str = Field(primary_key=True)
    until: datetime = _utc()
    why: str


class AvoidRow(SQLModel, table=True):
    """A platform that a job stays away from until then."""

    __tablename__: ClassVar[str] = "avoids"
    job: str = Field(primary_key=True)
    platform: str = Field(primary_key=True)
    why: str
    until: datetime = _utc()

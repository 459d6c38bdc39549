"""What the operations answer, as plain frozen values: the contract with the command line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freegpu.errors import FreeGPUError
from freegpu.jobs.model import JobSpec
from freegpu.orchestrator.invitations import Invitation
from freegpu.orchestrator.model import (
    Attempt,
    AuditEvent,
    Checkpoint,
    Figures,
    Job,
    Progress,
)
from freegpu.orchestrator.record import Decision

if TYPE_CHECKING:
    # measuring needs more than looking does
    from freegpu.orchestrator.probe import Measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Initialised:
    """A home that is ready; `created`: it was not before."""

    home: str
    store: str
    db: str
    platforms: tuple[str, ...]
    created: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleInfo:
    """The packed working folder; `reused`: the store had it already."""

    sha256: str
    size: int
    files: int
    reused: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Submitted:
    """New jobs, and what was ignored in their spec."""

    jobs: tuple[Job, ...]
    notices: tuple[str, ...]
    bundle: BundleInfo | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CellMade:
    """An agent cell, ready to be run in a notebook."""

    platform: str
    title: str
    #: where a person opens a notebook; "": wherever theirs is
    url: str
    id: str
    #: the store's address as the notebook sees it
    store: str
    text: str
    notebook: Mapping[str, Any]
    #: secrets that the notebook's own secret store must hold, by name
    secrets: tuple[str, ...]
    #: the cell's key, where it may not stand in the cell; "" otherwise
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What submit would do: nothing of it was done."""

    specs: tuple[JobSpec, ...]
    notices: tuple[str, ...]
    files: int
    #: bytes before packing
    size: int
    largest: tuple[tuple[str, int], ...]
    #: job name -> what would be decided for it in the whole queue
    decisions: tuple[tuple[str, Decision], ...]
    #: platform -> the exact request that would start its session
    requests: tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticked:
    """`did`: we ticked; otherwise `holder` says who is the orchestrator, or there was nothing to do."""

    did: bool
    holder: str = ""
    actions: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformView:
    """One offer of a platform with its quota; seconds throughout."""

    name: str
    account: str
    card: str
    count: int
    vram_gb: float
    used_s: float | None
    limit_s: float | None
    left_s: float | None
    reserved_s: float
    resets_at: datetime | None
    #: live, ledger, learned or declared; "" when the platform has no quota
    source: str
    age_s: float | None
    attended: bool
    open_sessions: int
    max_concurrent: int
    session_limit_s: float | None
    #: why nothing can be started there now; "" when it can
    problem: str
    #: what past sessions showed about limits that the platform does not publish; None: it does, or has none
    learned: Figures | None = None
    #: the platform does not answer: since when nothing newer is known of its offers; None: they are of now
    known_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotView:
    """A slot and what runs in it; empty strings when it is free."""

    slot: int
    job: str
    job_name: str
    attempt: str
    phase: str
    progress: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionView:
    """A session as we know it now."""

    id: str
    platform: str
    card: str
    count: int
    state: str
    started_at: datetime | None
    limit_s: float | None
    left_s: float | None
    slots: tuple[SlotView, ...]
    gpu: tuple[Mapping[str, Any], ...]
    silent: bool
    queue: int
    #: what it was started for, and what spoke for it; "": not known
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView:
    """A job in one line."""

    id: str
    name: str
    state: str
    why: str
    #: where it runs or ran last; "" before the first attempt
    platform: str
    card: str
    attempt: str
    #: how often it moved on: attempts that really ran, less one
    hops: int
    progress: Progress
    eta_s: float | None
    checkpoint_at: datetime | None
    created_at: datetime
    ended_at: datetime | None
    lost_s: float
    priority: int
    deadline: datetime | None
    #: the same in a few words from the record of the decision: what spoke for the place, or what is against all; "": not known
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """The whole picture."""

    platforms: tuple[PlatformView, ...]
    sessions: tuple[SessionView, ...]
    jobs: tuple[JobView, ...]
    counts: Mapping[str, int]
    #: who holds the orchestrator lock; "" : nobody, commands tick by themselves
    orchestrator: str
    problems: tuple[str, ...] = ()
    #: sessions that a person could start now, and what for
    invitations: tuple[Invitation, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDetail:
    """Everything the ledger knows of a job."""

    job: JobView
    spec: JobSpec
    attempts: tuple[Attempt, ...]
    checkpoints: tuple[Checkpoint, ...]
    events: tuple[AuditEvent, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Why:
    """Why a job is where it is: what the decision that placed it saw, and what holds now."""

    job: JobView
    sentence: str
    #: the attempt that was placed last, and what that decision saw; "", None: none yet, or nothing was kept of it
    attempt: str = ""
    placed: Decision | None = None
    #: when and for whom it gave up its slot; "" if it did not
    gave_way: str = ""
    #: what would be decided in the whole queue now; None: not asked for
    now: Decision | None = None
    #: sessions that a person could start now for this job
    invitations: tuple[Invitation, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LogChunk:
    """A piece of an attempt's output, as bytes; `first` marks the first piece of its attempt."""

    attempt: str
    platform: str
    card: str
    data: bytes
    first: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """Results that were brought, every byte verified. `partial`: the job has not succeeded (yet)."""

    job: JobView
    attempt: str
    files: tuple[str, ...]
    size: int
    into: Path
    partial: bool
    #: epoch and generation of the checkpoint that was brought; "": the outputs were
    checkpoint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PulledCell:
    """What was brought of one job of a matrix. `attempt` "" and `into` None: nothing."""

    job: str
    name: str
    params: Mapping[str, str]
    state: str
    attempt: str
    files: tuple[str, ...]
    size: int
    into: Path | None
    #: the job has not succeeded (yet)
    partial: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PulledMatrix:
    """What was brought of a matrix."""

    name: str
    into: Path
    cells: tuple[PulledCell, ...]
    #: why it is not all of it, what went wrong before what is not there yet
    errors: tuple[FreeGPUError, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A checkpoint of a job, as far as the ledger and the store know it now."""

    #: epoch and generation: "2-14"
    name: str
    attempt: str
    #: of the attempt: 1 is the job's first
    number: int
    platform: str
    epoch: int
    generation: int
    #: None: the job did not report one, or the manifest cannot be read yet
    step: int | None
    size: int | None
    #: bytes that were put for it; None: not known
    sent: int | None
    #: confirmed, or if it is not, written by its agent; None: not known
    at: datetime | None
    #: unconfirmed, confirmed, base (an open attempt starts from it) or deleted
    state: str
    #: orchestrator or store: whose digests were compared; "": nobody's yet
    confirmed_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Generations:
    """All checkpoints of a job, newest first."""

    job: JobView
    checkpoints: tuple[Generation, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Garbage:
    """What gc deleted (or would): path, bytes, and why nothing needs it."""

    deleted: tuple[tuple[str, int, str], ...]
    freed: int
    kept: int
    dry_run: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One line of doctor. ok None: for information."""

    name: str
    ok: bool | None
    detail: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreReport:
    """What `doctor store` found."""

    checks: tuple[Check, ...]
    #: None: the store could not be measured
    measured: Measured | None
    #: what the figures mean for jobs, in sentences
    means: tuple[str, ...]

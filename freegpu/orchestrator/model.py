"""What the ledger holds, as frozen values, and the snapshot that decisions are made on. Pure.

Times are aware UTC datetimes. Rows live only in `tables`; what leaves the ledger are these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

from freegpu.adapters.base import Capabilities, Offer, Window
from freegpu.jobs.lifecycle import AttemptState, EndReason, JobState, SessionState
from freegpu.jobs.model import Estimate, JobSpec, Needs, Remembers

#: who may have confirmed a checkpoint
ORCHESTRATOR, STORE = "orchestrator", "store"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A confirmed checkpoint: every blob was verified by the orchestrator."""

    key: str
    sha256: str
    attempt: str
    epoch: int
    generation: int
    step: int | None
    size: int
    confirmed_at: datetime
    #: bytes that were put for it; None: its agent did not tell
    sent: int | None = None
    #: whose digests were compared: the orchestrator's own, or those that the store tells
    confirmed_by: str = ORCHESTRATOR


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a job is, by its own word."""

    step: float | None = None
    total: float | None = None
    #: seconds that remain on the card where it ran last, if it can be told
    remaining_s: float | None = None
    at: datetime | None = None
    #: everything the job reported, e.g. loss
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One job and where it stands."""

    id: str
    #: grows with submission; the order of first come
    seq: int
    name: str
    state: JobState
    #: the sentence behind the state
    why: str
    spec: JobSpec
    bundle: str
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    #: epoch of the newest attempt; 0 before the first
    epoch: int
    #: attempts so far
    attempts: int
    failures: int
    preemptions: int
    #: not before this moment is it tried again; None: any time
    not_before: datetime | None
    #: patience for silence, in multiples of the default; doubles with every fence that brought no checkpoint
    patience: int
    checkpoint: Checkpoint | None
    progress: Progress
    #: seconds of work that were lost to interruptions so far
    lost_s: float
    #: the accepted attempt and its outputs manifest
    result_attempt: str
    result_key: str
    result_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One try of a job in a slot."""

    id: str
    job: str
    number: int
    epoch: int
    session: str
    slot: int
    state: AttemptState
    reason: EndReason | None
    detail: str
    exit_code: int | None
    platform: str
    card: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    #: inbox seq of its run ticket; 0: not written yet
    ticket_seq: int
    #: why it was asked to stop (cancelled, preempted, superseded), and the inbox seq of that ticket; None, 0: it was not
    stop_reason: EndReason | None
    stop_seq: int
    #: epoch of the checkpoint it started from and its generation; 0, 0: from scratch
    base_epoch: int
    base_generation: int
    #: up to this moment its work is in a confirmed checkpoint; None: none yet
    saved_at: datetime | None
    #: seconds its command ran, as the agent measured
    run_s: float
    #: seconds of work lost at its end
    lost_s: float
    #: outputs manifest, whole or partial ("" : none)
    outputs_key: str
    outputs_sha256: str
    #: last progress the agent reported
    progress: Progress
    #: fenced: nothing it writes from now on is ever a base
    fenced: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One run on a platform that holds cards for a while."""

    id: str
    platform: str
    account: str
    #: request key; equals the id
    key: str
    #: the platform's handle; "" before start() was answered
    ref: str
    state: SessionState
    raw_state: str
    reason: str
    card: str
    count: int
    offer: Offer
    #: the card that really came, by the agent's word; "" before hello
    card_seen: str
    created_at: datetime
    started_at: datetime | None
    live_at: datetime | None
    ended_at: datetime | None
    #: seconds it may last; None: no limit
    limit_s: float | None
    #: quota reserved for it and charged at its end, seconds
    reserved_s: float
    charged_s: float
    pool: str
    rate: float
    #: last beat counter seen, how many of our own polls it has not moved over, and when we polled last
    beat_counter: int
    silent_polls: int
    polled_at: datetime | None
    #: next free inbox seq, last outbox seq handled, our own beat counter
    inbox_next: int
    outbox_seen: int
    our_counter: int
    #: what the last beat said (slots, gpu, left_s, state)
    beat: Mapping[str, Any]


class EntryKind(StrEnum):
    """What a ledger entry does to a balance."""

    RESERVE = "reserve"
    CHARGE = "charge"
    RELEASE = "release"
    ADJUST = "adjust"
    READING = "reading"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of the ledger; never changed, never removed."""

    id: int
    at: datetime
    kind: EntryKind
    platform: str
    account: str
    pool: str
    session: str
    #: seconds at rate 1; reserve and charge are positive, release is positive and undoes a reserve
    amount_s: float
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJob:
    """A job before the ledger knows it."""

    spec: JobSpec
    #: SHA-256 of its code bundle; "": it has none
    bundle: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The newest word of a platform on one pool, in seconds of session time at rate 1."""

    platform: str
    account: str
    pool: str
    used_s: float
    limit_s: float | None
    resets_at: datetime | None
    #: when it was true
    as_of: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """How fast a job went on a card, by its own progress."""

    job: str
    card: str
    workload: str
    steps_per_s: float
    at: datetime
    #: over how long it was seen, seconds; 0: not known
    span_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEvent:
    """One decision or change and the reason for it; "" where a name does not apply."""

    id: int
    at: datetime
    action: str
    message: str
    job: str
    attempt: str
    session: str
    platform: str
    data: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocked:
    """A platform that is left alone for a while; `until` may have passed."""

    platform: str
    until: datetime
    why: str


class FigureSource(StrEnum):
    """Where a quota figure comes from, best first."""

    LIVE = "live"
    LEDGER = "ledger"
    LEARNED = "learned"
    DECLARED = "declared"


@dataclass(frozen=True, kw_only=True, slots=True)
class Balance:
    """What is left of one pool: limit - charged - reserved."""

    platform: str
    account: str
    pool: str
    window: Window
    #: None: nobody knows
    limit_s: float | None
    used_s: float
    reserved_s: float
    resets_at: datetime | None
    source: FigureSource
    #: age of the figure in seconds: of the live reading, the ledger's newest line, or the day of the declaration; None:
    #: not known
    age_s: float | None = None

    @property
    def left_s(self) -> float | None:
        """Seconds that may still be used; None: unlimited or not known."""
        if self.limit_s is None:
            return None
        return max(0.0, self.limit_s - self.used_s - self.reserved_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """A limit that nobody publishes, as past sessions show it; seconds. None where they do not reach so far."""

    #: nine in ten got beyond this, half beyond that, one in ten beyond the last
    low_s: float | None
    median_s: float | None
    high_s: float | None
    #: the most that was seen
    longest_s: float
    #: how many were seen, and in how many of them the limit itself was; the others ended before
    seen: int
    observed: int
    #: since the newest of them
    age_s: float
    #: "4.1-7.9 h (9 sessions)"
    text: str
    source: FigureSource = FigureSource.LEARNED


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What was learned about one pool of an account; None: nothing yet."""

    #: how long a session lives
    session: Learned | None = None
    #: how much could be used within the window before the platform refused
    allowance: Learned | None = None
    #: how long it then went on refusing
    refusal: Learned | None = None


# --- the snapshot that decide() sees ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting(Remembers):
    """A job that wants a slot now."""

    id: str
    seq: int
    name: str
    needs: Needs
    estimate: Estimate | None
    priority: int
    deadline: datetime | None
    created_at: datetime
    #: share of the work that remains, 0..1, by its confirmed progress
    remaining: float = 1.0
    #: seconds per unit speed left, learned from its own progress; None: use the estimate
    remaining_t4_s: float | None = None
    grace_s: float = 120.0
    #: places (platform) that refused or failed it lately, with the sentence; avoided until they age out
    avoid: Mapping[str, str] = field(default_factory=dict)
    #: what a checkpoint costs it, seconds of its slot; None: not known
    save_s: float | None = None
    #: card -> speed relative to a T4, where it or its kin was seen to run; elsewhere the card table counts
    speeds: Mapping[str, float] = field(default_factory=dict)
    #: deviation of the logarithm of `remaining_t4_s`; None: an estimate, or nothing
    sigma: float | None = None
    #: for forecasts, since a decision sees only jobs that may begin: ids of jobs that must have succeeded first, and
    #: the moment before which it is not tried again
    after: tuple[str, ...] = ()
    not_before: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A job in a slot: what a decision must know to pass the slot on. `job` as if it waited now."""

    job: Waiting
    session: str
    slot: int
    offer: Offer
    #: how long it has had the slot, seconds
    held_s: float
    #: seconds until the session's limit; None: no limit
    left_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FreeSlot:
    """A slot of a live session that runs nothing."""

    session: str
    slot: int
    offer: Offer
    #: seconds until the session's limit; None: no limit
    left_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A platform as a decision sees it."""

    platform: str
    account: str
    capabilities: Capabilities
    offers: tuple[Offer, ...]
    #: sessions open now
    open_sessions: int
    balances: tuple[Balance, ...]
    #: not before this moment: it refused, throttled or failed
    blocked_until: datetime | None = None
    blocked_why: str = ""
    #: what past sessions showed, by pool, where the platform publishes no limit
    learned: Mapping[str, Figures] = field(default_factory=dict)
    #: the platform does not answer, and its offers are what they were then; None: they are of now
    as_of: datetime | None = None
    #: sessions that were lost before their time, and how long sessions lived in all, seconds: a loss rate is learned from
    #: the two. Infinite: nothing is ever lost there
    losses: float = 0.0
    exposure_s: float = math.inf
    #: card -> what the PyTorch there was built for, as agents reported; "" for cards that did not speak for themselves
    archs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Goal = Literal["jct", "makespan"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A session that is open now, with what runs in it or is about to: where a forecast begins."""

    session: str
    offer: Offer
    #: seconds until its limit; None: no limit
    left_s: float | None
    #: quota that it holds and has not used yet, seconds at rate 1
    held_s: float
    #: (slot, job)
    jobs: tuple[tuple[int, str], ...]
    #: those of them that run already
    going: frozenset[str] = frozenset()
    #: seconds until it lives, if it is still starting
    starts_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """All that a decision depends on, but the time."""

    waiting: tuple[Waiting, ...] = ()
    free_slots: tuple[FreeSlot, ...] = ()
    places: tuple[Place, ...] = ()
    running: tuple[Running, ...] = ()
    #: what jobs of the last weeks needed, each once: a platform that is the only home of some keeps quota for such
    lately: tuple[Needs, ...] = ()
    #: jobs that were submitted in the last days, whatever became of them
    came: int = 0
    #: "jct": jobs end early on average; "makespan": the last one ends early
    goal: Goal = "jct"
    #: for forecasts: every open session, also those that no decision looks at any more
    standing: tuple[Standing, ...] = ()
    #: for forecasts: how long a job takes from getting a slot of a live session to running, seconds; None: not seen
    start_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What one place would mean for one job; the words and figures behind `why`."""

    platform: str
    card: str
    count: int
    #: where exactly: "new session" or the id of a live one
    where: str
    feasible: bool
    #: expected finish, seconds from now; None: not feasible, or unknown length (then ranked by speed alone)
    finish_s: float | None
    #: speed relative to a T4 for this class of work
    speed: float
    #: sessions that the rest of the job needs there
    sessions: int
    #: the sentence
    why: str
    #: the filter that refused it in words, or who took it; "" where it could be taken
    fault: str = ""
    #: what would let it in; "" where nothing is known to
    change: str = ""
    #: the one that was taken
    chosen: bool = False
    #: seconds until work begins there; None: it cannot be taken now
    start_s: float | None = None
    #: of the expected finish, what is spent waiting for quota, seconds
    waits_s: float = 0.0
    #: what the quota counts for, as a later finish, seconds
    price_s: float = 0.0
    #: the quota that it draws on, what was left of it and what would be after this was set aside, seconds at rate 1; None:
    #: no quota, or nobody counts it
    pool: str = ""
    before_s: float | None = None
    after_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """This job into that slot."""

    job: str
    slot: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StartSession:
    """Start a session of this offer, with these jobs queued ahead in its mailbox."""

    offer: Offer
    assignments: tuple[Assignment, ...]
    reserve_s: float
    why: str
    #: seconds from its grant for which the platform's limit and the quota let it last; None: nobody knows of an end
    lasts_s: float | None = None
    #: what its jobs must have of it at least once it lives: their grace, and some work
    least_s: float = 0.0

    @property
    def placed(self) -> tuple[Assignment, ...]:
        """The jobs that this gives a place to."""
        return self.assignments


@dataclass(frozen=True, kw_only=True, slots=True)
class Assign:
    """Put a job into a free slot of a live session."""

    session: str
    assignment: Assignment
    why: str

    @property
    def placed(self) -> tuple[Assignment, ...]:
        """The jobs that this gives a place to."""
        return (self.assignment,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Pass a slot of a live session from the job that runs there to another: save, stop, then the other begins."""

    session: str
    #: the job that runs there, and goes back into the queue
    victim: str
    assignment: Assignment
    why: str

    @property
    def placed(self) -> tuple[Assignment, ...]:
        """The jobs that this gives a place to."""
        return (self.assignment,)


Action = StartSession | Assign | Move

"""Platforms, jobs and results of a forecast, as frozen values. Pure.

A world holds two kinds of figures: what freegpu believes (offers, windows, estimates), which the policy sees, and what
is true (losses, grants, speeds, lengths), which it does not. Moments are aware UTC datetimes where they are given and
told, and seconds since `World.begin` inside the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Estimate, Needs
from freegpu.orchestrator.model import Entry, EntryKind, Goal, Reading, Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """One quota of a platform and what was used of it before the forecast begins."""

    name: str
    window: Window
    entries: tuple[Entry, ...] = ()
    reading: Reading | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One account on one platform."""

    name: str
    account: str = "me"
    capabilities: Capabilities = field(default_factory=Capabilities)
    offers: tuple[Offer, ...] = ()
    pools: tuple[Pool, ...] = ()
    #: true: how often a session is lost, per hour of its life
    loss_per_h: float = 0.0
    #: true: chance that a session that is asked for is granted; a refusal closes the platform for a while
    grant: float = 1.0
    refusal_s: float = 3600.0
    #: true: what a granted session waits in the platform's queue on average, seconds; costs no quota
    queue_s: float = 0.0
    #: believed: sessions lost and seconds lived in the last weeks; infinite: nothing is ever lost there
    losses: float = 0.0
    exposure_s: float = 0.0
    #: not before this moment
    blocked_until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One job, with what the user said of it and how it really is."""

    id: str
    needs: Needs = field(default_factory=Needs)
    name: str = ""
    #: true: T4 seconds by the card table
    work_s: float
    #: true: how much faster it is on a card than the table says; 1 where nothing is said
    pace: Mapping[str, float] = field(default_factory=dict)
    #: share of the work that is done and saved already
    done: float = 0.0
    #: what the user thinks; None: they said nothing
    estimate: Estimate | None = None
    priority: int = 0
    deadline: datetime | None = None
    arrives: datetime | None = None
    #: ids of jobs that must have finished before it arrives; one that the world lacks never does
    after: tuple[str, ...] = ()
    #: when it was submitted, if that was before it arrives; its waiting counts from here
    created_at: datetime | None = None
    #: what a checkpoint costs, what a start of the job costs in its slot, seconds
    save_s: float = 30.0
    restart_s: float = 60.0
    grace_s: float = 120.0
    #: seconds between checkpoints; None: by Young's rule from the loss rate that is believed of the platform
    every_s: float | None = None
    #: it tells how far it is
    reports: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Everything that a run starts from."""

    platforms: tuple[Platform, ...]
    jobs: tuple[Job, ...]
    begin: datetime
    #: sessions that are open when it begins
    standing: tuple[Standing, ...] = ()
    goal: Goal = "jct"
    #: the run is given up after so long
    horizon_s: float = 120 * 86400.0
    #: the run ends when these jobs have finished; empty: when all have
    watched: frozenset[str] = frozenset()
    #: the policy is asked at least this often while jobs wait
    tick_s: float = 3600.0
    #: an agent without work ends its session after so long
    idle_s: float = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """One attempt: a job in a slot."""

    session: str
    platform: str
    card: str
    slot: int
    begin: datetime
    end: datetime
    #: finished, limit, lost, quota or moved
    reason: str
    #: T4 seconds of work that were done here and kept, and those that were lost at its end
    kept_s: float
    lost_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a job."""

    job: str
    arrived: datetime
    started: datetime | None
    #: None: not within the horizon
    finished: datetime | None
    stays: tuple[Stay, ...]

    @property
    def hops(self) -> int:
        """How often it went on somewhere else or again."""
        return max(0, len(self.stays) - 1)

    @property
    def lost_s(self) -> float:
        """Work lost to interruptions, T4 seconds."""
        return sum(stay.lost_s for stay in self.stays)

    @property
    def took_s(self) -> float:
        """From arrival to finish, seconds; infinite if it did not finish."""
        return math.inf if self.finished is None else (self.finished - self.arrived).total_seconds()


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One session."""

    id: str
    platform: str
    card: str
    count: int
    pool: str
    asked: datetime
    #: when the platform gave the machine, and from when on it costs quota
    granted: datetime
    ended: datetime
    #: idle, limit, lost, quota or horizon
    reason: str
    #: seconds at rate 1
    charged_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowUse:
    """One window of a pool that came to its end during the run."""

    platform: str
    pool: str
    end: datetime
    limit_s: float
    used_s: float
    #: a job was waiting when it ended
    wanted: bool

    @property
    def expired_s(self) -> float:
        """What was left and is gone, seconds at rate 1."""
        return max(0.0, self.limit_s - self.used_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One run."""

    begin: datetime
    #: when the last job finished, or the horizon
    end: datetime
    #: by id, in the order in which they arrive
    outcomes: Mapping[str, Outcome]
    sessions: tuple[Run, ...]
    windows: tuple[WindowUse, ...]
    #: (platform, pool) -> used during the run, seconds at rate 1
    used_s: Mapping[tuple[str, str], float]
    refusals: int
    moves: int
    decisions: int

    @property
    def span_s(self) -> float:
        """How long it took, seconds."""
        return (self.end - self.begin).total_seconds()


def used_evenly(platform: str, account: str, pool: Pool, begin: datetime) -> Pool:
    """The pool as if it had been used at an even pace until `begin`: what is left is enough for the same pace."""
    window, limit = pool.window, pool.window.limit_s
    if limit is None:
        return pool
    since: datetime | None = None
    amount = limit
    if window.kind is WindowKind.ROLLING:
        since = begin - timedelta(seconds=window.period_s)
    elif window.kind is WindowKind.FIXED_WEEKLY:
        offset = timedelta(seconds=window.reset_offset_s)
        monday = begin - timedelta(days=begin.weekday())
        week = monday.replace(hour=0, minute=0, second=0, microsecond=0) + offset
        since = week if week <= begin else week - timedelta(days=7)
        amount = limit * ((begin - since) / timedelta(days=7))
    elif window.kind is WindowKind.MONTHLY:
        since = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        following = (since + timedelta(days=32)).replace(day=1)
        amount = limit * ((begin - since) / (following - since))
    if since is None or amount <= 0:
        return pool

    def entry(number: int, at: datetime, kind: EntryKind, seconds: float) -> Entry:
        return Entry(
            id=number,
            at=at,
            kind=kind,
            platform=platform,
            account=account,
            pool=pool.name,
            session="before",
            amount_s=seconds,
            note="used before",
        )

    entries = (
        entry(1, since, EntryKind.RESERVE, 0.0),
        entry(2, begin, EntryKind.CHARGE, amount),
    )
    return Pool(name=pool.name, window=window, entries=entries, reading=pool.reading)

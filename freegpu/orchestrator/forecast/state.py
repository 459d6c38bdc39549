"""What changes while a forecast runs: jobs, slots, sessions, platforms. Times in seconds since the world's beginning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum

from freegpu.adapters.base import Offer
from freegpu.orchestrator.forecast import work
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.forecast.world import Job, Platform, Stay
from freegpu.orchestrator.model import Waiting
from freegpu.orchestrator.spots import Kind, Shape


class What(IntEnum):
    """Events; those of one moment happen in this order."""

    FINISH = 0
    LOSS = 1
    LIMIT = 2
    SPENT = 3
    RESET = 4
    FREED = 5
    LIVE = 6
    ARRIVE = 7
    OPEN = 8
    IDLE = 9
    TICK = 10


@dataclass(slots=True, eq=False)
class JobNow:
    """A job and where it stands."""

    job: Job
    seq: int
    arrived: float
    created: datetime
    kind: Kind
    #: T4 seconds that are done and saved
    done: float
    started: float | None = None
    finished: float | None = None
    stays: list[Stay] = field(default_factory=list)
    #: the card whose speed its own progress has shown
    seen: str = ""
    #: waiting, placed, or promised the slot that another leaves
    state: str = "to come"
    waiting: Waiting | None = None
    #: jobs that must finish before it may begin
    needed: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Seat:
    """A job in a slot."""

    job: JobNow
    #: when its work begins, seconds; None: the session is not there yet
    begins: float | None
    held_since: float
    #: T4 seconds of work a second
    rate: float
    every: float
    #: it ran already when the world began
    going: bool = False
    #: it saves and leaves, and this job comes next
    leaving: bool = False
    next: JobNow | None = None

    def worked(self, now: float) -> tuple[float, float]:
        """T4 seconds (done, of it saved) since it began here; never more than there was."""
        if self.begins is None:
            return 0.0, 0.0
        did, saved = work.after(now - self.begins, self.every, self.job.job.save_s)
        rest = self.job.job.work_s - self.job.done
        return min(rest, did * self.rate), min(rest, saved * self.rate)


@dataclass(slots=True, eq=False)
class SessionNow:
    """A session that was granted and is not over."""

    id: str
    at: PlatformNow
    offer: Offer
    shape: Shape
    asked: float
    seats: list[Seat | None]
    granted: float = 0.0
    live: float | None = None
    ends: float = math.inf
    idle_since: float | None = None


@dataclass(slots=True, eq=False)
class PlatformNow:
    """A platform, its sessions and what was seen of it."""

    given: Platform
    purses: dict[str, Purse]
    sessions: dict[str, SessionNow] = field(default_factory=dict)
    asked: int = 0
    losses: float = 0.0
    lived_s: float = 0.0
    blocked_until: datetime | None = None

    def exposure_s(self, now: float) -> float:
        """How long sessions lived there in all, seconds."""
        alive = sum(now - s.live for s in self.sessions.values() if s.live is not None)
        return self.given.exposure_s + self.lived_s + alive

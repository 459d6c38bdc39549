"""The run: events in order of time, a snapshot at each, a policy that decides, and what comes of it. Pure.

The policy sees what the real one sees: estimates, progress, balances, losses so far. Losses, grants and true speeds
are drawn from one seed, by platform and number of the session there, so that two policies meet the same luck as far as
they do the same.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
from collections.abc import Callable, Sequence
from datetime import datetime

from freegpu.jobs.model import Needs
from freegpu.orchestrator import placement
from freegpu.orchestrator.forecast import view
from freegpu.orchestrator.forecast.course import Course
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.forecast.state import (
    JobNow,
    PlatformNow,
    SessionNow,
    What,
)
from freegpu.orchestrator.forecast.world import (
    Outcome,
    Result,
    World,
)
from freegpu.orchestrator.model import (
    Action,
    Assign,
    Move,
    Snapshot,
    StartSession,
)
from freegpu.orchestrator.reserve import ASKED_S, COMING_S
from freegpu.orchestrator.spots import shape_of

#: what decides; the real one is placement.decide
Policy = Callable[[Snapshot, datetime], Sequence[Action]]

#: a platform whose quota is spent is left alone for so long, or until its reset, as by the product
SPENT_S = 3600.0
#: a policy is asked again at once after a refusal, so many times at most
AGAIN = 12


def run(world: World, seed: int = 0, policy: Policy = placement.decide) -> Result:
    """Run a world to its end. The same world, seed and policy give the same result."""
    return _Engine(world, seed, policy).run()


class _Engine(Course):
    def __init__(self, world: World, seed: int, policy: Policy) -> None:
        super().__init__(world, seed)
        self.policy = policy
        self.refusals = self.moves = self.decisions = 0
        self.ticking = False
        #: what the policy was told of the demand of the last days, after how many arrivals, and when the oldest was
        self.told: tuple[Needs, ...] = ()
        self.told_of, self.oldest = -1, math.inf

    def run(self) -> Result:
        while self.heap and self.unfinished:
            when = self.heap[0][0]
            if when > self.world.horizon_s or when == math.inf:
                break
            self.now = when
            changed = False
            while self.heap and self.heap[0][0] <= when + 1e-6:
                _, _, what, about, version = heapq.heappop(self.heap)
                changed = self._happens(What(what), about, version) or changed
            if changed and self.unfinished:
                self._decide()
                if self.waiting and not self.ticking:
                    self.ticking = True
                    self._at(self.now + self.world.tick_s, What.TICK, None)
        return self._result()

    def _happens(self, what: What, about: object, version: int) -> bool:
        """Carry out one event; whether anything changed that a decision may depend on."""
        if what is What.ARRIVE and isinstance(about, JobNow):
            self._arrive(about)
        elif what is What.TICK:
            self.ticking = False
            return bool(self.waiting)
        elif isinstance(about, SessionNow):
            if about.id not in self.sessions:
                return False
            if what is What.LIVE:
                self._live(about)
                return None in about.seats
            if what is What.FREED:
                return self._freed(about, version)
            if what is What.IDLE:
                return self._idle(about)
            self._end(about, "lost" if what is What.LOSS else "limit")
        elif isinstance(about, tuple):
            return self._finished(*about)
        elif isinstance(about, Purse):
            if what is What.RESET:
                self._reset(about)
            else:
                return self._spent(about, version)
        return True

    # --- decisions --------------------------------------------------------------------------------------

    def _decide(self) -> None:
        for _ in range(AGAIN):
            refused = False
            if self.waiting:
                self.decisions += 1
                for action in self.policy(self._view(), self._moment(self.now)):
                    if isinstance(action, StartSession):
                        refused = not self._start(action) or refused
                    elif isinstance(action, Move):
                        self._move(action)
                    else:
                        self._assign(action)
            if not (self._release_idle() or refused):
                break

    def _view(self) -> Snapshot:
        if self.line is None:
            # the very same values as long as the same jobs wait: a decision remembers what it found of them
            self.line = tuple([view.waits(job) for job in self.waiting.values()])
        return view.snapshot(
            self.line,
            self.sessions.values(),
            self.platforms.values(),
            self._lately(),
            self._came(),
            self.world.goal,
            self.now,
            self._moment(self.now),
        )

    def _lately(self) -> tuple[Needs, ...]:
        """What was asked for in the last days; the same tuple as long as nothing changed."""
        if self.told_of != self.arrivals or self.now - self.oldest > ASKED_S:
            late = {needs: at for needs, at in self.asked.items() if self.now - at <= ASKED_S}
            self.told, self.told_of = tuple(late), self.arrivals
            self.oldest = min(late.values(), default=math.inf)
        return self.told

    def _came(self) -> int:
        """How many jobs were submitted in the last days."""
        return len(self.submitted) - bisect.bisect_left(self.submitted, self.now - COMING_S)

    def _start(self, action: StartSession) -> bool:
        """Ask the platform for a session; whether it was granted. What cannot be is dropped, as in the product."""
        offer = action.offer
        platform = self.platforms[offer.platform]
        given = platform.given
        jobs = [(a.slot, self.waiting[a.job]) for a in action.assignments if a.job in self.waiting]
        if len(platform.sessions) >= given.capabilities.max_concurrent or not jobs:
            return True
        if platform.blocked_until is not None and platform.blocked_until > self._moment(self.now):
            return True
        purse = platform.purses.get(offer.pool)
        if purse is not None and purse.empty(self._moment(self.now)):
            resets = purse.resets_at(self._moment(self.now))
            self._refuse(platform, SPENT_S if resets is None else self._seconds(resets) - self.now)
            return False
        platform.asked += 1
        luck = random.Random(f"{self.seed}:{given.name}:{platform.asked}")  # noqa: S311 - luck, no secret
        granted = luck.random() < given.grant
        queue = luck.expovariate(1 / given.queue_s) if given.queue_s > 0 else 0.0
        life = luck.expovariate(given.loss_per_h / 3600) if given.loss_per_h > 0 else math.inf
        if not granted:
            self._refuse(platform, given.refusal_s)
            return False
        name = f"{given.name}-{platform.asked}"
        session = SessionNow(
            id=name,
            at=platform,
            offer=offer,
            shape=shape_of(offer),
            asked=self.now,
            seats=[None] * offer.count,
            granted=self.now + queue,
        )
        limits = (offer.session_limit_s, given.capabilities.max_session_s)
        longest = min((limit for limit in limits if limit is not None), default=math.inf)
        if action.lasts_s is not None:
            longest = min(longest, action.lasts_s)
        session.ends = session.granted + longest
        self.sessions[name] = platform.sessions[name] = session
        for slot, job in jobs:
            self._seat(session, slot, job)
        if purse is not None:
            purse.reserve(name, offer, action.reserve_s, self._moment(self.now))
            purse.granted(name, self._moment(session.granted))
            self._foresee(purse)
        live = session.granted + offer.start_delay_s
        self._at(live, What.LIVE, session)
        if session.ends < math.inf:
            self._at(session.ends, What.LIMIT, session)
        if session.granted + life < min(session.ends, self.world.horizon_s):
            self._at(session.granted + life, What.LOSS, session)
        return True

    def _refuse(self, platform: PlatformNow, pause_s: float) -> None:
        self.refusals += 1
        platform.blocked_until = self._moment(self.now + pause_s)
        self._at(self.now + pause_s, What.OPEN, platform)

    def _assign(self, action: Assign) -> None:
        session = self.sessions.get(action.session)
        job, slot = self.waiting.get(action.assignment.job), action.assignment.slot
        if session is None or job is None or session.live is None or session.offer.sealed:
            return
        if session.seats[slot] is None:
            self._seat(session, slot, job)

    def _move(self, action: Move) -> None:
        """The job that runs there saves and leaves, and the other is promised the slot."""
        session = self.sessions.get(action.session)
        job, slot = self.waiting.get(action.assignment.job), action.assignment.slot
        seat = session.seats[slot] if session is not None else None
        if session is None or seat is None or job is None or seat.leaving:
            return
        if seat.job.job.id != action.victim or seat.begins is None:
            return
        del self.waiting[job.job.id]
        self.line = None
        job.state = "promised"
        seat.leaving, seat.next = True, job
        self.moves += 1
        self._at(self.now + seat.job.job.save_s, What.FREED, session, slot)

    # --- the end ----------------------------------------------------------------------------------------

    def _result(self) -> Result:
        ended = [job.finished for job in self.jobs.values() if job.finished is not None]
        end = max(ended, default=0.0) if not self.unfinished else self.world.horizon_s
        self.now = max(self.now, 0.0)
        for session in list(self.sessions.values()):
            self._end(session, "idle" if not self.unfinished else "horizon")
        used = {
            (purse.platform, purse.pool.name): purse.used_s
            for platform in self.platforms.values()
            for purse in platform.purses.values()
        }
        return Result(
            begin=self.world.begin,
            end=self._moment(end),
            outcomes={
                name: Outcome(
                    job=name,
                    arrived=self._moment(job.arrived),
                    started=None if job.started is None else self._moment(job.started),
                    finished=None if job.finished is None else self._moment(job.finished),
                    stays=tuple(job.stays),
                )
                for name, job in self.jobs.items()
            },
            sessions=tuple(self.runs),
            windows=tuple(self.windows),
            used_s=used,
            refusals=self.refusals,
            moves=self.moves,
            decisions=self.decisions,
        )

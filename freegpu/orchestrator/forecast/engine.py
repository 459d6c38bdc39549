"""The run: events in order of time, a snapshot at each, a policy that decides, and what comes of it. Pure.

The policy sees what the real one sees: estimates, progress, balances, losses so far. Losses, grants and true speeds
are drawn from one seed, by platform and number of the session there, so that two policies meet the same luck as far as
they do the same.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from freegpu import cards
from freegpu.jobs.model import Needs
from freegpu.orchestrator import placement
from freegpu.orchestrator.forecast import view, work
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.forecast.state import (
    JobNow,
    PlatformNow,
    Seat,
    SessionNow,
    What,
    shape_of,
)
from freegpu.orchestrator.forecast.world import (
    Outcome,
    Result,
    Run,
    Stay,
    WindowUse,
    World,
)
from freegpu.orchestrator.model import (
    Action,
    Assign,
    Move,
    Snapshot,
    Standing,
    StartSession,
)
from freegpu.orchestrator.spots import Kind, Shape, unfit

#: what decides; the real one is placement.decide
Policy = Callable[[Snapshot, datetime], Sequence[Action]]

#: a platform whose quota is spent is left alone for so long, or until its reset, as by the product
SPENT_S = 3600.0
#: a policy is asked again at once after a refusal, so many times at most
AGAIN = 12


def run(world: World, seed: int = 0, policy: Policy = placement.decide) -> Result:
    """Run a world to its end. The same world, seed and policy give the same result."""
    return _Engine(world, seed, policy).run()


class _Engine:
    def __init__(self, world: World, seed: int, policy: Policy) -> None:
        self.world, self.seed, self.policy = world, seed, policy
        self.now = 0.0
        self.heap: list[tuple[float, int, int, object, int]] = []
        self.count = 0
        self.platforms = {
            given.name: PlatformNow(
                given=given,
                purses={pool.name: Purse(given, pool) for pool in given.pools},
                losses=given.losses,
                blocked_until=given.blocked_until,
            )
            for given in world.platforms
        }
        self.jobs: dict[str, JobNow] = {}
        #: a job -> those that come after it
        self.followers: dict[str, list[JobNow]] = {}
        self.waiting: dict[str, JobNow] = {}
        self.sessions: dict[str, SessionNow] = {}
        self.runs: list[Run] = []
        self.windows: list[WindowUse] = []
        self.unfinished = 0
        self.refusals = self.moves = self.decisions = 0
        self.ticking = False
        self._fits: dict[tuple[Kind, Shape], bool] = {}
        #: needs -> when such a job was asked for last, seconds
        self.asked: dict[Needs, float] = {}
        seated = {job for session in world.standing for _, job in session.jobs}
        ordered = sorted(world.jobs, key=lambda job: (job.arrives or world.begin, job.id))
        for seq, job in enumerate(ordered, start=1):
            arrives = max(0.0, self._seconds(job.arrives or world.begin))
            state = JobNow(
                job=job,
                seq=seq,
                arrived=arrives,
                created=job.created_at or job.arrives or world.begin,
                kind=Kind(needs=job.needs, grace_s=job.grace_s, avoid=()),
                done=job.work_s * min(1.0, max(0.0, job.done)),
            )
            self.jobs[job.id] = state
            state.needed = set(job.after)
            for first in state.needed:
                self.followers.setdefault(first, []).append(state)
            if not state.needed and job.id not in seated:
                self._at(arrives, What.ARRIVE, state)
        self.unfinished = len(self.jobs)
        for platform in self.platforms.values():
            if platform.blocked_until is not None:
                self._at(max(0.0, self._seconds(platform.blocked_until)), What.OPEN, platform)
            for purse in platform.purses.values():
                self._await_reset(purse)
        for session in world.standing:
            self._stands(session)

    def _stands(self, given: Standing) -> None:
        """A session is open when the world begins: its jobs are in their slots, and it holds its quota."""
        platform = self.platforms[given.offer.platform]
        session = SessionNow(
            id=given.session,
            at=platform,
            offer=given.offer,
            shape=shape_of(given.offer),
            asked=0.0,
            seats=[None] * given.offer.count,
            ends=math.inf if given.left_s is None else max(0.0, given.left_s),
        )
        self.sessions[session.id] = platform.sessions[session.id] = session
        for slot, job in given.jobs:
            self._seat(session, slot, self.jobs[job])
        purse = platform.purses.get(given.offer.pool)
        if purse is not None:
            purse.reserve(session.id, given.offer, given.held_s, self.world.begin)
            purse.granted(session.id, self.world.begin)
            self._foresee(purse)
        luck = random.Random(f"{self.seed}:{given.session}")  # noqa: S311 - luck, no secret
        loss = platform.given.loss_per_h / 3600
        self._at(0.0, What.LIVE, session)
        self._at(luck.expovariate(loss) if loss > 0 else math.inf, What.LOSS, session)
        self._at(session.ends, What.LIMIT, session)

    # --- time -------------------------------------------------------------------------------------------

    def _seconds(self, at: datetime) -> float:
        return (at - self.world.begin).total_seconds()

    def _moment(self, seconds: float) -> datetime:
        return self.world.begin + timedelta(seconds=seconds)

    def _at(self, when: float, what: What, about: object, version: int = 0) -> None:
        self.count += 1
        heapq.heappush(self.heap, (when, what * 1_000_000_000 + self.count, what, about, version))

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
            self.asked[about.job.needs] = self.now
            self._wait(about)
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

    # --- jobs -------------------------------------------------------------------------------------------

    def _wait(self, job: JobNow) -> None:
        job.state, job.waiting = "waiting", None
        self.waiting[job.job.id] = job

    def _seat(self, session: SessionNow, slot: int, job: JobNow) -> None:
        """The job takes the slot; its work begins when the session is there and the job has started."""
        self.waiting.pop(job.job.id, None)
        job.state = "placed"
        card, spec = session.offer.card, job.job
        platform = session.at
        rate = cards.speed(card, spec.needs.workload) * spec.pace.get(card, 1.0)
        every = spec.every_s
        if every is None:
            every = work.interval(spec.save_s, platform.losses, platform.exposure_s(self.now))
        seat = Seat(job=job, begins=None, held_since=self.now, rate=rate, every=every)
        session.seats[slot] = seat
        session.idle_since = None
        if session.live is not None:
            self._begin(session, slot, seat)

    def _begin(self, session: SessionNow, slot: int, seat: Seat) -> None:
        job, spec = seat.job, seat.job.job
        seat.held_since, seat.begins = self.now, self.now + spec.restart_s
        if job.started is None:
            job.started = self.now
        rest = max(0.0, spec.work_s - job.done) / seat.rate
        self._at(
            seat.begins + work.whole(rest, seat.every, spec.save_s),
            What.FINISH,
            (session, slot, seat),
        )

    def _leave(self, session: SessionNow, slot: int, reason: str, *, saved: bool) -> JobNow:
        """The job leaves its slot; what it did since its last checkpoint stays only if it could save."""
        seat = session.seats[slot]
        assert seat is not None  # noqa: S101 - the callers look
        session.seats[slot] = None
        job, spec = seat.job, seat.job.job
        if reason == "finished":
            did = kept = spec.work_s - job.done
        else:
            # a save before the end takes its time from the work
            until = self.now - (spec.save_s if saved else 0.0)
            did, kept = seat.worked(until)
            kept = did if saved else kept
        job.done += kept
        if view.showed(did, seat):
            job.seen = session.offer.card
        job.stays.append(
            Stay(
                session=session.id,
                platform=session.offer.platform,
                card=session.offer.card,
                slot=slot,
                begin=self._moment(seat.held_since),
                end=self._moment(self.now),
                reason=reason,
                kept_s=kept,
                lost_s=did - kept,
            )
        )
        return job

    def _finished(self, session: SessionNow, slot: int, seat: Seat) -> bool:
        if session.id not in self.sessions or session.seats[slot] is not seat:
            return False
        job = self._leave(session, slot, "finished", saved=True)
        job.state, job.finished = "finished", self.now
        self.unfinished -= 1
        for other in self.followers.get(job.job.id, ()):
            other.needed.discard(job.job.id)
            if not other.needed:
                self._at(max(self.now, other.arrived), What.ARRIVE, other)
        self._pass_on(session, slot, seat)
        return True

    def _freed(self, session: SessionNow, slot: int) -> bool:
        """A job that was asked to leave has saved and is gone; the other begins."""
        seat = session.seats[slot]
        if seat is None or not seat.leaving:
            return False
        self._wait(self._leave(session, slot, "moved", saved=True))
        self._pass_on(session, slot, seat)
        return True

    def _pass_on(self, session: SessionNow, slot: int, seat: Seat) -> None:
        if seat.next is not None:
            self._seat(session, slot, seat.next)
        self._look_idle(session)

    # --- sessions ---------------------------------------------------------------------------------------

    def _live(self, session: SessionNow) -> None:
        session.live = self.now
        for slot, seat in enumerate(session.seats):
            if seat is not None:
                self._begin(session, slot, seat)
        self._look_idle(session)

    def _look_idle(self, session: SessionNow) -> None:
        if any(session.seats) or session.live is None:
            return
        session.idle_since = self.now
        self._at(self.now + self.world.idle_s, What.IDLE, session)

    def _idle(self, session: SessionNow) -> bool:
        since = session.idle_since
        if since is None or self.now - since < self.world.idle_s - 1e-6:
            return False
        self._end(session, "idle")
        return True

    def _release_idle(self) -> bool:
        """What has nothing to do and costs quota ends at once, unless a job waits that could use it.

        True: a place to start another session may be free now.
        """
        ended = False
        for session in list(self.sessions.values()):
            if session.idle_since is None or not session.offer.pool:
                continue
            left = session.ends - self.now
            if session.offer.sealed or not any(
                self._fit(job.kind, session.shape)
                and not job.kind.refused(session.offer.platform)
                and job.kind.least_s <= left
                for job in self.waiting.values()
            ):
                self._end(session, "idle")
                ended = True
        return ended and bool(self.waiting)

    def _fit(self, kind: Kind, shape: Shape) -> bool:
        key = (kind, shape)
        found = self._fits.get(key)
        if found is None:
            found = self._fits[key] = not unfit(kind, shape)[0]
        return found

    def _end(self, session: SessionNow, reason: str) -> None:
        del self.sessions[session.id]
        del session.at.sessions[session.id]
        for slot, seat in enumerate(session.seats):
            if seat is not None:
                self._wait(self._leave(session, slot, reason, saved=reason == "limit"))
                if seat.next is not None:
                    self._wait(seat.next)
        if session.live is not None:
            session.at.lived_s += self.now - session.live
            session.at.losses += reason == "lost"
        purse = session.at.purses.get(session.offer.pool)
        charged = 0.0
        if purse is not None:
            charged = purse.settle(session.id, self._moment(self.now))
            self._foresee(purse)
        self.runs.append(
            Run(
                id=session.id,
                platform=session.offer.platform,
                card=session.offer.card,
                count=session.offer.count,
                pool=session.offer.pool,
                asked=self._moment(session.asked),
                granted=self._moment(session.granted),
                ended=self._moment(self.now),
                reason=reason,
                charged_s=charged,
            )
        )

    # --- quota ------------------------------------------------------------------------------------------

    def _foresee(self, purse: Purse) -> None:
        """Look again when the pool may be spent."""
        left = purse.ends_in(self._moment(self.now))
        if left is not None:
            self._at(self.now + left, What.SPENT, purse, purse.version)

    def _spent(self, purse: Purse, version: int) -> bool:
        if version != purse.version:
            return False
        left = purse.ends_in(self._moment(self.now))
        if left is None:
            return False
        if left > 0:
            # a reset or a rolling window gave something back meanwhile
            self._at(self.now + max(1.0, left), What.SPENT, purse, purse.version)
            return False
        for name in list(purse.running):
            self._end(self.sessions[name], "quota")
        return True

    def _await_reset(self, purse: Purse) -> None:
        at = purse.resets_at(self._moment(self.now))
        if at is not None:
            self._at(self._seconds(at), What.RESET, purse)

    def _reset(self, purse: Purse) -> None:
        end = self._moment(self.now)
        used, limit = purse.closing(end)
        if limit < math.inf:
            self.windows.append(
                WindowUse(
                    platform=purse.platform,
                    pool=purse.pool.name,
                    end=end,
                    limit_s=limit,
                    used_s=used,
                    wanted=self._wanted(purse),
                )
            )
        self._await_reset(purse)

    def _wanted(self, purse: Purse) -> bool:
        """Whether a job waits that could use this pool."""
        given = self.platforms[purse.platform].given
        shapes = {shape_of(offer) for offer in given.offers if offer.pool == purse.pool.name}
        return any(
            self._fit(job.kind, shape) and not job.kind.refused(given.name)
            for job in self.waiting.values()
            for shape in shapes
        )

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
        return view.snapshot(
            self.waiting.values(),
            self.sessions.values(),
            self.platforms.values(),
            self.asked,
            self.world.goal,
            self.now,
            self._moment(self.now),
        )

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

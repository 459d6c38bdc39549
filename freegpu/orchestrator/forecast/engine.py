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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum

from freegpu import cards
from freegpu.adapters.base import Offer, WindowKind
from freegpu.jobs.model import Needs
from freegpu.orchestrator import placement
from freegpu.orchestrator.forecast import work
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.forecast.world import (
    Job,
    Outcome,
    Platform,
    Result,
    Run,
    Stay,
    WindowUse,
    World,
)
from freegpu.orchestrator.model import (
    Action,
    Assign,
    FreeSlot,
    Move,
    Place,
    Running,
    Snapshot,
    StartSession,
    Waiting,
)
from freegpu.orchestrator.spots import Kind, Shape, unfit

#: what decides; the real one is placement.decide
Policy = Callable[[Snapshot, datetime], Sequence[Action]]

#: a job's own progress counts from so much work on
LEARNED_S = 60.0
#: demand of so long ago is still shown to the policy
LATELY_S = 28 * 86400.0
#: a platform whose quota is spent is left alone for so long, or until its reset, as by the product
SPENT_S = 3600.0
#: a policy is asked again at once after a refusal, so many times at most
AGAIN = 12


class _What(IntEnum):
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
class _Job:
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


@dataclass(slots=True, eq=False)
class _Seat:
    """A job in a slot."""

    job: _Job
    #: when its work begins, seconds; None: the session is not there yet
    begins: float | None
    held_since: float
    #: T4 seconds of work a second
    rate: float
    every: float
    #: it saves and leaves, and this job comes next
    leaving: bool = False
    next: _Job | None = None

    def worked(self, now: float) -> tuple[float, float]:
        """T4 seconds (done, of it saved) since it began here; never more than there was."""
        if self.begins is None:
            return 0.0, 0.0
        did, saved = work.after(now - self.begins, self.every, self.job.job.save_s)
        rest = self.job.job.work_s - self.job.done
        return min(rest, did * self.rate), min(rest, saved * self.rate)


@dataclass(slots=True, eq=False)
class _Session:
    id: str
    at: _Platform
    offer: Offer
    shape: Shape
    asked: float
    seats: list[_Seat | None]
    granted: float = 0.0
    live: float | None = None
    ends: float = math.inf
    idle_since: float | None = None


@dataclass(slots=True, eq=False)
class _Platform:
    given: Platform
    purses: dict[str, Purse]
    sessions: dict[str, _Session] = field(default_factory=dict)
    asked: int = 0
    losses: float = 0.0
    lived_s: float = 0.0
    blocked_until: datetime | None = None

    def exposure_s(self, now: float) -> float:
        alive = sum(now - s.live for s in self.sessions.values() if s.live is not None)
        return self.given.exposure_s + self.lived_s + alive


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
            given.name: _Platform(
                given=given,
                purses={pool.name: Purse(given, pool) for pool in given.pools},
                losses=given.losses,
                blocked_until=given.blocked_until,
            )
            for given in world.platforms
        }
        self.jobs: dict[str, _Job] = {}
        self.waiting: dict[str, _Job] = {}
        self.sessions: dict[str, _Session] = {}
        self.runs: list[Run] = []
        self.windows: list[WindowUse] = []
        self.unfinished = 0
        self.refusals = self.moves = self.decisions = 0
        self.ticking = False
        self._fits: dict[tuple[Kind, Shape], bool] = {}
        #: needs -> when such a job was asked for last, seconds
        self.asked: dict[Needs, float] = {}
        ordered = sorted(world.jobs, key=lambda job: (job.arrives or world.begin, job.id))
        for seq, job in enumerate(ordered, start=1):
            arrives = max(0.0, self._seconds(job.arrives or world.begin))
            state = _Job(
                job=job,
                seq=seq,
                arrived=arrives,
                created=job.created_at or job.arrives or world.begin,
                kind=Kind(needs=job.needs, grace_s=job.grace_s, avoid=()),
                done=job.work_s * min(1.0, max(0.0, job.done)),
            )
            self.jobs[job.id] = state
            self._at(arrives, _What.ARRIVE, state)
        self.unfinished = len(self.jobs)
        for platform in self.platforms.values():
            if platform.blocked_until is not None:
                self._at(max(0.0, self._seconds(platform.blocked_until)), _What.OPEN, platform)
            for purse in platform.purses.values():
                self._await_reset(purse)

    # --- time -------------------------------------------------------------------------------------------

    def _seconds(self, at: datetime) -> float:
        return (at - self.world.begin).total_seconds()

    def _moment(self, seconds: float) -> datetime:
        return self.world.begin + timedelta(seconds=seconds)

    def _at(self, when: float, what: _What, about: object, version: int = 0) -> None:
        self.count += 1
        heapq.heappush(self.heap, (when, what * 1_000_000_000 + self.count, what, about, version))

    def run(self) -> Result:
        while self.heap and self.unfinished:
            when = self.heap[0][0]
            if when > self.world.horizon_s:
                break
            self.now = when
            changed = False
            while self.heap and self.heap[0][0] <= when + 1e-6:
                _, _, what, about, version = heapq.heappop(self.heap)
                changed = self._happens(_What(what), about, version) or changed
            if changed and self.unfinished:
                self._decide()
                if self.waiting and not self.ticking:
                    self.ticking = True
                    self._at(self.now + self.world.tick_s, _What.TICK, None)
        return self._result()

    def _happens(self, what: _What, about: object, version: int) -> bool:
        """Carry out one event; whether anything changed that a decision may depend on."""
        if what is _What.ARRIVE and isinstance(about, _Job):
            self.asked[about.job.needs] = self.now
            self._wait(about)
        elif what is _What.TICK:
            self.ticking = False
            return bool(self.waiting)
        elif isinstance(about, _Session):
            if about.id not in self.sessions:
                return False
            if what is _What.LIVE:
                self._live(about)
                return None in about.seats
            if what is _What.FREED:
                return self._freed(about, version)
            if what is _What.IDLE:
                return self._idle(about)
            self._end(about, "lost" if what is _What.LOSS else "limit")
        elif isinstance(about, tuple):
            return self._finished(*about)
        elif isinstance(about, Purse):
            if what is _What.RESET:
                self._reset(about)
            else:
                return self._spent(about, version)
        return True

    # --- jobs -------------------------------------------------------------------------------------------

    def _wait(self, job: _Job) -> None:
        job.state, job.waiting = "waiting", None
        self.waiting[job.job.id] = job

    def _seat(self, session: _Session, slot: int, job: _Job) -> None:
        """The job takes the slot; its work begins when the session is there and the job has started."""
        self.waiting.pop(job.job.id, None)
        job.state = "placed"
        card, spec = session.offer.card, job.job
        platform = session.at
        rate = cards.speed(card, spec.needs.workload) * spec.pace.get(card, 1.0)
        every = spec.every_s
        if every is None:
            every = work.interval(spec.save_s, platform.losses, platform.exposure_s(self.now))
        seat = _Seat(job=job, begins=None, held_since=self.now, rate=rate, every=every)
        session.seats[slot] = seat
        session.idle_since = None
        if session.live is not None:
            self._begin(session, slot, seat)

    def _begin(self, session: _Session, slot: int, seat: _Seat) -> None:
        job, spec = seat.job, seat.job.job
        seat.held_since, seat.begins = self.now, self.now + spec.restart_s
        if job.started is None:
            job.started = self.now
        rest = max(0.0, spec.work_s - job.done) / seat.rate
        self._at(
            seat.begins + work.whole(rest, seat.every, spec.save_s),
            _What.FINISH,
            (session, slot, seat),
        )

    def _leave(self, session: _Session, slot: int, reason: str, *, saved: bool) -> _Job:
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
        if did >= LEARNED_S * seat.rate and spec.reports:
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

    def _finished(self, session: _Session, slot: int, seat: _Seat) -> bool:
        if session.id not in self.sessions or session.seats[slot] is not seat:
            return False
        job = self._leave(session, slot, "finished", saved=True)
        job.state, job.finished = "finished", self.now
        self.unfinished -= 1
        self._pass_on(session, slot, seat)
        return True

    def _freed(self, session: _Session, slot: int) -> bool:
        """A job that was asked to leave has saved and is gone; the other begins."""
        seat = session.seats[slot]
        if seat is None or not seat.leaving:
            return False
        self._wait(self._leave(session, slot, "moved", saved=True))
        self._pass_on(session, slot, seat)
        return True

    def _pass_on(self, session: _Session, slot: int, seat: _Seat) -> None:
        if seat.next is not None:
            self._seat(session, slot, seat.next)
        self._look_idle(session)

    # --- sessions ---------------------------------------------------------------------------------------

    def _live(self, session: _Session) -> None:
        session.live = self.now
        for slot, seat in enumerate(session.seats):
            if seat is not None:
                self._begin(session, slot, seat)
        self._look_idle(session)

    def _look_idle(self, session: _Session) -> None:
        if any(session.seats) or session.live is None:
            return
        session.idle_since = self.now
        self._at(self.now + self.world.idle_s, _What.IDLE, session)

    def _idle(self, session: _Session) -> bool:
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

    def _end(self, session: _Session, reason: str) -> None:
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
            self._at(self.now + left, _What.SPENT, purse, purse.version)

    def _spent(self, purse: Purse, version: int) -> bool:
        if version != purse.version:
            return False
        left = purse.ends_in(self._moment(self.now))
        if left is None:
            return False
        if left > 0:
            # a reset or a rolling window gave something back meanwhile
            self._at(self.now + max(1.0, left), _What.SPENT, purse, purse.version)
            return False
        for name in list(purse.running):
            self._end(self.sessions[name], "quota")
        return True

    def _await_reset(self, purse: Purse) -> None:
        at = purse.resets_at(self._moment(self.now))
        if at is not None:
            self._at(self._seconds(at), _What.RESET, purse)

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
        shapes = {_shape(offer) for offer in given.offers if offer.pool == purse.pool.name}
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
                for action in self.policy(self._snapshot(), self._moment(self.now)):
                    if isinstance(action, StartSession):
                        refused = not self._start(action) or refused
                    elif isinstance(action, Move):
                        self._move(action)
                    else:
                        self._assign(action)
            if not (self._release_idle() or refused):
                break

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
        session = _Session(
            id=name,
            at=platform,
            offer=offer,
            shape=_shape(offer),
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
        self._at(live, _What.LIVE, session)
        if session.ends < math.inf:
            self._at(session.ends, _What.LIMIT, session)
        if session.granted + life < min(session.ends, self.world.horizon_s):
            self._at(session.granted + life, _What.LOSS, session)
        return True

    def _refuse(self, platform: _Platform, pause_s: float) -> None:
        self.refusals += 1
        platform.blocked_until = self._moment(self.now + pause_s)
        self._at(self.now + pause_s, _What.OPEN, platform)

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
        self._at(self.now + seat.job.job.save_s, _What.FREED, session, slot)

    # --- what the policy sees ---------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        now = self._moment(self.now)
        free: list[FreeSlot] = []
        running: list[Running] = []
        for session in self.sessions.values():
            if session.live is None or session.offer.sealed:
                continue
            left = session.ends - self.now if session.ends < math.inf else None
            for slot, seat in enumerate(session.seats):
                if seat is None:
                    free.append(
                        FreeSlot(session=session.id, slot=slot, offer=session.offer, left_s=left)
                    )
                elif not seat.leaving:
                    running.append(
                        Running(
                            job=self._as_waiting(seat.job, seat, session.offer.card),
                            session=session.id,
                            slot=slot,
                            offer=session.offer,
                            held_s=self.now - seat.held_since,
                            left_s=left,
                        )
                    )
        return Snapshot(
            waiting=tuple(self._waits(job) for job in self.waiting.values()),
            free_slots=tuple(free),
            places=tuple(self._place(platform, now) for platform in self.platforms.values()),
            running=tuple(running),
            lately=tuple(n for n, at in self.asked.items() if self.now - at <= LATELY_S),
            goal=self.world.goal,
        )

    def _waits(self, job: _Job) -> Waiting:
        if job.waiting is None:
            job.waiting = self._as_waiting(job, None, "")
        return job.waiting

    def _as_waiting(self, job: _Job, seat: _Seat | None, card: str) -> Waiting:
        """What freegpu knows of the job: its estimate, its saved progress, the speed that it showed."""
        spec, done = job.job, job.done
        seen = job.seen
        if seat is not None:
            did, _ = seat.worked(self.now)
            done += did
            if did >= LEARNED_S * seat.rate and spec.reports:
                seen = card
        left = max(0.0, spec.work_s - done)
        return Waiting(
            id=spec.id,
            seq=job.seq,
            name=spec.name or spec.id,
            needs=spec.needs,
            estimate=spec.estimate,
            priority=spec.priority,
            deadline=spec.deadline,
            created_at=job.created,
            remaining=left / spec.work_s if spec.reports and spec.work_s > 0 else 1.0,
            remaining_t4_s=left / spec.pace.get(seen, 1.0) if seen else None,
            grace_s=spec.grace_s,
            save_s=spec.save_s,
        )

    def _place(self, platform: _Platform, now: datetime) -> Place:
        given = platform.given
        until = platform.blocked_until
        closed = until is not None and until > now
        return Place(
            platform=given.name,
            account=given.account,
            capabilities=given.capabilities,
            offers=given.offers,
            open_sessions=len(platform.sessions),
            balances=tuple(
                purse.balance(now)
                for purse in platform.purses.values()
                if purse.window.kind is not WindowKind.NONE
            ),
            blocked_until=until if closed else None,
            blocked_why="refused a session" if closed else "",
            losses=platform.losses,
            exposure_s=platform.exposure_s(self.now),
        )

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


def _shape(offer: Offer) -> Shape:
    card = offer.card if offer.count >= 1 else ""
    return (card, offer.vram_gb, offer.memory_gb, offer.cpus, offer.disk_gb, ())

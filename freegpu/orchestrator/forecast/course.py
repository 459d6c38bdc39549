"""The course of a run: jobs in slots, sessions, quotas and the events that are due, as time goes on. Pure.

It decides nothing: `engine` asks the policy and carries out what it wants.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
from datetime import datetime, timedelta

from freegpu import cards
from freegpu.jobs.model import Needs
from freegpu.orchestrator.forecast import view, work
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.forecast.state import JobNow, PlatformNow, Seat, SessionNow, What
from freegpu.orchestrator.forecast.world import Run, Stay, WindowUse, World
from freegpu.orchestrator.model import Standing, Waiting
from freegpu.orchestrator.spots import Kind, Shape, shape_of, unfit

__all__ = ["Course"]

#: a quota that is spent so shortly before the end of a session is what that end was meant for
FORESEEN_S = 1.0


class Course:
    """What is true while a world runs, and how it changes. Moments in seconds since the world's beginning."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed
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
        #: these as the policy sees them; None: others wait now
        self.line: tuple[Waiting, ...] | None = None
        self.sessions: dict[str, SessionNow] = {}
        self.runs: list[Run] = []
        self.windows: list[WindowUse] = []
        self.unfinished = 0
        self._fits: dict[tuple[Kind, Shape], bool] = {}
        #: needs -> when such a job was asked for last, seconds
        self.asked: dict[Needs, float] = {}
        self.arrivals = 0
        #: when those that have come were submitted, in order, seconds
        self.submitted: list[float] = []
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
        #: of the jobs that count
        self.unfinished = len(self.jobs.keys() & world.watched if world.watched else self.jobs)
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
            self._seat(session, slot, self.jobs[job], going=job in given.going)
        purse = platform.purses.get(given.offer.pool)
        if purse is not None:
            purse.reserve(session.id, given.offer, given.held_s, self.world.begin)
            purse.granted(session.id, self.world.begin)
            self._foresee(purse)
        luck = random.Random(f"{self.seed}:{given.session}")  # noqa: S311 - luck, no secret
        loss = platform.given.loss_per_h / 3600
        self._at(given.starts_s, What.LIVE, session)
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

    # --- jobs -------------------------------------------------------------------------------------------

    def _arrive(self, job: JobNow) -> None:
        self.asked[job.job.needs] = self.now
        self.arrivals += 1
        bisect.insort(self.submitted, self._seconds(job.created))
        self._wait(job)

    def _wait(self, job: JobNow) -> None:
        job.state, job.waiting, self.line = "waiting", None, None
        self.waiting[job.job.id] = job

    def _seat(self, session: SessionNow, slot: int, job: JobNow, *, going: bool = False) -> None:
        """The job takes the slot; its work begins when the session is there and the job has started. `going`: it has."""
        if self.waiting.pop(job.job.id, None) is not None:
            self.line = None
        job.state = "placed"
        card, spec = session.offer.card, job.job
        platform = session.at
        rate = cards.speed(card, spec.needs.workload) * spec.pace.get(card, 1.0)
        every = spec.every_s
        if every is None:
            every = work.interval(spec.save_s, platform.losses, platform.exposure_s(self.now))
        seat = Seat(job=job, begins=None, held_since=self.now, rate=rate, every=every, going=going)
        session.seats[slot] = seat
        session.idle_since = None
        if session.live is not None:
            self._begin(session, slot, seat)

    def _begin(self, session: SessionNow, slot: int, seat: Seat) -> None:
        job, spec = seat.job, seat.job.job
        seat.held_since = self.now
        seat.begins = self.now + (0.0 if seat.going else spec.restart_s)
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
        self.unfinished -= not self.world.watched or job.job.id in self.world.watched
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
                # who ends for its quota is told in time, where a ticket still arrives
                told = reason == "quota" and not session.offer.sealed
                self._wait(self._leave(session, slot, reason, saved=told or reason == "limit"))
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
            session = self.sessions[name]
            # it may have known of this end since it began
            known = session.ends - self.now <= FORESEEN_S
            self._end(session, "limit" if known else "quota")
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

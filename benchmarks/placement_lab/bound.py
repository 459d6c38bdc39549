"""Lower bounds for a world: no schedule, even one that knows the future, ends sooner. Linear programs (HiGHS by scipy).

Fluid and clairvoyant: jobs flow over slots in any split, speeds are the true ones, nothing is lost, every session is
granted at once. Of a session of L seconds with a start of b seconds, at most L - b are work, so a slot works at most
(1 - b / L) of the time and of the quota.

Makespan (as for R|pmtn,r_j|Cmax, Lawler and Labetoulle 1978): the least T whose program is feasible. Mean completion:
C_j >= M_j + w_j / (2 v_j), M_j the mean moment of its work and v_j its best speed: the mean of C_j - t over its work is
least if all of it lies right before C_j at top speed. The left edges of the bins keep it a bound.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from freegpu import cards
from freegpu.adapters.base import Offer, WindowKind
from freegpu.orchestrator.forecast import Job, Platform, Pool, World
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.spots import Kind, shape_of, unfit

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class _Lane:
    platform: Platform
    offer: Offer
    #: share of its time that can be work
    useful: float


class _Program:
    """Rows of A x <= b and C x = d, put together one by one."""

    def __init__(self) -> None:
        self.columns = 0
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.less: list[tuple[dict[int, float], float]] = []
        self.equal: list[tuple[dict[int, float], float]] = []

    def column(self, upper: float, cost: float = 0.0) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        self.columns += 1
        return self.columns - 1

    def solve(self) -> float | None:
        """The least cost; None: infeasible."""
        kwargs = {}
        for name, rows in (("ub", self.less), ("eq", self.equal)):
            if not rows:
                continue
            at = [
                (number, column, value)
                for number, (row, _) in enumerate(rows)
                for column, value in row.items()
            ]
            lines, columns, values = zip(*at, strict=True)
            shape = (len(rows), self.columns)
            kwargs[f"A_{name}"] = coo_matrix((values, (lines, columns)), shape=shape).tocsr()
            kwargs[f"b_{name}"] = np.array([limit for _, limit in rows])
        bounds = np.array([(0.0, upper) for upper in self.upper])
        found = linprog(np.array(self.cost), bounds=bounds, method="highs", **kwargs)
        if found.status == 2:
            return None
        if found.status != 0:
            message = f"the program was not solved: {found.message}"
            raise RuntimeError(message)
        return float(found.fun)


class Bounds:
    """The bounds of one world, hours."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lanes = [_lane(p, offer) for p in world.platforms for offer in p.offers]
        self.speed: dict[tuple[int, int], float] = {}
        self.jobs = [job for job in world.jobs if job.work_s > 0]
        for j, job in enumerate(self.jobs):
            kind = Kind(needs=job.needs, grace_s=job.grace_s, avoid=())
            for at, lane in enumerate(self.lanes):
                offer = lane.offer
                if not unfit(kind, shape_of(offer))[0] and not kind.refused(offer.platform):
                    speed = cards.speed(offer.card, job.needs.workload)
                    self.speed[j, at] = speed * job.pace.get(offer.card, 1.0)
        self.best = [
            max(self.speed[j, at] for at in range(len(self.lanes)) if (j, at) in self.speed)
            for j in range(len(self.jobs))
        ]
        self.arrives = [self._arrival(job) for job in self.jobs]
        self.alone = [
            arrives + job.work_s / best / HOUR
            for job, best, arrives in zip(self.jobs, self.best, self.arrives, strict=True)
        ]

    def _arrival(self, job: Job) -> float:
        begin = self.world.begin
        return max(0.0, ((job.arrives or begin) - begin).total_seconds() / HOUR)

    def makespan(self) -> float:
        """No schedule ends its last job before this, hours."""
        low = max(self.alone)
        if self._feasible(low):
            return low
        high = 1.2 * low
        while not self._feasible(high):
            low, high = high, 1.3 * high
        while high - low > 0.005 * low:
            middle = (low + high) / 2
            if self._feasible(middle):
                high = middle
            else:
                low = middle
        return low

    def completion(self, horizon_h: float) -> float:
        """No schedule that ends by the horizon has a lower mean time from arrival to finish, hours."""
        edges = self._edges(horizon_h, fine=3.0)
        program, flow = self._flow(edges)
        for j, job in enumerate(self.jobs):
            end = program.column(math.inf, cost=1.0)
            work, best = job.work_s / HOUR, self.best[j]
            row = {end: -1.0}
            for (number, at, b), column in flow.items():
                if number == j:
                    left = max(edges[b], self.arrives[j])
                    row[column] = left * self.speed[j, at] / work
            program.less.append((row, -work / (2 * best)))
            program.less.append(({end: -1.0}, -self.alone[j]))
        least = program.solve()
        if least is None:
            message = "the horizon is too short for this queue"
            raise ValueError(message)
        return (least - sum(self.arrives)) / len(self.jobs)

    def _feasible(self, end_h: float) -> bool:
        program, _ = self._flow(self._edges(end_h, fine=24.0))
        return program.solve() is not None

    def _edges(self, end_h: float, fine: float) -> list[float]:
        """Bins: resets are edges; in between they grow, since late moments need no precision."""
        edges = {0.0, end_h}
        for platform in self.world.platforms:
            for pool in platform.pools:
                edges.update(r for r in _resets(platform, pool, self.world, end_h) if r < end_h)
        at, step = 0.0, fine
        while at < end_h:
            edges.add(at)
            at += step
            step = min(24.0, step * 1.08)
        found = sorted(edges)
        return [e for n, e in enumerate(found) if n == 0 or e - found[n - 1] > 1e-6 or e == end_h]

    def _flow(self, edges: list[float]) -> tuple[_Program, dict[tuple[int, int, int], int]]:
        """Slot hours of each job on each lane in each bin, within slots, sessions and quotas."""
        program = _Program()
        flow: dict[tuple[int, int, int], int] = {}
        bins = list(itertools.pairwise(edges))
        by_job: dict[int, list[tuple[int, int]]] = {}
        by_lane: dict[tuple[int, int], list[int]] = {}
        for j in range(len(self.jobs)):
            for b, (left, right) in enumerate(bins):
                room = right - max(left, self.arrives[j])
                if room <= 0:
                    continue
                row = {}
                for at in range(len(self.lanes)):
                    if (j, at) in self.speed:
                        column = flow[j, at, b] = program.column(room)
                        row[column] = 1.0
                        by_job.setdefault(j, []).append((column, at))
                        by_lane.setdefault((at, b), []).append(column)
                if len(row) > 1:
                    program.less.append((row, room))
        for j, job in enumerate(self.jobs):
            work = {column: self.speed[j, at] * HOUR for column, at in by_job.get(j, ())}
            if not work:
                # it arrives after the end
                program.less.append(({program.column(0.0): 1.0}, -1.0))
                continue
            program.equal.append((work, job.work_s))
        for platform in self.world.platforms:
            mine = [at for at, lane in enumerate(self.lanes) if lane.platform is platform]
            for b, (left, right) in enumerate(bins):
                row = {
                    column: 1.0 / (self.lanes[at].offer.count * self.lanes[at].useful)
                    for at in mine
                    for column in by_lane.get((at, b), ())
                }
                if row:
                    most = platform.capabilities.max_concurrent * (right - left)
                    program.less.append((row, most))
            for pool in platform.pools:
                self._quota(program, by_lane, bins, platform, pool)
        return program, flow

    def _quota(
        self,
        program: _Program,
        by_lane: dict[tuple[int, int], list[int]],
        bins: list[tuple[float, float]],
        platform: Platform,
        pool: Pool,
    ) -> None:
        mine = [
            at
            for at, lane in enumerate(self.lanes)
            if lane.platform is platform and lane.offer.pool == pool.name
        ]

        def use(first: float, last: float) -> dict[int, float]:
            return {
                column: self.lanes[at].offer.rate
                / (self.lanes[at].offer.count * self.lanes[at].useful)
                for at in mine
                for b, (left, right) in enumerate(bins)
                if left >= first - 1e-6 and right <= last + 1e-6
                for column in by_lane.get((at, b), ())
            }

        limit = pool.window.limit_s
        if limit is None:
            return
        purse = Purse(platform, pool)
        used, limit = purse.spent(self.world.begin)
        end = bins[-1][1]
        if pool.window.kind is WindowKind.ROLLING:
            period = pool.window.period_s / HOUR
            for _, right in bins:
                # what was used before has come back by then as the ledger says; what is used since
                # then is within the limit in each period
                if right <= period:
                    later = self.world.begin + timedelta(hours=right)
                    most = (limit - purse.spent(later)[0]) / HOUR
                    _add(program, use(0.0, right), most)
                else:
                    _add(program, use(right - period, right), limit / HOUR)
            return
        marks = [0.0, *(r for r in _resets(platform, pool, self.world, end) if r < end), end]
        for number, (first, last) in enumerate(itertools.pairwise(marks)):
            most = limit - used if number == 0 else limit
            _add(program, use(first, last), most / HOUR)


def _add(program: _Program, row: dict[int, float], most: float) -> None:
    if row:
        program.less.append((row, max(0.0, most)))


def _lane(platform: Platform, offer: Offer) -> _Lane:
    limits = (offer.session_limit_s, platform.capabilities.max_session_s)
    longest = min((limit for limit in limits if limit is not None), default=math.inf)
    return _Lane(platform, offer, 1.0 - offer.start_delay_s / longest)


def _resets(platform: Platform, pool: Pool, world: World, end_h: float) -> list[float]:
    """Hours from the beginning at which a fixed window ends, up to the end."""
    purse, found, now = Purse(platform, pool), [], world.begin
    while (at := purse.resets_at(now)) is not None:
        hours = (at - world.begin).total_seconds() / HOUR
        found.append(hours)
        if hours >= end_h:
            break
        now = at
    return found

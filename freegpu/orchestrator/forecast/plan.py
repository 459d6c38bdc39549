"""What will probably become of the queue: many runs of the same decision over what may be true. Pure.

Each run draws what nobody knows: how long jobs really are (the surer their own progress, the closer), how often a platform
loses sessions (from what was seen there, and a prior). The platforms' quotas are those of now. Of all runs the middle and the
range that holds eight of ten are told.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean

from freegpu.adapters.base import WindowKind
from freegpu.orchestrator.forecast.engine import run
from freegpu.orchestrator.forecast.purse import FIXED
from freegpu.orchestrator.forecast.world import Job, Outcome, Platform, Pool, Result, World
from freegpu.orchestrator.model import Balance, Place, Reading, Snapshot, Standing, Waiting
from freegpu.orchestrator.spots import PRIOR_LOSS_S, Ask

__all__ = [
    "RUNS",
    "Expected",
    "Forecast",
    "Moment",
    "Unused",
    "forecast",
    "results",
    "together",
    "told",
    "worlds",
]

#: how often the queue is run forward
RUNS = 40
#: how far off lengths are, as a deviation of the logarithm: that a user told, and that nobody told
TOLD, GUESSED = 0.5, 1.0
#: a start of a job in a slot takes so long where none was seen, seconds
START_S = 60.0
#: nothing is foreseen beyond so long, seconds
HORIZON_S = 28 * 86400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When something will be: the middle of all runs, and the range that holds eight of ten. None: not within the horizon."""

    low: datetime | None
    middle: datetime | None
    high: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What will probably become of one job, or of a matrix as a whole: its first start, its last finish."""

    #: its id; of a matrix its name
    job: str
    name: str
    #: the jobs of a matrix; empty for one job
    jobs: tuple[str, ...] = ()
    #: the places where it begins, with the share of runs, likeliest first
    first: tuple[tuple[str, float], ...]
    start: Moment
    finish: Moment
    #: mean number of moves
    hops: float
    #: share of runs in which it finished within the horizon
    finishes: float
    #: share of runs in which it met its deadline; None: it has none
    in_time: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Unused:
    """Quota of a pool that will be used, and that will have expired at the end of its present window; means, seconds at rate 1."""

    platform: str
    pool: str
    used_s: float
    expired_s: float | None
    resets_at: datetime | None
    #: whether what is left is lost at one moment
    expires: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """The whole queue."""

    begin: datetime
    runs: int
    jobs: tuple[Expected, ...]
    #: matrices as a whole
    groups: tuple[Expected, ...]
    pools: tuple[Unused, ...]
    #: when the last job is over
    over: Moment


def worlds(snapshot: Snapshot, now: datetime, runs: int, seed: int = 0) -> list[World]:
    """What may be true, `runs` times; the same for the same seed."""
    there = {place.platform for place in snapshot.places}
    standing = tuple(each for each in snapshot.standing if each.offer.platform in there)
    busy = {each.offer.platform for each in standing}
    platforms = [
        _platform(place, now, standing)
        for place in snapshot.places
        if _drives(place) or place.platform in busy
    ]
    jobs = [*(running.job for running in snapshot.running), *snapshot.waiting]
    found = []
    for number in range(runs):
        luck = random.Random(f"forecast:{seed}:{number}")  # noqa: S311 - luck, not a secret
        found.append(
            World(
                platforms=tuple(_drawn(platform, luck) for platform in platforms),
                jobs=tuple(_job(job, now, luck, snapshot.start_s) for job in jobs),
                begin=now,
                standing=standing,
                goal=snapshot.goal,
                horizon_s=HORIZON_S,
            )
        )
    return found


def forecast(
    snapshot: Snapshot,
    now: datetime,
    *,
    runs: int = RUNS,
    seed: int = 0,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Forecast:
    """Run the queue forward. Sessions that a person must start are left out: nobody knows whether the click comes.

    `groups`: matrices, name -> ids of its jobs in the queue.
    """
    return told(snapshot, now, results(snapshot, now, runs, seed), groups)


def results(
    snapshot: Snapshot,
    now: datetime,
    runs: int,
    seed: int = 0,
    *,
    watched: Iterable[str] = (),
    on_run: Callable[[], None] | None = None,
) -> list[Result]:
    """The runs themselves; the first of many are those of few. `watched`: a run ends when these jobs have finished."""
    found = []
    for number, world in enumerate(worlds(snapshot, now, runs, seed)):
        found.append(run(replace(world, watched=frozenset(watched)), number))
        if on_run is not None:
            on_run()
    return found


def told(
    snapshot: Snapshot,
    now: datetime,
    results: Sequence[Result],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Forecast:
    """What these runs of the queue say together."""
    jobs = [*snapshot.waiting, *(running.job for running in snapshot.running)]
    return Forecast(
        begin=now,
        runs=len(results),
        jobs=tuple(_expected(job, [r.outcomes[job.id] for r in results]) for job in jobs),
        groups=tuple(together(name, ids, results) for name, ids in (groups or {}).items()),
        pools=tuple(
            _unused(place.platform, balance, results, _held(snapshot.standing, place, balance.pool))
            for place in snapshot.places
            if _drives(place)
            for balance in place.balances
        ),
        over=_moment([_last(result.outcomes.values()) for result in results]),
    )


def _drives(place: Place) -> bool:
    return bool(place.offers) and not place.capabilities.attended


def _platform(place: Place, now: datetime, standing: Sequence[Standing]) -> Platform:
    return Platform(
        name=place.platform,
        account=place.account,
        capabilities=place.capabilities,
        # in a session that a person started jobs go on; another one may never come
        offers=place.offers if _drives(place) else (),
        pools=tuple(
            _pool(balance, now, _held(standing, place, balance.pool)) for balance in place.balances
        ),
        losses=place.losses,
        exposure_s=place.exposure_s,
        blocked_until=place.blocked_until,
    )


def _pool(balance: Balance, now: datetime, held_s: float) -> Pool:
    """`held_s`: what sessions of the pool hold that are in the forecast themselves."""
    said = Reading(
        platform=balance.platform,
        account=balance.account,
        pool=balance.pool,
        used_s=balance.used_s + max(0.0, balance.reserved_s - held_s),
        limit_s=balance.limit_s,
        resets_at=balance.resets_at,
        as_of=now,
    )
    counted = balance.window.kind not in (WindowKind.NONE, WindowKind.PER_SESSION)
    return Pool(name=balance.pool, window=balance.window, reading=said if counted else None)


def _drawn(platform: Platform, luck: random.Random) -> Platform:
    """With a loss rate that fits what was seen there."""
    if platform.exposure_s == math.inf:
        return platform
    hours = (PRIOR_LOSS_S + max(0.0, platform.exposure_s)) / 3600
    return replace(platform, loss_per_h=luck.gammavariate(1 + platform.losses, 1 / hours))


def _job(job: Waiting, now: datetime, luck: random.Random, start_s: float | None) -> Job:
    ask = Ask.of(job)
    sigma = job.sigma if job.sigma is not None else GUESSED if ask.assumed else TOLD
    return Job(
        id=job.id,
        name=job.name,
        needs=job.needs,
        work_s=max(1.0, ask.work_s) * math.exp(luck.gauss(0.0, sigma)),
        pace={},
        estimate=job.estimate,
        priority=job.priority,
        deadline=job.deadline,
        arrives=now if job.not_before is None else max(now, job.not_before),
        after=job.after,
        created_at=job.created_at,
        save_s=ask.save_s,
        restart_s=START_S if start_s is None else start_s,
        grace_s=job.grace_s,
    )


def _expected(job: Waiting, outcomes: Sequence[Outcome]) -> Expected:
    places = Counter(
        f"{outcome.stays[0].platform} {outcome.stays[0].card}"
        for outcome in outcomes
        if outcome.stays
    )
    return Expected(
        job=job.id,
        name=job.name,
        first=tuple((place, count / len(outcomes)) for place, count in places.most_common()),
        start=_moment([outcome.started for outcome in outcomes]),
        finish=_moment([outcome.finished for outcome in outcomes]),
        hops=fmean(outcome.hops for outcome in outcomes),
        finishes=_share(outcome.finished is not None for outcome in outcomes),
        in_time=None
        if job.deadline is None
        else _share(o.finished is not None and o.finished <= job.deadline for o in outcomes),
    )


def together(name: str, ids: Sequence[str], results: Sequence[Result]) -> Expected:
    """The first of them that begins, and the last that finishes."""
    runs = [[result.outcomes[id] for id in ids] for result in results]
    every = [outcome for outcomes in runs for outcome in outcomes]
    places = Counter(f"{o.stays[0].platform} {o.stays[0].card}" for o in every if o.stays)
    starts = [[o.started for o in outcomes if o.started is not None] for outcomes in runs]
    return Expected(
        job=name,
        name=name,
        jobs=tuple(ids),
        first=tuple((place, count / len(every)) for place, count in places.most_common()),
        start=_moment([min(found, default=None) for found in starts]),
        finish=_moment([_last(outcomes) for outcomes in runs]),
        hops=fmean(outcome.hops for outcome in every),
        finishes=_share(_last(outcomes) is not None for outcomes in runs),
    )


def _share(found: Iterable[bool]) -> float:
    return fmean(map(float, found))


def _held(standing: Sequence[Standing], place: Place, pool: str) -> float:
    """What open sessions hold of a pool, seconds at rate 1."""
    return sum(
        s.held_s for s in standing if s.offer.platform == place.platform and s.offer.pool == pool
    )


def _unused(platform: str, balance: Balance, results: Sequence[Result], held_s: float) -> Unused:
    key = (platform, balance.pool)
    ends = [_expired(result, key, balance, held_s) for result in results]
    expired = [end for end in ends if end is not None]
    return Unused(
        platform=platform,
        pool=balance.pool,
        used_s=fmean(result.used_s.get(key, 0.0) for result in results),
        expired_s=fmean(expired) if expired else None,
        resets_at=balance.resets_at,
        expires=balance.window.kind in FIXED,
    )


def _expired(result: Result, key: tuple[str, str], balance: Balance, held_s: float) -> float | None:
    """What is lost at the end of the present window; None: nothing is lost at one moment, or nobody knows how much."""
    if balance.resets_at is None or balance.window.kind not in FIXED:
        return None
    for window in result.windows:
        if (window.platform, window.pool) == key:
            return window.expired_s
    # all was done before the reset
    if balance.left_s is None or result.end > balance.resets_at:
        return None
    # what open sessions hold is not left now, but it is among what the run used, or was given back in it
    there = balance.left_s + min(held_s, balance.reserved_s)
    return max(0.0, there - result.used_s.get(key, 0.0))


def _last(outcomes: Iterable[Outcome]) -> datetime | None:
    ends = [outcome.finished for outcome in outcomes]
    return None if None in ends or not ends else max(end for end in ends if end is not None)


def _moment(moments: Sequence[datetime | None]) -> Moment:
    """Of what never happens nothing is earlier, so it sorts last."""
    known = sorted(moment for moment in moments if moment is not None)
    ordered = [*known, *[None] * (len(moments) - len(known))]

    def at(share: float) -> datetime | None:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    return Moment(low=at(0.1), middle=at(0.5), high=at(0.9))

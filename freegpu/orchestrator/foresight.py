"""What `plan` and `simulate` answer: the user's own queue and quotas run forward, with new jobs or without. Changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from freegpu import cards
from freegpu.adapters.base import Offer
from freegpu.orchestrator.forecast.engine import run
from freegpu.orchestrator.forecast.plan import RUNS, Expected, Unused, together, told, worlds
from freegpu.orchestrator.forecast.plan import results as plan_results
from freegpu.orchestrator.forecast.world import Result, WindowUse
from freegpu.orchestrator.model import Place, Snapshot, Waiting
from freegpu.orchestrator.spots import Ask, shape_of, unfit

__all__ = ["Ahead", "Fits", "Plan", "Sooner", "Span", "affordable", "ahead", "plan"]

#: is told (runs that are done, of how many)
OnRun = Callable[[int, int], None]

#: runs for a suggestion, at most and at least: it only has to be told apart from nothing, and is set against the same luck
FEWER, TRIED = 12, 2
#: the fewest runs that give a range, and what one answer may cost, runs x jobs: a run takes 1 to 3.5 ms a job, so this is at
#: most nine seconds for a queue of up to 600
LEAST, COST = 4, 2_500
#: less than this of a pool is not worth a sentence, seconds at rate 1
WORTH_USING_S = 600.0
#: so many kinds of jobs are told to fit into hours that would expire
KINDS = 3
#: what a suggestion must bring to be told: this share of the time to finish, and this much, seconds
WORTH, WORTH_S = 0.1, 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sooner:
    """A change that would make a job finish sooner."""

    job: str
    name: str
    #: "with less than 20 GB"
    change: str
    #: where it would probably begin then
    where: str
    finish: datetime
    sooner_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fits:
    """What would fit into hours that expire."""

    platform: str
    pool: str
    #: what will probably expire, seconds at rate 1, and when
    expires_s: float
    resets_at: datetime
    #: the card that it buys, and for how long, seconds of one card
    card: str
    card_s: float
    #: (name, how many jobs like it); those that fit there at all
    jobs: tuple[tuple[str, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What would become of jobs if they were submitted now."""

    begin: datetime
    runs: int
    jobs: tuple[Expected, ...]
    pools: tuple[Unused, ...]
    #: matrices among the jobs, as a whole
    groups: tuple[Expected, ...]
    fits: tuple[Fits, ...]
    sooner: tuple[Sooner, ...]
    #: jobs that are in the queue already and were run forward with them
    queued: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of one session in a forecast."""

    platform: str
    card: str
    begin: datetime
    end: datetime
    reason: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ahead:
    """The queue run forward: one likely course, and the ranges over many."""

    begin: datetime
    until: datetime
    runs: int
    spans: tuple[Span, ...]
    windows: tuple[WindowUse, ...]
    jobs: tuple[Expected, ...]
    groups: tuple[Expected, ...]
    pools: tuple[Unused, ...]
    fits: tuple[Fits, ...]


def affordable(jobs: int) -> int:
    """How often a queue of so many jobs is run forward if nobody says."""
    return max(LEAST, min(RUNS, COST // max(1, jobs)))


def plan(
    snapshot: Snapshot,
    new: Sequence[Waiting],
    now: datetime,
    *,
    runs: int | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    on_run: OnRun | None = None,
) -> Plan:
    """Run the queue forward with these jobs in it, and try what might make each of them finish sooner.

    `groups`: matrices among them, name -> ids; what is true of one cell is tried with all of them. `on_run` is told how many
    runs are done, of how many.
    """
    groups = groups or {}
    everything = replace(snapshot, waiting=(*snapshot.waiting, *new))
    runs = runs or affordable(len(everything.waiting) + len(everything.running))
    fewer = min(FEWER, max(TRIED, runs // 3))
    sets = _sets(new, groups)
    tried = sum(1 for members in sets.values() for _ in _changes(everything, members))
    counted = _counting(on_run, runs + tried * fewer)
    results = plan_results(everything, now, runs, on_run=counted)
    found = told(everything, now, results, groups)
    mine = {job.id for job in new}
    jobs = tuple(expected for expected in found.jobs if expected.job in mine)
    return Plan(
        begin=now,
        runs=runs,
        jobs=jobs,
        pools=found.pools,
        groups=found.groups,
        fits=tuple(_fits(snapshot, found.pools, sets, now)),
        sooner=tuple(
            sooner
            for name, members in sets.items()
            for sooner in _sooner(everything, name, members, results[:fewer], now, counted)
        ),
        queued=len(snapshot.waiting) + len(snapshot.running),
    )


def ahead(
    snapshot: Snapshot,
    now: datetime,
    weeks: int,
    *,
    runs: int | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    on_run: OnRun | None = None,
) -> Ahead:
    """Run the user's queue and quotas forward for so many weeks; `on_run` as of `plan`."""
    runs = runs or affordable(len(snapshot.waiting) + len(snapshot.running))
    counted = _counting(on_run, runs)
    found = told(snapshot, now, plan_results(snapshot, now, runs, on_run=counted), groups)
    until = now + timedelta(weeks=weeks)
    likely = run(replace(worlds(snapshot, now, 1)[0], horizon_s=weeks * 7 * 86400.0), 0)
    sets = _sets([*snapshot.waiting, *(each.job for each in snapshot.running)], groups or {})
    return Ahead(
        begin=now,
        until=until,
        runs=runs,
        spans=tuple(_spans(likely, snapshot)),
        windows=likely.windows,
        jobs=found.jobs,
        groups=found.groups,
        pools=found.pools,
        fits=tuple(_fits(snapshot, found.pools, sets, now)),
    )


def _sets(
    jobs: Sequence[Waiting], groups: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[Waiting]]:
    """Matrices by their names, other jobs by their ids."""
    by_id = {job.id: job for job in jobs}
    found: dict[str, Sequence[Waiting]] = {
        name: [by_id[id] for id in ids if id in by_id] for name, ids in groups.items()
    }
    grouped = {id for ids in groups.values() for id in ids}
    return found | {id: [job] for id, job in by_id.items() if id not in grouped}


def _fits(
    snapshot: Snapshot,
    pools: Sequence[Unused],
    sets: Mapping[str, Sequence[Waiting]],
    now: datetime,
) -> Iterator[Fits]:
    """For each pool that loses hours at its reset: the card on which they are worth most, and jobs that fit there."""
    places = {place.platform: place for place in snapshot.places}
    for pool in pools:
        if pool.expired_s is None or pool.expired_s < WORTH_USING_S or pool.resets_at is None:
            continue
        place = places[pool.platform]
        room = max(0.0, (pool.resets_at - now).total_seconds()) * place.capabilities.max_concurrent
        best = max(
            (
                _bought(offer, pool.expired_s, room)
                for offer in place.offers
                if offer.pool == pool.pool
            ),
            key=lambda bought: bought[1] * cards.speed(bought[0].card),
            default=None,
        )
        if best is None:
            continue
        offer, card_s = best
        many = f" x{offer.count}" if offer.count > 1 else ""
        counts: dict[str, float] = {}
        for name, members in sets.items():
            number = _how_many(members[0], offer, card_s) if members else 0.0
            if number > 0:
                counts.setdefault(name if len(members) > 1 else members[0].name, number)
        yield Fits(
            platform=pool.platform,
            pool=pool.pool,
            expires_s=pool.expired_s,
            resets_at=pool.resets_at,
            card=f"{offer.card}{many}",
            card_s=card_s,
            jobs=tuple(list(counts.items())[:KINDS]),
        )


def _bought(offer: Offer, quota_s: float, room_s: float) -> tuple[Offer, float]:
    """Seconds of one card that so much quota buys, in no more time than there is."""
    sessions_s = quota_s / offer.rate if offer.rate > 0 else room_s
    return offer, min(sessions_s, room_s) * max(1, offer.count)


def _how_many(job: Waiting, offer: Offer, card_s: float) -> float:
    """Jobs like this one that so many seconds of a card do; 0: none may run there."""
    ask = Ask.of(job)
    if ask.kind.refused(offer.platform) or unfit(ask.kind, shape_of(offer))[0]:
        return 0.0
    speed = ask.speed(offer.card)
    return card_s * speed / max(1.0, ask.work_s) if speed > 0 else 0.0


def _spans(result: Result, snapshot: Snapshot) -> Iterator[Span]:
    names = {job.id: job.name for job in snapshot.waiting}
    names |= {running.job.id: running.job.name for running in snapshot.running}
    inside: dict[str, list[str]] = {}
    for outcome in result.outcomes.values():
        for stay in outcome.stays:
            inside.setdefault(stay.session, []).append(names.get(outcome.job, outcome.job))
    for session in result.sessions:
        yield Span(
            platform=session.platform,
            card=session.card,
            begin=session.asked,
            end=session.ended,
            reason=session.reason,
            jobs=tuple(dict.fromkeys(inside.get(session.id, ()))),
        )


def _counting(on_run: OnRun | None, total: int) -> Callable[[], None]:
    """Something to be called after each run."""
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        if on_run is not None:
            on_run(done, total)

    return count


def _sooner(
    snapshot: Snapshot,
    name: str,
    jobs: Sequence[Waiting],
    present: Sequence[Result],
    now: datetime,
    on_run: Callable[[], None],
) -> Iterator[Sooner]:
    """`jobs`: one, or the cells of a matrix, which are changed together; `present`: runs without any change.

    Each changed run has the luck of the one that it is set against, and ends with these jobs: nothing else is asked of it.
    """
    ids = [job.id for job in jobs]
    usual = together(name, ids, present).finish.middle
    for change, world in _changes(snapshot, jobs):
        runs = plan_results(world, now, len(present), watched=ids, on_run=on_run)
        then = together(name, ids, runs)
        if then.finish.middle is None:
            continue
        took = (then.finish.middle - now).total_seconds()
        before = (usual - now).total_seconds() if usual else math.inf
        if before - took >= max(WORTH_S, WORTH * before if usual else 0.0):
            yield Sooner(
                job=name,
                name=name if len(jobs) > 1 else jobs[0].name,
                change=change,
                where=then.first[0][0] if then.first else "",
                finish=then.finish.middle,
                sooner_s=before - took,
            )


def _changes(snapshot: Snapshot, jobs: Sequence[Waiting]) -> Iterator[tuple[str, Snapshot]]:
    """What the user could change about jobs or do for them, with the world in which that was done."""
    ids = {job.id for job in jobs}

    def instead(**changed: Any) -> Snapshot:
        waiting = tuple(
            replace(each, needs=replace(each.needs, **changed)) if each.id in ids else each
            for each in snapshot.waiting
        )
        return replace(snapshot, waiting=waiting)

    needs = jobs[0].needs
    if needs.vram_gb > 0:
        half = needs.vram_gb / 2
        yield f"if {half:g} GB were enough", instead(vram_gb=half)
    if needs.accelerators:
        yield "if any card would do", instead(accelerators=(), ordered=False)
    if needs.precision == "bf16":
        yield "if fp16 would do", instead(precision="any")
    if needs.platforms:
        yield "on any platform", instead(platforms=())
    for place in snapshot.places:
        if place.capabilities.attended and place.offers:
            click = tuple(_clicked(each) if each is place else each for each in snapshot.places)
            yield f"with one click on {place.platform} now", replace(snapshot, places=click)


def _clicked(place: Place) -> Place:
    return replace(place, capabilities=replace(place.capabilities, attended=False))

"""What `plan` and `simulate` answer: the user's own queue and quotas run forward, with new jobs or without. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from freegpu.orchestrator.forecast.engine import run
from freegpu.orchestrator.forecast.plan import Expected, Forecast, Unused, forecast, worlds
from freegpu.orchestrator.forecast.world import Result, WindowUse
from freegpu.orchestrator.model import Place, Snapshot, Waiting

__all__ = ["Ahead", "Plan", "Sooner", "Span", "ahead", "plan"]

#: runs for a suggestion: it only has to be told apart from nothing
FEWER = 12
#: what a suggestion must bring to be told: this share of the time to finish, and this much, seconds
WORTH, WORTH_S = 0.1, 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sooner:
    """A change that would make a job finish sooner."""

    job: str
    name: str
    #: "with less than 20 GB"
    change: str
    finish: datetime
    sooner_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What would become of jobs if they were submitted now."""

    begin: datetime
    runs: int
    jobs: tuple[Expected, ...]
    pools: tuple[Unused, ...]
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
    pools: tuple[Unused, ...]


def plan(
    snapshot: Snapshot,
    new: Sequence[Waiting],
    now: datetime,
    *,
    runs: int,
) -> Plan:
    """Run the queue forward with these jobs in it, and try what might make each of them finish sooner."""
    everything = replace(snapshot, waiting=(*snapshot.waiting, *new))
    found = forecast(everything, now, runs=runs)
    mine = {job.id for job in new}
    jobs = tuple(expected for expected in found.jobs if expected.job in mine)
    return Plan(
        begin=now,
        runs=runs,
        jobs=jobs,
        pools=found.pools,
        sooner=tuple(_sooner(everything, new, jobs, now, min(FEWER, runs))),
        queued=len(snapshot.waiting) + len(snapshot.running),
    )


def ahead(
    snapshot: Snapshot,
    now: datetime,
    weeks: int,
    *,
    runs: int,
) -> Ahead:
    """Run the user's queue and quotas forward for so many weeks."""
    found: Forecast = forecast(snapshot, now, runs=runs)
    until = now + timedelta(weeks=weeks)
    likely = run(replace(worlds(snapshot, now, 1)[0], horizon_s=weeks * 7 * 86400.0), 0)
    return Ahead(
        begin=now,
        until=until,
        runs=runs,
        spans=tuple(_spans(likely, snapshot)),
        windows=likely.windows,
        jobs=found.jobs,
        pools=found.pools,
    )


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


def _sooner(
    snapshot: Snapshot, new: Sequence[Waiting], jobs: Sequence[Expected], now: datetime, runs: int
) -> Iterator[Sooner]:
    finishes = {job.job: job.finish.middle for job in jobs}
    for job in new:
        present = finishes[job.id]
        for change, world in _changes(snapshot, job):
            (then,) = [
                expected.finish.middle
                for expected in forecast(world, now, runs=runs).jobs
                if expected.job == job.id
            ]
            if then is None:
                continue
            took = (then - now).total_seconds()
            before = (present - now).total_seconds() if present else float("inf")
            if before - took >= max(WORTH_S, WORTH * before if present else 0.0):
                yield Sooner(
                    job=job.id, name=job.name, change=change, finish=then, sooner_s=before - took
                )


def _changes(snapshot: Snapshot, job: Waiting) -> Iterator[tuple[str, Snapshot]]:
    """What the user could change about a job or do for it, with the world in which that was done."""

    def instead(changed: Waiting) -> Snapshot:
        waiting = tuple(changed if each.id == job.id else each for each in snapshot.waiting)
        return replace(snapshot, waiting=waiting)

    needs = job.needs
    if needs.vram_gb > 0:
        less = replace(job, needs=replace(needs, vram_gb=needs.vram_gb / 2))
        yield f"if {needs.vram_gb / 2:g} GB were enough", instead(less)
    if needs.accelerators:
        any_card = replace(job, needs=replace(needs, accelerators=(), ordered=False))
        yield "if any card would do", instead(any_card)
    if needs.platforms:
        anywhere = replace(job, needs=replace(needs, platforms=()))
        yield "on any platform", instead(anywhere)
    for place in snapshot.places:
        if place.capabilities.attended and place.offers:
            click = tuple(_clicked(each) if each is place else each for each in snapshot.places)
            yield f"with one click on {place.platform} now", replace(snapshot, places=click)


def _clicked(place: Place) -> Place:
    return replace(place, capabilities=replace(place.capabilities, attended=False))

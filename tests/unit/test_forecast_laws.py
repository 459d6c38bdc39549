"""What holds in every forecast, whatever the platforms, the jobs, the luck and the policy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Estimate, Needs
from freegpu.orchestrator.forecast import Job, Platform, Policy, Pool, Result, World, run
from freegpu.orchestrator.model import (
    Action,
    Assign,
    Assignment,
    Move,
    Snapshot,
    StartSession,
)
from freegpu.orchestrator.placement import decide

HOUR = 3600.0
BEGIN = datetime(2026, 11, 30, 7, tzinfo=UTC)
WINDOWS = (
    Window(kind=WindowKind.FIXED_WEEKLY, limit_s=6 * HOUR, reset_offset_s=86400),
    Window(kind=WindowKind.ROLLING, limit_s=5 * HOUR, period_s=86400),
    Window(kind=WindowKind.MONTHLY, limit_s=4 * HOUR),
    Window(kind=WindowKind.FROM_FIRST_USE, limit_s=3 * HOUR, period_s=86400),
    Window(kind=WindowKind.PREPAID, limit_s=5 * HOUR),
    Window(kind=WindowKind.NONE),
)

platforms = st.builds(
    lambda number, window, card, count, limit_s, most, hazard, grant, queue_s, rate: Platform(
        name=f"p{number}",
        capabilities=Capabilities(max_concurrent=most, max_session_s=limit_s),
        offers=(
            Offer(
                platform=f"p{number}",
                account="me",
                card=card,
                count=count,
                vram_gb=16,
                session_limit_s=limit_s,
                start_delay_s=120,
                pool="gpu" if window else "",
                rate=rate,
            ),
        ),
        pools=(Pool(name="gpu", window=window),) if window else (),
        loss_per_h=hazard,
        grant=grant,
        queue_s=queue_s,
    ),
    number=st.integers(1, 3),
    window=st.sampled_from((None, *WINDOWS)),
    card=st.sampled_from(("T4", "P100", "L4")),
    count=st.integers(1, 2),
    limit_s=st.sampled_from((None, HOUR, 4 * HOUR)),
    most=st.integers(1, 2),
    hazard=st.sampled_from((0.0, 0.1, 1.0)),
    grant=st.sampled_from((0.0, 0.5, 1.0)),
    queue_s=st.sampled_from((0.0, 600.0)),
    rate=st.sampled_from((0.5, 1.0, 2.0)),
)

jobs = st.builds(
    lambda hours, off, arrives, save_s, every_s, pace, reports, done, due: Job(
        id="",
        needs=Needs(vram_gb=8),
        work_s=hours * HOUR,
        estimate=None if off is None else Estimate(seconds=hours * HOUR * off),
        arrives=BEGIN + timedelta(hours=arrives),
        save_s=save_s,
        every_s=every_s,
        pace={"L4": pace},
        reports=reports,
        done=done,
        deadline=None if due is None else BEGIN + timedelta(hours=arrives + due),
    ),
    hours=st.floats(0.1, 12),
    off=st.sampled_from((None, 0.25, 1.0, 4.0)),
    arrives=st.floats(0, 48),
    save_s=st.sampled_from((0.0, 10.0, 120.0)),
    every_s=st.sampled_from((None, 600.0, 1800.0)),
    pace=st.sampled_from((0.5, 1.0, 2.0)),
    reports=st.booleans(),
    done=st.sampled_from((0.0, 0.5)),
    due=st.sampled_from((None, 5.0, 50.0)),
)

#: an own machine that takes every job: capacity is there
HOME = Platform(
    name="home",
    offers=(Offer(platform="home", account="me", card="T4", vram_gb=16, start_delay_s=10),),
    exposure_s=math.inf,
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to three platforms beside the own machine, up to eight jobs."""
    found = {p.name: p for p in draw(st.lists(platforms, max_size=3))}
    asked = draw(st.lists(jobs, min_size=1, max_size=8))
    named = tuple(
        Job(**{**{f: getattr(job, f) for f in job.__dataclass_fields__}, "id": f"j{number}"})
        for number, job in enumerate(asked)
    )
    return World(platforms=(HOME, *found.values()), jobs=named, begin=BEGIN)


def restless(snapshot: Snapshot, now: datetime) -> Sequence[Action]:
    """Takes whatever there is without looking at quota, and moves every job that has run for half an hour."""
    waiting, actions = list(snapshot.waiting), list[Action]()
    for slot in snapshot.free_slots:
        if waiting:
            put = Assignment(job=waiting.pop().id, slot=slot.slot)
            actions.append(Assign(session=slot.session, assignment=put, why=""))
    for place in snapshot.places:
        for _ in range(place.capabilities.max_concurrent - place.open_sessions):
            if waiting and place.blocked_until is None:
                put = Assignment(job=waiting.pop().id, slot=0)
                actions.append(
                    StartSession(offer=place.offers[0], assignments=(put,), reserve_s=60.0, why="")
                )
    for one in snapshot.running:
        if waiting and one.held_s >= 1800:
            put = Assignment(job=waiting.pop().id, slot=one.slot)
            actions.append(Move(session=one.session, victim=one.job.id, assignment=put, why=""))
    return actions


def concurrent(world: World, result: Result) -> None:
    """No platform has more sessions than it allows."""
    for platform in world.platforms:
        edges = [
            edge
            for s in result.sessions
            if s.platform == platform.name
            for edge in ((s.asked, 1), (s.ended, -1))
        ]
        open_now = 0
        for _, step in sorted(edges):
            open_now += step
            assert open_now <= platform.capabilities.max_concurrent


def within_quota(world: World, result: Result) -> None:
    """No window is used beyond its limit, but for a second a session."""
    for window in result.windows:
        assert window.used_s <= window.limit_s + 2
    for platform in world.platforms:
        for pool in platform.pools:
            limit, kind = pool.window.limit_s, pool.window.kind
            mine = [s for s in result.sessions if s.platform == platform.name]
            total = sum(s.charged_s for s in mine)
            assert result.used_s[platform.name, pool.name] == pytest.approx(total)
            if kind is WindowKind.PREPAID and limit is not None:
                assert total <= limit + 2
            if kind is not WindowKind.ROLLING or limit is None:
                continue
            for end in [s.ended for s in mine]:
                begin = end - timedelta(seconds=pool.window.period_s)
                used = sum(
                    max(timedelta(0), min(s.ended, end) - max(s.granted, begin)).total_seconds()
                    for s in mine
                )
                assert used * platform.offers[0].rate <= limit + 2


def one_place_at_a_time(result: Result) -> None:
    """A job is in one slot at a time, a slot holds one job, and both lie within the session."""
    sessions = {s.id: s for s in result.sessions}
    slots = defaultdict(list)
    for outcome in result.outcomes.values():
        for before, stay in pairwise(outcome.stays):
            assert before.end <= stay.begin
        for stay in outcome.stays:
            slots[stay.session, stay.slot].append(stay)
            assert outcome.arrived <= stay.begin <= stay.end <= sessions[stay.session].ended
            assert sessions[stay.session].asked <= stay.begin
            assert stay.slot < sessions[stay.session].count
    for held in slots.values():
        held.sort(key=lambda stay: (stay.begin, stay.end))
        for before, stay in pairwise(held):
            assert before.end <= stay.begin


def work_is_conserved(world: World, result: Result) -> None:
    """What is kept in all stays is what was to do, and nothing is made in less time than it takes."""
    for job in world.jobs:
        outcome = result.outcomes[job.id]
        kept = sum(stay.kept_s for stay in outcome.stays)
        to_do = job.work_s * (1 - job.done)
        if outcome.finished is None:
            assert kept <= to_do + 1e-6
        else:
            assert kept == pytest.approx(to_do)
            assert outcome.stays[-1].end == outcome.finished
        for stay in outcome.stays:
            assert stay.kept_s >= 0
            assert stay.lost_s >= -1e-9
            most = (stay.end - stay.begin).total_seconds() * 5
            assert stay.kept_s + stay.lost_s <= most + 1e-6


@pytest.mark.parametrize("policy", [decide, restless], ids=["decide", "restless"])
@given(world=worlds(), seed=st.integers(0, 5))
@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_the_laws_hold(policy: Policy, world: World, seed: int) -> None:
    """Concurrency, quota, one slot at a time, conserved work; every job ends; the same seed gives the same result."""
    result = run(world, seed, policy)
    concurrent(world, result)
    within_quota(world, result)
    one_place_at_a_time(result)
    work_is_conserved(world, result)
    assert all(outcome.finished is not None for outcome in result.outcomes.values())
    assert run(world, seed, policy) == result

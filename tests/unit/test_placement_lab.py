"""The lower bounds of benchmarks/placement.py: right in cases computed by hand, and beaten by no policy."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Needs
from freegpu.orchestrator.forecast import Job, Platform, Pool, World, run

pytest.importorskip("scipy")
HOUR = 3600.0
BEGIN = datetime(2026, 11, 30, tzinfo=UTC)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def lab() -> Iterator[Any]:
    """A function that gives a module of the lab."""
    sys.path.insert(0, str(BENCHMARKS))
    yield lambda name: importlib.import_module(f"placement_lab.{name}")
    sys.path.remove(str(BENCHMARKS))


def world(hours: list[float], *, count: int = 1, window: Window | None = None) -> World:
    """Jobs of so many hours on one T4 or two, with no start to pay for."""
    offer = Offer(
        platform="there",
        account="me",
        card="T4",
        count=count,
        vram_gb=16,
        session_limit_s=12 * HOUR,
        pool="gpu" if window else "",
    )
    platform = Platform(
        name="there",
        capabilities=Capabilities(max_concurrent=1),
        offers=(offer,),
        pools=(Pool(name="gpu", window=window),) if window else (),
        exposure_s=math.inf,
    )
    jobs = tuple(
        Job(id=f"j{at}", needs=Needs(vram_gb=8), work_s=h * HOUR) for at, h in enumerate(hours)
    )
    return World(platforms=(platform,), jobs=jobs, begin=BEGIN)


def test_the_makespan_of_one_slot_is_the_sum_and_of_two_the_half_or_the_longest(lab: Any) -> None:
    """Jobs flow in any split, but each is in one slot at a time."""
    bounds = lab("bound").Bounds
    assert bounds(world([2, 3, 5])).makespan() == pytest.approx(10, rel=0.006)
    assert bounds(world([2, 3, 5], count=2)).makespan() == pytest.approx(5, rel=0.006)
    assert bounds(world([1, 1, 6], count=2)).makespan() == pytest.approx(6, rel=0.006)


def test_a_quota_moves_the_makespan_into_the_next_window(lab: Any) -> None:
    """Four hours a week from Monday 00:00: the fifth to seventh hour come in the second week, the eighth is not needed."""
    weekly = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=4 * HOUR)
    rolling = Window(kind=WindowKind.ROLLING, limit_s=4 * HOUR, period_s=24 * HOUR)
    bounds = lab("bound").Bounds
    assert bounds(world([7], window=weekly)).makespan() == pytest.approx(168 + 3, rel=0.006)
    found = bounds(world([7], window=rolling)).makespan()
    assert 7 <= found <= 24 + 3 + 0.2


def test_the_mean_completion_of_one_slot_is_at_most_that_of_shortest_first(lab: Any) -> None:
    """Shortest first is best on one machine: 1, 3 and 6 h end after 1, 4 and 10 h. The bound is below, not far."""
    found = lab("bound").Bounds(world([6, 1, 3])).completion(30.0)
    assert 0.5 * 5 <= found <= 5


@pytest.mark.parametrize(
    "policy", ["fifo", "round-robin", "fastest", "cheapest", "shortest", "freegpu"]
)
def test_no_policy_beats_the_bounds_and_each_ends_every_job(lab: Any, policy: str) -> None:
    """On a small queue of the scenario; equal runs give equal results."""
    drawn = lab("scenario").world(7, 0.15)
    result = run(drawn, 7, lab("baselines").POLICIES[policy]())
    took = [outcome.took_s / HOUR for outcome in result.outcomes.values()]
    bounds = lab("bound").Bounds(drawn)
    assert all(math.isfinite(one) for one in took)
    assert result.span_s / HOUR >= bounds.makespan()
    assert sum(took) / len(took) >= bounds.completion(2 * result.span_s / HOUR)
    assert run(drawn, 7, lab("baselines").POLICIES[policy]()) == result


def test_lengths_and_losses_are_off_as_asked(lab: Any) -> None:
    """Estimates within a factor of four either way; twice the losses, with the same belief."""
    scenario = lab("scenario")
    right, off = scenario.world(3, 0.5), scenario.world(3, 0.5, estimates_off=4.0, losses=2.0)
    factors = [job.estimate.seconds / job.work_s for job in off.jobs]
    assert 0.25 <= min(factors) < 0.5
    assert 2 < max(factors) <= 4
    assert [job.work_s for job in off.jobs] == [job.work_s for job in right.jobs]
    for believed, true in zip(right.platforms, off.platforms, strict=True):
        assert true.loss_per_h == 2 * believed.loss_per_h
        assert (true.losses, true.exposure_s) == (believed.losses, believed.exposure_s)
    assert all((job.arrives or BEGIN) >= off.begin for job in off.jobs)
    assert max(job.arrives or BEGIN for job in off.jobs) <= off.begin + timedelta(days=10)

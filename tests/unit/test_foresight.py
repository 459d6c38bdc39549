"""What `plan` and `simulate` tell: the queue run forward from a snapshot, by the decision that places real jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer
from freegpu.jobs.model import Accelerator, Needs
from freegpu.orchestrator.forecast.plan import forecast
from freegpu.orchestrator.foresight import ahead, plan
from freegpu.orchestrator.model import Running, Snapshot, Waiting
from tests.unit.test_placement import HOUR, NOW, balance, offer, place
from tests.unit.test_policy import hours


def known(name: str, length: float, **fields: Any) -> Waiting:
    """A job whose length is not in doubt."""
    return hours(name, length, remaining_t4_s=length * HOUR, sigma=0.0, **fields)


STEADY = place(offer("steady", session_limit_s=12 * HOUR, start_delay_s=300.0))


def test_what_is_certain_is_told_as_such() -> None:
    """Two hours of work on a platform that loses nothing: one place, one finish, no hop."""
    snapshot = Snapshot(waiting=(known("a", 2),), places=(STEADY,))
    (expected,) = forecast(snapshot, NOW, runs=5).jobs
    assert expected.first == (("steady T4", 1.0),)
    assert expected.hops == 0
    assert expected.finish.low == expected.finish.high
    assert expected.finish.middle is not None
    took = (expected.finish.middle - NOW).total_seconds()
    # the start, what a start of the job costs in its slot, the work, and a save in each interval
    assert 2 * HOUR + 300 <= took <= 2.2 * HOUR + 300


def test_a_job_longer_than_a_session_hops() -> None:
    """Thirty hours through sessions of twelve."""
    snapshot = Snapshot(waiting=(known("a", 30),), places=(STEADY,))
    (expected,) = forecast(snapshot, NOW, runs=3).jobs
    assert expected.hops == 2


def test_what_is_not_certain_is_told_as_a_range() -> None:
    """An estimate may be off; the same question has the same answer."""
    snapshot = Snapshot(waiting=(hours("a", 2), hours("b", 3, seq=2)), places=(STEADY,))
    found = forecast(snapshot, NOW)
    for expected in found.jobs:
        low, middle, high = expected.finish.low, expected.finish.middle, expected.finish.high
        assert low is not None
        assert middle is not None
        assert high is not None
        assert low < middle < high
    assert forecast(snapshot, NOW) == found


def test_what_fits_nowhere_never_begins() -> None:
    """And it holds nobody else up."""
    big = known("big", 1, needs=Needs(vram_gb=500))
    jobs = forecast(
        Snapshot(waiting=(big, known("a", 1, seq=2)), places=(STEADY,)), NOW, runs=2
    ).jobs
    found = {expected.job: expected for expected in jobs}
    assert (found["big"].first, found["big"].finish.middle, found["big"].finishes) == ((), None, 0)
    assert found["a"].finishes == 1


def test_quota_of_now_counts_and_what_expires_is_told() -> None:
    """Three hours are left of thirty, ten hours before the reset; a job of one hour leaves two to expire."""
    spent = place(
        offer("weekly", pool="gpu", session_limit_s=12 * HOUR),
        balances=(balance("weekly", used_h=27, resets_h=10),),
    )
    jobs = (known("a", 1), known("b", 40, seq=2, created_at=NOW, deadline=None))
    (pool,) = forecast(Snapshot(waiting=jobs[:1], places=(spent,)), NOW, runs=2).pools
    assert pool.used_s == pytest.approx(HOUR, rel=0.2)
    (pool,) = forecast(Snapshot(waiting=jobs, places=(spent,)), NOW, runs=2).pools
    assert pool.expired_s == pytest.approx(0, abs=HOUR / 2), "the long job takes what is left"


def test_running_jobs_are_run_forward_too() -> None:
    """They are in the queue's way."""
    busy = Running(
        job=known("b", 5), session="s1", slot=0, offer=STEADY.offers[0], held_s=60.0, left_s=None
    )
    found = ahead(Snapshot(running=(busy,), places=(STEADY,)), NOW, 2, runs=2)
    assert [expected.job for expected in found.jobs] == ["b"]
    assert [(span.platform, span.jobs) for span in found.spans] == [("steady", ("b",))]


@pytest.mark.parametrize(
    ("needs", "change"),
    [
        (Needs(vram_gb=24), "if 12 GB were enough"),
        (Needs(accelerators=(Accelerator(card="L4"),)), "if any card would do"),
        (Needs(platforms=("slow",)), "on any platform"),
    ],
)
def test_what_would_finish_sooner_is_told(needs: Needs, change: str) -> None:
    """Only what brings a tenth and ten minutes."""
    slow = place(offer("slow", "L4", start_delay_s=9 * HOUR))
    found = plan(Snapshot(places=(STEADY, slow)), [known("a", 2, needs=needs)], NOW, runs=3)
    assert [each.change for each in found.sooner] == [change]
    assert found.sooner[0].sooner_s > 5 * HOUR


def test_a_click_is_suggested_where_it_pays() -> None:
    """Nobody knows whether it comes, so it is never counted on."""
    click = place(
        Offer(platform="colab", account="me", card="A100"),
        platform="colab",
        capabilities=Capabilities(attended=True),
    )
    found = plan(Snapshot(places=(STEADY, click)), [known("a", 9)], NOW, runs=3)
    assert found.jobs[0].first == (("steady T4", 1.0),)
    assert [each.change for each in found.sooner] == ["with one click on colab now"]


def test_a_platform_that_loses_sessions_makes_the_range_wider_and_the_finish_later() -> None:
    """The loss rate is drawn anew in each run."""
    shaky = replace(STEADY, losses=12.0, exposure_s=24 * HOUR)
    sure, unsure = (
        forecast(Snapshot(waiting=(known("a", 10),), places=(where,)), NOW).jobs[0].finish
        for where in (STEADY, shaky)
    )
    assert sure.middle is not None
    assert unsure.middle is not None
    assert unsure.low is not None
    assert unsure.high is not None
    assert unsure.middle > sure.middle
    assert unsure.high - unsure.low > timedelta(minutes=20)

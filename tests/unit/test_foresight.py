"""What `plan` and `simulate` tell: the queue run forward from a snapshot, by the decision that places real jobs."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer
from freegpu.jobs.model import Accelerator, Needs
from freegpu.orchestrator.forecast.plan import forecast, results
from freegpu.orchestrator.foresight import affordable, ahead, plan
from freegpu.orchestrator.model import Running, Snapshot, Standing, Waiting
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


def at_most_once(found: Any, job: str) -> Any:
    (expected,) = (each for each in found.jobs if each.job == job)
    return expected


def test_a_job_begins_when_all_that_it_comes_after_have_finished() -> None:
    """Its length counts from there; what comes after a job that is not in the queue never begins."""
    wide = place(
        offer("steady", session_limit_s=12 * HOUR), capabilities=Capabilities(max_concurrent=4)
    )
    jobs = (
        known("a", 2),
        known("b", 3, seq=2),
        known("last", 1, seq=3, after=("a", "b")),
        known("later", 1, seq=4, not_before=NOW + timedelta(hours=9)),
        known("never", 1, seq=5, after=("a", "gone")),
    )
    found = forecast(Snapshot(waiting=jobs, places=(wide,)), NOW, runs=3)
    middles: dict[str, Any] = {
        each.job: (each.start.middle, each.finish.middle) for each in found.jobs
    }
    assert middles["last"][0] == max(middles["a"][1], middles["b"][1])
    assert middles["later"][0] >= NOW + timedelta(hours=9)
    assert middles["never"] == (None, None)
    assert at_most_once(found, "never").first == ()
    assert found.over.middle is None


def test_a_matrix_is_told_as_a_whole() -> None:
    """From the first cell that begins to the last that finishes; what would be sooner is tried with all cells at once."""
    cells = [
        known(f"sweep-s{n}", 2, seq=n, needs=Needs(accelerators=(Accelerator(card="L4"),)))
        for n in range(3)
    ]
    slow = place(offer("slow", "L4", start_delay_s=9 * HOUR, session_limit_s=40 * HOUR))
    found = plan(
        Snapshot(places=(STEADY, slow)),
        cells,
        NOW,
        runs=3,
        groups={"sweep": [job.id for job in cells]},
    )
    (group,) = found.groups
    assert group.jobs == ("sweep-s0", "sweep-s1", "sweep-s2")
    assert group.start.middle == min(each.start.middle for each in found.jobs if each.start.middle)
    assert group.finish.middle == max(
        each.finish.middle for each in found.jobs if each.finish.middle
    )
    assert [(each.job, each.change, each.where) for each in found.sooner] == [
        ("sweep", "if any card would do", "steady T4")
    ]


def test_a_running_job_goes_on_where_it_is_and_its_quota_is_counted_once() -> None:
    """Its session has its own limit left, holds its quota, and lets go of what it does not use."""
    there = offer("weekly", pool="gpu", session_limit_s=12 * HOUR)
    spent = place(
        there,
        balances=(replace(balance("weekly", used_h=20, resets_h=100), reserved_s=6 * HOUR),),
        capabilities=Capabilities(max_concurrent=1),
        open_sessions=1,
    )
    busy = Running(
        job=known("b", 5), session="s1", slot=0, offer=there, held_s=60.0, left_s=3 * HOUR
    )
    stands = Standing(session="s1", offer=there, left_s=3 * HOUR, held_s=6 * HOUR, jobs=((0, "b"),))
    snapshot = Snapshot(running=(busy,), places=(STEADY, spent), standing=(stands,))
    found = ahead(snapshot, NOW, 2, runs=3)
    (expected,) = found.jobs
    assert expected.first == (("weekly T4", 1.0),)
    assert expected.start.middle == NOW
    assert expected.hops == 1, "the session ends after three hours"
    (pool,) = (each for each in found.pools if each.platform == "weekly")
    assert pool.used_s >= 3 * HOUR
    assert pool.expired_s is not None
    assert pool.used_s + pool.expired_s == pytest.approx(10 * HOUR), "of thirty, twenty were used"
    assert found.spans[0].begin == NOW


def test_a_session_that_a_person_started_goes_on_in_a_forecast_and_no_other_comes() -> None:
    """Six hours of work in an attended session of four: the rest waits for a platform that needs no click."""
    click = place(
        offer("colab", "A100"), platform="colab", capabilities=Capabilities(attended=True)
    )
    stands = Standing(
        session="s1", offer=click.offers[0], left_s=HOUR / 2, held_s=0.0, jobs=((0, "b"),)
    )
    busy = Running(
        job=known("b", 9), session="s1", slot=0, offer=click.offers[0], held_s=1.0, left_s=HOUR / 2
    )
    (expected,) = forecast(
        Snapshot(running=(busy,), places=(click, STEADY), standing=(stands,)), NOW, runs=2
    ).jobs
    assert expected.first == (("colab A100", 1.0),)
    assert expected.hops == 1
    assert expected.finishes == 1


def test_hours_that_expire_are_told_also_when_all_is_done_before_and_what_fits_into_them() -> None:
    """Of thirty hours twenty are used and one is planned: nine expire, of two cards; a job that must not go there counts for nothing."""
    two = offer("weekly", count=2, pool="gpu", session_limit_s=12 * HOUR)
    left = place(two, balances=(balance("weekly", used_h=20, resets_h=50),))
    jobs = [
        known("a", 1),
        known("b", 1, seq=2, needs=Needs(vram_gb=40)),
        known("c", 36, seq=3, needs=Needs(platforms=("weekly",)), after=("b",)),
    ]
    found = plan(Snapshot(places=(left,)), jobs, NOW, runs=2)
    (pool,) = found.pools
    assert pool.expires
    assert pool.expired_s == pytest.approx(9 * HOUR, rel=0.05)
    (fits,) = found.fits
    assert (fits.platform, fits.card) == ("weekly", "T4 x2")
    assert fits.card_s == pytest.approx(18 * HOUR, rel=0.05)
    assert dict(fits.jobs) == {
        "a": pytest.approx(18, rel=0.05),
        "c": pytest.approx(0.5, rel=0.05),
    }


def test_no_more_than_there_is_time_for_fits_into_hours_that_expire() -> None:
    """Ten hours of quota expire in one hour: one session holds one."""
    left = place(
        offer("weekly", pool="gpu"),
        balances=(balance("weekly", used_h=20, resets_h=1),),
        capabilities=Capabilities(max_concurrent=1),
    )
    found = plan(Snapshot(places=(left,)), [known("a", 0.25, needs=Needs(vram_gb=99))], NOW, runs=1)
    (fits,) = found.fits
    assert fits.card_s == HOUR
    assert fits.jobs == ()


def test_a_deadline_is_met_in_a_share_of_runs() -> None:
    """Certain work: always or never."""
    jobs = (
        known("a", 2, deadline=NOW + timedelta(hours=3)),
        known("b", 9, seq=2, deadline=NOW + timedelta(hours=4)),
        known("c", 1, seq=3),
    )
    found = forecast(Snapshot(waiting=jobs, places=(STEADY,)), NOW, runs=3)
    assert {each.job: each.in_time for each in found.jobs} == {"a": 1.0, "b": 0.0, "c": None}


def test_a_long_queue_is_run_forward_less_often() -> None:
    """Forty times as long as it is quick, and never without a range."""
    assert affordable(0) == affordable(50) == 40
    assert 4 < affordable(500) < affordable(100) < 40
    assert affordable(100_000) == 4


def test_whoever_waits_is_told_how_many_runs_are_done() -> None:
    """Every run counts, also those for what would be sooner: the last call says that all are done."""
    told: list[tuple[int, int]] = []
    narrow = known("a", 2, needs=Needs(accelerators=(Accelerator(card="T4"),), vram_gb=8))
    plan(Snapshot(places=(STEADY,)), [narrow], NOW, runs=15, on_run=lambda *n: told.append(n))
    # less memory and any card, five runs each
    assert told == [(done, 25) for done in range(1, 26)]
    told.clear()
    ahead(
        Snapshot(places=(STEADY,), waiting=(narrow,)),
        NOW,
        1,
        runs=3,
        on_run=lambda *n: told.append(n),
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_run_that_ends_early_ends_with_the_jobs_that_were_asked_about() -> None:
    """They come out as in the whole run, by the second; others are left where they were."""
    jobs = tuple(known(f"j{at}", 1 + at % 5, seq=at + 1) for at in range(12))
    snapshot = Snapshot(waiting=jobs, places=(STEADY,))
    whole, part = results(snapshot, NOW, 4), results(snapshot, NOW, 4, watched=["j3", "j5"])
    for one, other in zip(whole, part, strict=True):
        for job in ("j3", "j5"):
            assert one.outcomes[job] == other.outcomes[job]
        assert other.decisions < one.decisions
        assert any(outcome.finished is None for outcome in other.outcomes.values())


def test_a_session_that_is_starting_takes_its_time() -> None:
    """Its job begins when it will live, not at once."""
    offer = STEADY.offers[0]
    place = replace(STEADY, open_sessions=1)

    def begins(starts_s: float) -> datetime | None:
        stands = Standing(
            session="s1", offer=offer, left_s=None, held_s=0.0, jobs=((0, "a"),), starts_s=starts_s
        )
        snapshot = Snapshot(waiting=(known("a", 1),), places=(place,), standing=(stands,))
        (expected,) = forecast(snapshot, NOW, runs=1).jobs
        return expected.start.middle

    assert begins(0.0) == NOW
    assert begins(540.0) == NOW + timedelta(seconds=540)


def test_a_start_of_a_job_takes_as_long_as_starts_were_seen_to_take() -> None:
    """Five hundred cells of two seconds, three at a time: minutes, not the hours that a minute a start would make."""
    where = place(offer("steady", count=3, start_delay_s=10.0))
    cells = tuple(known(f"c{n}", 2 / HOUR, seq=n) for n in range(60))

    def takes(start_s: float | None) -> float:
        found = forecast(Snapshot(waiting=cells, places=(where,), start_s=start_s), NOW, runs=1)
        assert found.over.middle is not None
        return (found.over.middle - NOW).total_seconds()

    assert takes(None) == pytest.approx(10 + 20 * 62, rel=0.1)
    assert takes(1.0) == pytest.approx(10 + 20 * 3, rel=0.1)


def test_a_job_that_runs_already_does_not_start_again() -> None:
    """One that has only been given its slot does."""
    there = STEADY.offers[0]

    def ends_s(going: frozenset[str]) -> float:
        job = known("b", 100 / HOUR)
        busy = Running(job=job, session="s1", slot=0, offer=there, held_s=1.0, left_s=None)
        stands = Standing(
            session="s1", offer=there, left_s=None, held_s=0.0, jobs=((0, "b"),), going=going
        )
        snapshot = Snapshot(running=(busy,), places=(STEADY,), standing=(stands,), start_s=40.0)
        found = forecast(snapshot, NOW, runs=1).jobs[0].finish.middle
        assert found is not None
        return (found - NOW).total_seconds()

    assert ends_s(frozenset({"b"})) == pytest.approx(100, abs=2)
    assert ends_s(frozenset()) == pytest.approx(140, abs=2)

"""A forecast's arithmetic, in small worlds computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Estimate, Needs
from freegpu.orchestrator.forecast import (
    Job,
    Platform,
    Pool,
    Result,
    World,
    run,
    used_evenly,
    work,
)
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.model import (
    Action,
    Assign,
    Assignment,
    Move,
    Snapshot,
    StartSession,
)

HOUR = 3600.0
#: a Monday, 00:00 UTC
BEGIN = datetime(2026, 11, 30, tzinfo=UTC)
WEEKLY = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=2 * HOUR, reset_offset_s=86400)


def platform(
    name: str = "there",
    *,
    count: int = 1,
    limit_s: float | None = None,
    delay_s: float = 100.0,
    window: Window | None = None,
    most: int = 1,
    card: str = "T4",
    rate: float = 1.0,
) -> Platform:
    """One offer, never lost, always granted."""
    pool = "gpu" if window else ""
    offer = Offer(
        platform=name,
        account="me",
        card=card,
        count=count,
        vram_gb=16,
        session_limit_s=limit_s,
        start_delay_s=delay_s,
        pool=pool,
        rate=rate,
    )
    return Platform(
        name=name,
        capabilities=Capabilities(max_concurrent=most, max_session_s=limit_s),
        offers=(offer,),
        pools=(Pool(name=pool, window=window),) if window else (),
        exposure_s=math.inf,
    )


def job(name: str = "a", hours: float = 2.0, **more: object) -> Job:
    """A checkpoint costs 30 s every half hour, a start 60 s; its estimate is right."""
    given: dict[str, object] = {
        "needs": Needs(vram_gb=8),
        "save_s": 30.0,
        "every_s": 1800.0,
        "restart_s": 60.0,
        "estimate": Estimate(seconds=hours * HOUR),
        **more,
    }
    return Job(id=name, work_s=hours * HOUR, **given)  # type: ignore[arg-type]


def world(*jobs: Job, at: Sequence[Platform] = (), **more: object) -> World:
    return World(platforms=tuple(at) or (platform(),), jobs=jobs, begin=BEGIN, **more)  # type: ignore[arg-type]


def seconds(result: Result, name: str = "a") -> float:
    finished = result.outcomes[name].finished
    assert finished is not None
    return (finished - BEGIN).total_seconds()


def first_fit(snapshot: Snapshot, now: datetime) -> list[Action]:
    """The first job to the first slot, else a new session where one may be opened; quota is not looked at."""
    free, actions = list(snapshot.free_slots), list[Action]()
    opened = {p.platform: p.open_sessions for p in snapshot.places}
    for one in snapshot.waiting:
        if free:
            slot = free.pop(0)
            put = Assignment(job=one.id, slot=slot.slot)
            actions.append(Assign(session=slot.session, assignment=put, why=""))
            continue
        for place in snapshot.places:
            if opened[place.platform] < place.capabilities.max_concurrent:
                if place.blocked_until is not None:
                    continue
                opened[place.platform] += 1
                put = Assignment(job=one.id, slot=0)
                start = StartSession(
                    offer=place.offers[0], assignments=(put,), reserve_s=600.0, why=""
                )
                actions.append(start)
                break
    return actions


def test_a_job_alone_takes_its_work_its_start_and_its_checkpoints() -> None:
    """100 s until the session is there, 60 s for the job to start, 2 h of work with a checkpoint after each of the
    first three half hours; the fourth ends with the job."""
    result = run(world(job()))
    assert seconds(result) == 100 + 60 + 7200 + 3 * 30
    assert result.outcomes["a"].hops == 0


def test_a_faster_card_and_a_true_speed_off_the_table_both_count() -> None:
    """The truth is the table's speed times the job's own factor on that card."""
    result = run(world(job(pace={"T4": 1.25}, every_s=1e9)))
    assert seconds(result) == pytest.approx(160 + 7200 / 1.25)


def test_a_session_s_limit_costs_a_save_and_a_new_start_and_no_work() -> None:
    """The job saves 60 s before the limit and goes on in a second session."""
    result = run(world(job(hours=3, every_s=1e9, save_s=60.0), at=[platform(limit_s=7200.0)]))
    worked = 7200 - 60 - 160
    assert seconds(result) == 7200 + 160 + (10800 - worked)
    outcome = result.outcomes["a"]
    assert [stay.reason for stay in outcome.stays] == ["limit", "finished"]
    assert [stay.kept_s for stay in outcome.stays] == [worked, 10800 - worked]
    assert outcome.lost_s == 0


@pytest.mark.parametrize(
    ("sealed", "kept_s", "lost_s"),
    [(False, 7200 - 160 - 4 * 30, 0), (True, 3 * 1800, 7200 - 160 - 3 * 1830)],
)
def test_a_spent_quota_ends_the_session_which_saves_where_it_can_be_told(
    sealed: bool, kept_s: float, lost_s: float
) -> None:
    """Two hours a week, reset on Tuesday 00:00. No ticket reaches a sealed session: after three half hours that are
    saved its work is done again."""
    there = platform(window=WEEKLY)
    there = replace(there, offers=(replace(there.offers[0], sealed=sealed),))
    result = run(world(job(hours=3), at=[there]), policy=first_fit)
    first, second = result.outcomes["a"].stays
    assert (first.reason, first.kept_s, first.lost_s) == ("quota", kept_s, lost_s)
    assert result.sessions[0].charged_s == 7200
    # first_fit asks again at once: a platform refuses when the quota is spent, until it is back
    assert result.refusals == 1
    assert second.begin == BEGIN + timedelta(days=1, seconds=100)
    assert result.windows[0].used_s == 7200
    assert result.windows[0].wanted


def test_a_session_that_knows_when_its_quota_ends_saves_also_where_no_ticket_reaches_it() -> None:
    """The product tells it at its start, so nothing is lost."""
    there = platform(window=WEEKLY)
    there = replace(there, offers=(replace(there.offers[0], sealed=True),))
    first, *_ = run(world(job(hours=3), at=[there])).outcomes["a"].stays
    assert (first.reason, first.lost_s) == ("limit", 0)
    assert first.kept_s == pytest.approx(7200 - 160 - 4 * 30, abs=1)


def test_the_product_s_policy_waits_for_the_reset() -> None:
    """The real decision does not ask for sessions that hold no work; the job ends in the next window."""
    result = run(world(job(hours=3), at=[platform(window=WEEKLY)]))
    stays = result.outcomes["a"].stays
    assert len(stays) == 2
    assert stays[1].begin == BEGIN + timedelta(days=1, seconds=100)
    assert seconds(result) == 86400 + 160 + work.whole(10800 - stays[0].kept_s, 1800, 30)


def test_two_slots_of_a_session_cost_its_quota_once() -> None:
    """T4 x2: two jobs beside each other; the session is charged from the grant to the end of the longer."""
    both = [job("a", 1.0, every_s=1e9), job("b", 1.5, every_s=1e9)]
    result = run(world(*both, at=[platform(count=2, window=WEEKLY)]))
    assert (seconds(result, "a"), seconds(result, "b")) == (160 + 3600, 160 + 5400)
    assert [(s.charged_s, s.reason) for s in result.sessions] == [(5560, "idle")]


def test_a_rate_multiplies_the_charge() -> None:
    """A machine of half a credit an hour uses half the quota."""
    result = run(world(job(hours=1, every_s=1e9), at=[platform(window=WEEKLY, rate=0.5)]))
    assert result.sessions[0].charged_s == pytest.approx((160 + 3600) / 2)
    assert result.used_s["there", "gpu"] == pytest.approx((160 + 3600) / 2)


def test_a_move_saves_and_the_other_begins_when_the_slot_is_free() -> None:
    """The long job works 60 min, saves for 30 s and leaves; the short one takes its slot; then the long one goes on."""
    asked: list[Move] = []

    def policy(snapshot: Snapshot, now: datetime) -> list[Action]:
        if snapshot.running and snapshot.waiting and not asked:
            one = snapshot.running[0]
            put = Assignment(job=snapshot.waiting[0].id, slot=one.slot)
            asked.append(Move(session=one.session, victim=one.job.id, assignment=put, why=""))
            return list(asked)
        return [] if snapshot.running else first_fit(snapshot, now)

    late = BEGIN + timedelta(seconds=160 + 3600)
    result = run(
        world(job("a", 5, every_s=1e9), job("b", 1, every_s=1e9, arrives=late)), policy=policy
    )
    assert result.moves == 1
    first, second = result.outcomes["a"].stays
    assert (first.reason, first.kept_s, first.lost_s) == ("moved", 3600, 0)
    assert seconds(result, "b") == 160 + 3600 + 30 + 60 + 3600
    assert second.begin == result.outcomes["b"].finished
    assert seconds(result, "a") == seconds(result, "b") + 60 + 4 * 3600


def test_a_refusal_closes_the_platform_for_a_while() -> None:
    """Nothing is granted there: it is asked once in an hour, and the job goes where it is granted, if anywhere."""
    never = replace(platform("never"), grant=0.0, refusal_s=3600.0)
    result = run(world(job(), at=[never], horizon_s=10 * HOUR + 1))
    assert result.outcomes["a"].finished is None
    assert (result.refusals, len(result.sessions)) == (11, 0)
    other = run(world(job(), at=[never, platform("other", delay_s=4000.0)]))
    assert other.refusals == 1
    assert seconds(other) == 4000 + 60 + 7200 + 90


def test_a_loss_costs_the_work_since_the_last_checkpoint_and_is_remembered() -> None:
    """Sessions are lost about every two hours: what is kept is whole checkpoints, and the policy sees the losses."""
    seen: list[tuple[float, float]] = []

    def policy(snapshot: Snapshot, now: datetime) -> list[Action]:
        seen.append((snapshot.places[0].losses, snapshot.places[0].exposure_s))
        return first_fit(snapshot, now)

    lossy = replace(platform(), loss_per_h=0.5, exposure_s=0.0)
    result = run(world(job(hours=20), at=[lossy]), seed=3, policy=policy)
    lost = [s for s in result.outcomes["a"].stays if s.reason == "lost"]
    assert lost
    assert all(stay.kept_s % 1800 == pytest.approx(0) for stay in lost)
    assert all(0 <= stay.lost_s <= 1800 for stay in lost)
    # one that is lost before its agent came is a failed launch
    came = [s for s in result.sessions if s.ended - s.granted > timedelta(seconds=100)]
    count = len([s for s in came if s.reason == "lost"])
    assert count > 1
    assert seen[-1][0] == count
    lived = sum((s.ended - s.granted).total_seconds() - 100 for s in came[:-1])
    assert seen[-1][1] == pytest.approx(lived)
    assert seen[0] == (0, 0)


def test_an_idle_session_costs_quota_no_longer_than_needed() -> None:
    """One that draws on a pool ends when nothing waits that fits; one of an own machine when its agent gives up."""
    pooled = run(
        world(
            job(hours=1),
            job("b", 1, arrives=BEGIN + timedelta(days=3)),
            at=[platform(window=WEEKLY)],
        )
    )
    assert (pooled.sessions[0].ended - BEGIN).total_seconds() == seconds(pooled, "a")
    own = run(world(job(), job("b", 1, arrives=BEGIN + timedelta(days=3)), idle_s=600.0))
    assert (own.sessions[0].ended - BEGIN).total_seconds() == seconds(own, "a") + 600


def test_the_policy_sees_what_was_believed_until_the_job_has_shown_its_speed() -> None:
    """Estimates, not truths; after a first session what remains follows from the job's own progress."""
    seen: list[tuple[float | None, float | None, float]] = []

    def policy(snapshot: Snapshot, now: datetime) -> list[Action]:
        one = snapshot.waiting[0]
        believed = one.estimate.seconds if one.estimate else None
        seen.append((believed, one.remaining_t4_s, one.remaining))
        return first_fit(snapshot, now)

    wrong = job(hours=3, estimate=Estimate(seconds=60.0), pace={"T4": 0.5}, every_s=1e9)
    run(world(wrong, at=[platform(limit_s=7200.0)]), policy=policy)
    worked = (7200 - 30 - 160) * 0.5
    assert seen[0] == (60.0, None, 1.0)
    # at the speed of the table the rest would take the same time on a T4 as it will at its own
    assert seen[1] == (60.0, (10800 - worked) / 0.5, (10800 - worked) / 10800)


def test_a_job_that_reports_nothing_teaches_nothing() -> None:
    """Without progress only the estimate is known."""
    seen: list[float | None] = []

    def policy(snapshot: Snapshot, now: datetime) -> list[Action]:
        seen.append(snapshot.waiting[0].remaining_t4_s)
        assert snapshot.waiting[0].remaining == 1.0
        return first_fit(snapshot, now)

    run(world(job(hours=3, reports=False), at=[platform(limit_s=7200.0)]), policy=policy)
    assert seen == [None, None]


def test_work_that_was_done_before_is_not_done_again() -> None:
    """A job that is three quarters through takes the last quarter."""
    assert seconds(run(world(job(done=0.75, every_s=1e9)))) == 160 + 1800


def test_young_s_interval_follows_the_losses_that_are_believed() -> None:
    """sqrt(2 save / rate), the rate with one loss in 12 h as prior; ten minutes where nothing is lost."""
    assert work.interval(30, 0, 0) == pytest.approx(math.sqrt(2 * 30 * 12 * HOUR))
    assert work.interval(30, 11, 108 * HOUR) == pytest.approx(math.sqrt(2 * 30 * 10 * HOUR))
    assert work.interval(30, 0, math.inf) == 600
    assert work.interval(1, 1000, HOUR) == 360


@pytest.mark.parametrize("work_s", [0.0, 1.0, 1799.0, 1800.0, 1801.0, 5400.0, 7199.5])
def test_work_done_after_the_whole_time_is_the_work(work_s: float) -> None:
    """`after` and `whole` are two views of one thing."""
    worked, saved = work.after(work.whole(work_s, 1800, 30), 1800, 30)
    assert worked == pytest.approx(work_s)
    assert saved <= worked


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        (WindowKind.FIXED_WEEKLY, 1 - 1.25 / 7),
        (WindowKind.MONTHLY, 1 - 1.25 / 31),
        (WindowKind.ROLLING, 0.0),
    ],
)
def test_used_evenly_leaves_what_the_rest_of_the_window_needs(
    kind: WindowKind, left: float
) -> None:
    """On Wednesday 06:00, 1.25 days into the week and the month; a rolling window gives back as it was used."""
    begin = datetime(2026, 12, 2, 6, tzinfo=UTC)
    window = Window(kind=kind, limit_s=70 * HOUR, reset_offset_s=86400)
    pool = used_evenly("there", "me", Pool(name="gpu", window=window), begin)
    purse = Purse(platform(), pool)
    assert purse.balance(begin).left_s == pytest.approx(left * 70 * HOUR)
    if kind is WindowKind.ROLLING:
        later = purse.balance(begin + timedelta(days=1)).left_s
        assert later == pytest.approx(10 * HOUR)

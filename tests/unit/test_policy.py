"""Who comes first, what is kept for whom, what losses cost, and which slots pass on: the rules behind placement."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer, WindowKind
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator.model import Assign, Move, Place, Running, Snapshot, Waiting
from freegpu.orchestrator.placement import decide, explain
from tests.unit.test_placement import HOUR, NOW, balance, first, job, offer, place, slot, starts

DAY = 24 * HOUR


def hours(name: str, length: float, **fields: Any) -> Waiting:
    return job(name, fields.pop("seq", 1), estimate=Estimate(seconds=length * HOUR), **fields)


def metered(platform: str, card: str = "T4", *, most: int = 1, **quota: Any) -> Place:
    """A platform with a weekly quota and sessions of twelve hours."""
    return place(
        offer(platform, card, pool="gpu", session_limit_s=12 * HOUR),
        balances=(balance(platform, **quota),),
        most=most,
    )


# --- who ----------------------------------------------------------------------------------------------------


def test_the_shorter_job_comes_first_whoever_came_before() -> None:
    """Each hour that a short job waits for a long one is an hour more on average."""
    assert first(hours("long", 9, seq=1), hours("short", 1, seq=2)) == "short"


def test_ten_steps_of_priority_weigh_as_much_as_half_the_length() -> None:
    """Priority is a weight, not a wall: 10 doubles it."""
    short = hours("short", 2, seq=1)
    assert first(short, hours("long", 3.9, seq=2, priority=10)) == "long"
    assert first(short, hours("long", 4.1, seq=2, priority=10)) == "short"


def test_three_days_of_waiting_count_as_half_the_length() -> None:
    """Whoever waits rises."""
    fresh = hours("fresh", 2, seq=2)
    old = NOW - timedelta(hours=72)
    assert first(fresh, hours("old", 3.9, created_at=old)) == "old"
    assert first(fresh, hours("old", 4.1, created_at=old)) == "fresh"


def test_nobody_starves_behind_a_stream_of_short_jobs() -> None:
    """One slot, a new short job at every hour: the long job gets it after two weeks at the latest."""
    where = place(offer("one", session_limit_s=12 * HOUR))
    start, long = NOW, hours("long", 90, created_at=NOW)
    for hour in range(15 * 24):
        now = start + timedelta(hours=hour)
        stream = hours(f"s{hour}", 0.05, seq=2 + hour, created_at=now, priority=50)
        ((chosen,),) = [
            [a.assignments[0].job]  # type: ignore[union-attr]
            for a in decide(Snapshot(waiting=(long, stream), places=(where,)), now)
        ]
        if chosen == "long":
            assert timedelta(hours=hour) <= timedelta(days=14)
            return
    raise AssertionError("it never got the slot")


def test_for_the_goal_makespan_whoever_has_the_fewest_homes_comes_first_then_the_longest() -> None:
    """What can go anywhere fills the gaps."""
    both = (place(offer("small", "T4")), place(offer("big", "A100")))
    picky = hours("picky", 1, seq=3, needs=Needs(vram_gb=30))
    jobs = (hours("short", 1, seq=1), hours("long", 9, seq=2), picky)
    got = {a[0]: a[2] for a in starts(Snapshot(waiting=jobs, places=both, goal="makespan"))}
    assert got == {"big": ("picky",), "small": ("long",)}


# --- what is kept -------------------------------------------------------------------------------------------

BIG = Needs(vram_gb=20)


def chosen(
    *jobs: Waiting, places: tuple[Place, ...], lately: tuple[Needs, ...] = (), came: int = 1
) -> list[str]:
    found = starts(Snapshot(waiting=jobs, places=places, lately=lately, came=came))
    return [platform for platform, _, _ in found]


def test_the_only_home_of_some_jobs_keeps_an_even_share_for_them() -> None:
    """Half the week is left, so half the quota is kept for what fits nowhere else; the rest is free to all."""
    big = metered("big", "L4", limit_h=30, used_h=12, resets_h=84)
    other = metered("other", "T4", limit_h=30, used_h=30, resets_h=84)
    job_of = [hours("a", 2), hours("b", 8)]
    # 18 h are left, 15 of them kept: an L4 needs less than 3 h for the first, and more for the second
    assert chosen(job_of[0], places=(big, other), lately=(BIG,)) == ["big"]
    assert chosen(job_of[1], places=(big, other), lately=(BIG,)) == []
    why = explain(
        job_of[1], Snapshot(waiting=(job_of[1],), places=(big, other), lately=(BIG,), came=1), NOW
    )
    assert any(
        "15 h of its quota are kept for jobs that fit nowhere else until it comes back in 3 d 12 h"
        in score.why
        for score in why
    )


def test_rare_memory_is_kept_before_anybody_asks_for_it_while_jobs_keep_coming() -> None:
    """Whoever needs it comes when others have spent it. Where jobs come one in a while, none is made to wait for nobody."""
    big = metered("big", "L4", limit_h=30, used_h=24, resets_h=84)
    other = metered("other", "T4", limit_h=30, used_h=30, resets_h=84)
    mine, line = hours("a", 4), tuple(hours(f"b{n}", 40, seq=n + 2) for n in range(9))
    assert chosen(mine, places=(big, other), came=2) == ["big"]
    assert chosen(mine, places=(big, other), came=3) == []
    assert chosen(mine, *line, places=(big, other), came=3) == []
    assert chosen(mine, *line, places=(big, other), came=2) == ["big"], "the end of a queue"
    needs = tuple(replace(one, needs=BIG) for one in line)
    assert chosen(*needs, places=(big, other), came=9) == ["big"]


def test_a_lone_job_takes_rare_memory_also_where_it_could_begin_elsewhere() -> None:
    """Nobody asked for what would be kept; while jobs keep coming it leaves it alone."""
    big = metered("big", "L4", limit_h=30, used_h=24, resets_h=84)
    other = metered("other", "T4", most=3)
    assert chosen(hours("a", 4), places=(big, other), came=1) == ["big"]
    assert chosen(hours("a", 4), places=(big, other), came=3) == ["other"]


def test_nothing_is_kept_for_the_past_once_nobody_has_submitted_for_days() -> None:
    """The last jobs of a queue stood before credits that were kept for those who had asked a week ago."""
    big = metered("big", "L4", limit_h=30, used_h=12, resets_h=84)
    other = metered("other", "T4", limit_h=30, used_h=30, resets_h=84)
    for came, gets in ((1, []), (0, ["big"])):
        assert chosen(hours("b", 8), places=(big, other), lately=(BIG,), came=came) == gets
    waits = hours("c", 40, needs=BIG, seq=2, priority=-100)
    both = Snapshot(waiting=(hours("b", 8), waits), places=(big, other))
    assert [jobs for _, _, jobs in starts(both)] == [("c",)], "it is kept for who waits"


def test_a_live_session_is_kept_open_by_no_job_that_could_go_elsewhere() -> None:
    """What is left of the quota is as scarce in a session that lives; beside one who keeps it open anyway it is free."""
    left: dict[str, Any] = {"limit_h": 10.0, "used_h": 5.0, "resets_h": 84}
    free = slot("s1", 1, 5 * HOUR, platform="paid", card="L4", pool="gpu")
    home = metered("other", "T4", used_h=30)
    only, mine = hours("only", 40, needs=BIG, seq=9), hours("a", 4)
    shown = metered("paid", "L4", **left)
    lives = Snapshot(
        waiting=(mine,), free_slots=(free,), places=(replace(shown, open_sessions=1), home)
    )
    assert [a.session for a in decide(lives, NOW) if isinstance(a, Assign)] == ["s1"]
    wanted = replace(lives, lately=(BIG,), came=1)
    assert decide(wanted, NOW) == []
    beside = Running(job=only, session="s1", slot=0, offer=free.offer, held_s=60.0, left_s=5 * HOUR)
    busy = replace(wanted, running=(beside,))
    assert [a.session for a in decide(busy, NOW) if isinstance(a, Assign)] == ["s1"]


def test_a_long_job_that_is_refused_a_live_slot_shuts_out_no_short_one() -> None:
    """The slot is free for what ends before its neighbour does, whoever of the same kind asked in vain before."""
    left: dict[str, Any] = {"limit_h": 10.0, "used_h": 9.0, "resets_h": 84}
    free = slot("s1", 1, 11 * HOUR, platform="paid", card="L4", pool="gpu")
    shown = replace(metered("paid", "L4", **left), open_sessions=1)
    neighbour = Running(
        job=hours("only", 40, needs=BIG, seq=9),
        session="s1",
        slot=0,
        offer=free.offer,
        held_s=60.0,
        left_s=6 * HOUR,
    )
    first, then = hours("long", 30, seq=1, priority=100), hours("short", 4, seq=2)
    snapshot = Snapshot(
        waiting=(first, then),
        free_slots=(free,),
        places=(shown, metered("other", "T4", used_h=30)),
        running=(neighbour,),
        lately=(BIG,),
        came=1,
    )
    given = [a.assignment.job for a in decide(snapshot, NOW) if isinstance(a, Assign)]
    assert given == ["short"]


def test_what_fits_nowhere_else_is_never_locked_out() -> None:
    """A reserve is for such jobs, not against them."""
    big = metered("big", "L4", limit_h=30, used_h=26, resets_h=84)
    other = metered("other", "T4")
    assert chosen(hours("a", 4, needs=BIG), places=(big, other)) == ["big"]


@pytest.mark.parametrize("length", [None, 0.2, 4, 11, 400])
@pytest.mark.parametrize("used", [0.0, 12.0, 26.0])
def test_quota_that_nobody_else_needs_is_never_denied_a_lone_job(
    length: float | None, used: float
) -> None:
    """Nothing is kept for nobody: whatever is left and worth a start goes to the only job there is."""
    where = metered("big", "L4", limit_h=30, used_h=used, resets_h=84)
    alone = job("a") if length is None else hours("a", length)
    assert chosen(alone, places=(where,)) == ["big"]


def test_a_wish_of_the_user_makes_no_platform_scarce() -> None:
    """A job that is pinned to a platform could run elsewhere."""
    a = metered("a", used_h=12, resets_h=84)
    b = metered("b", used_h=30, resets_h=84)
    pinned = Needs(platforms=("a",))
    assert chosen(hours("x", 4), places=(a, b), lately=(pinned,)) == ["a"]


def test_quota_that_would_expire_is_free_to_all() -> None:
    """Eight hours to the reset and twelve left: one session at a time cannot burn them."""
    big = metered("big", "L4", limit_h=30, used_h=18, resets_h=8)
    other = metered("other", "T4", limit_h=30, used_h=30, resets_h=8)
    assert chosen(hours("a", 6), places=(big, other), lately=(BIG,)) == ["big"]


def test_credits_that_stay_are_for_urgent_jobs_and_those_with_no_other_home() -> None:
    """They will still be there when somebody needs them."""
    credits = metered("paid", "L4", kind=WindowKind.PREPAID, resets_h=None)
    spent = metered("weekly", "T4", used_h=30)
    calm, due = hours("a", 2), hours("b", 2, deadline=NOW + timedelta(hours=3))
    assert chosen(calm, places=(credits, spent)) == []
    assert chosen(due, places=(credits, spent)) == ["paid"]
    assert chosen(hours("c", 2, needs=BIG), places=(credits, spent)) == ["paid"]
    assert chosen(calm, places=(credits,)) == ["paid"], "it has no other home"
    away = replace(spent, blocked_until=NOW + timedelta(hours=1))
    assert chosen(calm, places=(credits, away)) == ["paid"], "that is no home now"


def test_minutes_a_day_are_no_other_home() -> None:
    """An H200 for five minutes is many times faster than an L4, and does less in a month: the credits are for such jobs.

    What ends in the minutes still goes where it ends first.
    """
    credits = metered("paid", "L4", kind=WindowKind.PREPAID, resets_h=None)
    minutes = metered("zero", "H200", kind=WindowKind.MONTHLY, limit_h=5 / 60, resets_h=24)
    long, short = hours("a", 12, needs=BIG), hours("b", 0.2, needs=BIG, grace_s=15.0)
    assert chosen(long, places=(credits, minutes)) == ["paid"]
    assert chosen(short, places=(credits, minutes)) == ["zero"]


def test_a_deadline_presses_before_only_the_fastest_card_could_meet_it() -> None:
    """Of two cards the middling one is the slower: whoever waits for the faster may wait in vain."""
    credits = metered("paid", "L4", kind=WindowKind.PREPAID, resets_h=None)
    fast = metered("fast", "H200", used_h=30)
    due = hours("a", 12, needs=BIG, deadline=NOW + timedelta(hours=14))
    assert chosen(due, places=(credits, fast)) == ["paid"]


def test_a_processor_is_no_other_home() -> None:
    """Twenty times slower is not a place to send a job that may have a card."""
    credits = metered("paid", "T4", kind=WindowKind.PREPAID, resets_h=None)
    here = place(offer("local", "CPU"))
    assert "paid" in chosen(hours("a", 2), places=(credits, here))


def test_the_price_of_quota_breaks_what_time_leaves_nearly_open() -> None:
    """A session that takes a week to earn back must be that much quicker, where others want the quota too."""
    scarce = metered("scarce", "T4", limit_h=4, resets_h=167)
    free = place(offer("own", "T4", start_delay_s=900.0))
    mine, others = hours("a", 1), tuple(hours(f"b{n}", 20 + n, seq=n + 2) for n in range(5))
    assert chosen(mine, *others, places=(scarce, free))[0] == "own"
    assert chosen(mine, places=(scarce, free)) == ["scarce"], "a lone job pays nothing"


def test_of_a_session_with_two_cards_each_job_pays_half() -> None:
    """Others fill the second slot, so a pair of T4 does more for an hour of quota than a card that is a little faster."""
    single = offer("weekly", "P100", pool="gpu")
    double = offer("weekly", "T4", count=2, pool="gpu")
    both = place(
        single, double, platform="weekly", balances=(balance("weekly", limit_h=30, resets_h=100),)
    )
    mine, others = hours("a", 4), tuple(hours(f"b{n}", 20 + n, seq=n + 2) for n in range(5))

    def card(*waiting: Waiting) -> str:
        return starts(Snapshot(waiting=waiting, places=(both,)))[0][1]

    assert card(mine) == "P100", "a lone job goes where it ends first"
    assert card(mine, *others) == "T4"


def test_a_rest_of_quota_is_not_worth_a_start_unless_the_job_ends_in_it() -> None:
    """A rolling quota comes back bit by bit; each bit would be mostly start."""
    bit = metered("bit", kind=WindowKind.ROLLING, limit_h=30, used_h=29.5, resets_h=1)
    assert chosen(hours("a", 5), places=(bit,)) == []
    assert chosen(hours("a", 0.2), places=(bit,)) == ["bit"]
    (score,) = explain(hours("a", 5), Snapshot(waiting=(hours("a", 5),), places=(bit,)), NOW)
    assert "too little to be worth a start; more in 1 h" in score.why


@pytest.mark.parametrize("minutes", [4, 10, 25, 90])
def test_where_minutes_are_all_there_is_minutes_are_worth_a_start(minutes: float) -> None:
    """ZeroGPU gives minutes a day: a platform whose whole quota is small is used, however long the job is."""
    small = metered("small", limit_h=minutes / 60, used_h=0, resets_h=84)
    grace = 15.0
    assert chosen(hours("long", 30, grace_s=grace), places=(small,)) == ["small"]
    assert chosen(job("unknown", grace_s=grace), places=(small,)) == ["small"]
    spent = metered("small", limit_h=minutes / 60, used_h=0.95 * minutes / 60, resets_h=84)
    assert chosen(hours("long", 30, grace_s=grace), places=(spent,)) == []


def test_a_free_slot_costs_the_time_for_which_it_keeps_the_session_open() -> None:
    """Beside a slot that runs for ten hours anyway an hour is free; alone it is not."""
    free = slot("s1", 1, 11 * HOUR, platform="metered", pool="gpu")
    quota = place(platform="metered", balances=(balance("metered", limit_h=10, resets_h=100),))
    other = place(offer("own", "T4", start_delay_s=600.0))
    a = hours("a", 2)
    beside = Running(
        job=hours("b", 10),
        session="s1",
        slot=0,
        offer=free.offer,
        held_s=60.0,
        left_s=11 * HOUR,
    )
    far = tuple(replace(beside, job=hours(f"c{n}", 10), session=f"far{n}") for n in range(5))
    busy = Snapshot(waiting=(a,), free_slots=(free,), places=(quota, other), running=(beside, *far))
    assert [getattr(action, "session", "") for action in decide(busy, NOW)] == ["s1"]
    alone = replace(busy, running=far)
    assert chosen_of(alone) == ["own"]


def chosen_of(snapshot: Snapshot) -> list[str]:
    return [platform for platform, _, _ in starts(snapshot)]


# --- losses -------------------------------------------------------------------------------------------------


def test_a_platform_that_loses_sessions_finishes_later() -> None:
    """Young and Daly: saves, work done twice and new starts take their share. By hand for one loss an hour."""
    steady = place(offer("steady"))
    shaky = place(offer("shaky"), losses=11.0, exposure_s=0.0)
    every = math.sqrt(2 * 30 * HOUR)
    useful = 1 / (1 + 30 / every + (1 / HOUR) * every / 2)
    (score,) = explain(hours("a", 5), Snapshot(places=(shaky,)), NOW)
    assert score.finish_s == pytest.approx(5 * HOUR / useful)
    assert chosen(hours("a", 5), places=(shaky, steady)) == ["steady"]


def test_losses_are_learned_and_the_prior_fades() -> None:
    """A platform that never lost anything in a month is trusted more than one nobody knows."""
    new = place(offer("new"), exposure_s=0.0)
    known = place(offer("known"), exposure_s=30 * DAY)
    assert chosen(hours("a", 50), places=(new, known)) == ["known"]


# --- slots that pass on -------------------------------------------------------------------------------------


def lane(length: float, **fields: Any) -> Running:
    base: dict[str, Any] = {
        "job": hours("long", length),
        "session": "s1",
        "slot": 1,
        "offer": offer("kaggle", pool="gpu"),
        "held_s": HOUR,
        "left_s": 10 * HOUR,
    }
    return Running(**(base | fields))


def moves(running: Running, *jobs: Waiting, goal: Any = "jct") -> list[Move]:
    snapshot = Snapshot(waiting=jobs, running=(running,), goal=goal)
    return [action for action in decide(snapshot, NOW) if isinstance(action, Move)]


def test_a_slot_passes_to_a_job_three_times_shorter() -> None:
    """It says whose slot, to whom, and with which figures."""
    (move,) = moves(lane(6), hours("short", 2))
    assert (move.session, move.assignment.slot, move.victim) == ("s1", 1, "long")
    assert move.assignment.job == "short"
    assert move.why == "short needs the slot for 2 h, long for 6 h more"
    assert not moves(lane(5.9), hours("short", 2))


def test_the_only_home_of_a_job_passes_to_no_job_that_has_others() -> None:
    """Its quota would be spent on work that runs elsewhere, and the job would wait for the next month."""
    paid, weekly = metered("paid", "L4", limit_h=10, used_h=9.9), metered("weekly", used_h=30)
    lane_of = lane(20, job=hours("long", 20, needs=BIG), offer=paid.offers[0])

    def moved(newcomer: Waiting, at: Running) -> list[str]:
        snapshot = Snapshot(waiting=(newcomer,), running=(at,), places=(paid, weekly))
        return [a.assignment.job for a in decide(snapshot, NOW) if isinstance(a, Move)]

    assert moved(hours("short", 1), lane_of) == []
    assert moved(hours("short", 1, needs=BIG), lane_of) == ["short"]
    assert moved(hours("short", 1), replace(lane_of, job=hours("long", 20))) == ["short"]
    free = replace(lane_of, offer=replace(lane_of.offer, pool=""))
    assert moved(hours("short", 1), free) == ["short"], "nothing is spent there"


def test_only_one_job_gets_it() -> None:
    """The shortest."""
    (move,) = moves(lane(9), hours("b", 2, seq=1), hours("c", 1, seq=2))
    assert move.assignment.job == "c"


def test_weight_counts_when_a_slot_passes() -> None:
    """An important job keeps its slot longer, and gets one sooner."""
    heavy = lane(6, job=hours("long", 6, priority=10))
    assert not moves(heavy, hours("short", 2))
    assert moves(lane(4), hours("short", 2, priority=10))


def test_a_deadline_in_danger_needs_no_factor() -> None:
    """Shorter is enough; a victim whose own deadline is alive is left alone."""
    due = hours("due", 2, deadline=NOW + timedelta(hours=3))
    # danger is judged on cards that are to be had, so the platform offers one that is full
    full = place(offer("kaggle", available=0))
    snapshot = Snapshot(waiting=(due,), running=(lane(3),), places=(full,))
    assert [type(action) for action in decide(snapshot, NOW)] == [Move]
    alive = lane(9, job=hours("long", 9, deadline=NOW + timedelta(hours=20)))
    assert not moves(alive, hours("short", 1))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"held_s": 1700.0}, "it has just begun"),
        ({"left_s": 2 * HOUR}, "the newcomer would not end within the session"),
        ({"offer": replace(offer("kaggle"), sealed=True)}, "no ticket reaches it"),
        ({"offer": offer("kaggle", card="CPU")}, "the newcomer needs a card"),
    ],
)
def test_a_slot_stays_with_its_job(fields: dict[str, Any], why: str) -> None:
    """Each for its own reason."""
    newcomer = hours("short", 2, needs=Needs(accelerators=(Accelerator(card="T4"),)))
    assert moves(lane(50), newcomer), "it would pass on otherwise"
    assert not moves(lane(50, **fields), newcomer), why


def test_for_the_goal_makespan_no_slot_passes() -> None:
    """The sum of the work stays the same, and the restart is lost."""
    assert not moves(lane(50), hours("short", 1), goal="makespan")


def test_a_job_that_finds_a_place_takes_no_slot_away() -> None:
    """Only those that would have to wait."""
    snapshot = Snapshot(
        waiting=(hours("short", 1),), running=(lane(50),), places=(place(offer("own")),)
    )
    assert not [action for action in decide(snapshot, NOW) if isinstance(action, Move)]


def test_a_platform_that_only_a_person_starts_is_no_home() -> None:
    """Nobody knows whether the click comes: what is kept for whom does not depend on it."""
    credits = metered("paid", "T4", kind=WindowKind.PREPAID, resets_h=None)
    click = place(
        Offer(platform="colab", account="me", card="T4"),
        platform="colab",
        capabilities=Capabilities(attended=True),
    )
    assert chosen(hours("a", 2), places=(credits, click)) == ["paid"]

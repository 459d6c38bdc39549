"""Who runs where: filters, expected finish, order, quota, and the sentence for each place."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator.model import (
    Assign,
    Balance,
    FigureSource,
    FreeSlot,
    Move,
    Place,
    Running,
    Score,
    Snapshot,
    StartSession,
    Waiting,
)
from freegpu.orchestrator.placement import decide, explain
from freegpu.orchestrator.record import Outcome, brief, from_json, to_json
from freegpu.orchestrator.witness import Witness

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
HOUR = 3600.0
T4 = Accelerator(card="T4")


def job(name: str = "a", seq: int = 1, **fields: Any) -> Waiting:
    """An hour on a T4, any card, grace of two minutes."""
    base: dict[str, Any] = {
        "id": name,
        "seq": seq,
        "name": name,
        "needs": Needs(),
        "estimate": Estimate(seconds=HOUR),
        "priority": 0,
        "deadline": None,
        "created_at": NOW,
    }
    return Waiting(**(base | fields))


def offer(platform: str = "kaggle", card: str = "T4", **fields: Any) -> Offer:
    return Offer(platform=platform, account="me", card=card, **fields)


def balance(
    platform: str = "kaggle",
    *,
    used_h: float = 0.0,
    limit_h: float | None = 30.0,
    kind: WindowKind = WindowKind.FIXED_WEEKLY,
    resets_h: float | None = 48.0,
) -> Balance:
    limit = None if limit_h is None else limit_h * HOUR
    return Balance(
        platform=platform,
        account="me",
        pool="gpu",
        window=Window(kind=kind, limit_s=limit),
        limit_s=limit,
        used_s=used_h * HOUR,
        reserved_s=0.0,
        resets_at=None if resets_h is None else NOW + timedelta(hours=resets_h),
        source=FigureSource.LEDGER,
    )


def place(*offers: Offer, **fields: Any) -> Place:
    base: dict[str, Any] = {
        "platform": offers[0].platform if offers else "kaggle",
        "account": "me",
        "capabilities": Capabilities(max_concurrent=fields.pop("most", 1)),
        "offers": offers,
        "open_sessions": 0,
        "balances": (),
    }
    return Place(**(base | fields))


def slot(
    session: str = "s-live", index: int = 0, left_s: float | None = None, **fields: Any
) -> FreeSlot:
    return FreeSlot(session=session, slot=index, offer=offer(**fields), left_s=left_s)


def starts(snapshot: Snapshot) -> list[tuple[str, str, tuple[str, ...]]]:
    """(platform, card, jobs) of every session that would be started."""
    return [
        (a.offer.platform, a.offer.card, tuple(x.job for x in a.assignments))
        for a in decide(snapshot, NOW)
        if isinstance(a, StartSession)
    ]


def only(waiting: Waiting, where: Place | FreeSlot) -> Score:
    """The one score of a job for one place or slot; decide() must agree with it."""
    if isinstance(where, Place):
        snapshot = Snapshot(waiting=(waiting,), places=(where,))
    else:
        snapshot = Snapshot(waiting=(waiting,), free_slots=(where,))
    (score,) = explain(waiting, snapshot, NOW)
    assert bool(decide(snapshot, NOW)) is score.feasible
    return score


# --- hard filters, each with its sentence -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "given", "sentence"),
    [
        (
            Needs(platforms=("colab", "local")),
            offer(),
            "kaggle T4: the job allows only colab or local",
        ),
        (Needs(accelerators=(Accelerator(card="L4"),)), offer(), "kaggle T4: the job takes L4"),
        (
            Needs(accelerators=(Accelerator(card="CPU"),)),
            offer(),
            "kaggle T4: the job takes CPU",
        ),
        (
            Needs(accelerators=(Accelerator(card="T4", count=2),)),
            offer(count=2),
            "kaggle T4 x2: the job wants 2 x T4 at once, and a slot is one card",
        ),
        (
            Needs(vram_gb=40),
            offer("lightning", "L4"),
            "lightning L4: needs 40 GB, the card has 24 GB",
        ),
        (
            Needs(vram_gb=12),
            offer("local", "CPU"),
            "local CPU: the job needs a card, and this is a CPU",
        ),
        (
            Needs(accelerators=(T4,)),
            offer("local", "CPU"),
            "local CPU: the job needs a card, and this is a CPU",
        ),
        (
            Needs(),
            offer("kaggle", "tpu-v5e-8"),
            "kaggle tpu-v5e-8: such a chip must be asked for by name",
        ),
        (
            Needs(memory_gb=64),
            offer(memory_gb=30),
            "kaggle T4: needs 64 GB of main memory, it has 30 GB",
        ),
        (Needs(cpus=8), offer(cpus=4), "kaggle T4: needs 8 CPUs, it has 4"),
        (Needs(disk_gb=100), offer(disk_gb=20), "kaggle T4: needs 100 GB of disk, it has 20 GB"),
    ],
)
def test_a_place_that_does_not_fit_is_refused_with_its_figures(
    needs: Needs, given: Offer, sentence: str
) -> None:
    """Each hard filter has its own sentence, and nothing is started."""
    score = only(job(needs=needs), place(given))
    assert not score.feasible
    assert score.finish_s is None
    assert score.why == sentence


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (
            place(offer(), blocked_until=NOW + timedelta(minutes=5), blocked_why="it said 429"),
            "kaggle T4: left alone for 5 min: it said 429",
        ),
        (place(offer(), open_sessions=2, most=2), "kaggle T4: 2 of 2 sessions open"),
        (place(offer(available=0)), "kaggle T4: none of these is to be had at the moment"),
        (
            place(offer(session_limit_s=240, start_delay_s=90)),
            "kaggle T4: a session lasts 4 min, and the job needs 4 min 30 s to start, work and save",
        ),
        (
            place(offer(pool="gpu", start_delay_s=60), balances=(balance(used_h=29.95),)),
            (
                "kaggle T4: 3 min of 30 h quota left, and the job needs 4 min to start, work and save; "
                "more in 48 h"
            ),
        ),
        (place(platform="colab"), "colab: offers nothing now"),
    ],
)
def test_a_place_that_cannot_be_had_now_says_why(where: Place, sentence: str) -> None:
    """Blocked, full, sold out, too short, out of quota, nothing on offer."""
    score = only(job(), where)
    assert not score.feasible
    assert score.why == sentence


def test_a_platform_that_refused_the_job_is_avoided() -> None:
    """A refusal counts for new sessions and for free slots there, and for that job alone."""
    shy = job("shy", 1, avoid={"kaggle": "no space on its disk"})
    assert only(shy, place(offer())).why == "kaggle T4: avoided for now: no space on its disk"
    assert not only(shy, slot()).feasible
    assert only(job("other"), place(offer())).feasible


def test_what_a_platform_does_not_tell_is_no_reason_to_refuse() -> None:
    """Memory, CPUs and disk of 0 are not known, and a card in no table may have memory enough."""
    needs = Needs(memory_gb=64, cpus=8, disk_gb=100)
    assert only(job(needs=needs), place(offer())).feasible
    score = only(job(needs=Needs(vram_gb=40)), place(offer(card="Banana 9000")))
    assert score.feasible
    assert score.why.endswith("the card is in no table and counts as half a T4")


def test_a_driver_that_reports_less_than_the_label_does_not_lock_a_card_out() -> None:
    """nvidia-smi says 15 GB for a T4 of 16 GB; a slice of 8 GB is 8 GB."""
    assert only(job(needs=Needs(vram_gb=16)), place(offer(vram_gb=15))).feasible
    assert not only(job(needs=Needs(vram_gb=16)), place(offer(vram_gb=8))).feasible


def test_a_session_that_a_person_must_start_is_explained_and_never_started() -> None:
    """freegpu does not click; a free slot of such a session, once it lives, is as good as any."""
    attended = replace(place(offer("colab")), capabilities=Capabilities(attended=True))
    score = only(job(), attended)
    assert not score.feasible
    assert score.finish_s == pytest.approx(HOUR)
    assert "a person must start the session: freegpu cell colab" in score.why
    free = slot(platform="colab", left_s=2 * HOUR)
    snapshot = Snapshot(waiting=(job(),), places=(attended,), free_slots=(free,))
    (action,) = decide(snapshot, NOW)
    assert isinstance(action, Assign)


def test_a_block_does_not_close_what_lives_already() -> None:
    """A platform that refuses new sessions may have a live one with a free slot."""
    shut = place(offer(), blocked_until=NOW + timedelta(hours=1))
    snapshot = Snapshot(waiting=(job(),), places=(shut,), free_slots=(slot(),))
    (action,) = decide(snapshot, NOW)
    assert isinstance(action, Assign)
    assert action.session == "s-live"


def test_a_block_that_has_passed_is_none() -> None:
    """Only the future blocks."""
    assert only(job(), place(offer(), blocked_until=NOW)).feasible


# --- expected finish ----------------------------------------------------------------------------------------


def finish(waiting: Waiting, where: Place | FreeSlot) -> tuple[float, int]:
    """Expected finish, to the second, and sessions."""
    score = only(waiting, where)
    assert score.feasible
    assert score.finish_s is not None
    return round(score.finish_s, 3), score.sessions


def test_a_job_that_fits_one_session_takes_the_start_and_the_work() -> None:
    """Two hours on a T4 after three minutes of start."""
    long = job(estimate=Estimate(seconds=2 * HOUR))
    assert finish(long, place(offer(start_delay_s=180))) == (2 * HOUR + 180, 1)


def test_speed_counts_and_an_estimate_is_for_the_card_it_names() -> None:
    """An hour on a V100 is more than an hour of work for a T4."""
    fast = finish(job(), place(offer(card="V100")))[0]
    slow = finish(job(estimate=Estimate(seconds=HOUR, card="V100")), place(offer()))[0]
    assert fast * slow == pytest.approx(HOUR * HOUR, rel=1e-5)
    assert fast < HOUR / 2


def test_a_job_longer_than_a_session_pays_the_start_and_the_grace_again() -> None:
    """In sessions of 2 h with 6 min start and 2 min grace it does 112 min each: 5 h are 2 of these and 76 min."""
    long = job(estimate=Estimate(seconds=5 * HOUR))
    where = place(offer(start_delay_s=360, session_limit_s=2 * HOUR))
    took, sessions = finish(long, where)
    assert sessions == 3
    assert took == pytest.approx(4 * HOUR + 360 + (300 - 2 * 112) * 60)


def test_a_job_longer_than_the_quota_waits_for_its_refill() -> None:
    """4 h left of 10, reset in 48 h: 4 h now less start and grace, the rest from hour 48."""
    long = job(estimate=Estimate(seconds=8 * HOUR), grace_s=0.0)
    quota = balance(limit_h=10, used_h=6)
    where = place(offer(pool="gpu"), balances=(quota,))
    assert finish(long, where) == (52 * HOUR, 2)
    assert "waiting 44 h for quota" in only(long, where).why


def test_a_job_of_many_windows_is_walked_through_all_of_them() -> None:
    """100 h with 10 h a week: nine whole weeks after the first reset, the last of them for 10 h."""
    long = job(estimate=Estimate(seconds=100 * HOUR), grace_s=0.0)
    where = place(offer(pool="gpu"), balances=(balance(limit_h=10),))
    assert finish(long, where) == ((48 + 8 * 168 + 10) * HOUR, 10)


def test_quota_is_charged_by_rate() -> None:
    """At rate 2 four hours of quota are two hours of session."""
    long = job(estimate=Estimate(seconds=3 * HOUR), grace_s=0.0)
    where = place(offer(pool="gpu", rate=2.0), balances=(balance(limit_h=4),))
    assert finish(long, where) == (49 * HOUR, 2)


def test_a_quota_that_does_not_come_back_covers_a_part_and_says_so() -> None:
    """Such a place is taken only when no other finishes the job; it has no finish of its own."""
    long = job(estimate=Estimate(seconds=4 * HOUR), grace_s=0.0)
    prepaid = balance("lightning", limit_h=1, kind=WindowKind.PREPAID, resets_h=None)
    where = place(offer("lightning", pool="gpu"), balances=(prepaid,))
    score = only(long, where)
    assert score.feasible
    assert score.finish_s is None
    assert "its quota covers 25 % of the work" in score.why
    both = Snapshot(waiting=(long,), places=(where, place(offer("zoo", "M4000"))))
    assert starts(both) == [("zoo", "M4000", ("a",))]


def test_what_a_job_learned_about_itself_beats_its_estimate() -> None:
    """remaining_t4_s is measured; the estimate was a guess."""
    learned = job(estimate=Estimate(seconds=9 * HOUR), remaining_t4_s=600.0, remaining=0.5)
    assert finish(learned, place(offer()))[0] == 600.0


def test_what_is_done_is_not_done_again() -> None:
    """A quarter that remains takes a quarter of the estimate."""
    assert finish(job(remaining=0.25), place(offer()))[0] == HOUR / 4


def test_a_job_of_unknown_length_is_ranked_as_an_hour_on_a_t4_and_says_so() -> None:
    """The finish is not stated as if it were known."""
    score = only(job(estimate=None), place(offer()))
    assert score.finish_s is None
    assert "length not known; if 1 h on a T4, it would finish in 1 h over 1 session" in score.why
    both = Snapshot(
        waiting=(job(estimate=None),), places=(place(offer("a", "T4")), place(offer("b", "V100")))
    )
    assert starts(both) == [("b", "V100", ("a",))]


def test_the_sentence_holds_finish_sessions_and_quota() -> None:
    """One sentence with the figures that count."""
    where = place(
        offer(count=2, pool="gpu", start_delay_s=600, session_limit_s=12 * HOUR),
        balances=(balance(used_h=7 + 1 / 3),),
    )
    score = only(job(estimate=Estimate(seconds=5 * HOUR)), where)
    assert score.why == (
        "kaggle T4 x2: would finish in 5 h 10 min over 1 session; 22 h 40 min of 30 h quota left"
    )
    live = only(job(), slot(left_s=5 * HOUR))
    assert live.why == (
        "kaggle T4, slot 0 of session s-live: would finish in 1 h over 1 session; "
        "the session has 5 h left"
    )
    assert live.where == "s-live"
    assert score.where == "new session"


# --- where --------------------------------------------------------------------------------------------------


def test_the_least_expected_finish_wins() -> None:
    """A faster card with a long wait loses to a slower one that is quicker through."""
    quick, late = offer("a", "V100", start_delay_s=7200.0), offer("b", "T4", start_delay_s=60.0)
    both = (place(quick), place(late))
    assert starts(Snapshot(waiting=(job(),), places=both)) == [("b", "T4", ("a",))]
    long = job(estimate=Estimate(seconds=20 * HOUR))
    assert starts(Snapshot(waiting=(long,), places=both)) == [("a", "V100", ("a",))]


def test_a_free_slot_is_taken_when_it_is_not_slower() -> None:
    """It costs no start and no quota; a much faster card elsewhere still wins."""
    free = slot(left_s=10 * HOUR)
    same = place(offer("other", start_delay_s=0.0))
    (action,) = decide(Snapshot(waiting=(job(),), free_slots=(free,), places=(same,)), NOW)
    assert isinstance(action, Assign)
    faster = place(offer("other", "A100"))
    (action,) = decide(Snapshot(waiting=(job(),), free_slots=(free,), places=(faster,)), NOW)
    assert isinstance(action, StartSession)


def test_among_equal_finishes_the_smaller_share_of_quota_is_spent() -> None:
    """An hour of 30 is less than an hour of 5."""
    small = place(offer("a", pool="gpu"), balances=(balance("a", limit_h=5),))
    large = place(offer("b", pool="gpu"), balances=(balance("b", limit_h=30),))
    assert starts(Snapshot(waiting=(job(),), places=(small, large)))[0][0] == "b"


def test_the_users_order_of_cards_comes_before_speed() -> None:
    """A list is an order of preference among what can be had now; a set leaves the choice to freegpu."""
    cards = (T4, Accelerator(card="A100"))
    both = (place(offer("a", "A100")), place(offer("b", "T4")))
    listed = job(needs=Needs(accelerators=cards, ordered=True))
    assert starts(Snapshot(waiting=(listed,), places=both)) == [("b", "T4", ("a",))]
    any_of = job(needs=Needs(accelerators=cards))
    assert starts(Snapshot(waiting=(any_of,), places=both)) == [("a", "A100", ("a",))]
    gone = Snapshot(waiting=(listed,), places=(both[0], place(offer("b", "T4", available=0))))
    assert starts(gone) == [("a", "A100", ("a",))]
    assert "choice 2 in the job's list of cards" in explain(listed, gone, NOW)[0].why


def test_a_better_card_of_the_kind_is_accepted_for_a_wish() -> None:
    """An A100 with 80 GB is an A100."""
    wish = job(needs=Needs(accelerators=(Accelerator(card="A100"),)))
    assert only(wish, place(offer(card="A100-80GB"))).feasible


# --- who ----------------------------------------------------------------------------------------------------


def first(*jobs: Waiting) -> str:
    """The job that gets the one session."""
    ((_, _, chosen),) = starts(Snapshot(waiting=jobs, places=(place(offer()),)))
    return chosen[0]


def test_first_come_is_first_served_and_priority_comes_before() -> None:
    """Order of submission among equals."""
    assert first(job("b", 2), job("a", 1)) == "a"
    assert first(job("b", 2, priority=5), job("a", 1)) == "b"


def test_an_endangered_deadline_comes_before_priority() -> None:
    """In two hours an hour's job is due; one due tomorrow has time; one that is past is lost anyway."""
    urgent = job("urgent", 9, deadline=NOW + timedelta(hours=2))
    assert first(job("a", 1, priority=100), urgent) == "urgent"
    assert first(job("a", 1), job("calm", 9, deadline=NOW + timedelta(days=1))) == "a"
    assert first(job("a", 1), job("past", 9, deadline=NOW - timedelta(hours=1))) == "a"


def test_a_job_that_fits_nowhere_holds_nobody_up() -> None:
    """The queue goes on behind it."""
    big = job("big", 1, needs=Needs(vram_gb=500), priority=100)
    assert first(big, job("small", 2)) == "small"


# --- many at once -------------------------------------------------------------------------------------------


def test_the_cards_of_a_session_are_filled_with_further_jobs() -> None:
    """T4 x2 is one session with two slots, paid once."""
    where = place(
        offer(count=2, pool="gpu", session_limit_s=12 * HOUR), balances=(balance(),), most=2
    )
    jobs = (job("a", 1), job("b", 2, estimate=Estimate(seconds=3 * HOUR)))
    (action,) = decide(Snapshot(waiting=jobs, places=(where,)), NOW)
    assert isinstance(action, StartSession)
    assert [(x.job, x.slot) for x in action.assignments] == [("a", 0), ("b", 1)]
    assert action.reserve_s == 3 * HOUR + 120
    assert action.why.endswith("; 1 more job beside it")


def test_a_second_slot_does_not_tempt_a_job_that_is_better_off_elsewhere() -> None:
    """The second job takes the faster card that is free too, not the slot beside the first."""
    where = (place(offer("a", "T4", count=2)), place(offer("b", "L4")))
    cheap = job("cheap", 1, needs=Needs(accelerators=(T4,)))
    snapshot = Snapshot(waiting=(cheap, job("free", 2)), places=where)
    assert sorted(starts(snapshot)) == [("a", "T4", ("cheap",)), ("b", "L4", ("free",))]


def test_sessions_at_once_and_what_is_available_are_respected() -> None:
    """One call starts no more than the platform allows, open ones counted."""
    jobs = tuple(job(f"j{i}", i) for i in range(9))
    where = place(offer(), offer(card="L4", available=1), most=4, open_sessions=1)
    assert sorted(card for _, card, _ in starts(Snapshot(waiting=jobs, places=(where,)))) == [
        "L4",
        "T4",
        "T4",
    ]


def test_quota_is_reserved_as_the_decisions_of_one_call_are_made() -> None:
    """With two hours left and 62 min a job, the second session still fits, a third does not."""
    jobs = tuple(job(f"j{i}", i) for i in range(4))
    where = place(offer(pool="gpu"), balances=(balance(limit_h=2.1),), most=4)
    actions = decide(Snapshot(waiting=jobs, places=(where,)), NOW)
    reserved = [a.reserve_s for a in actions if isinstance(a, StartSession)]
    assert reserved == [HOUR + 120, HOUR + 120]


@pytest.mark.parametrize(
    ("estimate", "limit_s", "left_h", "expected"),
    [
        (Estimate(seconds=HOUR), 12 * HOUR, 30.0, HOUR + 60 + 120),
        (Estimate(seconds=99 * HOUR), 12 * HOUR, 30.0, 12 * HOUR),
        (Estimate(seconds=99 * HOUR), 12 * HOUR, 5.0, 5 * HOUR),
        (None, 12 * HOUR, 30.0, 12 * HOUR),
        (None, None, 30.0, 30 * HOUR),
    ],
)
def test_a_session_reserves_what_it_is_expected_to_take(
    estimate: Estimate | None, limit_s: float | None, left_h: float, expected: float
) -> None:
    """Run, start and grace; the whole session when the length is a guess; never more than is left."""
    where = place(
        offer(pool="gpu", session_limit_s=limit_s, start_delay_s=60),
        balances=(balance(used_h=30 - left_h),),
    )
    (action,) = decide(Snapshot(waiting=(job(estimate=estimate),), places=(where,)), NOW)
    assert isinstance(action, StartSession)
    assert action.reserve_s == pytest.approx(expected)


def test_without_a_pool_nothing_is_reserved() -> None:
    """One's own machine has no quota."""
    (action,) = decide(Snapshot(waiting=(job(),), places=(place(offer("local")),)), NOW)
    assert isinstance(action, StartSession)
    assert action.reserve_s == 0.0


def test_nothing_waiting_or_nothing_offered_is_no_decision() -> None:
    """Empty in, empty out."""
    assert decide(Snapshot(), NOW) == []
    assert decide(Snapshot(places=(place(offer()),)), NOW) == []
    assert decide(Snapshot(waiting=(job(),)), NOW) == []
    assert explain(job(), Snapshot(), NOW) == []


# --- rules that hold for every snapshot ---------------------------------------------------------------------

CARDS = ("T4", "L4", "V100", "A100", "A100-80GB", "CPU", "tpu-v5e-8", "Banana 9000", "")
NUMBERS = (0.0, -1.0, 1.0, 90.0, 240.0, 3600.0, 43200.0, 1e18, float("inf"), float("nan"))


def any_needs(rng: random.Random) -> Needs:
    named = tuple(
        Accelerator(card=rng.choice(CARDS), count=rng.choice((1, 1, 1, 2)))
        for _ in range(rng.choice((0, 0, 1, 3)))
    )
    return Needs(
        accelerators=named,
        ordered=rng.random() < 0.5,
        vram_gb=rng.choice((0, 0, 12, 40)),
        memory_gb=rng.choice((0, 0, 20)),
        platforms=rng.choice(((), (), ("p1", "p2"))),
        workload=rng.choice(("general", "train-amp-cnn", "nonsense")),
    )


def any_job(rng: random.Random, index: int) -> Waiting:
    due = rng.choice((None, None, NOW + timedelta(hours=rng.randrange(-5, 90))))
    return job(
        f"j{index}",
        rng.randrange(5),
        needs=any_needs(rng),
        estimate=rng.choice((None, Estimate(seconds=rng.choice(NUMBERS), card=rng.choice(CARDS)))),
        remaining_t4_s=rng.choice((None, None, rng.choice(NUMBERS))),
        remaining=rng.choice((1.0, 0.3, 0.0, -2.0, float("nan"))),
        priority=rng.choice((0, 0, 3)),
        deadline=due.replace(tzinfo=None) if due and rng.random() < 0.1 else due,
        grace_s=rng.choice((120.0, 0.0, 5.0, rng.choice(NUMBERS))),
        avoid=rng.choice(({}, {}, {"p0": "full"})),
    )


def any_offer(rng: random.Random, platform: str) -> Offer:
    return offer(
        platform,
        rng.choice(CARDS),
        count=rng.choice((0, 1, 1, 2, 4)),
        vram_gb=rng.choice((0, 15, 80)),
        memory_gb=rng.choice((0, 12)),
        session_limit_s=rng.choice((None, rng.choice(NUMBERS))),
        start_delay_s=rng.choice((0.0, 60.0, rng.choice(NUMBERS))),
        pool=rng.choice(("", "gpu", "gpu", "other")),
        rate=rng.choice((1.0, 2.0, rng.choice(NUMBERS))),
        available=rng.choice((None, None, 0, 1)),
    )


def any_snapshot(rng: random.Random) -> Snapshot:
    places, free = [], []
    for index in range(rng.randrange(5)):
        name = f"p{index}"
        limit = rng.choice((None, *NUMBERS))
        quota = replace(
            balance(name, kind=rng.choice(tuple(WindowKind)), resets_h=rng.choice((None, -3, 50))),
            limit_s=limit,
            used_s=rng.choice(NUMBERS),
        )
        places.append(
            Place(
                platform=name,
                account="me",
                capabilities=Capabilities(
                    attended=rng.random() < 0.2,
                    max_session_s=rng.choice((None, rng.choice(NUMBERS))),
                    max_concurrent=rng.randrange(4),
                ),
                offers=tuple(any_offer(rng, name) for _ in range(rng.randrange(4))),
                open_sessions=rng.randrange(3),
                balances=rng.choice(((), (quota,))),
                losses=rng.choice(NUMBERS),
                exposure_s=rng.choice((math.inf, *NUMBERS)),
                blocked_until=rng.choice((None, None, NOW + timedelta(hours=1))),
            )
        )
        free += [
            FreeSlot(
                session=f"s{index}",
                slot=at,
                offer=any_offer(rng, name),
                left_s=rng.choice((None, *NUMBERS)),
            )
            for at in range(rng.randrange(3))
        ]
    jobs = tuple(any_job(rng, index) for index in range(rng.randrange(9)))
    running = tuple(
        Running(
            job=any_job(rng, 100 + index),
            session=f"r{index % 3}",
            slot=index,
            offer=any_offer(rng, f"p{rng.randrange(5)}"),
            held_s=rng.choice(NUMBERS),
            left_s=rng.choice((None, *NUMBERS)),
        )
        for index in range(rng.randrange(5))
    )
    return Snapshot(
        waiting=jobs,
        free_slots=tuple(free),
        places=tuple(places),
        running=running,
        lately=tuple(any_needs(rng) for _ in range(rng.randrange(3))),
        came=rng.randrange(5),
        goal=rng.choice(("jct", "jct", "makespan")),
    )


@pytest.mark.parametrize("seed", range(400))
def test_any_snapshot_gives_a_decision_that_its_explanation_agrees_with(seed: int) -> None:
    """Total, deterministic, independent of order, within every limit; explain() is the same code.

    Snapshots hold nonsense too: negative, infinite and undefined numbers, naive times, unknown cards.
    """
    rng = random.Random(seed)
    snapshot = any_snapshot(rng)
    actions = decide(snapshot, NOW)
    shuffled = Snapshot(
        waiting=tuple(rng.sample(snapshot.waiting, len(snapshot.waiting))),
        free_slots=tuple(rng.sample(snapshot.free_slots, len(snapshot.free_slots))),
        places=tuple(
            replace(p, offers=tuple(rng.sample(p.offers, len(p.offers))))
            for p in rng.sample(snapshot.places, len(snapshot.places))
        ),
        running=tuple(rng.sample(snapshot.running, len(snapshot.running))),
        lately=tuple(rng.sample(snapshot.lately, len(snapshot.lately))),
        goal=snapshot.goal,
    )
    assert repr(decide(shuffled, NOW)) == repr(actions)
    check_limits(snapshot, actions)
    witnessed(snapshot, actions)
    for waiting in snapshot.waiting:
        alone = replace(snapshot, waiting=(waiting,))
        scores = explain(waiting, alone, NOW)
        assert {s.platform for s in scores} == {p.platform for p in snapshot.places} | {
            f.offer.platform for f in snapshot.free_slots
        }
        assert sorted((s.feasible for s in scores), reverse=True) == [s.feasible for s in scores]
        chosen = [a for a in decide(alone, NOW) if not isinstance(a, Move)]
        best = next((s for s in scores if s.feasible), None)
        assert bool(chosen) is (best is not None)
        if best is not None:
            assert chosen[0].why == best.why
        assert all(s.why and "nan" not in s.why.replace("Banana", "") for s in scores)


def witnessed(snapshot: Snapshot, actions: list[Any]) -> None:
    """A witness changes nothing, keeps a record of all that is placed, and knows all that it is asked about."""
    about = frozenset(job.id for job in snapshot.waiting)
    placed = {one.job: action.why for action in actions for one in action.placed}
    for witness in (Witness(), Witness(about)):
        assert repr(decide(snapshot, NOW, witness)) == repr(actions)
        assert set(witness.decisions) == (about if witness.about else set(placed))
        for job, decision in witness.decisions.items():
            assert (decision.outcome is not Outcome.WAITS) is (job in placed)
            assert from_json(json.loads(json.dumps(to_json(decision)))).chosen is not None or (
                decision.outcome is not Outcome.PLACED
            )
            assert all(score.fault for score in decision.scores if not score.feasible), decision
            taken = decision.chosen
            assert (taken is not None) is (decision.outcome is Outcome.PLACED)
            assert taken is None or taken is decision.scores[0]
            brief(decision)


def check_limits(snapshot: Snapshot, actions: list[Any]) -> None:
    """No job twice, no slot twice, no session too many, nothing attended or shut, no quota overdrawn."""
    placed = [x.job for a in actions if isinstance(a, StartSession) for x in a.assignments]
    placed += [a.assignment.job for a in actions if isinstance(a, Assign)]
    moves = [a for a in actions if isinstance(a, Move)]
    placed += [a.assignment.job for a in moves]
    assert len(placed) == len(set(placed))
    passed = [(a.session, a.assignment.slot, a.victim) for a in moves]
    assert len(passed) == len(set(passed))
    assert set(passed) <= {(r.session, r.slot, r.job.id) for r in snapshot.running}
    assert not moves or snapshot.goal == "jct"
    taken = [(a.session, a.assignment.slot) for a in actions if isinstance(a, Assign)]
    assert len(taken) == len(set(taken))
    assert set(taken) <= {(f.session, f.slot) for f in snapshot.free_slots}
    for where in snapshot.places:
        mine = [
            a for a in actions if isinstance(a, StartSession) and a.offer.platform == where.platform
        ]
        if not mine:
            continue
        assert not where.capabilities.attended
        assert where.blocked_until is None
        assert where.open_sessions + len(mine) <= where.capabilities.max_concurrent
        for action in mine:
            assert action.offer in where.offers or "nan" in repr(action.offer)
            assert [x.slot for x in action.assignments] == list(range(len(action.assignments)))
            assert len(action.assignments) <= action.offer.count
            assert action.reserve_s >= 0
        for quota in where.balances:
            drawn = sum(a.reserve_s for a in mine if a.offer.pool == quota.pool)
            kept = quota.window.kind in (WindowKind.NONE, WindowKind.PER_SESSION)
            if quota.left_s is not None and not kept:
                assert drawn <= quota.left_s * (1 + 1e-9)

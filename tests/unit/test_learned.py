"""Limits learned from past sessions: what counts, what the range promises, and what it does not pretend to know."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.lifecycle import SessionState
from freegpu.jobs.model import Estimate, Needs
from freegpu.orchestrator import learned, placement
from freegpu.orchestrator.learned import Sample
from freegpu.orchestrator.model import (
    Figures,
    FigureSource,
    Learned,
    Place,
    Session,
    Snapshot,
    StartSession,
    Waiting,
)

NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
H = 3600.0
ROLLING = Window(kind=WindowKind.ROLLING, period_s=7 * 86400.0)
SILENT = "lost: its agent has been silent"
REFUSED = "quota_exhausted: no GPU for you now"


def session(
    begin_h: float, hours: float | None = None, reason: str = SILENT, **more: Any
) -> Session:
    """A session that began so many hours ago and lived so long; hours None: it never came up."""
    begin = NOW - timedelta(hours=begin_h)
    lived = hours is not None
    fields: dict[str, Any] = {
        "id": "s-a", "platform": "colab", "account": "me", "key": "s-a", "ref": "r",
        "state": SessionState.ENDED, "raw_state": "", "reason": reason, "card": "T4", "count": 1,
        "offer": Offer(platform="colab", account="me", card="T4", pool="gpu"), "card_seen": "T4",
        "created_at": begin, "started_at": begin, "live_at": begin if lived else None,
        "ended_at": begin + timedelta(hours=hours or 0.0), "limit_s": None, "reserved_s": 0.0,
        "charged_s": 0.0, "pool": "gpu", "rate": 1.0, "beat_counter": 9, "silent_polls": 0,
        "polled_at": None, "inbox_next": 1, "outbox_seen": 0, "our_counter": 0,
        "beat": {"state": "running", "uptime_s": hours * H} if hours is not None else {},
    }  # fmt: skip
    return Session(**(fields | more))


def drained(begin_h: float, hours: float) -> Session:
    beat = {"state": "ended", "uptime_s": hours * H}
    return session(begin_h, hours, "lost: its agent has ended", beat=beat)


def observed(*hours: float) -> list[Sample]:
    return [Sample(amount_s=h * H, observed=True, at=NOW) for h in hours]


def cut(*hours: float) -> list[Sample]:
    return [Sample(amount_s=h * H, observed=False, at=NOW) for h in hours]


def figure(samples: list[Sample]) -> Learned:
    found = learned.summary(samples, "session", NOW)
    assert found is not None
    return found


# --- what counts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        (SILENT, True),
        ("lost: the platform says it has ended", True),
        ("session_expired: ", True),
        ("quota_exhausted: usage limit", True),
        ("preempted: taken away", True),
        ("cancelled: by the user", False),
        ("something that a later version writes", False),
    ],
)
def test_only_ends_by_the_platform_show_its_limit(reason: str, counts: bool) -> None:
    """All others say only that the limit is longer."""
    [sample] = learned.lengths([session(9, 4.0, reason)], NOW)
    assert sample == Sample(amount_s=4 * H, observed=counts, at=NOW - timedelta(hours=5))


def test_an_agent_that_stopped_in_order_and_one_that_lives_are_cut_off() -> None:
    """Idle, drained, its own deadline, the user's Ctrl-C; and what has not ended yet."""
    alive = session(3, 2.5, "", state=SessionState.LIVE, ended_at=None)
    found = learned.lengths([drained(9, 4.0), alive], NOW)
    assert [(sample.amount_s / H, sample.observed) for sample in found] == [
        (4, False),
        (2.5, False),
    ]


def test_a_session_lasted_until_its_last_sign_of_life_not_until_somebody_looked() -> None:
    """The laptop slept for a day before the ledger heard of the end."""
    late = session(40, 4.0, ended_at=NOW)
    assert [sample.amount_s / H for sample in learned.lengths([late], NOW)] == [4.0]


def test_a_session_whose_agent_never_came_up_has_no_length() -> None:
    """A failed launch says nothing about limits; neither does an agent that said hello and no more."""
    mute = session(5, 1.0, beat={})
    assert learned.lengths([session(9, None, "launch_failed: no"), mute], NOW) == []


# --- the range -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "text", "median_h"),
    [
        (observed(5.0), "about 5 h (1 session)", 5.0),
        (observed(4.1, 6.0), "4.1-6 h (2 sessions)", 5.05),
        (observed(4.1, 5.0, 7.9), "4.1-7.9 h (3 sessions)", 5.0),
        (cut(3.2), "at least 3.2 h (1 session, all cut off)", None),
        (cut(1.0, 3.2, 2.0), "at least 3.2 h (3 sessions, all cut off)", None),
        (observed(4.0) + cut(9.0), "4 h or more (2 sessions, 1 cut off)", None),
        (observed(4.0, 6.0) + cut(1.0), "4-6 h (3 sessions, 1 cut off)", 5.0),
        (observed(0.5, 0.75), "30-45 min (2 sessions)", 0.625),
        (observed(0.01), "about 36 s (1 session)", 0.01),
        (observed(*[float(n) for n in range(1, 10)]), "1-9 h (9 sessions)", 5.0),
        (observed(*[float(n) for n in range(1, 20)]), "2-18 h (19 sessions)", 10.0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_range_says_what_it_rests_on(
    samples: list[Sample], text: str, median_h: float | None
) -> None:
    """Honest for none, one and two; open above where the longest was cut off."""
    found = figure(samples)
    assert found.text == text
    assert found.source is FigureSource.LEARNED
    assert (found.seen, found.observed) == (len(samples), sum(s.observed for s in samples))
    median = None if found.median_s is None else found.median_s / H
    assert median == (None if median_h is None else pytest.approx(median_h))


def test_nothing_seen_is_nothing_said() -> None:
    """No session, no figure."""
    assert learned.summary([], "session", NOW) is None
    assert learned.learn([], ROLLING, NOW) == Figures()


def test_a_cut_off_session_shorter_than_all_others_changes_nothing_but_the_count() -> None:
    """It says only what is known anyway."""
    alone, more = figure(observed(4, 5, 6, 7)), figure(observed(4, 5, 6, 7) + cut(0.1))
    assert (alone.low_s, alone.median_s, alone.high_s) == (more.low_s, more.median_s, more.high_s)


def test_long_sessions_that_were_cut_off_raise_the_median() -> None:
    """Forgetting them would make every platform look worse than it is."""
    plain = figure(observed(2, 3, 4, 5, 6))
    raised = figure(observed(2, 3, 4, 5, 6) + cut(5.5, 5.6, 5.7))
    assert plain.median_s is not None
    assert raised.median_s is not None
    assert raised.median_s > plain.median_s + 0.4 * H


def test_the_range_grows_old() -> None:
    """Its age is that of the newest session; what is long past does not count, nor more than so many."""
    old = session(24 * 100, 4.0)
    assert learned.learn([old], ROLLING, NOW) == Figures()
    many = [session(24 * 80 - hour, 1.0 + hour / 100) for hour in range(200)]
    found = learned.learn(many, ROLLING, NOW).session
    assert found is not None
    assert found.seen == learned.MOST
    assert found.low_s is not None
    assert found.low_s >= (1.0 + 140 / 100) * H
    assert found.age_s == pytest.approx((24 * 80 - 199 - 2.99) * H)


def draw(rng: random.Random, shape: str) -> float:
    """The length of a session of a pretend platform, seconds."""
    if shape == "wall":  # most reach a hard limit, some are taken away before
        return min(12 * H, rng.expovariate(1 / (9 * H)))
    if shape == "bell":
        return max(600.0, rng.gauss(6 * H, 1.5 * H))
    return rng.lognormvariate(1.5, 0.6) * H


@pytest.mark.parametrize("shape", ["wall", "bell", "skewed"])
@pytest.mark.parametrize("busy", [0.0, 0.5], ids=["all observed", "half cut off"])
@pytest.mark.parametrize("number", [3, 9, 30])
def test_about_eight_in_ten_next_sessions_lie_in_the_range(
    shape: str, busy: float, number: int
) -> None:
    """Of few observed ones, (n - 1) / (n + 1) and no more is promised. An open range has no upper end to miss."""
    rng = random.Random(f"{shape} {busy} {number}")
    hits = total = 0
    promises = 0.0
    for _ in range(1500):
        samples = []
        for _ in range(number):
            length = draw(rng, shape)
            stop = rng.uniform(0.5 * H, 10 * H) if rng.random() < busy else float("inf")
            samples.append(Sample(amount_s=min(length, stop), observed=length <= stop, at=NOW))
        found = figure(samples)
        if found.low_s is None:
            continue
        high = float("inf") if found.high_s is None else found.high_s
        hits += found.low_s <= draw(rng, shape) <= high
        total += 1
        promises += min(0.8, (found.observed - 1) / (found.observed + 1))
    covered, promised = hits / total, promises / total
    print(f"{shape}, n = {number}, cut off {busy:.0%}: {covered:.1%}, promised {promised:.1%}")
    assert covered >= promised - 0.04
    if (
        not busy and shape != "wall"
    ):  # a wall is many equal lengths: its own upper end is always met
        assert covered <= promised + 0.04


@pytest.mark.parametrize("seed", range(40))
def test_whatever_was_seen_the_range_is_in_order(seed: int) -> None:
    """low <= median <= high <= longest; nothing raises; more time cut off never shortens it."""
    rng = random.Random(seed)
    samples = [
        Sample(amount_s=rng.choice([0.0, 1.0, 5.0, rng.uniform(0, 9e4)]), observed=rng.random() < 0.6, at=NOW)
        for _ in range(rng.randint(1, 25))
    ]  # fmt: skip
    found = figure(samples)
    told = [v for v in (found.low_s, found.median_s, found.high_s) if v is not None]
    assert told == sorted(told)
    assert all(v <= found.longest_s for v in told)
    if not any(s.observed for s in samples):
        assert told == []
    longer = figure([*samples, Sample(amount_s=2e5, observed=False, at=NOW)])
    if found.median_s is not None and longer.median_s is not None:
        assert longer.median_s >= found.median_s - 1e-6


# --- the rolling allowance -------------------------------------------------------------------------------


def test_a_refusal_shows_how_much_could_be_used_before_it() -> None:
    """Hours within the window before the first refusal; what was used before the window does not count."""
    past = [
        session(9 * 24, 5.0),  # outside of the seven days before the refusal
        session(40, 4.0),
        session(34, 2.0),
        session(30, None, REFUSED),
        session(29, None, REFUSED),
        session(6, 1.0),
    ]
    found = learned.learn(past, ROLLING, NOW)
    assert found.allowance is not None
    assert found.allowance.low_s == pytest.approx(6 * H)
    assert found.allowance.text == "6 h or more (2 refusals, 1 cut off)"
    assert found.refusal is not None
    assert found.refusal.text == "about 24 h (1 refusal)"


def test_an_end_for_want_of_quota_is_a_refusal_too_and_one_that_goes_on_is_cut_off() -> None:
    """From its end on nothing was to be had; nobody knows yet for how long."""
    past = [session(20, 8.0, "quota_exhausted: usage limit"), session(2, None, REFUSED)]
    found = learned.learn(past, ROLLING, NOW)
    assert found.allowance is not None
    assert found.allowance.text == "about 8 h (1 refusal)"
    assert found.refusal is not None
    assert found.refusal.text == "at least 10 h (1 refusal, all cut off)"


def test_two_cards_use_twice_and_a_refusal_without_use_says_nothing() -> None:
    """Quota seconds, by the session's rate; the hours may have gone elsewhere."""
    two = learned.learn([session(9, 2.0, rate=2.0), session(5, None, REFUSED)], ROLLING, NOW)
    assert two.allowance is not None
    assert two.allowance.low_s == pytest.approx(4 * H)
    assert learned.learn([session(5, None, REFUSED)], ROLLING, NOW).allowance is None


def test_only_unpublished_limits_are_learned() -> None:
    """What a platform publishes is not guessed at."""
    assert learned.unpublished(ROLLING)
    assert learned.unpublished(Window(kind=WindowKind.PER_SESSION))
    assert not learned.unpublished(Window(kind=WindowKind.NONE))
    assert not learned.unpublished(Window(kind=WindowKind.FIXED_WEEKLY, limit_s=108000.0))
    alone = learned.learn(
        [session(9, 4.0), session(4, None, REFUSED)], Window(kind=WindowKind.PER_SESSION), NOW
    )
    assert alone.session is not None
    assert (alone.allowance, alone.refusal) == (None, None)


# --- what decisions make of it ---------------------------------------------------------------------------


def place(name: str, figures: Figures | None, limit_s: float | None = None) -> Place:
    offer = Offer(
        platform=name, account="me", card="T4", vram_gb=16.0, pool="gpu", session_limit_s=limit_s,
        start_delay_s=600.0,
    )  # fmt: skip
    return Place(
        platform=name,
        account="me",
        capabilities=Capabilities(),
        offers=(offer,),
        open_sessions=0,
        balances=(),
        learned={} if figures is None else {"gpu": figures},
    )


def waiting(hours: float) -> Waiting:
    return Waiting(
        id="k3", seq=1, name="train", needs=Needs(), estimate=Estimate(seconds=hours * H, card="T4"),
        priority=0, deadline=None, created_at=NOW,
    )  # fmt: skip


def figures(*hours: float) -> Figures:
    return Figures(session=learned.summary(observed(*hours), "session", NOW))


def test_a_place_with_an_unknown_limit_is_expected_to_take_as_many_sessions_as_it_showed() -> None:
    """Ten hours in sessions of four are three, each with its start; the sentence says where that is from."""
    snapshot = Snapshot(places=(place("colab", figures(3.9, 4.0, 4.1)),))
    [score] = placement.explain(waiting(10), snapshot, NOW)
    assert score.feasible
    assert score.sessions == 3
    assert score.finish_s is not None
    assert score.finish_s > 10.5 * H
    assert "sessions there have lasted 3.9-4.1 h (3 sessions)" in score.why


@pytest.mark.parametrize("hours", [0.001, 0.1])
def test_what_was_learned_never_makes_a_place_impossible(hours: float) -> None:
    """It is no limit: bad luck so far must not close a platform for good."""
    snapshot = Snapshot(waiting=(waiting(10),), places=(place("colab", figures(hours)),))
    [score] = placement.explain(waiting(10), snapshot, NOW)
    assert score.feasible
    [action] = placement.decide(snapshot, NOW)
    assert isinstance(action, StartSession)


def test_a_shorter_published_limit_stays_the_limit() -> None:
    """Learned from longer times, or from another card."""
    with_it = placement.explain(
        waiting(10), Snapshot(places=(place("colab", figures(9.0), 2 * H),)), NOW
    )
    without = placement.explain(waiting(10), Snapshot(places=(place("colab", None, 2 * H),)), NOW)
    assert with_it == without


def test_a_place_that_drops_sessions_is_passed_over_for_one_that_keeps_them() -> None:
    """The same card, the same start; only the past differs."""
    rivals = (place("colab", figures(1.0, 1.1)), place("saturn", figures(11.0, 12.0)))
    [action] = placement.decide(Snapshot(waiting=(waiting(10),), places=rivals), NOW)
    assert isinstance(action, StartSession)
    assert action.offer.platform == "saturn"

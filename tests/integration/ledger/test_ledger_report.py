"""The last weeks out of the ledger: used and expired hours, gained and lost work, busy cards, and what is not known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.adapters.base import Offer, Window, WindowKind
from freegpu.jobs.lifecycle import EndReason
from freegpu.orchestrator import gpu_use, retrospect, standing
from freegpu.orchestrator.model import Entry, EntryKind, Reading

if TYPE_CHECKING:
    Bench = Any

HOUR = 3600.0
WEEKLY = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=30 * HOUR)
#: a Wednesday; weeks begin on Mondays at 00:00 UTC unless a platform tells otherwise
NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
MONDAY = datetime(2026, 11, 30, tzinfo=UTC)


def charge(at: datetime, hours: float) -> Entry:
    return Entry(
        id=1,
        at=at,
        kind=EntryKind.CHARGE,
        platform="kaggle",
        account="me",
        pool="gpu",
        session="",
        amount_s=hours * HOUR,
        note="",
    )


def reading(used: float, as_of: datetime, resets_at: datetime | None) -> Reading:
    return Reading(
        platform="kaggle",
        account="me",
        pool="gpu",
        used_s=used * HOUR,
        limit_s=30 * HOUR,
        resets_at=resets_at,
        as_of=as_of,
    )


def expired(window: Window, entries: list[Entry], readings: list[Reading], weeks: int = 1) -> Any:
    return retrospect.expired(window, entries, readings, NOW - timedelta(weeks=weeks), NOW)


def test_what_a_week_left_over_expired_at_its_reset() -> None:
    """Counted by freegpu: 30 h less what was charged in that week; this week's use is no matter."""
    entries = [
        charge(MONDAY - timedelta(hours=10), 22.0),
        charge(MONDAY + timedelta(hours=10), 5.0),
    ]
    assert expired(WEEKLY, entries, []) == (8 * HOUR, "ledger")
    assert expired(WEEKLY, entries, [], weeks=2) == (38 * HOUR, "ledger")


def test_the_platforms_last_word_before_the_reset_goes_before_our_count() -> None:
    """It knows what was used beside freegpu, and when its weeks end: here on a Sunday."""
    sunday = MONDAY - timedelta(days=1)
    told = [
        reading(4.0, sunday - timedelta(hours=30), sunday),
        reading(26.0, sunday - timedelta(hours=2), sunday),
        reading(1.0, NOW, sunday + timedelta(days=7)),
    ]
    entries = [charge(sunday - timedelta(hours=40), 2.0)]
    assert expired(WEEKLY, entries, told) == (4 * HOUR, "live")
    assert expired(WEEKLY, entries, told, weeks=2) == (34 * HOUR, "ledger")


@pytest.mark.parametrize(
    "window",
    [
        Window(kind=WindowKind.FIXED_WEEKLY),
        Window(kind=WindowKind.ROLLING, limit_s=HOUR),
        Window(kind=WindowKind.PREPAID, limit_s=HOUR),
        Window(kind=WindowKind.NONE),
    ],
)
def test_without_a_limit_or_an_end_nobody_can_tell_what_expired(window: Window) -> None:
    """None, not zero."""
    assert expired(window, [], []) == (None, "")


def test_no_reset_in_the_period_means_that_nothing_expired() -> None:
    """Known to be zero."""
    assert retrospect.expired(WEEKLY, [], [], MONDAY + timedelta(hours=1), NOW) == (0.0, "")


@pytest.mark.parametrize(
    ("kind", "limit", "connected", "hours", "by"),
    [
        # two resets in the three weeks, on Mondays at 00:00 UTC
        (WindowKind.FIXED_WEEKLY, 30, MONDAY - timedelta(days=10), 60.0, "ledger"),
        (WindowKind.FIXED_WEEKLY, 30, MONDAY - timedelta(days=3), 30.0, "ledger"),
        # connected ten hours before the reset: ten hours could have been used, not thirty
        (WindowKind.FIXED_WEEKLY, 30, MONDAY - timedelta(hours=10), 10.0, "ledger"),
        (WindowKind.FIXED_WEEKLY, 30, MONDAY, 0.0, ""),
        (WindowKind.FIXED_WEEKLY, 30, MONDAY + timedelta(hours=10), 0.0, ""),
        # the month ended on 1 December
        (WindowKind.MONTHLY, 22, MONDAY - timedelta(days=40), 22.0, "ledger"),
        (WindowKind.MONTHLY, 22, MONDAY + timedelta(hours=20), 4.0, "ledger"),
        (WindowKind.MONTHLY, 22, MONDAY + timedelta(hours=24), 0.0, ""),
        # nothing of these expires at a fixed moment, whenever it was connected
        (WindowKind.ROLLING, 30, MONDAY - timedelta(days=40), None, ""),
        (WindowKind.FROM_FIRST_USE, 30, MONDAY - timedelta(days=40), None, ""),
        (WindowKind.PREPAID, 30, MONDAY - timedelta(days=40), None, ""),
        (WindowKind.PER_SESSION, 30, MONDAY - timedelta(days=40), None, ""),
        (WindowKind.NONE, 30, MONDAY - timedelta(days=40), None, ""),
    ],
)
def test_only_what_ended_since_the_platform_was_known_has_expired(
    kind: WindowKind, limit: float, connected: datetime, hours: float | None, by: str
) -> None:
    """Windows that ended before count nothing; of one that had begun before, what could have been used since."""
    window = Window(kind=kind, limit_s=limit * HOUR)
    since, known = NOW - timedelta(weeks=3), retrospect.Known(connected)
    found = retrospect.expired(window, [], [], since, NOW, known)
    assert found == (None if hours is None else hours * HOUR, by)


def test_a_window_that_had_begun_before_counts_by_the_platforms_word_and_by_all_sessions() -> None:
    """It had used 26 h before we came, so 4 h were there; two sessions at once can use 6 h in three."""
    told = [reading(26.0, MONDAY - timedelta(hours=3), MONDAY)]
    since = NOW - timedelta(weeks=1)
    known = retrospect.Known(MONDAY - timedelta(hours=3), burn=2.0)
    assert retrospect.expired(WEEKLY, [], told, since, NOW, known) == (4 * HOUR, "live")
    assert retrospect.expired(WEEKLY, [], [], since, NOW, known) == (6 * HOUR, "ledger")


@pytest.mark.parametrize("how", ["connected", "read", "offered", "used"])
def test_the_report_of_a_young_home_counts_no_quota_that_expired_before_it(
    bench: Bench, how: str
) -> None:
    """Whatever the first trace of the platform is; what is left out is told, and a platform nobody asked has none."""
    windows = {"kaggle": {"gpu": WEEKLY}, "other": {"gpu": WEEKLY}}
    bench.clock.now = (MONDAY - timedelta(hours=5)).timestamp()
    if how == "connected":
        bench.ledger.record("platform.connected", "by kaggle", platform="kaggle")
    elif how == "read":
        bench.ledger.add_reading("kaggle", "me", "gpu", 3 * HOUR, 30 * HOUR, MONDAY, bench.now)
    elif how == "offered":
        bench.ledger.set_meta(standing.offers_key("kaggle"), "{}")
    else:
        (job,) = bench.submit("a")
        session, (attempt,) = bench.plan(job, reserve_s=0.0)
        bench.end(attempt)
        bench.ledger.end_session(session.id, reason="done", charged_s=0.0, at=bench.now)
    bench.clock.now = NOW.timestamp()
    since = NOW - timedelta(weeks=4)
    found = retrospect.look_back(bench.ledger, windows, since, NOW, {"kaggle": 2})
    (line,) = found.pools
    assert (line.platform, line.expired_s) == ("kaggle", 10 * HOUR)
    assert [words for words in found.unknown if "what expired" in words] == [
        "kaggle gpu: what expired before Sun 29 Nov 19:00 UTC, when freegpu first knew of it",
        "other gpu: what expired, for freegpu has not asked there yet",
    ]


def test_the_report_adds_up_what_the_ledger_holds(bench: Bench) -> None:
    """One lost and one finished attempt on two cards: gained hours in those of a T4, without what was lost."""
    (job,) = bench.submit("a")
    begin = bench.now
    session, (attempt,) = bench.plan(job)
    bench.ledger.note_session(session.id, live_at=begin)
    bench.ledger.note_attempt(attempt.id, started_at=begin)
    bench.clock.sleep(3600.0)
    bench.end(attempt, EndReason.LOST, run_s=3600.0, lost_s=600.0)
    second, (again,) = bench.plan(job, offer=bench.offer(card="V100", cpus=4.0))
    bench.ledger.note_session(second.id, live_at=bench.now)
    bench.ledger.note_attempt(again.id, started_at=bench.now)
    beat: dict[str, Any] = {}
    for util in [20, 40] * 6:
        told = {"gpu": [{"index": 0, "util": util}], "slots": [slot(again.id, "running")]}
        beat = gpu_use.added(beat, told, second.offer)
    bench.ledger.note_session(second.id, beat=beat, beat_counter=1)
    bench.clock.sleep(1800.0)
    windows = {"kaggle": {"gpu": Window(kind=WindowKind.FIXED_WEEKLY)}}
    found = retrospect.look_back(bench.ledger, windows, begin - timedelta(days=1), bench.now)
    (line,) = found.pools
    assert (line.platform, line.pool, line.sessions, line.interruptions) == ("kaggle", "gpu", 2, 1)
    assert (line.ran_s, line.lost_s) == (5400.0, 600.0)
    from freegpu import cards

    assert found.t4_s == pytest.approx(3000.0 + 1800.0 * cards.speed("V100"))
    (busy,) = found.jobs
    assert (busy.job, busy.card, busy.looks, busy.percent) == (job.id, "V100", 12, 30.0)
    assert "num_workers=4" in busy.hint
    assert any("nobody publishes the limit" in words for words in found.unknown)
    assert any("how busy the cards of kaggle were" in words for words in found.unknown)
    later = bench.now + timedelta(days=30)
    nothing = retrospect.look_back(bench.ledger, {}, later, later + timedelta(days=1))
    assert nothing.t4_s == pytest.approx(
        86400.0 * cards.speed("V100")
    )  # it still runs, for all we know


def slot(attempt: str, phase: str, index: int = 0) -> dict[str, Any]:
    return {"slot": index, "attempt": attempt, "phase": phase}


def test_only_a_running_jobs_own_card_counts_as_its_use() -> None:
    """Not its setup, not the card of its neighbour; devices that an offer names are looked up."""
    offer = Offer(platform="p", account="me", card="T4", count=2)
    gpu = [{"index": 0, "util": 90}, {"index": 1, "util": 10}]
    beat: dict[str, Any] = {"gpu": gpu, "slots": [slot("a", "running"), slot("b", "setup", 1)]}
    first = gpu_use.added({}, beat, offer)
    assert gpu_use.mean(first, "a") == (1, 90.0)
    assert gpu_use.mean(first, "b") is None
    beat["slots"][1] = slot("b", "running", 1)
    second = gpu_use.added(first, beat, offer)
    assert gpu_use.mean(second, "a") == (2, 90.0)
    assert gpu_use.mean(second, "b") == (1, 10.0)
    named = Offer(platform="p", account="me", card="T4", count=1, devices=("1",))
    assert gpu_use.mean(gpu_use.added({}, beat, named), "a") == (1, 10.0)


@pytest.mark.parametrize(
    "beat", [{}, {"gpu": None}, {"gpu": [7], "slots": [3]}, {"gpu": [{"util": "x"}], "slots": [{}]}]
)
def test_a_heartbeat_in_other_words_tells_no_use(beat: dict[str, Any]) -> None:
    """And loses nothing of what was summed up."""
    offer = Offer(platform="p", account="me", card="T4")
    kept = {gpu_use.USE: {"a": [2, 100.0]}}
    assert gpu_use.mean(gpu_use.added(kept, beat, offer), "a") == (2, 50.0)
    assert gpu_use.USE not in gpu_use.added({}, beat, offer)

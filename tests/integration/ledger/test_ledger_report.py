"""The last weeks out of the ledger: used and expired hours, gained and lost work, busy cards, and what is not known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.adapters.base import Offer, Window, WindowKind
from freegpu.jobs.lifecycle import EndReason
from freegpu.orchestrator import gpu_use, retrospect
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

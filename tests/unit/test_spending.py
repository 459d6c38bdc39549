"""When quota will be spent: what a session is told at its start, and what the orchestrator sees while several run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from freegpu.adapters.base import Window, WindowKind
from freegpu.orchestrator.model import Session, Snapshot, StartSession
from freegpu.orchestrator.placement import decide
from freegpu.orchestrator.spending import spent_in
from tests.unit.test_placement import balance, job, offer, place
from tests.unit.test_quota import (
    HOUR,
    LIMITED,
    NOW,
    PREPAID,
    ROLLING,
    WEEKLY,
    charge,
    hours,
    open_session,
    reading,
)

# --- a session that starts ------------------------------------------------------------------------------


def lasts_h(*, limit_h: float | None = 12.0, rate: float = 1.0, **quota: object) -> float | None:
    """Of the session that is started for one long job."""
    one = offer(
        "kaggle",
        pool="gpu",
        rate=rate,
        session_limit_s=None if limit_h is None else limit_h * HOUR,
    )
    where = place(one, balances=(balance(**quota),))  # type: ignore[arg-type]
    [action] = decide(Snapshot(waiting=(job("a"),), places=(where,)), NOW)
    assert isinstance(action, StartSession)
    return None if action.lasts_s is None else action.lasts_s / HOUR


def test_a_session_lasts_until_its_limit_or_until_its_quota_is_spent() -> None:
    """Whichever is first; at two quota hours an hour, half as long."""
    assert lasts_h(used_h=0) == 12
    assert lasts_h(used_h=25) == 5
    assert lasts_h(used_h=25, rate=2.0) == 2.5
    assert lasts_h(used_h=25, limit_h=None) == 5
    assert lasts_h(limit_h=None, kind=WindowKind.NONE) is None


def test_quota_that_comes_back_in_time_ends_no_session() -> None:
    """Five hours are left and the week ends in four; what trickles back is not waited for."""
    assert lasts_h(used_h=25, resets_h=4) == 12
    assert lasts_h(used_h=25, resets_h=6) == 5
    assert lasts_h(used_h=25, resets_h=4, kind=WindowKind.ROLLING) == 5


# --- sessions that run ----------------------------------------------------------------------------------


def running(name: str = "s", since_h: float = 1.0, **more: float) -> Session:
    return open_session(name, NOW - hours(since_h), reserved=9, **more)


def spent_h(window: Window, *sessions: Session, used: float = 0.0, **more: object) -> float | None:
    entries = [charge(NOW - hours(3), used, "old")] if used else []
    told = more.get("reading")
    found = spent_in(window, entries, told, sessions, NOW)  # type: ignore[arg-type]
    return None if found is None else round(found / HOUR, 6)


def test_what_runs_burns_together_whatever_is_reserved() -> None:
    """30 h a week, 20 of them used, and two sessions for an hour each: 8 h are left, and last for 4."""
    assert spent_h(WEEKLY, running(), used=20) == 9
    assert spent_h(WEEKLY, running("a"), running("b"), used=20) == 4
    assert spent_h(WEEKLY, running("a"), running("b", rate=3.0), used=20) == 1.5


def test_nothing_is_spent_where_nothing_runs_or_nothing_is_counted() -> None:
    """A session that has not begun uses nothing; a window without a limit is never spent."""
    assert spent_h(WEEKLY, used=20) is None
    assert spent_h(WEEKLY, replace(running(), started_at=None), used=20) is None
    assert spent_h(Window(kind=WindowKind.NONE), running()) is None
    assert spent_h(Window(kind=WindowKind.ROLLING, period_s=HOUR), running()) is None


def test_a_reset_that_comes_first_is_no_end() -> None:
    """The week ends in 108 h."""
    week = replace(WEEKLY, limit_s=100 * HOUR)
    assert spent_h(week, running(), used=0) == 99
    assert spent_h(replace(week, limit_s=120 * HOUR), running()) is None
    assert spent_h(replace(PREPAID, limit_s=120 * HOUR), running()) == 119


def test_what_is_spent_is_spent_and_never_less_than_nothing() -> None:
    """More may have been used than there was."""
    assert spent_h(WEEKLY, running(since_h=2), used=29) == 0
    assert spent_h(ROLLING, running(), used=10) == 0


def test_the_platform_s_own_word_counts_what_was_used_elsewhere() -> None:
    """It said 28 of 30 h half an hour ago; this session has gone on since."""
    told = replace(reading(28, NOW - hours(0.5)), limit_s=30 * HOUR)
    assert spent_h(WEEKLY, running(), used=5, reading=told) == 1.5


@pytest.mark.parametrize("window", LIMITED, ids=lambda window: window.kind.value)
def test_time_passes_one_second_a_second(window: Window) -> None:
    """Half an hour later it is spent half an hour sooner, in every window that has a limit."""
    begun = running(since_h=0.5)
    before = spent_in(window, [], None, [begun], NOW)
    after = spent_in(window, [], None, [begun], NOW + hours(0.5))
    assert before is not None
    assert after == pytest.approx(before - HOUR / 2)

"""When a platform's own figure and our ledger disagree about what was used: the line that says so; and how old figures are. Pure.

The platform's word wins; the ledger is corrected by an entry that holds both figures, so that nobody has to wonder later
where quota went (somebody used the platform by hand, a session ran on unnoticed, or our meter is wrong).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from freegpu.adapters.base import QuotaReport, Window, WindowKind
from freegpu.orchestrator import quota
from freegpu.orchestrator.model import Balance, Entry, FigureSource, Reading, Session
from freegpu.orchestrator.spots import span_text

__all__ = ["Correction", "aged", "correction"]

#: figures that differ by less are taken as equal: platforms round, and a session's end is seen a little late
LEAST_S, LEAST_SHARE = 300.0, 0.02
#: windows in which a platform counts what was used; of credits it tells only what is left
_COUNTED = (
    WindowKind.FIXED_WEEKLY,
    WindowKind.MONTHLY,
    WindowKind.ROLLING,
    WindowKind.FROM_FIRST_USE,
)


@dataclass(frozen=True, slots=True)
class Correction:
    """What to enter into the ledger, at the moment of the report."""

    amount_s: float
    note: str


def correction(
    window: Window, entries: Sequence[Entry], sessions: Sequence[Session], report: QuotaReport
) -> Correction | None:
    """The entry that makes the ledger agree with this report; None: it does, or the report counts nothing."""
    if window.kind not in _COUNTED:
        return None
    before = _window_before(window, report)
    mine = quota.balance(window, entries, before, sessions, report.as_of)
    ours = mine.used_s
    # Kaggle counts what running sessions hold, others what they have used so far: both agree with us
    differs = report.used_s - min(max(report.used_s, ours), ours + mine.reserved_s)
    if abs(differs) <= max(LEAST_S, LEAST_SHARE * (report.limit_s or window.limit_s or 0.0)):
        return None
    note = f"the platform says {span_text(report.used_s)} used, the ledger had {span_text(ours)}"
    missing = quota.below_nothing(window, entries, before, sessions, report.as_of)
    return Correction(differs + missing if differs > 0 else differs, note)


def aged(balance: Balance, entries: Sequence[Entry], now: datetime) -> Balance:
    """The balance with the age of its figure, whatever its source: a reading's, the newest line's in the ledger, or that of
    the day on which somebody looked up what is declared."""
    if balance.source is FigureSource.LIVE:
        return balance
    at: datetime | None = None
    if balance.source is FigureSource.LEDGER:
        at = max((entry.at for entry in entries if entry.at <= now), default=None)
    else:
        with contextlib.suppress(ValueError):  # a platform of one's own may leave the day out
            at = datetime.fromisoformat(balance.window.verified_on).replace(tzinfo=UTC)
    if at is None:
        return balance
    return replace(balance, age_s=max(0.0, (now - at).total_seconds()))


def _window_before(window: Window, report: QuotaReport) -> Reading | None:
    """What the platform would have said of the window before: it tells where ours begins, by the platform's own refresh.

    Without it a quota that resets on Saturday was compared with a ledger that begins its week on Monday, and two
    corrections a week were entered for nothing.
    """
    if report.resets_at is None or window.kind is WindowKind.ROLLING:
        return None
    period = timedelta(days=7)
    if window.kind is WindowKind.FROM_FIRST_USE:
        period = timedelta(seconds=window.period_s)
    began = report.resets_at - period
    if window.kind is WindowKind.MONTHLY or began > report.as_of:
        return None
    return Reading(
        platform="",
        account="",
        pool=report.pool,
        used_s=0.0,
        limit_s=None,
        resets_at=began,
        as_of=min(began, report.as_of),
    )

"""When a platform's own figure and our ledger disagree about what was used: the line that says so. Pure.

The platform's word wins; the ledger is corrected by an entry that holds both figures, so that nobody has to wonder later
where quota went (somebody used the platform by hand, a session ran on unnoticed, or our meter is wrong).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freegpu.adapters.base import QuotaReport, Window, WindowKind
from freegpu.orchestrator import quota
from freegpu.orchestrator.model import Entry, Session
from freegpu.orchestrator.spots import span_text

__all__ = ["Correction", "correction"]

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
    mine = quota.balance(window, entries, None, sessions, report.as_of)
    ours = mine.used_s
    # Kaggle counts what running sessions hold, others what they have used so far: both agree with us
    differs = report.used_s - min(max(report.used_s, ours), ours + mine.reserved_s)
    if abs(differs) <= max(LEAST_S, LEAST_SHARE * (report.limit_s or window.limit_s or 0.0)):
        return None
    note = f"the platform says {span_text(report.used_s)} used, the ledger had {span_text(ours)}"
    return Correction(differs, note)

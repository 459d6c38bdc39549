"""When the sessions that run will have spent a quota. Pure.

A platform ends a session whose quota is spent as if it were lost. One session knows that moment when it begins; two that
draw on the same pool, or one whose quota was used elsewhere, do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from freegpu.adapters.base import Window, WindowKind
from freegpu.orchestrator import quota
from freegpu.orchestrator.model import Entry, Reading, Session

__all__ = ["spent_in"]


def spent_in(
    window: Window,
    entries: Sequence[Entry],
    reading: Reading | None,
    open_sessions: Sequence[Session],
    now: datetime,
) -> float | None:
    """Seconds until this pool is spent if what runs goes on, 0 if it is; None: never, or more comes before.

    What was used counts, not what is reserved. `entries` and `open_sessions` are the pool's own.
    """
    running = {s.id: s for s in open_sessions if s.started_at is not None}
    burn = sum(max(0.0, session.rate) for session in running.values())
    if burn <= 0:
        return None
    settled = [entry for entry in entries if entry.session not in running]
    spans = [
        (s.started_at, now, quota.charge_for((now - s.started_at).total_seconds(), s.rate))
        for s in running.values()
        if s.started_at is not None
    ]
    lines = quota.Lines.of(settled, ()).used(spans)
    found = quota.left(window, lines, reading, now, platform="", account="", pool="")
    if found.limit_s is None:
        return None
    left_s = max(0.0, found.limit_s - found.used_s) / burn
    comes_at = None if window.kind is WindowKind.ROLLING else found.resets_at
    if comes_at is not None and comes_at <= now + timedelta(seconds=left_s):
        return None
    return left_s

"""The orchestrator's view of time: aware UTC datetimes over the same clock that the agent uses."""

from __future__ import annotations

from datetime import UTC, datetime

from freegpu.agent.clock import Clock, SystemClock

__all__ = ["Clock", "SystemClock", "from_timestamp", "utc"]


def from_timestamp(seconds: float) -> datetime:
    """Seconds since 1970 as an aware UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def utc(clock: Clock) -> datetime:
    """Now, as an aware UTC datetime."""
    return from_timestamp(clock.time())

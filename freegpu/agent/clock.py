"""Time, as something that can be passed in: tests and the simulator bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def time(self) -> float:
        """Wall clock, seconds since 1970 (UTC). May jump: never measure a duration with it."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow; the one to measure durations and deadlines with."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let this much time pass."""
        ...


class SystemClock:
    """The machine's own clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

"""Time, as something that can be passed in: tests and the simulator bring their own."""

from __future__ import annotations

import sys
import time
from typing import Optional, Protocol


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


class BootClock(SystemClock):
    """The clock of an agent: its seconds also pass while the machine is suspended.

    A session's limit is the platform's, and a closed laptop lid does not stop it. On Linux
    `time.monotonic` stands still during a suspend and CLOCK_BOOTTIME does not; on macOS it is
    CLOCK_MONOTONIC that goes on. Elsewhere this is the ordinary monotonic clock.
    """

    def __init__(self) -> None:
        name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
        self._id: Optional[int] = getattr(time, name, None)

    def monotonic(self) -> float:
        return time.monotonic() if self._id is None else time.clock_gettime(self._id)

"""A clock that moves when it is told to, so that no test waits for real time."""

from __future__ import annotations

__all__ = ["ManualClock"]


class ManualClock:
    """Satisfies freegpu.clock.Clock. `sleep` moves it at once and is noted in `slept`."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        """`start`: wall-clock seconds since 1970; the monotonic clock begins at 0."""
        self._time = start
        self._monotonic = 0.0
        #: every sleep so far, in seconds
        self.slept: list[float] = []

    def time(self) -> float:
        """Wall-clock seconds since 1970."""
        return self._time

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Let this much time pass at once. ValueError if it is negative, as the real one does."""
        self.advance(seconds)
        self.slept.append(seconds)

    def advance(self, seconds: float) -> None:
        """Move both clocks. ValueError: time does not run backwards."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        self._time += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or backwards, as a person or NTP does; no time passes."""
        self._time += seconds

"""When an attempt has to stop so that it is saved before the platform ends the session. Arithmetic only.

All times are monotonic seconds of the agent's clock. The wall clock never decides anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Limits:
    """A session's time: from `start`, for `limit_s` seconds (None: no limit is known)."""

    start: float
    limit_s: Optional[float]
    #: seconds kept before the limit for the last upload
    margin_s: float

    @property
    def end(self) -> float:
        """The platform ends the session here; infinity without a limit."""
        return math.inf if self.limit_s is None else self.start + self.limit_s

    @property
    def kill(self) -> float:
        """No command runs after this: what is left is for uploads."""
        return self.end - self.margin_s

    def left(self, now: float) -> Optional[float]:
        """Seconds until the end; None without a limit."""
        return None if self.limit_s is None else max(0.0, self.end - now)

    def stop(self, grace_s: float, upload_s: float) -> float:
        """When a command with this grace is asked to save, given how long uploads have taken.

        A slow upload is allowed for up to half the margin more; what is slower still is not what the margin
        was chosen for, and an attempt that stops ever earlier would do no work.
        """
        return self.kill - grace_s - min(max(0.0, upload_s), self.margin_s / 2)

    def room(self, now: float, grace_s: float) -> bool:
        """Whether it makes sense to begin an attempt now."""
        return now < self.kill - grace_s

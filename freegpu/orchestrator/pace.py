"""How often the two ends of a mailbox look and write, fitted to the store between them. Pure.

A folder may be asked every second. A store behind an API counts each request, so there the looks come more
rarely, the heartbeats with them, and silence is judged by the same slower measure.
"""

from __future__ import annotations

from dataclasses import dataclass

from freegpu.agent.stores.base import Properties
from freegpu.config import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """All in seconds; see config.Settings."""

    poll_s: float
    beat_s: float
    idle_s: float
    #: a session where nothing runs is looked at this often by the orchestrator, and so are new sessions
    rest_s: float

    @property
    def gap_s(self) -> float:
        """Two looks at a heartbeat closer together than this count as one."""
        return 2 * self.beat_s


def pace(settings: Settings, properties: Properties) -> Pace:
    """What the settings ask for, but never more than the store can bear."""
    least = properties.min_poll
    return Pace(
        poll_s=max(settings.poll_s, least),
        beat_s=max(settings.beat_s, 3 * least) if least >= 1 else settings.beat_s,
        # a ticket needs several looks of both sides: leaving earlier would give work up that is on its way
        idle_s=max(settings.idle_s, 60 * least) if least >= 1 else settings.idle_s,
        rest_s=3 * least if least >= 1 else 0.0,
    )

"""Events for the orchestrator, kept until it has said that it read them.

Numbers them, signs them once (a repeated put must write the same bytes), and knows which ones have to be
written again: a store may lose a file without an error, and then the acknowledgement stands still while the
orchestrator's counter moves on. It does not talk to the store; the mailbox does.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from freegpu.agent import wire
from freegpu.agent.clock import Clock

#: write an event again if it was not acknowledged this long after it was written, seconds
RESEND_S = 30.0


@dataclass
class _Event:
    data: bytes
    put_at: Optional[float] = None
    #: how many heartbeats of the orchestrator had been seen when it was put
    seen: int = 0


class Outbox:
    """May be used by any thread."""

    def __init__(self, session: str, key: bytes, clock: Clock) -> None:
        self._session = session
        self._key = key
        self._clock = clock
        self._lock = threading.Lock()
        self._events: Dict[int, _Event] = {}
        self._last = 0
        self._seen = 0

    @property
    def last(self) -> int:
        """The number of the newest event; 0 if there is none."""
        return self._last

    def post(self, kind: str, body: Dict[str, Any]) -> int:
        """Queue an event; returns its number."""
        with self._lock:
            seq = self._last + 1
            message = {
                **body,
                "kind": kind,
                "session": self._session,
                "seq": seq,
                "time": round(self._clock.time(), 3),
            }
            self._events[seq] = _Event(wire.pack(message, self._key))
            self._last = seq
            return seq

    def due(self, now: float) -> List[Tuple[int, bytes]]:
        """What has to be written now, in order."""
        with self._lock:
            return [
                (seq, event.data)
                for seq, event in sorted(self._events.items())
                if event.put_at is None
                or (now - event.put_at >= RESEND_S and self._seen > event.seen + 1)
            ]

    def was_put(self, seq: int, now: float) -> None:
        """The store has taken it."""
        with self._lock:
            event = self._events.get(seq)
            if event:
                event.put_at, event.seen = now, self._seen

    def acknowledged(self, seq: int) -> None:
        """A new heartbeat of the orchestrator: it has read everything up to `seq`."""
        with self._lock:
            self._seen += 1
            for known in [known for known in self._events if known <= seq]:
                del self._events[known]

    @property
    def settled(self) -> bool:
        """Every event has been read by the orchestrator."""
        with self._lock:
            return not self._events

    def unsent(self) -> int:
        """Events that the store has not taken yet."""
        with self._lock:
            return sum(event.put_at is None for event in self._events.values())

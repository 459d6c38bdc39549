"""The agent's side of the mailbox: tickets in, events and heartbeats out.

The only part that knows the inbox, the outbox and the two heartbeats in the store. It hands tickets over in the
order of their numbers and never judges them. When the store is away it waits, longer each time; nothing is
lost and nobody else notices.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from freegpu.agent import wire
from freegpu.agent.clock import Clock
from freegpu.agent.outbox import Outbox
from freegpu.agent.stores.base import ObjectMissing, Store, StoreError

#: look at the listing too, every so many looks: it wakes caches of mounts, and shows gaps
_LIST_EVERY = 10
#: a ticket that is missing or torn while later ones are there is reported after this many seconds
_GAP_S = 60.0
#: an absence shorter than this is not worth a notice, seconds
_AWAY_S = 10.0
_MAX_BACKOFF_S = 15.0


class Mailbox:
    """`step` may be called by one thread only."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        profile: wire.Profile,
        outbox: Outbox,
        *,
        deliver: Callable[[int, Dict[str, Any]], None],
        status: Callable[[], Dict[str, Any]],
        confirmed: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._profile = profile
        self._key = bytes.fromhex(profile.key)
        self._outbox = outbox
        self._deliver = deliver
        self._status = status
        self._confirmed = confirmed
        self._poll_s = max(profile.poll_s, store.properties.min_poll)
        self._started = clock.monotonic()
        self._hello: Optional[bytes] = None
        self._next = 1
        self._polled_at = float("-inf")
        self._ticket_at = self._started
        self._polls = 0
        self._gap_since: Optional[float] = None
        self._gap_told = False
        self._counter = 0
        self._beat_at = float("-inf")
        self._shape: Optional[Tuple[Any, Any, List[Any]]] = None
        self._orchestrator_at = float("-inf")
        self._orchestrator = 0
        self._away_since: Optional[float] = None
        self._away_told = False
        self._backoff = 0.0
        self._retry_at = float("-inf")
        self._finishing = False
        #: jobs that wait at the orchestrator, by its last word; None: it has not said
        self.waiting: Optional[int] = None
        #: everything that was to be written at the end has been written
        self.done = False

    def say_hello(self, facts: Mapping[str, Any]) -> None:
        """What the preflight found; written once."""
        self._hello = wire.pack({**facts, "session": self._profile.session}, self._key)

    def finish(self) -> None:
        """Nothing new will come: write what is left and the last heartbeat."""
        self._finishing = True

    def step(self) -> Optional[float]:
        """Write and read what is due; seconds until the next look, None after the last."""
        now = self._clock.monotonic()
        if now < self._retry_at:
            return self._retry_at - now
        finishing = self._finishing
        try:
            # reading first: a full store takes no events, but a ticket to stop must still come through
            if not finishing:
                self._read_inbox(now)
            self._read_orchestrator(now)
            self._write_hello()
            self._write_events(now)
            self._write_beat(now, last=finishing)
        except StoreError as error:
            return self._away(now, error)
        self._back(now)
        if finishing:
            self.done = True
            return None
        return max(0.02, min(self._polled_at + self._poll(now), self._beat_at + self._beat()) - now)

    @property
    def away_s(self) -> Optional[float]:
        """For how many seconds the store has not answered; None: it does."""
        return None if self._away_since is None else self._clock.monotonic() - self._away_since

    # --- out ---------------------------------------------------------------------------------------

    def _write_hello(self) -> None:
        hello, key = self._hello, wire.hello_key(self._profile.session)
        if hello is not None:
            self._store.put(key, hello)
            self._hello = None

    def _write_events(self, now: float) -> None:
        for seq, data in self._outbox.due(now):
            self._store.put(wire.outbox_key(self._profile.session, seq), data)
            self._outbox.was_put(seq, now)

    def _write_beat(self, now: float, *, last: bool) -> None:
        status = self._status()
        shape = _shape(status)
        if shape == self._shape and now - self._beat_at < self._beat() and not last:
            return
        self._counter += 1
        self._shape, self._beat_at = shape, now
        beat = {
            **status,
            "session": self._profile.session,
            "counter": self._counter,
            "outbox_seq": self._outbox.last,
            "uptime_s": round(now - self._started, 1),
        }
        self._store.put(wire.agent_beat_key(self._profile.session), wire.pack(beat, self._key))

    def _beat(self) -> float:
        return self._profile.beat_s

    def _listen(self) -> float:
        """Seconds between looks at the orchestrator's heartbeat: rarely, once nothing of ours waits for its word."""
        settled = bool(self._orchestrator) and self._outbox.settled
        # where a look costs nothing there is nothing to save
        idle = (
            settled and self._shape and not self._shape[2] and self._store.properties.min_poll >= 1
        )
        return self._beat() * (6 if idle else 1)

    # --- in ----------------------------------------------------------------------------------------

    def _poll(self, now: float) -> float:
        """Seconds between looks: longer after minutes without a ticket, when nobody waits."""
        quiet = now - self._ticket_at
        return self._poll_s * (1 if quiet < 60 else 2 if quiet < 180 else 4)

    def _read_inbox(self, now: float) -> None:
        if now - self._polled_at < self._poll(now):
            return
        self._polled_at = now
        self._polls += 1
        while True:
            ticket = self._ticket()
            if ticket is None:
                break
            self._deliver(self._next, ticket)
            self._next += 1
            self._ticket_at, self._gap_since, self._gap_told = now, None, False
        if self._polls % _LIST_EVERY == 0:
            self._look_for_gap(now)

    def _ticket(self) -> Optional[Dict[str, Any]]:
        """The next ticket, if it is there and whole."""
        session = self._profile.session
        try:
            data = self._store.get(wire.inbox_key(session, self._next))
            return wire.unpack_ticket(data, session, self._next, self._key)
        except (ObjectMissing, wire.Unreadable):
            return None

    def _look_for_gap(self, now: float) -> None:
        """Tickets are read in order or not at all; a missing one is only ever waited for."""
        session = self._profile.session
        waiting = self._store.list(
            wire.inbox_prefix(session), after=wire.inbox_key(session, self._next - 1)
        )
        if not waiting:
            self._gap_since = None
        elif self._gap_since is None:
            self._gap_since = now
        elif now - self._gap_since >= _GAP_S and not self._gap_told:
            self._gap_told = True
            detail = f"ticket {self._next} cannot be read, and {len(waiting)} wait"
            self._outbox.post(wire.NOTICE, {"code": "inbox_gap", "detail": detail})

    def _read_orchestrator(self, now: float) -> None:
        if now - self._orchestrator_at < self._listen() and not self._finishing:
            return
        self._orchestrator_at = now
        try:
            data = self._store.get(wire.orchestrator_beat_key(self._profile.session))
            beat = wire.unpack(data, self._key)
            counter, ack = int(beat["counter"]), int(beat["outbox_ack"])
            confirmed = {str(name): int(number) for name, number in beat["confirmed"].items()}
            waiting = beat.get("waiting")
        except (ObjectMissing, wire.Unreadable):
            return  # torn, or nobody has written one yet: the next look will tell
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # signed and senseless: of a newer orchestrator; nothing follows from it
        # A stale heartbeat does no harm: what was acknowledged or confirmed once stays so. Any other counter
        # counts as a sign of life, because an orchestrator that lost its ledger begins again at 1.
        if counter != self._orchestrator:
            self._orchestrator = counter
            self.waiting = waiting if isinstance(waiting, int) else None
            self._outbox.acknowledged(ack)
            self._confirmed(confirmed)

    # --- the store is away ----------------------------------------------------------------------------

    def _away(self, now: float, error: StoreError) -> float:
        if self._away_since is None:
            self._away_since = now
        elif now - self._away_since >= _AWAY_S and not self._away_told:
            self._away_told = True
            self._outbox.post(wire.NOTICE, {"code": "store_away", "detail": str(error)})
        first = min(1.0, self._poll_s)
        self._backoff = min(_MAX_BACKOFF_S, max(first, self._backoff * 2))
        self._retry_at = now + self._backoff
        return self._backoff

    def _back(self, now: float) -> None:
        if self._away_told and self._away_since is not None:
            seconds = round(now - self._away_since)
            detail = f"the store was away for {seconds} s"
            self._outbox.post(wire.NOTICE, {"code": "store_back", "detail": detail})
        self._away_since, self._away_told, self._backoff = None, False, 0.0


def _shape(status: Mapping[str, Any]) -> Tuple[Any, Any, List[Any]]:
    """What of the status is worth a heartbeat at once: not how far it is, but where."""
    slots = [(s["slot"], s["attempt"], s["phase"]) for s in status["slots"]]
    return (status["state"], status["inbox_seq"], slots)

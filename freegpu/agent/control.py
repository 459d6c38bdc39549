"""The agent's decisions: tickets in, attempts begun and stopped, the session ended in time.

One object, stepped by the main thread in production and by a simulation elsewhere. It never touches the store
and never waits: everything slow happens in the parts that it is given.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Deque,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Tuple,
)

from freegpu.agent import wire
from freegpu.agent.clock import Clock
from freegpu.agent.limits import Limits
from freegpu.agent.reasons import CANCELLED, PREEMPTED, SESSION_EXPIRED, SUPERSEDED

if TYPE_CHECKING:
    from freegpu.agent.attempt import Attempt

IDLE, RUNNING, DRAINING, ENDED = "idle", "running", "draining", "ended"
#: stop reasons that a ticket may name
_WISHES = (PREEMPTED, SUPERSEDED)


class Begin(Protocol):
    """Makes an attempt, with the threads that serve it. wire.Unreadable: its secrets do not open."""

    def __call__(self, ticket: wire.Run, slot: wire.Slot) -> Attempt: ...


@dataclass
class _Berth:
    """One slot: what is in it and what waits for it."""

    slot: wire.Slot
    attempt: Optional[Attempt] = None
    queue: Deque[wire.Run] = field(default_factory=deque)


class Control:
    """`deliver`, `confirmed` and `status` may be called by other threads; `step` by one only."""

    def __init__(
        self,
        profile: wire.Profile,
        clock: Clock,
        limits: Limits,
        *,
        begin: Begin,
        post: Callable[[str, Dict[str, Any]], object],
        gpu_use: Callable[[], List[Dict[str, Any]]] = list,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._profile = profile
        self._clock = clock
        self._limits = limits
        self._begin = begin
        self._post = post
        self._gpu_use = gpu_use
        self._changed = changed
        self._berths = {slot.index: _Berth(slot) for slot in profile.slots}
        self._tickets: Deque[Tuple[int, Dict[str, Any]]] = deque()
        self._handled = 0
        #: job -> attempts with a lower epoch are not begun any more
        self._fences: Dict[str, int] = {}
        self._seen: Dict[str, int] = {}
        self._idle_since = clock.monotonic()
        self._terminated = False
        self._closing = ""
        self._draining = False
        #: why the session ended: idle, drained, bye, limit or signal; "" before
        self.end = ""
        #: (attempt, outcome) of everything that ended here
        self.history: List[Tuple[str, str]] = []

    # --- from other threads ----------------------------------------------------------------------------

    def deliver(self, seq: int, ticket: Dict[str, Any]) -> None:
        """A ticket was read; tickets come in the order of their numbers."""
        self._tickets.append((seq, ticket))
        self._changed()

    def confirmed(self, generations: Mapping[str, int]) -> None:
        """The orchestrator has verified these attempts' checkpoints up to these generations."""
        for berth in self._berths.values():
            attempt = berth.attempt
            if attempt and attempt.ticket.attempt in generations:
                attempt.acknowledge(generations[attempt.ticket.attempt])

    def terminate(self) -> None:
        """The platform or a person wants the agent to end. Safe in a signal handler."""
        self._terminated = True

    def status(self) -> Dict[str, Any]:
        """For the heartbeat."""
        attempts = [berth.attempt for berth in self._berths.values()]
        left = self._limits.left(self._clock.monotonic())
        return {
            "state": self._state(),
            "slots": [attempt.status() for attempt in attempts if attempt],
            "gpu": self._gpu_use(),
            "inbox_seq": self._handled,
            "left_s": None if left is None else round(left, 1),
        }

    def view(self) -> Dict[str, Any]:
        """For a person who looks at the notebook."""
        attempts = [berth.attempt for berth in self._berths.values()]
        return {
            **self.status(),
            "slots": [attempt.view() for attempt in attempts if attempt],
            "cards": [berth.slot.card for berth in self._berths.values()],
            "queued": sum(len(berth.queue) for berth in self._berths.values()),
            "history": [list(entry) for entry in self.history[-20:]],
            "end": self.end,
        }

    def _state(self) -> str:
        if self.end:
            return ENDED
        if self._draining or self._closing:
            return DRAINING
        return RUNNING if self._busy() else IDLE

    # --- the control thread ----------------------------------------------------------------------------

    def step(self) -> Optional[float]:
        """Do everything that is due. Seconds until the next look; None when the session is over."""
        if self.end:
            return None
        now = self._clock.monotonic()
        while self._tickets:
            seq, ticket = self._tickets.popleft()
            self._handle(ticket, now)
            self._handled = seq
        self._check_time(now)
        wait = self._step_attempts(now)
        if self._over(now):
            return None
        idle = math.inf if self._busy() else self._idle_since + self._profile.idle_s - now
        return max(0.0, min(wait, idle, self._limits.kill - now if not self._closing else wait))

    def _busy(self) -> bool:
        return any(berth.attempt or berth.queue for berth in self._berths.values())

    def abort(self) -> None:
        """Leave no process behind, whatever state things are in."""
        for berth in self._berths.values():
            if berth.attempt:
                berth.attempt.kill()

    def _step_attempts(self, now: float) -> float:
        wait = 5.0
        for berth in self._berths.values():
            before = (berth.attempt.ticket.attempt, berth.attempt.phase) if berth.attempt else None
            attempt = berth.attempt
            if attempt:
                wait = min(wait, attempt.step())
                if attempt.ended:
                    self.history.append((attempt.ticket.attempt, attempt.outcome))
                    berth.attempt = None
                    self._idle_since = now
            if berth.attempt is None and berth.queue:
                self._begin_next(berth, now)
                wait = 0.0
            after = (berth.attempt.ticket.attempt, berth.attempt.phase) if berth.attempt else None
            if before != after:
                wait = 0.0
                self._changed()
        return max(0.0, wait)

    def _begin_next(self, berth: _Berth, now: float) -> None:
        ticket = berth.queue.popleft()
        if ticket.epoch < self._fences.get(ticket.job, 0):
            self._refuse(ticket, "a newer epoch of this job is known here")
        elif self._draining or self._closing:
            self._refuse(ticket, "the session takes nothing new")
        elif not self._limits.room(now, ticket.grace_s):
            left = self._limits.left(now) or 0.0
            self._refuse(ticket, f"only {left:.0f} s are left of the session")
        else:
            try:
                berth.attempt = self._begin(ticket, berth.slot)
            except (wire.Unreadable, OSError) as error:
                self._refuse(ticket, str(error))

    # --- tickets ----------------------------------------------------------------------------------------

    def _handle(self, ticket: Mapping[str, Any], now: float) -> None:
        kind = ticket.get("kind")
        if kind == wire.RUN:
            self._handle_run(ticket)
        elif kind == wire.STOP:
            wish = ticket.get("reason")
            wish = wish if wish in _WISHES else PREEMPTED
            self._stop_below(ticket, 0, str(wish))
        elif kind == wire.CANCEL:
            self._stop_below(ticket, 1, CANCELLED)
        elif kind == wire.DRAIN:
            self._draining = True
            self._refuse_waiting("the session takes nothing new")
        elif kind == wire.BYE:
            self._close("bye", now)
        else:
            detail = f"this agent does not know tickets of kind {kind!r}"
            self._post(wire.NOTICE, {"code": "unknown_ticket", "detail": detail})

    def _handle_run(self, body: Mapping[str, Any]) -> None:
        try:
            ticket = wire.Run.from_json(body)
        except wire.Unreadable as error:  # signed and incomplete: waiting would not mend it
            names = {name: body.get(name) for name in ("job", "attempt", "epoch")}
            self._post(wire.REFUSED, {**names, "detail": str(error)})
            return
        if ticket.attempt in self._seen:
            return  # written twice under two numbers: it has its answer, or will have
        self._seen[ticket.attempt] = ticket.epoch
        berth = self._berths.get(ticket.slot)
        if berth is None:
            self._refuse(ticket, f"this session has no slot {ticket.slot}")
            return
        self._fence(ticket.job, ticket.epoch, SUPERSEDED)
        berth.queue.append(ticket)

    def _stop_below(self, ticket: Mapping[str, Any], more: int, wish: str) -> None:
        job, epoch = ticket.get("job"), ticket.get("epoch")
        if isinstance(job, str) and isinstance(epoch, int):
            self._fence(job, epoch + more, wish)

    def _fence(self, job: str, epoch: int, wish: str) -> None:
        """Stop every attempt of this job below this epoch, and begin none any more."""
        self._fences[job] = max(epoch, self._fences.get(job, 0))
        for berth in self._berths.values():
            attempt = berth.attempt
            if attempt and attempt.ticket.job == job and attempt.ticket.epoch < epoch:
                attempt.stop(wish)
            for waiting in [w for w in berth.queue if w.job == job and w.epoch < epoch]:
                berth.queue.remove(waiting)
                self._end_unbegun(waiting, wish)

    def _refuse(self, ticket: wire.Run, detail: str) -> None:
        self._post(wire.REFUSED, {**_names(ticket), "detail": detail})
        self.history.append((ticket.attempt, "refused"))

    def _end_unbegun(self, ticket: wire.Run, reason: str) -> None:
        self._post(
            wire.ENDED,
            {
                **_names(ticket),
                "reason": reason,
                "exit_code": None,
                "signal": None,
                "detail": "it had not begun",
                "outputs": None,
                "progress": None,
                "seconds": 0.0,
                "log_segments": 0,
            },
        )
        self.history.append((ticket.attempt, reason))

    # --- the end ------------------------------------------------------------------------------------------

    def _check_time(self, now: float) -> None:
        if self._terminated and not self._closing:
            self._close("signal", now)
        if now >= self._limits.kill and not self._closing:
            self._close("limit", now)

    def _close(self, why: str, now: float) -> None:
        """Stop everything so that it is saved; take nothing new."""
        self._closing = self._closing or why
        for berth in self._berths.values():
            attempt = berth.attempt
            if attempt:
                by = now + attempt.ticket.grace_s + self._profile.margin_s
                attempt.stop(SESSION_EXPIRED, None if why == "limit" else by)
        self._refuse_waiting("the session ends")

    def _refuse_waiting(self, detail: str) -> None:
        for berth in self._berths.values():
            while berth.queue:
                self._refuse(berth.queue.popleft(), detail)

    def _over(self, now: float) -> bool:
        busy = self._busy()
        if now >= self._limits.end and busy:
            self.end = "limit"
        elif not busy and not self._tickets:
            if self._closing or self._draining:
                self.end = self._closing or "drained"
            elif now - self._idle_since >= self._profile.idle_s:
                self.end = "idle"
        if self.end:
            self._changed()
        return bool(self.end)

    @property
    def deadline(self) -> Optional[float]:
        """When the platform ends the session, in the clock's monotonic seconds; None: not known."""
        return None if math.isinf(self._limits.end) else self._limits.end


def _names(ticket: wire.Run) -> Dict[str, Any]:
    return {"job": ticket.job, "attempt": ticket.attempt, "epoch": ticket.epoch}

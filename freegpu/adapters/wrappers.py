"""What every adapter gets without writing it: patience, restraint, and a log of what went wrong.

Retried are calls that may be repeated without harm. `start` is repeated only after `find` said that there is no
session of this key, so an answer lost after accepting never leads to a second one. A platform that asked for quiet
gets it: until then no call leaves this machine. Knows no platform and no reason why a call is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from freegpu.adapters.base import (
    Adapter,
    Capabilities,
    Collected,
    Launch,
    LogPage,
    Observation,
    Offer,
    QuotaReport,
    Request,
    SessionRef,
    Tidy,
    Unsettled,
    Window,
)
from freegpu.clock import Clock
from freegpu.errors import AdapterError, NoCapacityError, RateLimitedError, UnreachableError

T = TypeVar("T")
log = logging.getLogger(__name__)

#: seconds before the second and the third try
PAUSES_S = (0.5, 2.0)
#: a platform that asks for more patience than this is left to the next tick
LONGEST_S = 10.0


class _BrokenError(UnreachableError):
    """A mistake in an adapter: what it was doing may have happened, and trying again makes it no better."""

    transient = False


class Patient:
    """An adapter around an adapter; `inner` is the one that does the work."""

    def __init__(self, inner: Adapter, clock: Clock, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self.inner = inner
        self._clock = clock
        self._pauses = tuple(pauses_s)
        #: no call before this moment, in the clock's monotonic seconds
        self._quiet_until = 0.0

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def account(self) -> str:
        return self.inner.account

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def windows(self) -> Mapping[str, Window]:
        return self.inner.windows

    def offers(self) -> Sequence[Offer]:
        return self._patiently("offers", self.inner.offers)

    def quota(self) -> Sequence[QuotaReport] | None:
        return self._patiently("quota", self.inner.quota)

    def render(self, launch: Launch, /) -> Request:
        return self.inner.render(launch)

    def start(self, request: Request, /) -> SessionRef:
        begun = False

        def once() -> SessionRef:
            nonlocal begun
            if begun:
                there = self.inner.find(request.key)
                if there is not None:
                    return there
            begun = True
            return self.inner.start(request)

        return self._patiently("start", once)

    def find(self, key: str, /) -> SessionRef | None:
        return self._patiently("find", lambda: self.inner.find(key))

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        return self._patiently("observe", lambda: self.inner.observe(refs))

    def stop(self, ref: SessionRef, /) -> None:
        self._patiently("stop", lambda: self.inner.stop(ref))

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        return self._patiently("logs", lambda: self.inner.logs(ref, cursor=cursor))

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return self._patiently("collect", lambda: self.inner.collect(ref, into))

    def tidy(self, ref: SessionRef, /) -> None:
        """Remove what a session left on the platform, where its adapter knows of such."""
        inner = self.inner
        if isinstance(inner, Tidy):
            self._patiently("tidy", lambda: inner.tidy(ref))

    def unsettled(self) -> bool:
        """Whether a start of it has left something uncertain, where its adapter knows of such."""
        return isinstance(self.inner, Unsettled) and self.inner.unsettled()

    def settle(self) -> None:
        """Give back what such starts have got."""
        inner = self.inner
        if isinstance(inner, Unsettled):
            self._patiently("settle", inner.settle)

    def close(self) -> None:
        self.inner.close()

    def _patiently(self, call: str, run: Callable[[], T]) -> T:
        for pause in self._pauses:
            try:
                return self._once(call, run)
            except NoCapacityError:
                raise  # the answer, not a failure: whether to ask again is decided elsewhere
            except AdapterError as error:
                wait = max(pause, self._quiet_until - self._clock.monotonic())
                if not error.transient or wait > LONGEST_S:
                    raise
            self._clock.sleep(wait)
        return self._once(call, run)

    def _once(self, call: str, run: Callable[[], T]) -> T:
        """One try. What an adapter was not made for becomes an AdapterError too: a tick has other platforms."""
        quiet = self._quiet_until - self._clock.monotonic()
        if quiet > 0:
            raise RateLimitedError(
                f"{self.name} asked for quiet", retry_after_s=quiet, **self._who()
            )
        extra = {"action": "adapter_error", "platform": self.name, "call": call}
        try:
            return run()
        except AdapterError as error:
            log.info("%s.%s: %s", self.name, call, error, extra=extra)
            if isinstance(error, RateLimitedError) and error.retry_after_s is not None:
                self._quiet_until = self._clock.monotonic() + error.retry_after_s
            raise
        except Exception as error:
            log.exception("%s.%s", self.name, call, extra=extra)
            raise _BrokenError(
                f"the adapter failed in {call}(): {type(error).__name__}: {error}",
                hint="the log has the traceback; please report it to whoever wrote the adapter",
                **self._who(),
            ) from error

    def _who(self) -> dict[str, str]:
        return {"adapter": self.name, "account": self.account}


def wrap(adapter: Adapter, *, clock: Clock) -> Patient:
    """The adapter with everything around it."""
    return Patient(adapter, clock)

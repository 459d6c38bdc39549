"""Calls to platforms beside each other, each platform in a lane of its own: one that hangs holds up nobody.

A call goes on when the patience for it is over; whoever asks the same again joins it instead of asking twice. What must
not be cut off (a start, bringing output home) has a second lane, so that an upload of minutes keeps nobody from looking,
and is waited for by `finish` before the process ends. Knows no ledger and no platform.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from freegpu.errors import UnreachableError

T = TypeVar("T")

#: how long anybody who looks, and any tick, waits for platforms, seconds
PATIENCE_S = 5.0


def starting(session: str) -> str:
    """What the call is named that starts this session."""
    return f"start {session}"


class Late(UnreachableError):  # noqa: N818 - reads as what happened
    """The platform has not answered yet; the call goes on."""

    code = "late"


class Call(Generic[T]):
    """One call on its way."""

    def __init__(self, platform: str, run: Callable[[], T]) -> None:
        self.platform = platform
        self._run = run
        self._over = threading.Event()
        self._result: T | None = None
        self._error: BaseException | None = None
        #: when it was asked for, monotonic seconds
        self.since = time.monotonic()

    def carry_out(self) -> None:
        """Run it, in its lane."""
        try:
            self._result = self._run()
        except BaseException as error:
            self._error = error
        self._over.set()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def wait(self, seconds: float | None) -> bool:
        """Whether it was over within so many seconds; None: as long as it takes."""
        return self._over.wait(None if seconds is None else max(0.0, seconds))

    def result(self) -> T:
        """What it returned; raises what it raised. Late: it is not over."""
        if not self.over:
            waited = time.monotonic() - self.since
            raise Late(
                f"no answer for {waited:.0f} s; it is still being waited for",
                hint="what is shown is what was last known",
                adapter=self.platform,
            )
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Lanes:
    """The lanes of one process."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        #: how long an answer is waited for unless somebody says otherwise, seconds
        self.patience_s = patience_s
        self._lock = threading.Lock()
        self._queues: dict[str, queue.SimpleQueue[Call[Any] | None]] = {}
        #: (platform, what) -> the newest call, until its result was taken
        self._calls: dict[tuple[str, str], Call[Any]] = {}
        #: those that `finish` waits for
        self._vital: set[tuple[str, str]] = set()

    def call(
        self, platform: str, what: str, run: Callable[[], T], *, vital: bool = False
    ) -> Call[T]:
        """Begin this call, or join the one of this name that is on its way or whose result nobody has taken.

        `vital`: a process does not end before it is over.
        """
        with self._lock:
            call = self._calls.get((platform, what))
            if call is None:
                call = self._calls[platform, what] = Call(platform, run)
                if vital:
                    self._vital.add((platform, what))
                self._lane(f"{platform} vital" if vital else platform).put(call)
            return call

    def take(self, platform: str, what: str, *, wait_s: float = 0.0) -> Any:
        """The result of a call, which is then forgotten; raises what it raised. Late: it is not over yet."""
        with self._lock:
            call = self._calls[platform, what]
        if call.wait(wait_s):
            with self._lock:
                self._calls.pop((platform, what), None)
                self._vital.discard((platform, what))
        return call.result()

    def ask(
        self, platform: str, what: str, run: Callable[[], T], *, wait_s: float | None = None
    ) -> T:
        """Call and wait for the answer. Late: there was none in time."""
        self.call(platform, what, run)
        found: T = self.take(platform, what, wait_s=self.patience_s if wait_s is None else wait_s)
        return found

    def ask_all(
        self, what: str, runs: Mapping[str, Callable[[], T]], *, wait_s: float | None = None
    ) -> dict[str, Callable[[], T]]:
        """Ask many platforms at once; after at most `wait_s` seconds (None: our patience), how to get at each one's answer.

        Calling what is returned gives the result, or raises what went wrong, Late among it.
        """
        end = time.monotonic() + (self.patience_s if wait_s is None else wait_s)
        for platform, run in runs.items():
            self.call(platform, what, run)
        for platform in runs:
            with self._lock:
                call = self._calls.get((platform, what))
            if call is not None:
                call.wait(end - time.monotonic())

        def answer(platform: str) -> Callable[[], T]:
            return lambda: self.take(platform, what)

        return {platform: answer(platform) for platform in runs}

    def under_way(self, platform: str, what: str) -> bool:
        """Whether such a call was begun and its result not taken."""
        with self._lock:
            return (platform, what) in self._calls

    @property
    def busy(self) -> bool:
        """Whether anything goes on that a process must not cut off, or came to its end and was not waited for yet."""
        with self._lock:
            return bool(self._vital)

    def finish(self) -> None:
        """Wait until every vital call is over; their results are still to be taken.

        Whoever does not take one after this is not told of it again: nobody may wait for it for ever.
        """
        with self._lock:
            calls = {name: self._calls[name] for name in self._vital}
        for call in calls.values():
            call.wait(None)
        with self._lock:
            self._vital -= calls.keys()

    def close(self) -> None:
        """No more calls; lanes that are in the middle of one end after it."""
        with self._lock:
            for line in self._queues.values():
                line.put(None)
            self._queues.clear()

    def _lane(self, name: str) -> queue.SimpleQueue[Call[Any] | None]:
        if name not in self._queues:
            line: queue.SimpleQueue[Call[Any] | None] = queue.SimpleQueue()
            self._queues[name] = line
            # a daemon thread: a platform that never answers keeps no command from ending
            threading.Thread(target=_serve, args=(line,), name=f"lane {name}", daemon=True).start()
        return self._queues[name]


def _serve(line: queue.SimpleQueue[Call[Any] | None]) -> None:
    while (call := line.get()) is not None:
        call.carry_out()

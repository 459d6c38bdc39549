"""Threads for parts that are written as steps.

A part knows what to do next and how long it may wait; it does not know whether a thread, a test or a
simulation calls its step. Here is the thread.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from typing import Callable, List, Optional

#: does some work; returns the seconds it can wait, or None when there is nothing left to do ever
Step = Callable[[], Optional[float]]


def say(text: str) -> None:
    """A line for whoever reads the session's own output."""
    sys.stderr.write(f"freegpu-agent: {text}\n")
    sys.stderr.flush()


class Lane:
    """Calls one part's step in a thread of its own until it returns None."""

    def __init__(self, name: str, step: Step, failed: Callable[[str, BaseException], None]) -> None:
        self._name = name
        self._step = step
        self._failed = failed
        self._wake = threading.Event()
        # a store call can hang for ever in a dead mount: that may not keep the agent from ending
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> "Lane":
        self._thread.start()
        return self

    def wake(self) -> None:
        """There is something to do now."""
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the part came to its end within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait: Optional[float] = 0.0
        faults = 0
        while wait is not None:
            if wait > 0:
                self._wake.wait(wait)
            self._wake.clear()
            try:
                wait = self._step()
                faults = 0
            except Exception as error:  # a bug in one part may not end the others, and must be seen
                faults += 1
                wait = min(60.0, 2.0**faults)
                say(f"{self._name} failed and goes on in {wait:.0f} s\n{traceback.format_exc()}")
                self._failed(self._name, error)


class Bell:
    """Waits in the main thread for a time, a ring from another thread, or a signal.

    A pipe and not an Event: a signal that arrives while an Event's own lock is held would deadlock.
    """

    def __init__(self) -> None:
        self._read, self.write_end = os.pipe()
        for end in (self._read, self.write_end):
            os.set_blocking(end, False)

    def ring(self) -> None:
        try:
            os.write(self.write_end, b"!")
        except BlockingIOError:
            return  # thousands of rings are waiting already: one is enough

    def wait(self, seconds: float) -> None:
        ready: List[int] = select.select([self._read], [], [], max(0.0, seconds))[0]
        if ready:
            os.read(self._read, 4096)

    def close(self) -> None:
        os.close(self._read)
        os.close(self.write_end)

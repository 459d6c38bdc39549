"""Jobs that wait for the store, several at a time. A single one is done by the caller's own thread.

Threads are daemons: a store call can hang for ever in a dead mount, and that may not keep the agent from
ending. After a failure nothing new begins, and what has begun is waited for, so that it counts.
"""

from __future__ import annotations

import threading
from typing import Callable, List, Optional

#: at a time
MOST = 4
_LOOK_S = 0.25


class Crew:
    """`look` is called while somebody waits, and may raise to end it all."""

    def __init__(self, look: Callable[[], None], most: int = MOST) -> None:
        self._look = look
        self._most = most
        self._free = threading.Semaphore(most)
        self._held: Optional[Callable[[], None]] = None
        self._threads: List[threading.Thread] = []
        self._errors: List[BaseException] = []

    def run(self, job: Callable[[], None]) -> None:
        """Begin it, when there is room. Raises what an earlier one raised, or `look`."""
        if self._most == 1:
            self._look()
            job()
        elif self._held is None and not self._threads:
            self._held = job
        else:
            held, self._held = self._held, None
            for each in [held, job] if held else [job]:
                self._begin(each)

    def _begin(self, job: Callable[[], None]) -> None:
        while True:
            self._check()
            if self._free.acquire(timeout=_LOOK_S):
                break
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=self._do, args=(job,), daemon=True))
        self._threads[-1].start()

    def _do(self, job: Callable[[], None]) -> None:
        try:
            if not self._errors:
                job()
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._free.release()

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]
        self._look()

    def finish(self) -> None:
        """All are done. Raises what one raised."""
        held, self._held = self._held, None
        if held:
            self._look()
            held()
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                self._check()
        if self._errors:
            raise self._errors[0]

    def wait(self) -> None:
        """What has begun has ended, well or not; nothing else begins."""
        self._held = None
        for thread in self._threads:
            thread.join()

"""`up` and `tick`: moving jobs on, all the time or once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from freegpu import config
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output, ReaderGone
from freegpu.cli.plain import Failure
from freegpu.cli.text import safe
from freegpu.errors import FreeGPUError, LedgerBusyError

if TYPE_CHECKING:
    from freegpu.orchestrator.views import Ticked


@command("tick", example="freegpu tick")
def tick(call: Call) -> Result:
    """Move jobs on once.

    Observe sessions, decide, act. Every command that looks at jobs does the same when nobody else does.
    """
    with call.workspace() as workspace:
        ticked = workspace.tick(block=True)
    if not ticked.did:
        raise LedgerBusyError(
            f"{ticked.holder} is the orchestrator of this home and ticks already",
            hint="nothing needs to be done",
        )
    errors = tuple(Failure(code="tick", message=problem) for problem in ticked.errors)

    def show(out: Output) -> None:
        for action in ticked.actions:
            out.line(safe(action))
        if not ticked.actions:
            out.note("nothing to do")

    return Result(data=ticked, show=show, errors=errors)


@command("up", example="freegpu up\nnohup freegpu up > freegpu.log 2>&1 &")
def up(call: Call) -> Result:
    """Move jobs on until stopped.

    One orchestrator a home; a second one says who the first is. Ctrl-C or SIGTERM ends it between two
    ticks with exit code 0: agents that run go on without it. With --json it prints one line for each tick in which
    something happened.
    """
    asked, stop = threading.Event(), threading.Event()
    watch = _Settings(call)
    done = {"ticks": 0, "actions": 0, "errors": 0}
    broken: list[Exception] = []

    def on_tick(ticked: Ticked) -> None:
        if not done["ticks"]:
            # only now it is sure that nobody else is the orchestrator
            call.out.note(f"moving jobs on every {call.settings.tick_s:g} s; Ctrl-C stops it")
        done["ticks"] += 1
        done["actions"] += len(ticked.actions)
        done["errors"] += len(ticked.errors)
        try:
            if ticked.actions or ticked.errors:
                _tell(call, ticked)
            if watch.changed():
                stop.set()
        except (OSError, ReaderGone) as error:
            # nobody reads any more, or the disk is full: end as every other command does
            broken.append(error)
            asked.set()
            stop.set()

    with _stopped_by_signals(asked, stop):
        while True:
            with call.opened(watch.settings) as workspace:
                from freegpu.orchestrator import daemon

                daemon.run(workspace, stop=stop, on_tick=on_tick)
            if asked.is_set() or not stop.is_set():
                break
            stop.clear()
            watch.take()
            if asked.is_set():  # between the two
                stop.set()
    if broken:
        raise broken[0]
    return Result(data=done, show=lambda out: out.note("stopped; running agents go on"))


class _Settings:
    """The settings that `up` goes by; it takes new ones when the file has changed, as after `freegpu connect`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.settings = call.settings
        self._next = self.settings
        self._fault = ""

    def changed(self) -> bool:
        """Whether the file says something else now. What is wrong with it is told once, and it is not taken."""
        try:
            self._next = config.load(self._call.environ)
        except FreeGPUError as error:
            if str(error) != self._fault:
                self._call.out.warn(f"{error}; until then the settings of before hold")
            self._fault = str(error)
            return False
        self._fault = ""
        return self._next != self.settings

    def take(self) -> None:
        """Go by what `changed` found."""
        self._call.out.note("the settings have changed, and hold from now on")
        self.settings = self._next


def _tell(call: Call, ticked: Ticked) -> None:
    if call.json:
        errors = tuple(Failure(code="tick", message=problem) for problem in ticked.errors)
        call.event(
            Result(data=ticked, show=lambda out: None, errors=errors),
            one_line=True,
        )
        return
    at = call.now().astimezone().strftime("%H:%M:%S")
    for action in ticked.actions:
        call.out.line(f"{at}  {safe(action)}")
    for problem in ticked.errors:
        call.out.warn(f"{at}  {problem}")
    call.out.flush()


@contextmanager
def _stopped_by_signals(*events: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set these; the same again does what it always did."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: object) -> None:
        for event in events:
            event.set()
        signal.signal(number, previous[signal.Signals(number)])

    for number in previous:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, action in previous.items():
            signal.signal(number, action)

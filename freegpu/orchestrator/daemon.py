"""`freegpu up`: ticks at an even pace until it is asked to stop. The only user of APScheduler."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from apscheduler.schedulers.background import BackgroundScheduler

from freegpu.errors import FreeGPUError, LedgerBusyError
from freegpu.orchestrator.operations import PATIENCE_S, Workspace
from freegpu.orchestrator.views import Ticked

log = logging.getLogger(__name__)


def run(workspace: Workspace, *, stop: threading.Event, on_tick: Callable[[Ticked], None]) -> None:
    """Hold the orchestrator lock and tick every `tick_s` seconds until `stop` is set, which `on_tick` may do.

    One slow tick delays the next; ticks never overlap and missed ones are not made up for. A tick that
    fails is reported through `on_tick` and tried again. LedgerBusyError: another daemon holds the lock, or a
    command for more than some seconds.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with workspace.orchestrating("freegpu up") as holder:
            if holder is None:
                _run(workspace, stop, on_tick)
                return
        # a command in the middle of its tick lets go in a moment; another daemon does not
        if "up" in holder.command.split() or stop.is_set() or time.monotonic() >= deadline:
            raise LedgerBusyError(
                f"{holder} is the orchestrator of this home already",
                hint="stop it first, or just use it: every command works beside it",
            )
        workspace.clock.sleep(0.05)


def _run(workspace: Workspace, stop: threading.Event, on_tick: Callable[[Ticked], None]) -> None:
    def tick() -> None:
        try:
            on_tick(workspace.tick_held())
            workspace.tell()
        except FreeGPUError as error:
            on_tick(Ticked(did=False, errors=(f"{error}",)))
        except Exception as error:
            # a bug in one tick must not end a daemon that other jobs rely on; the log has the rest
            log.exception("a tick failed", extra={"action": "tick_failed"})
            on_tick(Ticked(did=False, errors=(f"internal error: {type(error).__name__}: {error}",)))

    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(
        tick,
        "interval",
        seconds=workspace.settings.tick_s,
        max_instances=1,
        coalesce=True,
        misfire_grace_time=None,
    )
    tick()
    scheduler.start()
    try:
        stop.wait()
    finally:
        scheduler.shutdown(wait=True)
        workspace.tell(finish=True)

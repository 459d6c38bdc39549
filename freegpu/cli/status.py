"""`status`: platforms with quota, sessions and jobs, once or live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import click

from freegpu.cli import tables
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command

if TYPE_CHECKING:
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.views import Status

#: seconds between two looks of --watch
EVERY_S = 2.0


@command("status", example="freegpu status --watch")
@click.option("--watch", is_flag=True, help="Look again every 2 s until Ctrl-C.")
def status(call: Call, watch: bool) -> Result:
    """Show platforms with quota, sessions and jobs.

    USED / LEFT is session time. SOURCE tells who says so: the platform itself (live), freegpu's own count
    (ledger), what past sessions showed (learned) or the published figure (declared).
    """
    with call.workspace() as workspace:
        if watch:
            return _watch(call, workspace)
        return _result(call, _look(call, workspace))


def _look(call: Call, workspace: Workspace) -> Status:
    call.move_on(workspace)
    return workspace.status()


def _result(call: Call, found: Status) -> Result:
    now = call.now()

    def show(out: object) -> None:
        for line in tables.status_lines(found, now, room=call.out.room, paint=call.out.paint):
            call.out.line(line)
        told = {trouble.message for trouble in call.troubles}
        for problem in found.problems:
            if problem not in told:
                call.out.warn(problem)

    return Result(data=found, show=show)


def _watch(call: Call, workspace: Workspace) -> Result:
    """Until Ctrl-C, which is how a watch ends: no failure."""
    redrawn = call.out.on_terminal and not call.json
    view: AbstractContextManager[Callable[[Sequence[str]], None] | None]
    view = call.out.live() if redrawn else nullcontext(None)
    result = None
    try:
        with view as draw:
            while True:
                found = _look(call, workspace)
                result = _result(call, found)
                if draw is not None:
                    draw(
                        tables.status_lines(
                            found, call.now(), room=call.out.room, paint=call.out.paint
                        )
                    )
                elif call.json:
                    call.event(result, one_line=True)
                else:
                    result.show(call.out)
                    call.out.line()
                    call.out.flush()
                call.sleep(EVERY_S)
    except KeyboardInterrupt:
        # a person has seen the last look; a program gets it once more, as the envelope that ends the lines
        return Result(data=result.data if result else None, show=lambda out: None)

"""`cancel`, `retry` and `interrupt`: changing what becomes of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import safe
from freegpu.errors import FreeGPUError

if TYPE_CHECKING:
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.views import JobView


@command("cancel", example="freegpu cancel k3x9f2 q81mzt")
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
def cancel(call: Call, jobs: tuple[str, ...]) -> Result:
    """Cancel jobs.

    JOB is an id, the beginning of one, or a name; the name of a matrix means all of its jobs that are still open.
    A running job gets SIGTERM and its grace time to save; a sealed session, which nothing reaches, is ended and what
    it did since it began is lost. If one of the jobs is not known or has ended already, none is cancelled.
    """
    with call.workspace() as workspace:
        lost = workspace.lost_by_cancelling(jobs)
        views = workspace.cancel(jobs)
        for sentence in lost:
            call.out.warn(sentence)
        _send(call, workspace)
    return _result(views, "cancelled")


@command("retry", example="freegpu retry k3x9f2 --from-scratch")
@click.argument("job")
@click.option("--from-scratch", is_flag=True, help="Forget its checkpoints.")
def retry(call: Call, job: str, from_scratch: bool) -> Result:
    """Try a failed or cancelled job again.

    It goes on from its newest checkpoint. The name of a matrix means all of its jobs that have failed or were cancelled.
    """
    with call.workspace() as workspace:
        views = workspace.retry(job, from_scratch=from_scratch)
        _send(call, workspace)
    return _result(views, "waits for its next attempt")


@command("interrupt", example="freegpu interrupt k3x9f2 && freegpu logs k3x9f2 -f")
@click.argument("job")
def interrupt(call: Call, job: str) -> Result:
    """Rehearse a preemption of a running job.

    It gets SIGTERM and its grace time to save, and goes on elsewhere or in the same place: what it will do when
    a platform takes its session away.
    """
    with call.workspace() as workspace:
        view = workspace.interrupt(job)
        _send(call, workspace)
    return _result([view], "is asked to save and stop")


def _send(call: Call, workspace: Workspace) -> None:
    """Let a tick carry the word to the agents; what was decided stands in the ledger in any case."""
    try:
        call.tell(workspace.tick(block=True))
    except FreeGPUError as error:
        call.out.warn(f"the word is not sent yet: {error}")


def _result(views: Sequence[JobView], words: str) -> Result:
    def show(out: Output) -> None:
        for view in views:
            out.line(f"{safe(view.name)} ({view.id}) {words}")

    return Result(data={"jobs": list(views)}, show=show)

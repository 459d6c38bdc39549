"""`logs`: a job's output over all its attempts; and following it, which `submit --wait` does too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from freegpu.cli import tables
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.plain import VERSION, Failure, plain
from freegpu.cli.text import safe
from freegpu.errors import JobFailedError

if TYPE_CHECKING:
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.views import JobView, LogChunk


@command("logs", example="freegpu logs k3x9f2 -f")
@click.argument("job")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on over all hops until the job is over, then exit 0 or 32.",
)
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Only the output of this attempt."
)
def logs(call: Call, job: str, follow: bool, attempt: int | None) -> Result:
    """Print a job's output, over all its attempts.

    stdout gets the job's own bytes; a line on stderr marks where the next attempt begins. With --json and -f each
    piece is one JSON line, and the envelope is the last line.
    """
    with call.workspace() as workspace:
        call.move_on(workspace)
        if follow:
            return follow_job(call, workspace, job, attempt=attempt)
        chunks = workspace.log_chunks(job, attempt=attempt)
        if call.json:
            data = {"job": job, "chunks": [_piece(chunk) for chunk in chunks]}
            return Result(data=data, show=lambda out: None)
        for chunk in chunks:
            _print(call, chunk)
    return Result(data=None, show=lambda out: None)


def follow_job(
    call: Call, workspace: Workspace, job: str, *, attempt: int | None = None, lines: bool = True
) -> Result:
    """Print the output of a job until it is over. The result fails like JobFailedError if the job did not succeed.

    `lines`: with --json, a JSON line for each piece; otherwise nothing but the final envelope.
    """
    # the id holds on to the job, whatever else gets its name meanwhile
    job = workspace.show(job).job.id
    for chunk in workspace.log_chunks(job, attempt=attempt, follow=True):
        if not call.json:
            _print(call, chunk)
        elif lines:
            event = {"freegpu_json": VERSION, "event": "log", **_piece(chunk)}
            call.out.document(event, one_line=True)
    view = workspace.show(job).job
    return conclude(call, [view])


def conclude(call: Call, views: list[JobView]) -> Result:
    """How the jobs ended that were waited for: success if all succeeded."""
    failed = [view for view in views if view.state != "succeeded"]
    errors = tuple(
        Failure(
            code=JobFailedError.code,
            message=f"{view.name} ({view.id}) {'was' if view.state == 'cancelled' else 'has'} {view.state}"
            + (f": {view.why}" if view.why and view.why != view.state else ""),
            hint=f"`freegpu show {view.id}` tells more",
        )
        for view in failed
    )

    def show(out: Any) -> None:
        for view in views:
            if view.state == "succeeded":
                out.note(
                    f"{view.name} ({view.id}) has succeeded; `freegpu pull {view.id}` brings its outputs, if it wrote any"
                )

    return Result(
        data={"jobs": views},
        show=show,
        exit_code=JobFailedError.exit_code if failed else 0,
        errors=errors,
    )


def _print(call: Call, chunk: LogChunk) -> None:
    if chunk.first:
        call.out.flush()
        where = tables.place(chunk.platform, chunk.card)
        call.out.note(f"--- attempt {chunk.attempt.rpartition('-')[2]} on {safe(where)} ---")
    call.out.raw(chunk.data)


def _piece(chunk: LogChunk) -> dict[str, Any]:
    piece: dict[str, Any] = plain(chunk)
    piece["text"] = piece.pop("data")
    return piece

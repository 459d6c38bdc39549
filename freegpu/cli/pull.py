"""`pull`: bring a job's outputs here."""

from __future__ import annotations

from pathlib import Path

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import count, safe, size


@command("pull", example="freegpu pull k3x9f2 results/")
@click.argument("job")
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
def pull(call: Call, job: str, directory: Path | None, force: bool) -> Result:
    """Bring a job's outputs here, verified.

    They go into DIR, or into a folder named after the job's id. Every byte is checked against the digests that
    the job's attempt recorded before the first file appears. A job that has not succeeded gives what its last attempt
    left, and says so.
    """
    with call.workspace() as workspace:
        call.move_on(workspace)
        if directory is None:
            directory = Path(workspace.show(job).job.id)
        pulled = workspace.pull(job, directory, force=force)

    def show(out: Output) -> None:
        for name in pulled.files:
            out.line(safe(pulled.into / name))
        words = f"{count(len(pulled.files), 'file')}, {size(pulled.size)}"
        if pulled.partial:
            out.warn(
                f"{words}, left by attempt {pulled.attempt}: the job is {pulled.job.state}, this is not its result"
            )
        else:
            out.note(f"{words}, the result of attempt {pulled.attempt}")

    return Result(data=pulled, show=show)

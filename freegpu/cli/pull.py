"""`pull`: bring a job's outputs or one of its checkpoints here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result, failure
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import count, safe, size
from freegpu.errors import NotReadyError

if TYPE_CHECKING:
    from freegpu.orchestrator.views import Pulled, PulledMatrix


@command("pull", example="freegpu pull k3x9f2 results/\nfreegpu pull sweep")
@click.argument("job")
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    is_flag=False,
    flag_value="latest",
    metavar="[GENERATION]",
    help="Bring this checkpoint instead, as `freegpu checkpoints` names it; the newest without a name.",
)
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
def pull(
    call: Call, job: str, directory: Path | None, checkpoint: str | None, force: bool
) -> Result:
    """Bring a job's outputs or a checkpoint here, verified.

    Outputs go into DIR, or into a folder named after the job's id. Every byte is checked against the digests that
    the job's attempt recorded before the first file appears. A job that has not succeeded gives what its last attempt
    left, and says so.

    The name of a matrix means all of its jobs, each into a folder of its name below DIR, or below one named after the
    matrix. Jobs that have no result yet are told, and then the exit code is 33; a cell that was submitted again counts once.

    A checkpoint must be a confirmed one. Its folder is DIR, or one named after the job's id and the checkpoint's; it
    must be empty, or it is replaced as a whole with --force. It appears when all of it is there.
    """
    with call.workspace() as workspace:
        call.move_on(workspace)
        if checkpoint is not None:
            return _checkpoint(
                workspace.pull_checkpoint(job, directory, which=checkpoint, force=force)
            )
        brought = workspace.pull_matrix(job, directory, force=force)
        if brought is not None:
            return _matrix(brought)
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


def _matrix(pulled: PulledMatrix) -> Result:
    def show(out: Output) -> None:
        for cell in pulled.cells:
            for name in cell.files:
                out.line(safe(Path(cell.into or ".") / name))
        files, whole = sum(len(cell.files) for cell in pulled.cells), 0
        failed = any(error.code != NotReadyError.code for error in pulled.errors)
        for cell in pulled.cells:
            whole += bool(cell.attempt) and not cell.partial
            if cell.partial:
                out.warn(
                    f"{safe(cell.name)} is {cell.state}: what attempt {cell.attempt} left, not its result"
                )
            elif not (cell.attempt or failed) and cell.state == "succeeded":
                out.warn(f"{safe(cell.name)} has succeeded, but wrote no outputs")
        total = sum(cell.size for cell in pulled.cells)
        out.note(
            f"{count(files, 'file')}, {size(total)}: results of {whole} of {count(len(pulled.cells), 'job')}"
            f" in {safe(pulled.into)}"
        )

    return Result(
        data={"name": pulled.name, "into": pulled.into, "cells": pulled.cells},
        show=show,
        exit_code=pulled.errors[0].exit_code if pulled.errors else 0,
        errors=tuple(failure(error) for error in pulled.errors),
    )


def _checkpoint(pulled: Pulled) -> Result:
    def show(out: Output) -> None:
        for name in pulled.files:
            out.line(safe(pulled.into / name))
        words = f"{count(len(pulled.files), 'file')}, {size(pulled.size)}"
        out.note(f"{words}, checkpoint {pulled.checkpoint} of attempt {pulled.attempt}")

    return Result(data=pulled, show=show)

"""Bringing home what the cells of a matrix left, a folder a cell. One cell that cannot be brought stops no other.

Decides: what of a matrix there is to bring, under which names, and with which code a command on it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from freegpu.agent.stores.base import Store
from freegpu.errors import ChecksumError, ConfigError, FreeGPUError, NotReadyError
from freegpu.jobs.lifecycle import JobState
from freegpu.orchestrator import results
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Job
from freegpu.orchestrator.reader import newest_cells
from freegpu.orchestrator.views import PulledCell, PulledMatrix

__all__ = ["pull"]


def pull(
    ledger: Ledger, store: Callable[[], Store], name: str, into: Path | None, *, force: bool
) -> PulledMatrix | None:
    """Bring the outputs of every cell, as it was submitted last, into a folder of its own; None: no matrix has this name.

    `store` is opened when there is something to bring. NotReadyError: no cell has anything. SharedStoreError: it
    cannot be used; the folders that are there then are whole.
    """
    jobs = newest_cells(ledger.cells(name))
    if not jobs:
        return None
    into = into or Path(name)
    folders = _folders(jobs, into)
    chosen: dict[str, tuple[str, str, str, bool]] = {}
    for job in jobs:
        try:
            chosen[job.id] = results.choose_outputs(job, ledger.attempts(job=job.id))
        except NotReadyError:
            continue  # it has none: its line tells its state
    silent = [job for job in jobs if job.state is JobState.SUCCEEDED and job.id not in chosen]
    if not chosen:
        if len(silent) == len(jobs):
            message = f"all {len(jobs)} jobs of {name} have succeeded, but none wrote outputs"
            hint = "files in $FREEGPU_OUTPUT_DIR and those matching freegpu.outputs are kept"
        else:
            message = f"no job of {name} has outputs yet: {_states(jobs)}"
            hint = f"`freegpu results {name}` shows how far they are"
        raise NotReadyError(message, hint=hint)
    cells, errors = [], []
    for job in jobs:
        attempt, partial = "", False
        files: tuple[str, ...] = ()
        size = 0
        if job.id in chosen:
            attempt, key, digest, partial = chosen[job.id]
            try:
                files, size = results.bring(store(), key, digest, folders[job.id], force=force)
            except (ChecksumError, ConfigError) as error:
                errors.append(error)
                attempt, partial = "", False
        cells.append(
            PulledCell(
                job=job.id,
                name=job.name,
                params=dict(job.spec.cell),
                state=str(job.state),
                attempt=attempt,
                files=files,
                size=size,
                into=folders[job.id] if attempt else None,
                partial=partial,
            )
        )
    return PulledMatrix(
        name=name,
        into=into,
        cells=tuple(cells),
        errors=(*_grouped(errors), *_unfinished(name, jobs, cells)),
    )


def _folders(jobs: Sequence[Job], into: Path) -> dict[str, Path]:
    """Named after the jobs; where two axes made two cells of one name, with their ids."""
    names = Counter(job.name for job in jobs)
    return {j.id: into / (j.name if names[j.name] == 1 else f"{j.name}-{j.id}") for j in jobs}


def _unfinished(name: str, jobs: Sequence[Job], cells: Sequence[PulledCell]) -> list[NotReadyError]:
    left = [job for job in jobs if job.state is not JobState.SUCCEEDED]
    if not left:
        return []
    partial = sum(cell.partial for cell in cells)
    what = f"{len(left)} of {len(jobs)} jobs of {name} have no result: {_states(left)}"
    if partial:
        what += f"; what the last attempt left is here of {partial} of them"
    return [NotReadyError(what, hint=f"`freegpu results {name}` shows how far they are")]


def _states(jobs: Sequence[Job]) -> str:
    counts = Counter(str(job.state) for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in map(str, JobState) if counts[state])


def _grouped(errors: Sequence[FreeGPUError]) -> list[FreeGPUError]:
    """One error a class: a sweep of hundreds pulled into the wrong folder says it once."""
    found: dict[str, list[FreeGPUError]] = {}
    for error in errors:
        found.setdefault(error.code, []).append(error)
    return [
        one if len(same) == 1 else type(one)(f"{one}, and {len(same) - 1} more", hint=one.hint)
        for same in found.values()
        for one in same[:1]
    ]

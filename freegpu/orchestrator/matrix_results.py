"""What the cells of a matrix came to: parameters, last figures, where and how long. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from freegpu.errors import JobNotFoundError
from freegpu.jobs import matrix
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Job
from freegpu.orchestrator.reader import newest_cells

__all__ = ["Cell", "Results", "collect"]

#: what a job reports about its way, not about what it came to
_WAY = frozenset({"step", "total", "rate"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One job of the matrix."""

    job: str
    name: str
    params: Mapping[str, str]
    state: str
    #: where it ran last; "" before
    platform: str
    card: str
    #: seconds that its command ran, over all attempts
    seconds: float
    step: float | None
    total: float | None
    #: the last it reported, but for step and total
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """A matrix as a table. `params` and `metrics` in the order in which they were first met."""

    name: str
    params: tuple[str, ...]
    metrics: tuple[str, ...]
    cells: tuple[Cell, ...]
    #: earlier jobs for cells that were submitted again; they are not among `cells`
    superseded: int


def collect(ledger: Ledger, name: str, now: datetime, *, everything: bool = False) -> Results:
    """The jobs of the matrix with this name, or of the one that a job (by id or name) belongs to.

    A cell that was submitted again counts once, as it was last, unless `everything`. JobNotFoundError.
    """
    jobs = _jobs(ledger, name)
    if not jobs:
        try:
            one = ledger.resolve(name)
        except JobNotFoundError as error:
            raise JobNotFoundError(
                f"there is no matrix or job {name!r}", hint=error.hint or "`freegpu jobs` lists all"
            ) from error
        name = matrix.stem(one.name, one.spec.cell)
        jobs = _jobs(ledger, name)
    kept = jobs if everything else newest_cells(jobs)
    ran = ledger.runs([job.id for job in kept])
    cells = []
    for job in kept:
        platform, card, seconds, since = ran.get(job.id, ("", "", 0.0, None))
        if since is not None:
            seconds += max(0.0, (now - since).total_seconds())
        told = {key: each for key, each in job.progress.values.items() if key not in _WAY}
        cells.append(
            Cell(
                job=job.id,
                name=job.name,
                params=dict(job.spec.cell),
                state=str(job.state),
                platform=platform,
                card=card,
                seconds=seconds,
                step=job.progress.step,
                total=job.progress.total,
                metrics=told,
            )
        )
    return Results(
        name=name,
        params=tuple(dict.fromkeys(key for cell in cells for key in cell.params)),
        metrics=tuple(dict.fromkeys(key for cell in cells for key in cell.metrics)),
        cells=tuple(cells),
        superseded=len(jobs) - len(kept),
    )


def _jobs(ledger: Ledger, name: str) -> list[Job]:
    return [job for job in ledger.jobs_like(name) if matrix.stem(job.name, job.spec.cell) == name]

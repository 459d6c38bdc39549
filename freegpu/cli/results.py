"""`results`: what the cells of a matrix came to, as a table or CSV."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

import click

from freegpu.cli import tables
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, count, duration, number, safe

if TYPE_CHECKING:
    from freegpu.orchestrator.matrix_results import Cell, Results

#: columns of the CSV before and behind the parameters
_BEFORE, _BEHIND = ("job", "name"), ("state", "platform", "card", "seconds", "step", "total")


@command(
    "results", example="freegpu results sweep --sort loss\nfreegpu results sweep --csv > sweep.csv"
)
@click.argument("name")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="By this parameter or metric, least first; with a minus before it, greatest first.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Also earlier jobs of cells submitted again."
)
def results(call: Call, name: str, as_csv: bool, sort: str | None, everything: bool) -> Result:
    """Show what the cells of a matrix came to.

    NAME is the name in the job spec that has the matrix, or one of its jobs. One line a cell: its parameters, its state, the card
    where it ran last, the seconds that its command ran in all, and the last figures that it reported.
    """
    with call.workspace() as workspace:
        call.move_on(workspace)
        found = workspace.results(name, everything=everything)
    cells = list(found.cells)
    if sort is not None:
        cells = _sorted(found, sort)
    if as_csv and not call.json:
        return Result(data=found, show=lambda out: _csv(found, cells, out))

    def show(out: Output) -> None:
        columns = [
            Column(title="JOB"),
            *(Column(title=safe(each)) for each in found.params),
            Column(title="STATE"),
            Column(title="WHERE"),
            Column(title="RAN", right=True),
            Column(title="PROGRESS"),
            *(Column(title=safe(each), right=True) for each in found.metrics),
        ]
        out.table(columns, [_row(found, cell) for cell in cells])
        if found.superseded:
            jobs = count(found.superseded, "earlier job")
            out.note(f"{jobs} of cells that were submitted again: --all shows them")

    import dataclasses

    return Result(data=dataclasses.replace(found, cells=tuple(cells)), show=show)


def _row(found: Results, cell: Cell) -> tuple[tables.Cell, ...]:
    steps = ""
    if cell.step is not None:
        steps = number(cell.step) + (f" of {number(cell.total)}" if cell.total else "")
    return (
        cell.job,
        *(cell.params.get(each, "") for each in found.params),
        (cell.state, tables.STATE_STYLE.get(cell.state, "")),
        tables.place(cell.platform, cell.card),
        duration(cell.seconds) if cell.seconds else "",
        steps,
        *(_figure(cell.metrics.get(each)) for each in found.metrics),
    )


def _figure(told: Any) -> str:
    if isinstance(told, float):
        return f"{told:.5g}"
    return "" if told is None else str(told)


def _csv(found: Results, cells: list[Cell], out: Output) -> None:
    """Every figure as it was reported; a header line first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_BEFORE, *found.params, *_BEHIND, *found.metrics))
    for cell in cells:
        rest = (cell.state, cell.platform, cell.card, f"{cell.seconds:.1f}", cell.step, cell.total)
        writer.writerow(
            (
                cell.job,
                cell.name,
                *(cell.params.get(each, "") for each in found.params),
                *rest,
                *(cell.metrics.get(each) for each in found.metrics),
            )
        )
    out.line(text.getvalue().removesuffix("\n"))


def _sorted(found: Results, sort: str) -> list[Cell]:
    """Cells that do not have the column come last, whichever way."""
    back = sort.startswith("-")
    column = sort.removeprefix("-")
    known = (*found.params, *found.metrics)
    if column not in known:
        from freegpu.jobs.kinds import did_you_mean

        listed = ", ".join(known) or "none yet"
        raise click.UsageError(
            f"there is no column {column[:40]!r}{did_you_mean(column[:200], known)} (known: {listed})"
        )

    def told(cell: Cell) -> Any:
        return cell.metrics.get(column, cell.params.get(column))

    figures = [cell for cell in found.cells if _number(told(cell)) is not None]
    words = [c for c in found.cells if told(c) is not None and _number(told(c)) is None]
    figures.sort(key=lambda cell: _number(told(cell)) or 0.0, reverse=back)
    words.sort(key=lambda cell: str(told(cell)), reverse=back)
    return [*figures, *words, *(cell for cell in found.cells if told(cell) is None)]


def _number(told: Any) -> float | None:
    try:
        figure = float(told)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(figure) else figure

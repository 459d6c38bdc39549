"""`report`: what the last weeks brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, clock, duration, safe

if TYPE_CHECKING:
    from freegpu.orchestrator.retrospect import Report

POOLS = (
    Column(title="PLATFORM"),
    Column(title="QUOTA"),
    Column(title="SESSIONS", right=True),
    Column(title="OPEN", right=True),
    Column(title="CHARGED", right=True),
    Column(title="EXPIRED", right=True),
    Column(title="RAN", right=True),
    Column(title="GAINED", right=True),
    Column(title="LOST", right=True),
    Column(title="INTERRUPTED", right=True),
)
JOBS = (
    Column(title="JOB"),
    Column(title="NAME", flex=True),
    Column(title="WHERE"),
    Column(title="BUSY", right=True),
    Column(title="LOOKS", right=True),
    Column(title="RAN", right=True),
    Column(title="WAITED", right=True),
    Column(title="HINT", flex=True),
)


@command("report", example="freegpu report --weeks 4")
@click.option(
    "--weeks",
    type=click.IntRange(min=1, max=520),
    default=1,
    show_default=True,
    metavar="N",
    help="The last N weeks, up to now.",
)
def report(call: Call, weeks: int) -> Result:
    """Tell what the last weeks brought.

    Hours used and expired by platform, what was gained in hours of a T4, what was lost to interruptions, and how busy jobs kept
    their cards; then what would have saved more. It comes from the ledger alone; what that does not hold is said to be unknown.
    """
    with call.workspace() as workspace:
        found = workspace.report(weeks)
    return Result(data=found, show=lambda out: _show(found, out))


def _show(found: Report, out: Output) -> None:
    out.title(f"{clock(found.since)} to {clock(found.until)}")
    if not found.pools:
        out.line("Nothing ran, and no quota that is known of expired.")
    else:
        rows = [
            (
                line.platform,
                line.pool,
                str(line.sessions),
                duration(line.open_s, days=False),
                duration(line.charged_s, days=False) if line.pool else "",
                _expired(line.expired_s, line.expired_by),
                duration(line.ran_s, days=False),
                duration(line.t4_s, days=False),
                duration(line.lost_s, days=False) if line.lost_s else "",
                str(line.interruptions) if line.interruptions else "",
            )
            for line in found.pools
        ]
        out.table(POOLS, rows)
        lost = f"; {duration(found.lost_s, days=False)} of work was lost" if found.lost_s else ""
        out.line(f"Gained: {duration(found.t4_s, days=False)} of a T4{lost}.")
    if found.jobs:
        out.line()
        out.title("How busy the cards were, the idlest first")
        out.table(
            JOBS,
            [
                (
                    each.job,
                    safe(each.name),
                    f"{each.platform} {each.card}",
                    f"{each.percent:.0f} %",
                    str(each.looks),
                    duration(each.ran_s, days=False),
                    duration(each.wait_s, days=False),
                    each.hint,
                )
                for each in found.jobs
            ],
        )
        waited = duration(found.wait_s, days=False)
        out.line(f"Cards waited for up to {waited} in all: (1 - use) x hours.")
    if found.savings:
        out.line()
        out.title("What would have saved more")
        for saving in found.savings:
            out.line(safe(saving.sentence))
    if found.unknown:
        out.line()
        out.title("Not known")
        for words in found.unknown:
            out.line(safe(words))


def _expired(seconds: float | None, by: str) -> str:
    if seconds is None:
        return "?"
    return duration(seconds, days=False) + (f" ({by})" if by else "")

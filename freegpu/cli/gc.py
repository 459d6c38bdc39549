"""`gc`: delete what nothing refers to."""

from __future__ import annotations

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, count, size

#: days for which code, checkpoints and logs of ended jobs stay
KEEP_DAYS = 7.0
#: lines shown to a person
SHOWN = 40


@command("gc", example="freegpu gc --dry-run")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0.0, max=36500.0),
    default=KEEP_DAYS,
    show_default=True,
    metavar="N",
    help="Leave what belongs to jobs that ended less than N days ago.",
)
def gc(call: Call, dry_run: bool, keep_days: float) -> Result:
    """Delete what nothing refers to any more.

    Results stay. Jobs that have not succeeded keep their newest confirmed checkpoints (`checkpoint.keep` of
    them); code and checkpoints of those that have, logs and mailboxes go N days after the end.
    """
    with call.workspace() as workspace:
        found = workspace.gc(dry_run=dry_run, keep_days=keep_days)

    def show(out: Output) -> None:
        columns = [
            Column(title="SIZE", right=True),
            Column(title="WHAT", flex=True),
            Column(title="WHY", flex=True),
        ]
        shown = sorted(found.deleted, key=lambda item: -item[1])[:SHOWN]
        if shown:
            out.table(columns, [(size(amount), name, reason) for name, amount, reason in shown])
        if len(found.deleted) > SHOWN:
            out.line(f"... and {count(len(found.deleted) - SHOWN, 'smaller one')}")
        verb = "would free" if dry_run else "freed"
        out.line(f"{verb} {size(found.freed)} in {count(len(found.deleted), 'object')}")
        out.note(f"{count(found.kept, 'object')} in use" + ("" if dry_run else ", kept"))

    return Result(data=found, show=show)

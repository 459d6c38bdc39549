"""`checkpoints`: what of a job is saved, where it stands, and what it cost to send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, ago, number, safe, size

if TYPE_CHECKING:
    from freegpu.cli.tables import Cell
    from freegpu.orchestrator.views import Generation

COLUMNS = (
    Column(title="CHECKPOINT"),
    Column(title="ATTEMPT"),
    Column(title="PLATFORM"),
    Column(title="STEP", right=True),
    Column(title="SIZE", right=True),
    Column(title="SENT", right=True),
    Column(title="AGE", right=True),
    Column(title="STATE", flex=True),
)
_STYLE = {"unconfirmed": "warn", "base": "busy", "deleted": "dim"}


@command("checkpoints", example="freegpu checkpoints k3x9f2")
@click.argument("job")
def checkpoints(call: Call, job: str) -> Result:
    """List a job's checkpoints, over all its attempts.

    Newest first, with the step, the size, and how much of it really had to be sent: what an earlier checkpoint
    holds already is not sent again. A confirmed one was verified byte for byte, by the orchestrator or by
    digests that the store itself tells; only such a one is ever resumed from. Agents delete confirmed ones beyond
    `checkpoint.keep`. `freegpu pull JOB --checkpoint` brings one here.
    """
    with call.workspace() as workspace:
        call.move_on(workspace)
        found = workspace.checkpoints(job)
        now = call.now()

    def show(out: Output) -> None:
        def row(one: Generation) -> tuple[Cell, ...]:
            by = {"store": " by the store's digests", "orchestrator": " by the orchestrator"}
            words = {
                "base": "base of the running attempt",
                "confirmed": "confirmed" + by.get(one.confirmed_by, ""),
            }.get(one.state, one.state)
            return (
                one.name,
                str(one.number or ""),
                safe(one.platform),
                "" if one.step is None else number(one.step),
                "" if one.size is None else size(one.size),
                "" if one.sent is None else size(one.sent),
                ago(one.at, now),
                (words, _STYLE.get(one.state, "")),
            )

        if found.checkpoints:
            out.table(COLUMNS, [row(one) for one in found.checkpoints])
        else:
            out.note(f"{safe(found.job.name)} ({found.job.id}) has no checkpoints yet")

    return Result(data=found, show=show)

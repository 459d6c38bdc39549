"""`jobs`, `show` and `why`: looking at jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from freegpu.cli import tables
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, ago, clock, duration, number, safe, size

if TYPE_CHECKING:
    from freegpu.orchestrator.views import JobDetail

#: the states that --state takes; a test holds them equal to the lifecycle's
STATES = ("pending", "active", "succeeded", "failed", "cancelled")
DEFAULT_LIMIT = 50


@command("jobs", example="freegpu jobs --state failed --limit 10")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    help="Only jobs in this state; may be given several times.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0, max=10_000_000),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Only the newest N; 0 lists all.",
)
def jobs(call: Call, states: tuple[str, ...], limit: int) -> Result:
    """List jobs.

    The oldest first; of more than N jobs the newest N.
    """
    from freegpu.jobs.lifecycle import JobState

    wanted = [JobState(state) for state in states] or None
    with call.workspace() as workspace:
        call.move_on(workspace)
        # one more than asked for tells whether there are more
        found = workspace.jobs(states=wanted, limit=limit + 1 if limit else None)
    more = bool(limit) and len(found) > limit
    found = found[-limit:] if limit else found
    now = call.now()

    def show(out: Output) -> None:
        if found:
            out.table(tables.JOB_COLUMNS, [tables.job_row(view, now) for view in found])
        else:
            out.note("no such jobs" if states else "no jobs yet: freegpu submit job.yaml")
        if more:
            out.note(f"these are the newest {limit}; --limit 0 lists all")

    return Result(data={"jobs": found, "more": more}, show=show)


@command("show", example="freegpu show k3x9f2")
@click.argument("job")
def show(call: Call, job: str) -> Result:
    """Show everything about one job.

    JOB is an id, the beginning of one, or a name that only one job has.
    """
    with call.workspace() as workspace:
        call.move_on(workspace)
        detail = workspace.show(job)
    return Result(data=detail, show=lambda out: _show(call, detail, out))


def _show(call: Call, detail: JobDetail, out: Output) -> None:
    view, spec, now = detail.job, detail.spec, call.now()
    needs = spec.needs
    cards = ", ".join(tables.card(a.card, a.count) for a in needs.accelerators)
    out.title(f"{safe(view.name)} ({view.id})")
    out.facts(
        [
            ("state", f"{view.state}: {view.why}" if view.why else view.state),
            ("where", tables.place(view.platform, view.card)),
            ("progress", tables.progress(view.progress)),
            ("left", duration(view.eta_s) if view.eta_s is not None else ""),
            ("reported", _values(view.progress.values)),
            ("submitted", f"{clock(view.created_at)} ({ago(view.created_at, now)})"),
            ("ended", f"{clock(view.ended_at)}" if view.ended_at else ""),
            ("deadline", clock(view.deadline) if view.deadline else ""),
            ("priority", str(view.priority) if view.priority else ""),
            ("hops", str(view.hops)),
            ("lost work", duration(view.lost_s)),
            ("run", spec.run.strip()),
            ("setup", spec.setup.strip()),
            ("workdir", spec.workdir),
            ("cards", cards or ("any, or none" if needs.allows_cpu else "any")),
            ("platforms", ", ".join(needs.platforms)),
            ("envs", " ".join(f"{name}={value}" for name, value in sorted(spec.envs.items()))),
            ("secrets", ", ".join(spec.secrets)),
            ("after", ", ".join(spec.after)),
        ]
    )
    if detail.attempts:
        out.line()
        out.title("Attempts")
        out.table(tables.ATTEMPT_COLUMNS, [tables.attempt_row(a, now) for a in detail.attempts])
    if detail.checkpoints:
        out.line()
        out.title("Checkpoints, newest first")
        columns = [
            Column(title="CHECKPOINT"),
            Column(title="STEP", right=True),
            Column(title="SIZE", right=True),
            Column(title="CONFIRMED", right=True),
        ]
        rows = [
            (
                f"{c.epoch}-{c.generation}",
                number(c.step) if c.step is not None else "",
                size(c.size),
                ago(c.confirmed_at, now),
            )
            for c in detail.checkpoints
        ]
        out.table(columns, rows)
    if detail.events:
        out.line()
        out.title("What happened")
        columns = [
            Column(title="WHEN"),
            Column(title="WHAT"),
            Column(title="WHY", flex=True),
        ]
        out.table(
            columns,
            [
                (clock(e.at), e.action.replace("_", " ").replace(".", " "), e.message)
                for e in detail.events
            ],
        )


def _values(values: object) -> str:
    if not isinstance(values, dict):
        return ""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


@command("why", example="freegpu why k3x9f2\nfreegpu why k3x9f2 --now")
@click.argument("job")
@click.option(
    "--now", "present", is_flag=True, help="Also for a job that runs or has ended: what holds now."
)
def why(call: Call, job: str, present: bool) -> Result:
    """Tell why a job is where it is, platform by platform.

    Of a job that runs or has ended: what the decision saw that placed it. Of one that waits: what the whole queue would decide now,
    who chooses before it, and what would let it in elsewhere.
    """
    from freegpu.cli.reasons import show_why

    with call.workspace() as workspace:
        call.move_on(workspace)
        found = workspace.why(job, now=present)
    return Result(data=found, show=lambda out: show_why(found, out, call.now()))

"""`plan` and `simulate`: what would become of jobs, and what will become of the queue. Neither changes anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, duration, safe

if TYPE_CHECKING:
    from freegpu.orchestrator.forecast.plan import Expected, Moment, Unused
    from freegpu.orchestrator.foresight import Ahead, Plan, Span
    from freegpu.orchestrator.model import Goal

JOBS = (
    Column(title="JOB", flex=True),
    Column(title="FIRST"),
    Column(title="STARTS IN"),
    Column(title="FINISHED IN"),
    Column(title="8 OF 10 IN"),
    Column(title="HOPS", right=True),
)
POOLS = (
    Column(title="PLATFORM"),
    Column(title="QUOTA"),
    Column(title="USED", right=True),
    Column(title="EXPIRES UNUSED", right=True),
    Column(title="RESETS"),
)
#: columns of the picture
WIDE = 64
#: what is not foreseen
NEVER = "not in 4 weeks"

_goal = click.option(
    "--goal",
    type=click.Choice(("jct", "makespan")),
    help="jct: jobs end early on average; makespan: the last one ends early.  [default: the setting `goal`]",
)
_runs = click.option(
    "--runs",
    type=click.IntRange(min=1, max=1000),
    default=40,
    show_default=True,
    metavar="N",
    help="How often the queue is run forward.",
)


@command("plan", example="freegpu plan job.yaml\nfreegpu plan a.yaml b.yaml --goal makespan")
@click.argument("specs", metavar="JOB.YAML...", nargs=-1, required=True)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a field or a variable of every spec.",
)
@_goal
@_runs
def plan(
    call: Call, specs: tuple[str, ...], changes: tuple[str, ...], goal: Goal | None, runs: int
) -> Result:
    """Tell what would become of jobs before they are submitted.

    Your queue and quotas are run forward with these jobs in them, many times: where they begin, when they finish, what
    quota that takes and what expires unused, and what would make them finish sooner. Nothing is changed.
    """
    with call.workspace() as workspace:
        found = workspace.plan(specs, overrides=changes, environ=call.environ, goal=goal, runs=runs)
    return Result(data=found, show=lambda out: _show_plan(found, out))


@command("simulate", example="freegpu simulate --weeks 4")
@click.option(
    "--weeks",
    type=click.IntRange(min=1, max=26),
    default=2,
    show_default=True,
    metavar="N",
    help="How far ahead.",
)
@_goal
@_runs
def simulate(call: Call, weeks: int, goal: Goal | None, runs: int) -> Result:
    """Run your queue and quotas forward, and draw what comes of it.

    One likely course is drawn; when jobs finish is told for many. Sessions that a person must start are left out.
    """
    with call.workspace() as workspace:
        found = workspace.simulate(weeks, goal=goal, runs=runs)
    return Result(data=found, show=lambda out: _show_ahead(found, out))


def _show_plan(found: Plan, out: Output) -> None:
    _jobs(found.jobs, found.begin, out)
    _pools(found.pools, found.begin, out)
    if found.sooner:
        out.line()
        out.title("Sooner")
        for each in found.sooner:
            gain = (
                "it would finish"
                if each.sooner_s == math.inf
                else f"{duration(each.sooner_s)} sooner"
            )
            out.line(safe(f"{each.name}: {gain} {each.change}"))
    others = f" beside {found.queued} in the queue" if found.queued else ""
    out.note(f"{found.runs} runs{others}; nothing was submitted")


def _show_ahead(found: Ahead, out: Output) -> None:
    if not found.jobs:
        out.line("No job waits or runs.")
    else:
        for line in _picture(found.spans, found.begin, found.until):
            out.line(safe(line))
        out.line()
        _jobs(found.jobs, found.begin, out)
    _pools(found.pools, found.begin, out)


def _jobs(jobs: Sequence[Expected], begin: datetime, out: Output) -> None:
    rows = []
    for job in jobs:
        if not job.first:
            rows.append((safe(job.name), "nowhere", NEVER, NEVER, "", ""))
            continue
        place, share = job.first[0]
        rows.append(
            (
                safe(job.name),
                place if share > 0.95 else f"{place} ({100 * share:.0f} %)",
                _in(job.start.middle, begin),
                _in(job.finish.middle, begin),
                _range(job.finish, begin),
                f"{job.hops:.1f}",
            )
        )
    out.table(JOBS, rows)


def _pools(pools: Sequence[Unused], begin: datetime, out: Output) -> None:
    if not pools:
        return
    out.line()
    out.title("Quota")
    out.table(
        POOLS,
        [
            (
                pool.platform,
                pool.pool,
                duration(pool.used_s, days=False),
                "?" if pool.expired_s is None else duration(pool.expired_s, days=False),
                "" if pool.resets_at is None else f"in {_in(pool.resets_at, begin)}",
            )
            for pool in pools
        ],
    )


def _range(moment: Moment, begin: datetime) -> str:
    return f"{_in(moment.low, begin)} to {_in(moment.high, begin)}" if moment.low else ""


def _in(moment: datetime | None, begin: datetime) -> str:
    return NEVER if moment is None else duration(max(0.0, (moment - begin).total_seconds()))


def _picture(spans: Sequence[Span], begin: datetime, until: datetime) -> list[str]:
    """A line for each platform and card; each column is a stretch of time, dark where a session is open."""
    end = min(until, max((span.end for span in spans), default=begin))
    length = max(1.0, (end - begin).total_seconds())
    lines: dict[str, list[str]] = {}
    for span in spans:
        line = lines.setdefault(f"{span.platform} {span.card}", [" "] * WIDE)
        first = int((span.begin - begin).total_seconds() / length * WIDE)
        last = int((span.end - begin).total_seconds() / length * WIDE)
        for at in range(max(0, first), min(WIDE, max(last, first + 1))):
            line[at] = "=" if line[at] == " " else "#"
    wide = max((len(name) for name in lines), default=0)
    scale = f"{'':{wide}}  now{'':{WIDE - 3}}{duration(length)}"
    return [scale, *(f"{name:{wide}} |{''.join(line)}|" for name, line in sorted(lines.items()))]

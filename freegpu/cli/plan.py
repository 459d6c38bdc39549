"""`plan` and `simulate`: what would become of jobs, and what will become of the queue. Neither changes anything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, duration, safe
from freegpu.cli.text import width as text_width

if TYPE_CHECKING:
    from freegpu.orchestrator.forecast.plan import Expected, Moment, Unused
    from freegpu.orchestrator.foresight import Ahead, Fits, Plan
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
#: columns of the picture's stretch of time; and of all of it where nobody knows how wide the paper is
NARROWEST, WIDEST, USUAL_ROOM = 20, 160, 80
#: how many runs are done is shown to whoever has waited this long, seconds
PATIENCE_S = 2.0
#: eight of ten are told of fewer runs with a warning
RANGE = 10
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
    metavar="N",
    help="How often the queue is run forward.  [default: 40; fewer for more than 62 jobs]",
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
    call: Call,
    specs: tuple[str, ...],
    changes: tuple[str, ...],
    goal: Goal | None,
    runs: int | None,
) -> Result:
    """Tell what would become of jobs before they are submitted.

    Your queue and quotas are run forward with these jobs in them, many times: where they begin, when they finish, what
    quota that takes and what expires unused, and what would make them finish sooner. Nothing is changed.
    """
    with call.workspace() as workspace:
        # a job that ended a moment ago is not run forward
        call.move_on(workspace)
        found = workspace.plan(
            specs,
            overrides=changes,
            environ=call.environ,
            goal=goal,
            runs=runs,
            on_run=_meter(call),
        )
    call.out.end_meter()
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
def simulate(call: Call, weeks: int, goal: Goal | None, runs: int | None) -> Result:
    """Run your queue and quotas forward, and draw what comes of it.

    One likely course is drawn; when jobs finish is told for many. Sessions that a person must start are left out.
    """
    with call.workspace() as workspace:
        call.move_on(workspace)
        found = workspace.simulate(weeks, goal=goal, runs=runs, on_run=_meter(call))
    call.out.end_meter()
    return Result(data=found, show=lambda out: _show_ahead(found, out))


def _show_plan(found: Plan, out: Output) -> None:
    _jobs(found.jobs, found.groups, found.begin, out)
    _pools(found.pools, found.begin, out)
    _fits(found.fits, found.begin, out)
    if found.sooner:
        out.line()
        out.title("Sooner")
        for each in found.sooner:
            gain = (
                "it would finish"
                if each.sooner_s == math.inf
                else f"{duration(each.sooner_s)} sooner"
            )
            where = f" ({each.where})" if each.where else ""
            out.line(safe(f"{each.name}: {gain} {each.change}{where}"))
    others = f" beside {found.queued} in the queue" if found.queued else ""
    out.note(f"{found.runs} runs{others}{_rough(found.runs)}; nothing was submitted")


def _meter(call: Call) -> Callable[[int, int], None]:
    """Shows how many runs are done, to a person who has waited for a while."""
    begin = time.monotonic()

    def on_run(done: int, total: int) -> None:
        if not call.json and time.monotonic() - begin >= PATIENCE_S:
            call.out.steps("runs of the queue", done, total)

    return on_run


def _rough(runs: int) -> str:
    """What is to be thought of ranges from so few runs."""
    return ", too few for a good range: --runs sets how many" if runs < RANGE else ""


def _show_ahead(found: Ahead, out: Output) -> None:
    if not found.jobs:
        out.line("No job waits or runs.")
    else:
        for line in _picture(found, out.room or USUAL_ROOM):
            out.line(safe(line))
        out.line()
        _jobs(found.jobs, found.groups, found.begin, out)
    _pools(found.pools, found.begin, out)
    _fits(found.fits, found.begin, out)


def _jobs(
    jobs: Sequence[Expected], groups: Sequence[Expected], begin: datetime, out: Output
) -> None:
    """A line for each job; a matrix has one, in the place of its first job."""
    of = {id: group for group in groups for id in group.jobs}
    lines = dict.fromkeys(id(of.get(job.job, job)) for job in jobs)
    by_id = {id(each): each for each in (*jobs, *groups)}
    out.table(JOBS, [_job(by_id[line], begin) for line in lines])
    for job in (by_id[line] for line in lines):
        if job.in_time is not None:
            out.note(f"{safe(job.name)} meets its deadline in {100 * job.in_time:.0f} % of runs")


def _job(job: Expected, begin: datetime) -> tuple[str, ...]:
    name = safe(job.name) + (f" x{len(job.jobs)}" if job.jobs else "")
    if not job.first:
        return (name, "nowhere", NEVER, NEVER, "", "")
    place, share = job.first[0]
    return (
        name,
        place if share > 0.95 else f"{place} ({100 * share:.0f} %)",
        _in(job.start.middle, begin),
        _in(job.finish.middle, begin),
        _range(job.finish, begin),
        f"{job.hops:.1f}",
    )


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
                _expires(pool),
                "" if pool.resets_at is None else f"in {_in(pool.resets_at, begin)}",
            )
            for pool in pools
        ],
    )


def _expires(pool: Unused) -> str:
    if not pool.expires:  # it comes back bit by bit, or never: nothing is lost at one moment
        return ""
    return "?" if pool.expired_s is None else duration(pool.expired_s, days=False)


def _fits(fits: Sequence[Fits], begin: datetime, out: Output) -> None:
    if not fits:
        return
    out.line()
    out.title("What would fit into the hours that expire")
    for each in fits:
        line = (
            f"{each.platform} {each.pool}: {duration(each.card_s, days=False)} of one card of {each.card}"
            f" within {_in(each.resets_at, begin)}"
        )
        told = [
            f"{math.floor(many)} more like {name}"
            if many >= 1
            else f"{100 * many:.0f} % of one like {name}"
            for name, many in each.jobs
        ]
        out.line(
            safe(
                f"{line}: {', '.join(told)}"
                if told
                else f"{line}; none of these jobs may run there"
            )
        )


def _range(moment: Moment, begin: datetime) -> str:
    return f"{_in(moment.low, begin)} to {_in(moment.high, begin)}" if moment.low else ""


def _in(moment: datetime | None, begin: datetime) -> str:
    return NEVER if moment is None else duration(max(0.0, (moment - begin).total_seconds()))


def _picture(found: Ahead, room: int) -> list[str]:
    """A line for each platform and card; each column is a stretch of time, dark where a session is open."""
    begin = found.begin
    end = min(found.until, max((span.end for span in found.spans), default=begin))
    length = max(1.0, (end - begin).total_seconds())
    names = sorted({f"{span.platform} {span.card}" for span in found.spans})
    wide = max((text_width(name) for name in names), default=0)
    columns = min(WIDEST, max(NARROWEST, room - wide - 4))

    def column(moment: datetime) -> int:
        return int((moment - begin).total_seconds() / length * columns)

    lines: dict[str, list[str]] = {name: [" "] * columns for name in names}
    for window in found.windows:
        for name in names:
            if name.startswith(f"{window.platform} ") and 0 <= column(window.end) < columns:
                lines[name][column(window.end)] = ":"
    for span in found.spans:
        line = lines[f"{span.platform} {span.card}"]
        first, last = column(span.begin), column(min(span.end, end))
        for at in range(max(0, first), min(columns, max(last, first + 1))):
            line[at] = "#" if line[at] in "=#" else "="
    pad = " " * wide
    return [
        f"{pad}  {_scale(length, columns)}",
        *(f"{name}{' ' * (wide - text_width(name))} |{''.join(lines[name])}|" for name in names),
        f"{pad}  = a session is open, # several one after the other or at once, : quota resets",
    ]


def _scale(length: float, columns: int) -> str:
    """Moments from now on, as many as fit; the last one stands at the end."""
    parts = max(1, min(4, columns // 14))
    scale = "now"
    for part in range(1, parts + 1):
        label = duration(length * part / parts)
        at = columns * part // parts - (len(label) if part == parts else len(label) // 2)
        scale = f"{scale:<{at}}{label}" if at > len(scale) else scale
    return scale

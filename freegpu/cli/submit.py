"""`submit`: put the jobs of a spec into the queue, and start what can be started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from freegpu.cli import tables
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.logs import conclude, follow_job
from freegpu.cli.output import Output
from freegpu.cli.plain import Failure, to_line
from freegpu.cli.reasons import show_decision
from freegpu.cli.text import Column, count, safe, size
from freegpu.errors import FreeGPUError

if TYPE_CHECKING:
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.views import DryRun, JobView, Submitted, Ticked


@command(
    "submit",
    example="freegpu submit job.yaml --set LR=1e-3 --wait\nfreegpu submit job.yaml --secret HF_TOKEN --dry-run",
)
@click.argument("spec", metavar="JOB.YAML")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a field (freegpu.priority=5) or a variable (LR=1e-3) of the spec.",
)
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Give a secret variable; NAME alone takes it from the environment, where other users cannot see it.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Change nothing; show what would be packed, and where jobs would go.",
)
@click.option(
    "--wait", is_flag=True, help="Print the output until the jobs are over; exit 0 or 32."
)
def submit(
    call: Call,
    spec: str,
    changes: tuple[str, ...],
    secrets: tuple[str, ...],
    dry_run: bool,
    wait: bool,
) -> Result:
    """Submit the jobs of a job spec.

    The working folder is packed and stored, the jobs are queued, and one tick starts what can be started now.
    stdout gets one line for each job, its id first.
    """
    if dry_run and wait:
        raise click.UsageError("--dry-run submits nothing, so there is nothing to --wait for")
    overrides = [*changes, *(_secret(call, given) for given in secrets)]
    with call.workspace() as workspace:
        if dry_run:
            found = workspace.dry_run(spec, overrides=overrides, environ=call.environ)
            return Result(data=found, show=lambda out: _show_dry_run(found, out))
        submitted = workspace.submit(
            spec, overrides=overrides, environ=call.environ, on_progress=_meter(call)
        )
        call.out.end_meter()
        ticked, errors = _start(call, workspace)
        ids = [job.id for job in submitted.jobs]
        views = _views(workspace, ids)
        data = {
            "jobs": views,
            "notices": submitted.notices,
            "bundle": submitted.bundle,
            "tick": ticked,
        }
        result = Result(
            data=data,
            show=lambda out: _show(submitted, views, ticked, out),
            errors=errors,
        )
        if not wait:
            return result
        return _wait(call, workspace, ids, result)


def _secret(call: Call, given: str) -> str:
    """The override for a secret; without a value it is the environment's."""
    name, equals, value = given.partition("=")
    if not equals:
        if not call.environ.get(name):
            raise click.UsageError(
                f"--secret {safe(name[:40])}: there is no {safe(name[:40])} in the environment"
            )
        value = call.environ[name]
    return f"secrets.{name}={value}"


def _meter(call: Call) -> Any:
    """Shows the bytes of an upload that is worth it, to a person."""

    def on_progress(stage: str, done: int, total: int) -> None:
        if not call.json and total >= 1_000_000:
            call.out.meter(stage, done, total)

    return on_progress


def _start(call: Call, workspace: Workspace) -> tuple[Ticked | None, tuple[Failure, ...]]:
    """One tick. What goes wrong in it does not undo the submission."""
    from freegpu.cli.call import failure

    try:
        ticked = workspace.tick(block=True)
    except FreeGPUError as error:
        return None, (failure(error),)
    return ticked, tuple(Failure(code="tick", message=problem) for problem in ticked.errors)


def _views(workspace: Workspace, ids: Sequence[str]) -> list[JobView]:
    """The jobs as they stand now, in the order of the spec."""
    if len(ids) == 1:
        return [workspace.show(ids[0]).job]
    known = {view.id: view for view in workspace.jobs()}
    return [known[job] for job in ids]


def _show(
    submitted: Submitted, views: Sequence[JobView], ticked: Ticked | None, out: Output
) -> None:
    for notice in submitted.notices:
        out.warn(notice)
    if submitted.bundle is not None:
        bundle = submitted.bundle
        there = ", in the store already" if bundle.reused else ""
        out.note(f"packed {count(bundle.files, 'file')}, {size(bundle.size)}{there}")
    wide = max(len(view.id) for view in views)
    for view in views:
        where = tables.place(view.platform, view.card)
        words = f"on {where}" if where else "waits"
        out.line(f"{view.id:<{wide}}  {safe(view.name)}  {safe(words)}")
    first = views[0].id
    if ticked is not None and not ticked.did and ticked.holder:
        out.note(f"{ticked.holder} starts what can be started")
    elif any(not view.platform for view in views):
        waiting = next(view.id for view in views if not view.platform)
        out.note(f"`freegpu why {waiting}` tells what a job waits for")
    out.note(
        f"`freegpu logs {first} -f` follows it"
        if len(views) == 1
        else "`freegpu status` shows them"
    )


def _wait(call: Call, workspace: Workspace, ids: Sequence[str], submitted: Result) -> Result:
    """One job: its output. Several: a line whenever one of them changes."""
    if not call.json:
        submitted.show(call.out)
        for error in submitted.errors:
            call.out.warn(error.message)
        call.out.flush()
    if len(ids) == 1:
        ended = follow_job(call, workspace, ids[0], lines=False)
    else:
        ended = conclude(call, list(workspace.wait(ids, on_change=_on_change(call))))
    return Result(
        data={**submitted.data, **ended.data},
        show=ended.show,
        exit_code=ended.exit_code,
        errors=ended.errors,
    )


def _on_change(call: Call) -> Any:
    def tell(view: JobView) -> None:
        if not call.json:
            where = tables.place(view.platform, view.card)
            call.out.note(
                f"{view.name} ({view.id}): {view.state}" + (f" on {where}" if where else "")
            )

    return tell


def _show_dry_run(found: DryRun, out: Output) -> None:
    for notice in found.notices:
        out.warn(notice)
    for spec in found.specs:
        out.line(f"would submit {safe(spec.name)}")
    if found.files:
        out.line(f"would pack {count(found.files, 'file')}, {size(found.size)}; the largest:")
        columns = [Column(title="SIZE", right=True), Column(title="FILE", flex=True)]
        out.table(columns, [(size(amount), name) for name, amount in found.largest])
    shown: set[tuple[object, ...]] = set()
    for name, decision in found.decisions:
        # the jobs of a matrix see the same places: say it once
        seen = (*(score.why for score in decision.scores), decision.outcome)
        if seen not in shown:
            shown.add(seen)
            out.line()
            out.title(f"Where {safe(name)} could go")
            show_decision(decision, out)
    for platform, request in found.requests:
        out.line()
        out.title(f"What would be sent to {safe(platform)}")
        for line in to_line(request, indent=2).splitlines():
            out.line(line)

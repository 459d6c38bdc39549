"""`demo`: the whole promise on this machine, with a live view while it runs and a timeline after it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from freegpu.cli import tables
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.plain import Failure
from freegpu.cli.text import Column, clip, duration, safe, size

if TYPE_CHECKING:
    from freegpu.testing.demo import DemoResult, Frame, Moment

MOMENT_STYLE = {"killed": "bad", "ended": "warn", "running": "busy", "compared": "good"}


@command("demo", example="freegpu demo --keep demo/")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Leave ledger, store and results in this new or empty folder.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the training."
)
def demo(call: Call, keep: Path | None, seed: int) -> Result:
    """See everything end to end on this machine, without an account.

    Three pretend platforms with different cards, session limits and quotas run real agents and a real training. One
    session reaches its limit, one is killed while a checkpoint is being written; the job moves on and finishes, and
    its result is compared with that of an undisturbed run. About a minute.
    """
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise click.UsageError(f"--keep {keep}: the folder is not empty")
    from freegpu.testing import demo as story

    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        return _result(call, _watched(call, story.run, keep.resolve(), seed), kept=True)
    with tempfile.TemporaryDirectory(prefix="freegpu-demo-", ignore_cleanup_errors=True) as folder:
        return _result(call, _watched(call, story.run, Path(folder), seed), kept=False)


def _watched(call: Call, run: Callable[..., DemoResult], folder: Path, seed: int) -> DemoResult:
    """Run the story under a live view on a terminal; elsewhere its moments are told on stderr as they come."""
    redrawn = call.out.on_terminal and not call.json
    view: AbstractContextManager[Callable[[Sequence[str]], None] | None]
    view = call.out.live() if redrawn else nullcontext(None)
    told = 0
    with view as draw:

        def report(frame: Frame) -> None:
            nonlocal told
            if draw is not None:
                draw(_lines(call, frame))
                return
            for moment in frame.moments[told:]:
                call.out.note(_moment(moment))
            told = len(frame.moments)

        return run(folder, seed=seed, report=report)


def _lines(call: Call, frame: Frame) -> list[str]:
    """The live view: the status, and what happened so far."""
    out = call.out
    lines = [out.paint(f"freegpu demo, {frame.at:.0f} s", "bold"), ""]
    lines += tables.status_lines(frame.status, call.now(), room=out.room, paint=out.paint)[:-2]
    lines.append("")
    return lines + [
        out.paint(clip(safe(_moment(m)), out.room or 200), MOMENT_STYLE.get(m.kind, ""))
        for m in frame.moments
    ]


def _moment(moment: Moment) -> str:
    return f"{moment.at:6.1f} s  {moment.text}"


def _result(call: Call, found: DemoResult, *, kept: bool) -> Result:
    errors: tuple[Failure, ...] = ()
    if not found.identical:
        message = "the result differs from the undisturbed run's"
        errors = (Failure(code="demo", message=message, hint="run it again with --keep and look"),)
    data = {
        name: getattr(found, name)
        for name in (
            "seconds", "hops", "accuracy", "lost_s", "identical", "undisturbed_s",
            "attempts", "timeline", "outputs", "size",
        )
    }  # fmt: skip
    data["folder"] = found.folder if kept else None
    return Result(
        data=data,
        show=lambda out: _show(out, found, kept=kept),
        exit_code=0 if found.identical else 1,
        errors=errors,
    )


def _show(out: Output, found: DemoResult, *, kept: bool) -> None:
    out.title("Timeline")
    for moment in found.timeline:
        out.line(out.paint(safe(_moment(moment)), MOMENT_STYLE.get(moment.kind, "")))
    out.line()
    columns = [
        Column(title="ATTEMPT", right=True),
        Column(title="WHERE"),
        Column(title="RAN", right=True),
        Column(title="LOST", right=True),
        Column(title="FROM"),
        Column(title="ENDED", flex=True),
    ]
    out.table(
        columns,
        [
            (
                str(a["number"]),
                tables.place(str(a["platform"]), str(a["card"])),
                duration(a["run_s"]),
                duration(a["lost_s"]),
                str(a["from_checkpoint"]) or "scratch",
                str(a["reason"]).replace("_", " "),
            )
            for a in found.attempts
        ],
    )
    out.line()
    same = "byte for byte the undisturbed run's" if found.identical else "NOT the undisturbed run's"
    out.facts(
        [
            ("accuracy", f"{found.accuracy:.2%} on held-out data"),
            ("hops", str(found.hops)),
            ("lost work", duration(found.lost_s)),
            ("result", same),
            (
                "took",
                f"{duration(found.seconds)}; the undisturbed run {duration(found.undisturbed_s)}",
            ),
            ("disk", size(found.size)),
            ("kept in", found.folder if kept else ""),
        ]
    )
    if not kept:
        out.note("next: write a job.yaml and `freegpu submit job.yaml --wait`")

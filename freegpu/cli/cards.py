"""`cards`: what each card is, how fast it is for a class of work, and how fast your own jobs went on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from freegpu.cards import WORKLOADS
from freegpu.cards.filters import SOFTWARE
from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import Column, ago, count, duration, safe

if TYPE_CHECKING:
    from datetime import datetime

    from freegpu.orchestrator.card_views import CardDetail, CardLine, Cards

COLUMNS = (
    Column(title="CARD"),
    Column(title="RUNS"),
    Column(title="MEMORY", right=True),
    Column(title="SM", right=True),
    Column(title="BF16"),
    Column(title="SPEED", right=True),
    Column(title="PUBLIC RUNS", right=True),
    Column(title="YOUR JOBS", right=True),
    Column(title="NOTE", flex=True),
)


@command("cards", example="freegpu cards\nfreegpu cards L4 --workload train-amp-seq")
@click.argument("name", required=False)
@click.option(
    "--workload",
    type=click.Choice(WORKLOADS),
    default="general",
    show_default=True,
    help="The class of work that speeds are told for.",
)
def cards(call: Call, name: str | None, workload: str) -> Result:
    """Show cards: memory, what they can compute, and how fast they are.

    Speeds are relative to a T4. SPEED is the model that freegpu decides with before it has seen a job run; PUBLIC RUNS
    the middle figure of published measurements that were made on a T4 too, and YOUR JOBS that of jobs of this
    home that ran on both, each with their number. RUNS is what programs are written for there: only jobs that name a
    card get one that runs no CUDA. With NAME, as people or platforms write it, everything about one card.
    """
    if name is not None:
        from freegpu import cards as table
        from freegpu.jobs.kinds import did_you_mean

        if table.find(name) is None:
            near = did_you_mean(name[:200], table.names())
            raise click.UsageError(
                f"{name[:40]!r} is not a card freegpu knows{near}; `freegpu cards` lists them"
            )
    with call.workspace() as workspace:
        found = workspace.cards(name, workload)
    now = call.now()
    return Result(data=found, show=lambda out: _show(found, now, out))


def _show(found: Cards, now: datetime, out: Output) -> None:
    if found.detail is None:
        out.table(COLUMNS, [_row(line) for line in found.cards])
        out.note(
            f"speeds for {found.workload}, relative to a T4; `freegpu cards NAME` tells sources"
        )
        return
    _detail(found.detail, now, out)


def _row(line: CardLine) -> tuple[str, ...]:
    return (
        line.name,
        SOFTWARE.get(line.kind, line.kind),
        f"{line.vram_gb:g} GB" if line.vram_gb else "",
        line.sm or "",
        "yes" if line.bf16 else "no",
        f"{line.speed:.2f}",
        _several(line.public_speed, line.public_runs),
        _several(line.own_speed, line.own_jobs),
        line.note,
    )


def _several(speed: float | None, number: int) -> str:
    return "" if speed is None else f"{speed:.2f} ({number})"


def _detail(card: CardDetail, now: datetime, out: Output) -> None:
    facts = card.facts
    unknown = "not known"
    out.title(facts.name)
    out.facts(
        [
            ("runs", SOFTWARE.get(facts.kind, facts.kind)),
            ("chip", facts.arch),
            ("memory", f"{facts.vram_gb:g} GB, {facts.bandwidth_gbs:,g} GB/s"),
            ("compute capability", facts.sm or ""),
            ("fast in", card.precision),
            ("bf16", "in silicon" if facts.bf16_native else "emulated, or not at all"),
            ("fp32", f"{facts.fp32_tflops:g} TFLOPS" if facts.fp32_tflops else unknown),
            (
                "fp16, tensor cores",
                f"{facts.fp16_tflops:g} TFLOPS" if facts.fp16_tflops else "none",
            ),
            ("int8", f"{facts.int8_tops:g} TOPS" if facts.int8_tops else ""),
            ("PyTorch reaches", _reaches(facts.gemm32, facts.gemm16, facts.gemm_bf16)),
            ("power", f"{facts.tdp_w:g} W" if facts.tdp_w else ""),
            ("does for", ", ".join(facts.fulfils)),
            ("note", facts.note),
            *((f"source: {key}", words) for key, words in card.sources.items()),
        ]
    )
    out.line()
    out.title("Speed, relative to a T4")
    columns = [
        Column(title="WORKLOAD"),
        Column(title="MODEL", right=True),
        Column(title="PUBLIC RUNS", right=True),
    ]
    rows = [
        (each.workload, f"{each.speed:.2f}", _several(each.public_speed, each.public_runs))
        for each in card.speeds
    ]
    out.table(columns, rows)
    if card.public:
        out.line()
        out.title("Public runs that were made on a T4 too")
        columns = [
            Column(title="WORKLOAD"),
            Column(title="SPEED", right=True),
            Column(title="RUN", flex=True),
            Column(title="SOURCE", flex=True),
        ]
        rows_of = [(one.workload, f"{one.speed:.2f}", one.name, one.source) for one in card.public]
        out.table(columns, rows_of)
    out.line()
    out.title("Your own jobs on it")
    if not card.own:
        out.line("none has reported its progress there yet")
        return
    columns = [
        Column(title="JOB"),
        Column(title="NAME", flex=True),
        Column(title="WORKLOAD"),
        Column(title="A STEP", right=True),
        Column(title="SEEN", right=True),
        Column(title="LAST", right=True),
    ]
    own = [
        (
            one.job,
            safe(one.job_name),
            one.workload,
            _step(one.seconds_per_step),
            count(one.seen, "time"),
            ago(one.at, now),
        )
        for one in card.own
    ]
    out.table(columns, own)


def _step(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _reaches(fp32: float | None, fp16: float | None, bf16: float | None) -> str:
    rates = (("fp32", fp32), ("fp16", fp16), ("bf16", bf16))
    told = ", ".join(f"{name} {rate:g}" for name, rate in rates if rate)
    return f"{told} TFLOPS in large products" if told else ""

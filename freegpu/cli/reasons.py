"""A decision for people: why it was the job's turn, the places with their figures, and what speaks against the others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from freegpu.cli import tables
from freegpu.cli.output import Output
from freegpu.cli.text import Column, ago, clock, count, duration, safe

if TYPE_CHECKING:
    from freegpu.orchestrator.model import Score
    from freegpu.orchestrator.record import Decision
    from freegpu.orchestrator.views import Why

PLACES = (
    Column(title=""),
    Column(title="PLATFORM"),
    Column(title="CARD"),
    Column(title="WHERE"),
    Column(title="START"),
    Column(title="FINISH"),
    Column(title="SPEED", right=True),
    Column(title="SESSIONS", right=True),
    Column(title="QUOTA LEFT"),
    Column(title="PRICE"),
)


def show_why(found: Why, out: Output, now: datetime) -> None:
    """The answer of `why`."""
    out.line(safe(found.sentence))
    if found.gave_way:
        out.line(safe(found.gave_way))
    if found.now is not None:
        out.line()
        out.title("What holds now, in the whole queue")
        show_decision(found.now, out)
    if found.placed is not None:
        out.line()
        when = f"{clock(found.placed.at)} ({ago(found.placed.at, now)})"
        out.title(f"What the decision saw that placed {found.attempt}, {when}")
        show_decision(found.placed, out)
    elif found.job.attempt:
        out.line()
        out.line(
            "What the decision saw that placed it was not kept: an older freegpu made it."
            + ("" if found.now else " `--now` tells what holds now.")
        )


def show_decision(decision: Decision, out: Output) -> None:
    """Turn, places, filters."""
    out.line(safe(_turn(decision)))
    for rule in decision.rules[1:]:
        out.line(safe(f"{rule[:1].upper()}{rule[1:]}."))
    able = [score for score in decision.scores if score.feasible]
    if able:
        out.table(PLACES, [_row(score) for score in able])
    refused = [score for score in decision.scores if not score.feasible]
    for score in refused:
        out.line(safe(score.why))
        if score.change:
            out.line(safe(f"    {score.change}"))
    if decision.more:
        out.line(f"... and {count(decision.more, 'more place')} that are not kept")
    if not decision.scores:
        out.line("No platform is configured or offers anything; `freegpu doctor` tells more.")


def _turn(decision: Decision) -> str:
    rule = decision.rules[0] if decision.rules else ""
    length = f"{duration(decision.work_s)} to go on a T4"
    if decision.assumed:
        length = f"its length is not known and counts as {duration(decision.work_s)} on a T4"
    if not decision.ahead:
        turn = "First to choose" if decision.waiting > 1 else "Alone in the queue"
        return f"{turn}; {length}."
    names = ", ".join(decision.before)
    more = f" and {decision.ahead - len(decision.before)} more"
    names += more if decision.ahead > len(decision.before) else ""
    verb = "chooses" if decision.ahead == 1 else "choose"
    who = f"{count(decision.ahead, 'job')} of {decision.waiting} {verb} before it ({names})"
    return f"{who}: {rule}; {length}."


def _row(score: Score) -> Sequence[tables.Cell]:
    quota = ""
    if score.before_s is not None and score.after_s is not None:
        quota = f"{duration(score.before_s, days=False)} -> {duration(score.after_s, days=False)}"
    finish: tables.Cell = "length not known" if score.feasible else ""
    if score.finish_s is not None:
        waits = f", {duration(score.waits_s)} of it for quota" if score.waits_s else ""
        finish = (f"in {duration(score.finish_s)}{waits}", "good" if score.chosen else "")
    return (
        ">" if score.chosen else "",
        score.platform,
        tables.card(score.card, score.count),
        score.where,
        ""
        if score.start_s is None
        else f"in {duration(score.start_s)}"
        if score.start_s
        else "now",
        finish,
        f"{score.speed:.2g} x T4" if score.speed else "",
        str(score.sessions) if score.sessions else "",
        quota,
        f"+{duration(score.price_s)}" if score.price_s >= 1 else "",
    )

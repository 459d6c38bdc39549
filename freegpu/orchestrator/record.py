"""What a decision saw for one job, kept with the attempt that it made, so that `why` need not guess later. Pure.

A record holds the few best places with their figures, one line for each platform that was refused, and the rules that ruled:
some two kilobytes. It travels as plain JSON in the audit line of the attempt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from freegpu.orchestrator.model import Score
from freegpu.orchestrator.spots import span_text

__all__ = [
    "BEST",
    "GIVES_WAY",
    "MAKES_ROOM",
    "REFUSED",
    "Decision",
    "Outcome",
    "brief",
    "from_json",
    "nowhere",
    "place_name",
    "to_json",
]

#: audit lines of a slot that passes on: of the job that leaves it, and of the one that it is meant for
GIVES_WAY, MAKES_ROOM = "job.gives_way", "job.gets_room"
#: places that a record keeps with their figures, and platforms that were refused with their filter
BEST, REFUSED = 4, 8
#: letters of a filter that a column has room for
WORDS = 60


class Outcome(StrEnum):
    """What a decision did for a job."""

    PLACED = "placed"  #: it got a place
    PASSED = "passed"  #: another job saves and stops to make room for it
    WAITS = "waits"  #: no place could be taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One decision as one job saw it."""

    at: datetime
    outcome: Outcome
    #: jobs that wanted a place, and how many of them chose before this one
    waiting: int
    ahead: int
    #: the first of those by name
    before: tuple[str, ...] = ()
    #: why it chose when it did, and what then spoke for the place that was taken: sentences
    rules: tuple[str, ...] = ()
    #: what remained of it on a T4, seconds, and whether that is an assumption
    work_s: float = 0.0
    assumed: bool = False
    #: places, the taken one first, then those that could be taken, the best first, then those that were refused
    scores: tuple[Score, ...] = ()
    #: places beyond these that were looked at
    more: int = 0
    #: who gives way to it
    gives_way: str = ""

    @property
    def chosen(self) -> Score | None:
        """The place that was taken."""
        return next((score for score in self.scores if score.chosen), None)


def place_name(score: Score) -> str:
    """ "kaggle T4 x2" """
    many = f" x{score.count}" if score.count > 1 else ""
    return f"{score.platform} {score.card}{many}".strip()


def to_json(decision: Decision) -> dict[str, Any]:
    """As plain JSON; what is as it is by default is left out."""
    told = _told(decision)
    told["at"] = decision.at.isoformat()
    told["scores"] = [_told(score) for score in decision.scores]
    return told


def from_json(told: Mapping[str, Any]) -> Decision:
    """The inverse of `to_json`; what this version does not know is left out. KeyError, TypeError, ValueError: not one."""
    known = {field.name for field in fields(Decision)}
    raw = {name: value for name, value in told.items() if name in known}
    raw["at"] = datetime.fromisoformat(raw["at"])
    raw["outcome"] = Outcome(raw["outcome"])
    raw["before"], raw["rules"] = tuple(raw.get("before", ())), tuple(raw.get("rules", ()))
    raw["scores"] = tuple(_score(each) for each in raw.get("scores", ()))
    return Decision(**raw)


_NOWHERE = Score(
    platform="",
    card="",
    count=0,
    where="",
    feasible=False,
    finish_s=None,
    speed=0.0,
    sessions=0,
    why="",
)


def nowhere(platform: str, why: str) -> Score:
    """The line of a platform that has nothing to offer."""
    return replace(_NOWHERE, platform=platform, why=f"{platform}: {why}", fault=why)


def _score(told: Mapping[str, Any]) -> Score:
    known = {field.name for field in fields(Score)}
    score = replace(_NOWHERE, **{name: value for name, value in told.items() if name in known})
    return score if score.why else replace(score, why=f"{place_name(score)}: {score.fault}")


def _told(value: Decision | Score) -> dict[str, Any]:
    usual = {field.name: field.default for field in fields(value)}
    if isinstance(value, Score):
        usual = {name: getattr(_NOWHERE, name) for name in usual}
        if not value.feasible:
            usual["why"] = value.why  # the same as the filter, and a walk that did not count
    found: dict[str, Any] = {}
    for name, default in usual.items():
        given = getattr(value, name)
        if given == default and (given is None) == (default is None):
            continue
        found[name] = list(given) if isinstance(given, tuple) else given
        if isinstance(given, float):
            found[name] = round(given, 3) if math.isfinite(given) else None
    return found


def brief(decision: Decision) -> str:
    """The reason in a few words, for a column of `status`."""
    best = decision.chosen
    if best is None:
        return _waits(decision)
    parts = []
    if best.finish_s is not None:
        parts.append(f"{span_text(best.finish_s)} expected")
    elif decision.assumed:
        parts.append("length not known")
    others = [s for s in decision.scores if s.feasible and not s.chosen]
    second = next((s for s in others if place_name(s) != place_name(best)), None)
    if second is not None:
        took = f" {span_text(second.finish_s)}" if second.finish_s is not None else ""
        parts.append(f"next best {place_name(second)}{took}")
    elif not others:
        parts.append("the only place for it")
    if best.before_s is not None and best.after_s is not None and best.before_s != best.after_s:
        parts.append(f"quota {span_text(best.before_s)} -> {span_text(best.after_s)}")
    return "; ".join(parts)


def _waits(decision: Decision) -> str:
    if decision.outcome is Outcome.PASSED:
        return f"{decision.gives_way} makes room for it"
    lines: dict[str, str] = {}
    for score in decision.scores:
        lines.setdefault(score.platform, score.fault)
    words = [f"{platform}: {_clipped(fault)}" for platform, fault in lines.items() if fault]
    rest = f"; and {len(words) - 2} more" if len(words) > 2 else ""
    turn = f"{decision.ahead} before it; " if decision.ahead else ""
    return turn + "; ".join(words[:2]) + rest if words else turn + "no platform offers anything"


def _clipped(words: str) -> str:
    return words if len(words) <= WORDS else f"{words[: WORDS - 1].rstrip()}…"

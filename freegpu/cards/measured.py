"""What the public measured: runs of one piece of work on several cards, and the weights that fit them best. Pure.

Decides how the weights in cards.json follow from measurements.json; a test holds the two
together and prints how far the model is off on cards and sources that were not in the fit. Nothing here is
read when a decision is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

from freegpu import cards

__all__ = [
    "Run",
    "Seen",
    "errors",
    "fit",
    "held_out_errors",
    "order",
    "runs",
    "seen",
    "sources",
]

#: weights are looked for in steps of a fortieth: finer ones are within the noise
STEPS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One piece of work on several cards. Rates may be compared with each other, not with those of other runs."""

    workload: str
    #: key into `sources()`, and which file or round of it
    source: str
    part: str
    name: str
    unit: str
    #: canonical name of the card -> rate
    values: Mapping[str, float]
    #: used in no fit
    held_out: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One card in a run that was also made on a T4."""

    workload: str
    #: T4 = 1
    speed: float
    name: str
    #: in words
    source: str


def runs() -> tuple[Run, ...]:
    """All of them, in the order of the file."""
    return _evidence()[0]


def sources() -> Mapping[str, str]:
    """Where they are from: key -> repository with commit, or page."""
    return _evidence()[1]


def seen(card: str) -> list[Seen]:
    """How fast this card was against a T4 wherever both were measured in one run."""
    found = []
    for run in runs():
        if card in run.values and "T4" in run.values:
            part = f", {run.part}" if run.part else ""
            found.append(
                Seen(
                    workload=run.workload,
                    speed=run.values[card] / run.values["T4"],
                    name=run.name,
                    source=f"{sources()[run.source]}{part}",
                )
            )
    return found


def fit(measured: Iterable[Run], workload: str) -> float:
    """The weight of the matrix rate for this class of work with the least mean deviation (of logarithms)."""
    of_class = [run for run in measured if run.workload == workload and len(run.values) > 1]

    def loss(weight: float) -> float:
        deviations = []
        for run in of_class:
            left = _residuals(run, weight)
            middle = fmean(left.values())
            deviations += [abs(each - middle) for each in left.values()]
        return fmean(deviations) if deviations else 0.0

    return min((step / STEPS for step in range(STEPS + 1)), key=loss)


def errors(run: Run, weight: float, only: str | None = None) -> list[float]:
    """How far the model is off for each card (or `only` one) of a run, told from the run's other cards."""
    left = _residuals(run, weight)
    found = []
    for card in [only] if only is not None else run.values:
        others = [each for name, each in left.items() if name != card]
        if card in left and others:
            found.append(abs(math.exp(left[card] - fmean(others)) - 1))
    return found


def held_out_errors(measured: Sequence[Run], key: Callable[[Run], str] | None) -> list[float]:
    """The errors where each group by `key` is told by weights that were fitted without it; None: each card."""
    found: list[float] = []
    classes = sorted({run.workload for run in measured})
    if key is not None:
        for group in sorted({key(run) for run in measured}):
            rest = [run for run in measured if key(run) != group]
            held = [run for run in measured if key(run) == group]
            for workload in sorted({run.workload for run in held}):
                weight = fit(rest, workload)
                for run in held:
                    found += errors(run, weight) if run.workload == workload else []
        return found
    for card in sorted({name for run in measured for name in run.values}):
        rest = [
            replace(run, values={name: rate for name, rate in run.values.items() if name != card})
            for run in measured
        ]
        for workload in classes:
            held = [run for run in measured if run.workload == workload and card in run.values]
            if held:
                weight = fit(rest, workload)
                for run in held:
                    found += errors(run, weight, only=card)
    return found


def order(measured: Iterable[Run], speed: Callable[[str, str], float]) -> tuple[int, int]:
    """(pairs put in the wrong order by `speed`, pairs). Cards closer than 15 % to each other are no pair."""
    wrong = pairs = 0
    for run in measured:
        names = sorted(run.values)
        for at, first in enumerate(names):
            for second in names[at + 1 :]:
                truth = math.log(run.values[first] / run.values[second])
                if abs(truth) > math.log(1.15):
                    pairs += 1
                    told = speed(first, run.workload) - speed(second, run.workload)
                    wrong += told * truth < 0
    return wrong, pairs


def _residuals(run: Run, weight: float) -> dict[str, float]:
    """What the model leaves unexplained, as logarithms; equal for all cards of a run if it is right."""
    return {
        card: math.log(rate) - _log_speed(card, run.workload, weight)
        for card, rate in run.values.items()
    }


def _log_speed(card: str, workload: str, weight: float) -> float:
    rate, bandwidth = _logs(card, workload)
    if workload == "llm-decode":
        return 0.5 * bandwidth
    return weight * rate + (1 - weight) * bandwidth


@cache
def _logs(card: str, workload: str) -> tuple[float, float]:
    rate, bandwidth = cards.ratios(card, workload)
    return math.log(rate), math.log(bandwidth)


@cache
def _evidence() -> tuple[tuple[Run, ...], Mapping[str, str]]:
    path = Path(__file__).with_name("measurements.json")
    raw = json.loads(path.read_text(encoding="utf-8"))
    found = tuple(
        Run(
            workload=row["class"],
            source=row["source"],
            part=row.get("part", ""),
            name=row["run"],
            unit=row["unit"],
            values=row["values"],
            held_out=row.get("held_out", False),
        )
        for row in raw["runs"]
    )
    return found, raw["sources"]

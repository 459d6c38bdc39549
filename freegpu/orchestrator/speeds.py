"""How fast a job goes on a card, by its own progress and that of its kin. Pure.

Decides: which observations tell about a job, how a rate is carried to a card where nobody saw it, and how sure
that is. A run shorter than a minute is mostly start-up: it tells about kin, which start as it did, and is less sure the
shorter it was, but many of them are sure; where a long run was seen on a card, short ones count nothing. The job's own rates go before those of its family (jobs of one bundle with the same commands: a matrix,
or the same job again), those before namesakes (the same, after the code was edited). On a card that was seen the
median of the last rates counts, so one throttled or shared card moves little; to other cards it is carried by
the ratio that the family showed, else by the card table's. Uncertainty is the deviation of the logarithm: 0.2
means that the truth is within about 20 %, two times in three.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median
from typing import Any

from freegpu import cards
from freegpu.jobs import matrix
from freegpu.orchestrator.model import Waiting

__all__ = ["Book", "Kin", "Pace", "Rate", "Told", "kin", "learn"]

#: observations on one card that count, the newest ones
LAST = 7
#: one observation is off by about this much, in logarithms: warm-up, a slow disk, a neighbour on the host
NOISE = 0.25
#: a shorter run, seconds, tells only what kin of its length take
LEAST_S = 60.0
#: of that much of a run, seconds, nobody knows whether it was start-up; it adds its share of the run, in logarithms, up to
#: MOST_DOUBT
START_S, MOST_DOUBT = 5.0, 1.0
#: however many there are, the next session differs by this much
FLOOR = 0.05
#: what being of the family, and only of one name, adds: cells of a matrix may differ in batch or model
FAMILY, NAMESAKE = 0.2, 0.4
#: what the card table's ratio adds: its median error of 13 % and nine in ten below 40 %
CARRIED = 0.25
#: and a card in no table
UNKNOWN_CARD = 0.7


@dataclass(frozen=True, kw_only=True, slots=True)
class Kin:
    """What decides whose progress tells about a job."""

    family: tuple[str, ...]
    namesakes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """One observation: how fast a job went on a card."""

    job: str
    card: str
    steps_per_s: float
    at: datetime
    #: over how long it was seen, seconds; 0: not known, and taken as long
    span_s: float = 0.0

    @property
    def short(self) -> bool:
        """Whether it may be mostly start-up."""
        return 0 < self.span_s < LEAST_S


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What is known of one card; `sigma` of its logarithm."""

    steps_per_s: float
    sigma: float
    #: observations on this very card; 0: carried from others
    seen: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """Logarithm of a rate on one card."""

    log: float
    sigma: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What is known of one job (or family) on all cards."""

    workload: str
    #: best known first: own, family, namesakes. Each: card -> what was seen there
    levels: tuple[Mapping[str, _Seen], ...]
    #: steps that the job, or the middle one of its kin, has in all; None: nobody told
    total: float | None = None
    total_sigma: float = 0.0
    #: (card, other card) -> how much faster kin that ran on both were on the other, as a logarithm
    ratios: Mapping[tuple[str, str], _Seen] = field(default_factory=dict)

    @property
    def seen(self) -> tuple[str, ...]:
        """Cards that it, or its kin, was seen on."""
        return tuple(sorted({card for level in self.levels for card in level}))

    def on(self, card: str) -> Told | None:
        """How fast it goes on this card; None: it was seen on none."""
        for level in self.levels:
            if card in level:
                one = level[card]
                return Told(steps_per_s=math.exp(one.log), sigma=one.sigma, seen=one.count)
            if level:
                carried = [
                    self._carried(one, source, card) for source, one in sorted(level.items())
                ]
                # The surest ones count most; they share the table's error, so many do not make it small.
                weights = [1 / one.sigma**2 for one in carried]
                log = sum(w * one.log for w, one in zip(weights, carried, strict=True)) / sum(
                    weights
                )
                sigma = min(one.sigma for one in carried)
                return Told(steps_per_s=math.exp(log), sigma=sigma, seen=0)
        return None

    def _carried(self, one: _Seen, source: str, card: str) -> _Seen:
        """The rate on `source` taken to `card`, by what kin showed on both, else by the card table."""
        if (shown := self.ratios.get((source, card))) is not None:
            return _Seen(log=one.log + shown.log, sigma=math.hypot(one.sigma, shown.sigma), count=0)
        ratio = cards.speed(card, self.workload) / cards.speed(source, self.workload)
        doubt = UNKNOWN_CARD if None in (cards.find(source), cards.find(card)) else CARRIED
        return _Seen(log=one.log + math.log(ratio), sigma=math.hypot(one.sigma, doubt), count=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _SumUp:
    """A pace in the words of a decision."""

    #: card -> speed relative to a T4
    speeds: Mapping[str, float]
    t4_steps_per_s: float
    sigma: float
    total: float | None
    total_sigma: float

    @classmethod
    def of(cls, pace: Pace) -> _SumUp | None:
        told = {card: there for card in pace.seen if (there := pace.on(card)) is not None}
        reference = pace.on("T4")
        if reference is None:
            return None
        return cls(
            speeds={
                card: there.steps_per_s / reference.steps_per_s
                for card, there in told.items()
                if card != "T4"
            },
            t4_steps_per_s=reference.steps_per_s,
            # Where it ran last the rate is known best: that it is carried to a T4 and back costs nothing there.
            sigma=min(there.sigma for there in told.values()),
            total=pace.total,
            total_sigma=pace.total_sigma,
        )


@dataclass(kw_only=True, slots=True, eq=False)
class Book:
    """All observations, by whom they tell about. Made by `learn`."""

    own: Mapping[str, Mapping[str, _Seen]]
    families: Mapping[tuple[str, ...], Mapping[str, _Seen]]
    namesakes: Mapping[tuple[str, ...], Mapping[str, _Seen]]
    #: steps in all, by job, and what the middle job of a family has with the deviation of its logarithm
    totals: Mapping[str, float]
    usual: Mapping[tuple[str, ...], tuple[float, float]]
    ratios: Mapping[tuple[str, ...], Mapping[tuple[str, str], _Seen]]
    _paces: dict[tuple[tuple[str, ...], str], Pace | None] = field(default_factory=dict)
    _sums: dict[tuple[tuple[str, ...], str], _SumUp | None] = field(default_factory=dict)

    def pace(self, job: str, kin: Kin | None, workload: str) -> Pace | None:
        """What is known of a job; None: nobody saw it or its kin run."""
        shared = self._shared(kin, workload)
        own, total = self.own.get(job), self.totals.get(job)
        if not own:
            if shared is None or total is None:
                return shared
            return replace(shared, total=total, total_sigma=0.0)
        levels = (own, *(shared.levels if shared else ()))
        usual = (shared.total, shared.total_sigma) if shared else (None, 0.0)
        all_steps, sigma = (total, 0.0) if total is not None else usual
        return Pace(
            workload=workload,
            levels=levels,
            total=all_steps,
            total_sigma=sigma,
            ratios=shared.ratios if shared else {},
        )

    def _shared(self, kin: Kin | None, workload: str) -> Pace | None:
        """What kin alone tell; looked up once for ten thousand cells of a matrix."""
        if kin is None:
            return None
        key = (kin.family, workload)
        if key not in self._paces:
            found = (self.families.get(kin.family, {}), self.namesakes.get(kin.namesakes, {}))
            levels = tuple(level for level in found if level)
            total, sigma = self.usual.get(kin.family) or (None, 0.0)
            self._paces[key] = (
                Pace(
                    workload=workload,
                    levels=levels,
                    total=total,
                    total_sigma=sigma,
                    ratios=self.ratios.get(kin.family, {}),
                )
                if levels
                else None
            )
        return self._paces[key]

    def told(self, job: Waiting, kin: Kin | None) -> Waiting:
        """The job with what is known of its length and of the cards; unchanged where nothing is."""
        workload = job.needs.workload
        own, total = self.own.get(job.id), self.totals.get(job.id)
        if own or kin is None:
            pace = self.pace(job.id, kin, workload)
            sum_up = None if pace is None else _SumUp.of(pace)
        else:
            sum_up = self._summed_up(kin, workload)
        if sum_up is None:
            return job
        doubt = 0.0
        if total is None:
            total, doubt = sum_up.total, sum_up.total_sigma
        if total is None:
            return replace(job, speeds=sum_up.speeds) if sum_up.speeds else job
        left = total * min(1.0, max(0.0, job.remaining))
        return replace(
            job,
            speeds=sum_up.speeds,
            remaining_t4_s=left / sum_up.t4_steps_per_s,
            sigma=math.hypot(sum_up.sigma, doubt),
        )

    def _summed_up(self, kin: Kin, workload: str) -> _SumUp | None:
        """The same for all cells of a matrix that never ran: worked out once."""
        key = (kin.family, workload)
        if key not in self._sums:
            pace = self._shared(kin, workload)
            self._sums[key] = None if pace is None else _SumUp.of(pace)
        return self._sums[key]


def kin(spec: Mapping[str, Any], bundle: str) -> Kin:
    """Of which family a job is: one bundle, the same commands, the same axes, the same class of work.

    `spec` as `JobSpec.to_json` gives it: of ten thousand only these few fields are looked at.
    """
    common = (spec["run"], spec["setup"], spec["needs"]["workload"], *sorted(spec["cell"]))
    return Kin(
        family=("", bundle, *common),
        namesakes=(matrix.stem(spec["name"], spec["cell"]), *common),
    )


def learn(
    rates: Iterable[Rate], kin: Mapping[str, Kin], totals: Mapping[str, float] | None = None
) -> Book:
    """The book of these observations. Rates that make no sense are left out; their order does not matter."""
    own: dict[str, dict[str, list[Rate]]] = {}
    families: dict[tuple[str, ...], dict[str, list[Rate]]] = {}
    namesakes: dict[tuple[str, ...], dict[str, list[Rate]]] = {}
    for rate in rates:
        if not 0 < rate.steps_per_s < 1e12:
            continue
        if not rate.short:
            own.setdefault(rate.job, {}).setdefault(rate.card, []).append(rate)
        if (of := kin.get(rate.job)) is not None:
            families.setdefault(of.family, {}).setdefault(rate.card, []).append(rate)
            namesakes.setdefault(of.namesakes, {}).setdefault(rate.card, []).append(rate)
    told = {job: total for job, total in (totals or {}).items() if 0 < total < 1e15}
    by_family: dict[tuple[str, ...], list[float]] = {}
    for job, total in told.items():
        if (of := kin.get(job)) is not None:
            by_family.setdefault(of.family, []).append(total)
    alone = {job: _seen(found, 0.0) for job, found in own.items()}
    return Book(
        own=alone,
        families={key: _seen(found, FAMILY) for key, found in families.items()},
        namesakes={key: _seen(found, NAMESAKE) for key, found in namesakes.items()},
        totals=told,
        usual={key: _usual(found) for key, found in by_family.items()},
        ratios=_ratios(alone, kin),
    )


def _ratios(
    own: Mapping[str, Mapping[str, _Seen]], kin: Mapping[str, Kin]
) -> dict[tuple[str, ...], dict[tuple[str, str], _Seen]]:
    """By family: how one card compares with another where one and the same job ran on both."""
    logs: dict[tuple[tuple[str, ...], tuple[str, str]], list[float]] = {}
    for job, seen in own.items():
        if job not in kin or len(seen) < 2:
            continue
        for source, card in itertools.permutations(sorted(seen), 2):
            logs.setdefault((kin[job].family, (source, card)), []).append(
                seen[card].log - seen[source].log
            )
    found: dict[tuple[str, ...], dict[tuple[str, str], _Seen]] = {}
    for (family, pair), all_logs in logs.items():
        sigma = math.hypot(FLOOR, NOISE * math.sqrt(2 / len(all_logs)))
        # Never surer than a look at the card itself, nor less sure than the table.
        ratio = _Seen(log=median(all_logs), sigma=min(CARRIED, sigma), count=len(all_logs))
        found.setdefault(family, {})[pair] = ratio
    return found


def _seen(found: Mapping[str, Sequence[Rate]], stranger: float) -> dict[str, _Seen]:
    """card -> the median of the last rates there, of long runs where there are any."""
    seen = {}
    for card, rates in found.items():
        sure = [rate for rate in rates if not rate.short] or rates
        last = sorted(sure, key=lambda rate: (rate.at, rate.job, rate.steps_per_s))[-LAST:]
        noise = math.sqrt(sum(_noise(rate) ** 2 for rate in last)) / len(last)
        seen[card] = _Seen(
            log=median(math.log(rate.steps_per_s) for rate in last),
            sigma=math.hypot(FLOOR, noise, stranger),
            count=len(last),
        )
    return seen


def _noise(rate: Rate) -> float:
    return math.hypot(NOISE, min(MOST_DOUBT, START_S / rate.span_s)) if rate.short else NOISE


def _usual(totals: Sequence[float]) -> tuple[float, float]:
    """The middle total, and how much they differ; alone it might be any other by a fifth."""
    middle = median(totals)
    spread = median(abs(math.log(total / middle)) for total in totals) / 0.6745
    return middle, max(spread, FAMILY / math.sqrt(len(totals)))

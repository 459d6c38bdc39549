"""Cards as people ask for them: facts with sources, speeds, and what their own jobs showed. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from freegpu import cards
from freegpu.cards import measured
from freegpu.cards.measured import Seen
from freegpu.orchestrator import history
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.speeds import LAST, Rate

__all__ = ["CardDetail", "CardLine", "Cards", "ClassSpeed", "OwnRate", "look"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CardLine:
    """One card in one line; speeds relative to a T4 for the class of work that was asked for."""

    name: str
    kind: str
    vram_gb: float
    sm: str | None
    bf16: bool
    #: by the model
    speed: float
    #: middle one of the public runs that were made on a T4 too, and how many; None, 0: there is none
    public_speed: float | None
    public_runs: int
    #: the same of this home's own jobs
    own_speed: float | None
    own_jobs: int
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassSpeed:
    """How fast a card is for one class of work."""

    workload: str
    speed: float
    public_speed: float | None
    public_runs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnRate:
    """How fast a job of this home went on the card: the median of the last observations."""

    job: str
    job_name: str
    workload: str
    seconds_per_step: float
    seen: int
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class CardDetail:
    """All that is known of one card."""

    facts: cards.Card
    #: bf16, fp16 or fp32: what it does fast
    precision: str
    speeds: tuple[ClassSpeed, ...]
    #: where facts and model are from: key -> words
    sources: Mapping[str, str]
    public: tuple[Seen, ...]
    own: tuple[OwnRate, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cards:
    """The cards for one class of work, fastest first; `detail` where one was asked for."""

    workload: str
    cards: tuple[CardLine, ...]
    detail: CardDetail | None


def look(ledger: Ledger, name: str | None, workload: str) -> Cards:
    """The whole table, or one card with everything about it. `name` is one that the card table finds."""
    rates = history.rates(ledger)
    card = cards.find(name) if name is not None else None
    shown = (card.name,) if card is not None else cards.names()
    own = _own_ratios(ledger, rates, workload)
    lines = [_line(each, workload, own.get(each, ())) for each in shown]
    return Cards(
        workload=workload,
        cards=tuple(sorted(lines, key=lambda line: (-line.speed, line.name))),
        detail=_detail(ledger, card, rates) if card is not None else None,
    )


def _line(name: str, workload: str, own: Sequence[float]) -> CardLine:
    card = cards.find(name)
    if card is None:
        raise KeyError(name)
    public = [one.speed for one in measured.seen(name) if one.workload == workload]
    return CardLine(
        name=card.name,
        kind=card.kind,
        vram_gb=card.vram_gb,
        sm=card.sm,
        bf16=card.bf16_native,
        speed=cards.speed(name, workload),
        public_speed=median(public) if public else None,
        public_runs=len(public),
        own_speed=median(own) if own else None,
        own_jobs=len(own),
        note=card.note,
    )


def _detail(ledger: Ledger, card: cards.Card, rates: Sequence[Rate]) -> CardDetail:
    public = measured.seen(card.name)
    by_class = {
        workload: [one.speed for one in public if one.workload == workload]
        for workload in cards.WORKLOADS
    }
    told = cards.sources()
    return CardDetail(
        facts=card,
        precision=cards.precision(card),
        speeds=tuple(
            ClassSpeed(
                workload=workload,
                speed=cards.speed(card.name, workload),
                public_speed=median(found) if found else None,
                public_runs=len(found),
            )
            for workload, found in by_class.items()
        ),
        sources={key: told[key] for key in (*card.source.split(), "model")},
        public=tuple(public),
        own=_own(ledger, rates, card.name),
    )


def _own(ledger: Ledger, rates: Sequence[Rate], card: str) -> tuple[OwnRate, ...]:
    """What this home's jobs did on the card, newest first."""
    by_job = _by_job(rates, card)
    found = []
    for job, _, spec in ledger.specs(by_job):
        last = by_job[job]
        found.append(
            OwnRate(
                job=job,
                job_name=spec.name,
                workload=spec.needs.workload,
                seconds_per_step=1 / median(rate.steps_per_s for rate in last),
                seen=len(last),
                at=last[-1].at,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.at, one.job), reverse=True))


def _own_ratios(ledger: Ledger, rates: Sequence[Rate], workload: str) -> dict[str, list[float]]:
    """card -> how much faster than on a T4 each job of this class went that ran on both."""
    reference = _by_job(rates, "T4")
    wanted = {job for job, _, spec in ledger.specs(reference) if spec.needs.workload == workload}
    found: dict[str, list[float]] = {}
    for card in sorted({rate.card for rate in rates} - {"T4"}):
        for job, last in _by_job(rates, card).items():
            if job in wanted:
                there = median(rate.steps_per_s for rate in last)
                ratio = there / median(rate.steps_per_s for rate in reference[job])
                found.setdefault(card, []).append(ratio)
    return found


def _by_job(rates: Sequence[Rate], card: str) -> dict[str, list[Rate]]:
    """The last observations of each job on a card, oldest first."""
    found: dict[str, list[Rate]] = {}
    for rate in sorted(rates, key=lambda rate: rate.at):
        # a run of seconds is start-up, which no card makes faster
        if rate.card == card and rate.steps_per_s > 0 and not rate.short:
            found.setdefault(rate.job, []).append(rate)
    return {job: each[-LAST:] for job, each in found.items()}

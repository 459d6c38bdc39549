"""Which machines fit what a job needs, how fast they are for it, and which platforms are its homes. Pure.

Judged once for all jobs with equal needs, and remembered while the machines on offer are those of before: at most ticks
they are. Nothing here depends on the time, on quotas or on who runs where.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median_high
from typing import Any

from freegpu import cards
from freegpu.jobs.model import Accelerator, Needs
from freegpu.orchestrator.machines import Shape, card_fault, lack, vram_of
from freegpu.orchestrator.model import Waiting
from freegpu.orchestrator.spots import NEVER_S, Kind, Login, Spot, SpotKind
from freegpu.orchestrator.turns import Paces

__all__ = ["Fitting", "Judged", "fitting"]

#: a platform is a home of a job when its best card there is at most so many times slower than the best anywhere, and
#: does at most so many times less in the long run: an H200 for five minutes a month is no home beside an L4 for 15 hours
HOME = 8.0
#: needs that are remembered for one set of machines
MOST = 20_000
#: longer queues are not kept in memory for the sake of the next decision
KEPT = 2000

#: the number of a machine's shape, and the share of the time for which quota lets one of them run
Machine = tuple[int, float]
#: a card, and what the PyTorch beside it was built for
Card = tuple[str, tuple[str, ...]]
#: by the number of a machine's shape: the place in a job's list of cards; how fast the best and a middling card are; and
#: seconds per T4 second by the number of the shape
Found = tuple[Sequence[int | None], Paces | None, Sequence[float | None]]
#: what of a job's needs decides about cards
Asked = tuple[tuple[Accelerator, ...], bool, str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What jobs with some needs find among the machines on offer."""

    #: by the number of a machine's shape: its place in the job's list of cards; None: it does not fit
    choices: Sequence[int | None]
    #: seconds per T4 second on the best and on a middling one of these; None: nothing fits
    paces: Paces | None
    #: platforms where these jobs run at a speed worth it, without a person's help
    homes: frozenset[Login]


@dataclass(kw_only=True, slots=True, eq=False)
class Fitting:
    """One set of machines, and what was found of it."""

    #: (platform, number of the shape) of all that is there
    machines: Sequence[tuple[str, int]]
    #: logins where sessions may be started, each with its machines
    able: Sequence[tuple[Login, Sequence[Machine]]]
    numbers: Mapping[Shape, int]
    #: the shapes by what decides about a card, with their numbers
    groups: Mapping[Card, Sequence[tuple[int, Shape]]]
    #: shared by all that know the same machines
    _found: dict[Needs, Found]
    _judged: dict[Needs, Judged] = field(default_factory=dict)
    _kinds: dict[Kind, Judged] = field(default_factory=dict)
    _sole: dict[Needs, Login | None] = field(default_factory=dict)
    _cards: dict[Asked, list[tuple[int, Sequence[tuple[int, Shape]]]]] = field(default_factory=dict)
    _largest: frozenset[Login] | None = None
    _lately: tuple[Sequence[Needs], frozenset[Login]] = ((), frozenset())
    _waiting: tuple[Sequence[Waiting], frozenset[Login]] = ((), frozenset())
    #: by seconds per T4 second, by the number of the shape
    _homes: dict[tuple[float | None, ...], frozenset[Login]] = field(default_factory=dict)
    #: see `lot`
    lots: dict[Kind, tuple[Judged, int]] = field(default_factory=dict)
    _numbered: dict[tuple[Any, ...], int] = field(default_factory=dict)
    #: jobs that waited at the last decision, and what `crowd` remembers of them
    crowd: tuple[Any, Any] = (None, None)

    def of(self, needs: Needs) -> Judged:
        """What fits these needs."""
        found = self._judged.get(needs)
        if found is None:
            if len(self._judged) >= MOST:
                self._judged.clear()
                self._homes.clear()
            found = self._judged[needs] = self._judge(needs)
        return found

    def of_kind(self, kind: Kind) -> Judged:
        """The same where some platforms may be out of the question; no paces: nothing fits on the others."""
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= MOST:
                self._kinds.clear()
            found = self._kinds[kind] = self._narrowed(kind)
        return found

    def _narrowed(self, kind: Kind) -> Judged:
        judged = self.of(kind.needs)
        if not kind.narrow:
            return judged
        some = any(
            judged.choices[number] is not None and kind.allows(platform)
            for platform, number in self.machines
        )
        able = [entry for entry in self.able if kind.allows(entry[0][0])]
        return Judged(
            choices=judged.choices,
            paces=judged.paces if some else None,
            homes=_homes(able, self._seconds(kind.needs, judged.choices)),
        )

    def sole_lately(self, lately: Sequence[Needs]) -> frozenset[Login]:
        """`sole` of a list that is often the very one of the last time."""
        if self._lately[0] is not lately:
            self._lately = (lately, self.sole(lately))
        return self._lately[1]

    def sole_waiting(self, waiting: Sequence[Waiting]) -> frozenset[Login]:
        """`sole` of jobs that are often the very ones of the last time."""
        if self._waiting[0] is waiting:
            return self._waiting[1]
        found = self.sole([job.needs for job in waiting])
        if len(waiting) <= KEPT:
            self._waiting = (waiting, found)
        return found

    def lot(self, kind: Kind) -> tuple[Judged, int]:
        """What fits these jobs, and a number: equal for kinds that no place tells apart, whatever the jobs' lengths."""
        judged = self.of_kind(kind)
        same = (
            tuple(judged.choices),
            judged.homes,
            kind.grace_s,
            kind.needs.workload,
            kind if kind.narrow else None,
        )
        if len(self.lots) >= MOST:
            self.lots.clear()
        found = self.lots[kind] = (judged, self._numbered.setdefault(same, len(self._numbered)))
        return found

    @property
    def largest(self) -> frozenset[Login]:
        """Platforms that have cards with memory that no other home has."""
        if self._largest is None:
            size = {number: vram_of(shape[0], shape[1]) for shape, number in self.numbers.items()}
            most = {max(size[number] for number, _ in machines) for _, machines in self.able}
            self._largest = self.sole(Needs(vram_gb=gb) for gb in most if gb > 0)
        return self._largest

    def sole(self, every: Iterable[Needs]) -> frozenset[Login]:
        """Platforms that are the only home of jobs with one of these needs; not by the user's own choice."""
        known = self._sole
        found = set()
        for needs in every:
            try:
                found.add(known[needs])
            except KeyError:
                if len(known) >= MOST:
                    known.clear()
                free = replace(needs, platforms=()) if needs.platforms else needs
                homes = self.of(free).homes
                known[needs] = next(iter(homes)) if len(homes) == 1 else None
                found.add(known[needs])
        return frozenset(login for login in found if login is not None)

    def _judge(self, needs: Needs) -> Judged:
        found = self._found.get(needs)
        if found is None:
            if len(self._found) >= MOST:
                self._found.clear()
            found = self._found[needs] = self._find(needs)
        choices, paces, seconds = found
        # needs differ more than what fits them does
        same = tuple(seconds)
        homes = self._homes.get(same)
        if homes is None:
            homes = self._homes[same] = _homes(self.able, seconds)
        return Judged(choices=choices, paces=paces, homes=homes)

    def _find(self, needs: Needs) -> Found:
        choices: list[int | None] = [None] * len(self.numbers)
        for choice, group in self._suitable(needs):
            for number, shape in group:
                if not lack(needs, shape):
                    choices[number] = choice
        seconds = self._seconds(needs, choices)
        known = [one for one in seconds if one is not None]
        return choices, Paces(min(known), median_high(known)) if known else None, seconds

    def _suitable(self, needs: Needs) -> list[tuple[int, Sequence[tuple[int, Shape]]]]:
        """The groups whose card does, with its place in the job's list of cards; memory and the like not considered."""
        asked = (needs.accelerators, needs.ordered, needs.precision, needs.allows_cpu)
        found = self._cards.get(asked)
        if found is None:
            if len(self._cards) >= MOST:
                self._cards.clear()
            judged = ((card_fault(needs, *card), group) for card, group in self.groups.items())
            found = [(choice, group) for (fault, choice), group in judged if not fault]
            self._cards[asked] = found
        return found

    def _seconds(self, needs: Needs, choices: Sequence[int | None]) -> list[float | None]:
        """Seconds per T4 second, by the number of the shape; None: it does not fit."""
        found: list[float | None] = [None] * len(choices)
        for (card, _), group in self.groups.items():
            pace = 1 / cards.speed(card, needs.workload)
            for number, _ in group:
                if choices[number] is not None:
                    found[number] = pace
        return found


def fitting(spots: Sequence[Spot]) -> Fitting:
    """What is known of these machines, whose shapes are numbered."""
    every: dict[tuple[str, Shape], None] = {}
    able: dict[Login, dict[tuple[Shape, float], None]] = {}
    # free slots last: they come and go, and are most often of machines that are on offer, too
    for spot in sorted(spots, key=lambda spot: spot.kind is SpotKind.LIVE):
        every[spot.offer.platform, spot.shape] = None
        if not spot.attended and not spot.closed:
            able.setdefault(spot.login, {})[spot.shape, _share(spot)] = None
    known = _fitting(tuple(every), tuple((login, tuple(there)) for login, there in able.items()))
    for spot in spots:
        spot.number = known.numbers[spot.shape]
    return known


@lru_cache(maxsize=16)
def _found(machines: tuple[tuple[str, Shape], ...]) -> dict[Needs, Found]:
    """What was found of these machines, whatever platforms are left alone for the moment."""
    return {}


@lru_cache(maxsize=32)
def _fitting(
    machines: tuple[tuple[str, Shape], ...],
    able: tuple[tuple[Login, tuple[tuple[Shape, float], ...]], ...],
) -> Fitting:
    numbers = {
        shape: number for number, shape in enumerate(dict.fromkeys(shape for _, shape in machines))
    }
    groups: dict[Card, list[tuple[int, Shape]]] = {}
    for shape, number in numbers.items():
        groups.setdefault((shape[0], shape[5]), []).append((number, shape))
    return Fitting(
        machines=[(platform, numbers[shape]) for platform, shape in machines],
        able=[
            (login, [(numbers[shape], share) for shape, share in there]) for login, there in able
        ],
        numbers=numbers,
        groups=groups,
        _found=_found(machines),
    )


def _share(spot: Spot) -> float:
    """The share of the time for which its quota lets such a session run."""
    budget = spot.budget
    if not spot.offer.pool or budget.limit_s == math.inf or spot.rate <= 0:
        return 1.0
    return min(1.0, budget.limit_s / spot.rate / (budget.period_s or NEVER_S))


def _homes(
    able: Iterable[tuple[Login, Sequence[Machine]]], seconds: Sequence[float | None]
) -> frozenset[Login]:
    """Where such jobs are done in the long run, and of these where they are done at a speed worth it.

    A processor is no home for what wants a card's speed, nor is a fast card that is there for minutes.
    """
    found: dict[Login, tuple[float, float]] = {}
    for login, machines in able:
        paces = [
            (pace / share, pace)
            for number, share in machines
            if (pace := seconds[number]) is not None and share > 0
        ]
        if paces:
            found[login] = (min(long for long, _ in paces), min(pace for _, pace in paces))
    lasting = min((long for long, _ in found.values()), default=0.0)
    kept = {login: pace for login, (long, pace) in found.items() if long <= HOME * lasting}
    least = min(kept.values(), default=0.0)
    return frozenset(login for login, pace in kept.items() if pace <= HOME * least)

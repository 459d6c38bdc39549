"""Which machines fit what a job needs, how fast they are for it, and which platforms are its homes. Pure.

Judged once for all jobs with equal needs, and remembered while the machines on offer are those of before: at most ticks
they are. Nothing here depends on the time, on quotas or on who runs where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median_low

from freegpu import cards
from freegpu.jobs.model import Needs
from freegpu.orchestrator.spots import Kind, Login, Shape, Spot, card_fault, lack
from freegpu.orchestrator.turns import Paces

__all__ = ["Fitting", "Judged", "fitting"]

#: a platform is a home of a job when its best card there is at most so many times slower than the best anywhere
HOME = 8.0
#: needs that are remembered for one set of machines
MOST = 100_000

#: (platform, shape) of all that is there
Machines = tuple[tuple[str, Shape], ...]
#: logins where sessions may be started, each with the shapes of its machines
Able = tuple[tuple[Login, tuple[Shape, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What jobs with some needs find among the machines on offer, platforms not considered."""

    #: shapes that fit, with their place in the job's list of cards
    choices: Mapping[Shape, int]
    #: the same by the shape's number; None: it does not fit
    by_number: Sequence[int | None]
    #: seconds per T4 second
    seconds: Mapping[Shape, float]
    #: the best and a middling one of these; None: nothing fits
    paces: Paces | None
    #: platforms where these jobs run at a speed worth it, without a person's help
    homes: frozenset[Login]


@dataclass(kw_only=True, slots=True, eq=False)
class Fitting:
    """One set of machines, and what was found of it."""

    machines: Machines
    able: Able
    shapes: tuple[Shape, ...]
    numbers: Mapping[Shape, int]
    _judged: dict[Needs, Judged] = field(default_factory=dict)
    _kinds: dict[Kind, Judged] = field(default_factory=dict)
    _sole: dict[Needs, Login | None] = field(default_factory=dict)
    _asked: tuple[Sequence[Needs], frozenset[Login]] = ((), frozenset())

    def of(self, needs: Needs) -> Judged:
        """What fits these needs."""
        found = self._judged.get(needs)
        if found is None:
            if len(self._judged) >= MOST:
                self._judged.clear()
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
            shape in judged.choices and kind.allows(platform) for platform, shape in self.machines
        )
        able = [entry for entry in self.able if kind.allows(entry[0][0])]
        return replace(
            judged,
            paces=judged.paces if some else None,
            homes=_homes(able, judged.seconds),
        )

    def sole_lately(self, lately: Sequence[Needs]) -> frozenset[Login]:
        """`sole` of a list that is often the very one of the last time."""
        if self._asked[0] is not lately:
            self._asked = (lately, self.sole(lately))
        return self._asked[1]

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
        choices: dict[Shape, int] = {}
        of_card: dict[tuple[str, tuple[str, ...]], tuple[str, int]] = {}
        for shape in self.shapes:
            if lack(needs, shape):
                continue
            card, archs = shape[0], shape[5]
            if (card, archs) not in of_card:
                of_card[card, archs] = card_fault(needs, card, archs)
            fault, choice = of_card[card, archs]
            if not fault:
                choices[shape] = choice
        seconds = {shape: 1 / cards.speed(shape[0], needs.workload) for shape in choices}
        return Judged(
            choices=choices,
            by_number=[choices.get(shape) for shape in self.shapes],
            seconds=seconds,
            paces=Paces(min(seconds.values()), median_low(seconds.values())) if seconds else None,
            homes=_homes(self.able, seconds),
        )


def fitting(spots: Sequence[Spot]) -> Fitting:
    """What is known of these machines, whose shapes are numbered."""
    every: dict[tuple[str, Shape], None] = {}
    able: dict[Login, dict[Shape, None]] = {}
    for spot in spots:
        every[spot.offer.platform, spot.shape] = None
        if not spot.attended and not spot.closed:
            able.setdefault(spot.login, {})[spot.shape] = None
    known = _fitting(tuple(every), tuple((login, tuple(shapes)) for login, shapes in able.items()))
    for spot in spots:
        spot.number = known.numbers[spot.shape]
    return known


@lru_cache(maxsize=16)
def _fitting(machines: Machines, able: Able) -> Fitting:
    shapes = tuple(dict.fromkeys(shape for _, shape in machines))
    numbers = {shape: number for number, shape in enumerate(shapes)}
    return Fitting(machines=machines, able=able, shapes=shapes, numbers=numbers)


def _homes(
    able: Iterable[tuple[Login, tuple[Shape, ...]]], seconds: Mapping[Shape, float]
) -> frozenset[Login]:
    """A processor is no home for what wants a card's speed."""
    best = {
        login: min(fits)
        for login, shapes in able
        if (fits := [seconds[shape] for shape in shapes if shape in seconds])
    }
    least = min(best.values(), default=0.0)
    return frozenset(login for login, pace in best.items() if pace <= HOME * least)

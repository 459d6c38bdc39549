"""The jobs that wait, in groups that differ in nothing but their length as far as places go, and who of them may get one. Pure.

What the shortest of a group may not have, the others may not have either: whether anybody can be let in anywhere is told
by looking at one job a group. Remembered while the same jobs wait: between two events of a forecast most often they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from freegpu import cards
from freegpu.orchestrator import moves
from freegpu.orchestrator.board import Board
from freegpu.orchestrator.expectation import dust_at, shorter, too_short
from freegpu.orchestrator.fitting import KEPT, Fitting, Judged
from freegpu.orchestrator.model import Waiting
from freegpu.orchestrator.reserve import Claim
from freegpu.orchestrator.spots import Ask, Kind, Login, Spot, least_s, shape_of
from freegpu.orchestrator.turns import endangered, urgent

__all__ = ["Takers"]


@dataclass(kw_only=True, slots=True, eq=False)
class Group:
    """Jobs without a deadline that fit the same machines, want as much grace, have the same homes and the same speeds."""

    shortest: Ask
    judged: Judged
    members: list[Waiting]


@dataclass(kw_only=True, slots=True, eq=False)
class Crowd:
    """All of them."""

    groups: Sequence[Group]
    #: the same by their homes
    homes: Mapping[frozenset[Login], Sequence[Group]]
    #: those with a deadline, one by one: what they may have changes with the time
    dated: Sequence[tuple[Waiting, Ask, Judged]]
    #: the least of all, and whether any has shown its own speed somewhere
    work_s: float
    grace_s: float
    told: bool
    #: for slots that pass on: without a deadline, the shortest of each kind and priority; and those that fit nothing on offer
    movers: Sequence[tuple[Waiting, Ask]]
    #: the same for machines that are on offer: the shortest of all that these fit alike
    alike: Sequence[tuple[Waiting, Ask]]


def _of(waiting: Sequence[Waiting], fitting: Fitting) -> Crowd:
    """Of these jobs, before these machines."""
    known: tuple[Sequence[Waiting] | None, Crowd | None] = fitting.crowd
    if known[0] is waiting and known[1] is not None:
        return known[1]
    found = _grouped(waiting, fitting)
    if len(waiting) <= KEPT:
        fitting.crowd = (waiting, found)
    return found


def _grouped(waiting: Sequence[Waiting], fitting: Fitting) -> Crowd:
    groups: dict[int | str, Group] = {}
    dated: list[tuple[Waiting, Ask, Judged]] = []
    movers: dict[Any, tuple[Waiting, Ask]] = {}
    alike: dict[Any, tuple[Waiting, Ask]] = {}
    asks = [Ask.of(job) for job in waiting]
    lots = fitting.lots
    for job, ask in zip(waiting, asks, strict=True):
        kind, work = ask.kind, ask.work_s
        lot = lots.get(kind)
        judged, number = lot if lot is not None else fitting.lot(kind)
        if job.deadline is not None:
            dated.append((job, ask, judged))
            continue
        alone = job.id if ask.speeds else None
        for shortest, of in ((movers, kind), (alike, number)):
            key = alone or (of, job.priority)
            first = shortest.get(key)
            if first is None or work < first[1].work_s:
                shortest[key] = (job, ask)
        if judged.paces is None:
            continue
        group = groups.get(alone or number)
        if group is None:
            groups[alone or number] = Group(shortest=ask, judged=judged, members=[job])
            continue
        group.members.append(job)
        if work < group.shortest.work_s:
            group.shortest = ask
    homes: dict[frozenset[Login], list[Group]] = {}
    for group in groups.values():
        homes.setdefault(group.judged.homes, []).append(group)
    return Crowd(
        homes=homes,
        groups=tuple(groups.values()),
        dated=dated,
        work_s=min([ask.work_s for ask in asks], default=0.0),
        grace_s=min([ask.kind.grace_s for ask in asks], default=0.0),
        told=any(ask.speeds for ask in asks),
        movers=tuple(movers.values()),
        alike=tuple(alike.values()),
    )


class Takers:
    """Who may get something in a decision.

    While jobs wait for a quota to come back, that is nobody at most events of a forecast. What is free only shrinks while
    we decide, but for the slots of sessions that are started: so what nobody may have as things stand stays as it is, and
    with it jobs that fit nothing else. Tested against the decision without it: tests/unit/test_decision_savings.py.
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.there = _of(board.snapshot.waiting, board.fitting)
        #: the identities of spots that nobody may have, which stays so
        self._refused: set[int] = set()

    def jobs(self) -> list[Waiting]:
        """Those that may get a place, whoever comes first; of the others none can."""
        if not self.board.snapshot.waiting or self.board.spent:
            return []
        wanted = list(self._wanted())
        if not wanted:
            return []
        found: list[Waiting] = []
        for group in self.there.groups:
            if any(_suits(spot, group.shortest.kind, group.judged) for spot in wanted):
                found += group.members
        for job, ask, judged in self.there.dated:
            if judged.paces is not None and any(_suits(spot, ask.kind, judged) for spot in wanted):
                found.append(job)
        return found

    @property
    def none(self) -> bool:
        """Whether nobody may have anything of what is left."""
        return next(self._wanted(), None) is None

    def passes_on(self) -> bool:
        """Whether any slot may pass on: in what order the jobs are asked matters only if one does."""
        now, numbers = self.board.now, self.board.fitting.numbers
        running = self.board.snapshot.running
        offered = all(shape_of(one.offer) in numbers for one in running)
        shortest = self.there.alike if offered else self.there.movers
        fitting = self.board.fitting
        asked = [(job, ask, False, fitting.of_kind(ask.kind).homes) for job, ask in shortest]
        asked += [
            (
                job,
                ask,
                judged.paces is not None and endangered(job, ask, judged.paces, now),
                judged.homes,
            )
            for job, ask, judged in self.there.dated
        ]
        return bool(moves.find(asked, running, lambda needs: fitting.of(needs).homes, now))

    def _wanted(self) -> Iterator[Spot]:
        """Spots that somebody may have as things stand."""
        there = self.there
        least = least_s(there.grace_s)
        for spot in self.board.spots:
            if spot.gone or spot.attended or id(spot) in self._refused:
                continue
            if shorter(spot, least) or self._dust_for_all(spot) or not self._somebody(spot):
                self._refused.add(id(spot))
                continue
            yield spot

    @cached_property
    def _claimants(self) -> Sequence[tuple[Claim, Sequence[tuple[Ask, Judged]]]]:
        """Of each claim the jobs with it; of those that differ only in their length the shortest."""
        found: dict[int, tuple[Claim, list[tuple[Ask, Judged]]]] = {}
        for homes, groups in self.there.homes.items():
            claim = self.board.claimed(homes, False)
            found[id(claim)] = (claim, [(group.shortest, group.judged) for group in groups])
        for job, ask, judged in self.there.dated:
            if judged.paces is not None:
                presses = urgent(job, ask, judged.paces, self.board.now)
                claim = self.board.claimed(judged.homes, presses)
                found.setdefault(id(claim), (claim, []))[1].append((ask, judged))
        return list(found.values())

    def _somebody(self, spot: Spot) -> bool:
        """Whether any job may have this spot as things stand."""
        for claim, every in self._claimants:
            if self.board.barred(spot, claim):
                continue
            for ask, judged in every:
                if (
                    _suits(spot, ask.kind, judged)
                    and self.board.units(ask, spot, claim) is not None
                ):
                    return True
        return False

    def _dust_for_all(self, spot: Spot) -> bool:
        """Whether what is left of its quota is not even worth a start for the shortest of all on the fastest such card."""
        there = self.there
        if not spot.poor or there.told:
            return False
        return dust_at(spot, there.grace_s, there.work_s / cards.fastest(spot.offer.card))


def _suits(spot: Spot, kind: Kind, judged: Judged) -> bool:
    """Whether such a job fits the machine and the length of its first session, whatever is kept for others."""
    return (
        judged.choices[spot.number] is not None
        and not (kind.narrow and not kind.allows(spot.offer.platform))
        and not too_short(kind, spot)
    )

"""What is still to be had while one decision is made: spots, quotas, what is kept, who fits where. Pure.

A board begins as the snapshot, and each job that is placed takes its share away, so the next one sees what is left.
`placement` asks it; it knows no platform and has no clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeVar

from freegpu.adapters.base import Offer
from freegpu.orchestrator import moves, reserve
from freegpu.orchestrator.expectation import (
    DUST,
    SHORT,
    Outlook,
    dust,
    expect,
    shorter,
    too_short,
)
from freegpu.orchestrator.fitting import Fitting, fitting
from freegpu.orchestrator.model import (
    Assign,
    Assignment,
    Place,
    Snapshot,
    StartSession,
    Waiting,
)
from freegpu.orchestrator.spots import (
    Ask,
    Budget,
    Kind,
    Login,
    Spot,
    SpotKind,
    least_s,
    unfit,
)
from freegpu.orchestrator.turns import Paces, Turn, turn, urgent

__all__ = ["Board", "Fit"]

T = TypeVar("T")

#: so much work a session is to have room for, whatever the agent keeps back, seconds
SOME_WORK_S = 60.0
#: finishes within this factor of the best are as good as the best: the estimates are worse than that
NEAR = 1.05

#: for offers that draw on no quota, or on one that nobody counts
_UNLIMITED = Budget()


@dataclass(kw_only=True, slots=True, eq=False)
class Started:
    """A session that this call decided to start."""

    spot: Spot
    why: str
    assignments: list[Assignment] = field(default_factory=list)
    least_s: float = 0.0

    def action(self) -> StartSession:
        more = len(self.assignments) - 1
        also = f"; {more} more job{'s' if more > 1 else ''} beside it" if more else ""
        return StartSession(
            offer=self.spot.offer,
            assignments=tuple(self.assignments),
            reserve_s=self.spot.reserved_s,
            why=self.why + also,
            lasts_s=self.spot.lasts_s,
            least_s=self.least_s,
        )


@dataclass(kw_only=True, slots=True, eq=False)
class Fit:
    """The spots that jobs of one kind could take, each with its place in their list of cards."""

    kind: Kind
    spots: list[tuple[Spot, int]]
    #: by the number of a machine's shape: its place in the list; None: it does not fit
    choices: Sequence[int | None]
    #: how fast the best and a middling card of these are; None: nothing fits
    paces: Paces | None
    #: platforms where these jobs run at a speed worth it, without a person's help
    homes: frozenset[Login]
    #: nothing is left for these jobs
    hopeless: bool
    #: urgent or not -> the longest of these jobs that may still be let in, T4 seconds
    most: dict[bool, float] = field(default_factory=dict)
    #: how many of these jobs have not had their turn
    to_come: int = 0
    #: how much had been taken when `spots` was looked through last
    looked: int = -1
    #: sessions started by this call that were looked at
    seen: int = 0

    def welcome(self, started: Sequence[Started]) -> None:
        """Count in the slots of sessions that were started since the last look."""
        if self.seen == len(started):
            return
        kind, narrow = self.kind, self.kind.narrow
        more: list[tuple[Spot, int]] = []
        for session in started[self.seen :]:
            spot = session.spot
            choice = self.choices[spot.number]
            if choice is not None and not (narrow and not kind.allows(spot.offer.platform)):
                if not spot.gone:
                    more.append((spot, choice))
                self.most.clear()
        if more:
            # the list may be that of other kinds, too
            self.spots = self.spots + more
        self.seen = len(started)


@dataclass(kw_only=True, eq=False)
class Board:
    """What is still to be had while one call decides."""

    snapshot: Snapshot
    now: datetime
    places: Sequence[Place]
    #: in an order that depends on their content alone; ties go to the first
    spots: list[Spot]
    fitting: Fitting
    #: sessions that a login may still open, and how many it may have
    openings: dict[Login, tuple[int, int]]
    #: spots that some job could have when the decision began; too short ones are out for jobs with this grace
    open: list[Spot] = field(default_factory=list)
    grace_s: float = -1.0
    fits: dict[Kind, Fit] = field(default_factory=dict)
    assigned: list[Assign] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    spent: bool = False
    #: how often something was taken
    taken: int = 0
    #: open spots that suit, by the identity of what `fitting` remembers for some needs
    _suited: dict[int, list[tuple[Spot, int]]] = field(default_factory=dict)
    _claims: dict[tuple[frozenset[Login], bool], reserve.Claim] = field(default_factory=dict)
    #: by the identity of a claim: see `offered`; as of the last time that something was taken
    _offered: dict[int, list[Spot]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime) -> Board:
        places = _ordered(snapshot.places, lambda place: (place.platform, place.account))
        openings: dict[Login, tuple[int, int]] = {}
        budgets: dict[tuple[str, str, str], Budget] = {}
        at: dict[Login, Place] = {}
        for place in places:
            login = (place.platform, place.account)
            most = place.capabilities.max_concurrent
            openings.setdefault(login, (most - place.open_sessions, most))
            at.setdefault(login, place)
            for balance in _ordered(place.balances, lambda balance: balance.pool):
                rates = [offer.rate for offer in place.offers if offer.pool == balance.pool]
                burn = most * max(rates, default=1.0)
                budgets.setdefault((*login, balance.pool), Budget.of(balance, now, burn))

        def budget(offer: Offer) -> Budget:
            key = (offer.platform, offer.account, offer.pool)
            return budgets.get(key, _UNLIMITED) if offer.pool else _UNLIMITED

        free = {
            (slot.session, slot.slot): slot
            for slot in _ordered(snapshot.free_slots, lambda slot: (slot.session, slot.slot))
        }
        spots = [
            Spot.of_slot(
                slot, at.get((slot.offer.platform, slot.offer.account)), budget(slot.offer)
            )
            for _, slot in sorted(free.items())
        ]
        spots += [
            Spot.of_offer(place, offer, budget(offer), now)
            for place in places
            for offer in _ordered(place.offers, lambda offer: (offer.card, offer.count, offer.pool))
        ]
        for rank, spot in enumerate(spots):
            spot.rank = rank
        moves.keep_open(spots, snapshot.running)
        board = cls(
            snapshot=snapshot,
            now=now,
            places=places,
            spots=spots,
            fitting=fitting(spots),
            openings=openings,
        )
        board.look()
        board.open = [spot for spot in spots if not spot.gone]
        return board

    def queue(self, waiting: Sequence[Waiting]) -> list[tuple[Turn, Waiting, Ask, Fit]]:
        """Every job, in the order in which they choose."""
        asks = [Ask.of(job) for job in waiting]
        # where the job that asks least gets nothing done, nobody does
        self.grace_s = min((ask.kind.grace_s for ask in asks), default=0.0)
        least = least_s(self.grace_s)
        self.open = [spot for spot in self.open if not shorter(spot, least)]
        now, goal = self.now, self.snapshot.goal
        found = []
        for job, ask in zip(waiting, asks, strict=True):
            fit = self.fit(ask.kind)
            fit.to_come += 1
            rank = turn(job, ask, fit.paces, len(fit.homes), now, goal)
            found.append((rank, job, ask, fit))
        found.sort(key=itemgetter(0))
        return found

    def claim(self, job: Waiting, ask: Ask, fit: Fit) -> reserve.Claim:
        """What the job may take of what is kept."""
        presses = fit.paces is not None and urgent(job, ask, fit.paces, self.now)
        return self.claimed(fit.homes, presses)

    def claimed(self, homes: frozenset[Login], presses: bool) -> reserve.Claim:
        """The claim of jobs with these homes; one object for all of them."""
        found = self._claims.get((homes, presses))
        if found is None:
            found = self._claims[homes, presses] = reserve.Claim(homes=homes, urgent=presses)
        return found

    def offered(self, claim: reserve.Claim) -> list[Spot]:
        """Spots that jobs with this claim, one of `claim`'s, may still be let into; of the others not even the shortest is."""
        found = self._offered.get(id(claim))
        if found is None:
            found = self._offered[id(claim)] = [
                spot
                for spot in self.spots
                if not (spot.gone or spot.attended or self.barred(spot, claim))
            ]
        return found

    def barred(self, spot: Spot, claim: reserve.Claim) -> bool:
        """Whether all that is left of its quota is kept from such jobs: a new session there costs something in any case."""
        if spot.kind is not SpotKind.NEW or spot.rate <= 0 or spot.delay_s <= 0:
            return False
        return bool(spot.offer.pool) and self._allowance(spot, claim) <= 0

    @cached_property
    def others(self) -> int:
        """Jobs that wait or run beside the one that chooses."""
        return max(0, len(self.snapshot.waiting) + len(self.snapshot.running) - 1)

    @cached_property
    def sole(self) -> frozenset[Login]:
        """Platforms that are the only home of jobs that wait, run or came lately; not by the user's own choice."""
        found = self.fitting.sole_waiting(self.snapshot.waiting)
        found |= self.fitting.sole([running.job.needs for running in self.snapshot.running])
        # nobody has submitted anything for days: nothing is kept for who might
        return found | self.fitting.sole_lately(self.snapshot.lately if self.snapshot.came else ())

    @cached_property
    def rare(self) -> frozenset[Login]:
        """Platforms that keep an even share for jobs whose only home they are: these, and while jobs keep coming what has
        memory like nobody else. The benchmark's last jobs were those that came after others had spent it."""
        coming = self.snapshot.came >= reserve.COMING
        return self.sole | self.fitting.largest if coming else self.sole

    def fit(self, kind: Kind) -> Fit:
        """What fits jobs of this kind; looked at once, by shape."""
        found = self.fits.get(kind)
        if found is None:
            judged = self.fitting.of_kind(kind)
            choices = judged.choices
            spots = self._suited.get(id(choices))
            if spots is None:
                spots = [(s, at) for s in self.open if (at := choices[s.number]) is not None]
                self._suited[id(choices)] = spots
            allows = kind.allows
            there = [e for e in spots if allows(e[0].offer.platform)] if kind.narrow else spots
            found = self.fits[kind] = Fit(
                kind=kind,
                spots=there,
                choices=choices,
                paces=judged.paces,
                homes=judged.homes,
                hopeless=judged.paces is None,
                looked=0 if kind.grace_s == self.grace_s and not self.taken else -1,
            )
        return found

    def explained(self, ask: Ask, spot: Spot, claim: reserve.Claim) -> Outlook:
        """The same as `outlook` for a spot that may not fit the job at all."""
        refused = ask.kind.refused(spot.offer.platform)
        fault, choice = (refused, 0) if refused else unfit(ask.kind, spot.shape)
        if fault := fault or self.shut(ask.kind, spot):
            return Outlook(fault=fault, choice=choice)
        return self.outlook(ask, spot, choice, claim)

    def shut(self, kind: Kind, spot: Spot) -> str:
        """Why no job of this kind gets it now, "" if one may. It stays so while we decide."""
        if fault := spot.closed or self._full(spot):
            return fault
        return SHORT if too_short(kind, spot) else ""

    def outlook(self, ask: Ask, spot: Spot, choice: int, claim: reserve.Claim) -> Outlook:
        """What a spot that fits the job and is open would mean now."""
        found = self._allowed(ask, spot, choice, claim)
        if found is not None:
            return found
        if dust(ask, spot):
            return Outlook(fault=DUST, choice=choice)
        outlook = expect(ask, spot, choice)
        if spot.attended:
            return outlook.but(
                f"a person must start the session: freegpu cell {spot.offer.platform}"
            )
        return outlook.but(reserve.kept(spot, claim, self.rare))

    def _allowed(self, ask: Ask, spot: Spot, choice: int, claim: reserve.Claim) -> Outlook | None:
        """The same if the job may have it, else None: nobody asks for most reasons."""
        if spot.attended:
            return None
        units = self.units(ask, spot, claim)
        if units is None:
            return None
        return expect(ask, spot, choice, reserve.price(units, spot, self.others) if units else 0.0)

    def units(self, ask: Ask, spot: Spot, claim: reserve.Claim) -> float | None:
        """What it would cost; None: the job may not have it, whoever starts the session."""
        if dust(ask, spot):
            return None
        units = reserve.cost(ask, spot)
        return None if units > 0 and units > self._allowance(spot, claim) else units

    def _allowance(self, spot: Spot, claim: reserve.Claim) -> float:
        whose = (claim.homes, claim.urgent)
        allowed = spot.allowances.get(whose)
        if allowed is None:
            allowed = spot.allowances[whose] = reserve.allowance(spot, claim, self.rare)
        return allowed

    def most_work(self, ask: Ask, fit: Fit, claim: reserve.Claim) -> float:
        """The longest job of this kind that is still let in anywhere."""
        return (
            max(
                reserve.most_work(ask, spot, claim, self.rare)
                for spot, _ in fit.spots
                if not spot.attended
            )
            if any(not spot.attended for spot, _ in fit.spots)
            else 0.0
        )

    def _full(self, spot: Spot) -> str:
        """Why no further session of this shape can be started."""
        if spot.kind is not SpotKind.NEW:
            return ""
        left, most = self.openings[spot.login]
        if left < 1:
            return f"{most - left} of {most} session{'s' if most != 1 else ''} open"
        return "" if spot.free >= 1 else "none of these is to be had at the moment"

    def ranked(self, ask: Ask, fit: Fit, claim: reserve.Claim) -> list[tuple[Spot, Outlook]]:
        """What this job could take, best first."""
        fit.welcome(self.started)
        # What is gone (full, closed) or too short for this kind of job stays so while we decide.
        if fit.looked != self.taken:
            fit.looked, kind = self.taken, fit.kind
            fit.spots = [e for e in fit.spots if not e[0].gone and not too_short(kind, e[0])]
        found = [
            (spot, outlook)
            for spot, choice in fit.spots
            if (outlook := self._allowed(ask, spot, choice, claim)) is not None
        ]
        if len(found) < 2:
            return found
        first = min(outlook.choice for _, outlook in found)
        least = min(outlook.rank_s for _, outlook in found if outlook.choice == first)

        def place(entry: tuple[Spot, Outlook]) -> tuple[int, bool, int, float, float, int]:
            spot, outlook = entry
            if outlook.choice == first and outlook.rank_s <= least * NEAR:
                share = _share(spot, ask)
                return (first, False, spot.kind, share, outlook.rank_s, spot.rank)
            return (outlook.choice, True, 0, 0.0, outlook.rank_s, spot.rank)

        return sorted(found, key=place)

    def take(self, spot: Spot, outlook: Outlook, ask: Ask, job: str) -> None:
        """Give the spot to the job, and take what it costs from what is left for others."""
        if spot.kind is SpotKind.LIVE:
            spot.free = 0
            assignment = Assignment(job=job, slot=spot.slot)
            why = outlook.sentence(ask, spot)
            self.assigned.append(Assign(session=spot.session, assignment=assignment, why=why))
        elif spot.kind is SpotKind.NEW:
            self._start(spot, outlook.sentence(ask, spot), ask, job)
        else:
            self._join(next(s for s in self.started if s.spot is spot), ask, job)
        self.count(spot)

    def _start(self, spot: Spot, why: str, ask: Ask, job: str) -> None:
        left, most = self.openings[spot.login]
        self.openings[spot.login] = (left - 1, most)
        spot.free -= 1
        slots = Spot.of_planned(spot)
        self.started.append(Started(spot=slots, why=why))
        self.spots.append(slots)
        self._join(self.started[-1], ask, job)

    def _join(self, started: Started, ask: Ask, job: str) -> None:
        spot = started.spot
        started.assignments.append(Assignment(job=job, slot=len(started.assignments)))
        run = min(SOME_WORK_S, ask.work_s / spot.speed(ask))
        started.least_s = max(started.least_s, ask.kind.grace_s + run)
        more = max(0.0, spot.reserve(ask) - spot.reserved_s)
        spot.reserved_s += more
        spot.budget.left_s -= more
        spot.free -= 1

    def count(self, took: Spot) -> None:
        """After something was taken: note what quota is left, and the same as `look`."""
        self.taken += 1
        self._offered.clear()
        # a slot of a live session takes no quota, and what others have left is as it was
        if took.kind is not SpotKind.LIVE:
            for spot in self.spots:
                if spot.budget is took.budget and not spot.gone:
                    spot.measure()
        self.look()

    def look(self) -> None:
        """Note which spots are gone, and whether any is left."""
        openings = self.openings
        for spot in self.spots:
            if not spot.gone:
                full = spot.kind is SpotKind.NEW and openings[spot.login][0] < 1
                spot.gone = full or spot.free < 1 or bool(spot.closed)
        self.spent = all(spot.gone or spot.attended for spot in self.spots)


def _ordered(items: Iterable[T], key: Callable[[T], Any]) -> list[T]:
    """By the key, and where that leaves two equal by all that they hold, which takes long to write out."""
    found = list(items)
    if len(found) < 2:
        return found
    keys = [key(item) for item in found]
    order = sorted(range(len(found)), key=keys.__getitem__)
    if all(keys[one] != keys[other] for one, other in itertools.pairwise(order)):
        return [found[at] for at in order]
    return sorted(found, key=lambda item: (key(item), repr(item)))


def _share(spot: Spot, ask: Ask) -> float:
    """The part of its quota that a session there would take."""
    limit = spot.budget.limit_s
    if spot.kind is not SpotKind.NEW or not 0 < limit < math.inf:
        return 0.0
    return spot.reserve(ask) / limit

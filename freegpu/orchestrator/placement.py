"""Who runs where: the one decision of a tick, and its explanation. Pure, total, deterministic.

Who: endangered deadlines first, then priority, then first come. Nobody blocks the queue: a job that fits
nowhere now is passed over, and comes again at the next tick.
Where: hard filters, then the user's order of cards, then the least expected finish; among finishes that are
nearly equal a slot that is there already, then the session that takes less of its quota, then the name.
It knows no platform and has no clock, and the order of a snapshot's tuples does not matter. Which
spots fit a job is decided in `spots`, what one would mean for it in `expectation`; here they are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median_low

from freegpu import cards
from freegpu.adapters.base import Offer
from freegpu.orchestrator.expectation import Outlook, expect
from freegpu.orchestrator.model import (
    Action,
    Assign,
    Assignment,
    Place,
    Score,
    Snapshot,
    StartSession,
    Waiting,
)
from freegpu.orchestrator.spots import (
    Ask,
    Budget,
    Kind,
    Shape,
    Spot,
    SpotKind,
    blocked,
    seconds_until,
    unfit,
)

__all__ = ["decide", "explain"]

#: finishes within this factor of the best are as good as the best: the estimates are worse than that
NEAR = 1.05
#: a deadline is endangered when what is left is less than this much of the expected run, and an hour
DANGER, DANGER_S = 1.3, 3600.0

#: for offers that draw on no quota, or on one that nobody counts
_UNLIMITED = Budget()

#: a platform and the login on it
Login = tuple[str, str]


def decide(snapshot: Snapshot, now: datetime) -> list[Action]:
    """What to assign and to start now. Never raises; equal snapshots give equal actions, in equal order."""
    board = _Board.of(snapshot, now)
    placed: set[str] = set()
    for job in board.queue(snapshot.waiting, now):
        if board.spent:
            break
        fit = board.fit(Kind.of(job))
        if fit.hopeless or job.id in placed:
            continue
        ask = Ask.of(job, fit.kind)
        ranked = board.ranked(ask, fit)
        if ranked:
            board.take(*ranked[0], ask, job.id)
            placed.add(job.id)
        else:
            # What is free only shrinks while we decide, so the next job of this kind need not look again.
            fit.hopeless = True
    return [*board.assigned, *(started.action() for started in board.started)]


def explain(job: Waiting, snapshot: Snapshot, now: datetime) -> list[Score]:
    """What every platform, offer and free slot would mean for this job if it were alone, best first.

    `feasible` is what decide() could take now; the first of these is what it would take. A session that a
    person must start is not feasible to freegpu, and still has its expected finish.
    """
    board = _Board.of(snapshot, now)
    fit = board.fit(Kind.of(job))
    ask = Ask.of(job, fit.kind)
    scores = [outlook.score(ask, spot) for spot, outlook in board.ranked(ask, fit)]
    rest = [(spot, board.explained(ask, spot)) for spot in board.spots]
    scores += [outlook.score(ask, spot) for spot, outlook in rest if outlook.fault]
    shown = {score.platform for score in scores}
    silent = [place for place in board.places if place.platform not in shown]
    return scores + [_nothing(place, fit.kind, now) for place in silent]


def nothing_on(place: Place) -> str:
    """Why a platform has no offer, as far as we can tell."""
    if place.capabilities.attended:
        return f"a person must start a session: freegpu cell {place.platform}"
    return place.blocked_why or "offers nothing now"


def _nothing(place: Place, kind: Kind, now: datetime) -> Score:
    why = kind.refused(place.platform) or blocked(place, now) or nothing_on(place)
    return Score(
        platform=place.platform,
        card="",
        count=0,
        where="",
        feasible=False,
        finish_s=None,
        speed=0.0,
        sessions=0,
        why=f"{place.platform}: {why}",
    )


@dataclass(kw_only=True, slots=True, eq=False)
class _Started:
    """A session that this call decided to start."""

    spot: Spot
    why: str
    assignments: list[Assignment] = field(default_factory=list)

    def action(self) -> StartSession:
        more = len(self.assignments) - 1
        also = f"; {more} more job{'s' if more > 1 else ''} beside it" if more else ""
        return StartSession(
            offer=self.spot.offer,
            assignments=tuple(self.assignments),
            reserve_s=self.spot.reserved_s,
            why=self.why + also,
        )


@dataclass(kw_only=True, slots=True, eq=False)
class _Fit:
    """The spots that jobs of one kind could take, each with its place in their list of cards."""

    kind: Kind
    spots: list[tuple[Spot, int]]
    #: shapes that fit, with their place in the list
    choices: dict[Shape, int]
    #: seconds per T4 second on a middling card of these; None: nothing fits
    pace: float | None
    #: nothing is left for these jobs
    hopeless: bool
    #: sessions started by this call that were looked at
    seen: int = 0

    def welcome(self, started: Sequence[_Started]) -> None:
        """Count in the slots of sessions that were started since the last look."""
        for session in started[self.seen :]:
            choice = self.choices.get(session.spot.shape)
            if choice is not None and not self.kind.refused(session.spot.offer.platform):
                self.spots.append((session.spot, choice))
        self.seen = len(started)


@dataclass(kw_only=True, slots=True, eq=False)
class _Board:
    """What is still to be had while one call decides."""

    places: Sequence[Place]
    #: in an order that depends on their content alone; ties go to the first
    spots: list[Spot]
    shapes: dict[Shape, list[Spot]]
    #: sessions that a login may still open, and how many it may have
    openings: dict[Login, tuple[int, int]]
    fits: dict[Kind, _Fit] = field(default_factory=dict)
    assigned: list[Assign] = field(default_factory=list)
    started: list[_Started] = field(default_factory=list)
    spent: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot, now: datetime) -> _Board:
        places = sorted(
            snapshot.places, key=lambda place: (place.platform, place.account, repr(place))
        )
        openings: dict[Login, tuple[int, int]] = {}
        budgets: dict[tuple[str, str, str], Budget] = {}
        at: dict[Login, Place] = {}
        for place in places:
            login = (place.platform, place.account)
            most = place.capabilities.max_concurrent
            openings.setdefault(login, (most - place.open_sessions, most))
            at.setdefault(login, place)
            for balance in sorted(place.balances, key=lambda b: (b.pool, repr(b))):
                budgets.setdefault((*login, balance.pool), Budget.of(balance, now))

        def budget(offer: Offer) -> Budget:
            key = (offer.platform, offer.account, offer.pool)
            return budgets.get(key, _UNLIMITED) if offer.pool else _UNLIMITED

        free = {(slot.session, slot.slot): slot for slot in sorted(snapshot.free_slots, key=repr)}
        spots = [
            Spot.of_slot(
                slot, at.get((slot.offer.platform, slot.offer.account)), budget(slot.offer)
            )
            for _, slot in sorted(free.items())
        ]
        spots += [
            Spot.of_offer(place, offer, budget(offer), now)
            for place in places
            for offer in sorted(place.offers, key=repr)
        ]
        shapes: dict[Shape, list[Spot]] = {}
        for rank, spot in enumerate(spots):
            spot.rank = rank
            shapes.setdefault(spot.shape, []).append(spot)
        board = cls(places=places, spots=spots, shapes=shapes, openings=openings)
        board.count()
        return board

    def queue(self, waiting: Iterable[Waiting], now: datetime) -> list[Waiting]:
        """Every job, in the order in which they choose."""

        def turn(job: Waiting) -> tuple[bool, int, int, str]:
            calm = job.deadline is None or not self._endangered(job, now)
            return (calm, -job.priority, job.seq, job.id)

        return sorted(waiting, key=turn)

    def _endangered(self, job: Waiting, now: datetime) -> bool:
        """Whether a deadline that can still be met is close to what the job needs on a middling card."""
        left = 0.0 if job.deadline is None else seconds_until(job.deadline, now)
        if left <= 0:
            return False
        fit = self.fit(Kind.of(job))
        if fit.pace is None:
            return False
        return left < DANGER * Ask.of(job, fit.kind).work_s * fit.pace + DANGER_S

    def fit(self, kind: Kind) -> _Fit:
        """What fits jobs of this kind; looked at once, by shape."""
        found = self.fits.get(kind)
        if found is None:
            judged = [(shape, *unfit(kind, shape)) for shape in self.shapes]
            choices = {shape: choice for shape, fault, choice in judged if not fault}
            paces = [1 / cards.speed(shape[0], kind.needs.workload) for shape in choices]
            spots = [(spot, at) for shape, at in choices.items() for spot in self.shapes[shape]]
            if kind.needs.platforms or kind.avoid:
                spots = [entry for entry in spots if not kind.refused(entry[0].offer.platform)]
            found = self.fits[kind] = _Fit(
                kind=kind,
                spots=spots,
                choices=choices,
                pace=median_low(paces) if spots else None,
                hopeless=not spots,
            )
        return found

    def explained(self, ask: Ask, spot: Spot) -> Outlook:
        """The same as `outlook` for a spot that may not fit the job at all."""
        refused = ask.kind.refused(spot.offer.platform)
        fault, choice = (refused, 0) if refused else unfit(ask.kind, spot.shape)
        return Outlook(fault=fault, choice=choice) if fault else self.outlook(ask, spot, choice)

    def outlook(self, ask: Ask, spot: Spot, choice: int) -> Outlook:
        """What a spot that fits the job would mean now."""
        if fault := spot.closed or self._full(spot):
            return Outlook(fault=fault, choice=choice)
        outlook = expect(ask, spot, choice)
        if spot.attended and not outlook.fault:
            return outlook.but(
                f"a person must start the session: freegpu cell {spot.offer.platform}"
            )
        return outlook

    def _full(self, spot: Spot) -> str:
        """Why no further session of this shape can be started."""
        if spot.kind is not SpotKind.NEW:
            return ""
        left, most = self.openings[spot.login]
        if left < 1:
            return f"{most - left} of {most} session{'s' if most != 1 else ''} open"
        return "" if spot.free >= 1 else "none of these is to be had at the moment"

    def ranked(self, ask: Ask, fit: _Fit) -> list[tuple[Spot, Outlook]]:
        """What this job could take, best first."""
        fit.welcome(self.started)
        found = [
            (spot, outlook)
            for spot, choice in fit.spots
            if not spot.gone and not (outlook := self.outlook(ask, spot, choice)).fault
        ]
        # What is full or too short for this kind of job stays so while we decide.
        fit.spots = [(spot, outlook.choice) for spot, outlook in found]
        if not found:
            return []
        first = min(outlook.choice for _, outlook in found)
        least = min(outlook.expected_s for _, outlook in found if outlook.choice == first)

        def place(entry: tuple[Spot, Outlook]) -> tuple[int, bool, int, float, float, int]:
            spot, outlook = entry
            if outlook.choice == first and outlook.expected_s <= least * NEAR:
                share = _share(spot, ask)
                return (first, False, spot.kind, share, outlook.expected_s, spot.rank)
            return (outlook.choice, True, 0, 0.0, outlook.expected_s, spot.rank)

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
        self.count()

    def _start(self, spot: Spot, why: str, ask: Ask, job: str) -> None:
        left, most = self.openings[spot.login]
        self.openings[spot.login] = (left - 1, most)
        spot.free -= 1
        slots = Spot.of_planned(spot)
        self.started.append(_Started(spot=slots, why=why))
        self.spots.append(slots)
        self._join(self.started[-1], ask, job)

    def _join(self, started: _Started, ask: Ask, job: str) -> None:
        spot = started.spot
        started.assignments.append(Assignment(job=job, slot=len(started.assignments)))
        more = max(0.0, spot.reserve(ask) - spot.reserved_s)
        spot.reserved_s += more
        spot.budget.left_s -= more
        spot.free -= 1

    def count(self) -> None:
        """Note which spots are gone, and whether any is left."""
        for spot in self.spots:
            spot.gone = spot.gone or spot.free < 1 or bool(spot.closed or self._full(spot))
        self.spent = all(spot.gone or spot.attended for spot in self.spots)


def _share(spot: Spot, ask: Ask) -> float:
    """The part of its quota that a session there would take."""
    limit = spot.budget.limit_s
    if spot.kind is not SpotKind.NEW or not 0 < limit < math.inf:
        return 0.0
    return spot.reserve(ask) / limit

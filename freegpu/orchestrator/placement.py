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

#: a platform and the login on it
Login = tuple[str, str]


def decide(snapshot: Snapshot, now: datetime) -> list[Action]:
    """What to assign and to start now. Never raises; equal snapshots give equal actions, in equal order."""
    board = _Board.of(snapshot, now)
    placed: set[str] = set()
    for job, fit in board.queue(snapshot.waiting, now):
        if board.spent:
            break
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
    rest = [(spot, board.outlook(ask, spot, *unfit(fit.kind, spot))) for spot in board.spots]
    scores += [outlook.score(ask, spot) for spot, outlook in rest if outlook.fault]
    shown = {score.platform for score in scores}
    silent = [place for place in board.places if place.platform not in shown]
    return scores + [_nothing(place, fit.kind, now) for place in silent]


def _nothing(place: Place, kind: Kind, now: datetime) -> Score:
    why = kind.refused(place.platform) or blocked(place, now) or "offers nothing now"
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
class _Fit:
    """The spots that jobs of one kind could take, each with its place in their list of cards."""

    kind: Kind
    spots: list[tuple[Spot, int]]
    #: seconds per T4 second on a middling card of these; None: nothing fits
    pace: float | None
    hopeless: bool


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
class _Board:
    """What is still to be had while one call decides."""

    places: Sequence[Place]
    #: in an order that depends on their content alone; ties go to the first
    spots: list[Spot]
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
        board = cls(places=places, spots=spots, openings=openings)
        board.count()
        return board

    def queue(self, waiting: Iterable[Waiting], now: datetime) -> list[tuple[Waiting, _Fit]]:
        """Every job with what fits it, in the order in which they choose."""
        jobs = [(job, self.fit(Kind.of(job))) for job in waiting]

        def turn(entry: tuple[Waiting, _Fit]) -> tuple[bool, int, int, str]:
            job, fit = entry
            calm = job.deadline is None or not _endangered(job, fit, now)
            return (calm, -job.priority, job.seq, job.id)

        return sorted(jobs, key=turn)

    def fit(self, kind: Kind) -> _Fit:
        found = self.fits.get(kind)
        if found is None:
            judged = [(spot, *unfit(kind, spot)) for spot in self.spots]
            spots = [(spot, choice) for spot, fault, choice in judged if not fault]
            paces = [1 / cards.speed(spot.offer.card, kind.needs.workload) for spot, _ in spots]
            found = self.fits[kind] = _Fit(
                kind=kind,
                spots=[(s, choice) for s, choice in spots if not s.closed and not s.attended],
                pace=median_low(paces) if paces else None,
                hopeless=not spots,
            )
        return found

    def outlook(self, ask: Ask, spot: Spot, fault: str, choice: int) -> Outlook:
        """What the spot would mean now, all filters applied."""
        fault = fault or spot.closed or self._full(spot)
        if fault:
            return Outlook(fault=fault, choice=choice)
        outlook = expect(ask, spot, choice)
        if spot.attended and not outlook.fault:
            return outlook.but(
                "a person must start the session: freegpu cell " + spot.offer.platform
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
        fit.spots = [entry for entry in fit.spots if not entry[0].gone]
        found = [(spot, self.outlook(ask, spot, "", choice)) for spot, choice in fit.spots]
        found = [(spot, outlook) for spot, outlook in found if not outlook.fault]
        if not found:
            return []
        first = min(outlook.choice for _, outlook in found)
        least = min(outlook.expected_s for _, outlook in found if outlook.choice == first)

        def place(entry: tuple[Spot, Outlook]) -> tuple[int, bool, int, float, float]:
            spot, outlook = entry
            if outlook.choice == first and outlook.expected_s <= least * NEAR:
                return (first, False, spot.kind, _share(spot, ask), outlook.expected_s)
            return (outlook.choice, True, 0, 0.0, outlook.expected_s)

        return sorted(found, key=place)

    def take(self, spot: Spot, outlook: Outlook, ask: Ask, job: str) -> None:
        """Give the spot to the job, and take what it costs from what is left for others."""
        if spot.kind is SpotKind.LIVE:
            spot.gone = True
            self.assigned.append(
                Assign(
                    session=spot.session,
                    assignment=Assignment(job=job, slot=spot.slot),
                    why=outlook.sentence(ask, spot),
                )
            )
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
        for fit in self.fits.values():
            # Where the session itself did not fit, its further slots do not either.
            fit.spots += [(slots, choice) for known, choice in fit.spots if known is spot]
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
            spot.gone = spot.gone or spot.free < 1 or bool(self._full(spot))
        self.spent = not any(not (spot.gone or spot.closed or spot.attended) for spot in self.spots)


#: for offers that draw on no quota, or on one that nobody counts
_UNLIMITED = Budget()


def _share(spot: Spot, ask: Ask) -> float:
    """The part of its quota that a session there would take."""
    limit = spot.budget.limit_s
    if spot.kind is not SpotKind.NEW or not 0 < limit < math.inf:
        return 0.0
    return spot.reserve(ask) / limit


def _endangered(job: Waiting, fit: _Fit, now: datetime) -> bool:
    """Whether a deadline that can still be met is close to what the job needs on a middling card."""
    if job.deadline is None or fit.pace is None:
        return False
    left = seconds_until(job.deadline, now)
    return 0 < left < DANGER * Ask.of(job, fit.kind).work_s * fit.pace + DANGER_S

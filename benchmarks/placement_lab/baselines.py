"""Simple policies over the same snapshot. Each has the product's hard filters, fills both slots of a session, and starts
none that lasts less than an hour unless the job needs less: a quota that trickles back would be spent on starts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from freegpu import cards
from freegpu.adapters.base import Offer
from freegpu.orchestrator.forecast import Policy
from freegpu.orchestrator.model import (
    Action,
    Assign,
    Assignment,
    Place,
    Snapshot,
    StartSession,
    Waiting,
)
from freegpu.orchestrator.placement import decide
from freegpu.orchestrator.spots import Ask, Kind, Shape, blocked, shape_of, unfit

#: a new session lasts so long, or as long as its job needs, seconds
LEAST_S = 3600.0


@dataclass(slots=True, eq=False)
class Seat:
    """Where a job could go: a free slot, a further slot of a session that starts now, or a new session."""

    offer: Offer
    #: its place in the list of platforms, and whether a session is there or starts anyway
    index: int
    there: bool
    session: str = ""
    slot: int = 0
    planned: list[Assignment] | None = None


#: what is least is taken
Choose = Callable[[Seat, Ask], tuple[float, ...]]
Order = Callable[[Waiting, Ask], tuple[float, ...]]


@dataclass(slots=True)
class Greedy:
    """Jobs in an order, each to the place that it likes best."""

    order: Order
    choose: Choose
    #: told where each job went
    chosen: Callable[[Seat], None] = lambda seat: None

    def __call__(self, snapshot: Snapshot, now: datetime) -> list[Action]:
        board = _Board(snapshot, now)
        asks = [(job, Ask.of(job)) for job in snapshot.waiting]
        asks.sort(key=lambda entry: (*self.order(*entry), entry[0].seq))
        for job, ask in asks:
            seats = board.seats(ask)
            if seats:
                best = min(seats, key=lambda seat: self.choose(seat, ask))
                board.take(best, job, ask)
                self.chosen(best)
        return board.actions()


class _Board:
    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.index = {place.platform: at for at, place in enumerate(snapshot.places)}
        self.places = [p for p in snapshot.places if not blocked(p, now)]
        self.left = {
            (b.platform, b.pool): math.inf if b.left_s is None else b.left_s
            for place in snapshot.places
            for b in place.balances
        }
        self.openings = {
            p.platform: p.capabilities.max_concurrent - p.open_sessions for p in self.places
        }
        self.free = {(slot.session, slot.slot): slot for slot in snapshot.free_slots}
        #: offer, its jobs, the quota that it holds, and how long it may last
        self.started: list[tuple[Offer, list[Assignment], float, float]] = []
        self.assigned: list[Action] = []

    def seats(self, ask: Ask) -> list[Seat]:
        found = []
        for (session, number), slot in self.free.items():
            room = math.inf if slot.left_s is None else slot.left_s
            if room >= ask.kind.least_s and _fits(ask.kind, slot.offer):
                at = self.index[slot.offer.platform]
                found.append(Seat(slot.offer, at, True, session=session, slot=number))
        for offer, planned, *_ in self.started:
            if len(planned) < offer.count and _fits(ask.kind, offer):
                found.append(Seat(offer, self.index[offer.platform], True, planned=planned))
        for place in self.places:
            if self.openings[place.platform] < 1 or place.capabilities.attended:
                continue
            found += [
                Seat(offer, self.index[place.platform], False)
                for offer in place.offers
                if _fits(ask.kind, offer) and self._room(place, offer) >= _least(offer, ask)
            ]
        return found

    def _room(self, place: Place, offer: Offer) -> float:
        limits = (offer.session_limit_s, place.capabilities.max_session_s)
        longest = min((limit for limit in limits if limit is not None), default=math.inf)
        left = self.left.get((offer.platform, offer.pool), math.inf)
        return min(longest, left / offer.rate if offer.rate > 0 else math.inf)

    def take(self, seat: Seat, job: Waiting, ask: Ask) -> None:
        offer = seat.offer
        if seat.session:
            del self.free[seat.session, seat.slot]
            put = Assignment(job=job.id, slot=seat.slot)
            self.assigned.append(Assign(session=seat.session, assignment=put, why=""))
            return
        if seat.planned is not None:
            seat.planned.append(Assignment(job=job.id, slot=len(seat.planned)))
            return
        self.openings[offer.platform] -= 1
        place = next(p for p in self.places if p.platform == offer.platform)
        run = offer.start_delay_s + ask.work_s / _speed(seat, ask) + ask.kind.grace_s
        room = self._room(place, offer)
        held = offer.rate * min(room, run) if offer.pool else 0.0
        if offer.pool:
            self.left[offer.platform, offer.pool] -= held
        self.started.append((offer, [Assignment(job=job.id, slot=0)], held, room))

    def actions(self) -> list[Action]:
        return [
            *self.assigned,
            *(
                StartSession(
                    offer=offer, assignments=tuple(jobs), reserve_s=held, why="", lasts_s=room
                )
                for offer, jobs, held, room in self.started
            ),
        ]


def _fits(kind: Kind, offer: Offer) -> bool:
    shape = shape_of(offer)
    found = _known.get((kind, shape))
    if found is None:
        found = _known[kind, shape] = not unfit(kind, shape)[0] and not kind.refused(offer.platform)
    return found


def _least(offer: Offer, ask: Ask) -> float:
    speed = cards.speed(offer.card, ask.kind.needs.workload)
    run = ask.work_s / speed + ask.kind.grace_s
    return offer.start_delay_s + max(ask.kind.least_s, min(LEAST_S, run))


_known: dict[tuple[Kind, Shape], bool] = {}


def _speed(seat: Seat, ask: Ask) -> float:
    return cards.speed(seat.offer.card, ask.kind.needs.workload)


def _first_come(job: Waiting, ask: Ask) -> tuple[float, ...]:
    return (job.seq,)


def _shortest(job: Waiting, ask: Ask) -> tuple[float, ...]:
    return (ask.work_s,)


def fifo() -> Policy:
    """First come, first free place in the list."""
    return Greedy(_first_come, lambda seat, ask: (not seat.there, seat.index))


def round_robin() -> Policy:
    """First come; the platform whose turn is longest ago."""
    last: dict[str, int] = {}

    def note(seat: Seat) -> None:
        last[seat.offer.platform] = max(last.values(), default=0) + 1

    def choose(seat: Seat, ask: Ask) -> tuple[float, ...]:
        return (last.get(seat.offer.platform, 0), not seat.there, seat.index)

    return Greedy(_first_come, choose, note)


def fastest() -> Policy:
    """First come, the fastest card that is free."""
    return Greedy(_first_come, lambda seat, ask: (-_speed(seat, ask), not seat.there, seat.index))


def cheapest() -> Policy:
    """First come, the place that takes the least quota for the job, as SkyPilot's optimizer takes the least money."""

    def choose(seat: Seat, ask: Ask) -> tuple[float, ...]:
        offer = seat.offer
        rate = offer.rate if offer.pool else 0.0
        cost = rate * ask.work_s / _speed(seat, ask) / offer.count
        return (0.0 if seat.there else cost, -_speed(seat, ask), seat.index)

    return Greedy(_first_come, choose)


def shortest() -> Policy:
    """Shortest remaining first by its estimate, the fastest card that is free."""
    return Greedy(_shortest, lambda seat, ask: (-_speed(seat, ask), not seat.there, seat.index))


#: by the names that --policies takes; each call gives a fresh one, since some remember
POLICIES: dict[str, Callable[[], Policy]] = {
    "fifo": fifo,
    "round-robin": round_robin,
    "fastest": fastest,
    "cheapest": cheapest,
    "shortest": shortest,
    "freegpu": lambda: decide,
}

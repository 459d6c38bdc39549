"""Looks on while `placement` decides, and keeps what the decision saw: for jobs that are placed, and for those asked about. Pure.

It takes no part: with a witness and without one the same is decided. Of a job that is placed it keeps the best places and one
line for each platform that was refused; of a job that somebody asks about, every place as it stood at the job's turn, who took
what before it, and what would change that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from freegpu.orchestrator import record, remedies, reserve
from freegpu.orchestrator.board import NEAR, Board, Fit
from freegpu.orchestrator.expectation import Outlook
from freegpu.orchestrator.model import Action, Move, Place, Running, Score, Waiting
from freegpu.orchestrator.record import Decision, Outcome
from freegpu.orchestrator.spots import (
    Ask,
    Kind,
    Login,
    Spot,
    SpotKind,
    blocked,
    seconds_until,
    span_text,
)
from freegpu.orchestrator.turns import DOUBLING, Turn

__all__ = ["Entry", "Witness", "nothing_on", "silent"]

#: a job in the queue: its turn, itself, how long it is, what fits it
Entry = tuple[Turn, Waiting, Ask, Fit]
#: names that are told of those who hold or took something
NAMES = 3


@dataclass(frozen=True, slots=True)
class _Taker:
    """Who took a place in this very decision."""

    entry: Entry
    spot: Spot
    finish_s: float


@dataclass(eq=False, slots=True)
class Witness:
    """`about`: ids of the jobs that are asked about."""

    about: Collection[str] = ()
    #: platform -> who has its sessions that do not run yet or take no tickets, as sentences
    holders: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: job -> what was decided for it: of all that were placed, and of those asked about
    decisions: dict[str, Decision] = field(default_factory=dict)
    _board: Board | None = None
    _queue: Sequence[Entry] = ()
    #: login -> who took something there in this decision, and who runs there
    _takers: dict[Login, list[_Taker]] = field(default_factory=dict)
    _running: dict[Login, list[Running]] = field(default_factory=dict)
    #: platform -> its spots at the beginning
    _spots: dict[str, list[Spot]] = field(default_factory=dict)

    # --- called by placement ----------------------------------------------------------------------------

    def begins(self, board: Board, queue: Sequence[Entry]) -> None:
        """The queue stands, nobody has chosen."""
        self._board, self._queue = board, queue
        for one in board.snapshot.running:
            login = (one.offer.platform, one.offer.account)
            self._running.setdefault(login, []).append(one)
        for spot in board.spots:
            self._spots.setdefault(spot.offer.platform, []).append(spot)

    def turn(self, at: int) -> None:
        """The turn of a job that is asked about, before it chooses."""
        _, job, ask, fit = self._queue[at]
        seen = self._seen(ask, fit, job)
        scores = _once([self._judged(self._queue[at], spot, outlook) for spot, outlook in seen])
        scores += self._silent(fit.kind, scores)
        self.decisions[job.id] = self._decision(at, Outcome.WAITS, scores=tuple(scores))

    def takes(self, at: int, ranked: Sequence[tuple[Spot, Outlook]]) -> None:
        """The job takes the first of these; it has not taken it yet."""
        entry = self._queue[at]
        _, job, ask, _ = entry
        told = job.id in self.about
        shown = ranked if told else ranked[: record.BEST]
        scores = [outlook.score(ask, spot) for spot, outlook in shown]
        scores[0] = replace(scores[0], chosen=True)
        kept = _once(scores)
        if told and job.id in self.decisions:
            # that its place is now taken is no news to the job which took it
            here = (scores[0].platform, scores[0].card)
            kept += [
                score
                for score in self.decisions[job.id].scores
                if not score.feasible and (score.platform, score.card) != here
            ]
            more = 0
        else:
            refused, more = self._refused(entry, {spot.offer.platform for spot, _ in ranked})
            kept, more = kept + refused, more + len(ranked) - len(shown)
        rules = tuple(_spoke(self._sure, entry, ranked))
        self.decisions[job.id] = self._decision(
            at, Outcome.PLACED, scores=tuple(kept), more=more, rules=rules
        )
        spot, outlook = ranked[0]
        taker = _Taker(entry, spot, outlook.expected_s)
        self._takers.setdefault(spot.login, []).append(taker)

    def ends(self, actions: Sequence[Action]) -> None:
        """Everybody has chosen; these slots pass on."""
        for at, (_, job, _, _) in enumerate(self._queue):
            if not self.about:
                break
            if job.id in self.about and job.id not in self.decisions:
                self.turn(at)
        moves = [action for action in actions if isinstance(action, Move)]
        if not moves:
            return
        turns = {entry[1].id: at for at, entry in enumerate(self._queue)}
        names = {one.job.id: one.job.name for one in self._sure.snapshot.running}
        for move in moves:
            newcomer = move.assignment.job
            before = self.decisions.get(newcomer)
            self.decisions[newcomer] = replace(
                before or self._decision(turns[newcomer], Outcome.PASSED),
                outcome=Outcome.PASSED,
                rules=(*(before.rules if before else ()), move.why),
                gives_way=names.get(move.victim, move.victim),
            )

    # --- what it saw ------------------------------------------------------------------------------------

    @property
    def _sure(self) -> Board:
        if self._board is None:
            raise RuntimeError("a witness was asked before the decision began")
        return self._board

    def _decision(
        self,
        at: int,
        outcome: Outcome,
        *,
        scores: tuple[Score, ...] = (),
        more: int = 0,
        rules: tuple[str, ...] = (),
    ) -> Decision:
        rank, job, ask, _ = self._queue[at]
        return Decision(
            at=self._sure.now,
            outcome=outcome,
            waiting=len(self._queue),
            ahead=at,
            before=tuple(entry[1].name for entry in self._queue[: min(at, NAMES)]),
            rules=(
                _turn_rule(rank, job, self._sure.snapshot.goal),
                *_missed(job, scores, self._sure.now),
                *rules,
            ),
            work_s=ask.work_s,
            assumed=ask.assumed,
            scores=scores,
            more=more,
        )

    def _seen(self, ask: Ask, fit: Fit, job: Waiting) -> list[tuple[Spot, Outlook]]:
        """Every spot as the job finds it, what it would take first."""
        board = self._sure
        claim = board.claim(job, ask, fit)
        # looking must not change what is decided: a fit remembers what was looked at
        able = board.ranked(ask, replace(fit, spots=list(fit.spots), most=dict(fit.most)), claim)
        there = {spot for spot, _ in able}
        rest = [
            (spot, board.explained(ask, spot, claim)) for spot in board.spots if spot not in there
        ]
        # a further slot of a session that was started by this decision is no place of its own once it is full
        return able + [
            (spot, outlook)
            for spot, outlook in rest
            if spot.kind is not SpotKind.PLANNED or spot.free >= 1
        ]

    def _judged(self, entry: Entry, spot: Spot, outlook: Outlook) -> Score:
        """A spot with who is in the way there and what would change it."""
        _, job, ask, fit = entry
        board = self._sure
        if not outlook.fault and spot.gone and not spot.attended:
            outlook = outlook.but(self._taken(entry, spot))
        elif _crowd(board, ask, spot):
            return self._crowded(entry, spot, outlook)
        score = outlook.score(ask, spot)
        if score.feasible:
            return score
        taker = self._taker(spot)
        if taker is not None and spot.gone:
            return replace(score, change=_overtake(entry, taker.entry))
        claim, place = board.claim(job, ask, fit), self._place(spot.login)
        change = remedies.of_spot(ask, spot, outlook, place, claim, board.rare, board.now)
        return replace(score, change=change)

    def _taker(self, spot: Spot) -> _Taker | None:
        return next((one for one in self._takers.get(spot.login, ()) if one.spot is spot), None)

    def _taken(self, entry: Entry, spot: Spot) -> str:
        taker = self._taker(spot)
        if taker is None:
            return "taken"
        return f"taken by {_taker_text(entry, taker)}"

    def _crowded(self, entry: Entry, spot: Spot, outlook: Outlook, *, short: bool = False) -> Score:
        """No further session may be opened there: who has those that are open. `short`: not what would change it."""
        _, _, ask, _ = entry
        takers, running = self._takers.get(spot.login, []), self._running.get(spot.login, [])
        holders = [*map(_holder, running), *self.holders.get(spot.offer.platform, ())]
        holders += [_taker_text(entry, one) for one in takers]
        who = f": {_several(holders)}" if holders else ""
        score = outlook.but(f"{outlook.fault}{who}").score(ask, spot)
        if short:
            return score
        change = ""
        if takers:
            change = _overtake(entry, takers[-1].entry)
        elif running:
            lasts = [left for one in running if (left := _goes_on(one)) < math.inf]
            if lasts:
                change = f"a place comes free in about {span_text(min(lasts))}"
            if ahead := self._ahead(entry, spot):
                who = (
                    "1 job that fits there chooses"
                    if len(ahead) == 1
                    else f"{len(ahead)} jobs that fit there choose"
                )
                told = (change, f"{who} before it", _overtake(entry, ahead[0]))
                change = "; ".join(filter(None, told))
        return replace(score, change=change)

    def _ahead(self, entry: Entry, spot: Spot) -> list[Entry]:
        """Who chooses before the job, fits there too, and has found no place either; the first to choose first."""
        placed = {one.entry[1].id for takers in self._takers.values() for one in takers}
        before = itertools.takewhile(lambda other: other is not entry, self._queue)
        return [
            other
            for other in before
            if other[3].choices[spot.number] is not None and other[1].id not in placed
        ]

    def _place(self, login: Login) -> Place | None:
        return next((p for p in self._sure.places if (p.platform, p.account) == login), None)

    def _silent(self, kind: Kind, scores: Sequence[Score]) -> Iterator[Score]:
        """Platforms that offer nothing at all, with those who hold what they have."""
        board = self._sure
        shown = {score.platform for score in scores}
        for place in board.places:
            if place.platform in shown:
                continue
            why = kind.refused(place.platform) or blocked(place, board.now)
            if not why:
                why = nothing_on(place)
                here = [
                    _holder(one)
                    for one in board.snapshot.running
                    if one.offer.platform == place.platform
                ]
                here += self.holders.get(place.platform, ())
                why += f": {_several(here)}" if here else ""
            yield replace(
                record.nowhere(place.platform, why),
                change=remedies.of_platform(kind, place, board.now),
            )

    def _refused(self, entry: Entry, able: Collection[str]) -> tuple[list[Score], int]:
        """One line for each platform that got none of the job: (the first few, how many more)."""
        _, job, ask, fit = entry
        board = self._sure
        near: list[Spot] = []
        far: list[Spot] = []
        for name, spots in self._spots.items():
            if name in able:
                continue
            # what fits the job and is taken or kept says more than what does not fit
            fits = next((spot for spot in spots if fit.choices[spot.number] is not None), None)
            (far if fits is None else near).append(fits or spots[0])
        near += far
        mute = [p for p in board.places if p.platform not in self._spots and p.platform not in able]
        found, claim = [], board.claim(job, ask, fit)
        for spot in near[: record.REFUSED]:
            outlook = board.explained(ask, spot, claim)
            if _crowd(board, ask, spot):
                found.append(self._crowded(entry, spot, outlook, short=True))
                continue
            if not outlook.fault:
                outlook = outlook.but(
                    "taken by a job that chose before" if spot.gone else "refused"
                )
            found.append(outlook.score(ask, spot))
        found += [
            silent(place, fit.kind, board.now) for place in mute[: record.REFUSED - len(found)]
        ]
        return found, len(near) + len(mute) - len(found)


def _crowd(board: Board, ask: Ask, spot: Spot) -> bool:
    """Whether all that is against the spot is that no further session may be opened there."""
    if spot.kind is not SpotKind.NEW or spot.closed or ask.kind.refused(spot.offer.platform):
        return False
    choice = board.fit(ask.kind).choices[spot.number]
    return choice is not None and board.openings[spot.login][0] < 1


def silent(place: Place, kind: Kind, now: datetime) -> Score:
    """The line of a platform without an offer, for jobs of this kind."""
    why = kind.refused(place.platform) or blocked(place, now) or nothing_on(place)
    return record.nowhere(place.platform, why)


def nothing_on(place: Place) -> str:
    """Why a platform has no offer, as far as we can tell."""
    if place.capabilities.attended:
        return f"a person must start a session: freegpu cell {place.platform}"
    return place.blocked_why or "offers nothing now"


def _once(scores: Sequence[Score]) -> list[Score]:
    """Slots of one session that mean the same are one line."""
    found: dict[tuple[object, ...], Score] = {}
    for score in scores:
        alike = (score.platform, score.card, score.count, score.where, score.feasible, score.chosen)
        found.setdefault((*alike, "" if score.feasible else score.fault), score)
    return list(found.values())


def _turn_rule(rank: Turn, job: Waiting, goal: str) -> str:
    """Why it chooses when it does."""
    calm, ordinary = rank[0], rank[1]
    if not calm:
        return "its deadline is in danger, so it chooses before jobs whose is not"
    if not ordinary:
        return "it has waited two weeks, so it chooses before younger jobs"
    if goal == "makespan":
        return "goal makespan: whoever has the fewest places chooses first, then the longest"
    weight = f", priority {job.priority}" if job.priority else ""
    return f"the shortest remaining chooses first, by weight and age{weight}"


def _missed(job: Waiting, scores: Sequence[Score], now: datetime) -> Iterator[str]:
    """What becomes of a deadline that no place meets."""
    if job.deadline is None:
        return
    left = seconds_until(job.deadline, now)
    able = [score.finish_s for score in scores if score.feasible and score.finish_s is not None]
    if left <= 0:
        yield "its deadline has passed and counts no longer"
    elif able and min(able) > left:
        yield (
            f"its deadline in {span_text(left)} will be missed: "
            f"the soonest finish is expected in {span_text(min(able))}"
        )


def _spoke(board: Board, entry: Entry, ranked: Sequence[tuple[Spot, Outlook]]) -> Iterator[str]:
    """What spoke for the first of these beside its expected finish."""
    _, job, ask, fit = entry
    spot, outlook = ranked[0]
    others = ranked[1:]
    soonest = min(ranked, key=lambda entry: entry[1].expected_s)
    cheapest = min(
        (entry for entry in ranked if entry[1].choice == outlook.choice),
        key=lambda entry: entry[1].rank_s,
    )
    later = [entry for entry in others if entry[1].choice > outlook.choice]
    if any(other.rank_s < outlook.rank_s for _, other in later):
        yield f"{spot.offer.card} comes before {later[0][0].offer.card} in the job's list of cards"
    elif cheapest[0] is not spot:
        yield f"{_tie(spot)}, and {cheapest[0].name} would be within {100 * (NEAR - 1):.0f} %"
    elif soonest[0] is not spot and soonest[1].price_s > outlook.price_s:
        counts = span_text(soonest[1].price_s)
        yield f"{soonest[0].name} would finish sooner, but the quota it takes counts as {counts}"
    budget = spot.budget
    if (
        spot.kind is SpotKind.NEW
        and spot.login in board.rare
        and budget.refill_in_s is not None
        and budget.left_s < math.inf
        and budget.left_s >= budget.burn * budget.refill_in_s
    ):
        yield "what is left of that quota could not be burned before it expires, so it is free to all"
    elif spot.kind is not SpotKind.LIVE and spot.offer.pool:
        claim, units = board.claim(job, ask, fit), reserve.cost(ask, spot)
        if units > reserve.allowance(spot, reserve.Claim(homes=(), urgent=False), board.rare):
            if spot.login in fit.homes and len(fit.homes) == 1:
                yield "it gets quota that is kept for such as have no other home"
            elif claim.urgent:
                yield "its deadline presses, so it gets quota that is kept from other jobs"
    if ask.assumed and spot.offer.pool and spot.kind is SpotKind.NEW:
        yield "its length is not known, so quota for a whole session is set aside"


def _tie(spot: Spot) -> str:
    if spot.kind is SpotKind.LIVE:
        return "a slot that is there already goes first among equals"
    if spot.kind is SpotKind.PLANNED:
        return "a further slot of a session that starts anyway goes first among equals"
    return "the smaller share of a quota goes first among equals"


def _ask(one: Running) -> Ask:
    return Ask.of(one.job)


def _goes_on(one: Running) -> float:
    """Seconds for which a job keeps its slot; infinite: nobody knows."""
    ask = _ask(one)
    left = math.inf if one.left_s is None else one.left_s
    return left if ask.assumed else min(left, ask.work_s / ask.speed(one.offer.card))


def _holder(one: Running) -> str:
    ask = _ask(one)
    if ask.assumed:
        return f"{one.job.name} runs there"
    return f"{one.job.name} runs there, {span_text(ask.work_s / ask.speed(one.offer.card))} to go"


def _taker_text(entry: Entry, taker: _Taker) -> str:
    return f"{taker.entry[1].name}, which chooses first ({_precedence(taker.entry, entry)})"


def _precedence(first: Entry, second: Entry) -> str:
    """Why the first of the two chooses before the second."""
    (one, job, ask, _), (other, than, than_ask, _) = first, second
    if not one[0] and other[0]:
        return "its deadline is in danger"
    if not one[1] and other[1]:
        return "it has waited two weeks"
    if job.priority > than.priority:
        return f"priority {job.priority}"
    if ask.work_s < than_ask.work_s:
        return f"{span_text(ask.work_s)} to go on a T4"
    if job.created_at < than.created_at or job.seq < than.seq:
        return "it came earlier"
    return "its turn came first"


def _overtake(entry: Entry, taker: Entry) -> str:
    """What would let the job choose before another."""
    rank, job = entry[0], entry[1]
    other = taker[0]
    if not other[0] and rank[0]:
        return "a `deadline` in danger, too, would let it choose among the first"
    if not (rank[1] and other[1]) or not (rank[2] < 0 and other[2] < 0):
        return ""
    steps = DOUBLING * math.log2(other[2] / rank[2])
    wanted = job.priority + math.floor(steps) + 1
    return f"`priority: {wanted}` would let it choose first" if wanted <= 100 else ""


def _several(names: Sequence[str]) -> str:
    shown = "; ".join(names[:NAMES])
    return f"{shown}; and {len(names) - NAMES} more" if len(names) > NAMES else shown

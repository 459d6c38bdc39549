"""What a spot would mean for a job: expected finish, sessions, quota, and the sentence. Pure.

The expected finish is a walk: start, work until the session ends or the quota is spent, start again, wait for
the quota to come back; work goes on at the card's speed less what saves and losses cost. It knows no other jobs, and a
rolling quota counts as coming back all at once when its oldest use leaves the window. Which spots fit is decided in `spots`, which one is taken in
`placement`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from freegpu import cards
from freegpu.orchestrator.model import Score
from freegpu.orchestrator.spots import Ask, Kind, Spot, SpotKind, span_text

__all__ = ["DUST", "SHORT", "Outlook", "dust", "expect", "shorter", "too_short"]

#: work that a quota which never comes back leaves over waits this long, for ranking: somewhere a week turns
ELSEWHERE_S = 7 * 86400.0
#: the fault of a spot whose first session is too short; its sentence is made when somebody asks
SHORT = "too short"
#: of one whose quota is not worth a start
DUST = "dust"
#: a session must hold so much work to be worth its start, unless the job is over before: of a quota that comes back at
#: once, and of one that comes back bit by bit, seconds
WORTH_S, TRICKLE_S = 1080.0, 3600.0
#: but no more than this part of the window: where minutes a day are all there is, minutes are worth a start
WORTH_SHARE = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """What a spot would mean for an ask. Times in seconds from now."""

    #: why not, "" if it could be taken now
    fault: str = ""
    #: place in the user's list of cards; 0 when any will do
    choice: int = 0
    #: for ranking; infinite without a walk
    expected_s: float = math.inf
    #: work that no quota covers, T4 seconds
    left_over_s: float = 0.0
    waits_s: float = 0.0
    sessions: int = 0
    #: what its quota counts for, as a later finish
    price_s: float = 0.0

    @property
    def rank_s(self) -> float:
        """What places are compared by."""
        return self.expected_s + self.price_s

    def score(self, ask: Ask, spot: Spot) -> Score:
        """The same for people."""
        known = self.expected_s < math.inf and not self.left_over_s and not ask.assumed
        return Score(
            platform=spot.offer.platform,
            card=spot.offer.card,
            count=spot.offer.count,
            where=spot.session if spot.kind is SpotKind.LIVE else "new session",
            feasible=not self.fault,
            finish_s=self.expected_s if known else None,
            speed=spot.speed(ask),
            sessions=self.sessions,
            why=self.sentence(ask, spot),
            fault=self.reason(ask, spot),
            start_s=None if self.fault else _begins(spot),
            waits_s=self.waits_s,
            price_s=self.price_s,
            **_drawn(ask, spot),
        )

    def but(self, fault: str) -> Outlook:
        """The same, not to be taken for this reason."""
        return replace(self, fault=fault)

    def reason(self, ask: Ask, spot: Spot) -> str:
        """Why not, in words; "" if it could be taken now."""
        if self.fault == SHORT:
            return _shortfall(ask, spot)
        if self.fault == DUST:
            return f"{_quota(spot)} left, too little to be worth a start{_more(spot)}"
        return self.fault

    def sentence(self, ask: Ask, spot: Spot) -> str:
        """One sentence with the figures that count."""
        parts = [part for part in (self._finish(ask), self.reason(ask, spot)) if part]
        if not self.fault:
            if spot.kind is SpotKind.LIVE:
                left = "no limit" if spot.left_s == math.inf else f"{span_text(spot.left_s)} left"
                parts.append(f"the session has {left}")
            elif spot.budget.left_s < math.inf:
                parts.append(f"{_quota(spot)} left")
            if spot.kind is not SpotKind.LIVE and spot.soft_s < spot.limit_s:
                parts.append(f"sessions there have lasted {spot.soft_text}")
            if self.choice:
                parts.append(f"choice {self.choice + 1} in the job's list of cards")
            if cards.find(spot.offer.card) is None:
                parts.append("the card is in no table and counts as half a T4")
        return f"{spot.name}: {'; '.join(parts)}"

    def _finish(self, ask: Ask) -> str:
        if self.expected_s == math.inf:
            return ""
        if self.left_over_s:
            share = 100 * (1 - self.left_over_s / ask.work_s)
            return f"its quota covers {share:.0f} % of the work, the rest would go on elsewhere"
        guess = f"length not known; if {span_text(ask.work_s)} on a T4, it " if ask.assumed else ""
        many = f"{self.sessions} session{'s' if self.sessions != 1 else ''}"
        waits = f", waiting {span_text(self.waits_s)} for quota" if self.waits_s else ""
        return f"{guess}would finish in {span_text(self.expected_s)} over {many}{waits}"


def expect(ask: Ask, spot: Spot, choice: int = 0, price_s: float = 0.0) -> Outlook:
    """The walk through sessions and quota windows; `price_s`: what the quota counts for."""
    return _walk(ask, spot, choice, price_s)


def too_short(kind: Kind, spot: Spot) -> bool:
    """Whether no job of this kind gets anything done in the first session there."""
    return shorter(spot, kind.least_s)


def shorter(spot: Spot, least_s: float) -> bool:
    """Whether the first session there holds less than this after its start."""
    return spot.room_s < least_s + (0.0 if spot.kind is SpotKind.LIVE else spot.delay_s)


def dust(ask: Ask, spot: Spot) -> bool:
    """Whether what is left of the quota is too little to be worth a start, unless the job ends in it.

    On a quota that comes back bit by bit sessions would otherwise double, each of them mostly start.
    """
    return spot.poor and dust_at(spot, ask.kind.grace_s, ask.work_s / spot.speed(ask))


def dust_at(spot: Spot, grace_s: float, run_s: float) -> bool:
    """The same of a spot whose quota is short, for a job that runs so long there; whoever is shorter is no better off."""
    worth = TRICKLE_S if spot.budget.trickles else WORTH_S
    if spot.rate > 0:
        worth = min(worth, WORTH_SHARE * spot.budget.limit_s / spot.rate)
    return spot.quota_s < spot.delay_s + grace_s + min(worth, run_s)


def _least(kind: Kind, spot: Spot) -> float:
    """How long it must last, seconds."""
    return kind.least_s + (0.0 if spot.kind is SpotKind.LIVE else spot.delay_s)


def _shortfall(ask: Ask, spot: Spot) -> str:
    """Why the first session is too short, with the figures."""
    want = span_text(_least(ask.kind, spot))
    if spot.kind is SpotKind.LIVE:
        return f"the session has {span_text(spot.left_s)} left, and the job needs {want} to work and save"
    needs = f"and the job needs {want} to start, work and save"
    if spot.limit_s <= spot.quota_s:
        return f"a session lasts {span_text(spot.limit_s)}, {needs}"
    return f"{_quota(spot)} left, {needs}{_more(spot)}"


def _more(spot: Spot) -> str:
    back = spot.budget.refill_in_s
    return f"; more in {span_text(back)}" if back is not None else ""


def _walk(ask: Ask, spot: Spot, choice: int, price_s: float) -> Outlook:
    speed, grace, budget = spot.speed(ask) * spot.useful(ask), ask.kind.grace_s, spot.budget
    # what past sessions showed makes the walk longer; it never makes a place impossible
    limit = min(spot.limit_s, max(spot.soft_s, spot.delay_s + ask.kind.least_s))
    work, elapsed, sessions, waits = ask.work_s, 0.0, 0, 0.0
    if spot.kind is SpotKind.LIVE:
        useful = (spot.left_s - grace) * speed
        if work <= useful:
            return Outlook(choice=choice, expected_s=work / speed, sessions=1, price_s=price_s)
        work, elapsed, sessions = work - useful, spot.left_s, 1
    work, took, count = _stretch(work, speed, spot, limit, spot.quota_s, grace)
    elapsed, sessions = elapsed + took, sessions + count
    if work > 0 and budget.refill_in_s is not None and budget.period_s is not None:
        whole = budget.limit_s / spot.rate if spot.rate > 0 else math.inf
        left, took, count = _stretch(work, speed, spot, limit, whole, grace)
        if left < work:
            windows = math.ceil(work / (work - left)) - 1 if left else 0
            begin = max(elapsed, budget.refill_in_s)
            step = max(budget.period_s, took)
            waits = begin - elapsed + windows * (step - took)
            last = max(0.0, work - windows * (work - left))
            elapsed, sessions = begin + windows * step, sessions + windows * count
            # What rounding leaves of the last window is not worth another one.
            work, took, count = 0.0, *_stretch(last, speed, spot, limit, whole, grace)[1:]
            elapsed, sessions = elapsed + took, sessions + count
    expected = elapsed + (ELSEWHERE_S + work / speed if work else 0.0)
    return Outlook(
        choice=choice,
        expected_s=expected,
        left_over_s=work,
        waits_s=waits,
        sessions=sessions,
        price_s=price_s,
    )


def _stretch(
    work: float, speed: float, spot: Spot, limit: float, quota: float, grace: float
) -> tuple[float, float, int]:
    """Sessions one after another while this quota lasts: (work left, seconds taken, sessions)."""
    delay, length = spot.delay_s, min(limit, quota)
    if length == math.inf:
        return 0.0, delay + work / speed, 1
    useful = (length - delay - grace) * speed
    if useful <= 0:
        return work, 0.0, 0
    need = max(1, math.ceil(work / useful))
    full = need if quota == math.inf else min(need, int(quota // length))
    if need <= full:
        return 0.0, (need - 1) * length + delay + (work - (need - 1) * useful) / speed, need
    work, tail = work - full * useful, quota - full * length
    useful = (tail - delay - grace) * speed
    if useful <= 0:
        return work, full * length, full
    if work <= useful:
        return 0.0, full * length + delay + work / speed, full + 1
    return work - useful, quota, full + 1


def _begins(spot: Spot) -> float:
    return 0.0 if spot.kind is SpotKind.LIVE else spot.delay_s


def _drawn(ask: Ask, spot: Spot) -> dict[str, Any]:
    """The quota behind a spot, before and after this decision would set some of it aside."""
    left = spot.budget.left_s
    if not spot.offer.pool or left == math.inf:
        return {"pool": spot.offer.pool}
    # what runs already has been set aside for
    more = 0.0 if spot.kind is SpotKind.LIVE else max(0.0, spot.reserve(ask) - spot.reserved_s)
    return {"pool": spot.offer.pool, "before_s": left, "after_s": max(0.0, left - more)}


def _quota(spot: Spot) -> str:
    left, limit = spot.budget.left_s + spot.reserved_s, spot.budget.limit_s
    return f"{span_text(left)}{f' of {span_text(limit)}' if limit < math.inf else ''} quota"

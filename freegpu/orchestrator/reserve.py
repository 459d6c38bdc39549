"""How much of a quota a job may take: what is kept for jobs that have no other home. Pure.

A platform that is some job's only home, or has memory like no other, keeps an even share of its window for jobs with no
other home. Quota that could not be burned before it expires is free to all. Credits that stay are for urgent jobs and for
those with no other home. What counts is one session's quota, not the whole job's: a long job is not locked out; of a session that lives, the time for which the job
would keep it open. For short jobs that might come nothing is kept: a tenth for them locked a lone job out of small
quotas, and brought nothing in the benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from freegpu.orchestrator.spots import NEVER_S, Ask, Login, Spot, SpotKind, span_text

__all__ = [
    "ASKED_S",
    "COMING",
    "COMING_S",
    "Claim",
    "allowance",
    "cost",
    "kept",
    "most_work",
    "price",
]

#: how much the time in which quota comes back counts against the time to finish, when many jobs want it: in full. With 0.3
#: the benchmark's jobs took fast cards that cost more quota a job, and those behind them waited for its return
PRICE = 1.0
#: so many other jobs that wait or run make the price whole; a lone job pays none, for nobody else wants the quota
MANY = 5
#: something is kept for jobs like those that came within so long, seconds. With four weeks a month's credits lay idle to
#: the end of queues that had got no such job for long
ASKED_S = 7 * 86400.0
#: jobs keep coming if so many were submitted within so long, seconds; then rare memory is kept, too. When it went by how many
#: wait, lone jobs had spent it before those came that need it, and at the end of a queue the last jobs stood before a month
#: of credits that were kept for nobody
COMING, COMING_S = 3, 3 * 86400.0
#: what is said of credits that a job may not have
CREDITS = "credits that do not come back are kept for urgent jobs and those with no other home"


@dataclass(frozen=True, slots=True)
class Claim:
    """What the rules must know of a job."""

    #: the platforms where it could run at a speed worth it
    homes: Collection[Login]
    urgent: bool


def cost(ask: Ask, spot: Spot) -> float:
    """Quota that a session there is expected to take for this job, seconds at rate 1.

    A free slot of a live session costs only the time for which it keeps the session open.
    """
    if not spot.offer.pool:
        return 0.0
    longest, start, paid = _open(spot)
    run = ask.work_s / spot.speed(ask) + ask.kind.grace_s
    return max(0.0, spot.rate * min(longest, start + run) - paid)


def _open(spot: Spot) -> tuple[float, float, float]:
    """How long a session there may be open from now and how long it starts, seconds; and the quota that it takes anyway."""
    if spot.kind is SpotKind.LIVE:
        return spot.left_s, 0.0, spot.rate * spot.kept_open_s
    return min(spot.limit_s, spot.quota_s), spot.delay_s, spot.reserved_s


def price(units: float, spot: Spot, others: int) -> float:
    """Seconds by which this use of quota counts as a later finish, beside so many other jobs."""
    limit = spot.budget.limit_s
    if units <= 0 or not 0 < limit < math.inf:
        return 0.0
    wanted = min(1.0, others / MANY)
    # others take the slots beside it, and share what the session takes
    share = units / max(1, spot.offer.count)
    return PRICE * wanted * share * (spot.budget.period_s or NEVER_S) / limit


def allowance(spot: Spot, claim: Claim, sole: Collection[Login]) -> float:
    """The most quota that one session may take there for this job, seconds at rate 1.

    `sole`: platforms that keep something for jobs whose only home they are.
    """
    return _rule(spot, claim, sole)[0]


def kept(spot: Spot, claim: Claim, sole: Collection[Login]) -> str:
    """The sentence for a job that wanted more than its allowance."""
    words = _rule(spot, claim, sole)[1]
    return "" if words is None else words()


def most_work(ask: Ask, spot: Spot, claim: Claim, sole: Collection[Login]) -> float:
    """The longest job of this kind that the allowance lets in, T4 seconds."""
    allowed = allowance(spot, claim, sole)
    longest, start, paid = _open(spot)
    if spot.rate <= 0 or spot.rate * longest - paid <= allowed:
        return math.inf
    run = (allowed + paid) / spot.rate - start - ask.kind.grace_s
    return max(0.0, run) * spot.speed(ask)


def _rule(
    spot: Spot, claim: Claim, sole: Collection[Login]
) -> tuple[float, Callable[[], str] | None]:
    """The allowance, and its sentence for whoever asks: a decision asks for thousands of allowances and for no sentence."""
    budget = spot.budget
    if budget.left_s == math.inf or not spot.offer.pool:
        return math.inf, None
    if spot.login in claim.homes and len(claim.homes) == 1:
        return math.inf, None
    if budget.refill_in_s is None:
        if claim.urgent:
            return math.inf, None
        return 0.0, lambda: CREDITS
    limit, period, ahead = budget.limit_s, budget.period_s or 0.0, budget.refill_in_s
    if not 0 < limit < math.inf or period <= 0:
        return math.inf, None
    if budget.left_s >= budget.burn * ahead:
        return math.inf, None  # use it or lose it
    if spot.login not in sole:
        return math.inf, None
    keep = min(budget.left_s, limit * min(1.0, ahead / period))

    def words() -> str:
        until = f"until it comes back in {span_text(ahead)}"
        return f"{span_text(keep)} of its quota are kept for jobs that fit nowhere else {until}"

    return budget.left_s - keep, words

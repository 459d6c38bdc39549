"""What would let a job in where it was refused: a line of its spec, a click, a moment. Pure.

Each answer is tried on the very filter that refused before it is told, or it is not told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from freegpu.jobs.model import Accelerator, Needs
from freegpu.orchestrator import reserve
from freegpu.orchestrator.expectation import Outlook, dust, too_short
from freegpu.orchestrator.machines import round_down, vram_of
from freegpu.orchestrator.model import Place
from freegpu.orchestrator.spots import (
    LEAST_WORK_S,
    Ask,
    Kind,
    Login,
    Shape,
    Spot,
    SpotKind,
    blocked,
    misfit,
    span_text,
)

__all__ = ["fitting", "moment", "of_platform", "of_spot"]

Change = tuple[str, Callable[[Needs], Needs]]


def fitting(needs: Needs, shape: Shape) -> str:
    """The lines of the spec that would let the job onto such a machine: the fewest; "" if none would, or none is needed."""
    changes = list(_changes(needs, shape))
    if not misfit(needs, shape)[0] or misfit(_changed(needs, changes), shape)[0]:
        return ""
    for change in list(changes):
        fewer = [each for each in changes if each is not change]
        if not misfit(_changed(needs, fewer), shape)[0]:
            changes = fewer
    return f"{' and '.join(words for words, _ in changes)} would let it in"


def _changed(needs: Needs, changes: Collection[Change]) -> Needs:
    for _, change in changes:
        needs = change(needs)
    return needs


def _changes(needs: Needs, shape: Shape) -> Iterator[Change]:
    card, vram, memory, cpus, disk, _ = shape
    # what is written is what is tried: 25.276 GB, as a machine may have, is not there once it was rounded up
    lines: tuple[tuple[float, float, str, Callable[[float, Needs], Needs]], ...] = (
        (vram_of(card, vram), needs.vram_gb, "vram: {}+", lambda x, n: replace(n, vram_gb=x)),
        (memory, needs.memory_gb, "memory: {}+", lambda x, n: replace(n, memory_gb=x)),
        (cpus, needs.cpus, "cpus: {}+", lambda x, n: replace(n, cpus=x)),
        (disk, needs.disk_gb, "disk_size: {}", lambda x, n: replace(n, disk_gb=x)),
    )
    for has, wants, line, change in lines:
        least = round_down(has)
        if has > 0 and wants > has and float(least) > 0:
            yield f"`{line.format(least)}`", partial(change, float(least))
    if needs.precision != "any":
        yield "`precision: any`", lambda n: replace(n, precision="any")
    if card:
        named = (*needs.accelerators, Accelerator(card=card))
        yield f"`accelerators` with {card}", lambda n: replace(n, accelerators=named)


def of_platform(kind: Kind, place: Place, now: datetime) -> str:
    """What would let the job onto a platform that offers nothing to it."""
    if kind.refused(place.platform):
        return _admission(kind, place.platform)
    if blocked(place, now) and place.blocked_until is not None:
        return f"it is asked again {moment(place.blocked_until)}"
    if place.capabilities.attended:
        return f"one click: freegpu cell {place.platform}"
    return ""


def _admission(kind: Kind, platform: str) -> str:
    allowed = kind.needs.platforms
    if allowed and platform not in allowed:
        return f"{platform} in `platforms` would let it in"
    return "it is tried there again within minutes"


def of_spot(
    ask: Ask,
    spot: Spot,
    outlook: Outlook,
    place: Place | None,
    claim: reserve.Claim,
    sole: Collection[Login],
    now: datetime,
) -> str:
    """What would let the job in at a spot that refused it; "" where nothing is known to."""
    kind, platform = ask.kind, spot.offer.platform
    if kind.refused(platform):
        return _admission(kind, platform)
    if misfit(kind.needs, spot.shape)[0]:
        return fitting(kind.needs, spot.shape)
    if spot.closed and place is not None and place.blocked_until is not None:
        return f"it is asked again {moment(place.blocked_until)}"
    if spot.attended:
        return f"one click: freegpu cell {platform}"
    if too_short(kind, spot):
        return _longer(kind, spot, now)
    if dust(ask, spot):
        return _refill(spot, now)
    units = reserve.cost(ask, spot)
    if units > reserve.allowance(spot, claim, sole):
        return _released(ask, spot, units, claim, sole, now)
    return ""


def _refill(spot: Spot, now: datetime) -> str:
    back = spot.budget.refill_in_s
    if back is None:
        return "that quota does not come back by itself"
    if spot.budget.left_s >= spot.budget.limit_s:
        return "the whole of that quota is too little for it"
    return f"quota comes back {moment(now + timedelta(seconds=back))}"


def _longer(kind: Kind, spot: Spot, now: datetime) -> str:
    """For a session that has no room: the quota, if that is what cuts it short; else a smaller grace."""
    if spot.kind is not SpotKind.LIVE and spot.quota_s < spot.limit_s:
        return _refill(spot, now)
    room = spot.left_s if spot.kind is SpotKind.LIVE else spot.limit_s - spot.delay_s
    grace = math.floor(room / 1.5)
    fits = grace >= 2 * LEAST_WORK_S and not too_short(replace(kind, grace_s=float(grace)), spot)
    return f"`checkpoint.grace: {grace}s` or less would let it in" if fits else ""


def _released(
    ask: Ask,
    spot: Spot,
    units: float,
    claim: reserve.Claim,
    sole: Collection[Login],
    now: datetime,
) -> str:
    """For quota that is kept: who would get it, and when it is free to all."""
    words = []
    if units <= reserve.allowance(spot, replace(claim, urgent=True), sole):
        words.append("a `deadline` that presses")
    # with a single platform left that is the only home
    words.append(f"`platforms: [{spot.offer.platform}]`")
    told = [f"{' or '.join(words)} would let it in"]
    if (most := reserve.most_work(ask, spot, claim, sole)) > 0:
        told.append(f"a job of {span_text(most)} on a T4 gets in")
    if (opens := _opens(spot, units)) is not None:
        told.append(f"else it opens {moment(now + timedelta(seconds=opens))}")
    return "; ".join(told)


def _opens(spot: Spot, units: float) -> float | None:
    """Seconds until what is kept has shrunk so far that this much is let in, if nobody else takes any; None: it does not."""
    budget = spot.budget
    ahead, period, limit = budget.refill_in_s, budget.period_s or 0.0, budget.limit_s
    if ahead is None or period <= 0 or not 0 < limit < math.inf or units > budget.left_s:
        return None
    shrunk = (budget.left_s - units) * period / limit
    # also when it could not be burned any more before it expires
    return max(0.0, ahead - max(shrunk, budget.left_s / budget.burn if budget.burn > 0 else 0.0))


def moment(at: datetime) -> str:
    """ "Sat 5 Dec 00:00 UTC" """
    then = at.astimezone(UTC)
    return f"{then:%a} {then.day} {then:%b %H:%M} UTC"

"""How busy the cards were, summed up from heartbeats as they come in. Pure.

A heartbeat tells the moment; what counts is the mean over an attempt. Sums travel in the session's last beat
under "use": attempt -> [looks, percent in all]. Only the running of a job counts, not its setup or saving.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freegpu.adapters.base import Offer

__all__ = ["USE", "added", "mean"]

#: the key in a session's beat
USE = "use"
#: attempts that one session's sums are kept of, the newest; thousands of short ones would swell its row
MOST = 200


def added(before: Mapping[str, Any], beat: Mapping[str, Any], offer: Offer) -> dict[str, Any]:
    """This beat, with the sums of the one before and its own look added."""
    sums: dict[str, list[float]] = dict(before.get(USE) or {})
    busy = {
        str(card.get("index")): float(card["util"])
        for card in beat.get("gpu") or ()
        if isinstance(card, Mapping) and isinstance(card.get("util"), int | float)
    }
    for slot in beat.get("slots") or ():
        if not isinstance(slot, Mapping) or slot.get("phase") != "running":
            continue
        index = slot.get("slot")
        devices = offer.devices
        named = isinstance(index, int) and 0 <= index < len(devices)
        device = devices[index] if named and isinstance(index, int) else str(index)
        if device in busy and (attempt := str(slot.get("attempt") or "")):
            looks, percent = sums.pop(attempt, [0, 0.0])
            sums[attempt] = [looks + 1, percent + busy[device]]
    kept = dict(list(sums.items())[-MOST:])
    return {**beat, USE: kept} if kept else dict(beat)


def mean(beat: Mapping[str, Any], attempt: str) -> tuple[int, float] | None:
    """(looks, mean percent) of an attempt; None: nobody told."""
    looks, percent = (beat.get(USE) or {}).get(attempt, (0, 0.0))
    return (int(looks), percent / looks) if looks else None

"""What one click of a person would buy: on attended platforms nobody else can start a session. Pure.

For each such platform: which of the waiting jobs would go there, one after another in each of its slots, how long
that takes, and what would become of them without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from freegpu.orchestrator import placement
from freegpu.orchestrator.model import Place, Snapshot, Waiting
from freegpu.orchestrator.spots import span_text

__all__ = ["Invitation", "for_job", "invitations"]

#: more waiting jobs than this change no invitation, only the time to work it out
MOST_JOBS = 20
#: a click is worth asking for if it brings a finish this much nearer, as a share and in seconds
WORTH, WORTH_S = 0.2, 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """One click, and what for."""

    platform: str
    #: where a person opens the notebook; "": wherever theirs is
    url: str
    #: "T4", "T4 x2"; "" where nobody knows what comes
    card: str
    #: ids of the jobs it would take, in their order, and their names
    jobs: tuple[str, ...]
    names: tuple[str, ...]
    #: seconds from the click to the end of the last of them; None: not known
    finish_s: float | None
    #: seconds by which the first of them ends sooner; None: it has no other place now, or nobody can tell
    gain_s: float | None
    #: worth a message to the person, not only a line for one who looks
    pays: bool
    sentence: str

    @property
    def worth(self) -> float:
        """What it is worth as one number, to tell whether it has changed much: seconds; 0: not known."""
        return self.gain_s or self.finish_s or 0.0


def invitations(
    snapshot: Snapshot, now: datetime, urls: Mapping[str, str]
) -> tuple[Invitation, ...]:
    """One for each attended platform that could take a waiting job now; the best first."""
    waiting = sorted(snapshot.waiting, key=lambda job: (-job.priority, job.seq))[:MOST_JOBS]
    found = []
    for place in snapshot.places:
        if place.capabilities.attended and not place.open_sessions:
            made = _invitation(place, waiting, snapshot, now, urls.get(place.platform, ""))
            if made is not None:
                found.append(made)
    return tuple(sorted(found, key=_rank))


def for_job(job: Waiting, found: Sequence[Invitation]) -> Invitation | None:
    """The best invitation that would take this job."""
    return next((one for one in found if job.id in one.jobs), None)


def _rank(one: Invitation) -> tuple[bool, int, float, str]:
    finish = math.inf if one.finish_s is None else one.finish_s
    return (not one.pays, -len(one.jobs), finish, one.platform)


def _invitation(
    place: Place, waiting: Sequence[Waiting], snapshot: Snapshot, now: datetime, url: str
) -> Invitation | None:
    if not place.offers:
        return _unknown(place, waiting, snapshot, now, url)
    opened = replace(place, capabilities=replace(place.capabilities, attended=False))
    places = tuple(opened if other is place else other for other in snapshot.places)
    with_it = replace(snapshot, places=places)
    offer = place.offers[0]
    limit = offer.session_limit_s if offer.session_limit_s is not None else math.inf
    free_at = [0.0] * max(1, offer.count)
    taken: list[Waiting] = []
    gain: float | None = None
    alone = guessed = False
    for job in waiting:
        here = _finish(job, with_it, now, place.platform)
        if here is None:
            continue
        slot = min(range(len(free_at)), key=lambda index: free_at[index])
        if free_at[slot] >= limit:
            break
        if not taken:
            elsewhere = _finish(job, snapshot, now, None)
            alone = elsewhere is None
            known = elsewhere is not None and math.inf not in (elsewhere, here)
            gain = elsewhere - here if known and elsewhere is not None else None
        guessed = guessed or here == math.inf
        free_at[slot] += 0.0 if here == math.inf else here
        taken.append(job)
        if here == math.inf and len(taken) >= len(free_at):
            break  # nobody knows how long the first ones take, so nobody knows whether more fit
    if not taken:
        return None
    finish = None if guessed else max(free_at)
    pays = alone or (
        gain is not None and finish is not None and gain > max(WORTH_S, WORTH * finish)
    )
    card = f"{offer.card} x{offer.count}" if offer.count > 1 else offer.card
    return _worded(place, url, card, taken, finish, gain, alone=alone, pays=pays)


def _unknown(
    place: Place, waiting: Sequence[Waiting], snapshot: Snapshot, now: datetime, url: str
) -> Invitation | None:
    """A notebook of which nobody knows the card: for jobs that have no other place."""
    if place.blocked_until is not None and place.blocked_until > now:
        return None
    taken = [
        job
        for job in waiting
        if (not job.needs.platforms or place.platform in job.needs.platforms)
        and _finish(job, snapshot, now, None) is None
    ]
    if not taken:
        return None
    named = any(place.platform in job.needs.platforms for job in taken)
    return _worded(place, url, "", taken, None, None, alone=True, pays=named)


def _worded(
    place: Place,
    url: str,
    card: str,
    taken: Sequence[Waiting],
    finish: float | None,
    gain: float | None,
    *,
    alone: bool,
    pays: bool,
) -> Invitation:
    first = taken[0].name
    more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
    verb = "starts" if card else "can start, if the machine fits,"
    where = f"open {url} and run" if url else "run"
    parts = [f"{where} the cell (`freegpu cell {place.platform}`): it {verb} {first}{more}"]
    if finish is not None:
        parts.append(f"done in about {span_text(finish)}")
    if alone and card:
        parts.append(
            "no other place can take it now" if not more else "the first has no other place now"
        )
    elif gain is not None and gain >= 60:
        parts.append(f"{first} ends {span_text(gain)} sooner")
    return Invitation(
        platform=place.platform,
        url=url,
        card=card,
        jobs=tuple(job.id for job in taken),
        names=tuple(job.name for job in taken),
        finish_s=finish,
        gain_s=gain,
        pays=pays,
        sentence=", ".join(parts),
    )


def _finish(job: Waiting, snapshot: Snapshot, now: datetime, platform: str | None) -> float | None:
    """Seconds until the job ends at the best place (on this platform); None: none, infinite: nobody knows."""
    for score in placement.explain(job, snapshot, now):
        if score.feasible and platform in (None, score.platform):
            return math.inf if score.finish_s is None else score.finish_s
    return None

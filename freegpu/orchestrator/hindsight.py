"""What would have saved more: counterfactuals that the ledger bears out, each with what it would have brought. Reads only.

Five kinds. Checkpoints: the interval that Young found best for the interruptions that there were, against what was lost.
Quota that expired while jobs waited which could not go there, and the line that kept them out. Slots that stood free in open
sessions while jobs waited that fit them. Deadlines that were missed, and how long the job waited before. Cards that waited for
data are told in `retrospect`, which knows how busy they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from freegpu.adapters.base import Offer
from freegpu.jobs import matrix
from freegpu.jobs.lifecycle import EndReason, JobState
from freegpu.orchestrator import remedies, standing
from freegpu.orchestrator.act import checkpoint_every
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Attempt, Job, Session
from freegpu.orchestrator.spots import CLOSEST_S, SAVE_S, Shape, misfit, span_text

__all__ = [
    "CHECKPOINT",
    "DATA",
    "DEADLINE",
    "EXPIRED",
    "IDLE",
    "INTERRUPTIONS",
    "Saving",
    "Spare",
    "look",
    "unknown",
]

#: ends that are nobody's wish
INTERRUPTIONS = (
    EndReason.PREEMPTED,
    EndReason.SESSION_EXPIRED,
    EndReason.QUOTA_EXHAUSTED,
    EndReason.LOST,
)
#: the kinds
CHECKPOINT, EXPIRED, IDLE = "checkpoint", "expired", "idle"
DEADLINE, DATA = "deadline", "data"
#: less than this is not worth a line, seconds; and of what was lost, this share
LEAST_S, LEAST = 600.0, 0.1
#: names that a sentence tells
NAMES = 3

Span = tuple[datetime, datetime]


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """One thing that would have gone better otherwise."""

    #: checkpoint, expired, idle, deadline or data
    kind: str
    #: seconds: of work that would not have been lost, of quota or of slots that could have been used, by which a deadline was
    #: missed, for which a card waited
    amount_s: float
    #: where it was; "": everywhere
    platform: str
    #: ids
    jobs: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Spare:
    """Quota that ended unused."""

    platform: str
    pool: str
    at: datetime
    seconds: float


def look(
    ledger: Ledger,
    spares: Sequence[Spare],
    since: datetime,
    until: datetime,
) -> tuple[Saving, ...]:
    """What would have saved more in the period."""
    jobs = [job for job in ledger.jobs() if job.created_at < until and _alive(job, since)]
    attempts: dict[str, list[Attempt]] = {}
    for attempt in ledger.attempts():
        attempts.setdefault(attempt.job, []).append(attempt)
    ready = _ready(ledger, jobs)
    waits = {job.id: _waits(job, attempts.get(job.id, []), ready[job.id], until) for job in jobs}
    found = [
        *_checkpoints(jobs, attempts, since, until),
        *_expired(jobs, waits, spares, _offered(ledger, spares), since),
        *_idle(ledger, jobs, waits, since, until),
        *_deadlines(jobs, waits, since, until),
    ]
    return tuple(sorted(found, key=lambda one: (-one.amount_s, one.kind, one.sentence)))


def unknown(savings: Sequence[Saving]) -> tuple[str, ...]:
    """What these figures had to assume."""
    if any(saving.kind == CHECKPOINT for saving in savings):
        return (f"what a checkpoint costs a job: it is not measured, and counted as {SAVE_S:g} s",)
    return ()


def _alive(job: Job, since: datetime) -> bool:
    return job.ended_at is None or job.ended_at >= since


# --- waiting ------------------------------------------------------------------------------------------------


def _ready(ledger: Ledger, jobs: Sequence[Job]) -> dict[str, datetime | None]:
    """When the last of those it comes after had succeeded; None: one has not."""
    before = ledger.prerequisites()
    found: dict[str, datetime | None] = {}
    for job in jobs:
        ends: list[datetime] = [job.created_at]
        met = True
        for state, ended in before.get(job.id, ()):
            met = met and state == JobState.SUCCEEDED and ended is not None
            ends += [ended] if ended is not None else []
        found[job.id] = max(ends) if met else None
    return found


def _waits(
    job: Job, attempts: Sequence[Attempt], ready: datetime | None, until: datetime
) -> list[Span]:
    """The times in which the job wanted a place and had none."""
    spans, since = [], ready
    for attempt in attempts:
        if since is not None and attempt.created_at > since:
            spans.append((since, attempt.created_at))
        since = attempt.ended_at
    end = job.ended_at or until
    if since is not None and job.state is not JobState.ACTIVE and end > since:
        spans.append((since, end))
    return spans


def _within(spans: Sequence[Span], since: datetime, until: datetime) -> float:
    """Seconds of these spans that lie in the period."""
    return sum(
        max(0.0, (min(end, until) - max(begin, since)).total_seconds()) for begin, end in spans
    )


# --- checkpoints --------------------------------------------------------------------------------------------


def _checkpoints(
    jobs: Sequence[Job], attempts: Mapping[str, Sequence[Attempt]], since: datetime, until: datetime
) -> Iterator[Saving]:
    """One line for a job, or for all cells of a matrix together."""
    families: dict[tuple[str, float], list[Job]] = {}
    for job in jobs:
        name = matrix.stem(job.name, job.spec.cell)
        families.setdefault((name, checkpoint_every(job.spec.checkpoint)), []).append(job)
    for (name, every), family in families.items():
        mine = [a for job in family for a in attempts.get(job.id, ()) if a.started_at is not None]
        mine = [a for a in mine if a.ended_at is not None and since <= a.ended_at < until]
        cut = [a.lost_s for a in mine if a.reason in INTERRUPTIONS]
        if not cut or sum(cut) < LEAST_S:
            continue
        ran = max(sum(a.run_s for a in mine), sum(cut))
        saved = any(a.saved_at is not None for a in mine)
        best = max(CLOSEST_S, math.sqrt(2 * SAVE_S * ran / len(cut)))
        best = max(60.0, 60.0 * round(best / 60))
        # half an interval is lost on average, and never more than was
        loses = sum(min(lost, best / 2) for lost in cut)
        costs = SAVE_S * ran * (1 / best - (1 / every if saved else 0.0))
        net = sum(cut) - loses - costs
        if net < max(LEAST_S, LEAST * sum(cut)) or (saved and best >= every):
            continue
        times = f"{len(cut)} interruption{'s' if len(cut) > 1 else ''}"
        lost = f"{span_text(sum(cut))} {'were' if len(cut) > 1 else 'was'} lost in {times}"
        what = (
            f"{name}: a checkpoint every {span_text(best)} instead of {span_text(every)}"
            if saved
            else f"{name} saved nothing: a checkpoint every {span_text(best)}"
        )
        yield Saving(
            kind=CHECKPOINT,
            amount_s=net,
            platform="",
            jobs=tuple(job.id for job in family),
            sentence=f"{what} would have saved about {span_text(net)} ({lost})",
        )


# --- quota that expired -------------------------------------------------------------------------------------


def _expired(
    jobs: Sequence[Job],
    waits: Mapping[str, Sequence[Span]],
    spares: Sequence[Spare],
    offers: Mapping[str, Sequence[Offer]],
    since: datetime,
) -> Iterator[Saving]:
    begins: dict[tuple[str, str], datetime] = {}
    for spare in sorted(spares, key=lambda spare: spare.at):
        key = (spare.platform, spare.pool)
        begin, begins[key] = begins.get(key, since), spare.at
        if spare.seconds < LEAST_S:
            continue
        given = [offer for offer in offers.get(spare.platform, ()) if offer.pool == spare.pool]
        groups: dict[str, list[tuple[Job, float]]] = {}
        for job in jobs:
            waited = _within(waits[job.id], begin, spare.at)
            if waited >= LEAST_S:
                groups.setdefault(_kept_out(job, spare.platform, given), []).append((job, waited))
        for reason, group in groups.items():
            waited = sum(seconds for _, seconds in group)
            yield Saving(
                kind=EXPIRED,
                amount_s=min(spare.seconds, waited),
                platform=spare.platform,
                jobs=tuple(job.id for job, _ in group),
                sentence=(
                    f"{span_text(spare.seconds)} of {spare.platform} ({spare.pool}) expired"
                    f" {remedies.moment(spare.at)}, while {_several([job.name for job, _ in group])} waited"
                    f" {span_text(waited)}{' in all' if len(group) > 1 else ''}: {reason}"
                ),
            )


def _offered(ledger: Ledger, spares: Sequence[Spare]) -> dict[str, list[Offer]]:
    """platform -> what it offered when it last answered, and what sessions there were of."""
    found: dict[str, dict[tuple[object, ...], Offer]] = {}
    sessions = ledger.sessions(open_only=False)
    names = {session.platform for session in sessions} | {spare.platform for spare in spares}
    last = [o for name in sorted(names) for o in standing.last_offers(ledger, name)[0]]
    for offer in [*last, *(session.offer for session in sessions)]:
        alike = (offer.pool, offer.card, offer.vram_gb, offer.memory_gb, offer.cpus, offer.disk_gb)
        found.setdefault(offer.platform, {}).setdefault(alike, offer)
    return {name: list(offers.values()) for name, offers in found.items()}


def _kept_out(job: Job, platform: str, offers: Sequence[Offer]) -> str:
    """Why a job could not go there, and what would have let it."""
    needs = job.spec.needs
    if needs.platforms and platform not in needs.platforms:
        allowed = " and ".join(needs.platforms)
        return f"`platforms` allows only {allowed}"
    if not offers:
        return "which cards it offered then is not known"
    faults = []
    for offer in offers:
        shape = _shape(offer)
        fault, _ = misfit(needs, shape)
        if not fault:
            return "a card there fits; why it was not given is not in the ledger (did `freegpu up` run then?)"
        change = remedies.fitting(needs, shape)
        faults.append(f"{offer.card}: {fault}" + (f" ({change})" if change else ""))
    return "; ".join(dict.fromkeys(faults))


def _shape(offer: Offer) -> Shape:
    """Without what the PyTorch there was built for: who knows what it was then."""
    card = offer.card if offer.count >= 1 else ""
    return (card, offer.vram_gb, offer.memory_gb, offer.cpus, offer.disk_gb, ())


# --- slots that stood free ----------------------------------------------------------------------------------


def _idle(
    ledger: Ledger,
    jobs: Sequence[Job],
    waits: Mapping[str, Sequence[Span]],
    since: datetime,
    until: datetime,
) -> Iterator[Saving]:
    """One line for a platform. A slot runs one job at a time, so times in which several waited count once for it."""
    found: dict[str, tuple[float, dict[str, Job]]] = {}
    waiting = [job for job in jobs if any(_within([span], since, until) for span in waits[job.id])]
    for session in ledger.sessions(open_only=False) if waiting else ():
        if session.live_at is None or session.offer.sealed or (session.ended_at or until) < since:
            continue
        offer = replace(session.offer, card=session.card_seen or session.offer.card)
        for begin, end in _free(ledger, session, since, until):
            if (end - begin).total_seconds() < LEAST_S:
                continue
            there = [(job, _overlaps(waits[job.id], begin, end)) for job in waiting]
            fit = [
                (job, spans)
                for job, spans in there
                if spans and _takes(job, session.platform, offer)
            ]
            seconds = _union([span for _, spans in fit for span in spans])
            if seconds >= LEAST_S:
                before, who = found.get(session.platform, (0.0, {}))
                who |= {job.id: job for job, _ in fit}
                found[session.platform] = (before + seconds, who)
    for platform, (seconds, who) in found.items():
        yield Saving(
            kind=IDLE,
            amount_s=seconds,
            platform=platform,
            jobs=tuple(who),
            sentence=(
                f"slots of open sessions on {platform} stood free for up to {span_text(seconds)}, while"
                f" {_several([job.name for job in who.values()])} waited that fit there: `freegpu up` gives them away at"
                " once, unless the session was silent"
            ),
        )


def _takes(job: Job, platform: str, offer: Offer) -> bool:
    needs = job.spec.needs
    allowed = not needs.platforms or platform in needs.platforms
    return allowed and not misfit(needs, _shape(offer))[0]


def _free(ledger: Ledger, session: Session, since: datetime, until: datetime) -> Iterator[Span]:
    """The times in which a slot of the session ran nothing, within the period."""
    if session.live_at is None:
        return
    attempts = ledger.attempts(session=session.id)
    last = min(session.ended_at or until, until)
    for slot in range(session.count):
        begin = max(session.live_at, since)
        for attempt in sorted(
            (a for a in attempts if a.slot == slot), key=lambda a: (a.created_at, a.number)
        ):
            if attempt.created_at > begin:
                yield begin, min(attempt.created_at, last)
            begin = max(begin, attempt.ended_at or last)
        if last > begin:
            yield begin, last


def _overlaps(spans: Sequence[Span], since: datetime, until: datetime) -> list[Span]:
    cut = [(max(begin, since), min(end, until)) for begin, end in spans]
    return [(begin, end) for begin, end in cut if begin < end]


def _union(spans: Sequence[Span]) -> float:
    """Seconds that at least one of these covers."""
    total, reached = 0.0, None
    for begin, end in sorted(spans):
        start = begin if reached is None else max(begin, reached)
        if end > start:
            total += (end - start).total_seconds()
            reached = end
    return total


def _several(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f"{len(names)} jobs ({', '.join(names[:NAMES])}{more})"


# --- deadlines ----------------------------------------------------------------------------------------------


def _deadlines(
    jobs: Sequence[Job], waits: Mapping[str, Sequence[Span]], since: datetime, until: datetime
) -> Iterator[Saving]:
    for job in jobs:
        deadline = job.spec.deadline
        if deadline is None or not since <= deadline < until or job.state is JobState.CANCELLED:
            continue
        done = job.ended_at if job.state is JobState.SUCCEEDED else None
        if done is not None and done <= deadline:
            continue
        late = ((done or until) - deadline).total_seconds()
        waited = _within(waits[job.id], job.created_at, deadline)
        words = [
            f"{job.name} missed its deadline ({remedies.moment(deadline)})",
            f"by {span_text(late)}" if done else f"and is {job.state} {span_text(late)} later",
        ]
        told = []
        if waited >= 60:
            enough = done is not None and waited >= late
            told.append(
                f"it had waited {span_text(waited)} for a place"
                + (
                    ": submitted so much earlier, or placed at once, it would have met it"
                    if enough
                    else ""
                )
            )
        if job.lost_s >= 60:
            told.append(f"{span_text(job.lost_s)} of its work was lost to interruptions")
        if job.spec.estimate is None:
            told.append("it has no `estimate`, so how near the deadline was could only be guessed")
        yield Saving(
            kind=DEADLINE,
            amount_s=late,
            platform="",
            jobs=(job.id,),
            sentence="; ".join([" ".join(words), *told]),
        )

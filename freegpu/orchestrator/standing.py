"""What a decision is told of the past and of what runs now: losses by platform, demand of the last weeks, jobs in slots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from statistics import median

from freegpu.adapters.base import Offer
from freegpu.jobs.lifecycle import AttemptState, EndReason, SessionState
from freegpu.jobs.model import Needs
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Running, Session, Standing
from freegpu.orchestrator.reserve import ASKED_S, COMING_S

__all__ = [
    "asked_lately",
    "came_lately",
    "job_start",
    "last_offers",
    "losses",
    "offers_key",
    "running",
    "standing",
]

#: losses of so long ago still count, seconds
LATELY_S = 28 * 86400.0
#: the newest starts of jobs that count, and how few say nothing
STARTS, FEWEST_STARTS = 25, 3
#: the newest sessions of a platform that are looked at for losses
MOST = 200


def running(ledger: Ledger, sessions: Sequence[Session], now: datetime) -> tuple[Running, ...]:
    """The jobs in slots of live sessions; not those that are asked to stop."""
    found = []
    for session in sessions:
        if session.state is not SessionState.LIVE or session.offer.sealed:
            continue
        left = session.beat.get("left_s")
        for attempt in ledger.attempts(session=session.id, open_only=True):
            if attempt.state is not AttemptState.RUNNING:
                continue
            since = attempt.started_at or attempt.created_at
            found.append(
                Running(
                    job=ledger.as_waiting(attempt.job),
                    session=session.id,
                    slot=attempt.slot,
                    offer=session.offer,
                    held_s=max(0.0, (now - since).total_seconds()),
                    left_s=float(left) if isinstance(left, int | float) else None,
                )
            )
    return tuple(found)


def standing(ledger: Ledger, sessions: Sequence[Session], now: datetime) -> tuple[Standing, ...]:
    """Sessions that are open and not about to end, with the jobs in their slots or next in line for one."""
    found = []
    for session in sessions:
        if session.state not in (SessionState.PLANNED, SessionState.STARTING, SessionState.LIVE):
            continue
        slots: dict[int, str] = {}
        going = set()
        for attempt in ledger.attempts(session=session.id, open_only=True):
            if attempt.state is not AttemptState.STOPPING and attempt.slot < session.count:
                slots.setdefault(attempt.slot, attempt.job)
            if attempt.state is AttemptState.RUNNING:
                going.add(attempt.job)
        begun = session.started_at
        lived = max(0.0, (now - begun).total_seconds()) if begun else 0.0
        told = session.beat.get("left_s")
        left = None if session.limit_s is None else max(0.0, session.limit_s - lived)
        offer = session.offer
        if session.card_seen and session.card_seen != offer.card:
            offer = replace(offer, card=session.card_seen)
        found.append(
            Standing(
                session=session.id,
                offer=offer,
                left_s=float(told) if isinstance(told, int | float) else left,
                held_s=max(0.0, session.reserved_s - lived * session.rate),
                jobs=tuple(sorted(slots.items())),
                going=frozenset(going),
                starts_s=0.0
                if session.state is SessionState.LIVE
                else max(0.0, offer.start_delay_s - lived),
            )
        )
    return tuple(found)


def job_start(ledger: Ledger) -> float | None:
    """How long a job takes from getting a slot of a live session to running, as the newest ones did, seconds; None: too few."""
    seen = ledger.starts(STARTS)
    return median(seen) if len(seen) >= FEWEST_STARTS else None


def asked_lately(ledger: Ledger, now: datetime) -> tuple[Needs, ...]:
    """What jobs of the last week needed, each once."""
    return ledger.asked_since(now - timedelta(seconds=ASKED_S))


def came_lately(ledger: Ledger, now: datetime) -> int:
    """How many jobs were submitted in the last days."""
    return ledger.came_since(now - timedelta(seconds=COMING_S))


def losses(ledger: Ledger, platform: str, account: str, now: datetime) -> tuple[float, float]:
    """(sessions lost before their time, seconds that sessions lived in all) on an account, in the last four weeks."""
    past = ledger.sessions(open_only=False, platform=platform, account=account, limit=MOST)
    lost, lived = 0.0, 0.0
    for session in past:
        begun, ended = session.live_at, session.ended_at or now
        if begun is None or (now - ended).total_seconds() > LATELY_S:
            continue
        lived += max(0.0, (ended - begun).total_seconds())
        lost += session.reason.partition(":")[0] in (EndReason.LOST, EndReason.PREEMPTED)
    return lost, lived


def last_offers(ledger: Ledger, platform: str) -> tuple[tuple[Offer, ...], datetime | None]:
    """The offers that a platform made when it last answered, and when that was."""
    told = json.loads(ledger.meta(offers_key(platform)) or "{}")
    if not told:
        return (), None
    offers = tuple(
        Offer(**{**offer, "devices": tuple(offer["devices"])}) for offer in told["offers"]
    )
    return offers, datetime.fromisoformat(told["as_of"])


def offers_key(platform: str) -> str:
    """Where the ledger keeps them."""
    return f"offers:{platform}"

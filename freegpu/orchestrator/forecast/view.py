"""The snapshot that a forecast shows to the policy: what freegpu would know at that moment, and nothing else. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from freegpu.adapters.base import WindowKind
from freegpu.jobs.model import Needs
from freegpu.orchestrator.forecast.state import JobNow, PlatformNow, Seat, SessionNow
from freegpu.orchestrator.model import FreeSlot, Goal, Place, Running, Snapshot, Waiting

#: a job's own progress counts from so much work on, seconds
LEARNED_S = 60.0


def snapshot(
    waiting: tuple[Waiting, ...],
    sessions: Iterable[SessionNow],
    platforms: Iterable[PlatformNow],
    lately: tuple[Needs, ...],
    came: int,
    goal: Goal,
    now_s: float,
    now: datetime,
) -> Snapshot:
    """`lately`, `came`: see `Snapshot`; `now_s` and `now` are the same moment."""
    free: list[FreeSlot] = []
    running: list[Running] = []
    for session in sessions:
        if session.live is None or session.offer.sealed:
            continue
        left = session.ends - now_s if session.ends < math.inf else None
        for slot, seat in enumerate(session.seats):
            if seat is None:
                free.append(
                    FreeSlot(session=session.id, slot=slot, offer=session.offer, left_s=left)
                )
            elif not seat.leaving:
                running.append(_running(session, slot, seat, left, now_s))
    return Snapshot(
        waiting=waiting,
        free_slots=tuple(free),
        places=tuple(_place(platform, now_s, now) for platform in platforms),
        running=tuple(running),
        lately=lately,
        came=came,
        goal=goal,
    )


def showed(did: float, seat: Seat) -> bool:
    """Whether a job has worked long enough in a slot to show its speed there; `did`: T4 seconds."""
    return did >= LEARNED_S * seat.rate and seat.job.job.reports


def waits(job: JobNow) -> Waiting:
    """As the policy sees it."""
    if job.waiting is None:
        job.waiting = _as_waiting(job, 0.0, job.seen)
    return job.waiting


def _running(
    session: SessionNow, slot: int, seat: Seat, left: float | None, now_s: float
) -> Running:
    did, _ = seat.worked(now_s)
    return Running(
        job=_as_waiting(seat.job, did, session.offer.card if showed(did, seat) else seat.job.seen),
        session=session.id,
        slot=slot,
        offer=session.offer,
        held_s=now_s - seat.held_since,
        left_s=left,
    )


def _as_waiting(job: JobNow, did: float, seen: str) -> Waiting:
    """What freegpu knows of the job: its estimate, its progress, the speed that it showed on the card `seen`."""
    spec = job.job
    left = max(0.0, spec.work_s - job.done - did)
    return Waiting(
        id=spec.id,
        seq=job.seq,
        name=spec.name or spec.id,
        needs=spec.needs,
        estimate=spec.estimate,
        priority=spec.priority,
        deadline=spec.deadline,
        created_at=job.created,
        remaining=left / spec.work_s if spec.reports and spec.work_s > 0 else 1.0,
        remaining_t4_s=left / spec.pace.get(seen, 1.0) if seen else None,
        grace_s=spec.grace_s,
        save_s=spec.save_s,
    )


def _place(platform: PlatformNow, now_s: float, now: datetime) -> Place:
    given, until = platform.given, platform.blocked_until
    closed = until is not None and until > now
    return Place(
        platform=given.name,
        account=given.account,
        capabilities=given.capabilities,
        offers=given.offers,
        open_sessions=len(platform.sessions),
        balances=tuple(
            purse.balance(now)
            for purse in platform.purses.values()
            if purse.window.kind is not WindowKind.NONE
        ),
        blocked_until=until if closed else None,
        blocked_why="refused a session" if closed else "",
        losses=platform.losses,
        exposure_s=platform.exposure_s(now_s),
    )

"""The ledger as people want to see it: views of platforms, sessions and jobs. Reads only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from freegpu.adapters.base import Adapter, Offer
from freegpu.jobs import matrix
from freegpu.jobs.lifecycle import JobState, SessionState
from freegpu.orchestrator.invitations import Invitation
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Attempt, Balance, FigureSource, Job, Place, Session
from freegpu.orchestrator.placement import nothing_on
from freegpu.orchestrator.record import Decision, place_name
from freegpu.orchestrator.views import JobView, PlatformView, SessionView, SlotView

#: of jobs that another waits for so many are named
_NAMED = 4


def job_views(
    ledger: Ledger, jobs: Sequence[Job], reasons: Mapping[str, str] | None = None
) -> tuple[JobView, ...]:
    """Jobs in one line each; one query for all their attempts. `reasons`: job -> why, in a few words."""
    by_job: dict[str, list[Attempt]] = defaultdict(list)
    if len(jobs) == 1:
        by_job[jobs[0].id] = ledger.attempts(job=jobs[0].id)
    elif any(job.attempts for job in jobs):
        for attempt in ledger.attempts():
            by_job[attempt.job].append(attempt)
    pending = any(job.state is JobState.PENDING and job.spec.after for job in jobs)
    blockers = ledger.blockers() if pending else {}
    told = reasons or {}
    return tuple(
        _job_view(job, by_job[job.id], blockers.get(job.id), told.get(job.id, "")) for job in jobs
    )


def _job_view(
    job: Job, attempts: Sequence[Attempt], blockers: tuple[int, int] | None, reason: str
) -> JobView:
    last = attempts[-1] if attempts else None
    ran = sum(1 for attempt in attempts if attempt.started_at is not None)
    return JobView(
        id=job.id,
        name=job.name,
        state=str(job.state),
        why=_held(*blockers) if blockers else job.why,
        platform=last.platform if last else "",
        card=last.card if last else "",
        attempt=last.id if last else "",
        hops=max(0, ran - 1),
        progress=job.progress,
        eta_s=job.progress.remaining_s if job.state is JobState.ACTIVE else None,
        checkpoint_at=job.checkpoint.confirmed_at if job.checkpoint else None,
        created_at=job.created_at,
        ended_at=job.ended_at,
        lost_s=job.lost_s,
        priority=job.spec.priority,
        deadline=job.spec.deadline,
        reason=reason,
    )


def _held(unmet: int, stuck: int) -> str:
    """What a pending job waits for, in a few words; `why` names the jobs."""
    if stuck:
        jobs = "a job that has" if stuck == 1 else f"{stuck} jobs that have"
        return (
            f"after {jobs} failed or was cancelled"
            if stuck == 1
            else f"after {jobs} failed or were cancelled"
        )
    return "after a job that is not done" if unmet == 1 else f"after {unmet} jobs that are not done"


def platform_views(
    places: Sequence[Place], adapters: Mapping[str, Adapter], problems: Collection[str]
) -> tuple[PlatformView, ...]:
    """A line for each offer; a platform without one still gets its line, with the reason."""
    views = []
    for place in places:
        balances = {balance.pool: balance for balance in place.balances}
        problem = place.blocked_why if place.blocked_until else ""
        if not place.offers:
            problem = problem or ("" if place.capabilities.attended else nothing_on(place))
            views.append(_platform_view(place, None, next(iter(balances.values()), None), problem))
        views += [
            _platform_view(place, offer, balances.get(offer.pool), problem)
            for offer in place.offers
        ]
    return tuple(views)


def _platform_view(
    place: Place, offer: Offer | None, balance: Balance | None, problem: str
) -> PlatformView:
    pool = offer.pool if offer else balance.pool if balance else ""
    figures = place.learned.get(pool)
    source, age_s = (str(balance.source), balance.age_s) if balance else ("", None)
    if figures is not None and figures.allowance is not None and source != FigureSource.LIVE:
        source, age_s = str(FigureSource.LEARNED), figures.allowance.age_s
    return PlatformView(
        name=place.platform,
        account=place.account,
        card=offer.card if offer else "",
        count=offer.count if offer else 0,
        vram_gb=offer.vram_gb if offer else 0.0,
        used_s=balance.used_s if balance else None,
        limit_s=balance.limit_s if balance else None,
        left_s=balance.left_s if balance else None,
        reserved_s=balance.reserved_s if balance else 0.0,
        resets_at=balance.resets_at if balance else None,
        source=source,
        age_s=age_s,
        attended=place.capabilities.attended,
        open_sessions=place.open_sessions,
        max_concurrent=place.capabilities.max_concurrent,
        session_limit_s=offer.session_limit_s if offer else place.capabilities.max_session_s,
        problem=problem,
        learned=figures,
        known_at=place.as_of,
    )


def session_views(
    ledger: Ledger,
    sessions: Sequence[Session],
    now: datetime,
    reasons: Mapping[str, str] | None = None,
) -> tuple[SessionView, ...]:
    """Open sessions with what runs in their slots. `reasons`: session -> what it was started for."""
    names: dict[str, str] = {}
    views = []
    for session in sessions:
        attempts = ledger.attempts(session=session.id, open_only=True)
        reported = {str(slot.get("attempt")): slot for slot in session.beat.get("slots") or ()}
        slots = []
        for index in range(session.count):
            mine = [attempt for attempt in attempts if attempt.slot == index]
            if not mine:
                slots.append(
                    SlotView(slot=index, job="", job_name="", attempt="", phase="", progress=None)
                )
            for attempt in mine[:1]:
                if attempt.job not in names:
                    names[attempt.job] = ledger.job(attempt.job).name
                word = reported.get(attempt.id, {})
                slots.append(
                    SlotView(
                        slot=index,
                        job=attempt.job,
                        job_name=names[attempt.job],
                        attempt=attempt.id,
                        phase=str(word.get("phase") or attempt.state),
                        progress=word.get("progress") or attempt.progress.values or None,
                    )
                )
        views.append(
            SessionView(
                id=session.id,
                platform=session.platform,
                card=session.card_seen or session.card,
                count=session.count,
                state=str(session.state),
                started_at=session.started_at,
                limit_s=session.limit_s,
                left_s=_left(session, now),
                slots=tuple(slots),
                gpu=tuple(session.beat.get("gpu") or ()),
                silent=session.state is SessionState.LIVE and session.silent_polls > 1,
                queue=max(0, len(attempts) - session.count),
                reason=(reasons or {}).get(session.id, ""),
            )
        )
    return tuple(views)


def _left(session: Session, now: datetime) -> float | None:
    if session.limit_s is None or session.started_at is None:
        return session.limit_s
    return max(0.0, session.limit_s - (now - session.started_at).total_seconds())


def sentence(
    ledger: Ledger,
    job: Job,
    decision: Decision | None,
    now: datetime,
    invitation: Invitation | None = None,
) -> str:
    """Why the job is where it is, in one sentence. `decision`: what would be decided now; `invitation`: a click that would start it."""
    if job.state is not JobState.PENDING:
        attempts = ledger.attempts(job=job.id)
        if job.state is JobState.ACTIVE and attempts:
            last = attempts[-1]
            return f"{job.name} is {last.state} on {last.platform} {last.card}: {job.why}"
        verb = "was" if job.state is JobState.CANCELLED else "has"
        return f"{job.name} {verb} {job.state}" + (f": {job.why}" if job.why != job.state else "")
    blockers = waits_for(ledger, job)
    if blockers:
        return f"{job.name} waits for {', '.join(blockers)}"
    if job.not_before is not None and job.not_before > now:
        seconds = (job.not_before - now).total_seconds()
        return f"{job.name} is tried again in {seconds:.0f} s: {job.why}"
    if decision is not None and decision.chosen is not None:
        return f"{job.name} will go to {place_name(decision.chosen)}"
    if decision is not None and decision.gives_way:
        return f"{decision.gives_way} saves and stops to make room for {job.name}"
    if invitation is not None:
        return f"{job.name} needs one click: {invitation.sentence}"
    return f"{job.name} waits: no place can take it now"


def waits_for(ledger: Ledger, job: Job) -> list[str]:
    """The jobs that this one comes after and that have not succeeded, with what became of them.

    Those that will not succeed by themselves come first; of many others only the number is told.
    """
    unmet = ledger.unmet(job.id)
    stuck = [other for other in unmet if other.state in (JobState.FAILED, JobState.CANCELLED)]
    open_ = [other for other in unmet if not other.state.final]
    told = [
        f"{other.name} ({other.id}), which {_became(other)}"
        for other in (*stuck[:_NAMED], *(open_ if len(open_) <= _NAMED else ()))
    ]
    if len(stuck) > _NAMED:
        told.append(f"{len(stuck) - _NAMED} more that have failed or were cancelled")
    if len(open_) > _NAMED:
        running = sum(other.state is JobState.ACTIVE for other in open_)
        stems = {matrix.stem(other.name, other.spec.cell) for other in open_}
        of = f" of {min(stems)}" if len(stems) == 1 else ""
        told.append(f"{len(open_)} jobs{of}, {running} of which run now")
    if stuck:
        retried = stuck[0].id if len(stuck) == 1 else matrix.stem(stuck[0].name, stuck[0].spec.cell)
        told[-1] += f"; `freegpu retry {retried}` lets it go on"
    return told


def _became(job: Job) -> str:
    if job.state is JobState.CANCELLED:
        return "was cancelled"
    return f"has failed ({job.why})" if job.state is JobState.FAILED else f"is {job.state}"

"""Who chooses first: endangered deadlines, then jobs that waited too long, then weighted shortest remaining, aged. Pure.

For the goal "makespan" instead: the job with the fewest homes, then the longest. Waiting raises a job's rank without
bound, and after `OVERDUE_S` it comes before everything but endangered deadlines: nobody starves. Where a job then goes is
decided in `placement`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from freegpu.orchestrator.model import Goal, Waiting
from freegpu.orchestrator.spots import Ask, seconds_until

__all__ = ["Turn", "endangered", "turn", "urgent", "weight"]

#: a deadline is endangered when what is left is less than this much of the expected run, and an hour
DANGER, DANGER_S = 1.3, 3600.0
#: it is urgent, and may be met with what is kept for such jobs, when less than this much of the run is left
URGENT = 2.0
#: a job's weight doubles with so many steps of priority
DOUBLING = 10.0
#: waiting so long doubles a job's rank, seconds
AGING_S = 72 * 3600.0
#: whoever was submitted so long ago comes before everybody whose deadline is not in danger, seconds
OVERDUE_S = 14 * 86400.0
#: jobs shorter than this count as this short: their starts cost as much as their work, hours
LEAST_H = 0.1

#: sorts: the smallest chooses first
Turn = tuple[bool, bool, float, float, int, str]


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds per T4 second for a kind of job, on the best card that it fits and on a middling one."""

    best: float
    middling: float


@lru_cache(maxsize=1024)
def weight(priority: int) -> float:
    """How much an hour of a job's waiting counts: priority 10 as two jobs of priority 0."""
    return float(2.0 ** (max(-100, min(100, priority)) / DOUBLING))


def endangered(job: Waiting, ask: Ask, paces: Paces, now: datetime) -> bool:
    """Whether a deadline that can still be met is close to what the job needs on a middling card."""
    if job.deadline is None:
        return False
    left = seconds_until(job.deadline, now)
    return 0 < left < DANGER * ask.work_s * paces.middling + DANGER_S


def urgent(job: Waiting, ask: Ask, paces: Paces, now: datetime) -> bool:
    """Whether its deadline can still be met, and not with much waiting."""
    if job.deadline is None:
        return False
    left = seconds_until(job.deadline, now)
    return 0 < left < URGENT * ask.work_s * paces.middling + DANGER_S


def turn(
    job: Waiting, ask: Ask, paces: Paces | None, homes: int, now: datetime, goal: Goal
) -> Turn:
    """The rank of a job; None as paces: nothing on offer fits it, so its length on a T4 must do."""
    waited = max(0.0, seconds_until(now, job.created_at))
    calm = paces is None or not endangered(job, ask, paces, now)
    hours = max(LEAST_H, ask.work_s * (1.0 if paces is None else paces.best) / 3600)
    if waited >= OVERDUE_S:
        # the longest waiting first, or the aged order would go on without end among these
        return (calm, False, -waited, 0.0, job.seq, job.id)
    if goal == "makespan":
        return (calm, True, float(homes), -hours * weight(job.priority), job.seq, job.id)
    rank = weight(job.priority) * (1 + waited / AGING_S) / hours
    return (calm, True, -rank, 0.0, job.seq, job.id)

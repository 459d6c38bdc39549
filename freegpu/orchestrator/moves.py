"""Slots of live sessions that pass from a long job to a much shorter one. Pure.

Shortest first would be unfair to nobody if jobs came in that order; they do not, so a job that came later may take the
slot of one that has three times as long to go: it saves, goes back into the queue, and loses a checkpoint's time. At
most one slot a newcomer, never from a job that has just begun or whose deadline can still be met, and on counted quota
never from one with no other home to one that has: the benchmark's last jobs had lost their credits that way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from freegpu import cards
from freegpu.jobs.model import Needs
from freegpu.orchestrator.model import Action, Assignment, Move, Running, Waiting
from freegpu.orchestrator.spots import (
    Ask,
    Kind,
    Login,
    Shape,
    Spot,
    SpotKind,
    length,
    seconds_until,
    shape_of,
    span_text,
    unfit,
)
from freegpu.orchestrator.turns import LEAST_H, weight

__all__ = ["find", "keep_open"]

#: the slot passes to a job with so many times less to go, by weight; to one whose deadline is in danger, to any shorter
TIMES, TIMES_ENDANGERED = 3.0, 1.0
#: whoever has held a slot for less than this keeps it, seconds
HELD_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Lane:
    """A slot that may pass on."""

    running: Running
    #: what its job has to go there, seconds, and the same by weight
    left_s: float
    heavy_s: float
    #: what its machine is, for who fits it
    shape: Shape
    #: its job runs nowhere else, and the quota there is counted
    only: bool


def keep_open(spots: Iterable[Spot], running: Iterable[Running]) -> None:
    """Tell free slots of live sessions how long the other slots keep their session open anyway."""
    live = [spot for spot in spots if spot.kind is SpotKind.LIVE]
    if not live:
        return
    longest: dict[str, float] = {}
    for one in running:
        left = min(_left(one), math.inf if one.left_s is None else one.left_s)
        longest[one.session] = max(longest.get(one.session, 0.0), left)
    for spot in live:
        spot.kept_open_s = longest.get(spot.session, 0.0)


def find(
    waiting: Iterable[tuple[Waiting, Ask, bool, Collection[Login]]],
    running: Iterable[Running],
    homes: Callable[[Needs], Collection[Login]],
    now: datetime,
) -> list[Action]:
    """Which slots pass on to which of the jobs that found no place: (job, its ask, endangered, its homes).

    `homes`: where jobs with these needs run at a speed worth it.
    """
    lanes = _lanes(running, homes, now)
    there = {lane.running.offer.card for lane in lanes}
    #: class of work -> the greatest speed of all cards there
    fastest: dict[str, float] = {}
    #: (kind, priority, endangered) -> the shortest of these that found no slot: none is left for a longer one
    failed: dict[tuple[Kind, int, bool], float] = {}
    theirs = {lane.running.job.id for lane in lanes}
    found: list[Action] = []
    for job, ask, pressed, its in waiting:
        if not lanes:
            break
        times = TIMES_ENDANGERED if pressed else TIMES
        heft = weight(job.priority)
        # lanes are sorted: if the longest of them is not long enough, none is
        if lanes[0].heavy_s < times * LEAST_H * 3600 / heft:
            continue
        alike = (ask.kind, job.priority, pressed)
        if not ask.speeds:
            if ask.work_s >= failed.get(alike, math.inf):
                continue
            workload = ask.kind.needs.workload
            if workload not in fastest:
                fastest[workload] = max(cards.speed(card, workload) for card in there)
            if lanes[0].heavy_s < times * (ask.work_s / fastest[workload]) / heft:
                continue
        lane = _gives_way(lanes, job, ask, times, len(its) == 1)
        if lane is None:
            if not ask.speeds and job.id not in theirs:
                failed[alike] = ask.work_s
            continue
        lanes.remove(lane)
        took = span_text(_seconds(ask, lane.running))
        found.append(
            Move(
                session=lane.running.session,
                victim=lane.running.job.id,
                assignment=Assignment(job=job.id, slot=lane.running.slot),
                why=f"{job.name} needs the slot for {took}, {lane.running.job.name} for {span_text(lane.left_s)} more",
            )
        )
    return found


def _gives_way(
    lanes: Sequence[_Lane], job: Waiting, ask: Ask, times: float, only: bool
) -> _Lane | None:
    """The lane whose job has the most to go, of those that may pass to this one; `only`: it has one home."""
    heft, kind = weight(job.priority), ask.kind
    least = times * (LEAST_H * 3600) / heft
    takes: dict[str, float] = {}
    for lane in lanes:
        if lane.heavy_s < least:
            return None
        if lane.only and not only:
            continue
        running = lane.running
        card = running.offer.card
        took = takes.get(card)
        if took is None:
            took = takes[card] = ask.work_s / ask.speed(card)
        if not lane.heavy_s >= times * max(took, LEAST_H * 3600) / heft:
            continue
        left = math.inf if running.left_s is None else running.left_s
        if took + kind.grace_s + running.job.grace_s > left:
            continue
        if job.id == running.job.id or not kind.allows(running.offer.platform):
            continue
        if not unfit(kind, lane.shape)[0]:
            return lane
    return None


def _lanes(
    running: Iterable[Running], homes: Callable[[Needs], Collection[Login]], now: datetime
) -> list[_Lane]:
    found = []
    for one in running:
        if one.held_s < HELD_S or one.offer.sealed:
            continue
        deadline = one.job.deadline
        if deadline is not None and seconds_until(deadline, now) > 0:
            continue
        left = _left(one)
        heavy = left / weight(one.job.priority)
        only = bool(one.offer.pool) and len(homes(one.job.needs)) == 1
        found.append(_Lane(one, left, heavy, shape_of(one.offer), only))
    return sorted(found, key=lambda lane: (-lane.heavy_s, lane.running.session, lane.running.slot))


def _left(running: Running) -> float:
    job, card = running.job, running.offer.card
    seen = job.speeds.get(card, 0.0)
    speed = seen if seen > 0 else cards.speed(card, job.needs.workload)
    return length(job)[0] / speed


def _seconds(ask: Ask, running: Running) -> float:
    return ask.work_s / ask.speed(running.offer.card)

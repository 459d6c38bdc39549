"""A decision leaves out jobs that nothing can come of. Beside one that asks every job about every place, nothing differs.

The plain way below takes no short cut: each job in its turn, each spot there is, by the rules that `explain` states. It is
set against `decide` on random snapshots and, over whole forecasts, result by result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator import board, moves, placement, reserve
from freegpu.orchestrator.board import NEAR, Board
from freegpu.orchestrator.expectation import Outlook
from freegpu.orchestrator.forecast import Job, Platform, Pool, World, run
from freegpu.orchestrator.model import Action, Snapshot
from freegpu.orchestrator.spots import Ask, Spot
from freegpu.orchestrator.turns import endangered
from tests.unit.test_placement import NOW, any_snapshot

HOUR, DAY = 3600.0, 86400.0


def plainly(snapshot: Snapshot, now: datetime) -> list[Action]:
    """The decision without a single short cut."""
    open_board = Board.of(snapshot, now)
    queue = open_board.queue(snapshot.waiting)
    placed: set[str] = set()
    for _, job, ask, fit in queue:
        if job.id in placed:
            continue
        claim = open_board.claim(job, ask, fit)
        found = []
        for spot in (spot for spot in open_board.spots if not spot.gone):
            # spots are measured anew for everybody, whatever was taken
            spot.measure()
            outlook = open_board.explained(ask, spot, claim)
            if not outlook.fault:
                units = reserve.cost(ask, spot)
                price = reserve.price(units, spot, open_board.others) if units > 0 else 0.0
                found.append((spot, replace(outlook, price_s=price)))
        if found:
            open_board.take(*_best(found, ask), ask, job.id)
            placed.add(job.id)
    passed: list[Action] = []
    if snapshot.goal == "jct":
        rest = [
            (job, ask, fit.paces is not None and endangered(job, ask, fit.paces, now), fit.homes)
            for _, job, ask, fit in queue
            if job.id not in placed
        ]
        passed += moves.find(
            rest, snapshot.running, lambda needs: open_board.fitting.of(needs).homes, now
        )
    return [*open_board.assigned, *(each.action() for each in open_board.started), *passed]


def _best(found: Sequence[tuple[Spot, Outlook]], ask: Ask) -> tuple[Spot, Outlook]:
    choice = min(outlook.choice for _, outlook in found)
    liked = [(spot, outlook) for spot, outlook in found if outlook.choice == choice]
    least = min(outlook.rank_s for _, outlook in liked)
    near = [(spot, outlook) for spot, outlook in liked if outlook.rank_s <= least * NEAR]
    return min(near, key=lambda e: (e[0].kind, board._share(e[0], ask), e[1].rank_s, e[0].rank))


@pytest.mark.parametrize("first", range(0, 600, 150))
def test_random_snapshots_decide_as_without_short_cuts(first: int) -> None:
    """The same actions with the same sentences, at two moments."""
    acted = 0
    for seed in range(first, first + 150):
        snapshot = any_snapshot(random.Random(seed))
        for now in (NOW, NOW + timedelta(hours=30)):
            plain = plainly(snapshot, now)
            assert repr(placement.decide(snapshot, now)) == repr(plain), seed
            acted += len(plain)
    assert acted > 100


def _window(luck: random.Random) -> Window:
    hours = luck.choice((2, 6, 20)) * HOUR
    return luck.choice(
        (
            Window(kind=WindowKind.FIXED_WEEKLY, limit_s=hours),
            Window(kind=WindowKind.ROLLING, limit_s=hours, period_s=luck.choice((1, 7)) * DAY),
            Window(kind=WindowKind.MONTHLY, limit_s=hours),
            Window(kind=WindowKind.PREPAID, limit_s=hours),
            Window(kind=WindowKind.FROM_FIRST_USE, limit_s=hours, period_s=DAY),
            Window(kind=WindowKind.NONE),
        )
    )


def _platform(name: str, luck: random.Random) -> Platform:
    cards = luck.sample((("T4", 16), ("L4", 24), ("P100", 16), ("A100", 40), ("RTX2060", 6)), 2)
    offers = tuple(
        Offer(
            platform=name,
            account="me",
            card=card,
            count=luck.choice((1, 1, 2)),
            vram_gb=gb,
            session_limit_s=luck.choice((2, 4, 12)) * HOUR,
            start_delay_s=luck.choice((0.0, 60.0, 300.0)),
            rate=luck.choice((1.0, 1.0, 0.5, 1.6)),
            pool="gpu",
        )
        for card, gb in cards[: luck.choice((1, 2))]
    )
    return Platform(
        name=name,
        capabilities=Capabilities(max_concurrent=luck.choice((1, 1, 2))),
        offers=offers,
        pools=(Pool(name="gpu", window=_window(luck)),),
        loss_per_h=luck.choice((0.0, 0.02, 0.1)),
        grant=luck.choice((1.0, 0.7)),
        exposure_s=luck.choice((math.inf, 72 * HOUR)),
        queue_s=luck.choice((0.0, 600.0)),
    )


def any_world(seed: int) -> World:
    """Two to five platforms with quotas of all kinds, and up to 25 jobs, most of which have to wait for long."""
    luck = random.Random(f"savings:{seed}")
    platforms = tuple(_platform(f"p{at}", luck) for at in range(luck.randint(2, 5)))
    jobs = []
    for at in range(luck.randint(3, 25)):
        work = min(40.0, max(0.05, math.exp(luck.gauss(0.7, 1.2)))) * HOUR
        named: dict[str, Any] = {}
        if luck.random() < 0.2:
            listed = tuple(Accelerator(card=card) for card in luck.sample(("T4", "L4", "A100"), 2))
            named = {"accelerators": listed, "ordered": luck.random() < 0.5}
        if luck.random() < 0.15:
            named["platforms"] = ("p0", "p1")
        arrives = NOW + timedelta(hours=0 if luck.random() < 0.6 else luck.uniform(0, 100))
        jobs.append(
            Job(
                id=f"j{at}",
                needs=Needs(
                    vram_gb=luck.choice((0, 5, 12, 16, 24, 39)),
                    workload=luck.choice(("general", "train-amp-cnn", "llm-decode")),
                    **named,
                ),
                work_s=work,
                estimate=None
                if luck.random() < 0.2
                else Estimate(seconds=work * luck.choice((0.5, 1.0, 2.0)), card="T4"),
                arrives=arrives,
                priority=luck.choice((0, 0, 0, 10, -20)),
                deadline=arrives + timedelta(seconds=luck.uniform(0.5, 8) * work)
                if luck.random() < 0.3
                else None,
                grace_s=luck.choice((60.0, 120.0, 120.0, 900.0)),
            )
        )
    return World(
        platforms=platforms,
        jobs=tuple(jobs),
        begin=NOW,
        goal="makespan" if seed % 4 == 3 else "jct",
        horizon_s=21 * DAY,
    )


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_forecasts_come_out_as_without_short_cuts(first: int) -> None:
    """The whole result of a run: every stay, session, window, refusal and figure."""
    sessions = 0
    for seed in range(first, first + 8):
        world = any_world(seed)
        result = run(world, seed)
        assert repr(result) == repr(run(world, seed, plainly)), seed
        sessions += len(result.sessions)
    assert sessions > 50

"""A long queue and a hundred places, as different from each other as they can be, drawn from a seed."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta

from freegpu import cards
from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator.model import (
    Balance,
    Figures,
    FigureSource,
    FreeSlot,
    Learned,
    Place,
    Running,
    Snapshot,
    Waiting,
)

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
HOUR = 3600.0
CARDS = ("T4", "P100", "V100", "L4", "A10G", "A100", "L40S", "RTX3060", "RTX2060", "M4000", "CPU")
WINDOWS = tuple(WindowKind)


def snapshot(jobs: int, places: int, *, seed: int = 1) -> Snapshot:
    """Of ten jobs one has needs that no other of them has, one fits nowhere, three have a deadline; half of the places
    have a session open, a tenth is closed, a tenth wants a click."""
    luck = random.Random(f"crowd:{seed}")
    given = tuple(_place(luck, index) for index in range(places))
    wanted = [needs(luck, places) for _ in range(max(1, jobs // 10))]
    offers = [offer for place in given for offer in place.offers]
    return Snapshot(
        waiting=tuple(job(luck, seq, luck.choice(wanted)) for seq in range(jobs)),
        free_slots=tuple(
            FreeSlot(session=f"free-{at}", slot=0, offer=offer, left_s=luck.uniform(60, 12 * HOUR))
            for at, offer in enumerate(luck.sample(offers, len(offers) // 10))
        ),
        places=given,
        running=tuple(
            Running(
                job=job(luck, jobs + at, luck.choice(wanted)),
                session=f"busy-{at}",
                slot=0,
                offer=offer,
                held_s=luck.uniform(0, 6 * HOUR),
                left_s=luck.uniform(60, 12 * HOUR),
            )
            for at, offer in enumerate(luck.sample(offers, len(offers) // 2))
        ),
        lately=tuple(wanted[:200]),
        came=jobs,
    )


def needs(luck: random.Random, places: int) -> Needs:
    """What a job may ask for; of twenty one asks for more than there is."""
    named = luck.sample(CARDS[:-1], luck.choice((0, 0, 0, 1, 2, 3)))
    names = [f"platform-{index:03}" for index in range(places)]
    return Needs(
        accelerators=tuple(Accelerator(card=card) for card in named),
        ordered=luck.random() < 0.5,
        vram_gb=200.0 if luck.random() < 0.05 else float(luck.randrange(0, 24)),
        memory_gb=luck.choice((0.0, 0.0, 0.0, 8.0, 12.0, 29.0)),
        cpus=luck.choice((0.0, 0.0, 2.0, 4.0)),
        disk_gb=luck.choice((0.0, 0.0, 20.0, 50.0)),
        platforms=tuple(luck.sample(names, min(places, 5))) if luck.random() < 0.1 else (),
        workload=luck.choice(cards.WORKLOADS),
        precision="bf16" if luck.random() < 0.05 else "any",
    )


def job(luck: random.Random, seq: int, wanted: Needs) -> Waiting:
    """A job that waits, or would."""
    told = None
    if luck.random() < 0.7:
        told = Estimate(seconds=60 * math.exp(luck.gauss(4.5, 1.5)), card=luck.choice(CARDS[:-1]))
    return Waiting(
        id=f"j{seq:06}",
        seq=seq,
        name=f"job-{seq}",
        needs=wanted,
        estimate=told,
        priority=luck.choice((-20, -10, 0, 0, 0, 0, 10, 20)),
        deadline=NOW + timedelta(hours=luck.uniform(-10, 400)) if luck.random() < 0.3 else None,
        created_at=NOW - timedelta(hours=luck.uniform(0, 400)),
        remaining=luck.choice((1.0, 1.0, 1.0, 0.5, 0.1)),
        grace_s=luck.choice((30.0, 120.0, 120.0, 120.0, 300.0)),
        avoid={"platform-001": "it was lost there"} if luck.random() < 0.02 else {},
        save_s=luck.choice((None, 10.0, 60.0)),
    )


def _place(luck: random.Random, index: int) -> Place:
    name = f"platform-{index:03}"
    most = luck.choice((1, 1, 2, 4))
    offers = tuple(_offer(luck, name) for _ in range(luck.choice((1, 1, 1, 2, 3))))
    kind = WINDOWS[index % len(WINDOWS)]
    limit = None if kind is WindowKind.NONE else luck.choice((4, 20, 30, 100)) * HOUR
    balance = Balance(
        platform=name,
        account="me",
        pool="gpu",
        window=Window(kind=kind, limit_s=limit, period_s=luck.choice((1, 7)) * 24 * HOUR),
        limit_s=limit,
        used_s=luck.random() * (limit or 0.0),
        reserved_s=luck.choice((0.0, 0.0, HOUR)),
        resets_at=NOW + timedelta(hours=luck.uniform(1, 168)),
        source=FigureSource.LEDGER,
    )
    return Place(
        platform=name,
        account="me",
        capabilities=Capabilities(
            max_concurrent=most, attended=index % 10 == 3, max_session_s=12 * HOUR
        ),
        offers=offers,
        open_sessions=luck.randrange(most + 1),
        balances=(balance,),
        blocked_until=NOW + timedelta(hours=1) if index % 10 == 7 else None,
        blocked_why="it refused a session" if index % 10 == 7 else "",
        learned={"gpu": _figures(luck)} if index % 5 == 0 else {},
        losses=float(luck.randrange(5)),
        exposure_s=luck.uniform(0, 300) * HOUR,
        archs={"": ("sm_75", "sm_80", "sm_86", "sm_90")} if index % 7 == 0 else {},
    )


def _offer(luck: random.Random, platform: str) -> Offer:
    card = luck.choice(CARDS)
    facts = cards.find(card)
    return Offer(
        platform=platform,
        account="me",
        card=card,
        count=luck.choice((1, 1, 2, 4)),
        vram_gb=facts.vram_gb if facts else 0.0,
        memory_gb=float(luck.randrange(0, 64)),
        cpus=float(luck.randrange(0, 9)),
        disk_gb=float(luck.randrange(0, 200)),
        session_limit_s=luck.choice((4, 6, 9, 12)) * HOUR,
        start_delay_s=luck.uniform(10, 400),
        pool="gpu",
        rate=luck.choice((1.0, 1.0, 0.5, 2.0)),
    )


def _figures(luck: random.Random) -> Figures:
    usual = luck.uniform(2, 10) * HOUR
    return Figures(
        session=Learned(
            low_s=0.5 * usual,
            median_s=usual,
            high_s=1.5 * usual,
            longest_s=2 * usual,
            seen=9,
            observed=6,
            age_s=HOUR,
            text="as seen",
        )
    )

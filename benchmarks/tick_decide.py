"""How long one decision takes with a long queue: 10,000 waiting jobs, 100 offers.

    python benchmarks/tick_decide.py [--runs N] [--most SECONDS]

Prints the medians for several queues as JSON; exits with 1 when one takes more CPU than --most seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from datetime import UTC, datetime, timedelta

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator.model import Balance, FigureSource, Place, Snapshot, Waiting
from freegpu.orchestrator.placement import decide

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
CARDS = ("T4", "P100", "V100", "L4", "A10G", "A100", "RTX3060", "CPU")


def places(rng: random.Random, count: int) -> tuple[Place, ...]:
    """`count` platforms with one offer each, two slots at most."""
    found = []
    for index in range(count):
        name, card = f"platform-{index:03}", rng.choice(CARDS)
        window = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=108000)
        offer = Offer(
            platform=name,
            account="me",
            card=card,
            count=rng.choice((1, 2)),
            session_limit_s=rng.choice((14400.0, 43200.0)),
            start_delay_s=120,
            pool="gpu",
        )
        balance = Balance(
            platform=name,
            account="me",
            pool="gpu",
            window=window,
            limit_s=108000,
            used_s=rng.randrange(100000),
            reserved_s=0,
            resets_at=NOW + timedelta(hours=rng.randrange(1, 168)),
            source=FigureSource.LEDGER,
        )
        capabilities = Capabilities(max_concurrent=rng.choice((1, 2)))
        found.append(
            Place(
                platform=name,
                account="me",
                capabilities=capabilities,
                offers=(offer,),
                open_sessions=0,
                balances=(balance,),
            )
        )
    return tuple(found)


def queue(rng: random.Random, count: int, kind: str) -> tuple[Waiting, ...]:
    """Equal jobs; 200 kinds of jobs, each of its own length; jobs that fit nowhere."""
    variants = []
    for index in range(200):
        named = tuple(Accelerator(card=card) for card in rng.sample(CARDS[:-1], index % 4))
        variants.append(
            Needs(accelerators=named, vram_gb=rng.randrange(0, 16), ordered=bool(index % 2))
        )
    jobs = []
    for seq in range(count):
        needs, estimate, deadline = Needs(accelerators=(Accelerator(card="T4"),)), None, None
        if kind == "200 kinds":
            needs = rng.choice(variants)
            estimate = Estimate(seconds=rng.randrange(600, 200000), card=rng.choice(CARDS))
            deadline = NOW + timedelta(hours=rng.randrange(1, 400)) if seq % 3 == 0 else None
        elif kind == "fits nowhere":
            needs = Needs(accelerators=(Accelerator(card="H100"),), vram_gb=1 + seq % 80)
        jobs.append(
            Waiting(
                id=f"j{seq:05}",
                seq=seq,
                name="bench",
                needs=needs,
                estimate=estimate,
                priority=rng.randrange(-2, 3),
                deadline=deadline,
                created_at=NOW,
            )
        )
    return tuple(jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--offers", type=int, default=100)
    parser.add_argument("--most", type=float, default=0.3, help="CPU seconds a decision may take")
    options = parser.parse_args()
    rng = random.Random(1)
    offered = places(rng, options.offers)
    report = {}
    for kind in ("all equal", "200 kinds", "fits nowhere"):
        snapshot = Snapshot(waiting=queue(rng, options.jobs, kind), places=offered)
        times, busy, actions = [], [], 0
        for _ in range(options.runs):
            start, cpu = time.perf_counter(), time.process_time()
            actions = len(decide(snapshot, NOW))
            times.append(time.perf_counter() - start)
            busy.append(time.process_time() - cpu)
        report[kind] = {
            "median_s": round(statistics.median(times), 4),
            "median_cpu_s": round(statistics.median(busy), 4),
            "actions": actions,
        }
    print(json.dumps(report, indent=1))
    return int(any(row["median_cpu_s"] > options.most for row in report.values()))


if __name__ == "__main__":
    sys.exit(main())

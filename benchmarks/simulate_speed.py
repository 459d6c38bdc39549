"""How fast a queue is run forward: simulated hours a second of CPU, with the real decision at each event.

    python benchmarks/simulate_speed.py [--jobs 100] [--weeks 4] [--seeds 5] [--runs 3] [--least HOURS]

Seven free platforms and the jobs of placement_lab/scenario.py, once arriving over the weeks and once all waiting at the
start, as `freegpu simulate` meets them. Prints the median of the seeds, and how many decisions were made; with --least it
exits with 1 if a median is lower.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import dataclass, replace
from datetime import timedelta

from placement_lab import scenario

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.orchestrator.forecast import Platform, Pool, World, run

HOUR, WEEK_S = 3600.0, 7 * 86400.0
FIRST_SEED = 400
#: a notebook with 4 h of a T4 a day, in one session
NOTEBOOK = Platform(
    name="notebook",
    capabilities=Capabilities(max_session_s=4 * HOUR),
    offers=(
        Offer(
            platform="notebook",
            account="me",
            card="T4",
            vram_gb=16,
            session_limit_s=4 * HOUR,
            start_delay_s=240.0,
            pool="gpu",
        ),
    ),
    pools=(
        Pool(
            name="gpu",
            window=Window(kind=WindowKind.ROLLING, limit_s=4 * HOUR, period_s=24 * HOUR),
        ),
    ),
    loss_per_h=0.02,
    grant=0.5,
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run."""

    hours: float
    decisions: int
    sessions: int
    cpu_s: float


def world(seed: int, jobs: int, weeks: float, *, at_once: bool) -> World:
    """The scenario's queue of so many jobs, on its six platforms and the notebook."""
    drawn = scenario.world(seed, jobs / scenario.JOBS)
    luck = random.Random(f"speed:{seed}")
    arrivals = [0.0 if at_once else luck.uniform(0, weeks * WEEK_S) for _ in drawn.jobs]
    moved = tuple(
        replace(
            job,
            arrives=(arrives := drawn.begin + timedelta(seconds=round(late))),
            deadline=None
            if job.deadline is None or job.arrives is None
            else arrives + (job.deadline - job.arrives),
        )
        for job, late in zip(drawn.jobs, arrivals, strict=True)
    )
    return replace(drawn, platforms=(*drawn.platforms, NOTEBOOK), jobs=moved)


def measure(seed: int, jobs: int, weeks: float, runs: int, *, at_once: bool) -> Figures:
    """Run it so many times; the least CPU counts, for what others do on the machine only adds to it."""
    given = world(seed, jobs, weeks, at_once=at_once)
    spent = []
    for _ in range(runs):
        begin = time.process_time()
        result = run(given, seed)
        spent.append(time.process_time() - begin)
    return Figures(result.span_s / HOUR, result.decisions, len(result.sessions), min(spent))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--weeks", type=float, default=4.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3, help="of each queue; the quickest counts")
    parser.add_argument("--least", type=float, default=0.0, help="simulated hours a second")
    options = parser.parse_args()
    slow = False
    print("| queue | simulated h/s | range | simulated h | decisions | sessions | ms a decision |")
    print("|---|---|---|---|---|---|---|")
    for at_once, label in ((False, f"over {options.weeks:g} weeks"), (True, "all at once")):
        found = [
            measure(seed, options.jobs, options.weeks, options.runs, at_once=at_once)
            for seed in range(FIRST_SEED, FIRST_SEED + options.seeds)
        ]
        paces = [one.hours / one.cpu_s for one in found]
        middle = statistics.median(paces)
        slow = slow or middle < options.least
        cost = 1e3 * statistics.median(one.cpu_s / one.decisions for one in found)
        cells = (
            f"{options.jobs} jobs, {label}",
            f"{middle:.0f}",
            f"{min(paces):.0f}-{max(paces):.0f}",
            f"{statistics.median(one.hours for one in found):.0f}",
            f"{statistics.median(one.decisions for one in found):.0f}",
            f"{statistics.median(one.sessions for one in found):.0f}",
            f"{cost:.2f}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())

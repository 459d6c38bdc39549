"""How long one decision takes with a long queue: 1,000, 10,000 and 100,000 waiting jobs, 100 places.

    python benchmarks/tick_decide.py [--jobs 1000,10000,100000] [--places 100] [--runs 5] [--most SECONDS]

The queue is as varied as in placement_lab/crowd.py, or all equal, or fits nowhere. CPU seconds: of the first decision of a
process, and the median of the following ones, which remember what fits what. The growth from one size to the next is set
against that of n log n. Exits with 1 if the median over 10,000 jobs is more than --most.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from placement_lab import crowd

from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator import fitting, spots
from freegpu.orchestrator.model import Snapshot
from freegpu.orchestrator.placement import decide


@dataclass(frozen=True, slots=True)
class Figures:
    """One queue."""

    jobs: int
    first_s: float
    usual_s: float
    actions: int


def varied(given: Snapshot) -> Snapshot:
    return given


def all_equal(given: Snapshot) -> Snapshot:
    """A matrix: one need, one length."""
    needs, estimate = Needs(accelerators=(Accelerator(card="T4"),)), Estimate(seconds=7200)
    alike = tuple(replace(job, needs=needs, estimate=estimate, avoid={}) for job in given.waiting)
    return replace(given, waiting=alike)


def fits_nowhere(given: Snapshot) -> Snapshot:
    """All of it has to be looked at, and nothing ends the search."""
    needs = [Needs(accelerators=(Accelerator(card="H100"),), vram_gb=1 + at) for at in range(80)]
    waiting = [replace(job, needs=needs[job.seq % 80]) for job in given.waiting]
    return replace(given, waiting=tuple(waiting))


QUEUES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "varied": varied,
    "all equal": all_equal,
    "fits nowhere": fits_nowhere,
}


def forget() -> None:
    """As in a process that has just begun."""
    for known in (fitting._fitting, fitting._found, spots.misfit, spots._kind):
        known.cache_clear()


def fresh(snapshot: Snapshot) -> Snapshot:
    """The same with jobs that nothing was worked out of: a tick reads them anew."""
    return replace(snapshot, waiting=tuple(replace(job) for job in snapshot.waiting))


def measure(snapshot: Snapshot, runs: int) -> Figures:
    """CPU seconds of `runs` decisions after a first one."""
    forget()
    times, actions = [], 0
    for _ in range(runs + 1):
        given = fresh(snapshot)
        gc.collect()
        begin = time.process_time()
        actions = len(decide(given, crowd.NOW))
        times.append(time.process_time() - begin)
    return Figures(len(snapshot.waiting), times[0], statistics.median(times[1:]), actions)


def growth(before: Figures | None, now: Figures) -> str:
    """t(m) / t(n), and the same of n log n."""
    if before is None:
        return ""
    grown = now.usual_s / before.usual_s
    ideal = now.jobs * math.log(now.jobs) / (before.jobs * math.log(before.jobs))
    return f"{grown:.1f} (n log n: {ideal:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="1000,10000,100000")
    parser.add_argument("--places", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5, help="fewer from 50,000 jobs on")
    parser.add_argument("--most", type=float, default=0.5, help="CPU seconds, with 10,000 jobs")
    options = parser.parse_args()
    slow = False
    sizes = sorted(int(part) for part in options.jobs.split(","))
    crowds = {jobs: crowd.snapshot(jobs, options.places) for jobs in sizes}
    print("| queue | jobs | places | first s | usual s | growth | actions |")
    print("|---|---|---|---|---|---|---|")
    for name, make in QUEUES.items():
        before: Figures | None = None
        for jobs in sizes:
            runs = options.runs if jobs < 50_000 else max(1, options.runs // 3)
            found = measure(make(crowds[jobs]), runs)
            cells = (
                f"{name} | {jobs} | {options.places} | {found.first_s:.3f} | {found.usual_s:.3f}",
                growth(before, found),
                str(found.actions),
            )
            print("| " + " | ".join(cells) + " |", flush=True)
            slow = slow or (jobs == 10_000 and found.usual_s > options.most)
            before = found
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())

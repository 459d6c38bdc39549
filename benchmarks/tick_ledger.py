"""How long a tick is busy with a long queue in the ledger: 10,000 pending jobs, 100 places.

    python benchmarks/tick_ledger.py [--jobs 10000] [--places 100] [--runs 5] [--most SECONDS]

The jobs of placement_lab/crowd.py in a new SQLite ledger, a tenth of them cells of matrices whose speed was noted. CPU seconds
of what a tick walks through: reading the snapshot, and deciding. The first tick of a process, and the median of the following
ones. What platforms and the store take to answer is left out, as is carrying out what was decided. Exits with 1 if the median
takes more than --most.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from placement_lab import crowd

from freegpu import config
from freegpu.agent.stores.folder import FolderStore
from freegpu.jobs.model import Checkpointing, JobSpec
from freegpu.orchestrator.act import Identity
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import NewJob, Place
from freegpu.orchestrator.placement import decide
from freegpu.orchestrator.reconcile import Reconciler

#: cells of a matrix
CELLS = 100


class Stopped:
    """A clock that stands."""

    def time(self) -> float:
        return crowd.NOW.timestamp()

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise RuntimeError("nothing here waits")


def fill(ledger: Ledger, jobs: int, places: int) -> None:
    """Submit the queue."""
    luck = random.Random("ledger")
    waiting = crowd.snapshot(jobs, places).waiting
    new = []
    for at, job in enumerate(waiting):
        matrix = at // CELLS if at < jobs // 10 else None
        first = waiting[at - at % CELLS] if matrix is not None else job
        spec = JobSpec(
            name=f"sweep-{matrix}-{at % CELLS}" if matrix is not None else job.name,
            run="python train.py --epochs 40 --out $FREEGPU_OUTPUT_DIR",
            setup="pip install -q -r requirements.txt",
            envs={"LR": f"{at * 1e-5:g}", "SEED": str(at)},
            needs=first.needs,
            estimate=job.estimate,
            priority=job.priority,
            deadline=job.deadline,
            checkpoint=Checkpointing(grace_s=job.grace_s),
            cell={"LR": f"{at * 1e-5:g}"} if matrix is not None else {},
        )
        bundle = f"{matrix if matrix is not None else 1000 + at % 300:064x}"
        new.append(NewJob(spec=spec, bundle=bundle))
    added = ledger.add_jobs(new, why="benchmark")
    for cell in range(0, jobs // 10, CELLS // 2):
        for card in ("T4", "L4"):
            ledger.note_speed(
                job=added[cell].id,
                card=card,
                workload=added[cell].spec.needs.workload,
                steps_per_s=luck.uniform(1, 5),
                at=crowd.NOW - timedelta(hours=1),
            )


def reconciler(ledger: Ledger, folder: Path) -> Reconciler:
    """Everything a tick needs, with no platform behind it."""
    home, store = folder / "home", folder / "store"
    home.mkdir()
    store.mkdir()
    return Reconciler(
        ledger=ledger,
        store=FolderStore(store, sync=False),
        adapters={},
        identity=Identity(
            home=home, home_id="h-bench", key="k", agent_path=home, agent_sha256="0" * 64
        ),
        settings=replace(config.load({}, home=home), store=f"folder:{store}"),
        now=lambda: crowd.NOW,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--places", type=int, default=100)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--most", type=float, default=0.5, help="CPU seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.open(str(Path(folder) / "state.db"), clock=Stopped())
        fill(ledger, options.jobs, options.places)
        places: tuple[Place, ...] = crowd.snapshot(1, options.places).places
        ticks = reconciler(ledger, Path(folder))
        read, decided, actions = [], [], 0
        for _ in range(options.runs + 1):
            gc.collect()
            begin = time.process_time()
            snapshot = ticks.snapshot(places=places)
            middle = time.process_time()
            actions = len(decide(snapshot, crowd.NOW))
            end = time.process_time()
            read.append(middle - begin)
            decided.append(end - middle)
        ledger.close()
    rows = (
        ("first", read[0], decided[0]),
        (
            "usual",
            statistics.median(read[1:]),
            statistics.median(decided[1:]),
        ),
    )
    print(f"{options.jobs} jobs in the ledger, {options.places} places, {actions} actions\n")
    print("| tick | reading s | deciding s | both s |\n|---|---|---|---|")
    for name, reading, deciding in rows:
        print(f"| {name} | {reading:.3f} | {deciding:.3f} | {reading + deciding:.3f} |")
    return int(rows[1][1] + rows[1][2] > options.most)


if __name__ == "__main__":
    sys.exit(main())

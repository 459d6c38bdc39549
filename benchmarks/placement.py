"""How soon jobs finish by freegpu's placement and by simple policies, against lower bounds that no schedule beats.

    python benchmarks/placement.py [--seeds 20] [--loads 0.5,0.9,1.4] [--policies fifo,freegpu] [--goal makespan]
        [--estimates-off 4] [--losses 2] [--bounds FILE] [--no-bounds] [--json]

The scenario is in placement_lab/scenario.py. All policies meet the same queues, platforms and luck; figures are means
over the seeds, ratios are taken seed by seed. Seeds begin at 200: constants were tuned on others. `--bounds` keeps the
bounds in a file, since they take longer than the runs. Needs scipy (the extra `dev`), but for --no-bounds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from placement_lab import scenario
from placement_lab.baselines import POLICIES

from freegpu.orchestrator.forecast import Result, World, run

HOUR = 3600.0
FIRST_SEED = 200


@dataclass(frozen=True, slots=True)
class Figures:
    """One run."""

    makespan_h: float
    mean_h: float
    weighted_h: float
    p95_h: float
    deadlines: float
    expiring: float
    sessions: int
    refusals: int
    moves: int
    lost_h: float
    unfinished: int
    simulated_h: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """One policy at one load, means over the seeds."""

    load: float
    policy: str
    makespan_by_bound: float | None
    mean_by_bound: float | None
    mean_h: float
    #: half of the 95 % range of the mean
    mean_h_pm: float
    by_fifo: float | None
    weighted_h: float
    p95_h: float
    deadlines_pct: float
    expiring_pct: float
    sessions: float
    moves: float
    lost_h: float
    unfinished: int
    hours_a_second: float


def measure(world: World, seed: int, policy: str) -> Figures:
    """Run one policy over one world."""
    begin = time.process_time()
    result = run(world, seed, POLICIES[policy]())
    wall = time.process_time() - begin
    # a job that never finished counts as if it did at the end
    took = {
        job.id: min(
            result.outcomes[job.id].took_s,
            (result.end - result.outcomes[job.id].arrived).total_seconds(),
        )
        / HOUR
        for job in world.jobs
    }
    weight = {job.id: 2.0 ** (job.priority / 10) for job in world.jobs}
    ordered = sorted(took.values())
    due = [job for job in world.jobs if job.deadline is not None]
    met = sum(_met(result, job.id, job.deadline) for job in due)
    windows = [w for w in result.windows if w.wanted and w.limit_s > 0]
    used, limit = sum(w.used_s for w in windows), sum(w.limit_s for w in windows)
    return Figures(
        makespan_h=result.span_s / HOUR,
        mean_h=statistics.fmean(ordered),
        weighted_h=sum(took[name] * weight[name] for name in took) / sum(weight.values()),
        p95_h=ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))],
        deadlines=met / len(due) if due else 1.0,
        expiring=used / limit if limit else 1.0,
        sessions=len(result.sessions),
        refusals=result.refusals,
        moves=result.moves,
        lost_h=sum(o.lost_s for o in result.outcomes.values()) / HOUR,
        unfinished=sum(o.finished is None for o in result.outcomes.values()),
        simulated_h=result.span_s / HOUR,
        wall_s=wall,
    )


def _met(result: Result, job: str, deadline: object) -> bool:
    finished = result.outcomes[job].finished
    return finished is not None and finished <= deadline  # type: ignore[operator]


class Kept:
    """Lower bounds, (makespan, mean completion) in hours, kept in a file if one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path and path.exists() else "{}"
        self.known: dict[str, tuple[float, float]] = json.loads(text)
        lab = Path(__file__).with_name("placement_lab")
        text = "".join((lab / f"{n}.py").read_text("utf-8") for n in ("scenario", "bound"))
        self.digest = hashlib.sha256(text.encode()).hexdigest()[:12]

    def of(self, world: World, seed: int, load: float) -> tuple[float, float]:
        key = f"{self.digest} {seed} {load}"
        if key not in self.known:
            from placement_lab.bound import Bounds

            bounds = Bounds(world)
            least = bounds.makespan()
            self.known[key] = (least, bounds.completion(2.5 * least + 200))
            if self.path:
                self.path.write_text(json.dumps(self.known), encoding="utf-8")
        return self.known[key]


def row(
    load: float,
    policy: str,
    found: list[Figures],
    fifo: list[Figures] | None,
    bounds: list[tuple[float, float]] | None,
) -> Row:
    """Means over the seeds."""

    def mean(values: list[float]) -> float:
        return statistics.fmean(values)

    spread = statistics.stdev(f.mean_h for f in found) if len(found) > 1 else 0.0
    return Row(
        load=load,
        policy=policy,
        makespan_by_bound=mean([f.makespan_h / b[0] for f, b in zip(found, bounds, strict=True)])
        if bounds
        else None,
        mean_by_bound=mean([f.mean_h / b[1] for f, b in zip(found, bounds, strict=True)])
        if bounds
        else None,
        mean_h=mean([f.mean_h for f in found]),
        mean_h_pm=1.96 * spread / len(found) ** 0.5,
        by_fifo=mean([f.mean_h / first.mean_h for f, first in zip(found, fifo, strict=True)])
        if fifo
        else None,
        weighted_h=mean([f.weighted_h for f in found]),
        p95_h=mean([f.p95_h for f in found]),
        deadlines_pct=100 * mean([f.deadlines for f in found]),
        expiring_pct=100 * mean([f.expiring for f in found]),
        sessions=mean([float(f.sessions) for f in found]),
        moves=mean([float(f.moves) for f in found]),
        lost_h=mean([f.lost_h for f in found]),
        unfinished=sum(f.unfinished for f in found),
        hours_a_second=sum(f.simulated_h for f in found) / max(1e-9, sum(f.wall_s for f in found)),
    )


HEAD = (
    "| load | policy | makespan / bound | mean completion / bound | mean completion h | of FIFO's | weighted h | p95 h "
    "| deadlines met | expiring quota used | sessions | moves | work lost h | unfinished | simulated h/s |"
)


def line(row: Row) -> str:
    """A row of the table."""

    def maybe(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    cells = (
        f"{row.load:g}",
        row.policy,
        maybe(row.makespan_by_bound),
        maybe(row.mean_by_bound),
        f"{row.mean_h:.1f} ±{row.mean_h_pm:.1f}",
        maybe(row.by_fifo),
        f"{row.weighted_h:.1f}",
        f"{row.p95_h:.0f}",
        f"{row.deadlines_pct:.0f} %",
        f"{row.expiring_pct:.0f} %",
        f"{row.sessions:.0f}",
        f"{row.moves:.0f}",
        f"{row.lost_h:.1f}",
        str(row.unfinished),
        f"{row.hours_a_second:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def seeds(text: str) -> list[int]:
    """20: so many from the first on; 0-15: these."""
    first, dash, last = text.partition("-")
    if dash:
        return list(range(int(first), int(last) + 1))
    return list(range(FIRST_SEED, FIRST_SEED + int(first)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=seeds("20"), help="20, or 0-15")
    parser.add_argument("--loads", default="0.5,0.9,1.4")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--goal", choices=("jct", "makespan"), default="jct")
    parser.add_argument("--estimates-off", type=float, default=0.0)
    parser.add_argument("--losses", type=float, default=1.0)
    parser.add_argument("--bounds", type=Path, help="keep the bounds in this file")
    parser.add_argument("--no-bounds", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    policies = options.policies.split(",")
    if unknown := [name for name in policies if name not in POLICIES]:
        parser.error(f"no such policy: {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    kept, rows = Kept(options.bounds), []
    for load in (float(part) for part in options.loads.split(",")):
        worlds = [
            scenario.world(
                seed,
                load,
                goal=options.goal,
                estimates_off=options.estimates_off,
                losses=options.losses,
            )
            for seed in options.seeds
        ]
        pairs = list(zip(options.seeds, worlds, strict=True))
        bounds = None
        if not options.no_bounds:
            bounds = [kept.of(world, seed, load) for seed, world in pairs]
        if not options.json:
            jobs = statistics.fmean(len(world.jobs) for world in worlds)
            least = ""
            if bounds:
                first, second = (statistics.fmean(b[i] for b in bounds) for i in (0, 1))
                least = f", bounds: makespan {first:.0f} h, mean completion {second:.1f} h"
            print(f"\nload {load:g}: {len(worlds)} seeds, {jobs:.0f} jobs{least}\n\n{HEAD}")
            print("|" + "---|" * (HEAD.count("|") - 1))
        fifo: list[Figures] | None = None
        for policy in policies:
            found = [measure(world, seed, policy) for seed, world in pairs]
            fifo = found if policy == "fifo" else fifo
            rows.append(row(load, policy, found, fifo, bounds))
            if not options.json:
                print(line(rows[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(one) for one in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A matrix out of the ledger as a table: which jobs belong to it, what they came to, and how quickly it is told."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.errors import JobNotFoundError
from freegpu.jobs.lifecycle import EndReason
from freegpu.jobs.model import JobSpec
from freegpu.orchestrator import card_views, matrix_results
from freegpu.orchestrator.model import Job, NewJob, Progress

if TYPE_CHECKING:
    Bench = Any


def submit(bench: Bench, *cells: tuple[str, str], name: str = "sweep") -> list[Job]:
    """The cells (learning rate, seed) of a matrix."""
    specs = [
        JobSpec(
            name=f"{name}-lr{lr}-seed{seed}", run="python train.py", cell={"LR": lr, "SEED": seed}
        )
        for lr, seed in cells
    ]
    jobs: list[Job] = bench.ledger.add_jobs([NewJob(spec=spec) for spec in specs], why="submitted")
    return jobs


def test_each_cell_is_told_with_its_parameters_its_seconds_and_its_last_figures(
    bench: Bench,
) -> None:
    """Over two attempts on different cards: the last card, the seconds of both, the last figures."""
    first, second = submit(bench, ("1e-3", "0"), ("1e-4", "0"))
    bench.submit("sweeper", "sweep-and-more")
    _, (attempt,) = bench.plan(first)
    bench.end(attempt, EndReason.LOST, run_s=60.0)
    _, (again,) = bench.plan(first, offer=bench.offer(card="L4"))
    told = {"step": 30, "total": 40, "rate": 2.0, "loss": 0.25, "phase": "eval"}
    progress = Progress(step=30.0, total=40.0, values=told)
    bench.ledger.note_attempt(again.id, progress=progress, started_at=bench.now)
    found = matrix_results.collect(bench.ledger, "sweep", bench.now + timedelta(seconds=15))
    assert (found.name, found.params, found.superseded) == ("sweep", ("LR", "SEED"), 0)
    assert set(found.metrics) == {"loss", "phase"}
    one, other = found.cells
    assert (one.job, one.platform, one.card, one.seconds) == (first.id, "kaggle", "L4", 75.0)
    assert (one.params, one.step, one.total) == ({"LR": "1e-3", "SEED": "0"}, 30.0, 40.0)
    assert one.metrics == {"loss": 0.25, "phase": "eval"}
    assert (other.job, other.state, other.card, other.seconds) == (second.id, "pending", "", 0.0)
    for name in (first.id, first.name):
        assert matrix_results.collect(bench.ledger, name, bench.now).name == "sweep"


def test_a_cell_that_was_submitted_again_counts_once(bench: Bench) -> None:
    """As it was last; the earlier ones are counted, and told where everything is asked for."""
    submit(bench, ("1e-3", "0"), ("1e-4", "0"))
    (newer,) = submit(bench, ("1e-3", "0"))
    found = matrix_results.collect(bench.ledger, "sweep", bench.now)
    assert newer.id in [cell.job for cell in found.cells]
    assert (len(found.cells), found.superseded) == (2, 1)
    everything = matrix_results.collect(bench.ledger, "sweep", bench.now, everything=True)
    assert (len(everything.cells), everything.superseded) == (3, 0)


@pytest.mark.parametrize("name", ["nothing", "", "%", "swee", "sweep-"])
def test_what_is_no_matrix_and_no_job_is_told(bench: Bench, name: str) -> None:
    """Half a name is no name; a percent sign is no pattern."""
    submit(bench, ("1e-3", "0"), ("1e-4", "0"))
    with pytest.raises(JobNotFoundError, match="there is no matrix or job"):
        matrix_results.collect(bench.ledger, name, bench.now)


def test_a_matrix_of_500_jobs_is_told_in_well_under_a_second(sqlite_bench: Bench) -> None:
    """Among other jobs, each with an attempt and figures."""
    bench = sqlite_bench
    jobs = submit(bench, *((str(lr), str(seed)) for lr in range(50) for seed in range(10)))
    bench.submit(*(f"other-{at}" for at in range(500)))
    for job in jobs[:100]:
        _, (attempt,) = bench.plan(job)
        bench.ledger.note_attempt(attempt.id, progress=Progress(step=1.0, values={"loss": 0.5}))
    began = time.perf_counter()
    found = matrix_results.collect(bench.ledger, "sweep", bench.now)
    took = time.perf_counter() - began
    print(f"500 cells in {took:.3f} s")
    assert len(found.cells) == 500
    assert took < 0.8


def test_a_card_is_told_with_what_own_jobs_did_on_it(bench: Bench) -> None:
    """Seconds a step, by the median of the last looks; and how it compares with a T4 where a job ran on both."""
    first, second = submit(bench, ("1e-3", "0"), ("1e-4", "0"))
    for job, card, rate in ((first, "T4", 2.0), (first, "L4", 5.0), (second, "L4", 4.0)):
        bench.ledger.note_speed(
            job=job.id, card=card, workload="general", steps_per_s=rate, at=bench.now
        )
    found = card_views.look(bench.ledger, "nvidia l4", "general")
    assert found.detail is not None
    assert {one.job: one.seconds_per_step for one in found.detail.own} == {
        first.id: pytest.approx(0.2),
        second.id: pytest.approx(0.25),
    }
    (line,) = found.cards
    assert (line.name, line.own_jobs) == ("L4", 1)
    assert line.own_speed == pytest.approx(2.5)
    table = {line.name: line for line in card_views.look(bench.ledger, None, "infer-int8").cards}
    assert table["L4"].own_speed is None
    assert table["V100"].public_runs == 1
    assert table["T4"].speed == 1.0

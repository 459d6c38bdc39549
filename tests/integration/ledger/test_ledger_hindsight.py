"""What would have saved more, out of a real ledger: intervals, expired quota, missed deadlines, cards that waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.adapters.base import Window, WindowKind
from freegpu.jobs.lifecycle import EndReason
from freegpu.jobs.model import Checkpointing, Needs
from freegpu.orchestrator import gpu_use, hindsight, retrospect
from freegpu.orchestrator.hindsight import Saving, Spare

if TYPE_CHECKING:
    Bench = Any

HOUR = 3600.0
MONDAY = datetime(2026, 12, 7, tzinfo=UTC)


def savings(bench: Bench, kind: str, spares: Sequence[Spare] = ()) -> list[Saving]:
    found = hindsight.look(bench.ledger, spares, bench.now - timedelta(weeks=2), bench.now)
    return [saving for saving in found if saving.kind == kind]


def interrupted(bench: Bench, job: Any, hours: float, lost: float, *, saved: bool) -> None:
    """An attempt that ran so long and lost so much at its end, hours."""
    _, (attempt,) = bench.plan(job)
    bench.ledger.note_attempt(attempt.id, started_at=bench.now)
    bench.clock.sleep(hours * HOUR)
    if saved:
        bench.ledger.note_attempt(attempt.id, saved_at=bench.now - timedelta(hours=lost))
    bench.end(attempt, EndReason.LOST, run_s=hours * HOUR, lost_s=lost * HOUR)
    bench.clock.sleep(1.0)


def test_a_shorter_interval_is_told_with_what_it_would_have_saved(bench: Bench) -> None:
    """Two losses in 10 h, 3 h of work: Young's sqrt(2 x 30 s x 5 h) is 17 min, of which half is lost each time."""
    (job,) = bench.submit("train", checkpoint=Checkpointing(every_s=2 * HOUR))
    interrupted(bench, job, 5.0, 1.8, saved=True)
    interrupted(bench, job, 5.0, 1.2, saved=True)
    (saving,) = savings(bench, hindsight.CHECKPOINT)
    best = 17 * 60.0
    more = 30.0 * 10 * HOUR * (1 / best - 1 / (2 * HOUR))
    assert saving.amount_s == pytest.approx(3 * HOUR - best - more)
    assert saving.sentence.startswith("train: a checkpoint every 17 min instead of 2 h would have")
    assert "(3 h were lost in 2 interruptions)" in saving.sentence
    assert hindsight.unknown([saving])[0].endswith("counted as 30 s")


def test_cells_of_a_matrix_count_together_and_one_that_saved_nothing_is_told_so(
    bench: Bench,
) -> None:
    """One line for the sweep; nothing that was saved means that all saves would have been new."""
    cells = [bench.submit(f"sweep-lr{lr}", cell={"LR": str(lr)})[0] for lr in (1, 2)]
    for cell in cells:
        interrupted(bench, cell, 4.0, 4.0, saved=False)
    (saving,) = savings(bench, hindsight.CHECKPOINT)
    assert saving.jobs == tuple(cell.id for cell in cells)
    assert saving.sentence.startswith("sweep saved nothing: a checkpoint every 15 min")
    assert saving.amount_s == pytest.approx(8 * HOUR - 15 * 60 - 30.0 * 8 * HOUR / 900)


@pytest.mark.parametrize(("every", "lost"), [(600.0, 0.15), (600.0, 3.0)])
def test_an_interval_that_is_short_enough_is_not_the_culprit(
    bench: Bench, every: float, lost: float
) -> None:
    """Below Young's interval more saves cost more than they bring, whatever was lost."""
    (job,) = bench.submit("train", checkpoint=Checkpointing(every_s=every))
    interrupted(bench, job, 10.0, lost, saved=True)
    assert savings(bench, hindsight.CHECKPOINT) == []


def test_quota_that_expired_while_jobs_waited_tells_the_line_that_kept_them_out(
    bench: Bench,
) -> None:
    """Jobs with one reason are one line; what they could have used is what expired, or what they waited."""
    ran = bench.submit("ran")[0]
    bench.plan(ran, offer=bench.offer(vram_gb=16.0))
    big = bench.submit("big", "bigger", needs=Needs(vram_gb=20))
    only = bench.submit("only", needs=Needs(platforms=("colab",)))
    fits = bench.submit("fits")
    bench.clock.now = (MONDAY - timedelta(hours=4)).timestamp()
    late = bench.submit("late", needs=Needs(vram_gb=20))
    bench.clock.now = (MONDAY + timedelta(hours=9)).timestamp()
    after = bench.submit("after", needs=Needs(vram_gb=20))
    spare = Spare("kaggle", "gpu", MONDAY, 8 * HOUR)
    found = {saving.jobs: saving for saving in savings(bench, hindsight.EXPIRED, [spare])}
    assert set(found) == {
        tuple(job.id for job in (*big, *late)),
        (only[0].id,),
        (fits[0].id,),
    }, "what came after the reset did not wait for it"
    assert after
    kept = found[tuple(job.id for job in (*big, *late))]
    assert kept.amount_s == 8 * HOUR
    assert kept.sentence == (
        "8 h of kaggle (gpu) expired Mon 7 Dec 00:00 UTC, while 3 jobs (big, bigger, late) waited"
        " 9 d 4 h in all: T4: needs 20 GB, the card has 16 GB (`vram: 16+` would let it in)"
    )
    assert "`platforms` allows only colab" in found[only[0].id,].sentence
    assert "is not in the ledger" in found[fits[0].id,].sentence
    little = [replace(spare, seconds=300.0)]
    assert savings(bench, hindsight.EXPIRED, little) == []


def test_a_job_that_came_after_another_did_not_wait_before_that_one_was_done(bench: Bench) -> None:
    """Its turn began when the other had succeeded; here it never did."""
    (first,) = bench.submit("first", needs=Needs(platforms=("colab",)))
    second = bench.submit("second", after=(first.id,), needs=Needs(vram_gb=20))
    bench.clock.now = (MONDAY + timedelta(hours=1)).timestamp()
    found = savings(bench, hindsight.EXPIRED, [Spare("kaggle", "gpu", MONDAY, 8 * HOUR)])
    assert [saving.jobs for saving in found] == [(first.id,)]
    assert second


def test_slots_that_stood_free_beside_jobs_that_fit_them_are_told(bench: Bench) -> None:
    """T4 x2 with one job for 3 h; two waited in hours 1 to 3, so the other slot could have run for two hours, not four."""
    (runs,) = bench.submit("runs")
    session, (attempt,) = bench.plan(runs, offer=bench.offer(count=2, vram_gb=16.0))
    bench.ledger.note_session(session.id, live_at=bench.now)
    bench.ledger.note_attempt(attempt.id, started_at=bench.now)
    bench.submit("big", needs=Needs(vram_gb=20))
    bench.submit("elsewhere", needs=Needs(platforms=("colab",)))
    bench.clock.sleep(HOUR)
    both = bench.submit("a", "b")
    bench.clock.sleep(2 * HOUR)
    (saving,) = savings(bench, hindsight.IDLE)
    assert saving.amount_s == pytest.approx(2 * HOUR, abs=1)
    assert saving.jobs == tuple(job.id for job in both)
    assert saving.sentence.startswith(
        "slots of open sessions on kaggle stood free for up to 2 h, while 2 jobs (a, b) waited"
    )
    bench.ledger.allocate(session.id, both[0].id, 1, why="at last")
    bench.clock.sleep(5 * HOUR)
    (same,) = savings(bench, hindsight.IDLE)
    assert same.amount_s == pytest.approx(2 * HOUR, abs=1), "a slot that is taken is not free"


def test_a_missed_deadline_says_by_how_much_and_how_long_the_job_had_waited(bench: Bench) -> None:
    """Done too late, still open, and met: two lines."""
    soon = bench.now + timedelta(hours=6)
    (late,) = bench.submit("late", deadline=soon)
    bench.submit("open", deadline=soon)
    (met,) = bench.submit("met", deadline=soon)
    bench.submit("calm", deadline=bench.now + timedelta(days=30))
    for job, waits, runs in ((met, 0.0, 2.0), (late, 3.0, 2.0)):
        bench.clock.sleep(waits * HOUR)
        _, (attempt,) = bench.plan(job)
        bench.ledger.note_attempt(attempt.id, started_at=bench.now)
        bench.clock.sleep(runs * HOUR)
        bench.ledger.accept_result(job.id, attempt.id, ("", ""), at=bench.now)
    bench.clock.sleep(HOUR)
    opened, done = savings(bench, hindsight.DEADLINE)
    assert done.sentence.startswith(
        "late missed its deadline (Wed 2 Dec 18:00 UTC) by 1 h; it had waited 5 h"
    )
    assert "it would have met it" in done.sentence
    assert done.amount_s == pytest.approx(HOUR, abs=1)
    assert (
        "open missed its deadline (Wed 2 Dec 18:00 UTC) and is pending 2 h later" in opened.sentence
    )


def test_the_report_holds_them_all_with_the_card_that_waited_for_data(bench: Bench) -> None:
    """(1 - use) x hours, with the CPUs beside the card; expired quota by its own windows."""
    (job,) = bench.submit("train")
    given = bench.offer(cpus=4.0, vram_gb=16.0)
    session, (attempt,) = bench.plan(job, offer=given, reserve_s=0.0)
    bench.submit("big", needs=Needs(vram_gb=20))
    bench.ledger.note_session(session.id, live_at=bench.now)
    bench.ledger.note_attempt(attempt.id, started_at=bench.now)
    beat: dict[str, Any] = {}
    for _ in range(12):
        slot = {"slot": 0, "attempt": attempt.id, "phase": "running"}
        told = {"gpu": [{"index": 0, "util": 30}], "slots": [slot]}
        beat = gpu_use.added(beat, told, session.offer)
    bench.ledger.note_session(session.id, beat=beat, beat_counter=1)
    bench.clock.now = (MONDAY + timedelta(hours=1)).timestamp()
    begun = bench.ledger.attempt(attempt.id).started_at
    assert begun is not None
    windows = {"kaggle": {"gpu": Window(kind=WindowKind.FIXED_WEEKLY, limit_s=30 * HOUR)}}
    found = retrospect.look_back(bench.ledger, windows, bench.now - timedelta(weeks=1), bench.now)
    hours = (bench.now - begun).total_seconds()
    data, expired = found.savings
    assert data.kind == hindsight.DATA
    assert data.amount_s == pytest.approx(0.7 * hours)
    assert found.wait_s == data.amount_s
    assert "30 % busy" in data.sentence
    assert "`num_workers=4`" in data.sentence
    assert (expired.kind, expired.amount_s) == (hindsight.EXPIRED, 30 * HOUR)
    assert expired.sentence.startswith(
        "30 h of kaggle (gpu) expired Mon 7 Dec 00:00 UTC, while big waited"
    )
    assert sum(line.expired_s or 0.0 for line in found.pools) == 30 * HOUR

"""Progress in the ledger becomes what waiting jobs know of their length; the same over SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from freegpu import cards
from freegpu.jobs.model import JobSpec, Needs
from freegpu.orchestrator import history
from freegpu.orchestrator.model import Job, NewJob, Progress

if TYPE_CHECKING:
    Bench = Any


def test_nothing_was_seen_of_a_new_home(bench: Bench) -> None:
    """Jobs that never ran leave estimates as they are."""
    bench.submit("a")
    assert history.book(bench.ledger) == (None, {})


def test_a_matrix_learns_from_its_first_cells(bench: Bench) -> None:
    """One ended, one runs: the third knows its steps and both rates, and another command knows nothing."""
    ended, runs, third = bench.submit("s-1", "s-2", "s-3", cell={"LR": "1"})
    (stranger,) = bench.submit("t", needs=Needs(workload="infer-int8"))
    _, (first,) = bench.plan(ended)
    bench.ledger.note_attempt(first.id, progress=Progress(step=500, total=1000))
    bench.ledger.note_speed(
        job=ended.id, card="T4", workload="general", steps_per_s=2.0, at=bench.now
    )
    _, (second,) = bench.plan(runs, offer=bench.offer(card="L4"))
    begun = bench.now - timedelta(seconds=200)
    with_rate = Progress(step=800, total=1000, at=bench.now, values={"rate": 6.0})
    bench.ledger.note_attempt(second.id, progress=with_rate, started_at=begun)
    book, families = history.book(bench.ledger)
    assert book is not None
    told = {job.id: book.told(job, families.get(job.id)) for job in bench.ledger.waiting(bench.now)}
    assert told[third.id].remaining_t4_s == pytest.approx(500.0)
    assert told[third.id].speeds == {"L4": pytest.approx(3.0)}
    assert told[stranger.id].remaining_t4_s is None
    assert told[stranger.id].speeds == {}


def test_families_are_read_once(bench: Bench) -> None:
    """A spec never changes: the second look asks for no job that it knows."""
    first, _ = bench.submit("s-1", "s-2")
    bench.ledger.note_speed(
        job=first.id, card="T4", workload="general", steps_per_s=2.0, at=bench.now
    )
    known = dict(history.book(bench.ledger)[1])
    asked: list[object] = []
    specs = bench.ledger.raw_specs
    bench.ledger.raw_specs = lambda ids: asked.append(list(ids)) or specs(ids)  # type: ignore[func-returns-value]
    assert history.book(bench.ledger, known)[1] == known
    assert not any(asked)


def test_only_jobs_that_may_be_kin_of_one_that_ran_are_read(bench: Bench) -> None:
    """Of a long queue: the bundle, or the name that a matrix gave its cells, must be that of a job whose speed was seen."""

    def submit(name: str, bundle: str, **cell: str) -> Job:
        spec = JobSpec(name=name, run="true", cell=cell)
        return bench.ledger.add_jobs([NewJob(spec=spec, bundle=bundle * 64)], why="test")[0]  # type: ignore[no-any-return]

    ran, cell = submit("sweep-lr1", "a", LR="1"), submit("sweep-lr2", "c", LR="2")
    first, twin = submit("origin", "b"), submit("renamed", "b")
    for name in ("other", "swee", "another-sweep-lr1"):
        submit(name, "d")
    for job in (ran, first):
        bench.ledger.note_speed(
            job=job.id, card="T4", workload="general", steps_per_s=2.0, at=bench.now
        )
    _, families = history.book(bench.ledger)
    assert set(families) == {ran.id, cell.id, twin.id, first.id}


def test_what_is_confirmed_counts_as_done_and_is_carried_to_other_cards(bench: Bench) -> None:
    """20 of 80 steps are safe, at two a second on an L4: 30 s are left there."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job, offer=bench.offer(card="L4"))
    bench.confirm(attempt, 2)
    bench.ledger.note_attempt(attempt.id, progress=Progress(step=30, total=80))
    bench.ledger.note_speed(
        job=job.id, card="L4", workload="general", steps_per_s=2.0, at=bench.now
    )
    bench.end(attempt)
    book, families = history.book(bench.ledger)
    (waiting,) = bench.ledger.waiting(bench.now)
    assert book is not None
    told = book.told(waiting, families[job.id])
    assert told.remaining_t4_s == pytest.approx(30.0 * cards.speed("L4"))
    assert told.speeds["L4"] == pytest.approx(cards.speed("L4"))


def test_the_record_of_a_decision_is_kept_with_each_attempt_and_the_newest_is_found(
    bench: Bench,
) -> None:
    """One query for many jobs; those that were placed without a record, or never, are told apart."""
    first, second, never = bench.submit("first", "second", "never")
    given = bench.offer(count=2)
    session, (attempt, _) = bench.ledger.plan_session(
        platform="kaggle",
        account="me",
        offer=given,
        limit_s=None,
        reserve_s=0.0,
        jobs=[(first.id, 0), (second.id, 1)],
        why="the fastest",
        decisions={first.id: {"outcome": "placed", "rules": ["ä"]}},
    )
    bench.end(attempt)
    again = bench.ledger.allocate(
        session.id, first.id, 0, why="again", decision={"outcome": "placed", "ahead": 3}
    )
    found = bench.ledger.newest_events(
        "attempt.allocated", [first.id, second.id, never.id, *map(str, range(1200))]
    )
    assert set(found) == {first.id, second.id}
    assert (found[first.id].attempt, found[first.id].data["decision"]["ahead"]) == (again.id, 3)
    assert "decision" not in found[second.id].data
    lines = bench.ledger.events(job=first.id, actions=["attempt.allocated"])
    assert [line.data["decision"].get("rules") for line in lines] == [["ä"], None]

"""Jobs and attempts in the ledger: submission, epochs, fences, results, checkpoints. On both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.errors import (
    InvalidTransitionError,
    JobNotFoundError,
    JobSpecError,
    StaleEpochError,
)
from freegpu.jobs.lifecycle import AttemptEvent, AttemptState, EndReason, JobState
from freegpu.jobs.model import (
    Accelerator,
    Checkpointing,
    Estimate,
    JobSpec,
    Needs,
)
from freegpu.orchestrator.model import NewJob, Progress

if TYPE_CHECKING:
    Bench = Any


def test_a_job_is_read_as_it_was_submitted(bench: Bench) -> None:
    """The whole spec survives, in both databases and in another process, with its order of submission."""
    spec = JobSpec(
        name="naïve '; DROP TABLE jobs; -- 数字\n",
        run="python train.py",
        envs={"LR": "3e-4"},
        secrets=("TOKEN",),
        needs=Needs(accelerators=(Accelerator(card="T4", count=2),), vram_gb=12, platforms=("k",)),
        estimate=Estimate(seconds=3600.0),
        checkpoint=Checkpointing(every_s=600.0, grace_s=30.0),
        deadline=bench.now + timedelta(days=1),
        priority=-5,
        cell={"LR": "3e-4"},
    )
    (job,) = bench.ledger.add_jobs([NewJob(spec=spec, bundle="b" * 64)], why="submitted")
    (second,) = bench.submit("second")
    with bench.again() as other:
        found = other.job(job.id)
        assert found == job
        assert found.spec == spec
        assert (found.bundle, found.state, found.epoch) == ("b" * 64, JobState.PENDING, 0)
        assert found.created_at == bench.now
        assert [each.id for each in other.jobs()] == [job.id, second.id]
        assert [each.id for each in other.jobs(newest_first=True, limit=1)] == [second.id]
        (waiting, _) = other.waiting(bench.now)
        assert (waiting.needs, waiting.estimate) == (spec.needs, spec.estimate)
        assert (waiting.grace_s, waiting.priority, waiting.deadline) == (30.0, -5, spec.deadline)
    assert len(job.id) == 6
    assert job.id[0].isalpha()


def test_submission_is_all_or_nothing(bench: Bench) -> None:
    """One job that cannot be met keeps the whole batch out."""
    good, bad = JobSpec(name="a", run="x"), JobSpec(name="b", run="x", after=("nobody",))
    with pytest.raises(JobNotFoundError, match=r"'b' waits for 'nobody'"):
        bench.ledger.add_jobs([NewJob(spec=good), NewJob(spec=bad)], why="submitted")
    assert bench.ledger.jobs() == []
    assert bench.ledger.events() == []


def test_after_means_this_batch_then_an_id_then_the_newest_of_that_name(bench: Bench) -> None:
    """A matrix in the same file is waited for as a whole; a name from before means its newest job."""
    (old,), (new,) = bench.submit("prepare"), bench.submit("prepare")
    (by_name,) = bench.submit("train", after=("prepare",))
    (by_id,) = bench.submit("train2", after=(old.id,))
    assert by_name.spec.after == (new.id,)
    assert by_id.spec.after == (old.id,)
    cells = [NewJob(spec=JobSpec(name="cell", run="x", cell={"i": str(i)})) for i in range(3)]
    last = NewJob(spec=JobSpec(name="report", run="x", after=("cell",)))
    found = bench.ledger.add_jobs([last, *cells], why="submitted")
    assert set(found[0].spec.after) == {job.id for job in found[1:]}


def cells(stem: str, *values: str) -> list[NewJob]:
    return [
        NewJob(spec=JobSpec(name=f"{stem}-lr{value}", run="x", cell={"LR": value}))
        for value in values
    ]


def test_a_matrix_is_known_by_its_name(bench: Bench) -> None:
    """`after` waits for all cells of its last submission; a command on several means the newest job of each cell."""
    first = bench.ledger.add_jobs(cells("sweep", "1", "2"), why="submitted")
    bench.clock.sleep(5)
    second = bench.ledger.add_jobs(cells("sweep", "2", "3"), why="submitted")
    other = bench.ledger.add_jobs(cells("sweep-more", "1"), why="submitted")
    (last,) = bench.submit("report", after=("sweep",))
    assert last.spec.after == tuple(job.id for job in second)
    assert [job.id for job in bench.ledger.meant("sweep")] == [first[0].id, *(j.id for j in second)]
    assert bench.ledger.cells("sweep") == [*first, *second]
    assert bench.ledger.meant("report") == [last]
    assert bench.ledger.meant(first[0].id[:5]) == [first[0]]
    assert bench.ledger.meant("sweep-more") == other
    with pytest.raises(JobNotFoundError, match="'sweep' is a matrix of 3 jobs"):
        bench.ledger.resolve("sweep")
    with pytest.raises(JobNotFoundError, match="'b' waits for 'swee'"):
        bench.submit("b", after=("swee",))
    # a job of its own that bears the name is meant before the matrix
    (plain,) = bench.submit("sweep")
    assert bench.ledger.resolve("sweep") == plain
    assert bench.ledger.meant("sweep") == [plain]
    (later,) = bench.submit("later", after=("sweep",))
    assert later.spec.after == (plain.id,)


def test_a_matrix_bears_a_name_that_ids_may_begin_with(bench: Bench) -> None:
    """`cancel a` must not cancel the one job whose id happens to begin with a."""
    (other,) = bench.submit("other")
    name = other.id[0]
    found = bench.ledger.add_jobs(cells(name, "1", "2"), why="submitted")
    assert bench.ledger.meant(name) == found
    with pytest.raises(JobNotFoundError, match="matrix of 2 jobs"):
        bench.ledger.resolve(name)


def test_what_pending_jobs_wait_for_is_counted_and_held_back(bench: Bench) -> None:
    """For forecasts: what may not begin yet, with what must succeed first and the moment before which it is not tried."""
    a, b = bench.ledger.add_jobs(cells("sweep", "1", "2"), why="submitted")
    (last,) = bench.submit("report", after=("sweep",))
    assert [job.id for job in bench.ledger.held(bench.now)] == [last.id]
    assert bench.ledger.held(bench.now)[0].after == (a.id, b.id)
    assert bench.ledger.blockers() == {last.id: (2, 0)}
    bench.ledger.cancel_jobs([a.id], at=bench.now)
    assert bench.ledger.blockers() == {last.id: (2, 1)}
    assert {job.id for job in bench.ledger.waiting(bench.now)} == {b.id}
    bench.ledger.retry_jobs([a.id], from_scratch=False)
    assert bench.ledger.blockers() == {last.id: (2, 0)}
    assert bench.ledger.jobs_of([b.id, "nobody", a.id]) == [
        bench.ledger.job(a.id),
        bench.ledger.job(b.id),
    ]


def test_several_are_cancelled_or_none(bench: Bench) -> None:
    """One that has ended keeps all of them as they were."""
    a, b = bench.ledger.add_jobs(cells("sweep", "1", "2"), why="submitted")
    with pytest.raises(InvalidTransitionError):
        bench.ledger.retry_jobs([a.id, b.id], from_scratch=False)
    bench.ledger.cancel_jobs([b.id], at=bench.now)
    with pytest.raises(InvalidTransitionError):
        bench.ledger.retry_jobs([b.id, a.id], from_scratch=False)
    assert bench.ledger.job(b.id).state is JobState.CANCELLED


@pytest.mark.parametrize("circle", [{"a": ("b",), "b": ("a",)}, {"a": ("a",)}])
def test_jobs_that_wait_for_each_other_are_refused(
    bench: Bench, circle: dict[str, tuple[str, ...]]
) -> None:
    """A circle of `after` could never run: it names the jobs in it."""
    new = [NewJob(spec=JobSpec(name=name, run="x", after=after)) for name, after in circle.items()]
    with pytest.raises(JobSpecError, match="circle: a"):
        bench.ledger.add_jobs(new, why="submitted")
    assert bench.ledger.jobs() == []


def test_a_job_waits_until_what_it_is_after_has_succeeded(bench: Bench) -> None:
    """Only success counts; `unmet` tells what is missing."""
    first, second = bench.submit("first"), []
    second = bench.submit("second", after=("first",))
    assert [w.id for w in bench.ledger.waiting(bench.now)] == [first[0].id]
    assert [job.id for job in bench.ledger.unmet(second[0].id)] == [first[0].id]
    _, (attempt,) = bench.plan(*first)
    assert bench.ledger.waiting(bench.now) == ()
    assert bench.ledger.accept_result(first[0].id, attempt.id, ("k", "s"), at=bench.now)
    assert [w.id for w in bench.ledger.waiting(bench.now)] == [second[0].id]
    assert bench.ledger.unmet(second[0].id) == []


def test_a_job_waits_for_its_moment_and_avoids_places_for_a_while(bench: Bench) -> None:
    """not_before counts from its very instant; an avoided platform is forgotten when its time is over."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    moment = bench.now + timedelta(minutes=5)
    bench.end(attempt, not_before=moment)
    assert bench.ledger.waiting(moment - timedelta(microseconds=1)) == ()
    bench.ledger.avoid(job.id, "colab", "wrong card", moment + timedelta(hours=1))
    bench.ledger.avoid(job.id, "colab", "refused again", moment + timedelta(hours=2))
    (waiting,) = bench.ledger.waiting(moment + timedelta(hours=1))
    assert waiting.avoid == {"colab": "refused again"}
    (waiting,) = bench.ledger.waiting(moment + timedelta(hours=2))
    assert waiting.avoid == {}


def test_naive_times_are_refused(bench: Bench) -> None:
    """A time without a zone would mean another moment on another machine."""
    naive = bench.now.replace(tzinfo=None)
    (job,) = bench.submit("a")
    with pytest.raises(ValueError, match="without a zone"):
        bench.ledger.waiting(naive)
    with pytest.raises(ValueError, match="without a zone"):
        bench.ledger.cancel_job(job.id, at=naive)
    _, (attempt,) = bench.plan(job)
    with pytest.raises(ValueError, match="zone"):
        bench.ledger.note_attempt(attempt.id, saved_at=naive)
    assert bench.ledger.job(job.id).state is JobState.ACTIVE


@pytest.mark.parametrize("given", ["id", "prefix", "name"])
def test_a_job_is_found_by_id_by_prefix_and_by_name(bench: Bench, given: str) -> None:
    """All three ways of the command line."""
    job, other = bench.submit("alpha", "beta")
    length = next(n for n in range(1, 7) if not other.id.startswith(job.id[:n]))
    text = {"id": job.id, "prefix": job.id[:length], "name": "alpha"}[given]
    assert bench.ledger.resolve(f" {text} ").id == job.id


def test_a_name_of_several_jobs_lists_them(bench: Bench) -> None:
    """Ambiguity is an error that shows the ids; it is never settled by guessing."""
    jobs = bench.submit("same", "same")
    with pytest.raises(JobNotFoundError) as caught:
        bench.ledger.resolve("same")
    assert all(job.id in caught.value.message for job in jobs)


@pytest.mark.parametrize("text", ["", "%", "_", "nothing", "' OR 1=1 --"])
def test_an_unknown_job_is_one_sentence(bench: Bench, text: str) -> None:
    """No wildcard means every job; a near name is offered."""
    bench.submit("alpha")
    with pytest.raises(JobNotFoundError, match="no job has the id or name"):
        bench.ledger.resolve(text)
    with pytest.raises(JobNotFoundError) as caught:
        bench.ledger.resolve("alpah")
    assert caught.value.hint == "did you mean 'alpha'?"


def test_counts_name_every_state(bench: Bench) -> None:
    """Zero is an answer."""
    bench.submit("a", "b")
    assert bench.ledger.job_counts() == {state: 2 * (state == "pending") for state in JobState}


# --- attempts ---------------------------------------------------------------------------------------------


def test_an_epoch_grows_with_every_attempt_and_every_bump(bench: Bench) -> None:
    """Epochs are unique for a job and durable before anything else happens."""
    (job,) = bench.submit("a")
    _, (first,) = bench.plan(job)
    assert (first.number, first.epoch) == (1, 1)
    assert bench.ledger.bump_epoch(job.id) == 2
    bench.end(first)
    session, (second,) = bench.plan(job)
    assert (second.number, second.epoch, second.id) == (2, 3, f"{job.id}-2")
    with bench.again() as other:
        assert other.job(job.id).epoch == 3
    bench.end(second)
    third = bench.ledger.allocate(session.id, job.id, 1, why="the same session")
    assert (third.epoch, third.slot, third.session) == (4, 1, session.id)


def test_only_a_pending_job_can_be_allocated_and_a_refusal_leaves_nothing(bench: Bench) -> None:
    """The second of two plans loses as a whole: no session, no reserve, no epoch."""
    taken, free = bench.submit("taken", "free")
    session, _ = bench.plan(taken)
    before = (bench.ledger.entries(), bench.ledger.events())
    with pytest.raises(StaleEpochError, match="active by now"):
        bench.plan(free, taken)
    assert (bench.ledger.entries(), bench.ledger.events()) == before
    assert bench.ledger.job(free.id).epoch == 0
    assert [each.id for each in bench.ledger.sessions()] == [session.id]


def test_an_ended_session_takes_no_more_jobs(bench: Bench) -> None:
    """Its mailbox is not read any more."""
    (job,) = bench.submit("a")
    session, _ = bench.plan()
    bench.ledger.end_session(session.id, reason="idle", charged_s=1, at=bench.now)
    with pytest.raises(StaleEpochError, match="takes no more jobs"):
        bench.ledger.allocate(session.id, job.id, 0, why="late")
    assert bench.ledger.job(job.id).state is JobState.PENDING


def test_a_new_attempt_fences_the_one_before_it(bench: Bench) -> None:
    """After a retry an attempt that is still stopping cannot confirm anything any more."""
    (job,) = bench.submit("a")
    _, (old,) = bench.plan(job)
    bench.ledger.cancel_job(job.id, at=bench.now)
    bench.ledger.retry_job(job.id, from_scratch=False)
    assert bench.confirm(old, 1)  # it has not been fenced yet: its work counts
    _, (new,) = bench.plan(job)
    assert (new.base_epoch, new.base_generation) == (1, 1)
    assert bench.ledger.attempt(old.id).fenced
    assert not bench.confirm(old, 2)
    assert bench.ledger.job(job.id).checkpoint == bench.checkpoint(old, 1)


def test_attempts_move_by_the_table_and_keep_what_was_heard(bench: Bench) -> None:
    """Progress of the newest attempt is its job's progress; an older one's is not."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    told = Progress(step=5, total=20, at=bench.now, values={"loss": 0.5, "note": "né"})
    started = bench.ledger.attempt_event(
        attempt.id, AttemptEvent.START, started_at=bench.now, ticket_seq=3
    )
    assert (started.state, started.started_at) == (AttemptState.RUNNING, bench.now)
    with pytest.raises(InvalidTransitionError):
        bench.ledger.attempt_event(attempt.id, AttemptEvent.START)
    with pytest.raises(InvalidTransitionError, match="end_attempt"):
        bench.ledger.attempt_event(attempt.id, AttemptEvent.END)
    bench.ledger.note_attempt(attempt.id, progress=told, saved_at=bench.now)
    assert bench.ledger.attempt(attempt.id).progress == told
    assert bench.ledger.job(job.id).progress == told
    stopping = bench.ledger.attempt_event(
        attempt.id, AttemptEvent.STOP, stop_reason=EndReason.PREEMPTED, stop_seq=4
    )
    assert (stopping.stop_reason, stopping.stop_seq) == (EndReason.PREEMPTED, 4)
    bench.end(attempt)
    bench.plan(job)
    bench.ledger.note_attempt(attempt.id, progress=Progress(step=1))
    assert bench.ledger.job(job.id).progress == told
    with pytest.raises(TypeError, match="no such field to set: epoch"):
        bench.ledger.note_attempt(attempt.id, epoch=9)


def test_an_attempt_ends_once(bench: Bench) -> None:
    """The second end changes nothing: counts, lost seconds and the state stay."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    assert bench.end(attempt, EndReason.COMMAND_FAILED, exit_code=3, detail="exit 3")
    after = bench.ledger.job(job.id)
    assert (after.state, after.failures, after.lost_s) == (JobState.PENDING, 1, 5.0)
    ended = bench.ledger.attempt(attempt.id)
    assert (ended.state, ended.reason, ended.exit_code) == (
        AttemptState.ENDED,
        EndReason.COMMAND_FAILED,
        3,
    )
    assert ended.fenced
    assert not bench.end(attempt, EndReason.COMPLETED)
    assert bench.ledger.job(job.id) == after
    assert bench.ledger.attempt(attempt.id) == ended


def test_an_older_attempts_end_says_nothing_about_the_job(bench: Bench) -> None:
    """Only the newest attempt decides; the lost seconds of an older one still count."""
    (job,) = bench.submit("a")
    _, (old,) = bench.plan(job)
    bench.ledger.cancel_job(job.id, at=bench.now)
    bench.ledger.retry_job(job.id, from_scratch=False)
    _, (new,) = bench.plan(job)
    assert bench.end(old, EndReason.CANCELLED)
    found = bench.ledger.job(job.id)
    assert (found.state, found.lost_s) == (JobState.ACTIVE, 5.0)
    assert bench.end(new, EndReason.COMMAND_FAILED)
    assert bench.end(new) is False
    assert bench.ledger.job(job.id).state is JobState.PENDING


def test_patience_doubles_while_fences_bring_nothing_and_resets(bench: Bench) -> None:
    """Silence without a checkpoint makes patience 2, 4, 8; one confirmed checkpoint makes it 1."""
    (job,) = bench.submit("a")
    for expected in (2, 4, 8):
        _, (attempt,) = bench.plan(job)
        bench.end(attempt, EndReason.LOST)
        assert bench.ledger.job(job.id).patience == expected
    _, (attempt,) = bench.plan(job)
    bench.end(attempt, EndReason.SESSION_EXPIRED)
    assert bench.ledger.job(job.id).patience == 8
    _, (attempt,) = bench.plan(job)
    bench.confirm(attempt, 1)
    assert bench.ledger.job(job.id).patience == 1
    bench.end(attempt, EndReason.LOST, brought_checkpoint=True)
    assert bench.ledger.job(job.id).patience == 1


def test_a_job_out_of_retries_fails_for_good(bench: Bench) -> None:
    """`failures: 1` forgives one; the second fails the job, and `retry` starts the count afresh."""
    (job,) = bench.submit("a")
    for _ in range(2):
        _, (attempt,) = bench.plan(job)
        bench.end(attempt, EndReason.COMMAND_FAILED, not_before=bench.now)
    failed = bench.ledger.job(job.id)
    assert (failed.state, failed.ended_at, failed.not_before) == (JobState.FAILED, bench.now, None)
    assert "failed 2 times" in failed.why
    again = bench.ledger.retry_job(job.id, from_scratch=False)
    assert (again.state, again.failures, again.ended_at, again.epoch) == (
        JobState.PENDING,
        0,
        None,
        2,
    )


# --- results ----------------------------------------------------------------------------------------------


def test_the_first_result_wins(bench: Bench) -> None:
    """At most one accepted result a job, and it may be a fenced attempt's; others are asked to stop."""
    (job,) = bench.submit("a")
    _, (first,) = bench.plan(job)
    bench.end(first, EndReason.LOST)
    _, (second,) = bench.plan(job)
    assert bench.ledger.accept_result(job.id, first.id, ("one", "1"), at=bench.now)
    assert not bench.ledger.accept_result(job.id, second.id, ("two", "2"), at=bench.now)
    found = bench.ledger.job(job.id)
    assert (found.state, found.result_attempt, found.result_key, found.result_sha256) == (
        JobState.SUCCEEDED,
        first.id,
        "one",
        "1",
    )
    stopping = bench.ledger.attempt(second.id)
    assert (stopping.state, stopping.stop_reason) == (AttemptState.STOPPING, EndReason.SUPERSEDED)
    bench.end(second, EndReason.COMMAND_FAILED)
    assert bench.ledger.job(job.id) == replace(found, lost_s=found.lost_s + 5, updated_at=bench.now)


def test_a_cancelled_job_takes_no_result(bench: Bench) -> None:
    """What the user gave up does not come back as a success."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    cancelled = bench.ledger.cancel_job(job.id, at=bench.now)
    assert (cancelled.state, cancelled.ended_at) == (JobState.CANCELLED, bench.now)
    asked = bench.ledger.attempt(attempt.id)
    assert (asked.state, asked.stop_reason) == (AttemptState.STOPPING, EndReason.CANCELLED)
    assert not bench.ledger.accept_result(job.id, attempt.id, ("k", "s"), at=bench.now)
    assert bench.ledger.cancel_job(job.id, at=bench.now + timedelta(hours=1)) == cancelled


def test_a_result_of_another_job_is_refused(bench: Bench) -> None:
    """An attempt speaks for its own job only."""
    one, two = bench.submit("a", "b")
    _, attempts = bench.plan(one, two)
    with pytest.raises(StaleEpochError, match="not of job"):
        bench.ledger.accept_result(one.id, attempts[1].id, ("k", "s"), at=bench.now)


def test_a_finished_job_cannot_be_cancelled_or_tried_again(bench: Bench) -> None:
    """The sentence names the job."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    bench.ledger.accept_result(job.id, attempt.id, ("k", "s"), at=bench.now)
    with pytest.raises(InvalidTransitionError, match=job.id):
        bench.ledger.cancel_job(job.id, at=bench.now)
    with pytest.raises(InvalidTransitionError, match="succeeded does not allow retry"):
        bench.ledger.retry_job(job.id, from_scratch=True)


# --- checkpoints ------------------------------------------------------------------------------------------


def test_a_confirmed_checkpoint_is_the_base_of_the_next_attempt(bench: Bench) -> None:
    """Newer only; the attempt knows up to when its work is safe."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    assert bench.confirm(attempt, 2)
    assert not bench.confirm(attempt, 1)
    assert not bench.confirm(attempt, 2)
    assert bench.ledger.attempt(attempt.id).saved_at == bench.now
    bench.ledger.note_attempt(attempt.id, progress=Progress(step=30, total=80))
    bench.end(attempt)
    assert not bench.confirm(attempt, 3)  # fenced
    (waiting,) = bench.ledger.waiting(bench.now)
    assert waiting.remaining == 0.75
    _, (second,) = bench.plan(job)
    assert (second.base_epoch, second.base_generation) == (1, 2)
    assert bench.confirm(second, 1)
    found = [(cp.epoch, cp.generation) for cp in bench.ledger.checkpoints(job.id)]
    assert found == [(2, 1), (1, 2)]


def test_a_checkpoint_under_a_wrong_epoch_is_refused(bench: Bench) -> None:
    """A manifest that claims another epoch than its attempt's is nobody's."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    wrong = bench.checkpoint(attempt, 1, epoch=7)
    with pytest.raises(StaleEpochError, match="not of attempt"):
        bench.ledger.confirm_checkpoint(wrong, job.id, saved_at=bench.now)
    assert bench.ledger.checkpoints(job.id) == []


def test_collected_checkpoints_are_dropped_but_never_the_current_one(bench: Bench) -> None:
    """Whatever gc asks for, the base of the next attempt stays."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    for generation in (1, 2, 3):
        bench.confirm(attempt, generation)
    bench.ledger.drop_checkpoints(job.id, [cp.key for cp in bench.ledger.checkpoints(job.id)])
    assert [cp.generation for cp in bench.ledger.checkpoints(job.id)] == [3]
    current = bench.ledger.job(job.id).checkpoint
    assert current is not None
    assert current.generation == 3


def test_a_checkpoint_that_is_gone_falls_back_to_the_one_before(bench: Bench) -> None:
    """And to none when that is gone too; an unknown key changes nothing."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    one, two = bench.checkpoint(attempt, 1), bench.checkpoint(attempt, 2)
    bench.confirm(attempt, 1)
    bench.confirm(attempt, 2)
    bench.ledger.forget_checkpoint(job.id, "nothing", why="?")
    bench.ledger.forget_checkpoint(job.id, two.key, why="a blob is gone")
    assert bench.ledger.job(job.id).checkpoint == one
    bench.ledger.forget_checkpoint(job.id, one.key, why="a blob is gone")
    assert bench.ledger.job(job.id).checkpoint is None
    assert bench.ledger.checkpoints(job.id) == []


def test_a_retry_from_scratch_forgets_what_was_saved(bench: Bench) -> None:
    """Nothing old is a base again, not even what an attempt still stopping brings."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    bench.confirm(attempt, 1)
    bench.ledger.note_attempt(attempt.id, progress=Progress(step=5))
    bench.ledger.cancel_job(job.id, at=bench.now)
    again = bench.ledger.retry_job(job.id, from_scratch=True)
    assert (again.checkpoint, again.progress) == (None, Progress())
    assert not bench.confirm(attempt, 2)
    _, (fresh,) = bench.plan(job)
    assert (fresh.base_epoch, fresh.epoch) == (0, 2)


def test_speeds_are_remembered(bench: Bench) -> None:
    """By job, in order."""
    (job,) = bench.submit("a")
    for card in ("T4", "L4"):
        bench.ledger.note_speed(
            job=job.id,
            card=card,
            workload="general",
            steps_per_s=2.5,
            at=bench.now,
            **({"span_s": 7.5} if card == "L4" else {}),
        )
    assert [(s.card, s.steps_per_s, s.at, s.span_s) for s in bench.ledger.speeds(job.id)] == [
        ("T4", 2.5, bench.now, 0.0),
        ("L4", 2.5, bench.now, 7.5),
    ]
    assert bench.ledger.speeds("other") == []


def test_every_decision_leaves_a_line_in_the_audit(bench: Bench) -> None:
    """In the same transaction, with its reason; read in pages."""
    (job,) = bench.submit("a")
    _, (attempt,) = bench.plan(job)
    bench.ledger.attempt_event(attempt.id, AttemptEvent.START, started_at=bench.now)
    bench.confirm(attempt, 1)
    bench.ledger.cancel_job(job.id, at=bench.now)
    bench.end(attempt, EndReason.CANCELLED)
    bench.ledger.retry_job(job.id, from_scratch=False)
    bench.ledger.bump_epoch(job.id)
    bench.ledger.record("note", "a word", job=job.id, data={"at": bench.now, "n": 1})
    assert bench.actions(job) == [
        "job.submitted",
        "attempt.allocated",
        "attempt.start",
        "checkpoint.confirmed",
        "attempt.stop",
        "job.cancelled",
        "attempt.ended",
        "job.retried",
        "job.epoch",
        "note",
    ]
    page = bench.ledger.events(job=job.id, limit=2)
    rest = bench.ledger.events(job=job.id, after_id=page[-1].id)
    assert len(rest) == 8
    assert rest[-1].data == {"at": bench.now.isoformat(), "n": 1}
    assert isinstance(rest[-1].at, datetime)

"""`freegpu gc` over a real ledger and store: what goes, and above all what never goes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from freegpu import config
from freegpu.adapters.base import Offer
from freegpu.agent import wire
from freegpu.clock import utc
from freegpu.errors import LedgerBusyError
from freegpu.jobs.lifecycle import AttemptEvent, EndReason
from freegpu.jobs.model import Checkpointing, JobSpec
from freegpu.jobs.retry import decide
from freegpu.orchestrator import cells
from freegpu.orchestrator.home import orchestrator_lock, save_secrets, secret_refs
from freegpu.orchestrator.model import Attempt, Checkpoint, Job, NewJob
from freegpu.orchestrator.operations import Workspace
from freegpu.testing.clock import ManualClock

DAY = 86400.0


class Yard:
    """A home whose jobs, attempts and files are made by hand."""

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.home = home
        self.workspace = Workspace.open(config.load({}, home=home), clock=self.clock)
        self.ledger = self.workspace.ledger
        self.store = self.workspace.store
        assert self.workspace.identity  # lays the agent into the store, once

    @property
    def now(self) -> datetime:
        return utc(self.clock)

    def job(self, name: str = "train", *, keep: int = 2, bundle: bytes = b"", **spec: Any) -> Job:
        if bundle:
            self.store.put(wire.input_key(wire.sha256(bundle)), bundle)
        made = JobSpec(name=name, run="true", checkpoint=Checkpointing(keep=keep), **spec)
        digest = wire.sha256(bundle) if bundle else ""
        return self.ledger.add_jobs([NewJob(spec=made, bundle=digest)], why="submitted")[0]

    def attempt(self, job: Job) -> Attempt:
        """The job's next attempt, running in a session of its own."""
        offer = Offer(platform="local", account="me", card="CPU")
        session, (attempt,) = self.ledger.plan_session(
            platform="local",
            account="me",
            offer=offer,
            limit_s=None,
            reserve_s=0.0,
            jobs=[(job.id, 0)],
            why="test",
        )
        self.store.put(wire.hello_key(session.id), b"hello")
        self.store.put(wire.log_key(attempt.id, 1), wire.pack_log(b"output"))
        return self.ledger.attempt_event(attempt.id, AttemptEvent.START, started_at=self.now)

    def blob(self, attempt: Attempt, data: bytes) -> wire.Part:
        digest = wire.sha256(data)
        key = wire.attempt_blob_key(attempt.id, digest)
        self.store.put(key, data)
        return wire.Part(key, digest, len(data))

    def manifest(self, attempt: Attempt, generation: int, *parts: wire.Part) -> bytes:
        files = tuple(
            wire.File(f"f{n}", part.size, part.sha256, 0, 0o644, (part,))
            for n, part in enumerate(parts)
        )
        return wire.Manifest(
            attempt.job, attempt.id, attempt.epoch, generation, None, 0.0, files
        ).to_bytes()

    def checkpoint(
        self, attempt: Attempt, generation: int, *parts: wire.Part, confirmed: bool = True
    ) -> str:
        """A checkpoint of these parts, by default of one blob of its own; returns its key."""
        parts = parts or (self.blob(attempt, b"%s state %d" % (attempt.id.encode(), generation)),)
        data = self.manifest(attempt, generation, *parts)
        key = wire.checkpoint_key(attempt.job, attempt.epoch, generation)
        self.store.put(key, data)
        if confirmed:
            checkpoint = Checkpoint(
                key=key,
                sha256=wire.sha256(data),
                attempt=attempt.id,
                epoch=attempt.epoch,
                generation=generation,
                step=None,
                size=sum(part.size for part in parts),
                confirmed_at=self.now,
            )
            assert self.ledger.confirm_checkpoint(checkpoint, attempt.job, saved_at=self.now)
        return key

    def outputs(self, attempt: Attempt) -> tuple[str, str]:
        data = self.manifest(attempt, 0, self.blob(attempt, b"answer of " + attempt.id.encode()))
        self.store.put(wire.outputs_key(attempt.id), data)
        return wire.outputs_key(attempt.id), wire.sha256(data)

    def end(
        self,
        attempt: Attempt,
        reason: EndReason = EndReason.LOST,
        outputs: tuple[str, str] | None = None,
    ) -> None:
        job = self.ledger.job(attempt.job)
        self.ledger.end_attempt(
            attempt.id,
            reason=reason,
            detail="",
            exit_code=None,
            run_s=1.0,
            lost_s=0.0,
            outputs=outputs,
            brought_checkpoint=False,
            verdict=decide(job.spec.retry, reason, failures=0, preemptions=0),
            not_before=None,
            at=self.now,
        )
        self.ledger.end_session(attempt.session, reason="over", charged_s=0.0, at=self.now)

    def succeed(self, attempt: Attempt) -> None:
        outputs = self.outputs(attempt)
        assert self.ledger.accept_result(attempt.job, attempt.id, outputs, at=self.now)
        self.end(attempt, EndReason.COMPLETED, outputs)

    def files(self) -> dict[str, bytes]:
        """Everything in the store and the sessions' folders."""
        return {
            path.relative_to(self.home).as_posix(): path.read_bytes()
            for root in ("store", "sessions", "secrets")
            for path in sorted((self.home / root).rglob("*"))
            if path.is_file()
        }

    def gc(self, *, keep_days: float = 7.0) -> set[str]:
        """Collect; returns the keys that are gone. What a dry run announces is exactly what goes."""
        announced = self.workspace.gc(dry_run=True, keep_days=keep_days)
        before = self.files()
        done = self.workspace.gc(dry_run=False, keep_days=keep_days)
        assert done.deleted == announced.deleted
        assert (done.freed, done.kept) == (announced.freed, announced.kept)
        gone = {name.removeprefix("store/") for name in set(before) - set(self.files())}
        assert {key for key, _, _ in done.deleted if not key.startswith("/")} <= gone
        return gone


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "home")
    yield made
    made.workspace.close()


def blobs(attempt: Attempt, *generations: int) -> set[str]:
    return {
        wire.attempt_blob_key(attempt.id, wire.sha256(b"%s state %d" % (attempt.id.encode(), n)))
        for n in generations
    }


def test_keep_generations_stay_and_older_ones_go_with_their_blobs(yard: Yard) -> None:
    """keep: 2 of five: the newest two, whole; the ledger forgets the others."""
    attempt = yard.attempt(yard.job(keep=2))
    keys = [yard.checkpoint(attempt, n) for n in range(1, 6)]
    yard.end(attempt)
    assert yard.gc() == {*keys[:3], *blobs(attempt, 1, 2, 3)}
    assert [c.generation for c in yard.ledger.checkpoints(attempt.job)] == [5, 4]
    assert yard.gc() == set()


def test_the_newest_checkpoint_stays_even_if_none_should_be_kept(yard: Yard) -> None:
    """keep: 0 cannot mean to lose the work."""
    attempt = yard.attempt(yard.job(keep=0))
    yard.checkpoint(attempt, 1)
    newest = yard.checkpoint(attempt, 2)
    yard.end(attempt)
    assert newest not in yard.gc()
    assert yard.store.stat(newest) is not None
    assert blobs(attempt, 2) <= set(yard.store.list("attempts"))


def test_a_blob_that_a_kept_checkpoint_shares_with_an_older_one_stays(yard: Yard) -> None:
    """Unchanged parts are referred to, also across attempts."""
    job = yard.job(keep=1)
    first = yard.attempt(job)
    shared = yard.blob(first, b"unchanged weights")
    yard.checkpoint(first, 1, shared, yard.blob(first, b"old part"))
    yard.end(first)
    second = yard.attempt(job)
    yard.checkpoint(second, 1, shared, yard.blob(second, b"new part"))
    yard.end(second)
    gone = yard.gc()
    assert shared.key not in gone
    assert wire.attempt_blob_key(first.id, wire.sha256(b"old part")) in gone


def test_the_base_of_an_attempt_that_has_not_ended_is_never_deleted(yard: Yard) -> None:
    """Even when newer checkpoints fill `keep`: what it writes may refer to the base's blobs."""
    job = yard.job(keep=1)
    first = yard.attempt(job)
    older, base = yard.checkpoint(first, 1), yard.checkpoint(first, 2)
    yard.end(first)
    second = yard.attempt(job)
    assert (second.base_epoch, second.base_generation) == (first.epoch, 2)
    yard.checkpoint(second, 1)
    yard.checkpoint(second, 2)
    gone = yard.gc()
    assert older in gone
    assert not gone & {base, *blobs(first, 2)}
    yard.end(second)
    assert base in yard.gc()


def test_nothing_of_a_live_attempt_is_touched(yard: Yard) -> None:
    """Its unconfirmed and old checkpoints, loose blobs, log and mailbox: it deletes its own."""
    attempt = yard.attempt(yard.job(keep=1))
    for generation in (1, 2, 3):
        yard.checkpoint(attempt, generation)
    yard.checkpoint(attempt, 4, confirmed=False)
    yard.blob(attempt, b"on its way into a checkpoint")
    yard.clock.advance(100 * DAY)
    assert yard.gc(keep_days=0) == set()


def test_what_an_ended_attempt_left_unconfirmed_goes(yard: Yard) -> None:
    """It is fenced: no base will ever come of it."""
    attempt = yard.attempt(yard.job())
    kept = yard.checkpoint(attempt, 1)
    loose = yard.blob(attempt, b"never in a manifest").key
    unconfirmed = yard.checkpoint(attempt, 2, confirmed=False)
    yard.end(attempt)
    assert yard.gc() == {loose, unconfirmed, *blobs(attempt, 2)}
    assert yard.store.stat(kept) is not None


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_manifest_that_cannot_be_read_leaves_all_of_its_job_alone(
    yard: Yard, damage: str
) -> None:
    """Nobody knows which blobs it needs, and an older checkpoint may soon be the only one; other jobs go on."""
    attempt = yard.attempt(yard.job(keep=1))
    yard.checkpoint(attempt, 1)
    yard.checkpoint(attempt, 2)
    newest = yard.checkpoint(attempt, 3)
    yard.end(attempt)
    other = yard.attempt(yard.job("other", keep=1))
    old = yard.checkpoint(other, 1)
    yard.checkpoint(other, 2)
    yard.end(other)
    whole = yard.store.get(newest)
    if damage == "gone":
        yard.store.delete(newest)
    else:
        yard.store.put(newest, whole[:-20])
    assert yard.gc() == {old, *blobs(other, 1)}
    assert len(yard.ledger.checkpoints(attempt.job)) == 3
    yard.store.put(newest, whole)
    assert blobs(attempt, 1, 2) <= yard.gc()


def test_results_stay_when_everything_else_of_a_finished_job_has_gone(yard: Yard) -> None:
    """After keep_days its checkpoints, log, mailbox and code go; the outputs are the user's."""
    job = yard.job(bundle=b"code")
    attempt = yard.attempt(job)
    yard.checkpoint(attempt, 1)
    yard.succeed(attempt)
    yard.clock.advance(6 * DAY)
    assert yard.gc(keep_days=7) == set()
    yard.clock.advance(2 * DAY)
    assert yard.gc(keep_days=7) == {
        wire.checkpoint_key(job.id, attempt.epoch, 1),
        *blobs(attempt, 1),
        wire.log_key(attempt.id, 1),
        wire.hello_key(attempt.session),
        wire.input_key(wire.sha256(b"code")),
    }
    manifest = wire.Manifest.from_bytes(
        yard.store.get(wire.outputs_key(attempt.id)), yard.ledger.job(job.id).result_sha256
    )
    for part in manifest.blobs():
        assert wire.sha256(yard.store.get(part.key)) == part.sha256


def test_partial_outputs_stay_until_there_is_a_result(yard: Yard) -> None:
    """What an interrupted attempt brought can be pulled; once a result is accepted nobody needs it."""
    job = yard.job()
    first = yard.attempt(job)
    partial = yard.outputs(first)
    yard.end(first, EndReason.SESSION_EXPIRED, partial)
    answer = wire.attempt_blob_key(first.id, wire.sha256(b"answer of " + first.id.encode()))
    assert answer not in yard.gc()
    yard.succeed(yard.attempt(job))
    assert answer in yard.gc()


def test_a_failed_job_keeps_what_it_would_need_to_be_tried_again(yard: Yard) -> None:
    """`freegpu retry` may come after a year: code, newest checkpoints and secrets are there."""
    job = yard.job(bundle=b"code", secrets_ref=save_secrets(yard.home, {"TOKEN": "t"}))
    attempt = yard.attempt(job)
    yard.checkpoint(attempt, 1)
    yard.end(attempt)
    yard.ledger.cancel_job(job.id, at=yard.now)
    yard.clock.advance(365 * DAY)
    gone = yard.gc()
    assert gone == {wire.log_key(attempt.id, 1), wire.hello_key(attempt.session)}
    assert secret_refs(yard.home) == (job.spec.secrets_ref,)


def test_secrets_of_succeeded_jobs_are_forgotten_and_shared_ones_are_not(yard: Yard) -> None:
    """One submission's jobs share a file; it goes with the last of them."""
    ref = save_secrets(yard.home, {"TOKEN": "t"})
    jobs = [yard.job(f"job{n}", secrets_ref=ref) for n in range(2)]
    yard.succeed(yard.attempt(jobs[0]))
    yard.gc()
    assert secret_refs(yard.home) == (ref,)
    yard.succeed(yard.attempt(jobs[1]))
    yard.workspace.gc(dry_run=True)
    assert secret_refs(yard.home) == (ref,)
    yard.gc()
    assert secret_refs(yard.home) == ()


def test_code_goes_only_when_no_job_needs_it(yard: Yard) -> None:
    """Two jobs of one bundle; and a bundle whose submission died before the ledger knew it."""
    done, waiting = yard.job("done", bundle=b"shared"), yard.job("waiting", bundle=b"shared")
    orphan = wire.input_key(wire.sha256(b"orphan"))
    yard.store.put(orphan, b"orphan")
    yard.succeed(yard.attempt(done))
    yard.clock.advance(30 * DAY)
    gone = yard.gc()
    assert orphan in gone
    assert wire.input_key(wire.sha256(b"shared")) not in gone
    yard.succeed(yard.attempt(waiting))
    yard.clock.advance(30 * DAY)
    assert wire.input_key(wire.sha256(b"shared")) in yard.gc()


def test_what_the_ledger_does_not_know_is_not_ours_to_delete(yard: Yard) -> None:
    """Jobs, attempts and sessions of unknown names, and files that merely lie there."""
    strangers = [
        "jobs/stranger/checkpoints/000001-000001.json",
        "jobs/stranger/notes.txt",
        "attempts/stranger-1/blobs/" + "0" * 64,
        "attempts/stranger-1/log/000001.txt",
        "sessions/s-stranger/hello.json",
        "somebody/else.txt",
    ]
    for key in strangers:
        yard.store.put(key, b"?")
    foreign = yard.home / "store" / "jobs" / "holiday (1).jpg"
    foreign.write_bytes(b"?")
    assert yard.gc(keep_days=0) == set()
    assert foreign.exists()


def test_an_older_agent_stays_while_a_session_is_open(yard: Yard) -> None:
    """A session that is just starting may not have fetched it yet."""
    older = wire.agent_key("0" * 64)
    yard.store.put(older, b"old agent")
    attempt = yard.attempt(yard.job())
    assert older not in yard.gc()
    yard.end(attempt)
    assert older in yard.gc()


def test_working_folders_of_ended_sessions_go_and_of_open_ones_stay(yard: Yard) -> None:
    """They are the largest things on this machine."""
    ended, live = yard.attempt(yard.job("a")), yard.attempt(yard.job("b"))
    for attempt in (ended, live):
        work = yard.home / "sessions" / attempt.session / "work"
        work.mkdir(parents=True)
        (work / "big").write_bytes(b"x" * 1000)
    yard.end(ended)
    freed = yard.workspace.gc(dry_run=True).freed
    yard.gc()
    assert freed == 1000
    assert not (yard.home / "sessions" / ended.session).exists()
    assert (yard.home / "sessions" / live.session / "work" / "big").exists()


def test_a_dry_run_changes_nothing_and_says_what_would_go(yard: Yard) -> None:
    """Not a byte in the store, no row, no secret; size and reason of each object are told."""
    attempt = yard.attempt(yard.job(keep=1))
    old = yard.checkpoint(attempt, 1)
    yard.checkpoint(attempt, 2)
    yard.end(attempt)
    before, rows = yard.files(), yard.ledger.checkpoints(attempt.job)
    garbage = yard.workspace.gc(dry_run=True)
    assert yard.files() == before
    assert yard.ledger.checkpoints(attempt.job) == rows
    assert {key for key, _, _ in garbage.deleted} == {old, *blobs(attempt, 1)}
    assert garbage.freed == sum(len(before[f"store/{key}"]) for key, _, _ in garbage.deleted)
    assert all(why for _, _, why in garbage.deleted)
    assert garbage.dry_run


def test_gc_waits_for_no_orchestrator_and_never_runs_beside_one(yard: Yard) -> None:
    """A tick may be about to make a base of what gc sees as garbage; a dry run harms nobody."""
    attempt = yard.attempt(yard.job())
    yard.blob(attempt, b"loose")
    yard.end(attempt)
    before = yard.files()
    with orchestrator_lock(yard.home, command="freegpu up", since="noon"):
        with pytest.raises(LedgerBusyError, match="freegpu up"):
            yard.workspace.gc(dry_run=False)
        assert yard.workspace.gc(dry_run=True).deleted
    assert yard.files() == before


def test_the_agent_that_a_cell_fetches_stays(yard: Yard) -> None:
    """A cell that was made with an earlier freegpu can be run again any day; other old agents go."""
    older, oldest = wire.agent_key("0" * 64), wire.agent_key("1" * 64)
    for key in (older, oldest):
        yard.store.put(key, b"old agent")
    cells.make(
        yard.workspace.ledger, yard.workspace.home_id, "jupyter", "folder:/x", "0" * 64, fresh=False
    )
    freed = {key for key, _, _ in yard.workspace.gc(dry_run=False).deleted}
    assert oldest in freed
    assert yard.store.stat(older) is not None


def test_announcements_go_when_nobody_waits_for_them(yard: Yard) -> None:
    """Of ended sessions and of cells that no longer count; one that nobody has taken in yet stays."""
    cell = cells.make(
        yard.workspace.ledger, yard.workspace.home_id, "jupyter", "folder:/x", "0" * 64, fresh=False
    )
    attempt = yard.attempt(yard.job())
    new = wire.announcement_key(cell.id, wire.guest_session(cell.id, "new"))
    ended = wire.announcement_key(cell.id, attempt.session)
    worthless = wire.announcement_key("0ther", wire.guest_session("0ther", "old"))
    for key in (new, ended, worthless):
        yard.store.put(key, b"{}")
    assert yard.gc() & {new, ended, worthless} == {worthless}
    yard.end(attempt)
    assert yard.gc() & {new, ended, worthless} == {ended}

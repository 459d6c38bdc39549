"""The tick against a real ledger and a real folder store; the agent's side is written by the test, message by message."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freegpu import config
from freegpu.adapters.base import (
    Adapter,
    Capabilities,
    Collected,
    Launch,
    LogPage,
    Observation,
    Offer,
    PlatformState,
    QuotaReport,
    Request,
    SessionRef,
    Window,
    WindowKind,
)
from freegpu.agent import wire
from freegpu.agent.stores.base import Properties, Source, Stat
from freegpu.agent.stores.folder import FolderStore
from freegpu.errors import AdapterError, NoCapacityError, UnreachableError
from freegpu.jobs.lifecycle import AttemptState, EndReason, JobState, SessionState
from freegpu.jobs.model import Accelerator, JobSpec, Needs
from freegpu.orchestrator.act import Identity
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Attempt, EntryKind, Job, NewJob, Session
from freegpu.orchestrator.reconcile import Reconciler, TickReport

KEY = bytes(range(32))
BEGIN = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)


class HandClock:
    """Moves only when the test moves it."""

    def __init__(self) -> None:
        self.now = BEGIN.timestamp()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Platform:
    """A platform that does what the test says."""

    def __init__(self, name: str = "pretend", card: str = "T4", count: int = 1) -> None:
        self.name = name
        self.account = "me"
        self.card, self.count = card, count
        self.capabilities = Capabilities(max_concurrent=3, max_session_s=3600.0, here=True)
        self.windows = {"gpu": Window(kind=WindowKind.FIXED_WEEKLY, limit_s=36000.0)}
        self.started: dict[str, Request] = {}
        self.seen: dict[str, Observation] = {}
        self.stopped: list[str] = []
        self.fault: AdapterError | None = None
        self.accept_first = False

    def offers(self) -> Sequence[Offer]:
        return [
            Offer(
                platform=self.name,
                account=self.account,
                card=self.card,
                count=self.count,
                vram_gb=16.0,
                session_limit_s=3600.0,
                start_delay_s=10.0,
                pool="gpu",
            )
        ]

    def quota(self) -> Sequence[QuotaReport] | None:
        return None

    def render(self, launch: Launch, /) -> Request:
        return Request(key=launch.key, payload={"profile": launch.profile.to_json()})

    def start(self, request: Request, /) -> SessionRef:
        if self.fault is not None and not self.accept_first:
            raise self.fault
        self.started[request.key] = request
        self.seen.setdefault(request.key, Observation(state=PlatformState.RUNNING, raw="RUNNING"))
        if self.fault is not None:
            raise self.fault
        return SessionRef(request.key)

    def find(self, key: str, /) -> SessionRef | None:
        return SessionRef(key) if key in self.started else None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        gone = Observation(state=PlatformState.GONE, raw="404")
        return {ref: self.seen.get(ref, gone) for ref in refs}

    def stop(self, ref: SessionRef, /) -> None:
        self.stopped.append(ref)

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        return LogPage(text="")

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def close(self) -> None:
        pass


class World:
    """One home, one store, one platform, and the voice of the agents."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = HandClock()
        self.home = tmp_path / "home"
        self.home.mkdir()
        (tmp_path / "store").mkdir()
        self.settings = replace(
            config.load({}, home=self.home), store=f"folder:{tmp_path / 'store'}"
        )
        self.store = FolderStore(tmp_path / "store", sync=False)
        self.store.put("freegpu.json", wire.canonical({"format": 1, "home": "h-test"}))
        self.platform = Platform()
        self.adapters: dict[str, Adapter] = {"pretend": self.platform}
        self.db = str(self.home / "state.db")
        self.ledger = Ledger.open(self.db, clock=self.clock, rng=random.Random(7))
        self.outbox: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        self.reconciler = self.make_reconciler()

    def make_reconciler(self, store: FolderStore | None = None) -> Reconciler:
        identity = Identity(
            home=self.home,
            home_id="h-test",
            key=KEY,
            agent_path=self.home / "agent.pyz",
            agent_sha256="a" * 64,
        )
        return Reconciler(
            ledger=self.ledger,
            store=store or self.store,
            adapters=self.adapters,
            identity=identity,
            settings=self.settings,
            now=lambda: datetime.fromtimestamp(self.clock.now, UTC),
        )

    # --- the user ---

    def submit(self, name: str = "train", **spec: Any) -> Job:
        return self.ledger.add_jobs(
            [NewJob(spec=JobSpec(name=name, run="true", **spec))], why="test"
        )[0]

    def job(self, job: Job) -> Job:
        return self.ledger.job(job.id)

    def tick(self, after: float = 0.0) -> TickReport:
        self.clock.now += after
        return self.reconciler.tick()

    def attempt(self, job: Job) -> Attempt:
        return self.ledger.attempts(job=job.id)[-1]

    def session(self, attempt: Attempt) -> Session:
        return self.ledger.session(attempt.session)

    # --- the agent ---

    def key(self, session: str) -> bytes:
        return wire.session_key(KEY, session)

    def hello(self, session: str, card: str = "Tesla T4") -> None:
        slot = {"slot": 0, "asked": "T4", "gpus": ["0"], "seen": card, "matches": "T4" in card}
        message = {"session": session, "slots": [slot]}
        self.store.put(wire.hello_key(session), wire.pack(message, self.key(session)))

    def beat(self, session: str, state: str = "running", uptime: float = 1.0, **more: Any) -> None:
        self.counters[session] = self.counters.get(session, 0) + 1
        message = {
            "session": session,
            "counter": self.counters[session],
            "state": state,
            "slots": [],
            "outbox_seq": self.outbox.get(session, 0),
            "inbox_seq": 0,
            "uptime_s": uptime,
            "left_s": 3000.0,
            **more,
        }
        self.store.put(wire.agent_beat_key(session), wire.pack(message, self.key(session)))

    def says(self, attempt: Attempt, kind: str, **body: Any) -> None:
        session = attempt.session
        seq = self.outbox[session] = self.outbox.get(session, 0) + 1
        message = {"kind": kind, "session": session, "seq": seq, "job": attempt.job, **body}
        message |= {"attempt": attempt.id, "epoch": attempt.epoch}
        self.store.put(wire.outbox_key(session, seq), wire.pack(message, self.key(session)))

    def manifest(
        self, attempt: Attempt, generation: int, data: bytes, *, blob: bool = True
    ) -> wire.Manifest:
        digest = wire.sha256(data)
        key = wire.attempt_blob_key(attempt.id, digest)
        if blob:
            self.store.put(key, data)
        part = wire.Part(key=key, sha256=digest, size=len(data))
        file = wire.File(
            path="state", size=len(data), sha256=digest, mtime_ns=0, mode=0o644, parts=(part,)
        )
        return wire.Manifest(
            job=attempt.job,
            attempt=attempt.id,
            epoch=attempt.epoch,
            generation=generation,
            step=generation * 10,
            created=0.0,
            files=(file,),
        )

    def checkpoint(self, attempt: Attempt, generation: int, *, blob: bool = True) -> wire.Manifest:
        manifest = self.manifest(attempt, generation, b"state %d" % generation, blob=blob)
        key = wire.checkpoint_key(attempt.job, attempt.epoch, generation)
        data = manifest.to_bytes()
        self.store.put(key, data)
        self.says(
            attempt,
            wire.CHECKPOINT,
            key=key,
            sha256=wire.sha256(data),
            generation=generation,
            step=manifest.step,
            size=manifest.size,
            age_s=0.0,
        )
        return manifest

    def result(self, attempt: Attempt, data: bytes = b"answer") -> dict[str, str]:
        manifest = self.manifest(attempt, 0, data).to_bytes()
        self.store.put(wire.outputs_key(attempt.id), manifest)
        return {"key": wire.outputs_key(attempt.id), "sha256": wire.sha256(manifest)}

    def up(self, job: Job) -> Attempt:
        """Tick until the job's newest attempt runs in a live session."""
        self.tick()
        attempt = self.attempt(job)
        self.hello(attempt.session)
        self.beat(attempt.session)
        self.says(attempt, wire.STARTED, resumed=False)
        self.tick(1.0)
        return self.attempt(job)

    def tickets(self, session: str) -> list[dict[str, Any]]:
        return [
            wire.unpack(self.store.get(key), self.key(session))
            for key in self.store.list(wire.inbox_prefix(session))
        ]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def amounts(world: World, kind: EntryKind) -> list[float]:
    return [entry.amount_s for entry in world.ledger.entries() if entry.kind is kind]


def test_a_job_is_started_run_and_accepted_and_its_session_charged_once(world: World) -> None:
    """The straight way: reserve at the start; result accepted; release and one charge at the end."""
    job = world.submit()
    attempt = world.up(job)
    assert attempt.state is AttemptState.RUNNING
    assert world.job(job).state is JobState.ACTIVE
    assert world.session(attempt).state is SessionState.LIVE
    assert len(amounts(world, EntryKind.RESERVE)) == 1
    world.says(
        attempt,
        wire.ENDED,
        reason="completed",
        exit_code=0,
        seconds=100.0,
        outputs=world.result(attempt),
    )
    world.beat(attempt.session, state="ended", uptime=120.0)
    world.tick(120.0)
    done = world.job(job)
    assert done.state is JobState.SUCCEEDED
    assert done.result_attempt == attempt.id
    assert world.session(attempt).state is SessionState.ENDED
    assert amounts(world, EntryKind.CHARGE) == [120.0]
    assert amounts(world, EntryKind.RELEASE) == amounts(world, EntryKind.RESERVE)
    world.tick(60.0)
    assert amounts(world, EntryKind.CHARGE) == [120.0]


def test_a_lost_session_resumes_elsewhere_from_the_confirmed_checkpoint_under_a_higher_epoch(
    world: World,
) -> None:
    """The platform says it is over and the agent said nothing: lost, and the next attempt has the base."""
    job = world.submit()
    first = world.up(job)
    world.checkpoint(first, 1)
    world.beat(first.session, uptime=30.0)
    world.tick(30.0)
    world.platform.seen[first.session] = Observation(state=PlatformState.ENDED, raw="KILLED")
    world.tick(10.0)
    assert world.ledger.attempt(first.id).reason is EndReason.LOST
    second = world.attempt(job)
    assert second.number == 2
    assert second.epoch > first.epoch
    assert (second.base_epoch, second.base_generation) == (first.epoch, 1)
    run = next(t for t in world.tickets(second.session) if t["kind"] == wire.RUN)
    assert run["base"]["key"] == wire.checkpoint_key(job.id, first.epoch, 1)
    assert run["epoch"] == second.epoch


def test_a_checkpoint_counts_only_when_every_blob_was_read_and_its_end_waits_for_it(
    world: World,
) -> None:
    """The event arrives before the blob: neither it nor the later end is judged until the blob is there."""
    job = world.submit()
    attempt = world.up(job)
    manifest = world.checkpoint(attempt, 1, blob=False)
    world.says(attempt, wire.ENDED, reason="session_expired", seconds=50.0, outputs=None)
    world.beat(attempt.session)
    world.tick(5.0)
    assert world.job(job).checkpoint is None
    assert world.ledger.attempt(attempt.id).state is AttemptState.RUNNING
    (part,) = manifest.blobs()
    world.store.put(part.key, b"state 1")
    world.beat(attempt.session)
    world.tick(5.0)
    checkpoint = world.job(job).checkpoint
    assert checkpoint is not None
    assert checkpoint.generation == 1
    assert world.ledger.attempt(attempt.id).reason is EndReason.SESSION_EXPIRED


def test_a_blob_that_never_comes_does_not_hold_its_attempt_for_ever(world: World) -> None:
    """After our patience the end is judged as it stands, without that checkpoint."""
    job = world.submit()
    attempt = world.up(job)
    world.checkpoint(attempt, 1, blob=False)
    world.says(attempt, wire.ENDED, reason="session_expired", seconds=50.0, outputs=None)
    for _ in range(10):
        world.beat(attempt.session)
        world.tick(10.0)
    assert world.ledger.attempt(attempt.id).reason is EndReason.SESSION_EXPIRED
    assert world.job(job).checkpoint is None


@pytest.mark.parametrize("damage", [b"", b"sta", b"STATE 1", b"state 1 and more"])
def test_a_damaged_blob_is_never_confirmed(world: World, damage: bytes) -> None:
    """Empty, cut, changed or longer: the digest decides."""
    job = world.submit()
    attempt = world.up(job)
    (part,) = world.checkpoint(attempt, 1).blobs()
    world.store.put(part.key, damage)
    world.beat(attempt.session)
    world.tick(5.0)
    assert world.job(job).checkpoint is None


def test_what_a_fenced_attempt_writes_is_never_a_base_but_its_result_may_be_accepted_once(
    world: World,
) -> None:
    """A zombie wakes: its checkpoint is refused, its whole result wins, and the newer attempt is stopped."""
    job = world.submit()
    first = world.up(job)
    for _ in range(40):  # silence: the counter does not move, though the platform says RUNNING
        world.tick(10.0)
        if world.ledger.attempt(first.id).state is AttemptState.ENDED:
            break
    assert world.ledger.attempt(first.id).reason is EndReason.LOST
    assert world.platform.stopped
    second = world.up(job)
    assert second.number == 2
    world.checkpoint(first, 7)
    world.beat(first.session, slots=[{"slot": 0, "attempt": first.id}])
    world.beat(second.session)
    world.tick(5.0)
    assert world.job(job).checkpoint is None
    world.says(first, wire.ENDED, reason="completed", exit_code=0, outputs=world.result(first))
    world.beat(first.session)
    world.beat(second.session)
    world.tick(5.0)
    assert world.job(job).state is JobState.SUCCEEDED
    assert world.job(job).result_attempt == first.id
    stop = next(t for t in world.tickets(second.session) if t["kind"] == wire.STOP)
    assert stop["epoch"] > second.epoch
    world.says(
        second, wire.ENDED, reason="completed", exit_code=0, outputs=world.result(second, b"other")
    )
    world.beat(second.session)
    world.tick(5.0)
    assert world.job(job).result_attempt == first.id
    assert world.ledger.attempt(second.id).state is AttemptState.ENDED


def test_a_zombie_is_told_once_to_stop_by_a_strictly_higher_epoch(world: World) -> None:
    """It still beats after it was given up: exactly one stop ticket, above its epoch."""
    job = world.submit()
    first = world.up(job)
    while world.ledger.attempt(first.id).state is not AttemptState.ENDED:
        world.tick(10.0)
    for _ in range(3):
        world.beat(first.session, slots=[{"slot": 0, "attempt": first.id}])
        world.tick(10.0)
    stops = [t for t in world.tickets(first.session) if t["kind"] == wire.STOP]
    assert len(stops) == 1
    assert stops[0]["epoch"] > first.epoch


def test_silence_needs_many_unmoved_polls_and_one_beat_resets_it(world: World) -> None:
    """Ticks in quick succession are not patience, and a torn heartbeat is silence like none."""
    job = world.submit()
    attempt = world.up(job)
    for _ in range(200):
        world.tick(0.01)
    assert world.ledger.attempt(attempt.id).state is AttemptState.RUNNING
    world.platform.seen[attempt.session] = Observation(state=PlatformState.UNKNOWN, raw="MYSTERY")
    for _ in range(5):
        world.store.put(wire.agent_beat_key(attempt.session), b'{"torn')
        world.tick(10.0)
    world.beat(attempt.session)
    world.tick(10.0)
    assert world.session(attempt).silent_polls == 0
    assert world.ledger.attempt(attempt.id).state is AttemptState.RUNNING


def test_nobody_is_judged_while_the_store_cannot_be_read(world: World, tmp_path: Path) -> None:
    """The mount is away for an hour: that is our deafness, not the agent's silence."""
    job = world.submit()
    attempt = world.up(job)
    (tmp_path / "store").rename(tmp_path / "unplugged")
    for _ in range(60):
        report = world.tick(60.0)
        assert any("store" in problem for problem in report.problems)
    (tmp_path / "unplugged").rename(tmp_path / "store")
    assert world.ledger.attempt(attempt.id).state is AttemptState.RUNNING
    assert world.session(attempt).silent_polls <= 1


def test_an_unknown_platform_word_ends_nothing(world: World) -> None:
    """The raw word is kept; the attempt lives as long as its heart beats."""
    job = world.submit()
    attempt = world.up(job)
    world.platform.seen[attempt.session] = Observation(state=PlatformState.UNKNOWN, raw="QUANTUM")
    for _ in range(30):
        world.beat(attempt.session)
        world.tick(10.0)
    assert world.ledger.attempt(attempt.id).state is AttemptState.RUNNING
    assert world.session(attempt).raw_state == "QUANTUM"


def test_a_refused_launch_costs_nothing_and_the_platform_is_left_alone_for_a_while(
    world: World,
) -> None:
    """No capacity: the job waits again, the reserve is released, the next tick does not knock again."""
    world.platform.fault = NoCapacityError("no T4 is free")
    job = world.submit()
    report = world.tick()
    assert any("no T4 is free" in problem for problem in report.problems)
    assert world.job(job).state is JobState.PENDING
    assert world.job(job).failures == 0
    assert amounts(world, EntryKind.RELEASE) == amounts(world, EntryKind.RESERVE)
    assert sum(amounts(world, EntryKind.CHARGE)) == 0
    world.platform.fault = None
    world.tick(1.0)
    assert not world.platform.started
    world.tick(300.0)
    assert world.job(job).state is JobState.ACTIVE


def test_an_answer_lost_after_accepting_leads_to_adoption_and_not_to_a_second_session(
    world: World,
) -> None:
    """5xx after accepting: find() knows the key, and the session is the one that was planned."""
    world.platform.fault, world.platform.accept_first = UnreachableError("502"), True
    job = world.submit()
    world.tick()
    world.platform.fault = None
    attempt = world.up(job)
    assert list(world.platform.started) == [attempt.session]
    assert attempt.number == 1
    assert attempt.state is AttemptState.RUNNING


def test_a_cancelled_job_is_stopped_and_its_late_result_refused(world: World) -> None:
    """Cancel wins over a completion that arrives afterwards."""
    job = world.submit()
    attempt = world.up(job)
    world.ledger.cancel_job(job.id, at=BEGIN + timedelta(seconds=5))
    world.beat(attempt.session)
    world.tick(1.0)
    assert [t["kind"] for t in world.tickets(attempt.session)] == [wire.RUN, wire.CANCEL]
    world.says(attempt, wire.ENDED, reason="completed", exit_code=0, outputs=world.result(attempt))
    world.beat(attempt.session)
    world.tick(1.0)
    assert world.job(job).state is JobState.CANCELLED
    assert world.job(job).result_attempt == ""
    assert world.ledger.attempt(attempt.id).state is AttemptState.ENDED


def test_a_card_that_the_job_cannot_use_is_a_wrong_card(world: World) -> None:
    """A T4 was asked for, a K80 came: the job is taken off and the place avoided."""
    job = world.submit(needs=Needs(accelerators=(Accelerator(card="T4"),)))
    world.tick()
    attempt = world.attempt(job)
    world.hello(attempt.session, card="Tesla K80")
    world.beat(attempt.session)
    world.tick(1.0)
    stop = next(t for t in world.tickets(attempt.session) if t["kind"] == wire.STOP)
    assert stop["reason"] == EndReason.WRONG_CARD
    world.says(attempt, wire.ENDED, reason="wrong_card", outputs=None)
    world.beat(attempt.session)
    world.tick(1.0)
    assert world.ledger.attempt(attempt.id).reason is EndReason.WRONG_CARD
    assert world.job(job).state is JobState.PENDING
    assert world.job(job).failures == 0


def test_a_failing_command_is_tried_again_and_then_fails_the_job(world: World) -> None:
    """retry.failures: 1 forgives one; the second ends it with the sentence that says so."""
    job = world.submit()
    for number in (1, 2):
        attempt = world.up(job)
        assert attempt.number == number
        world.says(
            attempt, wire.ENDED, reason="command_failed", exit_code=3, detail="boom", outputs=None
        )
        world.beat(attempt.session, state="ended")
        world.tick(1.0)
        world.tick(10.0)
    failed = world.job(job)
    assert failed.state is JobState.FAILED
    assert "failed 2 times" in failed.why


def test_two_jobs_fill_a_session_of_two_cards_and_a_third_follows_in_a_free_slot(
    world: World,
) -> None:
    """T4 x2: one session, two slots; when one is free the next job goes there without a new session."""
    world.platform.count = 2
    world.platform.capabilities = replace(world.platform.capabilities, max_concurrent=1)
    jobs = [world.submit(f"job{n}") for n in range(3)]
    world.tick()
    first, second = world.attempt(jobs[0]), world.attempt(jobs[1])
    assert first.session == second.session
    assert {first.slot, second.slot} == {0, 1}
    world.hello(first.session)
    for attempt in (first, second):
        world.says(attempt, wire.STARTED, resumed=False)
    world.says(first, wire.ENDED, reason="completed", exit_code=0, outputs=None)
    world.beat(first.session)
    world.tick(5.0)
    third = world.attempt(jobs[2])
    assert third.session == first.session
    assert third.slot == first.slot
    assert len(world.platform.started) == 1


def test_an_idle_session_that_draws_on_quota_is_ended(world: World) -> None:
    """Nothing waits and nothing runs: it is drained, so that the quota is not burned."""
    job = world.submit()
    attempt = world.up(job)
    world.says(attempt, wire.ENDED, reason="completed", exit_code=0, outputs=None)
    world.beat(attempt.session, state="idle")
    world.tick(5.0)
    assert world.tickets(attempt.session)[-1]["kind"] == wire.DRAIN
    assert world.session(attempt).state is SessionState.ENDING


class Dies(BaseException):
    """The process is gone: nothing in it may catch this."""


class MortalStore(FolderStore):
    """Dies before or after its n-th write."""

    def __init__(self, root: Path, limit: int, *, after: bool) -> None:
        super().__init__(root, sync=False)
        self.limit, self.after, self.writes = limit, after, 0

    def _count(self, write: Callable[[], Any]) -> Any:
        self.writes += 1
        if self.writes == self.limit and not self.after:
            raise Dies
        result = write()
        if self.writes == self.limit:
            raise Dies
        return result

    def put(self, key: str, source: Source) -> None:
        self._count(lambda: super(MortalStore, self).put(key, source))

    def put_new(self, key: str, source: Source) -> bool:
        made: bool = self._count(lambda: super(MortalStore, self).put_new(key, source))
        return made


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("limit", range(1, 7))
def test_a_tick_that_dies_at_any_write_to_the_store_is_made_good_by_the_next(
    world: World, tmp_path: Path, limit: int, after: bool
) -> None:
    """No ticket is missing or doubled, no number of the inbox stays empty, one session is started."""
    job = world.submit()
    store = MortalStore(tmp_path / "store", limit, after=after)
    died = False
    for step in range(4):
        world.reconciler = world.make_reconciler(store)
        try:
            world.tick(2.0)
        except Dies:
            died = True
            world.reconciler = world.make_reconciler()
            world.tick(2.0)
        attempt = world.attempt(job)
        if step == 0:
            world.hello(attempt.session)
            world.says(attempt, wire.STARTED, resumed=False)
        if step == 2:
            world.ledger.cancel_job(job.id, at=BEGIN)
        world.beat(attempt.session)
    session = world.session(attempt)
    tickets = world.tickets(session.id)
    assert [t["seq"] for t in tickets] == list(range(1, session.inbox_next))
    kinds = [t["kind"] for t in tickets]
    assert kinds.count(wire.RUN) == 1
    assert kinds.count(wire.CANCEL) == 1
    assert len(world.ledger.sessions(open_only=True)) == 1
    assert died or limit > store.writes


def test_a_start_that_dies_at_the_platform_is_adopted_or_closed_by_the_next_tick(
    world: World,
) -> None:
    """Killed before the call: the plan is closed and made anew. Killed after it: the session is adopted."""
    start = world.platform.start

    def dies_before(request: Request, /) -> SessionRef:
        raise Dies

    def dies_after(request: Request, /) -> SessionRef:
        start(request)
        raise Dies

    job = world.submit()
    world.platform.start = dies_before  # type: ignore[method-assign]
    with pytest.raises(Dies):
        world.tick()
    world.platform.start = dies_after  # type: ignore[method-assign]
    with pytest.raises(Dies):
        world.tick(1.0)
    world.platform.start = start  # type: ignore[method-assign]
    attempt = world.up(job)
    assert list(world.platform.started) == [attempt.session]
    assert attempt.number == 2
    closed = world.ledger.attempts(job=job.id)[0]
    assert closed.reason is EndReason.LAUNCH_FAILED
    assert sum(amounts(world, EntryKind.RELEASE)) < sum(amounts(world, EntryKind.RESERVE))


class _Metered(FolderStore):
    """A store behind an API: every call is a request that somebody counts."""

    calls: list[str]

    @property
    def properties(self) -> Properties:
        return replace(super().properties, min_poll=5.0)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.calls.append(f"get {key}")
        return super().get(key, start, end)

    def list(self, prefix: str, after: str = "") -> list[str]:
        self.calls.append(f"list {prefix}")
        return super().list(prefix, after)

    def put(self, key: str, source: Source) -> None:
        self.calls.append(f"put {key}")
        super().put(key, source)

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        self.calls.append(f"stat {key}")
        return super().stat(key, digest)


def test_an_idle_session_costs_a_store_behind_an_api_one_request_in_15_s(world: World) -> None:
    """A tick every 5 s for ten minutes, the agent's heartbeat every 15 s; what it says last is still heard."""
    world.settings = replace(world.settings, beat_s=15.0)
    job = world.submit()
    attempt = world.up(job)
    world.says(
        attempt,
        wire.ENDED,
        reason="completed",
        exit_code=0,
        seconds=1.0,
        outputs=world.result(attempt),
    )
    world.submit("another", needs=Needs(accelerators=(Accelerator(card="H100"),)))  # keeps it open
    world.beat(attempt.session, state="idle", inbox_seq=9)
    world.tick(5.0)
    metered = _Metered(world.store.root, sync=False)
    metered.calls = []
    world.reconciler = world.make_reconciler(metered)
    world.tick(15.0)
    metered.calls.clear()
    for number in range(120):
        if number % 3 == 0:
            world.beat(attempt.session, state="idle", uptime=5.0 * number, inbox_seq=9)
        world.tick(5.0)
    looks = [call for call in metered.calls if not call.startswith("put")]
    assert len(looks) <= 600 / 15 + 1, looks[:10]
    assert len(metered.calls) - len(looks) <= 600 / 60 + 1
    world.beat(attempt.session, state="ended", uptime=700.0)
    for _ in range(4):
        world.tick(5.0)
    assert world.session(attempt).state is SessionState.ENDED


def test_a_platform_whose_agents_cannot_open_the_store_is_left_alone_and_says_why(
    world: World,
) -> None:
    """A store that only we reach: nothing is started until its table says how it sees the store."""
    job = world.submit()
    seen = world.settings.store
    world.settings = replace(world.settings, store="sftp://me@box/data")
    world.reconciler = world.make_reconciler()
    world.tick()
    assert world.job(job).state is JobState.PENDING
    (place,) = world.reconciler.places([], [])
    assert "an agent cannot open sftp://me@box/data" in place.blocked_why
    table = config.PlatformSettings(name="pretend", adapter="tests", store=seen)
    world.settings = replace(world.settings, platforms={"pretend": table})
    world.reconciler = world.make_reconciler()
    world.tick(1.0)
    assert world.job(job).state is JobState.ACTIVE
    (request,) = world.platform.started.values()
    assert request.payload["profile"]["store"] == seen


class _Reads(FolderStore):
    """Counts the blobs that are read to have their digest."""

    digested: list[str]

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        if digest:
            self.digested.append(key)
        return super().stat(key, digest)


def test_a_blob_is_read_once_and_its_size_is_asked_each_time(world: World) -> None:
    """What a confirmed checkpoint holds is not read again with the next one; if it is cut off, that one does not count."""
    job = world.submit()
    attempt = world.up(job)
    reading = _Reads(world.store.root, sync=False)
    reading.digested = []
    world.reconciler = world.make_reconciler(reading)

    def checkpoint(generation: int, *blobs: bytes) -> None:
        parts = []
        for data in blobs:
            key = wire.attempt_blob_key(attempt.id, wire.sha256(data))
            world.store.put_new(key, data)
            parts.append(wire.Part(key=key, sha256=wire.sha256(data), size=len(data)))
        whole = b"".join(blobs)
        file = wire.File("state", len(whole), wire.sha256(whole), 0, 0o644, tuple(parts))
        manifest = wire.Manifest(
            job.id, attempt.id, attempt.epoch, generation, generation, 0.0, (file,)
        ).to_bytes()
        key = wire.checkpoint_key(job.id, attempt.epoch, generation)
        world.store.put(key, manifest)
        world.says(
            attempt,
            wire.CHECKPOINT,
            key=key,
            sha256=wire.sha256(manifest),
            generation=generation,
            step=generation,
            size=len(whole),
            age_s=0.0,
        )
        world.beat(attempt.session)
        world.tick(1.0)

    frozen = b"the frozen model"
    checkpoint(1, frozen, b"adapter 1")
    checkpoint(2, frozen, b"adapter 2")
    found = world.job(job).checkpoint
    assert found is not None
    assert found.generation == 2
    key = wire.attempt_blob_key(attempt.id, wire.sha256(frozen))
    assert reading.digested.count(key) == 1
    assert len(reading.digested) == 3
    (world.store.root / key).write_bytes(frozen[:5])
    checkpoint(3, frozen, b"adapter 3")
    found = world.job(job).checkpoint
    assert found is not None
    assert found.generation == 2

"""Ticks and looks when platforms hang, are away, leave something behind, or run sessions that nothing reaches."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from freegpu.adapters.base import (
    Collected,
    Launch,
    Observation,
    Offer,
    PlatformState,
    Request,
    SessionRef,
)
from freegpu.agent import wire
from freegpu.agent.stores.folder import FolderStore
from freegpu.errors import UnreachableError
from freegpu.jobs.lifecycle import AttemptState, EndReason, JobState, SessionState
from freegpu.orchestrator import standing
from freegpu.orchestrator.lanes import Lanes
from tests.integration.test_tick import Platform, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.reconciler.lanes = Lanes(patience_s=0.3)
    yield made
    made.ledger.close()


class Hanging(Platform):
    """Answers nothing until its gate opens."""

    def __init__(self) -> None:
        super().__init__(name="hanging")
        self.gate = threading.Event()
        self.asked = 0

    def offers(self) -> Sequence[Offer]:
        self.asked += 1
        self.gate.wait(60)
        return super().offers()


def test_a_platform_that_hangs_keeps_no_tick_from_using_another(world: World) -> None:
    """The job starts elsewhere within the patience, the hanging one is named, and is asked once."""
    hanging = Hanging()
    world.adapters["hanging"] = hanging
    job = world.submit()
    report = world.tick()
    assert world.attempt(job).platform == "pretend"
    assert any(problem.startswith("hanging: no answer") for problem in report.problems)
    world.submit("another")
    world.tick(1.0)
    assert hanging.asked == 1
    hanging.gate.set()


def test_a_platform_that_is_away_is_shown_as_it_was_and_starts_nothing(world: World) -> None:
    """The last offers with their moment, also to a process that never saw it answer."""
    there = Platform(name="far")
    there.capabilities = replace(there.capabilities, here=False)
    world.settings = replace(world.settings, platforms={}, store=world.settings.store)
    world.adapters.clear()
    world.adapters["far"] = there
    world.reconciler.places([], [])
    seen_at = world.reconciler.now()
    world.clock.now += 7200

    def away() -> Sequence[Offer]:
        raise UnreachableError("no route to it")

    there.offers = away  # type: ignore[method-assign]
    again = world.make_reconciler()
    problems: list[str] = []
    (place,) = again.places([], problems)
    assert place.as_of == seen_at
    assert place.blocked_until is not None
    assert problems == ["far: no route to it"]
    assert [offer.card for offer in standing.last_offers(world.ledger, "far")[0]] == ["T4"]


class SlowStart(Platform):
    """Its start takes until the gate opens, as an upload of minutes does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.starts = 0

    def start(self, request: Request, /) -> SessionRef:
        self.starts += 1
        self.gate.wait(60)
        return super().start(request)


def test_a_start_that_outlasts_its_tick_is_neither_given_up_nor_made_twice(world: World) -> None:
    """Ticks go on meanwhile; when it is through, the session is the one that was planned."""
    slow = SlowStart()
    world.adapters["pretend"] = slow
    job = world.submit()
    world.tick()
    planned = world.session(world.attempt(job))
    assert planned.state is SessionState.PLANNED
    for _ in range(3):
        world.tick(5.0)
    assert world.session(world.attempt(job)).id == planned.id
    assert slow.starts == 1
    slow.gate.set()
    world.reconciler.lanes.finish()
    world.tick(1.0)
    assert world.session(world.attempt(job)).state is SessionState.STARTING
    assert world.attempt(job).number == 1


def test_an_agent_that_is_up_before_its_platform_answers_leaves_no_session_without_a_name(
    world: World,
) -> None:
    """Google's program still runs when the agent says hello. The answer is taken, and the session can be ended."""
    slow = SlowStart()
    world.adapters["pretend"] = slow
    job = world.submit()
    world.tick()
    attempt = world.attempt(job)
    world.hello(attempt.session)
    world.beat(attempt.session)
    for _ in range(3):
        world.tick(5.0)
    slow.gate.set()
    world.reconciler.lanes.finish()
    world.tick(1.0)
    world.tick(1.0)
    session = world.session(attempt)
    assert (session.state, session.ref) == (SessionState.LIVE, attempt.session)
    assert not world.reconciler.lanes.busy


def test_a_session_heard_while_its_platform_could_not_be_asked_gets_its_name_later(
    world: World,
) -> None:
    """After a crash in the middle of a start: live by its own hello, then found in the account."""
    platform = Platform()
    world.adapters["pretend"] = platform

    def cut(request: Request, /) -> SessionRef:
        Platform.start(platform, request)
        raise UnreachableError("connection cut after accepting")

    def unreachable(key: str, /) -> SessionRef | None:
        raise UnreachableError("502")

    platform.start, find = cut, platform.find  # type: ignore[method-assign]
    platform.find = unreachable  # type: ignore[method-assign]
    job = world.submit()
    world.tick()
    attempt = world.attempt(job)
    world.hello(attempt.session)
    world.beat(attempt.session)
    world.tick(1.0)
    assert (world.session(attempt).state, world.session(attempt).ref) == (SessionState.LIVE, "")
    platform.find = find  # type: ignore[method-assign]
    world.tick(1.0)
    assert (world.session(attempt).state, world.session(attempt).ref) == (
        SessionState.LIVE,
        attempt.session,
    )


class Littering(Platform):
    """Its sessions leave something behind."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[str] = []
        self.tidied: list[str] = []
        self.stuck = True

    def start(self, request: Request, /) -> SessionRef:
        self.left.append(request.key)
        return super().start(request)

    def tidy(self, ref: SessionRef, /) -> None:
        if self.stuck:
            raise UnreachableError("502")
        self.tidied.append(ref)


def test_what_a_session_leaves_behind_is_removed_once_also_after_a_crash(world: World) -> None:
    """Noted before the session ends; tried again by whoever ticks later, until the platform says yes."""
    littering = Littering()
    world.adapters["pretend"] = littering
    job = world.submit()
    attempt = world.up(job)
    world.says(attempt, wire.ENDED, reason="completed", exit_code=0, seconds=1.0, outputs=None)
    world.beat(attempt.session, state="ended", uptime=9.0)
    report = world.tick(10.0)
    assert world.session(attempt).state is SessionState.ENDED
    assert any("left on pretend: 502" in problem for problem in report.problems)
    littering.stuck = False
    world.reconciler = world.make_reconciler()  # another process
    world.tick(1.0)
    assert littering.tidied == [], "not at once again"
    world.tick(600.0)
    world.tick(600.0)
    assert littering.tidied == [attempt.session]


class Doubtful(Platform):
    """A start of it may have got something that nobody has seen yet."""

    def __init__(self) -> None:
        super().__init__()
        self.doubt, self.settled, self.stuck = False, 0, False

    def unsettled(self) -> bool:
        return self.doubt

    def settle(self) -> None:
        if self.stuck:
            raise UnreachableError("502")
        self.settled += 1
        self.doubt = False


def test_what_a_start_may_have_got_is_settled_by_any_tick_also_with_nothing_to_do(
    world: World,
) -> None:
    """No job waits and no session is open: what came late costs all the same. Asked only while there is a doubt."""
    doubtful = Doubtful()
    world.adapters["pretend"] = doubtful
    world.tick()
    assert doubtful.settled == 0
    doubtful.doubt = doubtful.stuck = True
    assert "pretend: 502" in world.tick(1.0).problems
    doubtful.stuck = False
    world.tick(1.0)
    world.tick(1.0)
    assert doubtful.settled == 1


class Sealed(Platform):
    """Its sessions reach nothing: what they need goes in, what they wrote comes out when they are over."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, sealed=True, here=False)
        self.folder = folder
        self.trees: dict[str, str] = {}

    def render(self, launch: Launch, /) -> Request:
        payload = {"profile": launch.profile.to_json(), "tree": launch.tree}
        return Request(key=launch.key, payload=payload)

    def start(self, request: Request, /) -> SessionRef:
        shutil.copytree(str(request.payload["tree"]), self.folder / request.key)
        return super().start(request)

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        shutil.copytree(self.folder / ref, into, dirs_exist_ok=True, symlinks=True)
        return Collected(files=1, whole=True)


def in_there(world: World, platform: Sealed, session: str) -> World:
    """The voice of the agent that works on the session's own folder."""
    agent = object.__new__(World)
    agent.__dict__.update(world.__dict__)
    agent.store = FolderStore(platform.folder / session, sync=False)
    agent.outbox, agent.counters = {}, {}
    return agent


def test_a_sealed_session_takes_its_job_along_and_brings_the_checkpoint_home(
    world: World, tmp_path: Path
) -> None:
    """Ticket and base go in; nothing is expected of it while it runs; lost, its job goes on from what came home."""
    platform = Sealed(tmp_path / "far")
    world.adapters["pretend"] = platform
    job = world.submit()
    world.tick()
    first = world.attempt(job)
    inside = in_there(world, platform, first.session)
    assert [t["kind"] for t in inside.tickets(first.session)] == [wire.RUN]
    world.tick(3000.0)
    assert world.attempt(job).id == first.id, "silence means nothing here"
    inside.hello(first.session)
    inside.says(first, wire.STARTED, resumed=False)
    inside.checkpoint(first, 1)
    inside.beat(first.session, uptime=500.0)
    world.platform = platform
    platform.seen[first.session] = Observation(state=PlatformState.ENDED, raw="ERROR")
    world.tick(5.0)
    assert world.ledger.attempt(first.id).reason is EndReason.LOST
    checkpoint = world.job(job).checkpoint
    assert checkpoint is not None
    assert checkpoint.generation == 1
    second = world.attempt(job)
    assert (second.base_epoch, second.base_generation) == (first.epoch, 1)
    blob = next(iter(inside.manifest(first, 1, b"state 1").blobs())).key
    assert (platform.folder / second.session / blob).read_bytes() == b"state 1"
    inside = in_there(world, platform, second.session)
    inside.hello(second.session)
    inside.says(second, wire.STARTED, resumed=True)
    inside.says(
        second,
        wire.ENDED,
        reason="completed",
        exit_code=0,
        seconds=100.0,
        outputs=inside.result(second),
    )
    inside.beat(second.session, state="ended", uptime=120.0)
    platform.seen[second.session] = Observation(state=PlatformState.ENDED, raw="COMPLETE")
    world.tick(100.0)
    assert world.job(job).state is JobState.SUCCEEDED
    assert world.session(second).charged_s == 120.0
    assert not list((world.home / "sessions").rglob("coming")), (
        "what came home lies in the store now"
    )


def test_a_cancelled_job_in_a_sealed_session_ends_the_session(world: World, tmp_path: Path) -> None:
    """No ticket reaches it: the platform is asked to end it, at once."""
    platform = Sealed(tmp_path / "far")
    world.adapters["pretend"] = platform
    job = world.submit()
    world.tick()
    session = world.attempt(job).session
    world.ledger.cancel_job(job.id, at=world.reconciler.now())
    world.tick(1.0)
    world.tick(1.0)
    assert platform.stopped == [session]
    assert world.attempt(job).state is AttemptState.ENDED


@pytest.mark.parametrize(
    "key",
    [
        "freegpu.json",
        "sessions/s-other/hello.json",
        "attempts/other.1/blobs/" + "0" * 64,
        "sessions/{session}/inbox/000009.json",
        "sessions/{session}/orchestrator-beat.json",
        "jobs/{job}/checkpoints/999999-000001.json",
        "blobs/aa/" + "a" * 64,
    ],
)
def test_what_a_sealed_session_has_no_business_to_write_stays_out_of_the_store(
    world: World, tmp_path: Path, key: str
) -> None:
    """A platform, or whoever got into it, can write what it likes into the output; we take what is the session's own."""
    platform = Sealed(tmp_path / "far")
    world.adapters["pretend"] = platform
    job = world.submit()
    world.tick()
    attempt = world.attempt(job)
    key = key.format(session=attempt.session, job=job.id)
    before = world.store.get(key) if world.store.stat(key) else None
    evil = platform.folder / attempt.session / key
    evil.parent.mkdir(parents=True, exist_ok=True)
    evil.write_bytes(b"evil")
    link = platform.folder / attempt.session / "sessions" / attempt.session / "hello.json"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(world.home / "state.db")
    platform.seen[attempt.session] = Observation(state=PlatformState.ENDED, raw="COMPLETE")
    world.tick(1.0)
    assert (world.store.get(key) if world.store.stat(key) else None) == before
    assert world.store.stat(wire.hello_key(attempt.session)) is None
    assert world.ledger.attempt(attempt.id).state is AttemptState.ENDED


def test_a_sealed_session_that_outlives_its_time_is_ended(world: World, tmp_path: Path) -> None:
    """A platform that says RUNNING for ever is not believed beyond the session's limit."""
    platform = Sealed(tmp_path / "far")
    world.adapters["pretend"] = platform
    job = world.submit()
    world.tick()
    session = world.attempt(job).session
    world.tick(3600.0 + 60.0)
    assert platform.stopped == []
    world.tick(600.0)
    assert platform.stopped == [session]

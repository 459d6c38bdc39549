"""A copied home on two laptops: one of them works at a time, and a person says which."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from freegpu import config
from freegpu.errors import LedgerError
from freegpu.jobs.lifecycle import JobState
from freegpu.jobs.model import JobSpec, Needs
from freegpu.orchestrator import operations
from freegpu.orchestrator.model import NewJob
from freegpu.orchestrator.operations import Workspace
from freegpu.testing.clock import ManualClock

Opener = Callable[[Path, str], Workspace]


@pytest.fixture
def open_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Open a home as if on the named machine, with one store for all."""
    (tmp_path / "store").mkdir()
    with ExitStack() as stack:

        def opened(home: Path, machine: str) -> Workspace:
            monkeypatch.setattr(operations, "this_machine", lambda _: machine)
            settings = replace(config.load({}, home=home), store=f"folder:{tmp_path / 'store'}")
            workspace = stack.enter_context(Workspace.open(settings, clock=ManualClock()))
            assert workspace.whereabouts.machine == machine
            return workspace

        yield opened


def submit(workspace: Workspace) -> str:
    spec = JobSpec(name="j", run="true", needs=Needs(platforms=("nowhere",)))
    return workspace.ledger.add_jobs([NewJob(spec=spec)], why="test")[0].id


def test_a_copy_does_nothing_until_a_person_says_so_and_then_the_original_stops(
    tmp_path: Path, open_home: Opener
) -> None:
    """Each refusal names the other place and the way out; looking is never refused; it can be taken back."""
    first = open_home(tmp_path / "home", "laptop-a")
    job = submit(first)
    assert first.tick().did
    first.close()
    shutil.copytree(tmp_path / "home", tmp_path / "copy")

    copy = open_home(tmp_path / "copy", "laptop-b")
    with pytest.raises(LedgerError, match="is a copy or was moved") as refused:
        copy.tick()
    assert str(tmp_path / "home") in refused.value.message
    assert "freegpu init --here" in refused.value.hint
    assert copy.ledger.job(job).state is JobState.PENDING
    assert open_home(tmp_path / "home", "laptop-a").tick().did

    copy.init(here=True)
    assert copy.tick().did
    original = open_home(tmp_path / "home", "laptop-a")
    with pytest.raises(LedgerError, match="goes on at") as refused:
        original.tick()
    assert str(tmp_path / "copy") in refused.value.message
    assert original.jobs()

    original.init(here=True)
    assert original.tick().did
    with pytest.raises(LedgerError, match="goes on at"):
        open_home(tmp_path / "copy", "laptop-b").tick()


def test_the_original_notices_within_a_minute_while_it_works(
    tmp_path: Path, open_home: Opener
) -> None:
    """A daemon asks the store once a minute, not at every tick."""
    first = open_home(tmp_path / "home", "laptop-a")
    assert first.tick().did
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    open_home(tmp_path / "copy", "laptop-b").init(here=True)
    assert first.tick().did
    assert isinstance(first.clock, ManualClock)
    first.clock.advance(61)
    with pytest.raises(LedgerError, match="goes on at"):
        first.tick()


def test_what_nobody_of_this_home_signed_moves_nothing(tmp_path: Path, open_home: Opener) -> None:
    """A stranger who may write into the store cannot stop a home."""
    first = open_home(tmp_path / "home", "laptop-a")
    assert first.tick().did
    for data in (b"", b"{}", b'{"term": 99, "machine": "x", "format": 1, "signature": "00"}'):
        (tmp_path / "store" / "orchestrator.json").write_bytes(data)
        assert open_home(tmp_path / "home", "laptop-a").tick().did


def test_a_machine_without_a_name_is_not_judged(tmp_path: Path, open_home: Opener) -> None:
    """In many containers there is none."""
    assert open_home(tmp_path / "home", "").tick().did
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    assert open_home(tmp_path / "copy", "").tick().did

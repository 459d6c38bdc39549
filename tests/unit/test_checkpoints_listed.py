"""A job's checkpoints as they really are: listed over ledger and store, and brought home whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu.agent import transfer, wire
from freegpu.agent.snapshot import Item
from freegpu.errors import ChecksumError, ConfigError, NotReadyError, SharedStoreError
from freegpu.orchestrator.model import Attempt, Checkpoint
from tests.unit.test_collect import Yard


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path / "home")
    yield made
    made.workspace.close()


def saved(yard: Yard, attempt: Attempt, generation: int, files: dict[str, bytes]) -> Checkpoint:
    """A checkpoint as an agent makes it, several files to a blob; confirmed."""
    folder = yard.home / "saved" / attempt.id / str(generation)
    items = []
    for number, (name, data) in enumerate(sorted(files.items())):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        items.append(Item(name, path, len(data), (10 + number) * 10**17, 0o640))
    parts = transfer.upload(yard.store, attempt.id, items, {})
    manifest = wire.Manifest(
        attempt.job, attempt.id, attempt.epoch, generation, 7 * generation, 1.7e9, parts
    )
    key = wire.checkpoint_key(attempt.job, attempt.epoch, generation)
    yard.store.put(key, manifest.to_bytes())
    made = Checkpoint(
        key=key,
        sha256=wire.sha256(manifest.to_bytes()),
        attempt=attempt.id,
        epoch=attempt.epoch,
        generation=generation,
        step=manifest.step,
        size=manifest.size,
        confirmed_at=yard.now,
        sent=manifest.size // 2,
        confirmed_by="store",
    )
    assert yard.ledger.confirm_checkpoint(made, attempt.job, saved_at=yard.now)
    assert yard.ledger.job(attempt.job).checkpoint == made, "what was sent and who confirmed it too"
    return made


FILES = {"checkpoint-9/model.bin": b"weights" * 100, "checkpoint-9/state.json": b"{}", "a": b""}


def test_every_generation_is_listed_with_what_it_is_now(yard: Yard) -> None:
    """Over all attempts, newest first: unconfirmed, confirmed, base of what runs, and what its agent has deleted."""
    job = yard.job()
    first = yard.attempt(job)
    for generation in (1, 2, 3):
        saved(yard, first, generation, FILES)
    yard.store.delete(wire.checkpoint_key(job.id, first.epoch, 1))  # as its agent does
    yard.end(first)
    second = yard.attempt(job)
    assert (second.base_epoch, second.base_generation) == (first.epoch, 3)
    yard.checkpoint(second, 1, confirmed=False)
    yard.store.put(wire.checkpoint_key(job.id, second.epoch, 2), b'{"torn')
    yard.store.put(f"{wire.checkpoint_prefix(job.id)}/notes.txt", b"somebody's")
    found = yard.workspace.checkpoints(job.id).checkpoints
    e1, e2 = first.epoch, second.epoch
    assert [(one.name, one.state, one.number) for one in found] == [
        (f"{e2}-2", "unconfirmed", 2),
        (f"{e2}-1", "unconfirmed", 2),
        (f"{e1}-3", "base", 1),
        (f"{e1}-2", "confirmed", 1),
        (f"{e1}-1", "deleted", 1),
    ]
    assert [one.size for one in found[:2]] == [None, len(f"{second.id} state 1")]
    assert (found[2].step, found[2].size, found[2].sent) == (21, 702, 351)
    assert {one.confirmed_by for one in found[2:]} == {"store"}
    assert {one.confirmed_by for one in found[:2]} == {""}
    yard.end(second)
    assert yard.workspace.checkpoints(job.id).checkpoints[2].state == "confirmed"


def test_a_job_without_checkpoints_has_an_empty_list(yard: Yard) -> None:
    """And none can be brought."""
    job = yard.job()
    assert yard.workspace.checkpoints(job.id).checkpoints == ()
    with pytest.raises(NotReadyError, match="no confirmed checkpoint yet"):
        yard.workspace.pull_checkpoint(job.id, None)


@pytest.mark.parametrize(
    ("which", "name"),
    [("latest", "2-1"), ("2-1", "2-1"), ("1", "2-1"), ("1-1", "1-1"), ("2", "1-2")],
)
def test_the_checkpoint_that_is_meant_is_brought_with_its_times(
    yard: Yard, tmp_path: Path, which: str, name: str
) -> None:
    """A generation alone is the newest attempt's that has it."""
    job = yard.job()
    for generations in (2, 1):
        attempt = yard.attempt(job)
        for number in range(1, generations + 1):
            saved(yard, attempt, number, {**FILES, "who": f"{attempt.number}-{number}".encode()})
        yard.end(attempt)
    pulled = yard.workspace.pull_checkpoint(job.id, tmp_path / "into", which=which)
    assert (tmp_path / "into" / "who").read_bytes() == name.encode()
    assert set(pulled.files) == {*FILES, "who"}
    assert pulled.checkpoint.rpartition("-")[2] == name.rpartition("-")[2]
    assert (tmp_path / "into" / "a").stat().st_mtime_ns == 10**18
    for path, data in FILES.items():
        assert (tmp_path / "into" / path).read_bytes() == data


@pytest.mark.parametrize("which", ["9", "9-1", "x", "1-1-1", "-1", "", "latest ", "²"])
def test_one_that_does_not_exist_is_refused_by_name(yard: Yard, which: str) -> None:
    """Nothing is written."""
    job = yard.job()
    saved(yard, yard.attempt(job), 1, FILES)
    with pytest.raises(NotReadyError, match="no confirmed checkpoint"):
        yard.workspace.pull_checkpoint(job.id, None, which=which)


def test_a_folder_with_something_in_it_stays_unless_it_is_forced(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --force it is replaced as a whole; never the one a person is in, or one that holds it."""
    job = yard.job()
    saved(yard, yard.attempt(job), 1, FILES)
    into = tmp_path / "into"
    into.mkdir()
    (into / "mine").write_bytes(b"precious")
    with pytest.raises(ConfigError, match="not empty"):
        yard.workspace.pull_checkpoint(job.id, into)
    assert (into / "mine").exists()
    monkeypatch.chdir(into)
    for place in (into, Path(), tmp_path):
        with pytest.raises(ConfigError, match="you are in it"):
            yard.workspace.pull_checkpoint(job.id, place, force=True)
    assert (into / "mine").exists()
    monkeypatch.chdir(tmp_path)
    yard.workspace.pull_checkpoint(job.id, into, force=True)
    assert {p.relative_to(into).as_posix() for p in into.rglob("*") if p.is_file()} == set(FILES)


@pytest.mark.parametrize("damage", ["manifest gone", "blob gone", "blob torn"])
def test_what_is_not_whole_is_never_brought(yard: Yard, tmp_path: Path, damage: str) -> None:
    """The folder of an earlier pull stays as it was."""
    job = yard.job()
    checkpoint = saved(yard, yard.attempt(job), 1, FILES)
    into = tmp_path / "into"
    yard.workspace.pull_checkpoint(job.id, into)
    manifest = wire.Manifest.from_bytes(yard.store.get(checkpoint.key), checkpoint.sha256)
    blob = next(iter(manifest.blobs())).key
    if damage == "manifest gone":
        yard.store.delete(checkpoint.key)
    elif damage == "blob gone":
        yard.store.delete(blob)
    else:
        yard.store.put(blob, yard.store.get(blob)[:-1])
    with pytest.raises(ChecksumError):
        yard.workspace.pull_checkpoint(job.id, into, force=True)
    assert {p.relative_to(into).as_posix() for p in into.rglob("*") if p.is_file()} == set(FILES)


def test_a_store_that_is_away_is_said_to_be(yard: Yard) -> None:
    """Code 50, not an empty list."""
    job = yard.job()
    saved(yard, yard.attempt(job), 1, FILES)
    (yard.home / "store").rename(yard.home / "elsewhere")
    with pytest.raises(SharedStoreError):
        yard.workspace.checkpoints(job.id)
    with pytest.raises(SharedStoreError):
        yard.workspace.pull_checkpoint(job.id, None)

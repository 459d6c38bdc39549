"""Pieces into the store and back: together in blobs, several at a time, never twice, and verified."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from freegpu.agent import transfer, wire
from freegpu.agent.crew import Crew
from freegpu.agent.snapshot import Item
from freegpu.agent.stores.base import Source, StoreError, StoreGone
from freegpu.agent.stores.folder import FolderStore
from freegpu.agent.transfer import Changed, Known, Stopped, download, known_parts, upload


class Watched(FolderStore):
    """A folder that counts, and in which things go wrong when it is told so."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        (root / "freegpu.json").write_text("{}")
        super().__init__(root, sync=False)
        self.puts: list[str] = []
        self.gets: list[tuple[str, int, int | None]] = []
        self.fails: set[int] = set()
        self.lost_answers: set[int] = set()
        self.at_work = self.most_at_work = 0
        self.meet: threading.Barrier | None = None
        self._lock = threading.Lock()

    def put_new(self, key: str, source: Source) -> bool:
        with self._lock:
            self.puts.append(key)
            number = len(self.puts)
            self.at_work += 1
            self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            if self.meet:
                self.meet.wait(10)
            if number in self.fails:
                raise StoreGone("away")
            done = super().put_new(key, source)
            if number in self.lost_answers:
                raise StoreGone("no answer")
            return done
        finally:
            with self._lock:
                self.at_work -= 1

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._lock:
            self.gets.append((key, start, end))
        return super().get(key, start, end)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Blobs are full from 100 kB on."""
    monkeypatch.setattr(transfer, "_BLOB", (100_000, 100_000))
    return Watched(tmp_path / "store")


def an_item(path: Path, name: str = "") -> Item:
    info = path.stat()
    return Item(name or path.name, path, info.st_size, info.st_mtime_ns, info.st_mode & 0o777)


def files_in(folder: Path, sizes: list[int], seed: int = 0) -> list[Item]:
    rng = random.Random(seed)
    folder.mkdir(exist_ok=True)
    for index, size in enumerate(sizes):
        (folder / f"{index:03}").write_bytes(rng.randbytes(size))
    return [an_item(folder / f"{index:03}") for index in range(len(sizes))]


def manifest_of(files: tuple[wire.File, ...]) -> wire.Manifest:
    made = wire.Manifest("j-1", "a-1", 1, 1, None, 0.0, files)
    data = made.to_bytes()
    assert wire.Manifest.from_bytes(data, wire.sha256(data)) == made
    return made


def bytes_of(items: list[Item]) -> dict[str, bytes]:
    return {item.path: item.source.read_bytes() for item in items}


def back(store: Watched, files: tuple[wire.File, ...], into: Path) -> dict[str, bytes]:
    download(store, manifest_of(files), into)
    return {p.relative_to(into).as_posix(): p.read_bytes() for p in into.rglob("*") if p.is_file()}


# --- up -------------------------------------------------------------------------------------------------


def test_small_files_travel_together(store: Watched, tmp_path: Path) -> None:
    """A thousand files of a hundred bytes are one object to put and one to get; empty ones are none."""
    items = files_in(tmp_path / "a", [*[100] * 1000, 0])
    files = upload(store, "a-1", items, {})
    assert len(store.puts) == 1
    assert back(store, files, tmp_path / "into") == bytes_of(items)
    assert len(store.gets) == 1


def test_what_the_store_has_is_not_sent_again_wherever_it_stands(
    store: Watched, tmp_path: Path
) -> None:
    """Under another name, in another place, of another attempt."""
    items = files_in(tmp_path / "a", [30_000] * 10)
    known: Known = {}
    upload(store, "a-1", items, known)
    before = len(store.puts)
    moved = [Item(f"x/{i.path}", i.source, i.size, 0, 0o600) for i in reversed(items)]
    fresh = files_in(tmp_path / "b", [500], seed=1)
    files = upload(store, "a-2", [*moved, *fresh], known)
    assert len(store.puts) == before + 1
    assert {part.key.split("/")[1] for file in files for part in file.parts} == {"a-1", "a-2"}
    assert back(store, files, tmp_path / "into") == bytes_of([*moved, *fresh])


def test_equal_pieces_of_one_checkpoint_are_sent_once(store: Watched, tmp_path: Path) -> None:
    """Tied weights, zeros."""
    items = files_in(tmp_path / "a", [50_000])
    twins = [Item(f"{n}", items[0].source, 50_000, 0, 0o600) for n in range(5)]
    files = upload(store, "a-1", twins, {})
    assert len({part.key for file in files for part in file.parts}) == 1
    assert sum((store.root / key).stat().st_size for key in store.puts) == 50_000
    assert back(store, files, tmp_path / "into") == bytes_of(twins)


def test_several_blobs_are_on_their_way_at_once_and_never_more_than_four(
    store: Watched, tmp_path: Path
) -> None:
    """Each put waits until four are there: one after the other they would wait for ever."""
    store.meet = threading.Barrier(4)
    upload(store, "a-1", files_in(tmp_path / "a", [100_000] * 8), {})
    assert store.most_at_work == 4


@pytest.mark.parametrize("seed", range(10))
def test_after_failures_only_what_is_missing_is_sent(
    store: Watched, tmp_path: Path, seed: int
) -> None:
    """Blobs that arrived count even if others failed beside them, or their answer was lost: no bytes go twice in vain."""
    rng = random.Random(seed)
    items = files_in(tmp_path / "a", [rng.randint(1, 90_000) for _ in range(40)], seed)
    store.fails = set(rng.sample(range(1, 30), 4))
    store.lost_answers = set(rng.sample(range(1, 30), 4)) - store.fails
    known: Known = {}
    for _ in range(20):
        try:
            files = upload(store, "a-1", items, known)
            break
        except StoreError:
            continue
    assert back(store, files, tmp_path / "into") == bytes_of(items)
    stored = {key for key in store.list("attempts") if "/blobs/" in key}
    assert stored == {part.key for file in files for part in file.parts}, "the same blobs again"
    assert len(store.puts) <= len(stored) + len(store.fails | store.lost_answers)


def test_a_stop_ends_it_and_what_was_begun_counts(store: Watched, tmp_path: Path) -> None:
    """Nobody waits for the rest."""
    known: Known = {}
    items = files_in(tmp_path / "a", [100_000] * 50)
    with pytest.raises(Stopped):
        upload(store, "a-1", items, known, should_stop=lambda: len(store.puts) >= 3)
    assert 3 <= len(store.puts) < 15
    assert len(known) == len(store.puts)


def test_a_linked_file_that_is_written_to_is_noticed(store: Watched, tmp_path: Path) -> None:
    """Between the snapshot and the last byte that is read: its bytes are of two states."""
    (item,) = files_in(tmp_path / "a", [300_000])
    info = item.source.stat()
    linked = Item(
        item.path, item.source, item.size, 0, 0o600, (info.st_size, info.st_mtime_ns, info.st_ino)
    )
    upload(store, "a-1", [linked], {})
    with open(item.source, "r+b") as file:
        file.write(b"new")
    with pytest.raises(Changed):
        upload(store, "a-1", [linked], {})
    os.truncate(item.source, 100)
    with pytest.raises(Changed):
        upload(store, "a-1", [item], {})


@pytest.mark.parametrize("seed", range(5))
def test_what_a_manifest_keeps_in_the_store_is_bounded(
    store: Watched, tmp_path: Path, seed: int
) -> None:
    """Files change at random, and most blobs die piece by piece: after the next checkpoint the rest lies elsewhere."""
    rng = random.Random(seed)
    items = files_in(tmp_path / "a", [20_000] * 60, seed)
    known: Known = {}
    lasting: Known = {}
    held = []
    for _ in range(30):
        files = upload(store, "a-1", items, known, lasting=lasting)
        manifest = manifest_of(files)
        named = {part.key: part.size for part in manifest.blobs()}
        held.append(sum(named.values()) / manifest.size)
        thin = transfer.thin_blobs(manifest)
        lasting = {**known, **known_parts([manifest])}
        known = {piece: part for piece, part in lasting.items() if part.key not in thin}
        for item in rng.sample(items, 12):
            item.source.write_bytes(rng.randbytes(20_000))
    assert max(held) < 2.2
    assert sum(held) / len(held) < 1.7


# --- down -------------------------------------------------------------------------------------------------


def test_pieces_that_lie_together_are_fetched_together(store: Watched, tmp_path: Path) -> None:
    """Also across what the file does not need any more; the requests do not grow with the pieces."""
    items = files_in(tmp_path / "a", [10_000] * 60)
    known: Known = {}
    upload(store, "a-1", items, known)
    for item in items[::7]:
        item.source.write_bytes(os.urandom(10_000))
    files = upload(store, "a-1", items, known)
    assert back(store, files, tmp_path / "into") == bytes_of(items)
    assert len(store.gets) <= 7 + 1


def test_an_interrupted_restore_goes_on_where_it_was(
    store: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified pieces are not fetched again, torn ones are, and the folder appears only when it is whole."""
    items = files_in(tmp_path / "a", [250_000] * 12)
    files = upload(store, "a-1", items, {})
    into, real, asked = tmp_path / "into", store.get, []

    def get(key: str, start: int = 0, end: int | None = None) -> bytes:
        asked.append((key, start))
        if len(asked) == 5:
            raise StoreGone("away")
        return real(key, start, end)

    monkeypatch.setattr(store, "get", get)
    with pytest.raises(StoreGone):
        download(store, manifest_of(files), into)
    assert not into.exists()
    some = next((tmp_path / ".into.restoring").rglob("000"))
    with open(some, "r+b") as file:
        file.seek(1000)
        file.write(b"not this")
    assert back(store, files, into) == bytes_of(items)
    stored = len(store.puts)
    assert len(asked) == stored + 2, (
        "the one that failed and the one that was damaged, and no other"
    )


def test_a_file_is_checked_as_a_whole_as_it_lies_on_the_disk(tmp_path: Path) -> None:
    """Every piece is right and they make up another file: it is not taken. Nothing is read before all are in place."""
    first, second = os.urandom(17_000), os.urandom(17_000)
    path = tmp_path / "x"
    parts = []
    for data in (first, second):
        digest = wire.sha256(data)
        parts.append(wire.Part(wire.attempt_blob_key("a-1", digest), digest, len(data)))
    file = wire.File("x", 34_000, wire.sha256(first + second), 0, 0o600, tuple(parts))
    path.write_bytes(second + first)
    with pytest.raises(wire.Unreadable, match="do not make up the file"):
        transfer._Whole(file, path).finish()
    path.write_bytes(first + second)
    transfer._Whole(file, path).finish()


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    store: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the figures; and it is not the store's fault."""
    files = upload(store, "a-1", files_in(tmp_path / "a", [2_000_000]), {})
    usage = shutil._ntuple_diskusage(10_000_000, 9_000_000, 1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="needs 2 MB more, and 1 MB are free"):
        download(store, manifest_of(files), tmp_path / "into")
    assert store.gets == []


def test_parts_of_older_manifests_are_read(store: Watched, tmp_path: Path) -> None:
    """Format 1: each part is a whole blob, of up to 64 MiB."""
    data = os.urandom(70_000)
    pieces = [data[:50_000], data[50_000:]]
    parts = []
    for piece in pieces:
        key = wire.attempt_blob_key("a-1", wire.sha256(piece))
        store.put(key, piece)
        parts.append(wire.Part(key, wire.sha256(piece), len(piece)))
    file = wire.File("m/x", 70_000, wire.sha256(data), 5 * 10**9, 0o640, tuple(parts))
    assert b'"format":1' in manifest_of((file,)).to_bytes()
    assert back(store, (file,), tmp_path / "into") == {"m/x": data}
    item = tmp_path / "y"
    item.write_bytes(pieces[0])
    store.puts.clear()
    upload(store, "a-2", [an_item(item)], known_parts([manifest_of((file,))]))
    assert store.puts == [], "its parts are pieces for later checkpoints"


# --- the crew ---------------------------------------------------------------------------------------------


def test_a_single_job_is_done_by_the_caller() -> None:
    """So that a simulation of small checkpoints is the same each time."""
    crew, threads = Crew(lambda: None), []
    crew.run(lambda: threads.append(threading.current_thread()))
    crew.finish()
    assert threads == [threading.current_thread()]


def test_after_a_failure_nothing_begins_and_the_failure_is_told() -> None:
    """What has begun is waited for."""
    crew, done = Crew(lambda: None, 2), []
    gate = threading.Event()

    def fail() -> None:
        raise StoreGone("away")

    def slow() -> None:
        gate.wait(10)
        done.append("slow")

    crew.run(slow)
    crew.run(fail)
    gate_opener = threading.Timer(0.05, gate.set)
    gate_opener.start()

    def go_on() -> None:
        for _ in range(50):
            crew.run(lambda: done.append("late"))
        crew.finish()

    with pytest.raises(StoreGone):
        go_on()
    crew.wait()
    assert done.count("slow") == 1
    assert done.count("late") <= 2

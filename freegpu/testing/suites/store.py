# ruff: noqa: S101, S311 - a suite is made of asserts, and its random bytes are only to be equal each time
"""What every store must do, as tests; see StoreSuite."""

from __future__ import annotations

import hashlib
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from freegpu.agent.stores.base import ObjectMissing, Stat, Store, StoreGone
from freegpu.agent.wire import canonical

#: names that a store refuses before it looks anywhere
NOT_KEYS = (
    "",
    "/",
    "/etc/passwd",
    "..",
    "../outside",
    "jobs/../../outside",
    "jobs/./x",
    "jobs//x",
    "jobs/",
    ".hidden",
    "jobs/.hidden",
    "a b",
    "a\nb",
    "a\0b",
    "a\\b",
    "x (1).json",
    "ä",
    "$(id)",
)


@dataclass(frozen=True, slots=True)
class Shelf:
    """A store under test and the folder that the test may use."""

    folder: Path
    store: Store


class StoreSuite(ABC):
    """Subclass it as `class TestMine(StoreSuite)` and say how an empty store is made and opened.

    ::

        class TestFolder(StoreSuite):
            def begin(self, folder):
                (folder / "store").mkdir()

            def open(self, folder):
                return FolderStore(folder / "store")
    """

    def begin(self, folder: Path) -> None:  # noqa: B027 - most stores have nothing to make
        """Make an empty store; `folder` is the test's own."""

    @abstractmethod
    def open(self, folder: Path) -> Store:
        """A client of the store that belongs to this folder; called again, another client of the same one."""

    def unplug(self, folder: Path) -> bool:
        """Take the whole store away as a dying mount or a removed disk does. False: that cannot be done here."""
        return False

    def plug(self, folder: Path) -> None:  # noqa: B027 - needed only beside `unplug`
        """Undo `unplug`."""

    def litter(self, folder: Path) -> bool:
        """Leave unfinished writes and other people's files in the store's folder `jobs`. False: it has none."""
        return False

    @pytest.fixture
    def shelf(self, tmp_path: Path) -> Shelf:
        self.begin(tmp_path)
        store = self.open(tmp_path)
        store.put("freegpu.json", canonical({"format": 1, "home": "h-suite"}))
        return Shelf(tmp_path, store)

    # --- reading and writing ----------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "data", [b"", b"x", bytes(range(256)) * 17], ids=["empty", "one", "binary"]
    )
    def test_what_was_put_is_what_everybody_gets(self, shelf: Shelf, data: bytes) -> None:
        """The same bytes, for the writer and for another client."""
        shelf.store.put("jobs/a/state.bin", data)
        for client in (shelf.store, self.open(shelf.folder)):
            assert client.get("jobs/a/state.bin") == data
            assert client.stat("jobs/a/state.bin") == Stat(len(data))

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, None), (3, None), (0, 4), (3, 7), (5, 5), (7, 3), (8, 99), (10, 20), (50, None)],
    )
    def test_a_range_is_python_s_slice(self, shelf: Shelf, start: int, end: int | None) -> None:
        """[start, end), cut off at the object's end, empty beyond it."""
        shelf.store.put("jobs/range", b"0123456789")
        assert shelf.store.get("jobs/range", start, end) == b"0123456789"[start:end]

    def test_a_put_replaces(self, shelf: Shelf) -> None:
        """Longer by shorter and shorter by longer; nothing of the old one is left."""
        for data in (b"a long first version", b"short", b"a third version, longer than any"):
            shelf.store.put("sessions/s/agent-beat.json", data)
            assert shelf.store.get("sessions/s/agent-beat.json") == data

    def test_a_file_is_put_and_fetched_with_its_digest(self, shelf: Shelf, tmp_path: Path) -> None:
        """Source and target may be local files; fetch tells size and SHA-256 of what it read."""
        source, target = tmp_path / "source file", tmp_path / "target file"
        data = random.Random(1).randbytes(3_000_001)
        source.write_bytes(data)
        shelf.store.put("attempts/a-1/blobs/x", source)
        assert shelf.store.fetch("attempts/a-1/blobs/x", target) == (
            len(data),
            hashlib.sha256(data).hexdigest(),
        )
        assert target.read_bytes() == data
        assert source.read_bytes() == data

    def test_a_large_object_goes_and_comes_whole(self, shelf: Shelf, tmp_path: Path) -> None:
        """64 MiB, as checkpoints have them, and a range of it."""
        limit = shelf.store.properties.max_object
        if limit is not None and limit < 64 << 20:
            pytest.skip(f"objects of this store have at most {limit} bytes")
        block = random.Random(2).randbytes(1 << 20)
        source, digest = tmp_path / "large", hashlib.sha256()
        with open(source, "wb") as file:
            for number in range(64):
                piece = number.to_bytes(4, "big") + block[4:]
                digest.update(piece)
                file.write(piece)
        shelf.store.put("attempts/a-1/blobs/large", source)
        size, found = shelf.store.fetch("attempts/a-1/blobs/large", tmp_path / "again")
        assert (size, found) == (64 << 20, digest.hexdigest())
        assert shelf.store.get("attempts/a-1/blobs/large", 40 << 20, (40 << 20) + 4) == bytes(
            (0, 0, 0, 40)
        )

    def test_stat_tells_size_and_on_request_the_digest(self, shelf: Shelf) -> None:
        """Without asking there may be none; asked for it is the SHA-256, lower case."""
        shelf.store.put("jobs/x", b"abc")
        stat = shelf.store.stat("jobs/x", digest=True)
        assert stat == Stat(3, hashlib.sha256(b"abc").hexdigest())

    # --- what is not there ------------------------------------------------------------------------------

    def test_what_is_not_there_is_missing_and_no_trouble(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        """get and fetch say ObjectMissing, stat None, list nothing, delete nothing; also below an object."""
        shelf.store.put("jobs/leaf", b"x")
        for key in ("jobs/none", "nowhere/at/all", "jobs/leaf/below"):
            with pytest.raises(ObjectMissing):
                shelf.store.get(key)
            with pytest.raises(ObjectMissing):
                shelf.store.fetch(key, tmp_path / "none")
            assert shelf.store.stat(key) is None
            assert shelf.store.stat(key, digest=True) is None
            assert shelf.store.list(key) == []
            shelf.store.delete(key)

    def test_a_deleted_object_is_gone_and_may_be_written_again(self, shelf: Shelf) -> None:
        """Deleting twice is fine; the folder may be written to afterwards, also by another client."""
        shelf.store.put("jobs/a/x", b"1")
        shelf.store.delete("jobs/a/x")
        shelf.store.delete("jobs/a/x")
        assert shelf.store.list("jobs") == []
        with pytest.raises(ObjectMissing):
            shelf.store.get("jobs/a/x")
        self.open(shelf.folder).put("jobs/a/x", b"2")
        shelf.store.put("jobs/a/y", b"3")
        assert shelf.store.list("jobs") == ["jobs/a/x", "jobs/a/y"]

    # --- listing ----------------------------------------------------------------------------------------

    def test_a_listing_is_sorted_complete_and_of_that_folder_only(self, shelf: Shelf) -> None:
        """Deeper keys too; `job` is not `jobs`; an object is not its own folder."""
        keys = [
            "jobs/a/checkpoints/000001-000002.json",
            "jobs/a/x",
            "jobs/b",
            "jobsuite/z",
            "sessions/s/1",
        ]
        for key in reversed(keys):
            shelf.store.put(key, b"")
        assert shelf.store.list("jobs") == keys[:3]
        assert shelf.store.list("jobs/a") == keys[:2]
        assert shelf.store.list("jobs/b") == []
        assert shelf.store.list("job") == []
        assert shelf.store.list("") == sorted([*keys, "freegpu.json"])

    def test_a_listing_goes_on_after_a_key(self, shelf: Shelf) -> None:
        """`after` is exclusive, and need not be there."""
        keys = [f"sessions/s/outbox/{seq:06d}.json" for seq in range(1, 12)]
        for key in keys:
            shelf.store.put(key, b"")
        assert shelf.store.list("sessions/s/outbox", after=keys[4]) == keys[5:]
        assert shelf.store.list("sessions/s/outbox", after="sessions/s/outbox/000004") == keys[3:]
        assert shelf.store.list("sessions/s/outbox", after=keys[-1]) == []

    def test_unfinished_writes_and_other_people_s_files_are_never_listed(
        self, shelf: Shelf
    ) -> None:
        """Whatever lies there besides, a listing holds keys of whole objects and nothing else."""
        shelf.store.put("jobs/x", b"1")
        if not self.litter(shelf.folder):
            pytest.skip("nobody else can leave anything in this store")
        assert self.open(shelf.folder).list("jobs") == ["jobs/x"]

    # --- races ------------------------------------------------------------------------------------------

    def test_put_new_never_replaces(self, shelf: Shelf) -> None:
        """True for the first, False for whoever comes later, and the first one's bytes stay."""
        assert shelf.store.put_new("jobs/once", b"first") is True
        assert shelf.store.put_new("jobs/once", b"second") is False
        assert self.open(shelf.folder).put_new("jobs/once", b"third") is False
        assert shelf.store.get("jobs/once") == b"first"

    def test_of_eight_racing_put_new_exactly_one_wins(self, shelf: Shelf) -> None:
        """If the store says that it can compare and swap: one True, and it is the winner's object that stays."""
        if not shelf.store.properties.cas:
            pytest.skip("this store does not claim to compare and swap")
        for turn in range(10):
            barrier = threading.Barrier(8)
            won: list[bytes] = []

            def race(
                name: bytes,
                turn: int = turn,
                barrier: threading.Barrier = barrier,
                won: list[bytes] = won,
            ) -> None:
                client = self.open(shelf.folder)
                barrier.wait(30)
                if client.put_new(f"jobs/race-{turn}", name * 1000):
                    won.append(name * 1000)

            _together([partial(race, b"%d" % n) for n in range(8)])
            assert len(won) == 1
            assert shelf.store.get(f"jobs/race-{turn}") == won[0]

    def test_readers_see_the_old_object_or_the_new_one_and_never_half(self, shelf: Shelf) -> None:
        """Four readers beside a writer that replaces 256 KiB again and again; stat tells one of the sizes too."""
        versions = [bytes((65 + n,)) * (200_000 + 60_000 * n) for n in range(2)]
        shelf.store.put("sessions/s/beat", versions[0])
        over = threading.Event()
        wrong: list[object] = []
        looks = [0] * 4

        def write() -> None:
            try:
                for turn in range(60):
                    shelf.store.put("sessions/s/beat", versions[turn % 2])
            finally:
                over.set()

        def read(number: int) -> None:
            client = self.open(shelf.folder)
            while not over.is_set() or not looks[number]:
                seen = client.get("sessions/s/beat")
                stat = client.stat("sessions/s/beat")
                looks[number] += 1
                if seen not in versions or stat is None or stat.size not in map(len, versions):
                    wrong.append((len(seen), stat))

        _together([write, *(partial(read, n) for n in range(4))])
        assert wrong == []
        assert min(looks) > 0

    # --- hostile and dying stores -----------------------------------------------------------------------

    @pytest.mark.parametrize("key", NOT_KEYS, ids=ascii)
    def test_what_is_no_key_is_refused_by_every_call(
        self, shelf: Shelf, tmp_path: Path, key: str
    ) -> None:
        """ValueError before anything is read or written, so that no name from outside leaves the store."""
        before = shelf.store.list("")
        calls: list[Callable[[], object]] = [
            lambda: shelf.store.get(key),
            lambda: shelf.store.fetch(key, tmp_path / "fetched"),
            lambda: shelf.store.put(key, b"x"),
            lambda: shelf.store.put_new(key, b"x"),
            lambda: shelf.store.delete(key),
            lambda: shelf.store.stat(key),
        ]
        if key:
            calls.append(lambda: shelf.store.list(key))
        for call in calls:
            with pytest.raises(ValueError, match="not a store key"):
                call()
        assert shelf.store.list("") == before
        assert not (tmp_path / "outside").exists()

    def test_a_store_that_vanished_says_so_to_every_call_and_nothing_is_made_in_its_place(
        self, shelf: Shelf, tmp_path: Path
    ) -> None:
        """StoreGone, never "missing" and never an empty listing; when it is back, everything is."""
        shelf.store.put("jobs/x", b"kept")
        other = self.open(shelf.folder)
        if not self.unplug(shelf.folder):
            pytest.skip("this store cannot be taken away in a test")
        before = sorted(shelf.folder.rglob("*"))
        for client in (shelf.store, other):
            calls: list[Callable[[], object]] = [
                partial(client.get, "jobs/x"),
                partial(client.fetch, "jobs/x", shelf.folder / "fetched"),
                partial(client.put, "jobs/x", b"new"),
                partial(client.put, "attempts/a/blobs/y", b"new"),
                partial(client.put_new, "jobs/y", b"new"),
                partial(client.delete, "jobs/x"),
                partial(client.stat, "jobs/x"),
                partial(client.list, "jobs"),
                partial(client.list, ""),
            ]
            for number, call in enumerate(calls):
                with pytest.raises(StoreGone):
                    pytest.fail(f"call {number} answered {call()!r}")
        assert sorted(shelf.folder.rglob("*")) == before
        self.plug(shelf.folder)
        assert shelf.store.get("jobs/x") == b"kept"
        shelf.store.put("jobs/y", b"new")
        assert other.list("jobs") == ["jobs/x", "jobs/y"]

    def test_the_probed_properties_are_sound(self, shelf: Shelf) -> None:
        """They are constant and make sense."""
        known = shelf.store.properties
        assert known == self.open(shelf.folder).properties
        assert known.min_poll > 0
        assert known.max_object is None or known.max_object >= 1 << 20


def _together(runs: Sequence[Callable[[], object]]) -> None:
    """Run these side by side; the first failure is the test's."""
    failures: list[BaseException] = []

    def guarded(run: Callable[[], object]) -> None:
        try:
            run()
        except (
            BaseException
        ) as error:  # a failed assert of another thread is the test's failure too
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if failures:
        raise failures[0]

"""The faulty store and the manual clock do what they say, or every test that stands on them proves nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from freegpu.agent.stores.base import ObjectMissing, StoreError, StoreGone
from freegpu.agent.stores.folder import FolderStore
from freegpu.testing.clock import ManualClock
from freegpu.testing.faulty_store import Faults, FaultyStore
from freegpu.testing.suites import StoreSuite


class TestFaultlessFaultyStore(StoreSuite):
    """Without faults it is a store like any other."""

    def begin(self, folder: Path) -> None:
        (folder / "store").mkdir()
        self.first = faulty(folder / "store")

    def open(self, folder: Path) -> FaultyStore:
        return self.first.beside()

    def unplug(self, folder: Path) -> bool:
        self.first.go_away(60.0)
        return True

    def plug(self, folder: Path) -> None:
        self.first.go_away(-1.0)


def faulty(root: Path, faults: Faults | None = None, *, seed: int = 1) -> FaultyStore:
    inner = FolderStore(root, sync=False)
    return FaultyStore(inner, random.Random(seed), faults or Faults(), clock=ManualClock())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    FolderStore(tmp_path, sync=False).put("freegpu.json", b"{}")
    return tmp_path


def clock_of(store: FaultyStore) -> ManualClock:
    clock = store._sea.clock
    assert isinstance(clock, ManualClock)
    return clock


def test_a_late_write_is_seen_by_its_writer_at_once_and_by_others_later(root: Path) -> None:
    """Object, listing, size and put_new agree, each for its own party."""
    writer = faulty(root, Faults(delay_s=(10.0, 20.0)))
    reader = writer.beside()
    writer.put("jobs/x", b"1")
    assert (writer.get("jobs/x"), writer.list("jobs")) == (b"1", ["jobs/x"])
    assert reader.list("jobs") == []
    assert reader.stat("jobs/x") is None
    with pytest.raises(ObjectMissing):
        reader.get("jobs/x")
    clock_of(writer).advance(9.9)
    assert reader.list("jobs") == []
    clock_of(writer).advance(10.2)
    assert reader.get("jobs/x") == b"1"
    assert not writer.properties.cas
    assert not writer.properties.ordered


def test_late_writes_arrive_in_any_order_but_versions_of_one_file_in_theirs(root: Path) -> None:
    """A manifest may be there before its blobs; an old version never comes after a new one."""
    orders = set()
    for seed in range(20):
        writer = faulty(root, Faults(delay_s=(0.1, 10.0)), seed=seed)
        reader = writer.beside()
        for key in ("jobs/blob", "jobs/manifest"):
            writer.put(f"{key}-{seed}", b"x")
        for version in range(5):
            writer.put(f"jobs/beat-{seed}", b"%d" % version)
        seen, versions = [], []
        for _ in range(110):
            clock_of(writer).advance(0.1)
            for key in ("jobs/blob", "jobs/manifest"):
                if key not in seen and reader.stat(f"{key}-{seed}"):
                    seen.append(key)
            if reader.stat(f"jobs/beat-{seed}"):
                versions.append(reader.get(f"jobs/beat-{seed}"))
        orders.add(tuple(seen))
        assert versions == sorted(versions)
        assert versions[-1] == b"4"
    assert orders == {("jobs/blob", "jobs/manifest"), ("jobs/manifest", "jobs/blob")}


def test_a_lost_write_is_believed_by_its_writer_alone_until_it_crashes(root: Path) -> None:
    """No error, no file; not even `settle` brings it."""
    writer = faulty(root, Faults(lost=1.0))
    writer.put("jobs/x", b"1")
    writer.settle()
    assert writer.get("jobs/x") == b"1"
    assert writer.beside().list("jobs") == []
    writer.crash()
    assert writer.list("jobs") == []


def test_what_was_on_its_way_when_the_writer_crashed_never_arrives(root: Path) -> None:
    """A write-back cache dies with its machine."""
    writer = faulty(root, Faults(delay_s=(5.0, 5.0)))
    writer.put("jobs/early", b"1")
    clock_of(writer).advance(6.0)
    writer.put("jobs/late", b"2")
    writer.crash()
    clock_of(writer).advance(60.0)
    assert writer.list("jobs") == ["jobs/early"]


def test_settle_brings_everything_that_was_not_lost(root: Path) -> None:
    """The calm at the end of a simulated schedule."""
    writer = faulty(root, Faults(delay_s=(1000.0, 2000.0)))
    writer.put("jobs/x", b"1")
    writer.delete("freegpu.json")
    assert writer.beside().list("") == ["freegpu.json"]
    writer.beside().settle()
    assert (root / "jobs" / "x").read_bytes() == b"1"
    assert not (root / "freegpu.json").exists()


def test_a_torn_read_is_a_beginning_and_a_stale_one_the_version_before(root: Path) -> None:
    """Never other bytes, and the object itself is whole."""
    store = faulty(root)
    store.put("jobs/x", b"old and long")
    store.put("jobs/x", b"new")
    store.faults = Faults(torn=1.0)
    seen = {store.get("jobs/x") for _ in range(50)}
    assert seen == {b"", b"n", b"ne"}
    store.faults = Faults(stale=1.0)
    assert store.get("jobs/x") == b"old and long"
    store.faults = Faults()
    assert store.get("jobs/x") == b"new"
    assert store.injected["torn"] == 50
    assert store.injected["stale"] == 1


def test_an_error_before_did_nothing_and_an_error_after_did_it(root: Path) -> None:
    """The caller cannot tell them apart, the store can."""
    store = faulty(root, Faults(error=1.0))
    with pytest.raises(StoreError):
        store.put("jobs/before", b"1")
    store.faults = Faults(error_after=1.0)
    for write in (lambda: store.put("jobs/after", b"1"), lambda: store.put_new("jobs/new", b"1")):
        with pytest.raises(StoreError):
            write()
    store.faults = Faults()
    assert store.list("jobs") == ["jobs/after", "jobs/new"]


def test_an_outage_is_everybody_s_and_passes(root: Path) -> None:
    """By chance or on purpose; while it lasts nothing is done."""
    store = faulty(root, Faults(outage=1.0, outage_s=30.0))
    other = store.beside(Faults())
    with pytest.raises(StoreGone):
        store.put("jobs/x", b"1")
    store.faults = Faults()
    clock_of(store).advance(29.0)
    with pytest.raises(StoreGone):
        other.list("jobs")
    clock_of(store).advance(1.5)
    assert other.list("jobs") == []


def test_a_listing_may_miss_objects_and_show_twins_that_are_no_keys(root: Path) -> None:
    """`x (1).json`, as sync clients make them; what is missing can still be read."""
    store = faulty(root, Faults(unlisted=0.5))
    for n in range(20):
        store.put(f"jobs/{n:02d}.json", b"x")
    assert 0 < len(store.list("jobs")) < 20
    assert store.get("jobs/00.json") == b"x"
    store.faults = Faults(duplicated=1.0)
    listed = store.list("jobs")
    assert len(listed) == 40
    assert "jobs/07 (1).json" in listed


def test_equal_seeds_and_calls_have_equal_faults(tmp_path: Path) -> None:
    """A failing schedule is replayed by its seed."""
    faults = Faults(
        error=0.1, error_after=0.1, lost=0.1, torn=0.3, stale=0.3, delay_s=(0.0, 5.0), unlisted=0.2
    )

    def story(folder: Path, seed: int) -> list[object]:
        folder.mkdir()
        FolderStore(folder, sync=False).put("freegpu.json", b"{}")
        store = faulty(folder, faults, seed=seed)
        told: list[object] = []
        reader = store.beside()
        for n in range(150):
            clock_of(store).advance(0.5)
            for call in (
                lambda n=n: store.put(f"jobs/{n % 7}", b"%d" % n * 5),
                lambda n=n: reader.get(f"jobs/{n % 7}"),
                lambda: reader.list("jobs"),
            ):
                try:
                    told.append(call())
                except StoreError as error:
                    told.append(str(error))
        assert all(
            store.injected[fault]
            for fault in ("error", "lost", "torn", "stale", "delay_s", "unlisted")
        )
        return told

    assert story(tmp_path / "a", 1) == story(tmp_path / "b", 1)
    assert story(tmp_path / "c", 2) != story(tmp_path / "d", 3)


def test_the_manual_clock_moves_only_when_it_is_told_to() -> None:
    """sleep moves both clocks, a jump the wall clock alone, and nothing runs backwards."""
    clock = ManualClock(1000.0)
    clock.sleep(2.5)
    clock.advance(1.0)
    clock.jump(-3600.0)
    assert (clock.time(), clock.monotonic(), clock.slept) == (-2596.5, 3.5, [2.5])
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1.0)

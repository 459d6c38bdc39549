"""The probe finds out what a store can do, by a manual clock and stores that misbehave in known ways."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from freegpu.agent.stores.base import (
    ObjectMissing,
    Properties,
    Source,
    Stat,
    Store,
    StoreError,
    StoreFull,
)
from freegpu.agent.stores.folder import FolderStore
from freegpu.clock import utc
from freegpu.orchestrator import probe as probing
from freegpu.orchestrator.probe import MAX_AGE, Measured, dump, load, means, probe
from freegpu.testing.clock import ManualClock
from freegpu.testing.faulty_store import Faults, FaultyStore


class Wrapped:
    """A store with one thing changed by a subclass."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def list(self, prefix: str, after: str = "") -> list[str]:
        return self.inner.list(prefix, after)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self.inner.get(key, start, end)

    def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
        return self.inner.fetch(key, into)

    def put(self, key: str, source: Source) -> None:
        self.inner.put(key, source)

    def put_new(self, key: str, source: Source) -> bool:
        return self.inner.put_new(key, source)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        return self.inner.stat(key, digest)


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    (tmp_path / "store").mkdir()
    store = FolderStore(tmp_path / "store", sync=False)
    store.put("freegpu.json", b"{}")
    return store


def measure(
    connect: Callable[[], Store], clock: ManualClock | None = None, *, largest: int = 1 << 20
) -> Measured:
    return probe(connect, clock or ManualClock(), largest=largest)


def test_a_plain_folder_is_found_to_keep_every_promise(folder: FolderStore) -> None:
    """Order, no lag, compare and swap; the digests are our own reading, and nothing is left behind."""
    found = measure(lambda: folder, largest=4 << 20)
    assert (found.cas, found.ordered) == (True, True)
    assert (found.list_lag_s, found.read_lag_s, found.replace_lag_s) == (0.0, 0.0, 0.0)
    assert (found.max_object, found.at_least) == (None, 4 << 20)
    assert found.server_digest is False
    assert found.space is not None
    assert found.space.free
    assert found.problems == ()
    assert folder.list("") == ["freegpu.json"]
    assert found.properties == Properties(
        cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.05
    )


def test_a_store_whose_readers_are_late_is_measured_in_seconds(folder: FolderStore) -> None:
    """Every write is seen by others 7 s later: the lag is found to within a look, and nobody really waits."""
    clock = ManualClock()
    first = FaultyStore(folder, random.Random(1), Faults(delay_s=(7.0, 7.0)), clock=clock)
    clients = [first, first.beside()]
    found = measure(lambda: clients.pop(0), clock)
    for lag in (found.list_lag_s, found.read_lag_s, found.replace_lag_s):
        assert lag is not None
        assert 7.0 <= lag <= 12.0
    assert found.ordered
    assert found.properties.lists_lag


def test_a_store_that_delivers_in_any_order_is_not_called_ordered(folder: FolderStore) -> None:
    """One later object before an earlier one is enough."""
    clock = ManualClock()
    first = FaultyStore(folder, random.Random(3), Faults(delay_s=(0.0, 20.0)), clock=clock)
    clients = [first, first.beside()]
    assert measure(lambda: clients.pop(0), clock).ordered is False


def test_a_store_whose_writes_never_arrive_ends_the_patience_and_not_the_probe(
    folder: FolderStore,
) -> None:
    """Bounded waiting, unknown lags, and a sentence about it."""
    clock = ManualClock()
    first = FaultyStore(folder, random.Random(1), Faults(delay_s=(1e6, 1e6)), clock=clock)
    clients = [first, first.beside()]

    found = measure(lambda: clients.pop(0), clock)
    assert (found.list_lag_s, found.read_lag_s, found.replace_lag_s) == (None, None, None)
    assert found.lag_s is None
    assert found.cas is False
    assert clock.monotonic() < probing.PATIENCE_S + 8 * probing.IMPATIENCE_S
    assert found.problems == ("an object of 1048576 bytes was not seen by another client in time",)
    assert any("did not see every change" in line for line in means(found, "drive:x"))


class Lying(Wrapped):
    """put_new looks before it leaps, as stores without conditional writes do, and the others look meanwhile."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.barrier = threading.Barrier(probing.RACERS)

    def put_new(self, key: str, source: Source) -> bool:
        there = self.inner.stat(key) is not None
        if "/race/" in key and not there:
            self.barrier.wait(30)
        if there:
            return False
        self.inner.put(key, source)
        return True


def test_a_store_on_which_several_racers_win_does_not_compare_and_swap(
    folder: FolderStore,
) -> None:
    """Whatever it answers to one writer alone."""
    lying = Lying(folder)
    found = measure(lambda: lying)
    assert found.cas is False
    assert found.problems == ()
    assert folder.list("probe") == []


def test_a_loser_that_overwrites_the_winner_is_found_out(folder: FolderStore) -> None:
    """It says False and writes all the same."""

    class Overwriting(Wrapped):
        def put_new(self, key: str, source: Source) -> bool:
            won = self.inner.put_new(key, source)
            if not won:
                self.inner.put(key, source)
            return won

    store = Overwriting(folder)
    assert measure(lambda: store).cas is False


class Small(Wrapped):
    """Takes no object above 2 MiB."""

    full = False

    def put(self, key: str, source: Source) -> None:
        size = len(source) if isinstance(source, bytes) else os.stat(source).st_size
        if size > 2 << 20:
            if self.full:
                raise StoreFull("no room")
            raise StoreError("entity too large")
        self.inner.put(key, source)


@pytest.mark.parametrize("full", [False, True])
def test_the_largest_object_is_what_was_taken_before_one_was_refused(
    folder: FolderStore, full: bool
) -> None:
    """A full store is no limit on objects; both are told."""
    store = Small(folder)
    store.full = full
    found = measure(lambda: store, largest=16 << 20)
    assert found.at_least == 2 << 20
    assert found.max_object == (None if full else 2 << 20)
    assert len(found.problems) == 1
    assert folder.list("probe") == []


@pytest.mark.parametrize(
    ("claimed", "right", "expected"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_a_server_s_digest_counts_if_it_is_the_server_s_and_right(
    folder: FolderStore, claimed: bool, right: bool, expected: bool
) -> None:
    """A claim alone is nothing, and neither is a digest that our own side computed."""

    class Digesting(Wrapped):
        digests_by_server = claimed

        def stat(self, key: str, digest: bool = False) -> Stat | None:
            told = self.inner.stat(key, digest)
            return told if right or told is None or not digest else replace(told, sha256="0" * 64)

    store = Digesting(folder)
    assert measure(lambda: store).server_digest is expected


def test_latencies_and_rates_are_by_the_clock(folder: FolderStore) -> None:
    """A call takes 0.2 s, a MiB 1 s more: nothing beyond 8 s of moving is tried."""
    clock = ManualClock()

    class Slow(Wrapped):
        def put(self, key: str, source: Source) -> None:
            size = len(source) if isinstance(source, bytes) else os.stat(source).st_size
            clock.advance(0.2 + size / (1 << 20))
            self.inner.put(key, source)

        def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            clock.advance(0.1)
            return self.inner.get(key, start, end)

        def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
            size, digest = self.inner.fetch(key, into)
            clock.advance(size / (1 << 20) / 2)
            return size, digest

    store = Slow(folder)
    found = measure(lambda: store, clock, largest=1 << 30)
    assert found.put.median_s == pytest.approx(0.2, abs=0.001)
    assert found.get.p95_s == pytest.approx(0.1)
    assert found.at_least == 8 << 20
    assert found.up == pytest.approx((8 << 20) / 8.2)
    assert found.down == pytest.approx((8 << 20) / 4.0)
    sentence = means(found, "s3://b")[0]
    # 1 GB at 1.02 MB/s is 16.3 minutes: rounded up, never down
    assert "16 min to save" in sentence
    assert "`checkpoint.every` below 17m makes no sense" in sentence


def test_an_error_in_the_middle_is_raised_and_what_was_written_is_deleted(
    folder: FolderStore,
) -> None:
    """Whoever connected a store that fails is not left with rubbish in it."""

    class Dying(Wrapped):
        def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
            raise StoreError("went away")

    store = Dying(folder)
    with pytest.raises(StoreError, match="went away"):
        measure(lambda: store)
    assert folder.list("") == ["freegpu.json"]


def test_what_comes_back_changed_is_told(folder: FolderStore) -> None:
    """A store that alters bytes is one to be warned of."""

    class Altering(Wrapped):
        def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
            size, _ = self.inner.fetch(key, into)
            return size, "0" * 64

    store = Altering(folder)
    found = measure(lambda: store)
    assert found.at_least == 0
    assert "came back changed" in found.problems[0]


def test_what_was_found_is_kept_and_read_back_and_grows_old(folder: FolderStore) -> None:
    """Too long ago, another version, torn or absent: as if nothing had been found."""
    clock = ManualClock()
    found = measure(lambda: folder, clock)
    text = dump(found)
    assert load(text, utc(clock)) == found
    assert load(text, utc(clock) + MAX_AGE - timedelta(hours=1)) == found
    assert load(text, utc(clock) + MAX_AGE + timedelta(hours=1)) is None
    for torn in (None, "", "made", "{}", "[1]", text.replace('"version": 1', '"version": 0')):
        assert load(torn, utc(clock)) is None


def test_the_sentences_say_what_a_user_must_know(folder: FolderStore) -> None:
    """Lag, digests, limits, space; and of a folder that one machine cannot see what another sees."""
    found = measure(lambda: folder)
    plain = " ".join(means(found, "sftp://h/x"))
    assert "at once" in plain
    assert "read back to confirm" in plain
    assert "other machines see" not in plain
    assert "only your side speaks sftp" in plain
    assert "only your side" not in " ".join(means(found, "s3://b"))
    assert "other machines see" in " ".join(means(found, "folder:/x"))
    late = replace(found, list_lag_s=40.0, cas=False, server_digest=True, max_object=5_000_000)
    told = " ".join(means(late, "drive:x"))
    assert "up to 40 s later" in told
    assert "racing writers are not told apart" in told
    assert "confirmed without being read back" in told
    assert "at most 5 MB" in told


def test_a_missing_object_is_not_taken_for_a_failure(folder: FolderStore) -> None:
    """Readers that are late answer ObjectMissing, which is what is measured."""

    class Never(Wrapped):
        def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            if "/order/" in key:
                raise ObjectMissing(key)
            return self.inner.get(key, start, end)

    store = Never(folder)
    assert measure(lambda: store).read_lag_s is None

"""Commits into the store, restores out of it, and which generations stay, on a store that fails."""

from __future__ import annotations

import builtins
import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freegpu.agent import transfer, wire
from freegpu.agent.checkpoint import Checkpointer
from freegpu.agent.outputs import collect_outputs, find_outputs
from freegpu.agent.retention import surplus
from freegpu.agent.snapshot import Item
from freegpu.agent.stores.base import (
    ObjectMissing,
    Properties,
    Source,
    Stat,
    StoreError,
    StoreFull,
    StoreGone,
)
from freegpu.agent.stores.folder import FolderStore
from freegpu.agent.transfer import Stopped, download, read_manifest, upload


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.8e9 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


Trouble = Callable[[str, str], "str | None"]


class FaultyStore:
    """A folder store that fails when it is told to: "before" the deed or "after" it, or is "full"."""

    def __init__(self, inner: FolderStore, clock: ManualClock) -> None:
        self.inner = inner
        self.clock = clock
        self.trouble: Trouble = lambda deed, key: None
        self.put_keys: list[str] = []
        self.deleted: list[str] = []
        self.max_object: int | None = None
        self.seconds_per_put = 0.0

    @property
    def properties(self) -> Properties:
        return Properties(
            cas=True, ordered=True, lists_lag=False, max_object=self.max_object, min_poll=0.05
        )

    def _do(self, deed: str, key: str, act: Callable[[], Any]) -> Any:
        trouble = self.trouble(deed, key)
        if trouble == "full":
            message = "full"
            raise StoreFull(message)
        if trouble == "before":
            message = f"{deed} {key} failed"
            raise StoreGone(message)
        result = act()
        if trouble == "after":
            message = f"{deed} {key}: no answer"
            raise StoreGone(message)
        return result

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        return self.inner.list(prefix, after)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return bytes(self._do("get", key, lambda: self.inner.get(key, start, end)))

    def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
        size, digest = self._do("fetch", key, lambda: self.inner.fetch(key, into))
        return size, digest

    def put(self, key: str, source: Source) -> None:
        self.put_keys.append(key)
        self._do("put", key, lambda: self.inner.put(key, source))

    def put_new(self, key: str, source: Source) -> bool:
        self.clock.now += self.seconds_per_put
        self.put_keys.append(key)
        return bool(self._do("put_new", key, lambda: self.inner.put_new(key, source)))

    def delete(self, key: str) -> None:
        self.deleted.append(key)
        self._do("delete", key, lambda: self.inner.delete(key))

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        return self.inner.stat(key, digest)


class Bench:
    """One attempt's checkpoint folder, its checkpointer, and the store."""

    def __init__(self, root: Path, **ticket: Any) -> None:
        self.root = root
        self.clock = ManualClock()
        (root / "store").mkdir(parents=True, exist_ok=True)
        (root / "store" / "freegpu.json").write_text('{"format": 1, "home": "h"}')
        self.store = FaultyStore(FolderStore(root / "store", sync=False), self.clock)
        self.folder = root / "work" / "ckpt"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.events: list[dict[str, Any]] = []
        self.progress: int | None = None
        self.begin(**ticket)

    def begin(
        self, base: wire.Manifest | None = None, bandwidth: float | None = None, **ticket: Any
    ) -> None:
        fields = {
            "job": "j-1",
            "attempt": "a-1",
            "number": 1,
            "epoch": 1,
            "slot": 0,
            "name": "train",
            "run": "true",
            "checkpoint_every_s": 60.0,
            **ticket,
        }
        self.ticket = wire.Run(**fields)
        self.keeper = Checkpointer(
            self.store,
            self.clock,
            self.ticket,
            self.folder,
            self.root / "stage",
            base,
            self.events.append,
            lambda: self.progress,
            bandwidth=bandwidth,
        )

    def write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        stamp = int(self.clock.time() * 1e9)
        os.utime(path, ns=(stamp, stamp))

    def run(self, seconds: float) -> None:
        """Step as the agent would: whenever the checkpointer wants to be called again."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += max(0.01, min(self.keeper.step(), until - self.clock.now))

    def commit(self, name: str, data: bytes) -> None:
        """One more state, and the time in which it gets committed."""
        self.write(name, data)
        self.run(self.ticket.checkpoint_every_s + 5)

    @property
    def committed(self) -> list[int]:
        return [e["generation"] for e in self.events if e["kind"] == wire.CHECKPOINT]

    @property
    def notices(self) -> list[str]:
        return [e["code"] for e in self.events if e["kind"] == wire.NOTICE]

    def manifests(self) -> list[int]:
        keys = self.store.list(wire.checkpoint_prefix("j-1"))
        return [int(key[-11:-5]) for key in keys]

    def blobs(self) -> set[str]:
        return {key for key in self.store.list("attempts") if "/blobs/" in key}

    def manifest(self, generation: int, epoch: int = 1) -> wire.Manifest:
        data = self.store.inner.get(wire.checkpoint_key("j-1", epoch, generation))
        return wire.Manifest.from_bytes(data, wire.sha256(data))

    def restored(self, generation: int, epoch: int = 1) -> dict[str, bytes]:
        into = self.root / "restored"
        download(self.store.inner, self.manifest(generation, epoch), into)
        return contents(into)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece travels in a blob of its own, one after the other."""
    monkeypatch.setattr(transfer, "_BLOB", (1, 1))
    monkeypatch.setattr(transfer, "MOST", 1)


# --- committing --------------------------------------------------------------------------------------


def test_the_first_checkpoint_is_committed_as_soon_as_it_is_complete(bench: Bench) -> None:
    """Not after the first interval: the first session may be the shortest."""
    bench.run(20)
    assert bench.events == []
    bench.progress = 7
    bench.run(5)
    bench.write("model.raw", b"one")
    bench.write("optimizer.raw", b"uno")
    bench.run(4)
    (event,) = bench.events
    key = wire.checkpoint_key("j-1", 1, 1)
    assert event["kind"] == wire.CHECKPOINT
    assert (event["job"], event["attempt"], event["epoch"]) == ("j-1", "a-1", 1)
    assert (event["key"], event["generation"], event["step"]) == (key, 1, 7)
    assert event["size"] == 6
    assert event["sha256"] == wire.sha256(bench.store.get(key))
    assert 0 <= event["age_s"] <= 4
    assert bench.restored(1) == {"model.raw": b"one", "optimizer.raw": b"uno"}
    assert bench.keeper.last_generation == bench.keeper.unconfirmed == 1
    assert bench.keeper.last_size == 6
    assert not list((bench.root / "stage").glob("*")), "the staged copy is gone"


@pytest.mark.usefixtures("alone")
def test_the_manifest_is_put_after_everything_it_names(bench: Bench) -> None:
    """A manifest whose parts are still to come would be a promise."""
    for name in "abc":
        bench.write(f"{name}.raw", name.encode() * 10)
    bench.run(5)
    assert [("blobs" in key) for key in bench.store.put_keys] == [True, True, True, False]


def test_commits_are_at_most_one_in_an_interval_and_none_without_news(bench: Bench) -> None:
    """A job that saves every second is committed every minute; one that does not save, not at all."""
    for number in range(130):
        bench.write("last.json", json.dumps(number).encode())
        bench.run(1)
    assert bench.committed == [1, 2, 3]
    bench.run(600)
    assert bench.committed == [1, 2, 3, 4]
    assert bench.restored(4) == {"last.json": b"129"}


def test_a_save_that_comes_late_is_committed_when_it_has_settled(bench: Bench) -> None:
    """The interval has long passed: it need not pass again."""
    bench.commit("a.raw", b"1")
    bench.run(500)
    bench.write("a.raw", b"2")
    bench.run(4)
    assert bench.committed == [1, 2]


def test_the_step_is_the_one_that_was_reported_when_the_files_were_saved(bench: Bench) -> None:
    """The copy is made when the next commit is due, and the job has gone on since."""
    bench.progress = 10
    bench.write("a.raw", b"1")
    bench.run(5)
    bench.progress = 20
    bench.run(10)
    bench.write("a.raw", b"2")
    bench.run(10)
    bench.progress = 900
    bench.run(60)
    assert [e["step"] for e in bench.events] == [10, 20]


def test_unchanged_files_are_not_sent_again(bench: Bench) -> None:
    """The frozen base of a LoRA run is the bulk of each checkpoint."""
    bench.write("base.raw", b"frozen" * 1000)
    bench.commit("adapter.raw", b"1")
    bench.store.put_keys.clear()
    bench.commit("adapter.raw", b"2")
    assert len([key for key in bench.store.put_keys if "/blobs/" in key]) == 1
    assert bench.restored(2)["base.raw"] == b"frozen" * 1000


def test_a_resumed_attempt_commits_only_what_is_new_and_refers_to_its_base(bench: Bench) -> None:
    """The restored folder is no news; its parts lie with the earlier attempt."""
    bench.write("base.raw", b"frozen" * 1000)
    bench.commit("adapter.raw", b"1")
    base = bench.manifest(1)
    shutil.rmtree(bench.folder)
    download(bench.store, base, bench.folder)
    bench.begin(base=base, attempt="a-2", number=2, epoch=2)
    bench.store.put_keys.clear()
    bench.run(200)
    assert bench.store.put_keys == []
    assert bench.keeper.final()
    bench.commit("adapter.raw", b"2")
    manifest = bench.manifest(1, epoch=2)
    assert {f.path: f.parts[0].key.split("/")[1] for f in manifest.files} == {
        "base.raw": "a-1",
        "adapter.raw": "a-2",
    }


def test_after_an_acknowledgement_the_old_base_is_no_longer_referred_to(bench: Bench) -> None:
    """The orchestrator may delete what only the superseded base had; its content may come back all the same."""
    bench.write("b.raw", b"stays")
    bench.commit("a.raw", b"comes back")
    base = bench.manifest(1)
    bench.begin(base=base, attempt="a-2", number=2, epoch=2)
    bench.commit("a.raw", b"other")
    bench.keeper.acknowledge(1)
    for part in base.blobs():
        if part.sha256 not in {p.sha256 for p in bench.manifest(1, epoch=2).blobs()}:
            bench.store.inner.delete(part.key)
    bench.commit("a.raw", b"comes back")
    assert bench.restored(2, epoch=2) == {"a.raw": b"comes back", "b.raw": b"stays"}


def test_a_half_written_checkpoint_is_never_committed(bench: Bench) -> None:
    """Also not at the end, when nobody will finish it; a person is told."""
    bench.commit("state.json", b'{"step": 1}')
    bench.write("state.json", b'{"step": ')
    bench.run(300)
    assert bench.committed == [1]
    assert bench.notices == ["checkpoint_unstable"]
    assert bench.keeper.final(), "nothing more can be saved"
    assert bench.committed == [1]
    assert bench.restored(1) == {"state.json": b'{"step": 1}'}


def test_a_folder_that_never_stands_still_is_told_once(bench: Bench) -> None:
    """Once an episode: it settles, is committed, and starts again."""
    for episode in range(2):
        for number in range(120):
            bench.write(f"{number % 2}.raw", b"%d %d" % (episode, number))
            bench.run(1)
        assert bench.notices == ["checkpoint_unstable"] * (episode + 1)
        bench.run(70)
        assert len(bench.committed) == episode + 1


def test_at_the_end_the_last_save_is_taken_without_waiting(bench: Bench) -> None:
    """The job saved on SIGTERM and is gone."""
    bench.commit("a.raw", b"1")
    bench.write("a.raw", b"2")
    assert bench.keeper.final()
    assert bench.committed == [1, 2]
    assert bench.keeper.final(), "nothing is left to do"
    assert bench.committed == [1, 2]


def test_after_a_kill_a_mixed_state_is_not_the_last_checkpoint(bench: Bench) -> None:
    """Killed between the model and the optimizer: both files are readable, together they are nothing."""
    bench.write("optimizer.raw", b"1")
    bench.commit("model.raw", b"1")
    bench.clock.time = lambda: 1.0  # type: ignore[method-assign]
    bench.write("model.raw", b"2")
    assert bench.keeper.final(clean=False)
    assert bench.committed == [1]
    assert bench.notices == ["checkpoint_unstable"]


# --- a store that fails ----------------------------------------------------------------------------


def test_while_the_store_is_away_the_newest_snapshot_waits_for_it(bench: Bench) -> None:
    """Tries come ever more rarely; when the store is back, it gets the newest state, under the next number."""
    bench.commit("a.raw", b"1")
    bench.store.trouble = lambda deed, key: "before"
    bench.store.put_keys.clear()
    for number in (2, 3, 4):
        bench.commit("a.raw", b"%d" % number)
    assert bench.committed == [1]
    assert bench.keeper.unconfirmed == 2, "one in the store, one on its way"
    assert 6 <= len(bench.store.put_keys) <= 20
    bench.store.trouble = lambda deed, key: None
    bench.run(31)
    assert bench.committed == [1, 2]
    assert bench.restored(2) == {"a.raw": b"4"}
    assert len(list((bench.root / "stage").glob("*"))) == 0


@pytest.mark.usefixtures("alone")
def test_a_retry_does_not_send_again_what_has_arrived(bench: Bench) -> None:
    """Ten parts, a failure at each third: every part goes through once."""
    calls = []

    def trouble(deed: str, key: str) -> str | None:
        calls.append(key)
        return "before" if deed == "put_new" and len(calls) % 3 == 0 else None

    bench.store.trouble = trouble
    for number in range(10):
        bench.write(f"{number}.raw", b"%d" % number * 10)
    bench.run(200)
    assert bench.committed == [1]
    sent = [key for key in bench.store.put_keys if "/blobs/" in key]
    assert len(set(sent)) == 10
    assert len(sent) <= 10 + len(calls) // 3


@pytest.mark.usefixtures("alone")
def test_an_upload_that_gets_through_bit_by_bit_is_not_thrown_away(bench: Bench) -> None:
    """On a slow, shaky link the newest snapshot would for ever replace the one that is nearly there."""
    calls = []

    def trouble(deed: str, key: str) -> str | None:
        calls.append(key)
        return "before" if deed == "put_new" and len(calls) % 2 == 0 else None

    bench.store.trouble = trouble
    bench.store.seconds_per_put = 20.0
    for save in range(6):
        for number in range(8):
            bench.write(f"{number}.raw", b"%d of %d" % (number, save))
        bench.run(100)
    assert bench.committed


def test_a_manifest_whose_answer_was_lost_is_announced_once(bench: Bench) -> None:
    """The put went through and the answer did not: the retry finds its own bytes."""
    failed: list[str] = []

    def trouble(deed: str, key: str) -> str | None:
        if deed == "put_new" and key.startswith("jobs/") and not failed:
            failed.append(key)
            return "after"
        return None

    bench.store.trouble = trouble
    bench.commit("a.raw", b"1")
    assert failed
    assert bench.committed == bench.manifests() == [1]


def test_a_manifest_that_may_have_arrived_uses_up_its_number(bench: Bench) -> None:
    """Its successor takes the next one, and it is deleted later like any other."""

    def trouble(deed: str, key: str) -> str | None:
        lost = deed in ("put_new", "get") and key.startswith("jobs/")
        return ("after" if deed == "put_new" else "before") if lost else None

    bench.store.trouble = trouble
    bench.commit("a.raw", b"1")
    bench.commit("a.raw", b"2")
    bench.store.trouble = lambda deed, key: None
    bench.run(60)
    assert bench.committed == [2]
    assert bench.restored(2) == {"a.raw": b"2"}
    bench.run(10)
    assert bench.manifests() == [2]


def test_a_foreign_manifest_of_the_same_number_is_left_alone(bench: Bench) -> None:
    """Immutable is immutable, whoever wrote it."""
    bench.store.inner.put(wire.checkpoint_key("j-1", 1, 1), b"somebody's")
    bench.commit("a.raw", b"1")
    assert bench.committed == [2]
    assert bench.store.inner.get(wire.checkpoint_key("j-1", 1, 1)) == b"somebody's"


def test_a_torn_part_of_a_failed_try_is_put_right(bench: Bench) -> None:
    """The mount died in the middle of a put, and shows what it had."""
    data = b"x" * 1000
    bench.store.inner.put(wire.attempt_blob_key("a-1", wire.sha256(data)), data[:10])
    bench.commit("a.raw", data)
    assert bench.restored(1) == {"a.raw": data}


def test_a_full_store_is_told_once_and_tried_again(bench: Bench) -> None:
    """Somebody may make room."""
    bench.store.trouble = lambda deed, key: "full" if deed == "put_new" else None
    bench.commit("a.raw", b"1")
    assert bench.notices == ["store_full"]
    bench.store.trouble = lambda deed, key: None
    bench.run(31)
    assert bench.committed == [1]


def test_a_full_disk_is_told_once_an_episode_and_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's disk is the job's: nothing stays staged, and the next try is much later."""
    real = shutil.copyfile

    def full(source: str, target: Path) -> object:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for episode in (1, 2):
        monkeypatch.setattr(shutil, "copyfile", full)
        bench.write("a.raw", b"%d" % episode)
        bench.run(200)
        assert bench.notices == ["disk_full"] * episode
        assert bench.committed == list(range(1, episode))
        assert not list((bench.root / "stage").glob("*"))
        if episode == 2:
            # nobody writes any more, so it need not be copied
            assert bench.keeper.final()
        monkeypatch.setattr(shutil, "copyfile", real)
        bench.run(40)
        assert bench.committed == list(range(1, episode + 1))


def test_a_staged_copy_that_somebody_deleted_is_made_again(bench: Bench) -> None:
    """A temp cleaner at work: the next try takes what is there."""
    bench.store.trouble = lambda deed, key: "before"
    bench.write("a.raw", b"1")
    bench.run(3)
    shutil.rmtree(bench.root / "stage")
    bench.store.trouble = lambda deed, key: None
    bench.run(70)
    assert bench.committed == [1]


def test_final_keeps_its_snapshot_until_the_store_is_back(bench: Bench) -> None:
    """One try a call, so that the caller's deadline holds."""
    bench.write("a.raw", b"1")
    bench.store.trouble = lambda deed, key: "before"
    assert not bench.keeper.final()
    assert not bench.keeper.final()
    bench.store.trouble = lambda deed, key: None
    assert bench.keeper.final()
    assert bench.committed == [1]


@pytest.mark.usefixtures("alone")
def test_an_abandoned_upload_stops_at_the_next_part(bench: Bench) -> None:
    """A newer attempt exists: nobody wants the rest."""
    for number in range(5):
        bench.write(f"{number}.raw", b"%d" % number)

    def trouble(deed: str, key: str) -> str | None:
        bench.keeper.abandon()
        return None

    bench.store.trouble = trouble
    bench.run(10)
    assert len(bench.store.put_keys) == 1
    assert bench.committed == []


def test_the_upload_time_is_what_copy_and_upload_took(bench: Bench) -> None:
    """It rises at once and falls slowly: a deadline depends on it."""
    bench.store.seconds_per_put = 4.0
    bench.commit("a.raw", b"1")
    assert bench.keeper.upload_seconds == pytest.approx(8.0)
    bench.store.seconds_per_put = 0.0
    bench.commit("a.raw", b"2")
    assert bench.keeper.upload_seconds == pytest.approx(4.0)
    bench.store.seconds_per_put = 10.0
    bench.commit("a.raw", b"3")
    assert bench.keeper.upload_seconds == pytest.approx(20.0)
    assert bench.keeper.last_committed_age is not None
    assert 20 < bench.keeper.last_committed_age < 90


def test_uploads_keep_to_the_bandwidth(tmp_path: Path) -> None:
    """Twelve MB at one MB a second take twelve seconds, none of its parts more than eight."""
    bench = Bench(tmp_path, bandwidth=1e6)
    bench.write("a.raw", os.urandom(12_000_000))
    bench.run(30)
    assert bench.committed == [1]
    assert 12.0 <= bench.keeper.upload_seconds < 13.0
    assert [part.size for part in bench.manifest(1).blobs()] == [
        4 << 20,
        4 << 20,
        12_000_000 - (8 << 20),
    ]


def test_what_was_sent_is_told(bench: Bench) -> None:
    """Of the second checkpoint only what is new."""
    bench.write("frozen.raw", b"f" * 50_000)
    bench.commit("a.raw", b"1" * 100)
    bench.commit("a.raw", b"2" * 100)
    assert [(e["size"], e["sent"], e["stored"]) for e in bench.events] == [
        (50_100, 50_100, False),
        (50_100, 100, False),
    ]


def test_a_store_that_computes_digests_confirms_by_itself(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job need not pause while nobody else looks; each object is asked for once, and a wrong one confirms nothing."""
    asked = []
    real = bench.store.stat

    def stat(key: str, digest: bool = False) -> Stat | None:
        asked.append(key)
        found = real(key, digest)
        wrong = len(bench.committed) == 1 and "/blobs/" in key
        return Stat(found.size, "0" * 64) if found and wrong else found

    properties = Properties(True, True, False, None, 0.05, server_digest=True)
    monkeypatch.setattr(FaultyStore, "properties", properties)
    monkeypatch.setattr(bench.store, "stat", stat)
    bench.write("frozen.raw", b"f" * 50_000)
    bench.commit("a.raw", b"1")
    assert [event["stored"] for event in bench.events] == [True]
    assert bench.keeper.unconfirmed == 0
    assert len(asked) == len(set(asked)) == 2
    bench.commit("a.raw", b"2")
    assert [event["stored"] for event in bench.events] == [True, False]
    assert bench.keeper.unconfirmed == 1
    bench.commit("a.raw", b"3")
    assert bench.keeper.unconfirmed == 0
    assert bench.manifests() == [1, 2, 3], "only the orchestrator's word lets the agent delete"


def test_a_checkpoint_for_which_there_is_no_room_is_told_with_the_figures(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once an episode; the job is left alone, and when there is room again it is taken."""
    bench.commit("last.raw", b"1" * 3_000_000)
    bench.write("last.raw", b"2" * 3_000_001)
    usage = shutil._ntuple_diskusage(10_000_000, 6_000_000, 4_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        bench.run(200)
    assert bench.committed == [1]
    assert bench.notices == ["checkpoint_no_room"]
    assert "a copy of 3 MB" in bench.events[-1]["detail"]
    assert "the 4 MB that are free" in bench.events[-1]["detail"]
    bench.run(100)
    assert bench.committed == [1, 2]


def test_files_that_only_wait_for_the_store_are_given_up_when_the_disk_runs_full(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away, the job has deleted that checkpoint, and needs the room for the next one."""
    bench.store.trouble = lambda deed, key: "before"
    bench.write("checkpoint-1/w.raw", b"1" * 1000)
    bench.run(10)
    assert len(list((bench.root / "stage").rglob("w.raw"))) == 1
    shutil.rmtree(bench.folder / "checkpoint-1")
    bench.run(10)
    assert len(list((bench.root / "stage").rglob("w.raw"))) == 1
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    bench.run(10)
    assert not list((bench.root / "stage").rglob("w.raw"))
    assert bench.notices == ["checkpoint_no_room"]


def test_a_linked_file_that_changes_while_it_is_sent_is_taken_again_as_a_copy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its name promises does not hold; nothing of the mixture is ever announced."""
    size = 6_000_000

    def rewrite(deed: str, key: str) -> str | None:
        if deed == "put_new" and "/blobs/" in key:
            bench.store.trouble = lambda deed, key: None
            bench.write("step-1/w.raw", b"2" * size)
        return None

    bench.write("step-1/w.raw", os.urandom(size))
    bench.store.trouble = rewrite
    monkeypatch.setattr(transfer, "MOST", 1)
    bench.run(100)
    assert bench.committed == [1]
    assert bench.restored(1) == {"step-1/w.raw": b"2" * size}
    assert bench.keeper._seen._rewritten


# --- keeping and deleting ------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
def test_acknowledged_generations_beyond_keep_go_and_their_parts_with_them(bench: Bench) -> None:
    """Manifest first, then what no other manifest names; never the newest two."""
    bench.write("frozen.raw", b"frozen")
    for number in range(1, 6):
        bench.commit("a.raw", b"%d" % number)
    assert bench.manifests() == [1, 2, 3, 4, 5]
    bench.keeper.acknowledge(4)
    bench.run(10)
    assert bench.manifests() == [3, 4, 5]
    assert bench.keeper.unconfirmed == 1
    bench.keeper.acknowledge(5)
    bench.keeper.acknowledge(3)  # late, or stale
    assert bench.keeper.unconfirmed == 0
    bench.keeper.acknowledge(99)  # not ours to believe
    bench.run(10)
    assert bench.manifests() == [4, 5]
    assert bench.keeper.unconfirmed == 0
    assert len(bench.blobs()) == 3
    kinds = ["blobs" if "/blobs/" in key else "manifest" for key in bench.store.deleted]
    assert kinds == ["manifest"] * 2 + ["blobs"] * 2 + ["manifest", "blobs"]
    bench.commit("b.raw", b"new")
    assert bench.keeper.unconfirmed == 1
    (bench.folder / "b.raw").unlink()
    for generation in (4, 5):
        assert bench.restored(generation) == {"a.raw": b"%d" % generation, "frozen.raw": b"frozen"}


def test_an_orchestrator_that_is_away_all_night_costs_eight_checkpoints_of_space(
    bench: Bench,
) -> None:
    """Only the middle is thinned out: the last acknowledged and the newest two stay."""
    bench.commit("a.raw", b"0")
    bench.keeper.acknowledge(1)
    for number in range(60):
        bench.commit("a.raw", b"%d" % number)
        there = bench.manifests()
        newest = bench.committed[-1]
        assert {1, newest, max(1, newest - 1)} <= set(there)
        assert len(there) <= 9
    assert bench.keeper.unconfirmed == 60
    assert len(bench.blobs()) <= 9


@pytest.mark.usefixtures("alone")
def test_a_delete_that_fails_is_done_later_and_in_order(bench: Bench) -> None:
    """A part may go only after the manifest that names it."""
    bench.store.trouble = lambda deed, key: "before" if deed == "delete" else None
    for number in range(4):
        bench.commit("a.raw", b"%d" % number)
    bench.keeper.acknowledge(4)
    bench.run(60)
    assert bench.manifests() == [1, 2, 3, 4]
    assert len(bench.blobs()) == 4
    assert len(bench.store.deleted) < 12
    bench.store.trouble = lambda deed, key: None
    bench.run(40)
    assert bench.manifests() == [3, 4]
    assert len(bench.blobs()) == 2


def test_content_that_comes_back_while_its_part_waits_for_deletion_is_kept(bench: Bench) -> None:
    """The delete had failed; carried out after the new manifest, it would tear it."""
    bench.store.trouble = lambda deed, key: "before" if deed == "delete" else None
    for data in (b"A", b"B", b"C"):
        bench.commit("a.raw", data)
    bench.keeper.acknowledge(3)
    bench.run(10)
    bench.commit("a.raw", b"A")
    bench.store.trouble = lambda deed, key: None
    bench.run(100)
    assert bench.committed == [1, 2, 3, 4]
    assert bench.restored(4) == {"a.raw": b"A"}


@pytest.mark.parametrize("seed", range(30))
def test_what_may_be_deleted_never_includes_what_must_stay(seed: int) -> None:
    """Newest two, the newest acknowledged ones, at most eight ahead; whatever the order of events."""
    rng = random.Random(seed)
    there: set[int] = set()
    committed: list[int] = []
    acknowledged, keep = 0, rng.randint(0, 4)
    for generation in range(1, 80):
        there.add(generation)
        if rng.random() < 0.9:
            committed.append(generation)
            if rng.random() < 0.2:
                acknowledged = rng.choice(committed)
        gone = surplus(there, committed, acknowledged=acknowledged, keep=keep)
        assert gone == sorted(gone)
        live = [g for g in sorted(there) if g in committed]
        confirmed = [g for g in live if g <= acknowledged]
        assert not set(gone) & {*live[-2:], *confirmed[-max(1, keep) :]}
        there -= set(gone)
        left = [g for g in there if g in committed and g > acknowledged]
        assert len(left) <= 8
        assert len([g for g in there if g in committed and g <= acknowledged]) <= max(2, keep)


# --- up and down ----------------------------------------------------------------------------------------


def an_item(path: Path, name: str) -> Item:
    info = path.stat()
    return Item(name, path, info.st_size, info.st_mtime_ns, info.st_mode & 0o777)


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 3500])
def test_files_are_cut_into_parts_and_put_together_again(
    bench: Bench, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also empty ones, and at the borders of a part; parts of any size are read in bounded pieces."""
    monkeypatch.setattr(transfer, "_READ", 300)
    source = tmp_path / "data"
    source.write_bytes(os.urandom(size))
    bench.store.max_object = 1000
    (file,) = upload(bench.store, "a-1", [an_item(source, "x/data")], {}, clock=bench.clock)
    assert [part.size for part in file.parts] == [1000] * (size // 1000) + [size % 1000] * bool(
        size % 1000
    )
    assert (file.size, file.sha256) == (size, wire.sha256(source.read_bytes()))
    into = tmp_path / "into"
    download(bench.store, wire.Manifest("j-1", "a-1", 1, 1, None, 0.0, (file,)), into)
    assert contents(into) == {"x/data": source.read_bytes()}


def three_files(bench: Bench, tmp_path: Path) -> wire.Manifest:
    source = tmp_path / "source"
    for index, name in enumerate(("checkpoint-1/m", "checkpoint-2/m", "state")):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(2500))
        path.chmod(0o600 if index else 0o640)
        os.utime(path, ns=(10**18 - index * 10**9, 10**18 - index * 10**9))
    names = sorted(contents(source))
    bench.store.max_object = 1000
    files = upload(bench.store, "a-1", [an_item(source / n, n) for n in names], {})
    return wire.Manifest("j-1", "a-1", 1, 1, None, 0.0, files)


def test_times_and_modes_come_back_also_those_of_folders(bench: Bench, tmp_path: Path) -> None:
    """The Trainer removes the oldest of its folders, by their time."""
    manifest = three_files(bench, tmp_path)
    into = tmp_path / "into"
    download(bench.store, manifest, into)
    for name in contents(into):
        got, had = (into / name).stat(), (tmp_path / "source" / name).stat()
        assert (got.st_mtime_ns, got.st_mode) == (had.st_mtime_ns, had.st_mode)
    stamps = [(into / f"checkpoint-{n}").stat().st_mtime_ns for n in (1, 2)]
    assert stamps == [10**18, 10**18 - 10**9]


def test_a_restore_leaves_exactly_the_manifest_s_files(bench: Bench, tmp_path: Path) -> None:
    """What lay there, a link too, is replaced, and the link's target is not touched."""
    manifest = three_files(bench, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_bytes(b"p")
    into = tmp_path / "into"
    into.symlink_to(elsewhere)
    (tmp_path / ".into.restoring").symlink_to(elsewhere)
    download(bench.store, manifest, into)
    assert contents(into) == contents(tmp_path / "source")
    assert contents(elsewhere) == {"precious": b"p"}
    (into / "stale").write_bytes(b"s")
    download(bench.store, manifest, into)
    assert contents(into) == contents(tmp_path / "source")
    assert not (tmp_path / ".into.restoring").exists()


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "empty"])
def test_a_damaged_part_is_never_restored_and_the_old_folder_stays(
    bench: Bench, tmp_path: Path, damage: str
) -> None:
    """Torn and still on its way look the same: the caller waits and tries again, and only the rest is fetched."""
    manifest = three_files(bench, tmp_path)
    into = tmp_path / "into"
    into.mkdir()
    (into / "old").write_bytes(b"old")
    part = manifest.files[1].parts[1]
    good = bench.store.inner.get(part.key)
    if damage == "missing":
        bench.store.inner.delete(part.key)
    else:
        flipped = bytes([good[0] ^ 1]) + good[1:]
        bench.store.inner.put(
            part.key, {"short": good[:-1], "flipped": flipped, "empty": b""}[damage]
        )
    fetched: list[str] = []
    bench.store.trouble = lambda deed, key: fetched.append(key)
    with pytest.raises((wire.Unreadable, ObjectMissing)):
        download(bench.store, manifest, into)
    assert contents(into) == {"old": b"old"}
    assert fetched[-1] == part.key, "what comes after it is not fetched"
    bench.store.inner.put(part.key, good)
    fetched.clear()
    download(bench.store, manifest, into)
    assert contents(into) == contents(tmp_path / "source")
    assert len(fetched) == 9 - 4, "four parts had been verified before"


def test_what_a_try_for_another_base_left_does_not_leak_into_this_one(
    bench: Bench, tmp_path: Path
) -> None:
    """The orchestrator may choose an older base after the newer one proved gone."""
    manifest = three_files(bench, tmp_path)
    broken = wire.Manifest(
        "j-1", "a-1", 1, 2, None, 0.0, (*manifest.files[:2], *manifest.files[2:])
    )
    last = broken.files[2].parts[2]
    good = bench.store.inner.get(last.key)
    bench.store.inner.delete(last.key)
    into = tmp_path / "into"
    with pytest.raises(ObjectMissing):
        download(bench.store, broken, into)
    bench.store.inner.put(last.key, good)
    only = wire.Manifest("j-1", "a-1", 1, 1, None, 0.0, manifest.files[:1])
    download(bench.store, only, into)
    assert set(contents(into)) == {"checkpoint-1/m"}


@pytest.mark.parametrize(
    "paths",
    [["../evil"], ["/etc/evil"], ["a", "a"], ["a", "a/b"], ["a/../../b"], ["."]],
)
def test_a_hostile_manifest_writes_nothing(bench: Bench, tmp_path: Path, paths: list[str]) -> None:
    """It is refused before the first byte."""
    files = tuple(wire.File(p, 0, wire.sha256(b""), 0, 0o644, ()) for p in paths)
    root = tmp_path / "down"
    root.mkdir()
    with pytest.raises(wire.Unreadable):
        download(bench.store, wire.Manifest("j", "a", 1, 1, None, 0.0, files), root / "into")
    assert list(root.iterdir()) == []


def test_parts_that_do_not_make_up_the_file_are_refused(bench: Bench, tmp_path: Path) -> None:
    """Each part is what it says, in the wrong order."""
    manifest = three_files(bench, tmp_path)
    first = manifest.files[0]
    swapped = wire.File(
        first.path, first.size, first.sha256, 0, 0o644, (*first.parts[1::-1], first.parts[2])
    )
    with pytest.raises(wire.Unreadable):
        download(
            bench.store,
            wire.Manifest("j", "a", 1, 1, None, 0.0, (swapped,)),
            tmp_path / "into",
        )
    key = wire.File("f", 1, wire.sha256(b"x"), 0, 0o644, (wire.Part("../x", wire.sha256(b"x"), 1),))
    with pytest.raises(wire.Unreadable):
        download(bench.store, wire.Manifest("j", "a", 1, 1, None, 0.0, (key,)), tmp_path / "into")


def test_a_base_is_read_by_its_digest(bench: Bench) -> None:
    """Another manifest under the right name is not the base."""
    bench.commit("a.raw", b"1")
    event = bench.events[0]
    base = wire.Base(event["key"], event["sha256"], 1, 1)
    assert read_manifest(bench.store, base) == bench.manifest(1)
    with pytest.raises(wire.Unreadable):
        read_manifest(bench.store, wire.Base(event["key"], "0" * 64, 1, 1))


def test_a_stop_ends_transfers_between_parts(bench: Bench, tmp_path: Path) -> None:
    """In both directions."""
    manifest = three_files(bench, tmp_path)
    with pytest.raises(Stopped):
        download(bench.store, manifest, tmp_path / "into", should_stop=lambda: True)
    item = an_item(tmp_path / "source" / "state", "state")
    with pytest.raises(Stopped):
        upload(bench.store, "a-1", [item], {}, should_stop=lambda: True)


# --- outputs ----------------------------------------------------------------------------------------------


def outputs_in(tmp_path: Path, *globs: str) -> dict[str, bytes]:
    items = find_outputs(globs, tmp_path / "work", tmp_path / "out")
    return {item.path: item.source.read_bytes() for item in items}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    files = {
        "out/metrics.json": b"own",
        "out/deep/a.txt": b"own",
        "work/metrics.json": b"work",
        "work/results/one.txt": b"1",
        "work/results/sub/two.txt": b"2",
        "work/results/sub/three.bin": b"3",
        "work/other/four.txt": b"4",
        "work/five[1].txt": b"5",
    }
    for name, data in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


OWN = {"metrics.json", "deep/a.txt"}
BELOW = {"results/one.txt", "results/sub/two.txt", "results/sub/three.bin"}


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("results/**", BELOW),
        ("results", BELOW),
        ("./results/", BELOW),
        ("results/*", BELOW),
        ("res*", BELOW),
        ("results/*.txt", {"results/one.txt"}),
        ("results/**/*.txt", {"results/one.txt", "results/sub/two.txt"}),
        ("**/*.bin", {"results/sub/three.bin"}),
        ("**/sub", {"results/sub/two.txt", "results/sub/three.bin"}),
        ("**/t*.txt", {"results/sub/two.txt"}),
        ("*/????.txt", {"other/four.txt"}),
        ("results/one.txt", {"results/one.txt"}),
        ("five[[]1].txt", {"five[1].txt"}),
        ("nothing/*", set()),
        ("../out/*", set()),
        ("/etc/*", set()),
        ("results/../..", set()),
    ],
)
def test_globs_name_results(results: Path, glob: str, expected: set[str]) -> None:
    """Relative to the working folder; a folder means everything below; nothing outside."""
    assert set(outputs_in(results, glob)) == OWN | expected


def test_the_output_folder_wins_on_equal_paths(results: Path) -> None:
    """What the job put there on purpose is the result."""
    assert outputs_in(results, "metrics.json")["metrics.json"] == b"own"


def test_an_output_folder_inside_the_working_folder_is_not_taken_twice(tmp_path: Path) -> None:
    """`**` would bring it home a second time, under its path in the working folder."""
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "work" / "out" / "a").write_bytes(b"a")
    (tmp_path / "work" / "b").write_bytes(b"b")
    items = find_outputs(("**",), tmp_path / "work", tmp_path / "work" / "out")
    assert [item.path for item in items] == ["a", "b"]


def test_links_out_of_the_working_folder_are_no_results(results: Path) -> None:
    """Neither files nor folders, nor loops; links inside are."""
    (results / "secret").write_bytes(b"s")
    for where in ("work/results", "out"):
        (results / where / "leak").symlink_to(results / "secret")
        (results / where / "up").symlink_to(results)
        (results / where / "self").symlink_to(".")
        (results / where / "four").symlink_to(results / "work/other/four.txt")
    os.mkfifo(results / "out" / "pipe")
    assert set(outputs_in(results, "results/**")) == OWN | BELOW | {"results/four", "four"}


@pytest.mark.usefixtures("alone")
def test_outputs_are_written_once_with_their_manifest_last(bench: Bench, results: Path) -> None:
    """Its key says that the attempt has ended; called again, it is the same manifest."""
    bench.begin(outputs=("results/**",))
    known: dict[str, wire.Part] = {}

    def collect() -> tuple[str, str] | None:
        return collect_outputs(
            bench.store, bench.ticket, results / "work", results / "out", known, clock=bench.clock
        )

    puts = []

    def trouble(deed: str, key: str) -> str | None:
        puts.append(key)
        return {2: "before", 6: "after"}.get(len(puts))  # the manifest is the sixth

    bench.store.trouble = trouble
    for _ in range(2):
        with pytest.raises(StoreError):
            collect()
        bench.clock.now += 10
    got = collect()
    assert got is not None
    key, digest = got
    assert key == wire.outputs_key("a-1") == bench.store.put_keys[-1]
    manifest = wire.Manifest.from_bytes(bench.store.inner.get(key), digest)
    assert (manifest.generation, manifest.step, manifest.epoch) == (0, None, 1)
    into = results / "home"
    download(bench.store.inner, manifest, into)
    assert set(contents(into)) == OWN | BELOW
    bench.clock.now += 10
    assert collect() == got


def test_no_files_no_outputs(bench: Bench, tmp_path: Path) -> None:
    """None, and nothing in the store; a folder that was never made is no error."""
    got = collect_outputs(bench.store, bench.ticket, tmp_path / "work", tmp_path / "none", {})
    assert got is None
    assert bench.store.put_keys == []


def test_outputs_refer_to_parts_that_are_there_already(bench: Bench, tmp_path: Path) -> None:
    """The final model is often the last checkpoint."""
    bench.commit("model.raw", b"weights")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.raw").write_bytes(b"weights")
    bench.store.put_keys.clear()
    assert collect_outputs(
        bench.store, bench.ticket, bench.folder, tmp_path / "out", bench.keeper.known
    )
    assert bench.store.put_keys == [wire.outputs_key("a-1")]


# --- all of it, at random ------------------------------------------------------------------------------------


class Writer:
    """A job that saves states of several files, step by step, in one of the usual ways; it may die at any step."""

    def __init__(self, bench: Bench, rng: random.Random, style: str) -> None:
        self.bench = bench
        self.rng = rng
        self.style = style
        self.count = 0
        self.completed: list[dict[str, bytes]] = []
        self.steps: list[Callable[[], None]] = []

    def begin_save(self) -> None:
        self.count += 1
        tag = b'{"save": %d, "of": %d}' % (self.count, self.bench.ticket.epoch)
        if self.style == "one file in place":
            files = {"state.json": tag + b" " * self.rng.randint(0, 5)}
        elif self.style == "several files":
            files = {f"{n}.raw": tag + n.encode() for n in "abc"}
        else:
            folder = f"checkpoint-{self.count + 1000 * self.bench.ticket.epoch}"
            files = {f"{folder}/{n}": tag for n in ("optimizer.pt.raw", "x.json")}
            files[f"{folder}/trainer_state.json"] = tag
        for name, data in files.items():
            if self.rng.random() < 0.5:
                half = data[: len(data) // 2]
                self.steps.append(lambda name=name, half=half: self.bench.write(name, half))  # type: ignore[misc]
            self.steps.append(lambda name=name, data=data: self.bench.write(name, data))  # type: ignore[misc]
        if self.style == "folders":
            old = [p for p in self.bench.folder.iterdir() if p.is_dir()]
            for folder_ in old:
                for path in sorted(folder_.iterdir()):
                    self.steps.append(lambda path=path: path.unlink(missing_ok=True))  # type: ignore[misc]
                self.steps.append(lambda folder_=folder_: shutil.rmtree(folder_))  # type: ignore[misc]
            self.completed.append(files)
        else:
            self.completed.append({**(self.completed[-1] if self.completed else {}), **files})

    def advance(self) -> None:
        if self.steps:
            self.steps.pop(0)()


def newest(bench: Bench) -> tuple[int, int] | None:
    found = [
        (int(key[-18:-12]), int(key[-11:-5]))
        for key in bench.store.list(wire.checkpoint_prefix("j-1"))
    ]
    return max(found, default=None)


def states_of(files: dict[str, bytes]) -> list[dict[str, bytes]]:
    """The state, or for Trainer folders the states, that these files are."""
    folders: dict[str, dict[str, bytes]] = {}
    for path, data in files.items():
        folders.setdefault(path.rpartition("/")[0], {})[path] = data
    return list(folders.values())


@pytest.mark.parametrize("block", range(2))
@pytest.mark.parametrize("style", ["one file in place", "several files", "folders"])
def test_whatever_happens_the_newest_manifest_restores_one_completed_state(
    tmp_path: Path, style: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one blob each or in many; writes, looks, a store that fails before or after the deed, kills, clean ends, resumes, acknowledgements."""
    if block:
        monkeypatch.setattr(transfer, "_BLOB", (30, 30))
        monkeypatch.setattr(transfer, "MOST", 1)
    restores = sum(
        a_life(tmp_path / str(seed), style, seed) for seed in range(block * 10, block * 10 + 10)
    )
    assert restores >= 5, "nothing was ever saved: that proves nothing"


def a_life(root: Path, style: str, seed: int) -> int:
    """A job over up to five sessions, every newest manifest checked; how often it was resumed."""
    rng = random.Random(seed)
    bench = Bench(root, checkpoint_every_s=rng.choice([2.0, 8.0, 30.0]))
    bench.clock.time = lambda: 1e8 + bench.clock.now  # type: ignore[method-assign]
    settle = bench.keeper._settle_s
    writer = Writer(bench, rng, style)
    fault, restores = rng.choice([0.0, 0.1, 0.4]), 0

    def trouble(deed: str, key: str) -> str | None:
        return rng.choice(["before", "after", "full"]) if rng.random() < fault else None

    checked: tuple[int, int] | None = None
    for _ in range(rng.randint(1, 5)):
        bench.store.trouble = trouble
        for _ in range(rng.randint(20, 150)):
            if writer.steps:
                writer.advance()
                # faster than it settles: what pauses longer between its files cannot be told from finished
                bench.clock.now += rng.uniform(0, settle / 4)
            elif rng.random() < 0.4:
                writer.begin_save()
            else:
                bench.clock.now += rng.choice([0.05, settle, 3 * settle, 20.0])
            if rng.random() < 0.8:
                bench.keeper.step()
            if rng.random() < 0.1 and bench.keeper.last_generation:
                bench.keeper.acknowledge(rng.randint(1, bench.keeper.last_generation))
            checked = check(bench, writer, checked, seed)
        clean = not writer.steps
        for _ in range(rng.randint(0, 3)):
            bench.keeper.final(clean=clean)
            bench.clock.now += rng.uniform(0, 5)
        check(bench, writer, None, seed)
        # the session is gone; the next one starts from the newest manifest there is
        bench.store.trouble = lambda deed, key: None
        found, base = newest(bench), None
        shutil.rmtree(bench.folder)
        bench.folder.mkdir()
        if found:
            base = bench.manifest(found[1], epoch=found[0])
            download(bench.store, base, bench.folder)
            restores += 1
        epoch = bench.ticket.epoch + 1
        bench.begin(base=base, attempt=f"a-{epoch}", epoch=epoch, number=epoch)
        writer.steps.clear()
    return restores


def check(
    bench: Bench, writer: Writer, checked: tuple[int, int] | None, seed: int
) -> tuple[int, int] | None:
    found = newest(bench)
    if found is None or found == checked:
        return found
    into = bench.root / "check"
    download(bench.store.inner, bench.manifest(found[1], epoch=found[0]), into)
    states = states_of(contents(into))
    assert states, seed
    for state in states:
        assert state in writer.completed, f"seed {seed}: a state that the job never completed"
    return found


def test_the_module_is_light() -> None:
    """The agent starts in a notebook cell: nothing heavy is imported before it is used."""
    import subprocess
    import sys

    code = "import sys, freegpu.agent.checkpoint, freegpu.agent.outputs; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"zipfile", "tarfile", "sqlite3", "ssl", "http.client"} & set(loaded)

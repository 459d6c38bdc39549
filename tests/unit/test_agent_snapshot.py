"""Snapshots of a checkpoint folder that is being written: one state of the job's, or none."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from freegpu.agent import snapshot
from freegpu.agent.clock import SystemClock
from freegpu.agent.snapshot import EMPTY, SETTLING, TORN, UNCHANGED, Seen, Snapshot, take


class ManualClock:
    """Time moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.9e9 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Watched:
    """A folder, what was seen of it, and a clock."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "ckpt"
        self.folder.mkdir()
        self.stage = root / "stage" / "1"
        self.clock = ManualClock()
        self.seen = Seen()

    def write(self, path: str, data: bytes) -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        stamp = int(self.clock.time() * 1e9)
        os.utime(target, ns=(stamp, stamp))
        return target

    def take(
        self, *, ended: bool = False, clean: bool = True, pids: list[int] | None = None
    ) -> Snapshot | None:
        return take(
            self.folder,
            self.stage,
            clock=self.clock,
            settle_s=2.0,
            seen=self.seen,
            ended=ended,
            clean=clean,
            pids=pids or (),
        )

    def settled(self) -> Snapshot | None:
        assert self.take() is None
        self.clock.now += 2.0
        return self.take()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def paths(taken: Snapshot | None) -> list[str]:
    assert taken is not None
    return [item.path for item in taken.items]


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data", content)
    return buffer.getvalue()


def trainer_folder(watched: Watched, number: int, *, last: bool = True) -> None:
    """What Transformers leaves in checkpoint-N, with or without the file it writes last."""
    watched.write(f"checkpoint-{number}/optimizer.pt", zipped(b"o%d" % number))
    watched.write(f"checkpoint-{number}/README.md", b"card")
    if last:
        watched.write(f"checkpoint-{number}/trainer_state.json", json.dumps({"s": number}).encode())


def test_an_empty_or_missing_folder_gives_nothing(watched: Watched) -> None:
    """The job has not saved yet: no copy, no error."""
    assert watched.take() is None
    assert watched.seen.state == EMPTY
    watched.folder.rmdir()
    assert watched.take() is None
    assert watched.seen.state == EMPTY


def test_files_are_taken_once_they_have_not_changed_for_the_settle_time(watched: Watched) -> None:
    """An unknown format proves nothing, so only time does."""
    watched.write("weights.raw", b"abc")
    watched.write("nested/optimizer.raw", b"def")
    assert watched.take() is None
    assert watched.seen.state == SETTLING
    assert watched.seen.wait_s == pytest.approx(2.0)
    watched.clock.now += 1.9
    watched.write("weights.raw", b"ABC")
    watched.clock.now += 1.9
    assert watched.take() is None, "it changed in between"
    watched.clock.now += 2.0
    taken = watched.take()
    assert paths(taken) == ["nested/optimizer.raw", "weights.raw"]
    assert taken is not None
    assert [item.source.read_bytes() for item in taken.items] == [b"def", b"ABC"]
    assert taken.size == 6
    info = (watched.folder / "weights.raw").stat()
    assert (taken.items[1].mtime_ns, taken.items[1].mode) == (
        info.st_mtime_ns,
        info.st_mode & 0o7777,
    )


def test_an_unchanged_folder_is_not_taken_again(watched: Watched) -> None:
    """A snapshot without news would be a commit without news."""
    watched.write("a.raw", b"1")
    assert watched.settled() is not None
    watched.clock.now += 50
    assert watched.take() is None
    assert watched.seen.state == UNCHANGED
    watched.write("a.raw", b"2")
    assert watched.settled() is not None
    assert watched.take(ended=True) is None
    assert watched.seen.state == UNCHANGED


def test_a_single_file_that_its_format_proves_whole_need_not_settle(watched: Watched) -> None:
    """A job that saves its only file every second would otherwise never be saved."""
    watched.write("last.ckpt", zipped(b"0"))
    for _ in range(3):
        watched.take()
        watched.clock.now += 1
    got = 0
    for number in range(5):
        watched.write("last.ckpt", zipped(b"%d" % number * 10))
        assert watched.take() is None, "the same instant could still be written to"
        watched.clock.now += snapshot._TICK_S
        got += watched.take() is not None
    assert got == 5


def test_a_first_file_alone_waits_for_those_that_may_follow(watched: Watched) -> None:
    """config.json is whole, but it is not the checkpoint: its set of names has to settle."""
    watched.write("config.json", b"{}")
    watched.take()
    watched.clock.now += 1.0
    assert watched.take() is None
    watched.write("model.npz", zipped(b"w"))
    watched.clock.now += 1.5
    assert watched.take() is None
    watched.clock.now += 2.0
    assert paths(watched.take()) == ["config.json", "model.npz"]


def test_files_written_one_after_the_other_are_one_state(watched: Watched) -> None:
    """The model of one step beside the optimizer of another is whole by format and still torn."""
    for name in ("model.npz", "optimizer.npz"):
        watched.write(name, zipped(b"1"))
    assert watched.settled() is not None
    watched.write("model.npz", zipped(b"2"))
    watched.take()
    watched.clock.now += 1.9
    assert watched.take() is None
    watched.write("optimizer.npz", zipped(b"2"))
    assert watched.take() is None
    watched.clock.now += 1.9
    assert watched.take() is None
    watched.clock.now += 0.1
    taken = watched.take()
    assert taken is not None
    assert {zipfile.ZipFile(item.source).read("data") for item in taken.items} == {b"2"}


def test_a_file_that_is_cut_off_is_not_taken_however_long_it_lies_still(watched: Watched) -> None:
    """A writer that hangs in the middle has not finished."""
    watched.write("model.pt", zipped(b"x" * 1000)[:-30])
    watched.write("notes.txt", b"hi")
    assert watched.settled() is None
    assert watched.seen.state == TORN
    assert watched.take(ended=True) is None


@pytest.mark.parametrize(
    "name",
    [
        "model.pt.tmp",
        ".tmpAbC",
        "weights.tmp-12",
        "state~",
        ".~lock",
        "a.part",
        "b.incomplete",
        "5.orbax-checkpoint-tmp-123/data",
        "deep/x.tmp/y",
    ],
)
def test_temporary_names_are_left_out(watched: Watched, name: str) -> None:
    """They change all the time and are nobody's checkpoint."""
    watched.write("good.raw", b"1")
    watched.write(name, b"half")
    assert watched.take() is None
    watched.clock.now += 2
    watched.write(name, b"more")
    assert paths(watched.take()) == ["good.raw"]


def test_a_trainer_folder_counts_from_its_last_file_on(watched: Watched) -> None:
    """Transformers writes straight into checkpoint-N, trainer_state.json last."""
    trainer_folder(watched, 100)
    assert len(paths(watched.settled())) == 3
    trainer_folder(watched, 200, last=False)
    watched.clock.now += 60
    assert watched.take() is None
    assert watched.seen.state == UNCHANGED, "checkpoint-100 is in the store, 200 does not count yet"
    trainer_folder(watched, 200)
    assert watched.take() is None
    watched.clock.now += 2
    assert len(paths(watched.take())) == 6
    (watched.folder / "checkpoint-200/trainer_state.json").write_bytes(b'{"s": 2')
    for _ in range(3):
        watched.clock.now += 60
        assert watched.take() is None, "checkpoint-100 alone would be a step back"
    trainer_folder(watched, 300)
    assert {path.split("/")[0] for path in paths(watched.settled())} == {
        "checkpoint-100",
        "checkpoint-300",
    }


def test_without_any_whole_trainer_folder_the_rest_is_not_a_checkpoint(watched: Watched) -> None:
    """Else a README beside an unfinished checkpoint-1 would replace a real checkpoint as the newest."""
    watched.write("README.md", b"hello")
    trainer_folder(watched, 1, last=False)
    assert watched.settled() is None
    assert watched.take(ended=True) is None
    assert watched.take(ended=True, clean=False) is None


def test_somebody_s_own_checkpoint_5_needs_no_trainer_state(watched: Watched) -> None:
    """The name alone does not make a Trainer's folder: it settles like any other."""
    watched.write("checkpoint-5/mine.npz", zipped(b"5"))
    watched.write("checkpoint-6/mine.npz", zipped(b"6"))
    assert watched.settled() is not None


def test_accelerate_s_last_file_counts_too(watched: Watched) -> None:
    """diffusers' scripts write checkpoint-N by accelerate: no trainer_state.json ever."""
    watched.write("checkpoint-5/optimizer.bin", zipped(b"5"))
    assert watched.settled() is None
    watched.write("checkpoint-5/random_states_0.pkl", zipped(b"r"))
    assert watched.settled() is not None


def test_a_folder_marked_incomplete_is_left_out(watched: Watched) -> None:
    """Transformers marks what it saves on SIGTERM until it is done; its resume ignores the mark."""
    trainer_folder(watched, 1)
    trainer_folder(watched, 2)
    watched.write("checkpoint-2/checkpoint-is-incomplete.txt", b"")
    assert {path.split("/")[0] for path in paths(watched.settled())} == {"checkpoint-1"}
    (watched.folder / "checkpoint-2/checkpoint-is-incomplete.txt").unlink()
    assert {path.split("/")[0] for path in paths(watched.settled())} == {
        "checkpoint-1",
        "checkpoint-2",
    }


def test_a_log_that_grows_neither_delays_nor_causes_a_snapshot(watched: Watched) -> None:
    """TensorBoard writes into the Trainer's folder every few seconds, for hours."""
    log = watched.write("runs/events.out.tfevents.1.host", b"one")
    watched.write("model.raw", b"1")
    assert watched.take() is None
    watched.clock.now += 2
    log.write_bytes(b"one two")
    taken = watched.take()
    assert paths(taken) == ["model.raw", "runs/events.out.tfevents.1.host"]
    log.write_bytes(b"one two three")
    assert watched.take() is None
    assert watched.seen.state == UNCHANGED


def test_links_are_followed_inside_the_folder_and_nowhere_else(
    watched: Watched, tmp_path: Path
) -> None:
    """A link to a secret or to all of the disk is not part of a checkpoint."""
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "x").write_bytes(b"x")
    watched.write("step-3/w.raw", b"3")
    links = {
        "latest": "step-3",
        "last.raw": "step-3/w.raw",
        "outside": str(tmp_path / "secret"),
        "folder": str(tmp_path / "others"),
        "up": "..",
        "self": ".",
        "step-3/loop": "..",
        "broken": "nothing",
    }
    for name, target in links.items():
        os.symlink(target, watched.folder / name)
    os.mkfifo(watched.folder / "pipe")
    taken = watched.settled()
    assert paths(taken) == ["last.raw", "latest/w.raw", "step-3/w.raw"]
    assert taken is not None
    assert not any(item.source.is_symlink() for item in taken.items)


def test_a_change_while_copying_discards_the_copy(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file is of one state, the second of the next."""
    watched.write("a.raw", b"1")
    watched.write("b.raw", b"1")
    watched.take()
    watched.clock.now += 2
    real = shutil.copyfile

    def meanwhile(source: str, target: Path) -> object:
        result = real(source, target)
        if source.endswith("a.raw"):
            watched.write("a.raw", b"22")
            watched.write("b.raw", b"22")
        return result

    monkeypatch.setattr(shutil, "copyfile", meanwhile)
    assert watched.take() is None
    assert watched.seen.state == TORN
    assert not watched.stage.exists()


@pytest.mark.parametrize("what", ["new", "gone"])
def test_a_file_that_comes_or_goes_while_copying_discards_the_copy(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Rotation deletes, and the next save begins, at any moment."""
    watched.write("a.raw", b"1")
    watched.write("b.raw", b"1")
    watched.take()
    watched.clock.now += 2
    real = shutil.copyfile

    def meanwhile(source: str, target: Path) -> object:
        if what == "new":
            watched.write("c.raw", b"1")
        else:
            (watched.folder / "b.raw").unlink(missing_ok=True)
        return real(source, target)

    monkeypatch.setattr(shutil, "copyfile", meanwhile)
    assert watched.take() is None
    assert not watched.stage.exists()


def test_a_full_disk_leaves_nothing_behind(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half copy would be what the job's own next save lacks."""
    watched.write("a.raw", b"1" * 100)
    watched.write("b.raw", b"1" * 100)
    watched.take()
    watched.clock.now += 2
    real = shutil.copyfile

    def full(source: str, target: Path) -> object:
        if source.endswith("b.raw"):
            Path(target).write_bytes(b"1" * 50)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(source, target)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        watched.take()
    assert not watched.stage.exists()
    monkeypatch.setattr(shutil, "copyfile", real)
    assert watched.take() is not None


def test_the_copy_leaves_room_for_the_job_s_next_save(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that fills the disk kills the job it was to protect; at the end nobody saves any more."""
    watched.write("a.raw", b"1" * 1000)
    watched.take()
    watched.clock.now += 2
    usage = shutil._ntuple_diskusage(10_000, 8_500, 1_500)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    watched.seen._rewritten.add("a.raw")
    with pytest.raises(snapshot.NoRoom, match="free"):
        watched.take()
    assert watched.take(ended=True) is not None


# --- linked or copied ---------------------------------------------------------------------------------


def linked(taken: Snapshot | None) -> set[str]:
    assert taken is not None
    for item in taken.items:
        assert (item.mark is not None) == (item.source.stat().st_nlink > 1)
    return {item.path for item in taken.items if item.mark}


@pytest.mark.parametrize(
    ("path", "once"),
    [
        ("checkpoint-7/model.raw", True),
        ("7/default/d/x.raw", True),
        ("epoch=1-step=100.ckpt.raw", True),
        ("ckpt_500.raw", True),
        ("last.raw", False),
        ("v2.raw", False),
        ("best/model.raw", False),
    ],
)
def test_what_has_a_step_in_its_name_is_linked_and_the_rest_is_copied(
    watched: Watched, path: str, once: bool
) -> None:
    """Written once, it cannot change under the link; and a log grows for ever, so it is always copied."""
    watched.write(path, b"1")
    watched.write(path.rpartition("/")[0] + "/train.log", b"line")
    assert linked(watched.settled()) == ({path} if once else set())


def test_a_linked_file_survives_its_own_rotation(watched: Watched) -> None:
    """The job keeps one folder and deletes it while it is being sent."""
    trainer_folder(watched, 1)
    taken = watched.settled()
    assert taken is not None
    shutil.rmtree(watched.folder / "checkpoint-1")
    assert {item.path: item.source.read_bytes() for item in taken.items}[
        "checkpoint-1/README.md"
    ] == b"card"


def test_a_file_that_is_replaced_by_renaming_is_linked_from_the_second_time_on(
    watched: Watched,
) -> None:
    """Another inode each time: nobody writes to the one that we hold."""
    watched.write("last.raw", b"1")
    assert linked(watched.settled()) == set()
    os.replace(watched.write("beside.tmp", b"2"), watched.folder / "last.raw")
    assert linked(watched.settled()) == {"last.raw"}


def test_a_file_that_was_overwritten_in_place_is_copied_from_then_on(watched: Watched) -> None:
    """Whatever its name promises, and whatever the step: its neighbours too."""
    watched.write("step-1/w.raw", b"1")
    assert linked(watched.settled()) == {"step-1/w.raw"}
    watched.write("step-1/w.raw", b"22")
    assert linked(watched.settled()) == set()
    watched.write("step-2/w.raw", b"3")
    assert linked(watched.settled()) == set()


def test_without_room_for_a_copy_it_is_linked_all_the_same(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty GB and twelve free: better a link that may prove void than nothing; what is surely void is not tried."""
    usage = shutil._ntuple_diskusage(10_000, 8_500, 1_500)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    watched.write("last.raw", b"1" * 1000)
    assert linked(watched.settled()) == {"last.raw"}
    watched.write("last.raw", b"2" * 1001)
    watched.take()
    watched.clock.now += 2
    with pytest.raises(snapshot.NoRoom, match="more than the 0 MB that are free"):
        watched.take()
    assert linked(watched.take(ended=True)) == {"last.raw"}, "nobody writes any more"


def test_where_links_are_not_possible_it_is_copied(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file system, or one without links."""
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EXDEV, "no")))
    watched.write("checkpoint-1/w.raw", b"1")
    assert linked(watched.settled()) == set()


def test_files_that_only_we_hold_are_given_up_when_the_disk_runs_full(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's next save needs the room that it believes to have made."""
    watched.write("checkpoint-1/w.raw", b"1" * 1000)
    taken = watched.settled()
    assert taken is not None
    usage = shutil._ntuple_diskusage(10_000, 8_500, 1_500)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    snapshot.check_room(taken)
    (watched.folder / "checkpoint-1/w.raw").unlink()
    with pytest.raises(snapshot.NoRoom, match="given up"):
        snapshot.check_room(taken)


# --- folders of steps -----------------------------------------------------------------------------------


def a_step(watched: Watched, number: int, *, says: bool | None = None) -> None:
    """What orbax leaves, with its last file or without, where it has one."""
    for name in ("_CHECKPOINT_METADATA", "default/_METADATA", "default/d/x.raw"):
        watched.write(f"{number}/{name}", b"{}")
    if says:
        watched.write(f"{number}/commit_success.txt", b"yes")


def test_where_steps_say_that_they_are_whole_each_one_has_to(watched: Watched) -> None:
    """orbax on a store that cannot rename; the older ones are taken meanwhile."""
    a_step(watched, 100, says=True)
    assert len(paths(watched.settled())) == 4
    a_step(watched, 200)
    watched.clock.now += 5
    assert watched.take() is None
    watched.clock.now += 5
    assert watched.take() is None
    watched.write("200/commit_success.txt", b"yes")
    assert len(paths(watched.settled())) == 8


def test_where_they_are_renamed_none_needs_to_say_so(watched: Watched) -> None:
    """orbax on a disk."""
    a_step(watched, 100)
    assert len(paths(watched.settled())) == 3


@pytest.mark.parametrize("seen_whole", [True, False])
def test_half_of_an_older_folder_is_left_out(watched: Watched, seen_whole: bool) -> None:
    """A rotation that was killed: the folder stands still for ever, and looks like a checkpoint."""
    trainer_folder(watched, 1)
    if seen_whole:
        watched.settled()
    trainer_folder(watched, 2)
    (watched.folder / "checkpoint-1/optimizer.pt").unlink()
    assert {path.split("/")[0] for path in paths(watched.settled())} == {"checkpoint-2"}
    watched.clock.now += 60
    assert watched.take() is None
    assert watched.seen.state == UNCHANGED


def test_an_older_folder_with_more_in_it_stays(watched: Watched) -> None:
    """Only the newest has no best model beside it, say."""
    trainer_folder(watched, 1)
    watched.write("checkpoint-1/extra.raw", b"1")
    trainer_folder(watched, 2)
    assert {path.split("/")[0] for path in paths(watched.settled())} == {
        "checkpoint-1",
        "checkpoint-2",
    }


def test_a_file_open_for_writing_is_not_taken(watched: Watched) -> None:
    """It has not moved for long, but its writer has not closed it either."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    path = watched.write("model.raw", b"1")
    with open(path, "r+b"), open(watched.write("log.tmp", b""), "wb"):
        watched.take()
        watched.clock.now += 5
        assert watched.take(pids=[os.getpid(), 2**22 + 1]) is None
        assert watched.seen.state == TORN
    with open(path, "rb"):
        assert watched.take(pids=[os.getpid()]) is not None


def test_after_a_clean_end_nothing_has_to_settle(watched: Watched) -> None:
    """The job saved on SIGTERM and ended by itself: nobody writes any more."""
    watched.write("model.raw", b"1")
    watched.write("optimizer.raw", b"1")
    assert paths(watched.take(ended=True)) == ["model.raw", "optimizer.raw"]


def test_after_a_kill_only_what_had_settled_or_is_proven_is_taken(watched: Watched) -> None:
    """SIGKILL may have come between two files, or in the middle of one; waiting afterwards proves nothing."""
    watched.clock.time = lambda: watched.clock.now  # type: ignore[method-assign]
    watched.write("model.raw", b"1")
    watched.write("optimizer.raw", b"1")
    assert watched.settled() is not None
    watched.write("model.raw", b"2")
    for _ in range(5):
        assert watched.take(ended=True, clean=False) is None
        watched.clock.now += 10


def test_after_a_kill_a_single_proven_file_is_taken(watched: Watched) -> None:
    """Its format says that the last byte was written."""
    watched.write("last.ckpt", zipped(b"1"))
    watched.take()
    watched.clock.now += 3
    watched.write("last.ckpt", zipped(b"22"))
    assert watched.take(ended=True, clean=False) is not None


def test_after_a_kill_a_trainer_folder_counts_by_its_last_file(watched: Watched) -> None:
    """checkpoint-200 was complete, checkpoint-300 was not."""
    trainer_folder(watched, 200)
    trainer_folder(watched, 300, last=False)
    taken = watched.take(ended=True, clean=False)
    assert {path.split("/")[0] for path in paths(taken)} == {"checkpoint-200"}


def test_after_a_kill_the_kernel_s_stamp_tells_what_no_look_has_seen(watched: Watched) -> None:
    """Looks are rare when commits are: a save of three minutes before the kill had settled all the same."""
    (watched.folder / "model.raw").write_bytes(b"1")
    (watched.folder / "optimizer.raw").write_bytes(b"1")
    offset = time.time() + 180 - watched.clock.now
    watched.clock.time = lambda: watched.clock.now + offset  # type: ignore[method-assign]
    assert watched.take(ended=True, clean=False) is not None


def test_the_age_of_the_last_change_does_not_follow_a_clock_that_jumps(watched: Watched) -> None:
    """The wall clock is believed only within the time since the last look."""
    watched.write("a.raw", b"1")
    watched.take()
    watched.clock.now += 2
    watched.take()
    watched.clock.now += 5
    watched.write("a.raw", b"2")
    jumped = watched.clock.now
    watched.clock.time = lambda: 3e9  # type: ignore[method-assign]
    watched.clock.now += 1
    watched.take()
    assert watched.seen.changed_at is not None
    assert jumped - 5 <= watched.seen.changed_at <= watched.clock.now


IN_PLACE = """
    import io, os, sys, time, zipfile
    target, number = os.path.join(sys.argv[1], "last.ckpt"), 0
    while True:
        number += 1
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for entry in range(8):
                archive.writestr(str(entry), b"%8d" % number * 50_000)
        data = buffer.getvalue()
        with open(target, "wb") as file:  # truncates, like torch.save
            for at in range(0, len(data), 1 << 18):
                file.write(data[at:at + (1 << 18)])
                file.flush()
                time.sleep(0.002)
        time.sleep(0.25)
"""

ROTATION = """
    import json, os, shutil, sys, time, zipfile
    root, number = sys.argv[1], 0
    while True:
        number += 1
        folder = os.path.join(root, f"checkpoint-{number}")
        os.makedirs(folder)
        for name in ("model.pt", "optimizer.pt", "rng_state.pth"):
            with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
                archive.writestr("data", b"%8d" % number * 100_000)
            time.sleep(0.02)
        with open(os.path.join(folder, "merges.txt"), "w") as file:
            file.write(str(number))
        with open(os.path.join(folder, "trainer_state.json"), "w") as file:
            json.dump({"global_step": number}, file)
        if number > 1:
            shutil.rmtree(os.path.join(root, f"checkpoint-{number - 1}"))
        time.sleep(0.7)
"""


def numbers(taken: Snapshot) -> list[int]:
    """Which saves the bytes of a snapshot come from; ValueError or BadZipFile if a file is damaged."""
    found = set()
    for item in taken.items:
        if item.path.endswith(".json"):
            found.add(json.loads(item.source.read_bytes())["global_step"])
        elif item.path.endswith(".txt"):
            found.add(int(item.source.read_bytes()))
        else:
            with zipfile.ZipFile(item.source) as archive:
                assert archive.testzip() is None
                for name in archive.namelist():
                    data = archive.read(name)
                    assert data == data[:8] * (len(data) // 8)
                    found.add(int(data[:8]))
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "files", "settle_s"), [(IN_PLACE, 1, 0.2), (ROTATION, 5, 0.3)])
def test_a_real_writer_that_never_stops_is_never_caught_in_the_middle(
    tmp_path: Path, script: str, files: int, settle_s: float
) -> None:
    """Overwritten in place, or folders that are written and rotated: every snapshot is one save, whole."""
    folder = tmp_path / "ckpt"
    folder.mkdir()
    writer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), str(folder)])
    seen = Seen()
    taken: list[Snapshot] = []
    try:
        until = time.monotonic() + 8
        while time.monotonic() < until:
            got = take(
                folder,
                tmp_path / "stage" / str(len(taken)),
                clock=SystemClock(),
                settle_s=settle_s,
                seen=seen,
                pids=[writer.pid],
            )
            if got:
                taken.append(got)
            time.sleep(0.02)
    finally:
        writer.kill()
        writer.wait()
    assert len(taken) >= 3
    for got in taken:
        by_folder = {item.path.split("/")[0] for item in got.items}
        assert len(numbers(got)) == len(by_folder), "files of two saves in one folder"
        assert len(got.items) == files * len(by_folder), "a folder without all its files"

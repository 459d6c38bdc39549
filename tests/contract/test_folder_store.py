"""FolderStore keeps the store's contract; and what is special about a folder."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from freegpu.agent.stores import open_store
from freegpu.agent.stores.base import ObjectMissing, StoreError, StoreGone
from freegpu.agent.stores.folder import FolderStore
from tests.contract.on_folder import OnFolder


class TestFolderStore(OnFolder):
    """A folder on a local disk that is removed as a whole."""

    def open(self, folder: Path) -> FolderStore:
        return FolderStore(folder / "store", sync=False)

    def litter(self, folder: Path) -> bool:
        jobs = folder / "store" / "jobs"
        for name in (".freegpu-0123456789ab", "x (1).json", "desktop.ini ~", ".DS_Store", "ü"):
            (jobs / name).write_bytes(b"?")
        (jobs / ".tmp.drivedownload").mkdir()
        (jobs / ".tmp.drivedownload" / "part").write_bytes(b"?")
        return True


class TestDeadMount(TestFolderStore):
    """A mount that died: its folder is there, and empty."""

    def unplug(self, folder: Path) -> bool:
        super().unplug(folder)
        (folder / "store").mkdir()
        return True

    def plug(self, folder: Path) -> None:
        (folder / "store").rmdir()
        super().plug(folder)


class TestFolderByUrlWithSync(TestFolderStore):
    """As an agent opens it: by URL, with every write synced."""

    def open(self, folder: Path) -> FolderStore:
        store = open_store(f"folder:{folder / 'store'}")
        assert isinstance(store, FolderStore)
        assert store.sync
        return store


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "store").mkdir()
    made = FolderStore(tmp_path / "store", sync=False)
    made.put("freegpu.json", b"{}")
    return made


def test_a_local_disk_that_is_full_is_not_blamed_on_the_store(store: FolderStore) -> None:
    """`the store is full` would send a person to the wrong place; the same holds for a folder that is not there."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    store.put("blobs/x", b"x" * 100)
    with pytest.raises(OSError, match="No space left"):
        store.fetch("blobs/x", Path("/dev/full"))
    with pytest.raises(FileNotFoundError):
        store.fetch("blobs/x", Path("/nowhere/at/all"))
    with pytest.raises(ObjectMissing):
        store.fetch("blobs/y", Path("/dev/full"))


def test_the_marker_itself_does_not_bring_back_a_root_that_is_gone(tmp_path: Path) -> None:
    """Marking a store is the orchestrator's first write, and it makes no folder either."""
    store = FolderStore(tmp_path / "nowhere")
    with pytest.raises(StoreGone):
        store.put_new("freegpu.json", b"{}")
    assert not (tmp_path / "nowhere").exists()


def test_an_unmarked_folder_has_no_marker_and_takes_nothing_else(tmp_path: Path) -> None:
    """Before first use the marker is missing, which is how its absence is found out; all else is away."""
    store = FolderStore(tmp_path)
    with pytest.raises(ObjectMissing):
        store.get("freegpu.json")
    with pytest.raises(StoreGone):
        store.put("jobs/x", b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_should_be_is_an_error_and_stays(store: FolderStore) -> None:
    """Nothing is removed to make room; the error is the store's, not a traceback."""
    store.put("jobs/x", b"1")
    with pytest.raises(StoreError):
        store.put("jobs/x/y", b"2")
    assert store.get("jobs/x") == b"1"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_an_error_and_not_empty(store: FolderStore) -> None:
    """A listing that hides what it could not read would be believed."""
    store.put("jobs/secret/x", b"1")
    (store.root / "jobs" / "secret").chmod(0)
    try:
        with pytest.raises(StoreError):
            store.list("jobs")
    finally:
        (store.root / "jobs" / "secret").chmod(0o700)


def test_a_writer_that_is_killed_leaves_the_old_object_and_nothing_that_is_listed(
    store: FolderStore,
) -> None:
    """kill -9 in the middle of replacing 64 KiB again and again, at ten different moments."""
    program = (
        "import sys; from freegpu.agent.stores.folder import FolderStore\n"
        "s = FolderStore(sys.argv[1])\n"
        "print('up', flush=True)\n"
        "while True:\n"
        "    for byte in (b'a', b'b'): s.put('jobs/beat', byte * 65536)\n"
    )
    for turn in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(store.root)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.01 + 0.007 * turn)
            writer.kill()
        keys = store.list("jobs")
        assert keys in ([], ["jobs/beat"])
        if keys:
            assert store.get("jobs/beat") in (b"a" * 65536, b"b" * 65536)


def test_an_unknown_scheme_is_refused_and_a_bare_path_is_a_folder(tmp_path: Path) -> None:
    """A typing error in the URL must not become a folder of that name."""
    with pytest.raises(ValueError, match="no store speaks 'fodler'"):
        open_store(f"fodler:{tmp_path}")
    assert isinstance(open_store(str(tmp_path)), FolderStore)
    assert isinstance(open_store(f"{tmp_path}/with:colon"), FolderStore)


@pytest.mark.parametrize("code", ["ENOTCONN", "ESTALE", "EIO", "ENODEV"])
def test_a_mount_that_answers_with_errors_is_away_and_nothing_in_it_is_missing(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    """`Transport endpoint is not connected`, hours into a Colab session: every call says StoreGone; then it is back."""
    store.put("jobs/x", b"kept")
    (tmp_path / "new").write_bytes(b"local")
    broken = OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
    real = {name: getattr(os, name) for name in ("open", "stat", "scandir", "unlink", "replace")}
    really_open = builtins.open

    def inside(path: object) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(str(store.root))

    def failing(call: Callable[..., object]) -> Callable[..., object]:
        def made(path: object, *args: object, **more: object) -> object:
            if inside(path):
                raise broken
            return call(path, *args, **more)

        return made

    with monkeypatch.context() as patched:
        for name, call in real.items():
            patched.setattr(os, name, failing(call))
        patched.setattr(builtins, "open", failing(really_open))
        calls: list[Callable[[], object]] = [
            lambda: store.get("jobs/x"),
            lambda: store.fetch("jobs/x", tmp_path / "fetched"),
            lambda: store.put("jobs/x", b"new"),
            lambda: store.put("jobs/x", tmp_path / "new"),
            lambda: store.put_new("jobs/y", b"new"),
            lambda: store.delete("jobs/x"),
            lambda: store.stat("jobs/x"),
            lambda: store.stat("jobs/x", digest=True),
            lambda: store.list("jobs"),
        ]
        for number, each in enumerate(calls):
            with pytest.raises(StoreGone):
                pytest.fail(f"call {number} answered {each()!r}")
    assert store.get("jobs/x") == b"kept"
    assert store.list("jobs") == ["jobs/x"]


@pytest.mark.parametrize("url", ["folder:", "folder: ", ""])
def test_a_folder_store_names_its_folder(url: str) -> None:
    """Otherwise it would be whatever folder somebody happens to be in."""
    with pytest.raises(ValueError, match="names its folder"):
        open_store(url)

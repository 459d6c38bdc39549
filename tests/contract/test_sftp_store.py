"""SftpStore keeps the store's contract over a real OpenSSH server; and what is special about ssh."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.stores import open_any, sftp_pipe
from freegpu.adapters.stores.sftp import SftpStore
from freegpu.adapters.stores.ssh import SshRefused
from freegpu.agent.stores.base import (
    Access,
    ObjectMissing,
    Properties,
    Stat,
    StoreError,
    StoreGone,
)
from tests.contract.on_folder import OnFolder
from tests.contract.sshd import Sshd, need_sshd

#: what a probe finds here; test_connect_store probes for real
PROBED = Properties(cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.2)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def at_home(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    """The test's own ~/.ssh, and no agent of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(sshd.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return sshd


class TestSftpStore(OnFolder):
    """A folder behind sshd that is removed as a whole."""

    @pytest.fixture(autouse=True)
    def _server(self, at_home: Sshd) -> Iterator[None]:
        self.server = at_home
        self.opened: list[SftpStore] = []
        yield
        for store in self.opened:
            store.close()

    def open(self, folder: Path) -> SftpStore:
        store = open_any(self.server.url(folder / "store"), Access(known=PROBED))
        assert isinstance(store, SftpStore)
        self.opened.append(store)
        return store

    def litter(self, folder: Path) -> bool:
        jobs = folder / "store" / "jobs"
        for name in (".freegpu-0123456789ab", "x (1).json", "desktop.ini ~", ".DS_Store", "ü"):
            (jobs / name).write_bytes(b"?")
        (jobs / ".tmp").mkdir()
        (jobs / ".tmp" / "part").write_bytes(b"?")
        (jobs / "link").symlink_to("/etc/passwd")
        return True


@pytest.fixture
def store(at_home: Sshd, tmp_path: Path) -> Iterator[SftpStore]:
    (tmp_path / "store").mkdir()
    made = SftpStore(at_home.url(tmp_path / "store").removeprefix("sftp:"), sleep=lambda s: None)
    made.put("freegpu.json", b"{}")
    yield made
    made.close()


def test_the_server_s_own_sha256sum_is_used_where_it_may_be_run(
    store: SftpStore, tmp_path: Path
) -> None:
    """The digest is the server's word: nothing of the object crosses the line. A quote in the path does no harm."""
    data = os.urandom(300_000)
    store.put("jobs/x", data)
    before = store.digests_by_server
    assert store.stat("jobs/x", digest=True) == Stat(len(data), hashlib.sha256(data).hexdigest())
    assert (before, store.digests_by_server) == (False, True)
    (tmp_path / "it's; exit 0 $(x)").mkdir()
    odd = SftpStore(str(store).removeprefix("sftp:").replace("store", "it's; exit 0 $(x)"))
    odd.put("freegpu.json", data)
    assert odd.stat("freegpu.json", digest=True) == Stat(
        len(data), hashlib.sha256(data).hexdigest()
    )
    odd.close()


def test_an_account_that_may_speak_sftp_alone_still_has_digests_but_not_the_server_s(
    at_home: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ForceCommand internal-sftp, as web hosts and NAS have it: the bytes are read instead."""
    server = Sshd(tmp_path / "forced", extra="ForceCommand internal-sftp")
    server.folder.mkdir()
    server.start()
    try:
        monkeypatch.setenv("HOME", str(server.home))
        (tmp_path / "store").mkdir()
        store = SftpStore(server.url(tmp_path / "store").removeprefix("sftp:"))
        store.put("freegpu.json", b"abc")
        assert store.stat("freegpu.json", digest=True) == Stat(
            3, hashlib.sha256(b"abc").hexdigest()
        )
        assert not store.digests_by_server
        store.close()
    finally:
        server.stop()


def test_a_connection_that_is_cut_is_dialled_again_and_the_call_is_made_again(
    store: SftpStore, at_home: Sshd
) -> None:
    """Between calls and in the middle of uploads; every object is whole afterwards."""
    store.put("jobs/before", b"1")
    at_home.cut()
    assert store.get("jobs/before") == b"1"
    data = os.urandom(20_000_000)
    over = threading.Event()
    cuts = 0

    def cut() -> None:
        nonlocal cuts
        while not over.wait(0.12) and cuts < 3:
            at_home.cut()
            cuts += 1

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        store.put("jobs/large", data)
        assert store.put_new("jobs/new", b"2") is True
    finally:
        over.set()
        thread.join()
    assert cuts
    assert store.get("jobs/large") == data
    assert store.list("jobs") == ["jobs/before", "jobs/large", "jobs/new"]


def test_a_rename_whose_answer_was_lost_is_known_to_have_won(
    store: SftpStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the server has renamed: the second try must not call it somebody else's."""
    import paramiko

    for method, call in (("rename", store.put_new), ("posix_rename", store.put)):
        real = getattr(paramiko.SFTPClient, method)
        lost: list[str] = []

        def rename(
            self: object, old: str, new: str, real: object = real, lost: list[str] = lost
        ) -> None:
            real(self, old, new)  # type: ignore[operator]
            if not lost:
                lost.append(new)
                raise EOFError

        with monkeypatch.context() as patched:
            patched.setattr(paramiko.SFTPClient, method, rename)
            assert call(f"jobs/{method}", b"mine") in (True, None)
        assert lost
        assert store.get(f"jobs/{method}") == b"mine"
    assert store.put_new("jobs/rename", b"other") is False


def test_a_host_that_is_gone_is_store_gone_after_a_few_tries(at_home: Sshd, tmp_path: Path) -> None:
    """Refused connections are tried again with growing pauses, and then it is said."""
    slept: list[float] = []
    from freegpu.testing.ssh_host import free_port

    gone = SftpStore(f"//x@127.0.0.1:{free_port()}{tmp_path}", sleep=slept.append)
    with pytest.raises(StoreGone, match="does not answer"):
        gone.get("jobs/x")
    assert len(slept) == 3
    assert slept == sorted(slept)


def test_an_unknown_host_is_refused_with_the_way_to_accept_it(
    at_home: Sshd, tmp_path: Path
) -> None:
    """Its fingerprint is shown, nothing is sent, nothing is added to known_hosts."""
    known = at_home.home / ".ssh" / "known_hosts"
    before = known.read_text()
    known.write_text("")
    try:
        with pytest.raises(SshRefused) as caught:
            SftpStore(at_home.url(tmp_path).removeprefix("sftp:")).get("jobs/x")
        fingerprint = subprocess.run(
            [need_sshd()[1], "-lf", str(at_home.folder / "host_key.pub")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()[1]
        assert fingerprint in str(caught.value)
        assert f"`ssh -p {at_home.port} {at_home.user}@127.0.0.1`" in str(caught.value)
        assert not caught.value.transient
        assert known.read_text() == ""
    finally:
        known.write_text(before)


def test_a_host_with_another_key_than_the_known_one_is_refused(
    at_home: Sshd, tmp_path: Path
) -> None:
    """Either it was set up anew, or somebody is in between."""
    known = at_home.home / ".ssh" / "known_hosts"
    before = known.read_text()
    other = (at_home.home / ".ssh" / "id_ed25519.pub").read_text().split()[1]
    known.write_text(f"[127.0.0.1]:{at_home.port} ssh-ed25519 {other}\n")
    try:
        with pytest.raises(SshRefused, match=r"not the one in .*known_hosts, .*ssh-keygen -R"):
            SftpStore(at_home.url(tmp_path).removeprefix("sftp:")).get("jobs/x")
    finally:
        known.write_text(before)


def test_a_key_that_is_not_accepted_is_told(
    at_home: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no key at all, and with a strange one."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    shutil.copy(at_home.home / ".ssh" / "known_hosts", home / ".ssh")
    monkeypatch.setenv("HOME", str(home))
    url = at_home.url(tmp_path).removeprefix("sftp:")
    with pytest.raises(SshRefused, match="ssh-keygen"):
        SftpStore(url).get("jobs/x")
    subprocess.run(
        [need_sshd()[1], "-q", "-t", "ed25519", "-N", "", "-f", str(home / ".ssh" / "id_ed25519")],
        check=True,
    )
    with pytest.raises(SshRefused, match=r"accepts none of your keys.*ssh-copy-id"):
        SftpStore(url).get("jobs/x")


def test_the_user_s_ssh_config_names_the_host(
    at_home: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HostName, Port, User and IdentityFile of an alias with a capital letter."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    shutil.copy(at_home.home / ".ssh" / "known_hosts", home / ".ssh")
    (home / ".ssh" / "config").write_text(
        f"Host Lab\n  HostName 127.0.0.1\n  Port {at_home.port}\n  User {at_home.user}\n"
        f"  IdentityFile {at_home.home}/.ssh/id_ed25519\n  IdentitiesOnly yes\n"
    )
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "store").mkdir()
    store = SftpStore(f"//Lab{tmp_path}/store")
    store.put("freegpu.json", b"{}")
    assert (tmp_path / "store" / "freegpu.json").read_bytes() == b"{}"
    store.close()


def test_a_root_that_is_not_there_is_not_made(at_home: Sshd, tmp_path: Path) -> None:
    """The marker itself does not bring it back."""
    store = SftpStore(at_home.url(tmp_path / "nowhere").removeprefix("sftp:"))
    with pytest.raises(StoreGone):
        store.put_new("freegpu.json", b"{}")
    assert not (tmp_path / "nowhere").exists()
    store.close()


def test_a_file_where_a_folder_should_be_is_an_error_and_stays(store: SftpStore) -> None:
    """Nothing is removed to make room."""
    store.put("jobs/x", b"1")
    with pytest.raises(StoreError):
        store.put("jobs/x/y", b"2")
    assert store.get("jobs/x") == b"1"


def test_failures_use_up_no_channels(store: SftpStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSH allows ten sessions a connection: what is missing costs none, and refused writes give theirs back."""
    store.put("jobs/leaf", b"1")
    opened: list[int] = []
    sftp = store._line.sftp

    def counted() -> object:
        opened.append(1)
        return sftp()

    monkeypatch.setattr(store._line, "sftp", counted)
    for number in range(20):
        assert store.stat(f"jobs/none-{number}") is None
        with pytest.raises(ObjectMissing):
            store.get(f"jobs/none-{number}")
    assert opened == []
    kept = []
    for number in range(20):
        with pytest.raises(StoreError) as caught:
            store.put(f"jobs/leaf/{number}", b"2")
        # the traceback keeps whatever the call left open
        kept.append(caught)
    assert store.get("jobs/leaf") == b"1"


def test_space_is_the_file_system_s(store: SftpStore, tmp_path: Path) -> None:
    """As statvfs has it there."""
    free, total = store.space()
    real = os.statvfs(tmp_path)
    assert total == real.f_frsize * real.f_blocks
    assert free is not None
    assert abs(free - real.f_frsize * real.f_bavail) < 1 << 30


def test_uploads_keep_to_the_bandwidth_and_tell_their_progress(
    at_home: Sshd, tmp_path: Path
) -> None:
    """A megabyte at 200 kB/s is asked to sleep about five seconds in all."""
    slept: list[float] = []
    told: list[tuple[str, int, int]] = []
    access = Access(bandwidth=200_000.0, progress=lambda *what: told.append(what))
    (tmp_path / "store").mkdir()
    url = at_home.url(tmp_path / "store").removeprefix("sftp:")
    store = SftpStore(url, access, sleep=slept.append)
    store.put("freegpu.json", bytes(1_000_000))
    # the pauses are not really made, so each one asks for all that is due until then
    assert 4 < max(slept) < 5.1
    assert told[-1] == ("freegpu.json", 1_000_000, 1_000_000)
    store.close()


@pytest.mark.parametrize(
    ("rest", "part"),
    [
        ("//me:secret@host/x", "holds no password"),
        ("//host:port/x", "port"),
        ("//host:99999/x", "port"),
        ("//host", "absolute folder"),
        ("//host/", "absolute folder"),
        ("//host/..", "absolute folder"),
        ("///x", "looks like"),
        ("host/x", "looks like"),
        ("//host/x?y=z", "looks like"),
        ("//host/x#y", "looks like"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(rest: str, part: str) -> None:
    """Before anything is dialled, without repeating a password."""
    with pytest.raises(ValueError, match=part) as caught:
        open_any(f"sftp:{rest}")
    assert "secret" not in str(caught.value)


def test_short_answers_and_a_file_that_shrinks_are_read_right(
    store: SftpStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may give less than was asked for; the rest is asked for again, in order."""
    data = os.urandom(3_000_001)
    store.put("jobs/x", data)
    assert store.get("jobs/x") == data
    assert store.get("jobs/x", 100_000, 1_000_003) == data[100_000:1_000_003]
    real = sftp_pipe._Answers.ask

    def shortened(self: Any, kind: int, handle: bytes, at: int, *words: Any) -> int:
        if kind == sftp_pipe._READ and words[0] > 100_000:
            words = (words[0] - 70_000,)
        return real(self, kind, handle, at, *words)

    monkeypatch.setattr(sftp_pipe._Answers, "ask", shortened)
    assert store.get("jobs/x") == data
    assert store.fetch("jobs/x", tmp_path / "back") == (
        len(data),
        hashlib.sha256(data).hexdigest(),
    )


def test_a_server_that_tells_no_limits_gets_small_requests(store: SftpStore) -> None:
    """What every server takes, and still many at a time."""
    store._limits = (sftp_pipe.SMALL, sftp_pipe.SMALL)
    data = os.urandom(3_000_001)
    store.put("jobs/x", data)
    assert store.get("jobs/x") == data


def test_keys_are_not_exchanged_while_a_channel_closes(store: SftpStore) -> None:
    """paramiko's own limit of 512 MiB hangs the line for good when a channel closes during the exchange."""
    store.put("jobs/x", b"x")
    assert store._line.transport().packetizer.REKEY_BYTES >= 1 << 36

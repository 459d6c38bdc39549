"""Hosts that are in a bad way: lines that end or fall silent at any byte, full disks, odd shells, drivers half alive."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from freegpu.adapters import ssh as adapter_module
from freegpu.adapters.base import PlatformState
from freegpu.adapters.ssh import SshAdapter, findings
from freegpu.adapters.stores import ssh as line_module
from freegpu.adapters.stores import ssh_config
from freegpu.errors import AdapterError, AuthError, NoCapacityError, RejectedError, UnreachableError
from freegpu.orchestrator import agent_archive
from freegpu.testing.machines import Hardware
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import OVER, until
from tests.contract.ssh_fixtures import Make, host, make, stage, within
from tests.contract.sshd import Sshd, SshHost, need_sshd
from tests.servers.present import absent

__all__ = ["host", "make", "stage"]


# --- lines ----------------------------------------------------------------------------------------------


class Wire:
    """A way to a port that ends, or falls silent, once the other side has said so many bytes."""

    def __init__(self, port: int, *, after: int, silent: bool) -> None:
        self.port, self.after, self.silent = port, after, silent
        self.said = 0
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port_here = self._server.getsockname()[1]
        self.host = f"127.0.0.1:{self.port_here}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._server.accept()
                theirs = socket.create_connection(("127.0.0.1", self.port))
                self._open += [ours, theirs]
                for way in ((ours, theirs, False), (theirs, ours, True)):
                    threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    left = self.after - self.said
                    self.said += len(data)
                    sink.sendall(data[: max(0, left)])
                    if left < len(data):
                        break
                else:
                    sink.sendall(data)
            if not self.silent:
                for end in (source, sink):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in (self._server, *self._open):
            one.close()


@pytest.fixture
def wire(host: SshHost) -> Iterator[Callable[..., Wire]]:
    """Makes ways to the host with a fault in them; its key is known there."""
    made: list[Wire] = []

    def build(**fault: Any) -> Wire:
        made.append(one := Wire(host.port, **fault))
        kind, blob = (host.folder / "host_key.pub").read_text().split()[:2]
        with (host.home / ".ssh" / "known_hosts").open("a") as file:
            file.write(f"[127.0.0.1]:{one.port_here} {kind} {blob}\n")
        return one

    yield build
    for one in made:
        one.close()


#: parts of all that an sshd says from its greeting to the end of an answer
PARTS = (0.0, 0.005, 0.02, 0.3, 0.6, 0.75, 0.85, 0.9, 0.94, 0.97)


@pytest.fixture
def whole(make: Make, host: SshHost, wire: Callable[..., Wire]) -> int:
    """How many bytes that are, for one question."""
    way = wire(after=1 << 30, silent=False)
    assert make(host=way.host).find("s-x") is None
    return way.said


@pytest.mark.parametrize("part", PARTS)
def test_a_line_may_be_cut_at_any_byte(
    make: Make, wire: Callable[..., Wire], whole: int, part: float
) -> None:
    """Always worth another try: never "no", never a session that is gone, never a traceback."""
    adapter = make(host=wire(after=int(whole * part), silent=False).host)
    with pytest.raises(UnreachableError) as caught:
        within(10, lambda: adapter.find("s-x"))
    assert caught.value.transient
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("part", PARTS)
def test_a_line_may_fall_silent_at_any_byte(
    make: Make,
    wire: Callable[..., Wire],
    whole: int,
    part: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the greeting, while keys are exchanged, while we sign in, once we are in: each has its own end."""
    monkeypatch.setattr(adapter_module, "SILENT_S", 0.7)
    monkeypatch.setattr(line_module, "CONNECT_S", 0.7)
    adapter = make(host=wire(after=int(whole * part), silent=True).host)
    with pytest.raises(UnreachableError) as caught:
        within(8, lambda: adapter.find("s-x"))
    assert caught.value.transient
    within(1, adapter.close)


def test_a_host_that_hangs_once_we_are_in_is_given_up(
    host: SshHost, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home on a dead NFS server: sshd lets us in, and the first program never comes back."""
    monkeypatch.setattr(adapter_module, "SILENT_S", 0.7)
    host.set_noise("exec sleep 60\n")
    adapter = make()
    with pytest.raises(UnreachableError):
        within(6, lambda: adapter.offers())
    assert adapter.line.signed_in_with


def test_a_configuration_that_hangs_is_given_up(
    host: SshHost, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Match exec` runs a program of the user's, and a ProxyCommand may never say a word."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh is installed")
    monkeypatch.setattr(ssh_config, "_ASK_S", 0.5)
    monkeypatch.setattr(line_module, "CONNECT_S", 0.5)
    config = host.home / ".ssh" / "config"
    config.write_text('Match exec "sleep 20"\n  User x\n')
    with pytest.raises(AuthError, match="does not answer"):
        within(6, lambda: make().offers())
    config.write_text("Host box\n  ProxyCommand sleep 20\n")
    with pytest.raises(UnreachableError):
        within(6, lambda: make(host="box").offers())


def test_a_host_of_the_newer_internet_is_reached(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[::1]:PORT, and its key is kept under that name."""
    with (
        contextlib.suppress(OSError),
        socket.create_server(("::1", 0), family=socket.AF_INET6) as it,
    ):
        port = it.getsockname()[1]
    if "port" not in locals():
        pytest.skip("this machine has no IPv6")
    server = SshHost(tmp_path / "six", extra=f"ListenAddress [::1]:{port}")
    with server:
        monkeypatch.setenv("HOME", str(server.home))
        (server.home / ".ssh" / "known_hosts").write_text("")
        address = f"{server.user}@[::1]:{port}"
        key = subprocess.check_output(
            [need_sshd()[1], "-lf", str(server.folder / "host_key.pub")], text=True
        )
        with pytest.raises(AuthError, match="host key of ::1 is not known"):
            make(host=address).offers()
        make(host=address).trust([key.split()[1]])
        assert make(host=address).offers()
        assert (tmp_path / "freegpu" / "known_hosts").read_text().startswith(f"[::1]:{port} ")


def test_each_host_on_the_way_gets_the_key_that_is_named_for_it(
    host: SshHost, make: Make, tmp_path: Path
) -> None:
    """ProxyJump and IdentityFile from an included file: the gate takes one key alone, the host behind it another."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh is installed")
    gate = Sshd(tmp_path / "gate")
    gate.folder.mkdir()
    with gate:
        (tmp_path / "keys").mkdir()
        for server, name in ((gate, "outer"), (host, "inner")):
            path = tmp_path / "keys" / name
            subprocess.run(
                [need_sshd()[1], "-q", "-t", "ed25519", "-N", "", "-f", path], check=True
            )
            shutil.copy(path.with_suffix(".pub"), server.folder / "authorized_keys")
        kind, blob = (gate.folder / "host_key.pub").read_text().split()[:2]
        with (host.home / ".ssh" / "known_hosts").open("a") as file:
            file.write(f"[127.0.0.1]:{gate.port} {kind} {blob}\n")
        (tmp_path / "lab.conf").write_text(
            f"Host gate\n  HostName 127.0.0.1\n  Port {gate.port}\n  IdentityFile {tmp_path}/keys/outer\n"
            f"Host inner\n  HostName 127.0.0.1\n  Port {host.port}\n  ProxyJump gate\n"
            f"  IdentityFile {tmp_path}/keys/inner\nHost *\n  IdentitiesOnly yes\n"
        )
        (host.home / ".ssh" / "config").write_text(f"Include {tmp_path}/lab.conf\n")
        adapter = make(host="inner")
        assert adapter.offers()
        assert str(tmp_path / "keys" / "inner") in adapter.line.signed_in_with
        (gate.folder / "authorized_keys").write_text("")
        adapter.close()
        with pytest.raises(AdapterError):
            within(30, lambda: make(host="inner").offers())


# --- disks ----------------------------------------------------------------------------------------------


def small_files(host: SshHost, blocks: int) -> str:
    """A Python there that can write no more than so many 512-byte blocks into a file, as `python` names it."""
    path = host.far_home / "small"
    path.write_text(f'#!/bin/sh\nulimit -f {blocks}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return "~/small"


def test_an_agent_for_which_there_is_no_room_leaves_nothing(
    host: SshHost, make: Make, tmp_path: Path
) -> None:
    """The system's own word, and no half file that would fill the disk for good."""
    adapter = make(python=small_files(host, 64))
    tight = Stage(tmp_path / "tight", lambda _: adapter)
    large = tmp_path / "large.py"
    large.write_bytes(os.urandom(1_000_000))
    request = adapter.render(tight.launch("s-full", agent=large))
    with pytest.raises(RejectedError, match="File too large"):
        adapter.start(request)
    assert list((host.far_home / ".freegpu" / "agents").iterdir()) == []
    assert adapter.find("s-full") is None


def test_half_a_secret_is_not_kept(host: SshHost, make: Make, tmp_path: Path) -> None:
    """The disk is full in the middle of the private file: it goes, and the session has not begun."""
    adapter = make(python=small_files(host, 64))
    adapter.entrust(lambda: {"KEY": "canary" * 20_000})
    tight = Stage(tmp_path / "tight", lambda _: adapter)
    with pytest.raises(RejectedError, match="File too large"):
        adapter.start(adapter.render(tight.launch("s-half")))
    assert adapter.find("s-half") is None
    left = [path for path in host.sessions.rglob("*") if path.is_file()]
    assert not [path for path in left if b"canary" in path.read_bytes()]


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)],
            check=False,
            capture_output=True,
        ).returncode
    ):
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_told_and_mends_when_there_is_room(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was started; with room the same start goes through."""
    server = SshHost(tmp_path / "small")
    with mounted(server.far_home, "size=256k,mode=700"), server:
        monkeypatch.setenv("HOME", str(server.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        adapter = make(host=server.host)
        (server.far_home / "others").write_bytes(bytes(240_000))
        tight = Stage(tmp_path / "tight", lambda _: adapter)
        large = tmp_path / "large.py"
        large.write_bytes(tight.stand_in.read_bytes() + b"\n#" + os.urandom(60_000).hex().encode())
        request = adapter.render(tight.launch("s-disk", agent=large))
        with pytest.raises(RejectedError, match="No space left on device"):
            adapter.start(request)
        assert adapter.find("s-disk") is None
        disk = {finding.name: finding for finding in adapter.diagnose("")}["disk"]
        assert (disk.ok, disk.hint != "") == (False, True)
        (server.far_home / "others").unlink()
        ref = tight.start_request(request)
        until(lambda: tight.pids("s-disk"))
        tight.close()
        assert tight.state(ref, make(host=server.host)) in OVER
        server.kill()


def test_nothing_of_ours_is_executed_from_the_host_s_disks(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home and /tmp are mounted noexec: only the system's own Python and shell are run as programs."""
    server = SshHost(tmp_path / "careful")
    with mounted(server.far_home, "noexec,mode=700"), server:
        (server.far_home / "tmp").mkdir()
        server.surround({"TMPDIR": str(server.far_home / "tmp")})
        monkeypatch.setenv("HOME", str(server.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        there = Stage(tmp_path / "stage", lambda home: make(host=server.host, home=home))
        archive, _ = agent_archive.build(there.home / "agent")
        ref = there.start("s-noexec", agent=archive)
        until(lambda: there.hello("s-noexec"), why=there.adapter.logs(ref).text)
        there.close()
        server.kill()


def test_a_home_that_cannot_be_written_is_told(host: SshHost, stage: Stage) -> None:
    """By path, from `doctor` as from a start."""
    (host.far_home / ".freegpu").write_text("a file of somebody's")
    request = stage.adapter.render(stage.launch("s-file"))
    with pytest.raises(RejectedError, match=r"File exists \(.*\.freegpu"):
        stage.adapter.start(request)
    assert isinstance(stage.adapter, SshAdapter)
    disk = {finding.name: finding for finding in stage.adapter.diagnose("")}["disk"]
    assert disk.ok is False
    assert "cannot be written" in disk.detail


# --- shells ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dash", "bash", "zsh", "ksh", "fish", "csh", "tcsh"])
def test_the_account_may_have_any_shell(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The command arrives as it was sent, and a session is started, seen and stopped."""
    shell = shutil.which(name)
    if shell is None:
        absent(f"{name} is not installed")
    with SshHost(tmp_path / "host", shell=shell) as server:
        monkeypatch.setenv("HOME", str(server.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        there = Stage(tmp_path / "stage", lambda home: make(host=server.host, home=home))
        ref = there.start("s-shell")
        until(lambda: there.pids("s-shell"), why=there.adapter.logs(ref).text)
        assert there.state(ref) is PlatformState.RUNNING
        there.close()
        server.kill()


def test_an_account_that_may_not_be_used_is_told(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nologin lets nobody run anything, and its own words are shown."""
    script = tmp_path / "nologin"
    script.write_text("#!/bin/sh\necho This account is currently not available. >&2\nexit 1\n")
    script.chmod(0o755)
    with SshHost(tmp_path / "host", shell=str(script)) as server:
        monkeypatch.setenv("HOME", str(server.home))
        with pytest.raises(RejectedError, match="This account is currently not available"):
            make(host=server.host).offers()


def test_an_answer_with_foreign_words_in_it_is_asked_for_again(
    host: SshHost, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program left behind by a start-up file may print between two writes of ours: no traceback, and it may pass."""
    real = line_module.Line.say

    def mixed(self: Any, *words: Any, **more: Any) -> Any:
        said = real(self, *words, **more)
        out = said.out.replace(b'"memory_gb"', b'"memotick\nry_gb')
        return line_module.Said(out=out, err=said.err, code=said.code)

    with monkeypatch.context() as patch:
        patch.setattr(line_module.Line, "say", mixed)
        with pytest.raises(UnreachableError, match="something else in it"):
            make().offers()
    assert make().offers()


# --- clocks and boots -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
def test_a_clock_that_is_off_changes_nothing_about_a_session(
    host: SshHost, stage: Stage, seconds: float
) -> None:
    """Started, seen, stopped: processes are told apart by ticks since the boot, never by the time of day."""
    host.set_skew(seconds)
    ref = stage.start("s-skew")
    until(lambda: stage.pids("s-skew"))
    assert stage.state(ref) is PlatformState.RUNNING
    stage.adapter.stop(ref)
    until(lambda: stage.state(ref) is PlatformState.ENDED)


def test_after_a_restart_the_very_same_pid_and_tick_are_somebody_else_s(
    host: SshHost, stage: Stage
) -> None:
    """Two boots may give one number at one tick: the boot's id alone tells them apart, and a stop hits nobody."""
    ref = stage.start("s-again")
    until(lambda: stage.pids("s-again"))
    host.reboot()
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        note = host.sessions / "s-again" / "process"
        old_boot = note.read_text().splitlines()[-1]
        now = Path(f"/proc/{stranger.pid}/stat").read_text().strip()
        note.write_text(f"{now}\n{old_boot}\n")
        seen = stage.adapter.observe([ref])[ref]
        assert (seen.state, seen.raw) == (PlatformState.ENDED, "restarted")
        stage.adapter.stop(ref)
        assert stranger.poll() is None
        # the same note of this boot is believed: the boot's id is what was looked at
        note.write_text(f"{now}\n{(host.folder / 'boot').read_text()}")
        assert stage.state(ref) is PlatformState.RUNNING
        note.write_text(f"{now}\n{old_boot}\n")
        assert isinstance(stage.adapter, SshAdapter)
        stage.adapter.tidy(ref)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_this_side_may_be_restarted_too(host: SshHost, stage: Stage, make: Make) -> None:
    """Nothing about a session is kept here: a home that was made anew finds it by its key."""
    ref = stage.start("s-here")
    until(lambda: stage.pids("s-here"))
    stage.adapter.close()
    shutil.rmtree(stage.home)
    other = make(home=stage.home)
    assert other.find("s-here") == ref
    assert stage.state(ref, other) is PlatformState.RUNNING
    other.stop(ref)
    until(lambda: stage.state(ref, other) is PlatformState.ENDED)


# --- cards ----------------------------------------------------------------------------------------------


def smi(host: SshHost, text: str) -> None:
    """Another nvidia-smi."""
    path = host.folder / "bin" / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


CARDS = "0, Tesla T4, 15360, GPU-0, 580.65.06, 3"


@pytest.mark.parametrize(
    "text",
    [
        f'case "$*" in *apps*) exit 9;; *) echo "{CARDS}";; esac',
        'case "$*" in *apps*) echo "GPU-0, 4242";; *) exit 9;; esac',
        "echo Failed to initialize NVML: Driver/library version mismatch; exit 18",
    ],
    ids=["who-uses-them", "which-cards", "both"],
)
def test_a_card_of_which_the_driver_tells_half_is_not_offered(
    host: SshHost, make: Make, text: str
) -> None:
    """Who uses it is not known, so it is not free; the processor of that machine may still be used."""
    smi(host, text)
    adapter = make()
    assert [offer.card for offer in adapter.offers()] == ["CPU"]
    (cards,) = [finding for finding in adapter.diagnose("") if finding.name == "cards"]
    assert cards.ok is False
    assert "fails" in cards.detail


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("exit 9", "nvidia-smi fails there now"),
        ("exit 0", "card 0 is not there any more"),
        (f'case "$*" in *apps*) ;; *) echo "{CARDS[:-1]}9000";; esac', "somebody uses card 0"),
        ('case "$*" in *apps*) ;; *) echo "1, Tesla T4, 15360, GPU-0, 580, 3";; esac', "not there"),
    ],
    ids=["broken", "gone", "memory", "renumbered"],
)
def test_a_start_looks_at_its_cards_again(host: SshHost, stage: Stage, then: str, why: str) -> None:
    """They may have fallen off the bus since they were offered: no room, and no trace of us."""
    host.set_cards(Hardware())
    request = stage.adapter.render(stage.launch("s-card"))
    smi(host, then)
    with pytest.raises(NoCapacityError, match=why):
        stage.adapter.start(request)
    assert stage.adapter.find("s-card") is None
    assert not (host.sessions / "s-card").exists()


def test_a_start_does_not_wait_for_a_driver_that_hangs(
    host: SshHost, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not begin a session that would hang on it."""
    text = adapter_module._program().replace(b"SMI_S = 10.0", b"SMI_S = 0.5")
    monkeypatch.setattr(adapter_module, "_program", lambda: text)
    host.set_cards(Hardware())
    request = stage.adapter.render(stage.launch("s-hangs"))
    host.hang_driver(True)
    with pytest.raises(NoCapacityError, match="nvidia-smi hangs there now"):
        within(6, lambda: stage.adapter.start(request))


def test_another_model_than_offered_is_told_by_the_agent(host: SshHost, stage: Stage) -> None:
    """The machine was given another card under the same number: the hello says which, and the job is judged by that."""
    host.set_cards(Hardware())
    archive, _ = agent_archive.build(stage.home / "agent")
    request = stage.adapter.render(stage.launch("s-model", agent=archive))
    host.set_cards(Hardware(name="Tesla K80", memory_mb=11441, capability="3.7"))
    ref = stage.start_request(request)
    hello = until(lambda: stage.hello("s-model"), why=stage.adapter.logs(ref).text)
    assert "K80" in str(hello)
    assert stage.adapter.observe([ref])[ref].card == ""


# --- what ends everything of a user who has signed out --------------------------------------------------


@pytest.fixture
def far() -> ModuleType:
    """The program that runs on hosts, as a module of this process."""
    path = Path(adapter_module.__file__).with_name("far.py")
    spec = importlib.util.spec_from_file_location("far_here", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "uid", "stays"),
    [
        ("#KillUserProcesses=yes", 1000, True),
        ("[Login]\nKillUserProcesses=no", 1000, True),
        ("[Login]\nKillUserProcesses=yes", 1000, False),
        ("[Login]\nKillUserProcesses = 1", 1000, False),
        ("[Login]\nKillUserProcesses=yes", 0, True),
        ("", 1000, True),
    ],
)
def test_a_machine_that_ends_what_is_detached_is_told(
    far: ModuleType, monkeypatch: pytest.MonkeyPatch, text: str, uid: int, stays: bool
) -> None:
    """systemd-logind with KillUserProcesses and no lingering: a session would die with the connection."""
    monkeypatch.setattr(
        far, "read", lambda path: text.encode() if path.endswith("logind.conf") else b""
    )
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr("pwd.getpwuid", lambda _: type("Entry", (), {"pw_name": "nobody-lingers"}))
    assert far.lingers() is stays
    told = {
        "python": "3",
        "executable": "x",
        "smi": "none",
        "cards": [],
        "held": {},
        "now": 0.0,
        "disk_gb": 9.0,
        "writable": "",
        "root": "/r",
        "store": "",
        "lingers": stays,
    }
    names = [finding.name for finding in findings.of_host(told, 0.0, 0.0) if finding.ok is False]
    assert names == ([] if stays else ["lingering"])


def test_a_session_is_not_ended_by_the_end_of_its_terminal(host: SshHost, stage: Stage) -> None:
    """It has a session of its own without one: a hangup of the connection's processes does not reach it."""
    ref = stage.start("s-hup")
    until(lambda: stage.pids("s-hup"))
    for pid in stage.pids("s-hup"):
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4] == "0", (
            "a terminal"
        )
    first = int((host.sessions / "s-hup" / "process").read_text().split()[0])
    os.kill(first, signal.SIGHUP)
    assert stage.state(ref) is PlatformState.RUNNING

"""What goes wrong between us and a host: silence, cuts, restarts, noise, other people, and starts that meet."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters import ssh as adapter_module
from freegpu.adapters.base import PlatformState, SessionRef
from freegpu.adapters.ssh import SshAdapter
from freegpu.adapters.stores import ssh as line_module
from freegpu.errors import ConfigError, NoCapacityError, RejectedError, UnreachableError
from freegpu.orchestrator import agent_archive
from freegpu.testing.machines import Hardware
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import until
from tests.contract.ssh_fixtures import Make, host, make, stage, within
from tests.contract.sshd import SshHost

__all__ = ["host", "make", "stage"]


def up(stage: Stage, key: str) -> SessionRef:
    """A session whose stand-in is there."""
    ref = stage.start(key)
    until(lambda: stage.pids(key), why=stage.adapter.logs(ref).text)
    return ref


def ended(stage: Stage, ref: SessionRef) -> Any:
    def over() -> Any:
        seen = stage.adapter.observe([ref])[ref]
        return seen if seen.state is PlatformState.ENDED else None

    return until(over)


def far_text(monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str]) -> None:
    """Other limits in what runs on the host: nobody waits ten seconds in a test."""
    text = adapter_module._program().decode()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    monkeypatch.setattr(adapter_module, "_program", lambda: text.encode())


# --- silence --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """A port that takes calls and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"ada@127.0.0.1:{server.getsockname()[1]}"


def test_a_port_that_never_speaks_is_given_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """paramiko calls it "No existing session"; here it is a host that does not answer, and soon."""
    monkeypatch.setattr(line_module, "CONNECT_S", 0.5)
    with mute() as address:
        adapter = make(host=address)
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
            within(5, lambda: adapter.offers())


def test_a_port_that_is_closed_is_unreachable(make: Make) -> None:
    """An OSError of paramiko's own, without an errno that means anything."""
    with mute() as address:
        pass
    with pytest.raises(UnreachableError, match=re.escape(address)):
        make(host=address).offers()


def test_a_line_that_falls_silent_is_given_up_and_dialled_anew(
    host: SshHost, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket stays open and is_active() stays True for ever; every call has its own end."""
    monkeypatch.setattr(adapter_module, "SILENT_S", 4.0)
    monkeypatch.setattr(line_module, "CONNECT_S", 5.0)
    adapter = make()
    assert adapter.offers()
    host.hang()
    with pytest.raises(UnreachableError):
        within(15, lambda: adapter.offers())
    assert adapter.offers(), "a new connection is served by another process"
    host.resume()


def test_a_driver_that_hangs_is_not_waited_for(
    host: SshHost, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is offered then: neither a card that may be dead nor a processor in a sick machine."""
    far_text(monkeypatch, ("SMI_S = 10.0", "SMI_S = 0.5"))
    host.set_cards(Hardware())
    host.hang_driver(True)
    adapter = make()
    within(8, lambda: adapter.offers())
    assert adapter.offers() == []
    (cards,) = [f for f in adapter.diagnose("") if f.name == "cards"]
    assert cards.ok is False
    assert "does not answer" in cards.detail


# --- noise ----------------------------------------------------------------------------------------------


def test_start_up_files_may_print_what_they_like(host: SshHost, stage: Stage) -> None:
    """Megabytes on both outputs, more than a channel's window: the answer is found between its marks."""
    host.set_noise("head -c 4000000 /dev/zero | tr '\\0' 'x'; head -c 4000000 /dev/zero >&2\n")
    ref = up(stage, "s-noise")
    assert stage.state(ref) is PlatformState.RUNNING


def test_output_without_an_end_is_given_up(
    host: SshHost, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In drops, each in time: the whole answer has a limit too. And in floods."""
    monkeypatch.setattr(adapter_module, "ANSWER_S", 1.5)
    host.set_noise("while sleep 0.1; do echo drop || exit; done\n")
    with pytest.raises(UnreachableError):
        within(6, lambda: make().offers())
    monkeypatch.setattr(adapter_module, "ANSWER_S", 30)
    host.set_noise("yes flood\n")
    with pytest.raises(RejectedError, match="ran nothing for us"):
        within(25, lambda: make().offers())


def test_a_background_program_of_the_start_up_files_does_not_hold_the_answer(
    host: SshHost, make: Make
) -> None:
    """It keeps the channel open after the answer was given: nobody waits for the channel's end."""
    host.set_noise("sleep 30 &\n")
    within(5, lambda: make().offers())


def test_an_account_without_a_shell_is_told(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ForceCommand internal-sftp takes our program for SFTP and says garbage."""
    server = SshHost(tmp_path / "forced", extra="ForceCommand internal-sftp")
    with server:
        monkeypatch.setenv("HOME", str(server.home))
        with pytest.raises(RejectedError, match="ran nothing for us"):
            within(10, lambda: make(host=server.host).offers())


# --- Python there ---------------------------------------------------------------------------------------


def only(host: SshHost, **programs: str) -> None:
    """These programs, and nothing else that is called python."""
    place = host.folder / "few"
    place.mkdir(exist_ok=True)
    for name in ("tee", "cat", "nice", "mv"):
        found = subprocess.check_output(["/bin/sh", "-c", f"command -v {name}"], text=True).strip()
        (place / name).unlink(missing_ok=True)
        (place / name).symlink_to(found)
    for name, text in programs.items():
        (place / name.replace("_", ".")).write_text(f"#!/bin/sh\n{text}\n")
        (place / name.replace("_", ".")).chmod(0o755)
    host.surround({"PATH": str(place)})


def test_a_host_without_python_is_told_and_so_is_an_old_one(host: SshHost, make: Make) -> None:
    """They are two findings, and the first Python that is new enough is taken whatever it is called."""
    only(host)
    with pytest.raises(RejectedError, match="has no python3") as caught:
        make().offers()
    assert "`python`" in caught.value.hint
    only(host, python3="exit 99")
    with pytest.raises(RejectedError, match=r"only a Python older than 3\.9"):
        make().offers()
    only(host, python3="exit 99", python3_10=f'exec {sys.executable} "$@"')
    assert make().offers()


def test_the_python_may_be_named(host: SshHost, make: Make) -> None:
    """Below the home there, as environments are; and no other is tried then."""
    only(host)
    (host.far_home / "env").mkdir()
    (host.far_home / "env" / "py").symlink_to(sys.executable)
    assert make(python="~/env/py").offers()
    with pytest.raises(RejectedError, match="has no python3"):
        make(python="~/env/other").offers()


@pytest.mark.parametrize("python", ["a b", "x;id", "$(id)", "'", "~root/x", "a\nb"])
def test_a_python_that_is_no_path_is_refused(make: Make, python: str) -> None:
    """It stands in a command line there."""
    with pytest.raises(ConfigError, match="not the path of a program"):
        make(python=python)


@pytest.mark.parametrize(
    "options",
    [
        {"host": ""},
        {"host": "a b"},
        {"host": "-oProxyCommand=id"},
        {"host": "ada:secret@lab"},
        {"host": "lab:x"},
        {"host": "lab:99999"},
        {"host": "@lab"},
        {"host": "ssh://lab/x"},
        {"host": 3},
        {"idle_mb": -1},
        {"idle_mb": "500"},
        {"idle_mb": True},
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_refused(make: Make, options: dict[str, Any]) -> None:
    """Before anything is dialled, with the platform's name."""
    with pytest.raises(ConfigError, match="platform lab"):
        make(**options)


def test_any_shell_hands_the_command_on_as_it_is() -> None:
    """One line in single quotes: no shell (csh, fish) finds anything to expand in it, and sh can read it."""
    assert not set("'!\n`") & set(adapter_module._FIND)
    subprocess.run(["/bin/sh", "-n", "-c", adapter_module._FIND], check=True)


# --- cuts and restarts ----------------------------------------------------------------------------------


def test_sshd_is_killed_and_started_again_in_the_middle_of_a_session(
    host: SshHost, stage: Stage
) -> None:
    """The session does not notice, and it is found again over a new connection."""
    ref = up(stage, "s-restart")
    host.stop()
    with pytest.raises(UnreachableError):
        stage.state(ref)
    host.start()
    assert stage.state(ref) is PlatformState.RUNNING
    assert stage.adapter.find("s-restart") == ref
    assert stage.adapter.logs(ref).text.count("the stand-in is up") == 1
    stage.adapter.stop(ref)
    assert ended(stage, ref).detail


@pytest.mark.parametrize("restart", [False, True], ids=["line", "sshd"])
def test_an_upload_that_is_cut_leaves_nothing_half_and_is_made_again(
    host: SshHost, stage: Stage, tmp_path: Path, restart: bool
) -> None:
    """An agent is there whole, by its hash, or not at all; the line alone breaks, or sshd is killed and started anew."""
    large = tmp_path / "large.py"
    large.write_bytes(stage.stand_in.read_bytes() + b"\n#" + os.urandom(30_000_000).hex().encode())
    request = stage.adapter.render(stage.launch("s-cut", agent=large))
    over = threading.Event()

    def cut() -> None:
        arriving = host.far_home / ".freegpu" / "agents"
        while not over.is_set():
            if arriving.exists() and any(p.stat().st_size > 1_000_000 for p in arriving.iterdir()):
                host.stop() if restart else host.cut()
                return
            time.sleep(0.002)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        with pytest.raises(UnreachableError):
            stage.adapter.start(request)
    finally:
        over.set()
        thread.join()
    if restart:
        host.start()
    agents = host.far_home / ".freegpu" / "agents"
    assert not list(agents.glob("*.pyz"))
    assert stage.adapter.find("s-cut") is None
    ref = stage.start_request(request)
    until(lambda: stage.pids("s-cut"))
    (whole,) = agents.iterdir()
    assert whole.read_bytes() == large.read_bytes()
    assert stage.state(ref) is PlatformState.RUNNING


def test_an_agent_that_changed_on_the_way_is_not_kept(
    host: SshHost, stage: Stage, tmp_path: Path
) -> None:
    """What arrives is hashed there: another file under that name is refused."""
    other = tmp_path / "other.py"
    other.write_text("print('not the agent')")
    request = stage.adapter.render(stage.launch("s-other"))
    payload = {**request.payload, "agent": {**request.payload["agent"], "path": str(other)}}
    with pytest.raises(UnreachableError, match="did not arrive whole"):
        stage.adapter.start(type(request)(key=request.key, payload=payload))
    assert list((host.far_home / ".freegpu" / "agents").iterdir()) == []
    assert stage.adapter.find("s-other") is None


def test_an_agent_that_was_damaged_there_is_sent_again(
    host: SshHost, stage: Stage, tmp_path: Path
) -> None:
    """A power cut leaves an empty file under the right name: it is looked into before it is started."""
    agents = host.far_home / ".freegpu" / "agents"
    agents.mkdir(parents=True)
    launch = stage.launch("s-damaged")
    (agents / f"{launch.agent_sha256}.pyz").touch()
    up(stage, "s-damaged")
    assert (agents / f"{launch.agent_sha256}.pyz").read_bytes() == stage.stand_in.read_bytes()


def test_an_answer_that_is_lost_after_the_start_costs_no_second_session(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line breaks when the session is there already: find() knows it, and start() gives the same one."""
    request = stage.adapter.render(stage.launch("s-lost"))
    real = line_module.Line.say

    def cut(self: Any, command: str, *rest: Any, **more: Any) -> Any:
        said = real(self, command, *rest, **more)
        if b'"do": "start"' in more["head"] and b'"started"' in said.out:
            raise EOFError
        return said

    with monkeypatch.context() as patch:
        patch.setattr(line_module.Line, "say", cut)
        with pytest.raises(UnreachableError):
            stage.adapter.start(request)
    assert stage.adapter.find("s-lost") == "s-lost"
    assert stage.start_request(request) == "s-lost"
    until(lambda: stage.pids("s-lost"))
    time.sleep(0.2)
    assert len(stage.pids("s-lost")) == 1


def test_a_restart_of_the_host_ends_its_sessions(host: SshHost, stage: Stage) -> None:
    """Another boot: whatever bears that pid now is somebody else. It was no fault of the session's."""
    ref = up(stage, "s-boot")
    host.reboot()
    seen = stage.adapter.observe([ref])[ref]
    assert (seen.state, seen.reason) == (PlatformState.ENDED, "")
    assert "restarted" in seen.detail
    stage.adapter.stop(ref)
    assert stage.adapter.find("s-boot") == ref


def test_a_pid_that_is_somebody_else_s_by_now_is_never_believed(
    host: SshHost, stage: Stage
) -> None:
    """Same number, same boot, another start: the session is over, and a stop hits nobody."""
    ref = up(stage, "s-pid")
    os.kill(stage.pids("s-pid")[0], signal.SIGKILL)
    ended(stage, ref)
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        note = host.sessions / "s-pid" / "process"
        before = note.read_text()
        note.write_text(re.sub(r"^\d+", str(stranger.pid), before))
        assert stage.state(ref) is PlatformState.ENDED
        stage.adapter.stop(ref)
        time.sleep(0.1)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_agent_whose_first_process_was_killed_is_still_seen_and_stopped(
    host: SshHost, stage: Stage
) -> None:
    """The shell around it is one process of two: the session is over when the agent is."""
    ref = up(stage, "s-shell")
    os.kill(int((host.sessions / "s-shell" / "process").read_text().split()[0]), signal.SIGKILL)
    time.sleep(0.1)
    assert stage.state(ref) is PlatformState.RUNNING
    stage.adapter.stop(ref)
    assert "killed" in ended(stage, ref).detail


# --- starts that were cut short -------------------------------------------------------------------------


def test_a_start_that_died_before_it_began_is_taken_over(host: SshHost, stage: Stage) -> None:
    """A claim without a session, and nobody who holds it."""
    (host.sessions / "s-claim" / "claim").mkdir(parents=True)
    up(stage, "s-claim")
    assert len(stage.pids("s-claim")) == 1


def test_a_start_that_died_right_after_it_began_is_over_and_not_repeated(
    host: SshHost, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker lies there and no process was ever noted: one session that never lived."""
    far_text(monkeypatch, ("SETTLE_S = 10.0", "SETTLE_S = 0.3"))
    request = stage.adapter.render(stage.launch("s-marker"))
    place = host.sessions / "s-marker"
    place.mkdir(parents=True)
    (place / "started").touch()
    assert stage.adapter.start(request) == "s-marker"
    time.sleep(0.4)
    assert ended(stage, SessionRef("s-marker")).detail == "its start was cut short"
    assert stage.pids("s-marker") == []


# --- other people ---------------------------------------------------------------------------------------


def test_cards_that_somebody_uses_are_not_offered(host: SshHost, make: Make) -> None:
    """By a process on it, or by memory above the threshold; what a desktop holds is nobody's work."""
    cards = Hardware(count=4)
    host.set_cards(cards, used={0: "4242", 1: 9000, 2: 300})
    (offer,) = make().offers()
    assert (offer.card, offer.devices) == ("T4", ("2", "3"))
    (offer,) = make(idle_mb=200).offers()
    assert offer.devices == ("3",)
    host.set_cards(cards, used=dict.fromkeys(range(4), "4242"))
    assert make().offers() == []


def test_a_card_that_was_taken_meanwhile_is_left_alone(host: SshHost, stage: Stage) -> None:
    """Between the offer and the start somebody began to compute: there is no room, and no trace of us."""
    host.set_cards(Hardware())
    request = stage.adapter.render(stage.launch("s-taken"))
    host.set_cards(Hardware(), used={0: "4242"})
    with pytest.raises(NoCapacityError, match="somebody uses card 0"):
        stage.adapter.start(request)
    assert stage.adapter.find("s-taken") is None
    assert not (host.sessions / "s-taken").exists()
    host.set_cards(Hardware())
    stage.start_request(request)


def test_a_host_carries_one_session_of_ours_also_of_another_home(
    host: SshHost, stage: Stage, make: Make, tmp_path: Path
) -> None:
    """Its cards are told as not available, and a start there is refused until the other one is over."""
    host.set_cards(Hardware())
    ref = up(stage, "s-first")
    host.set_cards(Hardware(), used={0: "4242"})  # that is our own
    (offer,) = stage.adapter.offers()
    assert (offer.card, offer.available) == ("T4", 0)
    other = Stage(tmp_path / "other", lambda home: make(home=home))
    request = other.adapter.render(other.launch("s-second"))
    with pytest.raises(NoCapacityError, match="runs there already"):
        other.adapter.start(request)
    stage.adapter.stop(ref)
    ended(stage, ref)
    host.set_cards(Hardware())
    until(lambda: other.adapter.start(request))


def test_a_session_is_nice(stage: Stage) -> None:
    """Whoever sits in front of the machine goes first."""
    up(stage, "s-nice")
    assert os.getpriority(os.PRIO_PROCESS, stage.pids("s-nice")[0]) == min(
        19, os.getpriority(os.PRIO_PROCESS, 0) + 10
    )


# --- secrets --------------------------------------------------------------------------------------------

CANARY = "canary-of-the-store-0123456789"


def asking(pid: int) -> bool:
    """Whether this process belongs to a connection, and not to a session: those know of none."""
    try:
        return b"SSH_CONNECTION" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def test_the_store_s_secret_is_in_no_argument_environment_or_log(
    host: SshHost, stage: Stage
) -> None:
    """It crosses the encrypted line into a private file that the agent removes; the request does not hold it."""
    assert isinstance(stage.adapter, SshAdapter)
    stage.adapter.entrust(lambda: {"FREEGPU_TEST_KEY": CANARY})
    archive, _ = agent_archive.build(stage.home / "agent")
    launch = stage.launch("s-canary", agent=archive)
    assert CANARY not in json.dumps(stage.adapter.render(launch).payload)
    before = os.umask(0)
    try:
        ref = stage.start("s-canary", agent=archive)
    finally:
        os.umask(before)
    until(lambda: stage.hello("s-canary"), why=stage.adapter.logs(ref).text)
    place = host.sessions / "s-canary"
    assert not (place / "access.json").exists()
    assert place.stat().st_mode & 0o077 == 0
    for path in host.far_home.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
            assert path.stat().st_mode & 0o077 == 0, path
    # the program that answered our last question may take a moment to leave
    pids = until(lambda: (found := host.running()) and not any(map(asking, found)) and found)
    for pid in pids:
        for part in ("cmdline", "environ"):
            assert CANARY.encode() not in Path(f"/proc/{pid}/{part}").read_bytes()
    commands = [line for line in host.heard().splitlines() if line.startswith(b"/bin/sh -c")]
    assert commands
    assert not any(CANARY.encode() in line for line in commands)
    stage.adapter.stop(ref)
    ended(stage, ref)


# --- what is left, and what doctor says -----------------------------------------------------------------


def test_tidying_removes_a_session_that_is_over_and_agents_of_long_ago(
    host: SshHost, stage: Stage
) -> None:
    """And touches none that runs; a second time is silent."""
    assert isinstance(stage.adapter, SshAdapter)
    ref = up(stage, "s-tidy")
    stage.adapter.tidy(ref)
    assert stage.state(ref) is PlatformState.RUNNING
    stage.adapter.stop(ref)
    ended(stage, ref)
    (agent,) = (host.far_home / ".freegpu" / "agents").iterdir()
    old = agent.with_name("0" * 64 + ".pyz")
    old.touch()
    os.utime(old, (1e9, 1e9))
    stage.adapter.tidy(ref)
    stage.adapter.tidy(ref)
    assert not (host.sessions / "s-tidy").exists()
    assert agent.exists()
    assert not old.exists()
    assert stage.state(ref) is PlatformState.GONE


def findings(adapter: SshAdapter, store: str) -> dict[str, Any]:
    return {finding.name: finding for finding in adapter.diagnose(store)}


def test_doctor_tells_what_there_is(host: SshHost, make: Make, tmp_path: Path) -> None:
    """Line, key, credentials, Python, cards, clock, disk, and the way to the store, really tried from there."""
    host.set_cards(Hardware(count=2), used={1: "4242"})
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "freegpu.json").write_text("{}")
    found = findings(make(), f"folder:{tmp_path / 'store'}")
    assert all(finding.ok for finding in found.values()), found
    assert set(found) >= {"reached", "host key", "credentials", "python", "cards", "clock", "disk"}
    assert "SHA256:" in found["host key"].detail
    assert str(host.home / ".ssh" / "id_ed25519") in found["credentials"].detail
    assert "1: Tesla T4 (process 4242)" in found["cards"].detail
    host.set_skew(-3600)
    found = findings(make(), f"folder:{tmp_path / 'nowhere'}")
    assert found["clock"].ok is False
    assert re.search(r"its clock is 3[56]\d\d s behind ours", found["clock"].detail)
    assert found["store"].ok is False
    assert "nowhere" in found["store"].detail


def test_doctor_tries_the_port_of_a_store_from_there(make: Make) -> None:
    """An S3 endpoint that listens, and one that does not."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        url = f"s3://bucket/x?endpoint=http://127.0.0.1:{port}"
        assert findings(make(), url)["store"].ok
    found = findings(make(), url)["store"]
    assert found.ok is False
    assert f"127.0.0.1:{port} does not answer from there" in found.detail


def test_doctor_says_where_it_ended_when_the_host_is_away(host: SshHost, make: Make) -> None:
    """A finding, and no exception."""
    host.stop()
    (found,) = make().diagnose("")
    assert (found.name, found.ok) == ("reached", False)


_Call = Callable[[SshAdapter], Any]


@pytest.mark.parametrize(
    "call",
    [
        lambda adapter: adapter.offers(),
        lambda adapter: adapter.find("s-x"),
        lambda adapter: adapter.observe([SessionRef("s-x")]),
        lambda adapter: adapter.stop(SessionRef("s-x")),
        lambda adapter: adapter.logs(SessionRef("s-x")),
        lambda adapter: adapter.tidy(SessionRef("s-x")),
    ],
)
def test_a_host_that_is_away_is_no_end_of_any_session(
    host: SshHost, make: Make, call: _Call
) -> None:
    """Every call says that it is unreachable, which may pass; none says that a session is gone."""
    host.stop()
    with pytest.raises(UnreachableError) as caught:
        call(make())
    assert caught.value.transient

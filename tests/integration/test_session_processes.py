"""Sessions as processes of this machine: once a key, alive as long as the lock is held, whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from freegpu.adapters import hosts
from freegpu.adapters.hosts import ProcessHost, descendants

#: a command that says where it is and stays
STAY = [sys.executable, "-I", "-c", "import time; print('here', flush=True); time.sleep(60)"]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where sessions lie; none outlives its test."""
    folder = tmp_path / "a 'home' with\nmarks ü" / "sessions"
    yield folder
    host = ProcessHost(folder)
    for key in host.keys():  # noqa: SIM118 - a method of ours, not a dict
        pid = host.pid(key)
        if pid is not None and host.alive(key):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def host(folder: Path) -> Iterator[ProcessHost]:
    host = ProcessHost(folder)
    yield host
    host.close()


def until(what: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def test_racing_starts_of_one_key_start_one_process(folder: Path) -> None:
    """Eight starters at once: one is told that it was the one, and the command runs once."""
    together = threading.Barrier(8)

    def race(_: int) -> bool:
        host = ProcessHost(folder)
        together.wait()
        try:
            return host.start("s-1", STAY, {"profile.json": b"{}"})
        finally:
            host.close()

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(race, range(8))) == [False] * 7 + [True]
    host = ProcessHost(folder)
    until(lambda: host.log("s-1", None)[0])
    time.sleep(0.1)  # a second one would have spoken by now
    assert host.log("s-1", None)[0] == "here\n"


def test_lookers_never_take_each_other_for_a_session(host: ProcessHost, folder: Path) -> None:
    """Many look at once at a session that has ended: none says that it lives."""
    host.start("s-1", ["/bin/true"], {})
    until(lambda: not host.alive("s-1"))

    def look(_: int) -> bool:
        looker = ProcessHost(folder)
        return any(looker.alive("s-1") for _ in range(500))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(look, range(4))) == [False] * 4


def test_lookers_never_make_a_start_fail(host: ProcessHost, folder: Path) -> None:
    """Somebody looks all the time: each of twenty starts really starts."""
    done = threading.Event()

    def look() -> None:
        looker = ProcessHost(folder)
        while not done.is_set():
            for number in range(20):
                looker.alive(f"s-{number}")

    with ThreadPoolExecutor(2) as pool:
        lookers = [pool.submit(look) for _ in range(2)]
        try:
            started = [host.start(f"s-{number}", ["/bin/true"], {}) for number in range(20)]
        finally:
            done.set()
        for looker in lookers:
            looker.result()
    assert started == [True] * 20


def test_a_session_outlives_the_killed_command_that_started_it(folder: Path) -> None:
    """kill -9 of the starter: the session is alive for others, has a pid, and can be stopped."""
    script = (
        "import os, signal, sys; from pathlib import Path; from freegpu.adapters.hosts import ProcessHost\n"
        "ProcessHost(Path(sys.argv[1])).start('s-1', sys.argv[2:], {})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder), *STAY], check=False)
    assert done.returncode == -signal.SIGKILL
    host = ProcessHost(folder)
    assert host.alive("s-1")
    assert host.start("s-1", STAY, {}) is False
    host.terminate("s-1")
    until(lambda: not host.alive("s-1"))
    assert host.started("s-1")


def test_a_starter_that_dies_before_it_notes_the_pid_leaves_a_session_that_can_be_stopped(
    host: ProcessHost, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process notes its own pid: there is no moment in which it runs and nobody can reach it."""
    write = hosts.write_private

    def dies(path: Path, data: bytes) -> None:
        if path.name == "pid":
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(hosts, "write_private", dies)
    monkeypatch.setattr(
        subprocess.Popen, "__del__", lambda self: None
    )  # nobody waits for it: we died
    with pytest.raises(KeyboardInterrupt):
        host.start("s-1", STAY, {})
    later = ProcessHost(folder)
    until(lambda: later.pid("s-1"))
    assert later.alive("s-1")
    later.terminate("s-1")
    until(lambda: not later.alive("s-1"))


def test_a_starter_that_dies_before_the_process_costs_a_session_and_never_makes_two(
    host: ProcessHost,
) -> None:
    """The marker is there and nothing runs: it counts as started and ended, so the key is used up."""
    place = host.place("s-1")
    place.mkdir(parents=True)
    (place / "started").touch()
    assert host.start("s-1", STAY, {}) is False
    assert (host.started("s-1"), host.alive("s-1")) == (True, False)


def test_a_start_that_fails_may_be_tried_again(host: ProcessHost) -> None:
    """The system refuses (arguments too long): OSError, and the key is still unused."""
    with pytest.raises(OSError, match="too long"):
        host.start("s-1", ["/bin/true", "x" * 4_000_000], {})
    assert not host.started("s-1")
    assert host.start("s-1", ["/bin/true"], {}) is True


def test_a_reused_pid_is_nobody_of_ours(host: ProcessHost) -> None:
    """The pid of an ended session belongs to somebody else now: it is neither alive nor signalled."""
    host.start("s-1", ["/bin/true"], {})
    until(lambda: not host.alive("s-1"))
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (host.place("s-1") / "pid").write_text(str(stranger.pid))
        assert not host.alive("s-1")
        host.terminate("s-1")
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.1)
        stranger.kill()


def test_what_a_session_started_does_not_keep_it_alive(host: ProcessHost) -> None:
    """The lock is the agent's alone: a job that outlives its agent is not a living session."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    host.start("s-1", [sys.executable, "-I", "-c", script], {})
    until(lambda: host.log("s-1", None)[0])
    orphan = int(host.log("s-1", None)[0])
    try:
        until(lambda: not host.alive("s-1"))
        os.kill(orphan, 0)
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_nobody_else_reads_a_session(host: ProcessHost) -> None:
    """The profile holds the session's key: folder 0700, file 0600, whatever the umask is."""
    before = os.umask(0)
    try:
        host.start("s-1", ["/bin/true"], {"profile.json": b"secret"})
    finally:
        os.umask(before)
    place = host.place("s-1")
    assert place.stat().st_mode & 0o777 == 0o700
    assert (place / "profile.json").stat().st_mode & 0o777 == 0o600


def test_the_log_comes_in_pages_that_join_without_a_seam(host: ProcessHost) -> None:
    """A cursor continues where the page ended, never inside a character; at the end it stays."""
    text = "".join(f"{number} übrig\n" for number in range(12_000))
    place = host.place("s-1")
    place.mkdir(parents=True)
    (place / "agent.log").write_text(text)
    pages, cursor = [], None
    while True:
        page, cursor = host.log("s-1", cursor)
        if not page:
            break
        pages.append(page)
    assert len(pages) > 2
    assert "".join(pages) == text
    assert host.log("s-1", cursor) == ("", cursor)
    with open(place / "agent.log", "a") as file:
        file.write("more")
    assert host.log("s-1", cursor)[0] == "more"


@pytest.mark.parametrize("key", ["", "../s-1", "a b", "s-1\n", "x" * 500, "Ünï"])
def test_a_made_up_reference_is_merely_unknown(host: ProcessHost, key: str) -> None:
    """Whatever somebody hands in as a session: nothing is found, nothing is raised, nothing is touched."""
    host.terminate(key)
    found = (host.started(key), host.alive(key), host.pid(key), host.exit_record(key))
    assert found == (False, False, None, {})
    assert host.log(key, None) == ("", "0")
    assert host.keys() == []


def test_descendants_are_the_whole_tree_without_the_dead() -> None:
    """Children's children too, in groups of their own; a zombie is nobody."""
    script = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(['true'])\n"  # stays a zombie
        "subprocess.Popen(['sh', '-c', 'sleep 60 & wait'], start_new_session=True)\n"
        "print('up', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as root:
        assert root.stdout is not None
        root.stdout.readline()
        try:
            until(lambda: len(descendants(root.pid)) == 3)
            assert descendants(root.pid)[0] == root.pid
        finally:
            for pid in descendants(root.pid):
                os.kill(pid, signal.SIGKILL)

"""A command is a process group with a guard: it ends when it is told, and never outlives the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freegpu.agent import process
from freegpu.agent.process import Child


class Bench:
    """Starts scripts in one folder and sees to it that none is left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.children: list[Child] = []
        # another run of these tests beside this one has marks of its own
        self.mark = os.urandom(8).hex()

    def start(self, text: str, *, strict: bool = False, mark: str = "") -> Child:
        script = self.folder / f"run{len(self.children)}.sh"
        process.write_script(script, textwrap.dedent(text))
        env = {**os.environ, process.MARK: mark or self.mark}
        child = process.start(script, self.folder, env, self.spool, strict=strict)
        self.children.append(child)
        return child

    @property
    def output(self) -> bytes:
        return self.spool.read_bytes()

    def shows(self, text: bytes) -> bool:
        return self.spool.exists() and text in self.output


def until(what: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for it; AssertionError if it does not come."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def ended(child: Child, seconds: float = 10.0) -> int:
    until(lambda: child.poll() is not None, seconds)
    code = child.poll()
    assert code is not None
    return code


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for child in made.children:
        child.release()


@pytest.mark.parametrize("code", [0, 1, 75, 255])
def test_the_exit_code_is_the_commands(bench: Bench, code: int) -> None:
    """Neither the gate nor the trap changes it."""
    assert ended(bench.start(f"echo hi\nexit {code}")) == code
    assert bench.output == b"hi\n"


def test_standard_error_and_output_go_to_the_spool_in_order(bench: Bench) -> None:
    """One file, opened for appending."""
    ended(bench.start("echo one; echo two >&2; echo three"))
    assert bench.output == b"one\ntwo\nthree\n"


def test_a_strict_script_stops_at_the_first_failure_and_a_normal_one_goes_on(bench: Bench) -> None:
    """Setup is strict; run ends with its last command's code, as SkyPilot's does."""
    assert ended(bench.start("false\necho on", strict=True)) == 1
    assert ended(bench.start("false\necho on")) == 0
    assert bench.output == b"on\n"


def test_line_numbers_in_errors_are_those_of_the_users_script(bench: Bench) -> None:
    """Our own line is put before the first one, not above it."""
    ended(bench.start("true\nno-such-command-here\n"))
    assert b"line 2" in bench.output or b": 2:" in bench.output


def test_standard_input_is_empty(bench: Bench) -> None:
    """A command that asks a question gets an end of file instead of hanging."""
    assert ended(bench.start("read -r x || echo nobody")) == 0
    assert bench.output == b"nobody\n"


SAVER = """
python3 -c '
import signal, sys, time
def save(*_):
    time.sleep(0.5); print("saved", flush=True); sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
'
"""


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_sigterm_reaches_the_command_and_its_code_survives_the_shell(
    bench: Bench, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that dies of SIGTERM at once would lose the exit code of the command that is still saving."""
    if shell == "sh":
        monkeypatch.setattr("freegpu.agent.process.shutil.which", lambda name: None)
    child = bench.start(SAVER + "echo 'this line is not reached'")
    until(lambda: bench.shows(b"ready\n"))
    child.signal(signal.SIGTERM)
    assert ended(child) == 75
    assert bench.output == b"ready\nsaved\n"


def test_a_command_without_a_handler_dies_of_sigterm(bench: Bench) -> None:
    """The script's later commands are not started."""
    child = bench.start("echo ready; sleep 60; echo 'not reached'")
    until(lambda: bench.shows(b"ready\n"))
    child.signal(signal.SIGTERM)
    assert ended(child) == 128 + signal.SIGTERM
    assert b"not reached" not in bench.output


def test_a_background_command_may_still_save_after_its_shell_is_gone(bench: Bench) -> None:
    """alive() is about the whole group, not about the shell."""
    child = bench.start(SAVER.strip() + " &\nsleep 60")
    until(lambda: bench.shows(b"ready\n"))
    child.signal(signal.SIGTERM)
    ended(child)
    assert child.alive()
    until(lambda: not child.alive())
    assert bench.shows(b"saved")


def test_release_kills_what_the_command_left_in_its_group(bench: Bench) -> None:
    """A forgotten background process would hold the card."""
    child = bench.start("sleep 300 & echo $!")
    assert ended(child) == 0
    pid = int(bench.output)
    assert not gone(pid)
    child.release()
    until(lambda: gone(pid), 2)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "leave", ["setsid sleep 300 &", "(setsid nohup sleep 300 >/dev/null 2>&1 &) &"]
)
def test_release_finds_a_process_that_left_the_group(bench: Bench, leave: str) -> None:
    """setsid, nohup and a double fork leave the group; the mark in the environment stays."""
    child = bench.start(leave + "\nsleep 0.3")
    assert ended(child) == 0
    pids = process.marked(f"{process.MARK}={bench.mark}".encode())
    assert len(pids) == 1
    child.release()
    until(lambda: gone(pids[0]), 2)


def test_release_spares_the_processes_of_another_attempt(bench: Bench) -> None:
    """Two slots run side by side; a mark may be the beginning of another one."""
    other = bench.start("exec sleep 300", mark=bench.mark + "0")
    child = bench.start("true")
    ended(child)
    child.release()
    time.sleep(0.1)
    assert other.poll() is None


def test_sigkill_ends_a_command_that_ignores_sigterm(bench: Bench) -> None:
    """And everything that it has started."""
    child = bench.start("trap '' TERM\nsleep 300 &\necho ready\nwhile :; do sleep 1; done")
    until(lambda: bench.shows(b"ready\n"))
    child.signal(signal.SIGTERM)
    time.sleep(0.2)
    assert child.poll() is None
    child.signal(signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    until(lambda: not child.alive())


def test_a_stopped_group_can_be_continued(bench: Bench) -> None:
    """The window pauses a job with SIGSTOP."""
    child = bench.start("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done")
    until(lambda: bench.shows(b"1\n"))
    child.signal(signal.SIGSTOP)
    time.sleep(0.1)
    held = bench.output
    time.sleep(0.3)
    assert bench.output == held
    child.signal(signal.SIGCONT)
    assert ended(child) == 0


def test_a_signal_to_a_group_that_is_gone_is_silent(bench: Bench) -> None:
    """The command may end at any moment."""
    child = bench.start("true")
    ended(child)
    child.signal(signal.SIGTERM)
    child.release()
    child.release()


ORPHAN = """
import sys, time
from pathlib import Path
from freegpu.agent import process
folder = Path(sys.argv[1])
process.write_script(folder / "run.sh", sys.argv[2])
env = {"PATH": "/usr/bin:/bin", process.MARK: sys.argv[3]}
child = process.start(folder / "run.sh", folder, env, folder / "spool", strict=False)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(
    "text",
    ["sleep 301", "trap '' TERM HUP INT\nsleep 301 & sleep 301", "setsid sleep 301 &\nsleep 301"],
)
def test_no_process_survives_an_agent_that_is_killed_with_sigkill(
    tmp_path: Path, text: str
) -> None:
    """The guard's pipe closes with the agent, and it kills the group and every marked process."""
    own = os.urandom(8).hex()
    agent = subprocess.Popen([sys.executable, "-c", ORPHAN, str(tmp_path), text, own])
    mark = f"{process.MARK}={own}".encode()
    until(lambda: len(process.marked(mark)) >= text.count("sleep"))
    agent.kill()
    agent.wait()
    until(lambda: not process.marked(mark), 2)

"""A job's command as a process group that cannot outlive the agent.

Decides how a script is started, signalled and swept up. Does not know why: attempts decide that.

Each command has a guard: a tiny shell that reads from a pipe whose other end only the agent holds. When the
agent is killed with SIGKILL the pipe closes, and the guard kills the group. The command itself waits for a
word from the agent until its guard is there, so there is no moment without one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Protocol

#: The variable that marks every process of an attempt, also one that left the group. Its value is drawn at
#: random: ids of attempts are only unique in their home, and several may use one machine.
MARK = "FREEGPU_PROCESS_MARK"

#: seconds for a killed process to be gone
_REAP_S = 5.0

_GATE = 'read -r go || exit 125; exec "$@" </dev/null'
_GUARD = """trap '' HUP INT TERM
read -r word && exit 0
kill -9 -- "-$1"
for pid in $(grep -lsaxz "$2" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do kill -9 "$pid"; done
"""

#: A shell that dies of the SIGTERM before its command has saved would take the exit code with it. With this
#: trap it waits for the command (a trap runs after the foreground command) and ends with the command's code.
_PRELUDE = "trap 'exit $?' TERM; "


class Child(Protocol):
    """A command that was started."""

    def poll(self) -> Optional[int]:
        """Exit code, minus the signal number if one killed it; None while it runs."""
        ...

    def alive(self) -> bool:
        """Whether any process of the group is left, also after the command itself has ended."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the whole group; silent if nobody is left. SIGKILL reaches those who left it too."""
        ...

    def pids(self) -> List[int]:
        """Processes of the attempt, where the system can tell."""
        ...

    def release(self) -> None:
        """Kill whatever is left and dismiss the guard. The last call."""
        ...


class Start(Protocol):
    """How a script is started: really, or in a simulation."""

    def __call__(
        self, script: Path, folder: Path, env: Mapping[str, str], spool: Path, *, strict: bool
    ) -> Child:
        """Run the script in the folder, all its output appended to the spool.

        strict: stop at the first command that fails. OSError if it cannot be started.
        """
        ...


def write_script(path: Path, text: str) -> None:
    """The user's lines as a script file; their line numbers stay as they are."""
    path.write_text(_PRELUDE + text + "\n", encoding="utf-8", errors="surrogateescape")


def start(
    script: Path, folder: Path, env: Mapping[str, str], spool: Path, *, strict: bool
) -> Child:
    """See Start. The output goes to a file, never a pipe: a job never waits for us."""
    shell = shutil.which("bash") or "/bin/sh"
    command = [shell, *(["-e"] if strict else []), str(script)]
    out = os.open(spool, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, "freegpu", *command],
            cwd=folder,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(out)
    try:
        return _Group(process, env.get(MARK, ""))
    except OSError:  # no guard, no job: behind the gate it ends by itself
        process.communicate()
        raise


class _Group:
    """See Child."""

    def __init__(self, process: "subprocess.Popen[bytes]", mark: str) -> None:
        self._process = process
        self._mark = f"{MARK}={mark}".encode() if mark else b""
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "freegpu-guard", str(process.pid), self._mark.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_guard_environment(),
        )
        _tell(process, b"go\n")

    def poll(self) -> Optional[int]:
        return self._process.poll()

    def alive(self) -> bool:
        if self._process.poll() is None:
            return True
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # macOS says so for a group of zombies; a process under another user is not ours to wait for
            return False
        # In many containers nobody reaps orphans: a group of nothing but zombies has ended all the same.
        states = _states(self._process.pid)
        return not states or any(state != "Z" for state in states)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
        if number == signal.SIGKILL:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

    def pids(self) -> List[int]:
        return marked(self._mark) if self._mark else []

    def release(self) -> None:
        self.signal(signal.SIGKILL)
        _tell(self._guard, b"ok\n")
        for process in (self._guard, self._process):
            # one that hangs in the kernel is not waited for: its guard is gone, and the signal stays pending
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_REAP_S)


def _guard_environment() -> Dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != MARK}


def _tell(process: "subprocess.Popen[bytes]", word: bytes) -> None:
    """A word into its standard input, then close it; it may be gone already."""
    pipe = process.stdin
    if pipe is None or pipe.closed:
        return
    with contextlib.suppress(BrokenPipeError):
        pipe.write(word)
        pipe.flush()
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


def _states(group: int) -> List[str]:
    """The states of a group's processes as /proc shows them; empty where there is no /proc."""
    states: List[str] = []
    for name in _numbers():
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if len(fields) > 2 and fields[2] == str(group):
            states.append(fields[0])
    return states


def _numbers() -> List[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def marked(mark: bytes) -> List[int]:
    """Processes that carry this `NAME=value` in their environment; empty where there is no /proc."""
    found: List[int] = []
    for name in _numbers():
        if int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:  # it ended meanwhile, or is another user's
            continue
    return found

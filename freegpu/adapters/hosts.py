"""A session as a detached process on this machine: started once a key, alive as long as a lock is held.

Pids are reused and parents die, so neither is asked. The parent locks a file, and the process inherits the open
lock: whoever finds it free knows that the process is gone, however it ended, and at no moment is there a process
without it. Who only looks takes a shared lock, so that lookers never take each other for a process.
Knows no platform; `local` and the loopback platforms stand on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from freegpu.agent.wire import check_name

#: at most so much of the agent's own output is read at a time, bytes
LOG_PAGE = 1 << 16

#: The process notes its own pid before it becomes the command, so that a parent killed right after the start
#: leaves a session that can still be stopped. Never over the parent's own, whole note (set -C).
_BECOME = '{ set -C; echo $$ >pid; } 2>/dev/null; exec "$@"'


class ProcessHost:
    """Sessions below one folder; any process may look after those that another one started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """Let go of those that we started: they are detached on purpose and outlive us."""
        for child in self._children:
            if child.poll() is None:
                child.returncode = 0  # or Python complains that nobody waited for it
        self._children.clear()

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        """Look after one more detached process as after those that `start` started."""
        self._children.append(child)

    def place(self, key: str) -> Path:
        """The folder of one session. ValueError: no session can have this key."""
        return self.folder / check_name(key)

    def keys(self) -> list[str]:
        """Every session that has a folder here, sorted."""
        try:
            return sorted(place.name for place in self.folder.iterdir() if place.is_dir())
        except FileNotFoundError:
            return []

    def start(
        self,
        key: str,
        argv: Sequence[str],
        files: Mapping[str, bytes],
        *,
        env: Mapping[str, str] | None = None,
    ) -> bool:
        """Start the command, once a key; False: it was started before. OSError: it cannot be started.

        `files` are written into the session's folder first, readable by the owner only; `env` is added to ours.
        """
        place = self.place(key)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(place / "start.lock"):
            if self.started(key):
                return False
            for name, data in files.items():
                write_private(place / name, data)
            self._children.append(_spawn(place, argv, {**os.environ, **(env or {})}))
        return True

    def started(self, key: str) -> bool:
        """Whether the command of this key was ever started."""
        place = self._known(key)
        return place is not None and (place / "started").exists()

    def alive(self, key: str) -> bool:
        """Whether it still runs."""
        for child in self._children:
            child.poll()  # no zombies beside a daemon that runs for weeks
        place = self._known(key)
        return place is not None and is_held(place / "lock")

    def pid(self, key: str) -> int | None:
        """Its process id; only to be believed while it is alive."""
        place = self._known(key)
        try:
            return None if place is None else int((place / "pid").read_bytes())
        except (OSError, ValueError):
            return None

    def terminate(self, key: str) -> None:
        """Ask it to end (SIGTERM); silent if it is gone."""
        pid = self.pid(key)
        if pid is not None and self.alive(key):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def exit_record(self, key: str) -> dict[str, Any]:
        """What the agent wrote about its end; empty if it wrote nothing."""
        place = self._known(key)
        try:
            record = json.loads((place / "work" / "exit.json").read_bytes()) if place else {}
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def log(self, key: str, cursor: str | None) -> tuple[str, str]:
        """A page of the agent's own output, and where the next one begins."""
        start = int(cursor) if cursor and cursor.isdigit() else 0
        place, data = self._known(key), b""
        if place is not None:
            with contextlib.suppress(FileNotFoundError), open(place / "agent.log", "rb") as file:
                file.seek(start)
                data = file.read(LOG_PAGE)
        if len(data) == LOG_PAGE and b"\n" in data:
            data = data[: data.rindex(b"\n") + 1]  # not in the middle of a character
        return data.decode("utf-8", "replace"), str(start + len(data))

    def _known(self, key: str) -> Path | None:
        """The session's folder, if it can be one: a reference that somebody made up is merely unknown."""
        try:
            return self.place(key)
        except ValueError:
            return None


def _spawn(place: Path, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The session's process, holding its lock; the caller has made sure that it is the first."""
    # waits for lookers only: who else might hold this lock has left the marker
    with held(place / "lock") as lock, open(place / "agent.log", "ab") as log:
        # The marker comes first: a crash right after it costs one session that never lived. The other
        # way round, a crash would let the same key start a second one once the first has ended.
        write_private(place / "started", b"")
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _BECOME, "session", *argv],
                cwd=place,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=() if lock is None else (lock,),
                start_new_session=True,
            )
        except OSError:
            (place / "started").unlink()
            raise
        write_private(place / "pid", b"%d\n" % process.pid)
        return process


@contextlib.contextmanager
def held(path: Path, *, wait: bool = True) -> Iterator[int | None]:
    """Hold this lock alone for the block; without `wait`, None if somebody else does.

    A process that inherits the descriptor goes on holding it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether somebody holds this lock alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def descendants(pid: int) -> list[int]:
    """The process and everything that it and its children started, parents first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found, queue = [], [pid]
    while queue:
        here = queue.pop(0)
        found.append(here)
        queue += children.get(here, [])
    return found


def _parents() -> list[tuple[int, int]]:
    """(process, parent) of all that run; from /proc where there is one: slim containers have no ps."""
    if Path("/proc/self/stat").exists():
        return [found for name in os.listdir("/proc") if (found := _parent(name)) is not None]
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state="],
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    rows = (line.split() for line in listed.stdout.splitlines())
    return [(int(pid), int(parent)) for pid, parent, state in rows if not state.startswith("Z")]


def _parent(name: str) -> tuple[int, int] | None:
    if not name.isdigit():
        return None
    try:
        # the name in brackets may hold anything, also brackets
        state, parent = (
            Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        )
    except (OSError, ValueError):  # it ended meanwhile
        return None
    return None if state == "Z" else (int(name), int(parent))


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(hidden, path)

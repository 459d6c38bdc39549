"""A session as a detached process on this machine: started once a key, alive as long as a lock is held.

Pids are reused and parents die, so neither is asked. The parent locks a file, and the process inherits the open
lock: whoever finds it free knows that the process is gone, however it ended, and at no moment is there a process
without it. Knows no platform; `local` and the loopback platforms stand on it.
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
        """The folder of one session."""
        return self.folder / check_name(key)

    def start(self, key: str, argv: Sequence[str], files: Mapping[str, bytes]) -> bool:
        """Start the command, once a key; False: it was started before. OSError: it cannot be started.

        `files` are written into the session's folder first, readable by the owner only.
        """
        place = self.place(key)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock(place) as lock:
            if lock is None or (place / "started").exists():
                return False
            for name, data in files.items():
                _write_private(place / name, data)
            with open(place / "agent.log", "ab") as log:
                process = subprocess.Popen(
                    list(argv),
                    cwd=place,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
            # the marker comes last: a crash before it leaves a held lock, and that says "started" too
            _write_private(place / "pid", str(process.pid).encode())
            _write_private(place / "started", b"")
            self._children.append(process)
        return True

    def started(self, key: str) -> bool:
        """Whether the command of this key was ever started."""
        place = self.place(key)
        return (place / "started").exists() or self.alive(key)

    def alive(self, key: str) -> bool:
        """Whether it still runs."""
        for child in self._children:
            child.poll()  # no zombies beside a daemon that runs for weeks
        place = self.place(key)
        if not (place / "lock").exists():
            return False
        with self._lock(place) as lock:
            return lock is None

    def pid(self, key: str) -> int | None:
        """Its process id; only to be believed while it is alive."""
        try:
            return int((self.place(key) / "pid").read_bytes())
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
        try:
            record = json.loads((self.place(key) / "work" / "exit.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def log(self, key: str, cursor: str | None) -> tuple[str, str | None]:
        """A page of the agent's own output, and where it goes on (None: nothing new)."""
        start = int(cursor) if cursor and cursor.isdigit() else 0
        try:
            with open(self.place(key) / "agent.log", "rb") as file:
                file.seek(start)
                data = file.read(LOG_PAGE)
        except FileNotFoundError:
            data = b""
        return data.decode("utf-8", "replace"), str(start + len(data)) if data else None

    @contextlib.contextmanager
    def _lock(self, place: Path) -> Iterator[int | None]:
        """The session's lock, taken for the block; None: its process holds it."""
        descriptor = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield descriptor
        finally:
            os.close(descriptor)


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


def _parents() -> Iterator[tuple[int, int]]:
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False, timeout=10
    )
    for line in listed.stdout.splitlines():
        pid, parent = line.split()
        yield int(pid), int(parent)


def _write_private(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)

"""What a loopback platform is when no command runs: one small process a session that ends it in time.

It waits until the session's process is gone or its time is up; then it takes the machine away, as a platform
does, and notes why. It knows no limit but the one it was given.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from freegpu.adapters.hosts import ProcessHost, descendants, held, is_held, write_private
from freegpu.agent.process import marked

#: how often it looks, seconds
LOOK_S = 0.05
#: Every process of a session carries this variable, also one that left its parents. Its value is the session's
#: folder: two homes on one machine may have sessions of one name.
MARK = "LOOPBACK_SESSION"


def post(host: ProcessHost, key: str, limit_s: float | None, reason: str) -> None:
    """Set a watcher on a session, unless it has one.

    It ends the session after `limit_s` seconds (None: never); `reason` is what such an end is called.
    """
    place = host.place(key)
    with held(place / "start.lock"):
        if watched(host, key):
            return
        with held(place / "watch.lock") as lock:  # waits for lookers only
            host.adopt(_spawn(host, key, limit_s, reason, lock))


def _spawn(
    host: ProcessHost, key: str, limit_s: float | None, reason: str, lock: int | None
) -> subprocess.Popen[bytes]:
    package = Path(__file__).resolve().parents[2]
    program = (
        f"import sys; sys.path.insert(0, {str(package)!r}); "
        "from freegpu.testing import watcher; from pathlib import Path; "
        "watcher.watch(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])"
    )
    limit = math.inf if limit_s is None else limit_s
    return subprocess.Popen(
        [sys.executable, "-c", program, str(host.folder), key, str(limit), reason],
        env={name: value for name, value in os.environ.items() if name != MARK},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,
    )


def watched(host: ProcessHost, key: str) -> bool:
    """Whether the session's watcher is at its post."""
    return is_held(host.place(key) / "watch.lock")


def watch(folder: Path, key: str, limit_s: float, reason: str) -> None:
    """Watch one session to its end."""
    host = ProcessHost(folder)
    begun = time.monotonic()
    why = ""
    while host.alive(key):
        if time.monotonic() - begun >= limit_s:
            why = reason
            take_away(host, key)
            break
        time.sleep(LOOK_S)
    note_end(host, key, why)


def take_away(host: ProcessHost, key: str) -> list[int]:
    """SIGKILL the session's process and everything it started; returns whom."""
    victims = processes(host, key)
    # Nobody may start another process between the look and the kill: freeze until a look finds nobody new.
    fresh = victims
    while fresh:
        _signal(fresh, signal.SIGSTOP)
        fresh = [pid for pid in processes(host, key) if pid not in victims]
        victims += fresh
    _signal(victims, signal.SIGKILL)
    return victims


def signal_all(host: ProcessHost, key: str) -> None:
    """SIGTERM to the session's process and everything that it started."""
    _signal(processes(host, key), signal.SIGTERM)


def processes(host: ProcessHost, key: str) -> list[int]:
    """The session's process and everything that it started, parents first."""
    pid = host.pid(key)
    found = descendants(pid) if pid is not None and host.alive(key) else []
    mark = os.fsencode(f"{MARK}={host.place(key)}")
    return found + [pid for pid in marked(mark) if pid not in found]


def note_end(host: ProcessHost, key: str, reason: str) -> None:
    """Write down when and why a session ended, unless that is known already."""
    place = host.place(key)
    with held(place / "record.lock"), suppress(OSError, ValueError):
        known: dict[str, Any] = json.loads((place / "platform.json").read_bytes())
        if known.get("ended") is None:
            ended = {**known, "ended": time.time(), "reason": reason}
            write_private(place / "platform.json", json.dumps(ended).encode())


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

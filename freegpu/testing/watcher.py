"""What a loopback platform is when no command runs: one small process a session that ends it in time.

It waits until the session's process
is gone or its time is up; then it takes the machine away, as a platform does, and notes why.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from freegpu.adapters.hosts import ProcessHost, descendants

#: how often it looks, seconds
LOOK_S = 0.05


def watch(folder: Path, key: str, limit_s: float, reason: str) -> None:
    """Watch one session; `reason` is what an end by the limit is called."""
    host = ProcessHost(folder)
    record = host.place(key) / "platform.json"
    begun = time.monotonic()
    why = ""
    while host.alive(key):
        if time.monotonic() - begun >= limit_s:
            why = reason
            take_away(host, key)
            break
        time.sleep(LOOK_S)
    note_end(record, why)


def take_away(host: ProcessHost, key: str) -> list[int]:
    """SIGKILL the session's process and everything it started; returns whom."""
    pid = host.pid(key)
    if pid is None or not host.alive(key):
        return []
    victims = frozen(pid)
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    return victims


def frozen(pid: int) -> list[int]:
    """Stop a process and all its descendants, and only then believe that the list is whole."""
    victims: list[int] = []
    while True:
        fresh = [p for p in descendants(pid) if p not in victims]
        if not fresh:
            return victims
        for victim in fresh:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGSTOP)
        victims += fresh


def note_end(record: Path, reason: str) -> None:
    """Write down when and why a session ended, unless that is known already."""
    with suppress(OSError, ValueError):
        known = json.loads(record.read_bytes())
        if known.get("ended") is None:
            hidden = record.with_suffix(f".{os.getpid()}")
            hidden.write_text(json.dumps({**known, "ended": time.time(), "reason": reason}))
            os.replace(hidden, record)

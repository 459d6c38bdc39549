"""Machines of loopback platforms: what is told of their end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from freegpu.testing import watcher
from freegpu.testing.machines import Machines

pytestmark = pytest.mark.slow


def test_who_looks_the_moment_a_machine_is_taken_away_hears_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is dead, the watcher has not yet written the reason: `record` waits for it and notes none of its own."""
    machines = Machines(tmp_path)
    machines.start("m-1", ["sleep", "60"])
    try:
        until = time.monotonic() + 20
        while not watcher.watched(machines.host, "m-1"):
            assert time.monotonic() < until
            time.sleep(0.02)
        looks = 0

        def watched(host: object, name: str) -> bool:
            """The watcher writes while it is being waited for, and leaves."""
            nonlocal looks
            looks += 1
            if looks == 2:
                watcher.note_end(machines.host, name, "session_expired")
            return looks < 3

        # the real watcher stands aside: only the one above may write
        monkeypatch.setattr(machines.host, "alive", lambda name: False)
        monkeypatch.setattr(watcher, "watched", watched)
        assert machines.record("m-1")["reason"] == "session_expired"
    finally:
        monkeypatch.undo()
        machines.close()

"""`status` with every platform connected, through the command line: one that hangs holds it up no longer than it may."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_platform_pairs import PLATFORMS, at_home, made, use
from tests.servers.rigs import Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: the most that a platform which hangs may add, and what a loaded machine adds to that, seconds
ALLOWED_S, SLACK_S = 5.0, 2.0


@contextlib.contextmanager
def connected(user: Any, tmp_path: Path) -> Iterator[dict[str, Rig]]:
    """A user with all five, each of which answered once."""
    store = tmp_path / "shared store"
    store.mkdir()
    with contextlib.ExitStack() as stack:
        rigs = {
            platform: stack.enter_context(made(platform, tmp_path / platform, user))
            for platform in PLATFORMS
        }
        at_home(user, tmp_path, *rigs.values())
        use(user, store, *rigs.values())

        def all_told() -> bool:
            rows = status(user)
            return all(row["card"] and not row["known_at"] for row in rows.values())

        user.until(all_told, 150)
        yield rigs


def status(user: Any) -> dict[str, Any]:
    """Rows of `status --json` by platform."""
    data = user.ok("status", "--json").json["data"]
    return {row["name"]: row for row in data["platforms"]}


def answered_s(user: Any) -> float:
    """What `status` takes here and now when every platform answers: the clients' imports, and what else runs."""
    return max(timed(user, "status", "--json")[1] for _ in range(2))


def timed(user: Any, *words: str) -> tuple[Any, float]:
    begun = time.monotonic()
    ran = user.ok(*words)
    return ran, time.monotonic() - begun


def test_one_that_hangs_is_shown_as_it_was_and_holds_up_nobody(user: Any, tmp_path: Path) -> None:
    """Lightning takes the connection and is silent: its last offers and their age are shown, the others are fresh."""
    with connected(user, tmp_path) as rigs:
        base = answered_s(user)
        rigs["lightning"].server.set_faults(hang_s=60)  # type: ignore[attr-defined]
        ran, took = timed(user, "status", "--json")
        assert took < base + ALLOWED_S + SLACK_S
        data = ran.json["data"]
        rows = {row["name"]: row for row in data["platforms"]}
        assert len(rows) == len(PLATFORMS)
        assert rows["lightning"]["card"]
        assert rows["lightning"]["known_at"]
        for name, row in rows.items():
            assert name == "lightning" or (row["card"] and not row["known_at"]), row
        assert any(problem.startswith("lightning: no answer") for problem in data["problems"])
        ran, took = timed(user, "status")
        assert took < base + ALLOWED_S + SLACK_S
        lines = [line for line in ran.out.splitlines() if line.lstrip().startswith("lightning")]
        assert any("ago" in line for line in lines), ran.out
        rigs["lightning"].server.set_faults(hang_s=None)  # type: ignore[attr-defined]


def test_offline_the_last_known_state_is_shown_with_its_age(user: Any, tmp_path: Path) -> None:
    """Every platform is dead: what each one offered last, and when that was, within the same time."""
    with connected(user, tmp_path):
        base = answered_s(user)
    ran, took = timed(user, "status", "--json")
    assert took < base + ALLOWED_S + SLACK_S
    rows = {row["name"]: row for row in ran.json["data"]["platforms"]}
    for name, row in rows.items():
        assert row["card"], row
        assert name == "local" or row["known_at"], row
    assert "ago" in user.ok("status").out

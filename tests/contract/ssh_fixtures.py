"""A machine behind a real sshd, and adapters that reach it, for tests that need more than the suite gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.ssh import SshAdapter
from freegpu.clock import SystemClock
from freegpu.testing.suites import Stage
from tests.contract.sshd import SshHost

Make = Callable[..., SshAdapter]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    """One machine; the test's HOME is the home of the person who connects, and nobody's agent runs."""
    server = SshHost(tmp_path / "host")
    server.start()
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield server
    server.stop()
    server.kill()


@pytest.fixture
def make(host: SshHost, tmp_path: Path) -> Iterator[Make]:
    """Adapters of one freegpu home, as separate commands would make them."""
    made: list[SshAdapter] = []

    def build(**options: Any) -> SshAdapter:
        home = options.pop("home", tmp_path / "freegpu")
        given = {"host": host.host, **options}
        made.append(SshAdapter.from_options("lab", given, home=home, clock=SystemClock()))
        return made[-1]

    yield build
    for adapter in made:
        adapter.close()


@pytest.fixture
def stage(host: SshHost, make: Make, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose sessions the machine takes with it."""
    made = Stage(tmp_path / "stage", lambda home: make(home=home))
    yield made
    (made.folder / "leave").touch()


def within(seconds: float, what: Callable[[], Any]) -> None:
    """It must be over in time, however it ends."""
    began = time.monotonic()
    what()
    assert time.monotonic() - began < seconds

"""What the tests of Lightning share: a server, the environment of a user, and an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Launch
from freegpu.adapters.lightning import LightningAdapter
from freegpu.clock import SystemClock
from freegpu.testing.lightning_server import LightningServer
from freegpu.testing.suites import Stage

__all__ = ["launch", "made", "server", "stage"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LightningServer]:
    with LightningServer(tmp_path / "lightning") as server:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("LIGHTNING_USER_ID", "usr-1")
        monkeypatch.setenv("LIGHTNING_API_KEY", server.key)
        monkeypatch.setenv("LIGHTNING_CLOUD_URL", server.url)
        yield server


def made(home: Path, **options: Any) -> LightningAdapter:
    given = {"timeout_s": 2.0, **options}
    return LightningAdapter.from_options("lightning", given, home=home, clock=SystemClock())


@pytest.fixture
def stage(server: LightningServer, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "stage", made)
    yield stage
    server.set_faults(**dict.fromkeys(server._faults(), None))
    stage.close()


def launch(stage: Stage, key: str = "s-1") -> Launch:
    return stage.launch(key)

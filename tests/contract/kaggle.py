"""What the tests of Kaggle share: a server, the environment of a user, and an adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.kaggle import KaggleAdapter
from freegpu.clock import SystemClock
from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.suites import Stage

__all__ = ["ADAPTER", "canary", "made", "server", "stage", "user"]

#: by its class: the entry point belongs to the package that is installed
ADAPTER = "freegpu.adapters.kaggle:KaggleAdapter"


def user(server: KaggleServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell of somebody who keeps an access token; no other address than the server's can be reached."""
    for name in (
        "API_TOKEN",
        "USERNAME",
        "KEY",
        "CONFIG_DIR",
        "API_ENVIRONMENT",
        "KERNEL_RUN_TYPE",
    ):
        monkeypatch.delenv(f"KAGGLE_{name}", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KAGGLE_API_TOKEN", server.token)
    monkeypatch.setenv("FREEGPU_KAGGLE_ENDPOINT", server.url)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleServer]:
    with KaggleServer(tmp_path / "kaggle") as server:
        user(server, tmp_path, monkeypatch)
        yield server


def made(home: Path, **options: Any) -> KaggleAdapter:
    given = {"timeout_s": 2.0, **options}
    return KaggleAdapter.from_options("kaggle", given, home=home, clock=SystemClock())


@pytest.fixture
def stage(server: KaggleServer, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "stage", made)
    yield stage
    server.set_faults(**dict.fromkeys(server._faults(), None))
    server.html.clear()
    server.instead.clear()
    stage.close()


def canary(server: KaggleServer, word: str) -> set[str]:
    """The operations whose request held this word anywhere."""
    return {
        heard.operation
        for heard in server.requests
        if word.encode() in heard.body or word in f"{heard.path}{heard.query}{heard.headers}"
    }

"""Lightning AI keeps the contract of a platform, against its loopback server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing.lightning_server import LightningServer
from freegpu.testing.suites import AdapterSuite


class TestLightning(AdapterSuite):
    """Every rule of the suite, with jobs that really run on the server's machines."""

    name = "lightning"
    adapter = "lightning"
    credentials = ("key-of-lightning",)

    @pytest.fixture(autouse=True)
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LightningServer]:
        with LightningServer(tmp_path / "lightning") as server:
            monkeypatch.setenv("LIGHTNING_USER_ID", "usr-1")
            monkeypatch.setenv("LIGHTNING_API_KEY", server.key)
            monkeypatch.setenv("LIGHTNING_CLOUD_URL", server.url)
            yield server

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"teamspace": "ada/lab"}

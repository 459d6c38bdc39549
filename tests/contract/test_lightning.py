"""Lightning AI keeps the contract of a platform, against its loopback server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Launch, Offer
from freegpu.adapters.lightning import LightningAdapter
from freegpu.agent import wire
from freegpu.clock import SystemClock
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


def test_the_request_is_the_golden_one(tmp_path: Path) -> None:
    """All that is asked of the platform; a change of it is looked at. UPDATE_GOLDEN=1 writes it anew."""
    offer = Offer(
        platform="lightning", account="ada/lab", card="T4", vram_gb=16, pool="credits", rate=0.55
    )
    profile = wire.Profile(
        session="s-1",
        home="h-1",
        platform="lightning",
        key="ab" * 32,
        store="s3://bucket",
        work="work",
        slots=(wire.Slot(index=0, card="T4", gpus=("0",), vram_gb=16.0, precision="fp16"),),
        limit_s=3600.0,
    )
    launch = Launch(
        key="s-1",
        offer=offer,
        profile=profile,
        agent_path="/h/agent.pyz",
        agent_sha256="0" * 64,
        agent_key="agent/a.pyz",
    )
    adapter = LightningAdapter.from_options(
        "lightning", {"teamspace": "ada/lab"}, home=tmp_path, clock=SystemClock()
    )
    told = json.dumps(adapter.render(launch).payload, indent=1, sort_keys=True) + "\n"
    path = Path(__file__).parents[1] / "golden" / "lightning-request.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(told)
    assert told == path.read_text()

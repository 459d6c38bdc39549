"""Kaggle keeps the contract of a platform in both ways of carrying, against its loopback server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Launch, Offer
from freegpu.adapters.kaggle import KaggleAdapter
from freegpu.agent import wire
from freegpu.clock import SystemClock
from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.suites import AdapterSuite
from tests.contract.kaggle import ADAPTER, user


class _Kaggle(AdapterSuite):
    name = "kaggle"
    adapter = ADAPTER
    credentials = ("KGAT_token-of-kaggle", "key-of-kaggle")
    stop_erases = True

    @pytest.fixture(autouse=True)
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KaggleServer]:
        with KaggleServer(tmp_path / "kaggle") as server:
            user(server, tmp_path, monkeypatch)
            yield server


class TestSealed(_Kaggle):
    """Every rule of the suite, with kernels that really run, and nothing but what they were sent."""

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"account": "ada"}


class TestStore(_Kaggle):
    """The same with sessions that open the store themselves."""

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"carry": "store"}


@pytest.mark.parametrize("carry", ["sealed", "store"])
def test_the_request_is_the_golden_one(tmp_path: Path, carry: str) -> None:
    """All that is asked of the platform; a change of it is looked at. UPDATE_GOLDEN=1 writes it anew."""
    offer = Offer(
        platform="kaggle", account="ada", card="T4", count=2, vram_gb=16, pool="gpu",
        session_limit_s=42300.0,
    )  # fmt: skip
    profile = wire.Profile(
        session="s-1",
        home="h-1",
        platform="kaggle",
        key="ab" * 32,
        store="s3://bucket",
        work="work",
        slots=tuple(
            wire.Slot(index=i, card="T4", gpus=(str(i),), vram_gb=16.0, precision="fp16")
            for i in range(2)
        ),
        limit_s=42300.0,
    )
    launch = Launch(
        key="s-1",
        offer=offer,
        profile=profile,
        agent_path="/h/agent.pyz",
        agent_sha256="0" * 64,
        agent_key="agent/a.pyz",
        tree="/h/tree" if carry == "sealed" else "",
    )
    adapter = KaggleAdapter.from_options(
        "kaggle", {"carry": carry}, home=tmp_path, clock=SystemClock()
    )
    told = json.dumps(adapter.render(launch).payload, indent=1, sort_keys=True) + "\n"
    path = Path(__file__).parents[1] / "golden" / f"kaggle-request-{carry}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(told)
    assert told == path.read_text()

"""What tests of Colab share: a loopback Colab that this process and its children reach, and an adapter with a home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu.adapters.colab import ColabAdapter
from freegpu.clock import SystemClock
from freegpu.testing.colab_server import ColabServer
from freegpu.testing.platform_server import FAULTS
from freegpu.testing.suites import Stage
from tests.servers.colab_cli import colab_program

ACCEPTED = {"accepted": "free-unattended-use"}


@pytest.fixture(name="colab")
def colab_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ColabServer]:
    """A loopback Colab; whoever asks for another host has failed the test."""
    with ColabServer(tmp_path / "colab") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield server
        assert server.refused == []


@pytest.fixture(name="stage")
def stage_fixture(colab: ColabServer, tmp_path: Path) -> Iterator[Stage]:
    """The adapter with a home and a store."""
    options = {**ACCEPTED, "cli": colab_program(), "token": str(colab.folder / "token.json")}

    def make(home: Path) -> ColabAdapter:
        return ColabAdapter.from_options("colab-cli", options, home=home, clock=SystemClock())

    stage = Stage(tmp_path / "stage", make, patience_s=60)
    yield stage
    colab.set_faults(**dict.fromkeys(FAULTS))
    stage.close()


def posts(colab: ColabServer) -> int:
    """How often a runtime was asked for."""
    return sum(heard.operation == "assign" for heard in colab.requests)

"""Colab keeps the contract of a platform: Google's unmodified program against a loopback Colab with real kernels."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing.colab_server import ColabServer
from freegpu.testing.suites import AdapterSuite, Stage
from tests.contract.colab import colab_fixture
from tests.servers.colab_cli import colab_program

__all__ = ["colab_fixture"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class TestColab(AdapterSuite):
    """A free account with T4s."""

    name = "colab-cli"
    adapter = "colab-cli"
    patience_s = 60.0

    @pytest.fixture(autouse=True)
    def _colab(self, colab: ColabServer) -> None:
        """The server lives as long as the test's stage."""
        colab.set_account(most=3)

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {
            "accepted": "free-unattended-use",
            "cli": colab_program(),
            "token": str(folder / "colab" / "token.json"),
        }

    def test_it_offers_what_the_account_is_eligible_for(self, stage: Stage) -> None:
        """A T4 of the pool of compute units."""
        (offer,) = stage.adapter.offers()
        assert (offer.card, offer.count, offer.pool) == ("T4", 1, "ccu")

    def test_the_request_is_the_golden_one(self, stage: Stage) -> None:
        """What a start sends is read before it changes; UPDATE_GOLDEN=1 writes the file anew."""
        launch = stage.launch("s-golden")
        text = json.dumps(stage.adapter.render(launch).payload, indent=2, sort_keys=True)
        for said, stands in (
            (launch.profile.key, "KEY"),
            (launch.agent_path, "AGENT"),
            (launch.profile.work, "WORK"),
            (launch.profile.store, "STORE"),
        ):
            text = text.replace(said, stands)
        golden = Path(__file__).parents[1] / "golden" / "requests" / "colab.json"
        if os.environ.get("UPDATE_GOLDEN"):
            golden.parent.mkdir(parents=True, exist_ok=True)
            golden.write_text(text + "\n")
        assert text + "\n" == golden.read_text()

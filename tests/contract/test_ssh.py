"""A host behind a real sshd keeps the contract of a platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from freegpu.testing.machines import Hardware
from freegpu.testing.suites import AdapterSuite, PaperSuite, Stage
from freegpu.testing.suites.adapter import ODD_NAMES
from tests.contract.sshd import SshHost


class OnHost(PaperSuite):
    """One machine a test, reached with the test's own ~/.ssh and with nobody's agent."""

    name = "lab"
    adapter = "ssh"
    cards: ClassVar[Hardware | None] = None
    host: SshHost

    @pytest.fixture(autouse=True)
    def _host(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.host = SshHost(tmp_path / "host", cards=self.cards)
        self.host.start()
        monkeypatch.setenv("HOME", str(self.host.home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield
        self.host.stop()
        self.host.kill()

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"host": self.host.host}


class TestSshWithoutCards(OnHost, AdapterSuite):
    """A machine without a card gives its processor."""

    def test_it_offers_its_processor(self, stage: Stage) -> None:
        """CPU, one slot, no card's memory, no quota; one session a host."""
        (offer,) = stage.adapter.offers()
        assert (offer.card, offer.count, offer.vram_gb, offer.pool) == ("CPU", 1, 0.0, "")
        assert stage.adapter.capabilities.max_concurrent == 1
        assert not stage.adapter.capabilities.here

    @pytest.mark.parametrize("odd", ODD_NAMES, ids=ascii)
    def test_a_home_of_any_name_on_the_far_side_works(
        self, stage: Stage, tmp_path: Path, odd: str
    ) -> None:
        """The account's home there is a path like any other: data and never a command."""
        self.host.far = tmp_path / "homes" / odd
        self.host.far.mkdir(parents=True)
        self.host.surround()
        self._real_session(stage, "s-far")
        assert (self.host.sessions / "s-far" / "exit").read_text().strip() == "0"


class TestSshWithCards(OnHost):
    """Two T4s, as their driver names them."""

    cards = Hardware(count=2)

    def test_it_offers_them_together(self, stage: Stage) -> None:
        """One offer, two slots, with their devices."""
        (offer,) = stage.adapter.offers()
        assert (offer.card, offer.count, offer.devices) == ("T4", 2, ("0", "1"))
        assert 15 <= offer.vram_gb <= 16

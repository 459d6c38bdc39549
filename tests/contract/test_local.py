"""This machine keeps the contract of a platform, without cards and with whatever nvidia-smi may say."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from freegpu.adapters.local import LocalAdapter
from freegpu.testing.suites import AdapterSuite, PaperSuite, Stage


def nvidia_smi(folder: Path, prints: str) -> str:
    """A program that answers every question like this."""
    program = folder / "fake nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '%s' {shlex.quote(prints)}\n")
    program.chmod(0o755)
    return str(program)


class TestLocalWithoutCards(AdapterSuite):
    """A machine without a card gives its processor."""

    name = "local"
    adapter = "local"

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"nvidia_smi": str(folder / "there is no such program")}

    def test_it_offers_one_processor_slot(self, stage: Stage) -> None:
        """CPU, one slot, no memory of a card, no quota."""
        (offer,) = stage.adapter.offers()
        assert (offer.card, offer.count, offer.vram_gb, offer.pool) == ("CPU", 1, 0.0, "")
        assert stage.adapter.capabilities.max_concurrent == 1


class Paper(PaperSuite):
    """What needs no session: it was all tried without cards, and with cards nothing else is started."""

    name = "local"
    adapter = "local"
    prints: ClassVar[str]

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"nvidia_smi": nvidia_smi(folder, self.prints)}


class TestLocalWithOneCard(Paper):
    """One T4, as its driver names it."""

    prints = "0, Tesla T4, 15360, GPU-aaaa, 550.54.15\n"

    def test_it_offers_that_card(self, stage: Stage) -> None:
        """By the card table's name, with its index as the device."""
        (offer,) = stage.adapter.offers()
        assert (offer.card, offer.count, offer.devices) == ("T4", 1, ("0",))
        assert 15 <= offer.vram_gb <= 16


class TestLocalWithTwoEqualCards(Paper):
    """Two of one model are one session with two slots."""

    prints = (
        "0, NVIDIA A100-SXM4-40GB, 40960, GPU-a, 550.54\n"
        "1, NVIDIA A100-SXM4-40GB, 40960, GPU-b, 550.54\n"
    )

    def test_it_offers_them_together(self, stage: Stage) -> None:
        """One offer, two slots, one session at a time."""
        (offer,) = stage.adapter.offers()
        assert (offer.card, offer.count, offer.devices) == ("A100", 2, ("0", "1"))
        assert stage.adapter.capabilities.max_concurrent == 1


class TestLocalWithMixedCards(Paper):
    """Cards of different models are sessions of their own."""

    prints = (
        "0, NVIDIA GeForce RTX 3090, 24576, GPU-a, 550.54\n"
        "1, Tesla T4, 15360, GPU-b, 550.54\n"
        "2, NVIDIA GeForce RTX 3090, 24576, GPU-c, 550.54\n"
    )

    def test_it_offers_each_model_with_its_devices(self, stage: Stage) -> None:
        """The devices of a model need not be neighbours; both may run at once."""
        offers = {offer.card: offer.devices for offer in stage.adapter.offers()}
        assert len(offers) == 2
        assert offers["T4"] == ("1",)
        assert ("0", "2") in offers.values()
        assert stage.adapter.capabilities.max_concurrent == 2


def test_nvidia_smi_is_asked_once_a_command(tmp_path: Path) -> None:
    """It takes a second on some machines: offers and capabilities share one answer."""
    program = tmp_path / "counting"
    program.write_text("#!/bin/sh\necho asked >>\"$0.count\"\necho '0, Tesla T4, 15360, G, 1'\n")
    program.chmod(0o755)
    adapter = LocalAdapter("local", home=tmp_path, nvidia_smi=str(program))
    for _ in range(3):
        adapter.offers()
        _ = adapter.capabilities
    assert (tmp_path / "counting.count").read_text().splitlines() == ["asked"]

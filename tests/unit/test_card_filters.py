"""Hard filters: what a card cannot do at all, whatever its speed."""

from __future__ import annotations

import pytest

from freegpu import cards
from freegpu.cards import filters
from freegpu.jobs.model import Accelerator, Needs
from freegpu.orchestrator.spots import misfit

#: PyTorch 2.9 for CUDA 12.8, and 2.5 for CUDA 12.4, as torch.cuda.get_arch_list() tells
NEW = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
OLD = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")


@pytest.mark.parametrize(
    ("card", "archs", "runs"),
    [
        ("P100", NEW, False),
        ("P100", OLD, True),
        ("GTX1080Ti", OLD, True),
        ("M4000", ("sm_53",), False),
        ("V100", ("sm_75", "sm_80", "sm_86"), False),
        ("V100", NEW, True),
        ("T4", NEW, True),
        ("L4", NEW, True),
        ("RTXPRO6000", NEW, True),
        ("RTXPRO6000", OLD, False),
        ("RTXPRO6000", (*OLD, "compute_90"), True),
        ("K80", NEW, False),
        ("H100", ("sm_90a",), True),
        ("T4", (), True),
        ("T4", ("gfx90a",), True),
        ("Banana 9000", NEW, True),
        ("tpu-v5e-8", NEW, True),
        ("CPU", NEW, True),
    ],
)
def test_a_card_needs_kernels_of_its_major_number_or_code_that_is_compiled_there(
    card: str, archs: tuple[str, ...], runs: bool
) -> None:
    """sm_86 code runs on an L4 (8.9) and not on an H100; no list, or one in other words, refuses nothing."""
    assert (filters.no_kernels(card, archs) == "") is runs


def test_a_job_in_bf16_gets_no_card_that_emulates_it() -> None:
    """T4, V100, P100 and RTX 20 are out, even where they are named; cards that nobody knows are not."""
    for card in ("T4", "Tesla T4", "V100", "P100", "RTX2080Ti", "CPU"):
        assert "bf16" in filters.unfit(card, precision="bf16", named=True), card
        assert filters.unfit(card, precision="any") == "", card
    for card in ("L4", "A100", "RTX3060", "RTXPRO6000", "Banana 9000"):
        assert filters.unfit(card, precision="bf16") == "", card


def test_bf16_is_native_from_compute_capability_8_on() -> None:
    """The table holds no exception: NVIDIA brought bf16 with Ampere."""
    for name in cards.names():
        card = cards.find(name)
        assert card is not None
        if card.kind == "gpu":
            assert card.bf16_native is (cards.capability(card) >= (8, 0)), name


def test_a_chip_without_cuda_must_be_named() -> None:
    """A job that takes any card is a CUDA job."""
    for chip, runs in (
        ("tpu-v5e-8", "TPU"),
        ("tpu-v6e-1", "TPU"),
        ("Gaudi2", "HPU"),
        ("Intel(R) Data Center GPU Max 1550", "XPU"),
        ("Intel(R) Arc(TM) A770 Graphics", "XPU"),
        ("AMD Instinct MI300X", "ROCm"),
        # in no table, and still no card for a CUDA job
        ("Intel Arc Pro B50", "XPU"),
        ("AMD Radeon RX 6800", "ROCm"),
        ("v5p-8", "TPU"),
        ("Gaudi HL-335", "HPU"),
    ):
        reason = filters.unfit(chip)
        assert reason == f"it runs no CUDA ({runs}): such a chip must be asked for by name"
        assert filters.unfit(chip, named=True) == ""


@pytest.mark.parametrize("card", [*cards.names(), "Tesla K20m", "NVIDIA GH200", "Banana 9000"])
def test_a_card_of_nvidia_is_never_taken_for_another_makers(card: str) -> None:
    """And of the table's own cards the name alone tells no other kind than the table does."""
    facts = cards.find(card)
    assert cards.kind(card) == (facts.kind if facts else "gpu")
    assert (filters.not_asked_for(card, named=False) == "") is (cards.kind(card) in ("gpu", "cpu"))


def test_a_place_with_foreign_cards_gets_only_jobs_that_name_them() -> None:
    """As placement judges: by what the job needs and what the place offers."""
    anything, by_name = Needs(), Needs(accelerators=(Accelerator(card="Max1550"),))
    either = Needs(accelerators=(Accelerator(card="T4"), Accelerator(card="MI300X")))
    shapes = {
        name: (name, 0.0, 0.0, 0.0, 0.0, ())
        for name in ("T4", "Max1550", "MI300X", "Max 9999 Intel")
    }
    fits = {
        (label, name)
        for label, needs in (("any", anything), ("named", by_name), ("either", either))
        for name, shape in shapes.items()
        if not misfit(needs, shape)[0]
    }
    assert fits == {("any", "T4"), ("named", "Max1550"), ("either", "T4"), ("either", "MI300X")}


def test_a_named_card_is_the_jobs_own_matter() -> None:
    """Its setup may bring a PyTorch that still knows the card; a card that just happens to be free may not."""
    assert "sm_60" in filters.unfit("P100", archs=NEW)
    assert filters.unfit("P100", archs=NEW, named=True) == ""

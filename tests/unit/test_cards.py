"""The card table: names people and platforms write, speeds, precision."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from freegpu import cards

NAMES = {
    "Tesla T4": "T4",
    "t4": "T4",
    " T4 ": "T4",
    "NvidiaTeslaT4": "T4",
    "NvidiaTeslaT4Highmem": "T4",
    "T4 x2": "T4",
    "nvidia-tesla-p100": "P100",
    "Tesla P100-PCIE-16GB": "P100",
    "Tesla V100-SXM2-16GB": "V100",
    "Tesla V100-SXM2-32GB": "V100-32GB",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100 80GB PCIe": "A100-80GB-PCIe",
    "A100-80GB": "A100-80GB",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "nvidia-h100-80gb": "H100",
    "NVIDIA L4": "L4",
    "NvidiaL4X1": "L4",
    "NVIDIA L40S": "L40S",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA GeForce RTX 3060": "RTX3060",
    "NVIDIA GeForce RTX 3060 Ti": "RTX3060Ti",
    "NVIDIA GeForce RTX 3050 6GB Laptop GPU": "RTX3050",
    "4090": "RTX4090",
    "2080 Ti": "RTX2080Ti",
    "NVIDIA GeForce GTX 1660 SUPER": "GTX1660S",
    "NVIDIA GeForce RTX 2070 with Max-Q Design": "RTX2070-MaxQ",
    "Quadro RTX 6000": "RTX6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX6000-Ada",
    "NVIDIA RTX A6000": "A6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000",
    "RTX PRO 6000 Blackwell Workstation Edition": "RTXPRO6000",
    "NvidiaRtxPro6000": "RTXPRO6000",
    "G4": "RTXPRO6000",
    "tpu-v5e-8": "tpu-v5e-8",
    "TpuV5E8": "tpu-v5e-8",
    "V5E1": "tpu-v5e-1",
    "Quadro M4000": "M4000",
    "CPU": "CPU",
    "cpu": "CPU",
}

CLASSES = (
    "train-fp32-cnn",
    "train-fp32-seq",
    "train-amp-cnn",
    "train-amp-seq",
    "infer-fp32",
    "infer-fp16",
    "infer-int8",
    "llm-decode",
)


@pytest.mark.parametrize(("written", "canonical"), NAMES.items())
def test_a_card_is_found_by_what_people_and_platforms_call_it(written: str, canonical: str) -> None:
    """Makers, form factors, editions, case and separators do not matter."""
    card = cards.find(written)
    assert card is not None
    assert card.name == canonical


@pytest.mark.parametrize(
    "written",
    ["", "x1", "banana", "T5", "L4-48GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "RTX", "T4" * 500],
)
def test_what_is_no_whole_card_of_the_table_is_not_found(written: str) -> None:
    """A slice of a card, another memory size and nonsense are unknown rather than taken for something near."""
    assert cards.find(written) is None


def test_every_canonical_name_finds_itself() -> None:
    """names() lists the names that find() gives back."""
    assert cards.names() == tuple(sorted(cards.names()))
    for name in cards.names():
        card = cards.find(name)
        assert card is not None
        assert card.name == name


def test_no_two_cards_share_a_name() -> None:
    """An alias leads to one card: the table itself is consistent, and every source is explained."""
    path = Path(cards.__file__).with_name("cards.json")
    table = json.loads(path.read_text(encoding="utf-8"))
    seen: dict[str, str] = {}
    for row in table["cards"]:
        for word in (row["name"], *row.get("aliases", ())):
            folded = "".join(c for c in word.casefold() if c.isalnum())
            assert seen.setdefault(folded, row["name"]) == row["name"], word
        assert set(row["source"].split()) <= set(table["sources"]), row["name"]


def test_a_speed_is_the_model_of_rate_and_bandwidth() -> None:
    """Told by hand for an L4 in mixed precision: (68.83/41.93)^0.325 (300/320)^0.675."""
    assert cards.speed("L4", "train-amp-cnn") == pytest.approx(
        (68.83 / 41.93) ** 0.325 * (300 / 320) ** 0.675
    )
    assert cards.speed("L4", "llm-decode") == pytest.approx((300 / 320) ** 0.5)
    assert cards.speed("P100", "train-amp-seq") < 1 < cards.speed("V100", "train-amp-seq")


def test_a_t4_has_speed_one_in_every_class() -> None:
    """Everything is relative to a T4."""
    for workload in cards.WORKLOADS:
        assert cards.speed("Tesla T4", workload) == pytest.approx(1.0)


def test_general_is_the_geometric_mean_of_the_training_classes() -> None:
    """A job that names no class is taken for training; so is one with a class that no table has."""
    product = 1.0
    for workload in CLASSES[:4]:
        product *= cards.speed("L4", workload)
    assert cards.speed("L4", "general") == pytest.approx(product**0.25)
    assert cards.speed("L4", "knitting") == cards.speed("L4", "general")


def test_an_unknown_card_counts_as_half_a_t4() -> None:
    """A known card is preferred to a guess."""
    assert cards.speed("Banana 9000") == cards.UNKNOWN_SPEED == 0.5


def test_every_card_has_a_speed_above_zero_and_a_cpu_is_slower_than_any_gpu() -> None:
    """Division by a speed is always safe."""
    gpus = [n for n in cards.names() if (card := cards.find(n)) is not None and card.kind == "gpu"]
    for workload in cards.WORKLOADS:
        slowest = min(cards.speed(name, workload) for name in gpus)
        assert 0 < cards.speed("CPU", workload) < slowest


def test_the_smaller_card_with_the_same_chip_is_not_faster() -> None:
    """Twins stay in order in every class."""
    for workload in cards.WORKLOADS:
        assert cards.speed("A100", workload) <= cards.speed("A100-80GB", workload)
        assert cards.speed("V100-32GB", workload) == pytest.approx(cards.speed("V100", workload))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100", "bf16"),
        ("L4", "bf16"),
        ("tpu-v5e-8", "bf16"),
        ("T4", "fp16"),
        ("V100", "fp16"),
        ("RTX2060", "fp16"),
        ("P100", "fp32"),
        ("GTX1660S", "fp32"),
        ("GTX1650", "fp32"),
        ("CPU", "fp32"),
        ("Banana 9000", "fp32"),
    ],
)
def test_precision_is_what_the_card_does_fast(name: str, expected: str) -> None:
    """bf16 only where it is native: a T4 emulates it at a twentieth; GTX 16xx crawls in fp16."""
    assert cards.precision(name) == expected
    card = cards.find(name)
    assert card is None or cards.precision(card) == expected


def test_capability_is_a_pair_of_numbers() -> None:
    """It compares as CUDA's does: 12.0 is above 9.0."""
    assert cards.capability("T4") == (7, 5)
    assert cards.capability("RTXPRO6000") == (12, 0)
    assert cards.capability("tpu-v5e-8") == cards.capability("Banana 9000") == (0, 0)


def test_a_better_card_of_the_same_kind_fulfils_a_wish() -> None:
    """Who asks for an A100 is content with 80 GB; who asks for 80 GB is not content with 40."""
    assert cards.fulfils("A100-80GB", "A100")
    assert not cards.fulfils("A100", "A100-80GB")
    assert cards.fulfils("NVIDIA A100 80GB PCIe", "a100-80gb")
    assert not cards.fulfils("T4", "L4")
    assert cards.fulfils("Odd Card", "odd card")
    assert not cards.fulfils("Odd Card", "T4")


def test_importing_the_card_table_reads_no_file_and_no_heavy_module() -> None:
    """The table is read on first use; the command line imports this module at every start."""
    code = (
        "import sys\n"
        "from freegpu import cards\n"
        "assert cards._table.cache_info().currsize == 0\n"
        "heavy = {'pydantic', 'sqlalchemy', 'rich', 'click', 'yaml', 'importlib.metadata'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "cards.find('T4')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("workload", cards.WORKLOADS)
def test_no_card_of_the_table_stands_still(workload: str) -> None:
    """Where nobody knows a card's rates its bandwidth counts: a job that names a Gaudi1 would else never end."""
    assert min(cards.speed(name, workload) for name in cards.names()) > 0.01

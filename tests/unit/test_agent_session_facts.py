"""What a session tells about its machine: cards, problems, a full disk."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from freegpu.agent import gpu, preflight, wire
from freegpu.agent.disk import LOW, RESERVE, DiskWatch
from freegpu.cards.filters import runs_on

TWO_T4 = """1, Tesla T4, 15360, GPU-b, 535.104.05
0, Tesla T4, 15360, GPU-a, 535.104.05
"""
T4 = (
    wire.Slot(0, "T4", ("0",), vram_gb=15.0, precision="fp16"),
    wire.Slot(1, "T4", ("GPU-b",), vram_gb=15.0, precision="fp16"),
)


def profile(slots: tuple[wire.Slot, ...], work: Path) -> wire.Profile:
    return wire.Profile("s-1", "h", "tests", "00", "folder:/x", str(work), slots, limit_s=60.0)


def answers(smi: str, torch: object = None) -> gpu.Runner:
    def run(command: Sequence[str]) -> str:
        if command[0] == "nvidia-smi":
            return smi
        return "warning\nFREEGPU_TORCH " + json.dumps(torch) + "\n" if torch else ""

    return run


def test_cards_are_read_by_index() -> None:
    """In the order of their numbers, whatever the order of the lines."""
    assert gpu.parse(TWO_T4) == [
        gpu.Card(0, "Tesla T4", 15360, "GPU-a", "535.104.05"),
        gpu.Card(1, "Tesla T4", 15360, "GPU-b", "535.104.05"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "No devices were found",
        "a, b",
        "x, Tesla T4, 15360, GPU-a, 535",
        "0, , 15360, GPU-a, 535",
    ],
)
def test_an_answer_in_other_words_means_no_cards(text: str) -> None:
    """A broken driver prints sentences."""
    assert gpu.parse(text) == []
    assert gpu.parse_use(text) == []


def test_memory_that_is_not_told_is_zero() -> None:
    """MIG parents say [N/A]."""
    assert gpu.parse("0, NVIDIA A100, [N/A], GPU-a, 550")[0].memory_mb == 0


def test_use_is_read_and_what_is_not_told_is_zero() -> None:
    """Percent and MiB."""
    assert gpu.parse_use("0, 97, 1024, 15360\n1, [N/A], [N/A], 15360\n") == [
        {"index": 0, "util": 97, "mem_used_mb": 1024, "mem_total_mb": 15360},
        {"index": 1, "util": 0, "mem_used_mb": 0, "mem_total_mb": 15360},
    ]


@pytest.mark.parametrize(
    "command", [["no-such-program-here"], ["false"], ["sh", "-c", "sleep 60"], ["/"]]
)
def test_a_command_that_is_not_there_fails_or_hangs_says_nothing(command: list[str]) -> None:
    """Never an error: many sessions have no card."""
    assert gpu.run(command, timeout_s=0.2) == ""


def test_sampling_gives_up_when_nobody_answers() -> None:
    """Three times; a card that falls silent for a moment is asked again."""
    told = ["", "", "0, 5, 1, 2\n", "", "", ""]
    sampler = gpu.Sampler(run=lambda command: told.pop(0))
    waits = [sampler.step() for _ in range(6)]
    assert waits == [15.0] * 5 + [None]
    assert sampler.latest == []


@pytest.mark.parametrize(
    ("asked", "name", "same"),
    [
        ("T4", "Tesla T4", True),
        ("A100", "NVIDIA A100-SXM4-40GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("L4", "NVIDIA L4", True),
        ("L4", "NVIDIA L40S", False),
        ("T4", "Tesla P100-PCIE-16GB", False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
    ],
)
def test_a_drivers_name_is_compared_word_by_word(asked: str, name: str, same: bool) -> None:
    """L4 is not L40."""
    assert preflight.same_card(asked, name) is same


def test_a_session_with_the_cards_that_were_asked_for_has_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By index and by UUID; torch is asked in a process of its own."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    card = {"index": 0, "name": "Tesla T4", "capability": [7, 5], "works": True}
    torch = {"version": "2.9", "arch_list": ["sm_75", "sm_80"], "cards": [card, card]}
    found = preflight.facts(profile(T4, tmp_path), answers(TWO_T4, torch))
    assert found["problems"] == []
    assert [slot["seen"] for slot in found["slots"]] == ["Tesla T4", "Tesla T4"]
    assert all(slot["matches"] for slot in found["slots"])
    assert found["torch"] == torch
    assert wire.unpack(wire.pack(found, b"k"), b"k")["cpus"] >= 1


def test_another_card_no_card_and_a_card_that_does_not_work_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In words for a person; the orchestrator decides what follows."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    smi = "0, Tesla P100-PCIE-16GB, 16384, GPU-a, 535\n"
    cards = [
        {"index": 0, "name": "Tesla P100", "capability": [6, 0], "works": True},
        {"index": 1, "name": "X", "capability": [9, 0], "works": False, "error": "no kernel image"},
    ]
    torch = {"version": "2.9", "arch_list": ["sm_75"], "cards": cards}
    found = preflight.facts(profile(T4, tmp_path), answers(smi, torch))
    assert found["problems"] == [
        "slot 0: T4 was asked for, Tesla P100-PCIE-16GB came",
        "slot 1: T4 was asked for, no card was found",
        "this PyTorch is not built for Tesla P100 (sm_60)",
        "PyTorch cannot use X: no kernel image",
    ]
    nothing = preflight.facts(profile(T4, tmp_path), answers(smi, {**torch, "cards": []}))
    assert "PyTorch 2.9 sees no card" in nothing["problems"]


@pytest.mark.parametrize("capability", [(6, 0), (7, 5), (8, 6), (8, 9), (9, 0), (12, 0)])
@pytest.mark.parametrize(
    "archs", [["sm_75", "sm_80", "sm_86"], ["sm_90"], ["sm_50", "compute_90"], ["sm_100", "sm_120"]]
)
def test_what_a_build_runs_on_is_the_card_tables_rule(
    capability: tuple[int, int], archs: list[str]
) -> None:
    """An L4 (8.9) takes sm_86 code: the agent once told every L4's user that PyTorch was not built for it."""
    card = {"index": 0, "name": "X", "capability": list(capability), "works": True}
    found = preflight.problems([], [], {"arch_list": archs, "cards": [card]})
    assert (found == []) is runs_on(capability, archs)


def test_a_cpu_session_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hello comes at once; torch's seconds are only spent where there is a card."""
    monkeypatch.setattr("shutil.which", lambda name: None)

    def run(command: Sequence[str]) -> str:
        raise AssertionError(command)

    found = preflight.facts(profile((wire.Slot(0, "CPU"),), tmp_path), run)
    assert (found["cards"], found["torch"], found["problems"]) == ([], None, [])


def test_the_question_to_torch_is_valid_python() -> None:
    """It only runs where torch is; a slip in it would never show elsewhere."""
    compile(preflight._TORCH, "torch", "exec")


def test_a_full_disk_is_told_once_and_the_reserve_given_up(tmp_path: Path) -> None:
    """The job's next print gets that room; when there is room again, the reserve comes back."""
    told: list[str] = []
    free = [10 * LOW]
    watch = DiskWatch(tmp_path, lambda code, detail: told.append(code), free=lambda: free[0])
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= RESERVE
    for _ in range(3):
        watch.look()
    assert told == []
    free[0] = LOW - 1
    for _ in range(3):
        watch.look()
    assert told == ["disk_full"]
    assert not (tmp_path / "reserve").exists()
    free[0] = 2 * LOW
    watch.look()
    assert told == ["disk_full"], "not yet enough to call it over"
    free[0] = 10 * LOW
    watch.look()
    assert told == ["disk_full", "disk_back"]
    watch.close()
    assert list(tmp_path.iterdir()) == []


def test_detect_is_what_the_local_platform_sees() -> None:
    """The same function on both sides; here with the real runner, whatever this machine has."""
    cards = gpu.detect()
    assert cards == sorted(cards, key=lambda card: card.index)
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False)
    except FileNotFoundError:
        assert cards == []
    else:
        assert len(cards) == listed.stdout.count(b"UUID")

"""The PyTorch example: interrupted and resumed on a processor, the same weights to the bit."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.example_runs import JOBS, SAVED_AND_RESUMABLE, Example

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("torch", "numpy")),
        reason="torch and numpy are not installed here: pip install -r jobs/torch-cnn/requirements.txt",
    ),
]

SMALL = ("--images=400", "--epochs=3", "--batch-size=32", "--width=8", "--device=cpu")


def training(home: Path, *more: str, **variables: str) -> Example:
    """Return a small run that saves after every step."""
    script = JOBS / "torch-cnn" / "train.py"
    environment = {"OMP_NUM_THREADS": "1", **variables}
    return Example(script, home, environment, (*SMALL, "--save-every=0", *more))


def weights(run: Example) -> dict[str, Any]:
    """Return the model it made."""
    torch = import_module("torch")
    loaded: dict[str, Any] = torch.load(run.outputs / "model.pt", weights_only=True)
    return loaded


def assert_same(one: Example, other: Example) -> None:
    """Compare weights and metrics, every bit."""
    torch = import_module("torch")
    left, right = weights(one), weights(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
    assert one.results()["metrics.json"] == other.results()["metrics.json"]


def saves(run: Example, count: int) -> Callable[[], bool]:
    """Return a condition: the checkpoint was replaced that many times."""
    path = run.checkpoint / "state.pt"
    seen: set[int] = set()

    def enough() -> bool:
        try:
            seen.add(path.stat().st_mtime_ns)
        except FileNotFoundError:
            return False
        return len(seen) > count

    return enough


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A run that nothing happened to."""
    run = training(tmp_path_factory.mktemp("undisturbed"))
    assert run.run() == 0, run.log
    return run


def test_stopped_by_sigterm_and_resumed_the_weights_are_the_same(
    tmp_path: Path, undisturbed: Example
) -> None:
    """SIGTERM in the middle of an epoch saves all that the next step depends on, and exits 75."""
    run = training(tmp_path)
    for count in (4, 9):
        assert run.interrupt(saves(run, count), signal.SIGTERM) == SAVED_AND_RESUMABLE, run.log
    assert run.run() == 0, run.log
    assert run.log.count("resumed at step") == 2
    assert_same(run, undisturbed)


def test_killed_and_resumed_the_weights_are_the_same(tmp_path: Path, undisturbed: Example) -> None:
    """SIGKILL, also in the middle of a save, leaves the last whole checkpoint to go on from."""
    run = training(tmp_path)
    half = run.checkpoint / "state.pt.tmp"
    enough = saves(run, 5)
    assert run.interrupt(lambda: enough() and half.exists(), signal.SIGKILL) == -signal.SIGKILL
    assert run.run() == 0, run.log
    assert "resumed at step" in run.log
    assert_same(run, undisturbed)


def test_how_often_it_saves_does_not_change_the_weights(
    tmp_path: Path, undisturbed: Example
) -> None:
    """Saving draws nothing and changes nothing."""
    run = training(tmp_path, "--save-every=1000")
    assert run.run() == 0, run.log
    assert_same(run, undisturbed)


def test_in_bf16_a_resumed_run_is_the_same_too(tmp_path: Path) -> None:
    """Mixed precision rounds more, and rounds the same way each time."""
    whole = training(tmp_path / "whole", FREEGPU_PRECISION="bf16")
    assert whole.run() == 0, whole.log
    assert "cpu, bf16" in whole.log
    run = training(tmp_path / "stopped", FREEGPU_PRECISION="bf16")
    assert run.interrupt(saves(run, 3), signal.SIGTERM) == SAVED_AND_RESUMABLE, run.log
    assert run.run() == 0, run.log
    assert_same(run, whole)


def test_a_run_may_continue_at_another_precision(tmp_path: Path) -> None:
    """The next card may do another precision: the state carries over, the rounding is its own."""
    run = training(tmp_path, FREEGPU_PRECISION="bf16")
    assert run.interrupt(saves(run, 3), signal.SIGTERM) == SAVED_AND_RESUMABLE, run.log
    assert run.run(FREEGPU_PRECISION="fp32") == 0, run.log
    assert "cpu, fp32" in run.log


def test_images_of_ones_own_are_read_from_an_npz(tmp_path: Path) -> None:
    """--data takes grey images as N x H x W whole numbers, with their labels."""
    np = import_module("numpy")
    dice = np.random.default_rng(0)
    labels = np.arange(200) % 3
    images = (dice.integers(0, 60, (200, 16, 16)) + 60 * labels[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", images=images, labels=labels)
    run = training(tmp_path / "run", f"--data={tmp_path / 'grey.npz'}", "--save-every=1000")
    assert run.run() == 0, run.log
    assert json.loads(run.results()["metrics.json"])["accuracy"] > 0.5

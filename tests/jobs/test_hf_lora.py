"""The LoRA example: interrupted and resumed on a processor, the same adapter to the bit."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.example_runs import JOBS, SAVED_AND_RESUMABLE, Example

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(
            importlib.util.find_spec(name)
            for name in ("torch", "transformers", "peft", "accelerate")
        ),
        reason="transformers and peft are not installed here: "
        "pip install -r jobs/hf-lora/requirements.txt",
    ),
]

SMALL = ("--steps=24", "--save-steps=4", "--batch-size=4", "--length=32")


def training(home: Path) -> Example:
    """Return a small run without a network to look anything up in."""
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return Example(JOBS / "hf-lora" / "train.py", home, environment, SMALL)


def result(run: Example) -> tuple[bytes, bytes]:
    """Return the adapter's weights and the metrics."""
    adapter = run.outputs / "adapter" / "adapter_model.safetensors"
    return adapter.read_bytes(), (run.outputs / "metrics.json").read_bytes()


def saved(run: Example, step: int) -> Callable[[], bool]:
    """Return a condition: the Trainer has finished the checkpoint of that step."""
    state = run.checkpoint / f"checkpoint-{step}" / "trainer_state.json"
    return lambda: state.exists() and state.read_bytes().rstrip().endswith(b"}")


def checkpoints(run: Example) -> list[str]:
    """Return the names of the checkpoints there are."""
    return sorted(path.name for path in run.checkpoint.glob("checkpoint-*"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A run that nothing happened to."""
    run = training(tmp_path_factory.mktemp("undisturbed"))
    assert run.run() == 0, run.log
    return run


def test_only_the_newest_two_checkpoints_are_kept(undisturbed: Example) -> None:
    """What is copied away does not grow with the length of the run."""
    assert checkpoints(undisturbed) == ["checkpoint-20", "checkpoint-24"]


def test_stopped_by_sigterm_and_resumed_the_adapter_is_the_same(
    tmp_path: Path, undisturbed: Example
) -> None:
    """SIGTERM saves after the current step, exits 75, and leaves no trace in the result."""
    run = training(tmp_path)
    assert run.interrupt(saved(run, 4), signal.SIGTERM) == SAVED_AND_RESUMABLE, run.log
    assert "stopped: saved at step" in run.log
    assert run.run() == 0, run.log
    assert "resuming from checkpoint-" in run.log
    assert result(run) == result(undisturbed)


def test_killed_and_resumed_the_adapter_is_the_same(tmp_path: Path, undisturbed: Example) -> None:
    """SIGKILL loses the steps since the checkpoint; doing them again gives what they gave."""
    run = training(tmp_path)
    assert run.interrupt(saved(run, 8), signal.SIGKILL) == -signal.SIGKILL, run.log
    assert run.run() == 0, run.log
    assert "resuming from checkpoint-" in run.log
    assert result(run) == result(undisturbed)


def test_a_torn_checkpoint_is_passed_over_and_removed(tmp_path: Path, undisturbed: Example) -> None:
    """The highest number is not enough: without its last file a checkpoint was never finished."""
    run = training(tmp_path)
    assert run.interrupt(saved(run, 4), signal.SIGKILL) == -signal.SIGKILL, run.log
    torn = run.checkpoint / "checkpoint-900"
    torn.mkdir()
    (torn / "adapter_model.safetensors").write_bytes(b"half")
    cut = run.checkpoint / "checkpoint-901"
    cut.mkdir()
    for name in ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (cut / name).write_bytes(b"whole")
    (cut / "trainer_state.json").write_text('{"global_step": 90', encoding="ascii")
    assert run.run() == 0, run.log
    assert "checkpoint-900 is not complete: removed" in run.log
    assert "checkpoint-901 is not complete: removed" in run.log
    assert checkpoints(run) == ["checkpoint-20", "checkpoint-24"]
    assert result(run) == result(undisturbed)

"""The digits example: the same bytes, whatever happens to the run."""

from __future__ import annotations

import ast
import functools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.example_runs import JOBS, SAVED_AND_RESUMABLE, Example

DIGITS = JOBS / "digits"
SMALL = {"EPOCHS": "2", "HIDDEN": "16", "SAVE_EVERY": "20"}
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


@functools.cache
def interpreter(version: str) -> str | None:
    """Return a Python of that version, from pyenv or PATH, or None."""
    found = [str(p) for p in Path.home().glob(f".pyenv/versions/{version}.*/bin/python3")]
    found += [path for path in [shutil.which(f"python{version}")] if path]
    for path in found:
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
        if answer.stdout.strip() == version:
            return path
    return None


def digits(home: Path, python: str = sys.executable, **variables: str) -> Example:
    """Return a small run of the example."""
    return Example(DIGITS / "train.py", home, {**SMALL, **variables}, python=python)


def saved_step(run: Example) -> int:
    """Return the step of the checkpoint, or -1."""
    try:
        return int(json.loads((run.checkpoint / "state.json").read_bytes())["step"])
    except FileNotFoundError:
        return -1


def new_checkpoint(run: Example) -> Callable[[], bool]:
    """Return a condition: a checkpoint is there that was not there before."""
    path = run.checkpoint / "state.json"

    def mark() -> int:
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    before = mark()
    return lambda: mark() != before


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """A small run that nothing happened to."""
    run = digits(tmp_path_factory.mktemp("undisturbed"))
    assert run.run() == 0, run.log
    return run


def test_a_run_stopped_again_and_again_ends_in_the_same_bytes(
    tmp_path: Path, undisturbed: Example
) -> None:
    """SIGTERM saves and exits 75, any number of times, and leaves no trace in the result."""
    run = digits(tmp_path)
    stops = 0
    while (code := run.interrupt(new_checkpoint(run), signal.SIGTERM)) == SAVED_AND_RESUMABLE:
        stops += 1
    assert code == 0, run.log
    assert stops >= 3
    assert run.log.count("resumed at step") == stops
    assert run.results() == undisturbed.results()


def test_sigterm_saves_the_step_it_reached_not_the_last_regular_checkpoint(tmp_path: Path) -> None:
    """What was done before SIGTERM is in the checkpoint: nothing is done twice."""
    run = digits(tmp_path, EPOCHS="20", SAVE_EVERY="100000")

    def under_way() -> bool:
        return "FREEGPU_PROGRESS" in run.log

    assert run.interrupt(under_way, signal.SIGTERM) == SAVED_AND_RESUMABLE
    reached = saved_step(run)
    assert reached > 0
    assert f"saved at step {reached}\n" in run.log


def test_a_run_killed_between_checkpoints_ends_in_the_same_bytes(
    tmp_path: Path, undisturbed: Example
) -> None:
    """SIGKILL loses the steps since the checkpoint; doing them again gives what they gave."""
    run = digits(tmp_path)
    for _ in range(3):
        assert run.interrupt(new_checkpoint(run), signal.SIGKILL) == -signal.SIGKILL
    assert run.run() == 0, run.log
    assert "resumed at step" in run.log
    assert run.results() == undisturbed.results()


@pytest.mark.parametrize("earlier_checkpoints", [0, 1])
def test_a_run_killed_while_it_writes_a_checkpoint_continues_from_the_one_before(
    tmp_path: Path, undisturbed: Example, earlier_checkpoints: int
) -> None:
    """A half-written checkpoint is never looked at: there is the whole one before it, or none."""
    run = digits(tmp_path)
    state, half = run.checkpoint / "state.json", run.checkpoint / "state.json.tmp"

    def writing() -> bool:
        return half.exists() and (state.exists() or not earlier_checkpoints)

    for _ in range(10):  # the kill may come a moment too late: then the next write is tried
        assert run.interrupt(writing, signal.SIGKILL) == -signal.SIGKILL, run.log
        if half.exists():
            break
        if not earlier_checkpoints:
            shutil.rmtree(run.checkpoint)
    assert half.exists(), "no kill hit a write"
    assert state.exists() == bool(earlier_checkpoints)
    assert (saved_step(run) > 0) == bool(earlier_checkpoints)
    assert run.run() == 0, run.log
    assert run.results() == undisturbed.results()
    assert not half.exists()


@pytest.mark.slow
@pytest.mark.parametrize("every", ["1000000", "37"])
def test_how_often_it_saves_does_not_change_the_result(
    tmp_path: Path, undisturbed: Example, every: str
) -> None:
    """Saving reads the state and changes nothing in it."""
    run = digits(tmp_path, SAVE_EVERY=every)
    assert run.run() == 0, run.log
    assert run.results() == undisturbed.results()


@pytest.mark.slow
@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_gives_the_same_bytes(
    tmp_path: Path, undisturbed: Example, version: str
) -> None:
    """A card's host may run any Python from 3.9 to 3.13; a stop in the middle is part of it."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on this machine")
    run = digits(tmp_path, python)
    assert run.interrupt(new_checkpoint(run), signal.SIGTERM) == SAVED_AND_RESUMABLE, run.log
    assert run.run() == 0, run.log
    assert run.results() == undisturbed.results()


@pytest.mark.slow
def test_a_run_may_continue_under_another_python(tmp_path: Path, undisturbed: Example) -> None:
    """The checkpoint of one Python is continued by the next to the same bytes."""
    pythons = [path for path in map(interpreter, PYTHONS) if path]
    if len(pythons) < 2:
        pytest.skip("there is only one Python from 3.9 to 3.13 on this machine")
    run = digits(tmp_path, pythons[0])
    for python in pythons[1:]:
        assert run.interrupt(new_checkpoint(run), signal.SIGTERM) == SAVED_AND_RESUMABLE, run.log
        run.python = python
    assert run.run() == 0, run.log
    assert run.results() == undisturbed.results()


def test_the_seed_changes_the_result(tmp_path: Path, undisturbed: Example) -> None:
    """Equal bytes mean something only because other runs give other bytes."""
    run = digits(tmp_path, SEED="1")
    assert run.run() == 0, run.log
    assert run.results()["model.json"] != undisturbed.results()["model.json"]


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    """Continuing another run's weights would give a result that no settings describe."""
    run = digits(tmp_path)
    run.interrupt(new_checkpoint(run), signal.SIGTERM)
    before = saved_step(run)
    assert run.run(SEED="7") == 1
    assert "the checkpoint is of another run" in run.log
    assert saved_step(run) == before


def test_a_resume_without_a_checkpoint_starts_over_and_says_so(
    tmp_path: Path, undisturbed: Example
) -> None:
    """An attempt lost before its first checkpoint leaves nothing: that is not an error."""
    run = digits(tmp_path)
    assert run.run(FREEGPU_RESUME="1") == 0
    assert "told to resume, but there is no" in run.log
    assert run.results() == undisturbed.results()


def test_progress_lines_lead_up_to_the_total(undisturbed: Example) -> None:
    """Each progress line is one JSON object with step, total, loss and accuracy."""
    marker = "FREEGPU_PROGRESS "
    lines = [line for line in undisturbed.log.splitlines() if line.startswith(marker)]
    reports = [json.loads(line.removeprefix(marker)) for line in lines]
    assert all(set(report) == {"step", "total", "loss", "accuracy"} for report in reports)
    steps = [report["step"] for report in reports]
    assert steps == sorted(steps)
    assert steps[-1] == reports[-1]["total"] == 180


def test_the_metrics_hold_what_the_settings_decide_and_nothing_else(undisturbed: Example) -> None:
    """No clock, no host, no version: they would differ from run to run."""
    metrics = json.loads(undisturbed.results()["metrics.json"])
    assert set(metrics) == {"accuracy", "loss", "seed", "epochs", "lr", "hidden"}
    assert sorted(undisturbed.results()) == ["metrics.json", "model.json"]


def test_the_script_imports_the_standard_library_alone() -> None:
    """It runs where nothing can be installed."""
    tree = ast.parse((DIGITS / "train.py").read_text(encoding="utf-8"), feature_version=(3, 9))
    names = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_default_run_reads_93_percent_of_the_unseen_digits(tmp_path: Path) -> None:
    """It is a real training: a broken step shows as a worse reader."""
    run = Example(DIGITS / "train.py", tmp_path)
    assert run.run() == 0, run.log
    assert json.loads(run.results()["metrics.json"])["accuracy"] >= 0.93

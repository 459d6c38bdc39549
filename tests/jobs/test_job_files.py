"""The example job files: each is one that freegpu takes, and the small ones run as they stand."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from freegpu.jobs.model import JobSpec
from freegpu.jobs.spec import load
from tests.jobs.example_runs import JOBS

FILES = sorted(JOBS.glob("*/job.yaml"))


def run(spec: JobSpec, out: Path) -> subprocess.CompletedProcess[str]:
    """Run the command of a job in its folder, with its variables."""
    return subprocess.run(
        ["bash", "-c", spec.run],
        cwd=spec.workdir or out,
        env={"PATH": os.environ["PATH"], **spec.envs, "FREEGPU_OUTPUT_DIR": str(out)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_there_are_examples() -> None:
    """The tests below say nothing if the folder is found empty."""
    names = {path.parent.name for path in FILES}
    assert {"digits", "hello", "hf-lora", "sweep", "torch-cnn"} <= names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_example_is_taken_without_a_notice(path: Path) -> None:
    """An example shows what works: no field of it is ignored, and its name is its folder's."""
    loaded = load(path, environ={})
    assert loaded.notices == ()
    assert all(spec.name.startswith(path.parent.name) for spec in loaded.specs)


def test_hello_runs_as_it_stands(tmp_path: Path) -> None:
    """The smallest job is a name and a command."""
    (spec,) = load(JOBS / "hello" / "job.yaml", environ={}).specs
    done = run(spec, tmp_path)
    assert (done.returncode, done.stdout) == (0, "Hello from attempt 0 on this machine.\n")


def test_the_sweep_is_one_job_for_every_combination(tmp_path: Path) -> None:
    """Three rates with two seeds are six jobs, and each result names its own."""
    specs = load(JOBS / "sweep" / "job.yaml", environ={}).specs
    assert len(specs) == 6
    results = []
    for spec in specs:
        out = tmp_path / spec.name
        out.mkdir()
        done = run(spec, out)
        assert done.returncode == 0, done.stderr
        results.append(json.loads((out / "result.json").read_bytes()))
    found = {(result["lr"], result["seed"]) for result in results}
    assert found == {(lr, seed) for lr in (0.0001, 0.001, 0.002) for seed in (0, 1)}
    assert len({result["loss"] for result in results}) == 6


def test_the_sweep_fails_when_the_rate_is_too_large(tmp_path: Path) -> None:
    """A rate at which the descent diverges is a failed job with a reason, not a result."""
    spec = load(JOBS / "sweep" / "job.yaml", environ={}, overrides=["LR=0.1"]).specs[0]
    done = run(spec, tmp_path)
    assert done.returncode == 1
    assert "LR 0.1 is too large" in done.stderr
    assert list(tmp_path.iterdir()) == []

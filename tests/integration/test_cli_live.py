"""The command line with nothing faked: real homes, real agents, real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def freegpu(home: Path, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command in this home; its exit code must be the expected one."""
    done = subprocess.run(
        [sys.executable, "-m", "freegpu", *argv],
        capture_output=True,
        text=True,
        check=False,
        env=environ(home),
        cwd=home.parent,
        timeout=120,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return done


def environ(home: Path) -> dict[str, str]:
    return {**os.environ, "FREEGPU_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


def answer(home: Path, *argv: str, code: int = 0) -> Any:
    return json.loads(freegpu(home, *argv, "--json", code=code).stdout)["data"]


@contextlib.contextmanager
def up(home: Path) -> Iterator[subprocess.Popen[str]]:
    """`freegpu up` in this home, once it is the orchestrator; killed at the end if it still runs."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", "freegpu", "up"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ(home),
    )
    try:
        deadline = time.monotonic() + 30
        while not answer(home, "status")["orchestrator"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield daemon
    finally:
        daemon.kill()
        daemon.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose agents leave soon after their work."""
    folder = tmp_path / "a home"
    folder.mkdir()
    (folder / "freegpu.toml").write_text("idle_s = 3\npoll_s = 0.1\nbeat_s = 0.2\n")
    return folder


def spec(tmp_path: Path, run: str, more: str = "") -> str:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: try\nrun: |\n  {run}\n{more}", encoding="utf-8")
    return str(path)


def test_submit_wait_prints_the_jobs_output_and_exits_with_its_fate(
    home: Path, tmp_path: Path
) -> None:
    """0 with the output on stdout; 32 with the reason on stderr."""
    done = freegpu(home, "submit", spec(tmp_path, "echo out; echo err >&2"), "--wait")
    assert set(done.stdout.splitlines()[1:]) == {"out", "err"}
    failing = spec(tmp_path, "exit 3", "freegpu: {retry: {failures: 0}}\n")
    done = freegpu(home, "submit", failing, "--wait", code=32)
    assert "error: try (" in done.stderr
    assert "has failed" in done.stderr


def test_a_job_goes_through_every_command(home: Path, tmp_path: Path) -> None:
    """Submit, look at it in every way, pull, and clean: what a first hour looks like."""
    run = (
        'echo "LR=$LR"; mkdir -p "$FREEGPU_OUTPUT_DIR"; echo 42 > "$FREEGPU_OUTPUT_DIR/answer.txt"'
    )
    path = spec(tmp_path, run, "envs: {LR: 1}\n")
    assert answer(home, "init")["created"] is True
    assert answer(home, "submit", path, "--dry-run")["specs"][0]["name"] == "try"
    assert answer(home, "jobs")["jobs"] == []
    job = answer(home, "submit", path, "--set", "LR=7", "--wait")["jobs"][0]["id"]
    assert freegpu(home, "logs", job[:4]).stdout == "LR=7\n"
    assert freegpu(home, "logs", "try", "-f").stdout == "LR=7\n"
    assert answer(home, "show", job)["attempts"][0]["reason"] == "completed"
    assert answer(home, "why", job)["sentence"]
    assert answer(home, "status")["counts"]["succeeded"] == 1
    pulled = answer(home, "pull", job, "results")
    assert pulled["partial"] is False
    assert (tmp_path / "results" / "answer.txt").read_text() == "42\n"
    freegpu(home, "cancel", job, code=30)
    freegpu(home, "retry", job, code=30)
    freegpu(home, "interrupt", job, code=30)
    freegpu(home, "show", "nope", code=23)
    freegpu(home, "gc", "--dry-run")
    assert answer(home, "doctor")["settings"]["idle_s"]["value"] == 3


def test_up_is_one_a_home_and_ends_on_sigterm(home: Path, tmp_path: Path) -> None:
    """A second one says who the first is; a job submitted beside it is run by it."""
    with up(home) as daemon:
        second = freegpu(home, "up", code=21)
        assert f"process {daemon.pid} (freegpu up" in second.stderr
        assert "Traceback" not in second.stderr
        freegpu(home, "submit", spec(tmp_path, "echo beside"), "--wait")
        daemon.send_signal(signal.SIGTERM)
        output, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert output.splitlines()[-1] == "stopped; running agents go on"
    assert "Traceback" not in output


def test_up_goes_by_settings_that_change_while_it_runs(home: Path, tmp_path: Path) -> None:
    """A platform that is added is used, a mistake in the file is told once and changes nothing."""
    file = home / "freegpu.toml"
    local = "tick_s = 0.5\n" + file.read_text()
    file.write_text(local + "[platforms.local]\nenabled = false\n")
    with up(home) as daemon:
        told = json.loads(freegpu(home, "submit", spec(tmp_path, "echo beside"), "--json").stdout)
        job = told["data"]["jobs"][0]["id"]
        file.write_text(local + "idel_s = 3\n")
        time.sleep(1.5)
        file.write_text(local)
        deadline = time.monotonic() + 90
        while answer(home, "show", job)["job"]["state"] != "succeeded":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        daemon.send_signal(signal.SIGTERM)
        output, _ = daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert output.count("there is no setting 'idel_s'") == 1
    assert output.count("the settings have changed, and hold from now on") == 1
    assert output.splitlines()[-1] == "stopped; running agents go on"
    assert "Traceback" not in output


def test_doctor_live_really_runs_a_job_and_leaves_nothing_behind(home: Path) -> None:
    """In a home of its own: the user's ledger has no such job, and no agent stays."""
    checks = {check["name"]: check for check in answer(home, "doctor", "local", "--live")["checks"]}
    assert checks["local live"]["ok"] is True
    assert answer(home, "jobs")["jobs"] == []
    listed = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True)
    assert "freegpu-live-" not in listed.stdout


def test_a_settings_file_with_a_mistake_stops_every_command_with_one_sentence(home: Path) -> None:
    """And doctor shows it as a finding."""
    (home / "freegpu.toml").write_text("idel_s = 3\n")
    done = freegpu(home, "jobs", code=10)
    assert "freegpu.toml:1: there is no setting 'idel_s'; did you mean idle_s?" in done.stderr
    assert answer(home, "doctor", code=10)["checks"][0]["ok"] is False

"""Sessions on this machine open a store that takes a sign-in, and no job and no file shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from freegpu.testing.drive_server import DriveServer

pytestmark = pytest.mark.slow


def test_a_job_on_this_machine_runs_with_its_store_in_a_drive(tmp_path: Path) -> None:
    """Submitted, run, checkpointed and pulled; the refresh token is in neither the job's environment nor the home."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: there\n"
        "run: |\n"
        '  test -z "$FREEGPU_DRIVE" && env | grep -c refresh_token || true\n'
        '  echo saved > "$FREEGPU_CHECKPOINT_DIR/state.txt"; mkdir -p "$FREEGPU_OUTPUT_DIR"\n'
        '  echo 42 > "$FREEGPU_OUTPUT_DIR/answer.txt"\n'
        "resources: {accelerators: CPU}\n"
    )
    with DriveServer() as server:
        granted = server.oauth.grant("client-a", "drive.file")
        secret = json.loads(granted)["refresh_token"]
        env = {
            **os.environ,
            "FREEGPU_HOME": str(tmp_path / "home"),
            "FREEGPU_STORE": f"drive:freegpu?endpoint={server.url}",
            "FREEGPU_DRIVE": granted,
        }

        def freegpu(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "freegpu", *words],
                env=env,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert "0\n" in freegpu("submit", "job.yaml", "--wait")
        assert "store" in freegpu("checkpoints", "there")
        freegpu("pull", "there", "results")
    assert (tmp_path / "results" / "answer.txt").read_text() == "42\n"
    for file in (tmp_path / "home").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file

"""Run the example jobs as freegpu would: a process, its FREEGPU_* variables, signals, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SAVED_AND_RESUMABLE = 75
PATIENCE = 300.0


@dataclass
class Example:
    """One run of one example, in folders of its own, over any number of attempts."""

    script: Path
    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    attempts: int = 0

    @property
    def checkpoint(self) -> Path:
        """FREEGPU_CHECKPOINT_DIR."""
        return self.home / "ckpt"

    @property
    def outputs(self) -> Path:
        """FREEGPU_OUTPUT_DIR."""
        return self.home / "out"

    @property
    def log(self) -> str:
        """What all attempts printed."""
        return (self.home / "log.txt").read_text(encoding="utf-8")

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        """Start one attempt; every one after the first is told to resume."""
        self.home.mkdir(parents=True, exist_ok=True)
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "FREEGPU_CHECKPOINT_DIR": str(self.checkpoint),
            "FREEGPU_OUTPUT_DIR": str(self.outputs),
            "FREEGPU_RESUME": "1" if self.attempts else "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.variables,
            **more,
        }
        self.attempts += 1
        with (self.home / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [self.python, str(self.script), *self.arguments],
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, **more: str) -> int:
        """Run one attempt to its end and return its exit code."""
        process = self.start(**more)
        try:
            return process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()

    def interrupt(self, when: Callable[[], bool], with_signal: signal.Signals, **more: str) -> int:
        """Run one attempt, send it the signal once `when` holds, and return its exit code."""
        process = self.start(**more)
        try:
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and not when():
                assert time.monotonic() < deadline, f"never came to the point:\n{self.log}"
                time.sleep(0.001)
            process.send_signal(with_signal)
            return process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()

    def results(self) -> dict[str, bytes]:
        """Return the output files, by name."""
        return {path.name: path.read_bytes() for path in sorted(self.outputs.iterdir())}

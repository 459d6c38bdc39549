"""How fast the command line is: whole processes, medians. Exit code 1 if a limit is passed.

    python benchmarks/cli_start.py [RUNS]

Times are of the processor (user and system) for --help, which a busy machine does not distort, and of the wall
for status, as its user feels it. The home is a throw-away one with 1,000 jobs in it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = 1000
HELP_CPU_S = 0.15
HELP_BYTES = 35e6
STATUS_S = 0.6


def measure(argv: list[str], environ: dict[str, str], runs: int) -> tuple[float, float, float]:
    """Medians of (wall seconds, processor seconds, peak bytes)."""
    walls, cpus, peaks = [], [], []
    for _ in range(runs):
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "freegpu", *argv], env=environ, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        walls.append(time.perf_counter() - began)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"freegpu {' '.join(argv)} failed with exit code {process.returncode}")
        cpus.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
    return statistics.median(walls), statistics.median(cpus), statistics.median(peaks)


def fill(home: Path, environ: dict[str, str]) -> None:
    """A home with that many jobs, which wait for a card that this machine does not have."""
    axis = ", ".join(map(str, range(JOBS)))
    spec = home / "many.yaml"
    home.mkdir()
    spec.write_text(
        "name: many\nrun: echo $N\nresources: {accelerators: [A100:8]}\n"
        f"freegpu:\n  matrix: {{N: [{axis}]}}\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "freegpu", "submit", str(spec)],
        env=environ,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        sys.exit("the jobs could not be submitted")


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        environ = {**os.environ, "FREEGPU_HOME": str(home)}
        fill(home, environ)
        wall, cpu, peak = measure(["--help"], environ, runs)
        within = cpu <= HELP_CPU_S and peak <= HELP_BYTES
        print(
            f"freegpu --help              {cpu:.3f} s of processor (limit {HELP_CPU_S}), "
            f"{peak / 1e6:.0f} MB (limit {HELP_BYTES / 1e6:.0f}), {wall:.3f} s"
        )
        wall, cpu, peak = measure(["status"], environ, runs)
        within &= wall <= STATUS_S
        print(
            f"freegpu status, {JOBS:,} jobs  {wall:.3f} s (limit {STATUS_S}), "
            f"{cpu:.3f} s of processor, {peak / 1e6:.0f} MB"
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())

"""Descend Rosenbrock's valley by gradient steps of size LR from a start that SEED picks."""

from __future__ import annotations

import json
import math
import os
import random
import sys
from pathlib import Path

STEPS = 200_000


def main() -> None:
    """Descend and write where it ended."""
    rate = float(os.environ.get("LR", "0.001"))
    seed = int(os.environ.get("SEED", "0"))
    out = Path(os.environ.get("FREEGPU_OUTPUT_DIR") or "out")
    start = random.Random(seed)
    x, y = start.uniform(-1.5, 1.5), start.uniform(-0.5, 1.5)
    height = 0.0
    for step in range(1, STEPS + 1):
        bend = y - x * x
        x, y = x + rate * (400.0 * x * bend + 2.0 * (1.0 - x)), y - rate * 200.0 * bend
        if step % (STEPS // 10) == 0:
            height = (1.0 - x) * (1.0 - x) + 100.0 * (y - x * x) * (y - x * x)
            if not math.isfinite(height):
                sys.exit(f"LR {rate} is too large: the descent left the valley by step {step}")
            progress = {"step": step, "total": STEPS, "loss": height}
            print("FREEGPU_PROGRESS " + json.dumps(progress), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    result = {"lr": rate, "seed": seed, "x": x, "y": y, "loss": height}
    (out / "result.json").write_text(json.dumps(result) + "\n", encoding="ascii")
    print(f"LR {rate}, SEED {seed}: ended at ({x:.4f}, {y:.4f}), loss {height:.3g}")


if __name__ == "__main__":
    main()

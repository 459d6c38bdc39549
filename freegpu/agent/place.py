"""Where an attempt lives on the session's disk, and what its command sees of the world.

The variables are the promise to users (docs: job spec reference); SkyPilot's names are there as well. Does
not know processes or the store.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Mapping, Optional

from freegpu.agent import wire
from freegpu.agent.preflight import cpu_count
from freegpu.agent.process import MARK


@dataclass(frozen=True)
class Place:
    """The folders of one attempt on the session's disk."""

    root: Path
    #: see process.MARK
    mark: str = field(default_factory=lambda: os.urandom(12).hex())

    @property
    def source(self) -> Path:
        """The working folder: what the job sees as its current one."""
        return self.root / "src"

    @property
    def outputs(self) -> Path:
        return self.root / "out"

    @property
    def stage(self) -> Path:
        """Where cargo puts things aside."""
        return self.root / "stage"

    @property
    def library(self) -> Path:
        """What a script may import without installing it."""
        return self.root / "lib"

    @property
    def spool(self) -> Path:
        return self.root / "spool.log"

    def checkpoints(self, path: str) -> Path:
        """The checkpoint folder as the spec names it, kept inside the working folder."""
        inside = os.path.normpath("/" + path.replace("\\", "/").lstrip("~")).lstrip("/")
        return self.source / (inside or "ckpt")


def environment(
    ticket: wire.Run,
    slot: wire.Slot,
    place: Place,
    secrets: Mapping[str, str],
    deadline: Optional[float],
) -> Dict[str, str]:
    """The session's own environment without ours, then the job's, then what freegpu promises.

    `deadline`: seconds since 1970 by which the command must have saved; None if no end is known.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("FREEGPU_")}
    env["PYTHONUNBUFFERED"] = "1"  # lines show when they are printed, also into a file
    env.update(ticket.envs)
    env.update(secrets)
    paths = [env["PYTHONPATH"]] if env.get("PYTHONPATH") else []
    env.update(
        {
            "PYTHONPATH": os.pathsep.join([*paths, str(place.library)]),
            MARK: place.mark,
            "FREEGPU_JOB_ID": ticket.job,
            "FREEGPU_ATTEMPT_ID": ticket.attempt,
            "FREEGPU_JOB_NAME": ticket.name,
            "FREEGPU_ATTEMPT": str(ticket.number),
            "FREEGPU_CHECKPOINT_DIR": str(place.checkpoints(ticket.checkpoint_path)),
            "FREEGPU_RESUME": "1" if ticket.base else "0",
            "FREEGPU_OUTPUT_DIR": str(place.outputs),
            "FREEGPU_CARD": slot.card,
            "FREEGPU_GPU_COUNT": str(len(slot.gpus)),
            "FREEGPU_VRAM_GB": f"{slot.vram_gb:g}",
            "FREEGPU_PRECISION": slot.precision,
            "FREEGPU_CPU_COUNT": str(cpu_count()),
            "CUDA_VISIBLE_DEVICES": ",".join(slot.gpus),
            "SKYPILOT_TASK_ID": ticket.attempt,
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_NUM_NODES": "1",
            "SKYPILOT_NODE_IPS": "127.0.0.1",
            "SKYPILOT_NUM_GPUS_PER_NODE": str(len(slot.gpus)),
            "SKYPILOT_SETUP_NODE_RANK": "0",
            "SKYPILOT_SETUP_NODE_IPS": "127.0.0.1",
            "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": str(len(slot.gpus)),
        }
    )
    if slot.gpus:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's numbering, by which the slot was cut
    if deadline is not None:
        env["FREEGPU_DEADLINE"] = str(int(deadline))
    return env


def lay_companion(library: Path) -> None:
    """`import freegpu_job` in the job's scripts: one file, from this agent's own archive."""
    import pkgutil

    text = pkgutil.get_data("freegpu.agent", "companion.py")
    if text:
        library.mkdir(exist_ok=True)
        (library / "freegpu_job.py").write_bytes(text)

"""What a launch becomes there: the slug, the fields of the kernel, and its source."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freegpu.adapters.base import Launch
from freegpu.adapters.kaggle.words import GPU, TPU
from freegpu.agent import wire

__all__ = ["SHAPES", "payload", "slug_of", "source"]

PREFIX = "freegpu-"
SEALED, STORE = "sealed", "store"
#: seconds: 12 h with and without cards, 9 h with a TPU (reports; Kaggle's own page was not to be had)
LIMIT_S, TPU_LIMIT_S = 12 * 3600.0, 9 * 3600.0
#: Kaggle's clock starts before ours, and its end comes without notice: seconds kept from its limit
SPARE_S = 900.0
#: the platform's own timeout, which is not dependable, comes so many seconds after ours
LATER_S = 600
#: seconds between looks at what the session wrote, for a manifest that outlives a kill
MANIFEST_S = 3.0
#: how long the kernel waits for its dataset to appear
MOUNT_PATIENCE_S = 120.0
#: accelerators by card; P100 is retired, and whatever else is listed is not for ordinary accounts
SHAPES = {"CPU": "", "T4": "NvidiaTeslaT4", "tpu-v5e-8": "TpuV5E8"}
#: what the kernel prints, and ends, when a processor came in the place of a TPU
WRONG_MACHINE = "freegpu: wrong machine:"
AGENT, SEED, ACCESS = "freegpu-agent.bin", "freegpu-seed.bin", "freegpu-access.bin"


def payload(launch: Launch, carry: str) -> dict[str, Any]:
    """All that is asked of Kaggle for this launch; `start` fills in the agent. Every field is said."""
    slug, sealed = slug_of(launch.key), carry == SEALED
    card = launch.offer.card
    limit_s = launch.profile.limit_s or LIMIT_S - SPARE_S
    setup = {
        "profile": launch.profile.to_json(),
        "kernel": slug,
        "carry": carry,
        "tpu": launch.offer.pool == TPU,
        "card": card if launch.offer.pool == GPU else "",
        "agent": AGENT,
        "agent_sha256": launch.agent_sha256,
        "seed": SEED if sealed else "",
        "manifest_s": MANIFEST_S,
        "patience_s": MOUNT_PATIENCE_S,
    }
    save: dict[str, Any] = {
        "newTitle": slug.replace("-", " "),
        "language": "python",
        "kernelType": "script",
        "kernelExecutionType": "SAVE_AND_RUN_ALL",
        "isPrivate": True,
        # left out, it would be true
        "enableInternet": not sealed,
        # deprecated beside the shape, but without either a processor would be nowhere asked for
        "enableGpu": launch.offer.pool == GPU,
        "enableTpu": launch.offer.pool == TPU,
        "sessionTimeoutSeconds": int(limit_s) + LATER_S,
    }
    if SHAPES.get(card):
        save["machineShape"] = SHAPES[card]
    return {
        "slug": slug,
        "card": card,
        "save": save,
        "setup": setup,
        "agent": launch.agent_path,
        "tree": launch.tree if sealed else "",
    }


def source(setup: Mapping[str, Any], agent: bytes) -> str:
    """The kernel's source: readable Python, the launch as JSON, and the agent in base64 (none: it is in the dataset)."""
    text = Path(__file__).with_name("kernel.txt").read_text(encoding="utf-8")
    lines = base64.encodebytes(agent).decode().strip()
    told = json.dumps(json.dumps(setup, sort_keys=True))
    return text.replace("@SETUP@", told, 1).replace("@AGENT@", lines, 1)


def slug_of(key: str) -> str:
    """The slug of a session's kernel and dataset: such that Kaggle makes the same of its title, with at most 50 signs."""
    if len(PREFIX + key) <= 50 and "--" not in key and not key.endswith("-"):
        return PREFIX + key
    begins = re.sub("-+", "-", key[:16]).strip("-")
    return f"{PREFIX}{begins}-{wire.sha256(key.encode())[:16]}"

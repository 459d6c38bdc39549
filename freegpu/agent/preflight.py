"""What a session really is, found out in its first seconds: cards, memory, disk, PyTorch.

Facts only. Whether a card that came is one that the job accepts is decided by the orchestrator, which has the
card table; the comparison of names here is a hint for people.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from typing import Any, Dict, List, Optional, Sequence

import freegpu
from freegpu.agent import gpu, wire

#: PyTorch is imported in a process of its own: it takes seconds, memory and sometimes crashes
_TORCH = """
import json, torch
facts = {"version": torch.__version__, "arch_list": torch.cuda.get_arch_list(), "cards": []}
for index in range(torch.cuda.device_count()):
    card = {"index": index, "name": torch.cuda.get_device_name(index),
            "capability": list(torch.cuda.get_device_capability(index))}
    try:
        card["works"] = float((torch.ones(64, 64, device=f"cuda:{index}") @ torch.ones(64, 64, device=f"cuda:{index}"))[0, 0]) == 64.0
    except Exception as error:
        card["works"], card["error"] = False, str(error)[:300]
    facts["cards"].append(card)
print("FREEGPU_TORCH " + json.dumps(facts))
"""
_TORCH_TIMEOUT_S = 90.0


def facts(profile: wire.Profile, run: gpu.Runner = gpu.run) -> Dict[str, Any]:
    """The body of hello.json. Takes as long as nvidia-smi and, on a GPU slot, one import of torch."""
    asked = [slot for slot in profile.slots if slot.gpus]
    cards = gpu.detect(run) if asked or shutil.which("nvidia-smi") else []
    torch = torch_facts(run) if asked else None
    slots = [_slot(slot, cards) for slot in profile.slots]
    return {
        "agent": freegpu.__version__,
        "platform": profile.platform,
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": cpu_count(),
        "memory_gb": _memory_gb(),
        "disk_free_gb": _disk_free_gb(profile.work),
        "limit_s": profile.limit_s,
        "idle_s": profile.idle_s,
        "slots": slots,
        "cards": [
            {
                "index": card.index,
                "name": card.name,
                "memory_mb": card.memory_mb,
                "uuid": card.uuid,
                "driver": card.driver,
            }
            for card in cards
        ],
        "torch": torch,
        "problems": problems(slots, cards, torch),
    }


def problems(
    slots: Sequence[Dict[str, Any]], cards: Sequence[gpu.Card], torch: Optional[Dict[str, Any]]
) -> List[str]:
    """What a person should know before a job is sent here; empty is good."""
    found = []
    for slot in slots:
        if slot["gpus"] and not slot["seen"]:
            found.append(f"slot {slot['slot']}: {slot['asked']} was asked for, no card was found")
        elif slot["gpus"] and not slot["matches"]:
            found.append(f"slot {slot['slot']}: {slot['asked']} was asked for, {slot['seen']} came")
    for card in (torch or {}).get("cards", []):
        arch = "sm_{}{}".format(*card["capability"])
        known = (torch or {}).get("arch_list") or []
        if not card.get("works"):
            reason = card.get("error") or "a small product came out wrong"
            found.append(f"PyTorch cannot use {card['name']}: {reason}")
        elif known and not _built_for(card["capability"], known):
            found.append(f"this PyTorch is not built for {card['name']} ({arch})")
    if torch and cards and not torch.get("cards"):
        found.append(f"PyTorch {torch.get('version')} sees no card")
    return found


def _built_for(capability: Sequence[int], archs: Sequence[str]) -> bool:
    """Machine code runs on its major number from its minor one on (sm_86 on an L4); compute_90 on all later cards.

    The same rule as freegpu.cards.filters.runs_on, which the agent does not carry; a test holds them together.
    """
    for arch in archs:
        match = re.match(r"(sm|compute)_([0-9]+)([0-9])[a-z]?$", arch)
        if match is None:
            continue
        least = [int(match.group(2)), int(match.group(3))]
        if list(capability) >= least and (match.group(1) == "compute" or capability[0] == least[0]):
            return True
    return False


def _slot(slot: wire.Slot, cards: Sequence[gpu.Card]) -> Dict[str, Any]:
    by_id = {str(card.index): card for card in cards}
    by_id.update((card.uuid, card) for card in cards)
    seen = [by_id[name].name for name in slot.gpus if name in by_id]
    return {
        "slot": slot.index,
        "asked": slot.card,
        "gpus": list(slot.gpus),
        "seen": seen[0] if seen else "",
        "matches": not slot.gpus
        or (len(seen) == len(slot.gpus) and all(same_card(slot.card, name) for name in seen)),
    }


def same_card(asked: str, name: str) -> bool:
    """Whether a driver's name ("Tesla T4") can be the card that was asked for ("T4")."""
    parts = _words(name)
    return all(word in parts for word in _words(asked))


def _words(name: str) -> List[str]:
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]


def torch_facts(run: gpu.Runner = gpu.run) -> Optional[Dict[str, Any]]:
    """What PyTorch says about itself and the cards; None where it is not installed or does not come up."""
    from importlib.util import find_spec

    try:
        if find_spec("torch") is None:
            return None
    except (ImportError, ValueError):
        return None
    command = [sys.executable, "-c", _TORCH]
    answer = gpu.run(command, timeout_s=_TORCH_TIMEOUT_S) if run is gpu.run else run(command)
    for line in answer.splitlines():
        if line.startswith("FREEGPU_TORCH "):
            told: Dict[str, Any] = json.loads(line.partition(" ")[2])
            return told
    return None


def cpu_count() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def _memory_gb() -> float:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0.0
    return round(total / 1e9, 1)


def _disk_free_gb(folder: str) -> float:
    try:
        return round(shutil.disk_usage(folder).free / 1e9, 1)
    except OSError:
        return 0.0

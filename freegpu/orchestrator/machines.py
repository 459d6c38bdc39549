"""What a machine has, and whether that does for what a job needs: card, memory, processors, disk, PyTorch. Pure.

Each fault is a sentence for people. Which platforms a job may use, quotas and time are no matter of this module.
"""

from __future__ import annotations

import math
from functools import lru_cache

from freegpu import cards
from freegpu.adapters.base import Offer
from freegpu.jobs.model import Accelerator, Needs

__all__ = ["Shape", "card_fault", "either", "lack", "misfit", "round_down", "shape_of", "vram_of"]

#: card, GB of it, GB of memory, CPUs and GB of disk beside it, what the PyTorch there was built for; spots of one shape
#: fit the same jobs
Shape = tuple[str, float, float, float, float, tuple[str, ...]]


def shape_of(offer: Offer, archs: tuple[str, ...] = ()) -> Shape:
    """What decides whether a job fits a session of this offer; `archs`: empty where nobody knows."""
    card = offer.card if offer.count >= 1 else ""
    return (card, offer.vram_gb, offer.memory_gb, offer.cpus, offer.disk_gb, archs)


@lru_cache(maxsize=65536)
def misfit(needs: Needs, shape: Shape) -> tuple[str, int]:
    """Why a job with these needs cannot run on such a machine ("" if it can), and the place of the card in its list."""
    card, vram_gb, memory_gb, cpus, disk_gb, archs = shape
    fault, choice = card_fault(needs, card, archs)
    if fault:
        return fault, 0
    short = lack(needs, shape)
    if short == "vram":
        return f"needs {needs.vram_gb:g} GB, the card has {vram_of(card, vram_gb):g} GB", choice
    if short == "memory":
        return (
            f"needs {needs.memory_gb:g} GB of main memory, it has {round_down(memory_gb)} GB",
            choice,
        )
    if short == "cpus":
        return f"needs {needs.cpus:g} CPUs, it has {cpus:g}", choice
    if short == "disk":
        return f"needs {needs.disk_gb:g} GB of disk, it has {round_down(disk_gb)} GB", choice
    return "", choice


def round_down(amount: float) -> str:
    """An amount to one decimal, never more than there is: what is asked for by this word is there."""
    return f"{math.floor(amount * 10) / 10:g}"


def card_fault(needs: Needs, card: str, archs: tuple[str, ...]) -> tuple[str, int]:
    """Why the card does not do, "" if it does, and its place in the list."""
    fault, choice = _card_fault(needs, card)
    return fault or needs.refuses(card, archs), choice


def lack(needs: Needs, shape: Shape) -> str:
    """What such a machine has too little of, "" if of nothing."""
    card, vram_gb, memory_gb, cpus, disk_gb, _ = shape
    if needs.vram_gb > 0 and 0 < vram_of(card, vram_gb) < needs.vram_gb:
        return "vram"
    if 0 < memory_gb < needs.memory_gb:
        return "memory"
    if 0 < cpus < needs.cpus:
        return "cpus"
    return "disk" if 0 < disk_gb < needs.disk_gb else ""


def _card_fault(needs: Needs, card: str) -> tuple[str, int]:
    if not card:
        return "it holds no card", 0
    facts = cards.find(card)
    if facts is not None and facts.kind == "cpu" and not needs.allows_cpu:
        return "the job needs a card, and this is a CPU", 0
    if not needs.accelerators:
        special = facts is not None and facts.kind in ("tpu", "hpu")
        return ("such a chip must be asked for by name" if special else ""), 0
    several: Accelerator | None = None
    for index, wanted in enumerate(needs.accelerators):
        if cards.fulfils(card, wanted.card):
            if wanted.count <= 1:
                return "", index if needs.ordered else 0
            several = several or wanted
    if several is not None:
        return f"the job wants {several.count} x {several.card} at once, and a slot is one card", 0
    return f"the job takes {either(tuple(a.card for a in needs.accelerators))}", 0


@lru_cache(maxsize=4096)
def vram_of(card: str, reported_gb: float) -> float:
    """GB of one card. Drivers report a little less than the label says: near it, the label counts."""
    facts = cards.find(card)
    if facts is None or not facts.vram_gb:
        return reported_gb
    near = abs(reported_gb - facts.vram_gb) <= 0.1 * facts.vram_gb
    return facts.vram_gb if near or reported_gb <= 0 else reported_gb


def either(words: tuple[str, ...]) -> str:
    unique = tuple(dict.fromkeys(words))
    return " or ".join((", ".join(unique[:-1]), unique[-1])) if len(unique) > 1 else unique[0]

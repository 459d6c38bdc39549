"""The card table: what each card is, how fast it is for a class of work, and which names mean it.

Decides the canonical name of a card and its speed relative to a T4. It knows no platform, no price and no
quota, and it has not seen the job: a speed learned from the job's own progress is better than any here.
Facts and their sources are in cards.json beside this file; it is read on first use. What the weights were
fitted to is in `measured`, which places suit a card in `filters`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "UNKNOWN_SPEED",
    "WORKLOADS",
    "Card",
    "Precision",
    "capability",
    "fastest",
    "find",
    "fulfils",
    "kind",
    "names",
    "precision",
    "ratios",
    "sources",
    "speed",
    "weights",
]

Precision = Literal["bf16", "fp16", "fp32"]
#: what programs it: CUDA, AMD's ROCm, Intel's XPU, a TPU, a Gaudi, no card at all
Kind = Literal["gpu", "rocm", "xpu", "tpu", "hpu", "cpu"]

#: classes of work that differ in which card is fast; the names a job spec may give
WORKLOADS = (
    "general",
    "train-amp-cnn",
    "train-amp-seq",
    "train-fp32-cnn",
    "train-fp32-seq",
    "infer-fp32",
    "infer-fp16",
    "infer-int8",
    "llm-decode",
)
#: `general` is the geometric mean of these: who names no class mostly trains something
_GENERAL = ("train-amp-cnn", "train-amp-seq", "train-fp32-cnn", "train-fp32-seq")

#: speed of a card that is not in the table: half a T4, so that a known card is preferred to a guess
UNKNOWN_SPEED = 0.5

# What PyTorch reaches of a data sheet's peak in large matrix products, where nobody has measured it:
# small boards are held back by their power limit.
_REACHED, _REACHED_SMALL, _SMALL_BOARD_W = 0.75, 0.55, 75
# fp32 training uses TF32 where the card has it; measured at this share of the fp16 rate.
_TF32_SHARE = 0.47

_NOT_ALNUM = re.compile(r"[^a-z0-9]+")
_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™]", re.IGNORECASE)
_MAKERS = re.compile(r"nvidia|geforce|tesla|quadro|google|cloud|intel|habana|amd|instinct|radeon")
#: names of cards in no table that run no CUDA; a card that nobody knows is else taken for NVIDIA's
_FOREIGN: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("tpu", re.compile(r"\btpus?\b|\bv[4-9](?:litepod|e|p)-?[0-9]", re.IGNORECASE)),
    ("hpu", re.compile(r"gaudi|habana|\bhl-[0-9]", re.IGNORECASE)),
    (
        "rocm",
        re.compile(
            r"\bamd\b|radeon|instinct|\bmi[0-9]{2,3}[a-z]?\b|\brx ?[5-9][0-9]{3}|gfx[0-9]",
            re.IGNORECASE,
        ),
    ),
    ("xpu", re.compile(r"\bintel\b|\barc\b|\bxpu\b|\bmax ?1[0-9]{3}\b", re.IGNORECASE)),
)
# What platforms append: form factor, memory kind, edition, case, number of cards.
_FORM = re.compile(
    r"sxm[0-9]?|pcie|hbm[0-9]e?|blackwell|(?:server|workstation|maxqworkstation)edition"
    r"|generation|laptopgpu|laptop|mobile|highmem|x[1-8]$"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One model of card. Rates are dense TFLOPS; None where nobody found the figure."""

    name: str
    kind: Kind
    arch: str
    #: compute capability as text, e.g. "7.5"; None: not an NVIDIA card
    sm: str | None
    #: GB of one card
    vram_gb: float
    bandwidth_gbs: float
    fp32_tflops: float | None
    #: with tensor cores; 0: it has none
    fp16_tflops: float | None
    bf16_native: bool
    #: TOPS
    int8_tops: float | None
    tdp_w: float | None
    #: rates that PyTorch reaches in large matrix products, as measured
    gemm32: float | None
    gemm16: float | None
    gemm_bf16: float | None
    #: what to know before choosing it; "" mostly
    note: str
    #: keys into the table's sources
    source: str
    #: names a job may ask for and be content with this card
    fulfils: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    cards: Mapping[str, Card]
    #: every folded name -> canonical name
    known_as: Mapping[str, str]
    #: key -> where a fact is from
    sources: Mapping[str, str]
    #: class of work -> weight of the matrix rate against the bandwidth
    weights: Mapping[str, float]


def find(name: str) -> Card | None:
    """The card meant by a user, nvidia-smi or a platform; None if it is in no table.

    Makers, form factors, editions and separators do not matter; a memory size must be that of the card. A
    laptop's chip is taken for the desktop card of its name. A slice of a card (MIG) is not the card: None.
    """
    canonical = _canonical(name[:200])
    return _table().cards[canonical] if canonical else None


def names() -> tuple[str, ...]:
    """The canonical names, sorted."""
    return _names()


@lru_cache(maxsize=4096)
def fulfils(have: str, wanted: str) -> bool:
    """Whether a job that asks for `wanted` may get `have`: the same card, or one that is better in every way
    that counts (an A100-80GB for an A100). Names that no table holds must be equal but for case."""
    offered, asked = find(have), find(wanted)
    if offered is None or asked is None:
        return offered is asked and have.casefold() == wanted.casefold()
    return offered.name == asked.name or asked.name in offered.fulfils


@lru_cache(maxsize=4096)
def speed(card_name: str, workload: str = "general") -> float:
    """How fast this card is in this class of work; T4 = 1, greater is faster.

    (F/F_T4)^a (B/B_T4)^(1-a) with F the rate in large matrix products in the class's precision and B the
    memory bandwidth; text generation goes with the square root of B alone. Single runs on a card correct
    nothing: that did not help on sources that were not in the fit, and put more pairs in the wrong order. A card in no table counts as `UNKNOWN_SPEED`, a class in no table as
    "general". A CPU counts as four cloud cores, about a twentieth.
    """
    card = find(card_name)
    if card is None:
        return UNKNOWN_SPEED
    table = _table()
    if workload != "llm-decode" and workload not in table.weights:
        product = 1.0
        for part in _GENERAL:
            product *= speed(card_name, part)
        return float(product ** (1 / len(_GENERAL)))
    return _modelled(card, workload)


@lru_cache(maxsize=1024)
def fastest(card_name: str) -> float:
    """Its speed relative to a T4 in the class of work in which that is greatest."""
    return max(speed(card_name, workload) for workload in WORKLOADS)


def kind(card_name: str) -> Kind:
    """What programs this card; of one in no table its name tells, and if it tells nothing it is taken for a CUDA card."""
    card = find(card_name)
    if card is not None:
        return card.kind
    name = _MARKS.sub(" ", card_name[:200])
    return next((each for each, words in _FOREIGN if words.search(name)), "gpu")


def sources() -> Mapping[str, str]:
    """What the keys in `Card.source` mean, and where the weights are from ("model")."""
    return _table().sources


def weights() -> Mapping[str, float]:
    """Class of work -> weight of the matrix rate against the bandwidth."""
    return _table().weights


def precision(card: Card | str) -> Precision:
    """What this card does fast: bf16 only where the silicon has it, fp16 where there are tensor cores, else
    fp32 (also on GTX 16xx, whose fp16 products crawl in PyTorch). Unknown cards: fp32, which always works."""
    facts = find(card) if isinstance(card, str) else card
    if facts is None:
        return "fp32"
    if facts.bf16_native:
        return "bf16"
    return "fp16" if facts.fp16_tflops else "fp32"


def capability(card: Card | str) -> tuple[int, int]:
    """CUDA compute capability, e.g. (7, 5); (0, 0) for what is not an NVIDIA card or is unknown."""
    facts = find(card) if isinstance(card, str) else card
    if facts is None or facts.sm is None:
        return (0, 0)
    major, _, minor = facts.sm.partition(".")
    return (int(major), int(minor))


def ratios(card_name: str, workload: str) -> tuple[float, float]:
    """(F/F_T4, B/B_T4): the matrix rate in the class's precision and the bandwidth, against a T4's. KeyError."""
    table = _table()
    card, reference = table.cards[card_name], table.cards["T4"]
    rate = _rate(card, workload) / _rate(reference, workload)
    return rate, card.bandwidth_gbs / reference.bandwidth_gbs


def _modelled(card: Card, workload: str) -> float:
    rate, bandwidth = ratios(card.name, workload)
    if workload == "llm-decode":
        return float(bandwidth**0.5)
    if rate <= 0:  # nobody knows its rates (Gaudi1): the bandwidth alone, not a standstill
        return bandwidth
    weight = _table().weights[workload]
    return float(rate**weight * bandwidth ** (1 - weight))


def _rate(card: Card, workload: str) -> float:
    """The matrix rate that counts for a class of work, TFLOPS (TOPS for int8)."""
    fp32 = card.gemm32 or _reached(card, card.fp32_tflops)
    fp16 = card.gemm16 if card.fp16_tflops and card.gemm16 else _reached(card, card.fp16_tflops)
    if workload == "infer-int8":
        return _reached(card, card.int8_tops) or fp16 or fp32
    if workload == "infer-fp32":
        return fp32 or fp16
    if workload.startswith("train-fp32"):
        # Without a figure for fp32 (TPUs) the compiler runs such products in bf16 passes, as TF32 does.
        has_tf32 = card.bf16_native and (capability(card) >= (8, 0) or not fp32)
        return max(fp32, _TF32_SHARE * fp16) if has_tf32 else fp32
    return fp16 or fp32


def _reached(card: Card, peak: float | None) -> float:
    small = card.tdp_w is not None and card.tdp_w <= _SMALL_BOARD_W
    return (peak or 0.0) * (_REACHED_SMALL if small else _REACHED)


@lru_cache(maxsize=1024)
def _canonical(name: str) -> str:
    known_as = _table().known_as
    folded = _NOT_ALNUM.sub("", _MARKS.sub(" ", name).casefold())
    if exact := known_as.get(folded):
        return exact
    bare = _MAKERS.sub("", folded)
    if exact := known_as.get(bare):
        return exact
    core = _FORM.sub("", bare).removesuffix("graphics")
    if exact := known_as.get(core):
        return exact
    for digits in (2, 3, 1):
        sized = re.fullmatch(rf"(.*?[a-z0-9])([0-9]{{{digits}}})gb", core)
        canonical = known_as.get(sized[1], "") if sized else ""
        if not sized or not canonical:
            continue
        # Laptop chips come with other memory than the desktop card of their name.
        if "laptop" in folded or int(sized[2]) == round(_table().cards[canonical].vram_gb):
            return canonical
    return ""


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(_table().cards))


@cache
def _table() -> _Table:
    raw = json.loads(Path(__file__).with_name("cards.json").read_text(encoding="utf-8"))
    cards: dict[str, Card] = {}
    known_as: dict[str, str] = {}
    for row in raw["cards"]:
        card = _card(row)
        cards[card.name] = card
        for alias in (card.name, *row.get("aliases", ())):
            folded = _NOT_ALNUM.sub("", alias.casefold())
            known_as[folded] = card.name
            # People leave the family away: 4090, 2080 Ti, 1660 Super.
            short = re.fullmatch(r"(?:rtx|gtx)([1-5]0[5-9]0.*|16[56]0.*)", folded)
            if short:
                known_as.setdefault(short[1], card.name)
    return _Table(
        cards=cards,
        known_as=known_as,
        sources={**raw["sources"], "model": raw["model"]["source"]},
        weights=raw["model"]["weights"],
    )


def _card(row: Mapping[str, Any]) -> Card:
    return Card(
        name=row["name"],
        kind=row["kind"],
        arch=row["arch"],
        sm=row.get("sm"),
        vram_gb=row["vram_gb"],
        bandwidth_gbs=row["bandwidth_gbs"],
        fp32_tflops=row.get("fp32_tflops"),
        fp16_tflops=row.get("fp16_tflops"),
        bf16_native=row["bf16_native"],
        int8_tops=row.get("int8_tops"),
        tdp_w=row.get("tdp_w"),
        gemm32=row.get("gemm32"),
        gemm16=row.get("gemm16"),
        gemm_bf16=row.get("gemm_bf16"),
        note=row.get("note", ""),
        source=row["source"],
        fulfils=tuple(row.get("fulfils", ())),
    )

"""Whether a card suits a job at all, before anybody asks how fast it is. Pure.

Each answer is "" or the rest of a sentence for people. A card in no table is not refused for what is not known
of it. Memory, CPUs and which cards a job names are judged where places are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from freegpu import cards

__all__ = ["PRECISIONS", "SOFTWARE", "no_bf16", "no_kernels", "not_asked_for", "runs_on", "unfit"]

#: what a job may say about its arithmetic; "any" asks for nothing
PRECISIONS = ("any", "bf16")

#: kind of card -> what its programs are written for
SOFTWARE: Mapping[str, str] = {
    "gpu": "CUDA",
    "rocm": "ROCm",
    "xpu": "XPU",
    "tpu": "TPU",
    "hpu": "HPU",
    "cpu": "CPU",
}

_ARCH = re.compile(r"(sm|compute)_([0-9]{1,3})([0-9])[a-z]?")


def unfit(
    card: str, *, precision: str = "any", archs: Iterable[str] = (), named: bool = False
) -> str:
    """Why a job cannot run on this card, "" if it can.

    `precision`: one of PRECISIONS. `archs`: what the PyTorch of the place was built for, as its agents reported
    (`torch.cuda.get_arch_list()`); empty: not known. `named`: the job asks for this very card; then which PyTorch
    it uses there is its own matter, as its `setup` may install one.
    """
    return (
        not_asked_for(card, named=named)
        or (no_bf16(card) if precision == "bf16" else "")
        or ("" if named else no_kernels(card, archs))
    )


def not_asked_for(card: str, *, named: bool) -> str:
    """TPUs, Gaudis, and cards of Intel and AMD run no CUDA program: only a job that names them gets one."""
    kind = cards.kind(card)
    if named or kind in ("gpu", "cpu"):
        return ""
    return f"it runs no CUDA ({SOFTWARE[kind]}): such a chip must be asked for by name"


def no_bf16(card: str) -> str:
    """A card without bf16 in its silicon emulates it: a T4 reaches 2.3 TFLOPS, against 42 in fp16."""
    facts = cards.find(card)
    if facts is None or facts.bf16_native:
        return ""
    fast = cards.precision(facts)
    return f"the job computes in bf16, and a {facts.name} has only {fast}"


def no_kernels(card: str, archs: Iterable[str]) -> str:
    """Every CUDA call fails on a card that PyTorch was not built for, as on Kaggle's P100s in 2026
    (Kaggle/kaggle-cli#1151)."""
    capability, known = cards.capability(card), tuple(archs)
    if capability == (0, 0) or runs_on(capability, known):
        return ""
    return f"the PyTorch there has no kernels for it (sm_{capability[0]}{capability[1]})"


def runs_on(capability: tuple[int, int], archs: Iterable[str]) -> bool:
    """Whether a build for these architectures runs on a card of this compute capability.

    Machine code (`sm_86`) runs on its own major number from its minor one on: an L4 (8.9) takes it. Code that is
    compiled on arrival (`compute_90`) runs on everything from there on. No list at all: nothing speaks against it.
    """
    known = [match for arch in archs if (match := _ARCH.fullmatch(arch))]
    if not known:
        return True
    return any(
        capability >= (major, minor) and (kind == "compute" or capability[0] == major)
        for kind, major, minor in ((m[1], int(m[2]), int(m[3])) for m in known)
    )

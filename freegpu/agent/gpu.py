"""Which NVIDIA cards this machine has and how busy they are, by asking nvidia-smi.

No nvidia-smi, a broken driver and an answer in unknown words all mean the same here: no cards to report.
What a card can do is another matter (the card table, on the orchestrator's side).
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

#: runs a command and returns what it printed; "" if it is not there, fails or takes too long
Runner = Callable[[Sequence[str]], str]

_CARDS = ("nvidia-smi", "--query-gpu=index,name,memory.total,uuid,driver_version")
_USE = ("nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,memory.total")
_FORMAT = "--format=csv,noheader,nounits"


@dataclass(frozen=True)
class Card:
    """A card as its driver reports it."""

    index: int
    #: the driver's name for it, e.g. "Tesla T4"
    name: str
    #: total memory in MiB
    memory_mb: int
    uuid: str
    driver: str


def run(command: Sequence[str], timeout_s: float = 10.0) -> str:
    """What the command printed; "" for any failure. A hung driver may not hang the agent."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def detect(run: Runner = run) -> List[Card]:
    """The cards of this machine, by index; empty if there are none or the driver does not answer."""
    return parse(run((*_CARDS, _FORMAT)))


def capabilities(run: Runner = run) -> Dict[int, float]:
    """Compute capability by index, e.g. 7.5; empty where the driver is too old to tell."""
    found = {}
    for fields in _rows(run(("nvidia-smi", "--query-gpu=index,compute_cap", _FORMAT)), 2):
        index = _whole(fields[0])
        try:
            if index is not None:
                found[index] = float(fields[1])
        except ValueError:
            continue
    return found


def parse(text: str) -> List[Card]:
    """The cards in nvidia-smi's answer; lines that make no sense are left out."""
    cards = []
    for fields in _rows(text, 5):
        index, memory = _whole(fields[0]), _whole(fields[2])
        # MIG parents and some virtual cards report [N/A] for their memory
        if index is not None and fields[1]:
            cards.append(Card(index, fields[1], memory or 0, fields[3], fields[4]))
    return sorted(cards, key=lambda card: card.index)


def parse_use(text: str) -> List[Dict[str, int]]:
    """Use of each card: percent busy and MiB of memory."""
    use = []
    for fields in _rows(text, 4):
        index = _whole(fields[0])
        if index is not None:
            use.append(
                {
                    "index": index,
                    "util": _whole(fields[1]) or 0,
                    "mem_used_mb": _whole(fields[2]) or 0,
                    "mem_total_mb": _whole(fields[3]) or 0,
                }
            )
    return use


def _rows(text: str, width: int) -> List[Tuple[str, ...]]:
    rows = (tuple(part.strip() for part in line.split(",")) for line in text.splitlines())
    return [row for row in rows if len(row) == width]


def _whole(text: str) -> Optional[int]:
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        return None


class Sampler:
    """Looks at the cards' use every `every_s` seconds; runs beside everything else."""

    def __init__(self, run: Runner = run, every_s: float = 15.0) -> None:
        self._run = run
        self._every = every_s
        self._misses = 0
        self.latest: List[Dict[str, Any]] = []

    def step(self) -> Optional[float]:
        """One sample; seconds until the next, None once it is clear that nobody answers."""
        self.latest = list(parse_use(self._run((*_USE, _FORMAT))))
        self._misses = 0 if self.latest else self._misses + 1
        return None if self._misses >= 3 else self._every

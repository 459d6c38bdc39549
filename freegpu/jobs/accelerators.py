"""Which cards a job takes: every way in which SkyPilot lets people say it.

`T4`, `T4:2`, a list (order of preference), a map or YAML set (any of), and the memory form `16GB+`, which
means any card with that much. Names go through the card table; counts of a part of a card become one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from freegpu import cards
from freegpu.jobs.document import Array, Node, Scalar, fail, found, quoted
from freegpu.jobs.kinds import Reading, did_you_mean
from freegpu.jobs.model import Accelerator
from freegpu.jobs.skypilot import CARDS_ELSEWHERE

__all__ = ["Accelerators", "Choice", "card_name"]

#: more cards than any one machine holds
MAX_COUNT = 64
_MEMORY = r"(?i)(?:([a-z]+):)?\s*([0-9]{1,4})\s*GB\s*\+?\s*(?::\s*([0-9]+))?"
_COUNT = r"[0-9]{1,4}(\.[0-9]{1,4})?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The cards that will do; empty with `vram_gb` set: any card of that size."""

    accelerators: tuple[Accelerator, ...] = ()
    ordered: bool = False
    vram_gb: float = 0.0
    #: cards that were named and that no free platform has
    elsewhere: tuple[str, ...] = ()

    @property
    def only_elsewhere(self) -> bool:
        return bool(self.elsewhere) and not self.accelerators


def card_name(text: str) -> str:
    """The card's name in the card table. ValueError ("is not a card ...") if it is in none."""
    card = cards.find(text.strip())
    if card is None:
        message = f"is not a card freegpu knows{did_you_mean(text, cards.names())}"
        raise ValueError(message)
    return card.name


@dataclass(kw_only=True, eq=False, repr=False)
class Accelerators:
    """The kind of `resources.accelerators`."""

    def read(self, node: Node, name: str, reading: Reading) -> Choice:
        if isinstance(node, Scalar):
            if memory := re.fullmatch(_MEMORY, node.text.strip()):
                return _by_memory(node, name, memory)
            asked = [self._one(node, node.text, None, name, reading)]
        elif isinstance(node, Array):
            asked = []
            for at, item in enumerate(node.items):
                if not isinstance(item, Scalar):
                    fail(item, f"{name}[{at}]", f"{name} lists cards, found {found(item)}")
                asked.append(self._one(item, item.text, None, f"{name}[{at}]", reading))
        else:
            asked = [
                self._one(entry.key, key, entry.value, name, reading)
                for key, entry in node.entries.items()
            ]
        if not asked:
            fail(node, name, f"{name} names no card; leave it out to take any")
        chosen = [card for card in asked if isinstance(card, Accelerator)]
        return Choice(
            accelerators=tuple(dict.fromkeys(chosen)),
            ordered=isinstance(node, Array) and len(chosen) > 1,
            elsewhere=tuple(card for card in asked if isinstance(card, str)),
        )

    def _one(
        self, node: Scalar, text: str, value: Node | None, name: str, reading: Reading
    ) -> Accelerator | str:
        """`T4`, `T4:2`, or the key `T4` with a count behind it; the bare name of a card that is elsewhere."""
        label, _, behind = text.partition(":")
        count = behind.strip() if ":" in text else "1"
        if value is not None and not (isinstance(value, Scalar) and value.null):
            if not isinstance(value, Scalar) or ":" in text:
                fail(value, name, f"{name}: the count of {quoted(text[:40])} is {found(value)}")
            count = value.text
        try:
            card = card_name(label)
        except ValueError as error:
            if _elsewhere(label):
                return label.strip()
            if re.match(r"(?i)\s*[0-9]+\s*[gmt]b", label):
                message = f"{name}: {quoted(label[:40])} is a size, and stands alone: {name.split('[')[0]}: 16GB+"
                fail(node, name, message, hint="say freegpu.vram beside names of cards")
            fail(node, name, f"{name}: {quoted(label[:40])} {error}", hint=_known())
        amount = float(count) if re.fullmatch(_COUNT, count) else 0.0
        if not 0 < amount <= MAX_COUNT:
            message = f"{name}: {quoted(count[:20])} is not a number of cards from 1 to {MAX_COUNT}"
            fail(node, name, message)
        if amount != int(amount):
            reading.notice(
                node, f"{name}: {card}:{count} becomes {math.ceil(amount)}: cards are not shared"
            )
        return Accelerator(card=card, count=math.ceil(amount))

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1}
        count = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": MAX_COUNT}
        return {
            "anyOf": [
                text,
                {"type": "array", "items": text, "minItems": 1},
                {"type": "object", "additionalProperties": count, "minProperties": 1},
            ]
        }


def _by_memory(node: Scalar, name: str, memory: re.Match[str]) -> Choice:
    """`16GB+`, `nvidia:16GB`: any card with that much."""
    maker = (memory[1] or "nvidia").casefold()
    if maker != "nvidia":
        message = f"{name}: {found(node)} wants a card of {maker} by its size; name the card"
        fail(node, name, message, hint=_known())
    if int(memory[3] or 1) != 1:
        message = f"{name}: {found(node)} asks for several cards without naming one"
        fail(node, name, message, hint="name the card: T4:2")
    return Choice(vram_gb=float(memory[2]))


def _elsewhere(label: str) -> bool:
    folded = re.sub("[^a-z0-9]", "", label.casefold())
    tpu = re.fullmatch(r"\s*(tpu-v[0-9][a-z]*)-[0-9]{1,4}\s*", label.casefold())
    return folded in CARDS_ELSEWHERE or (
        tpu is not None and tpu[1].replace("-", "") in CARDS_ELSEWHERE
    )


def _known() -> str:
    return f"known cards: {', '.join(cards.names())}"

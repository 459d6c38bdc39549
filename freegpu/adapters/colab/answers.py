"""What Colab and its program say, in our words. Pure: texts and JSON as they came go in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from freegpu.errors import RejectedError

__all__ = ["Answer", "Ccu", "NotFoundError", "Said", "answers", "body", "version"]

_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - ", re.MULTILINE)


class NotFoundError(RejectedError):
    """Colab does not know what was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What the program printed."""

    out: str
    err: str

    @property
    def tail(self) -> str:
        """The last line, for people."""
        lines = (self.out + "\n" + self.err).strip().splitlines()
        return lines[-1].strip()[-200:] if lines else "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A request of the program's and what came back, from its log."""

    method: str
    url: str
    #: 0: nothing came
    status: int
    headers: Mapping[str, str]
    json: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ccu:
    """What ccu-info tells; the shapes are those that Google's VS Code extension reads (colab-vscode, 2026-08)."""

    paid: bool
    #: compute units that are left; None: it is not told
    left: float | None
    refill: datetime | None
    eligible: frozenset[str]
    #: compute units an hour of all that runs, and how many run
    rate: float
    running: int

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        balance = _number(told.get("currentBalance")) or 0.0
        free = told.get("freeCcuQuotaInfo")
        free = free if isinstance(free, dict) else {}
        milli, refill = (
            _number(free.get("remainingTokens")),
            _number(free.get("nextRefillTimestampSec")),
        )
        left = balance if balance > 0 else None if milli is None else milli / 1000
        return cls(
            paid=balance > 0,
            left=left,
            refill=datetime.fromtimestamp(refill, UTC) if refill and balance <= 0 else None,
            eligible=frozenset(map(str, told.get("eligibleGpus") or ())),
            rate=_number(told.get("consumptionRateHourly")) or 0.0,
            running=int(_number(told.get("assignmentsCount")) or 0),
        )


def _number(told: object) -> float | None:
    """A number that may come as a text."""
    try:
        return float(told) if isinstance(told, int | float | str) else None
    except ValueError:
        return None


def body(text: str) -> dict[str, Any]:
    """A JSON object behind Google's guard line; {} for anything else."""
    try:
        told = json.loads(text.removeprefix(")]}'\n") or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def answers(text: str) -> list[Answer]:
    """The requests in the program's log, oldest first: it hides bodies that it does not understand, but logs them."""
    found: list[dict[str, Any]] = []
    for record in _RECORD.split(text):
        name, _, message = record.partition(" - DEBUG - ")
        if name != "colab_cli.client":
            continue
        what, _, rest = message.partition(": ")
        rest = rest.rstrip("\n")
        if what == "Request":
            method, _, url = rest.partition(" ")
            found.append({"method": method, "url": url, "status": 0, "headers": {}, "json": {}})
        elif found and what == "Response":
            found[-1]["status"] = int(rest.split()[0]) if rest[:3].isdigit() else 0
        elif found and what == "Response Headers":
            pairs = re.findall(r"'([^']+)': '([^']*)'", rest)
            found[-1]["headers"] = {key.title(): value for key, value in pairs}
        elif found and what == "Response Body":
            found[-1]["json"] = body(rest)
    return [Answer(**one) for one in found]


def version(said: str) -> tuple[int, ...]:
    """The version in what `colab version` printed; () if there is none."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()

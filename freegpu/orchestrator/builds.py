"""What the PyTorch of a platform was built for, as its agents reported it, kept as a fact of the ledger. Pure.

An agent asks `torch.cuda.get_arch_list()` in its first seconds. A platform's image is the same for all its cards,
so one session there tells about every card; own machines differ, so there each card speaks for itself. What is
older than a month counts no more: images change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

__all__ = ["key", "known", "noted", "told"]

#: how long a report counts
KEPT = timedelta(days=30)


def key(platform: str) -> str:
    """Under which name the ledger keeps it."""
    return f"torch:{platform}"


def told(hello: Mapping[str, Any]) -> tuple[str, ...]:
    """The list in an agent's hello; empty where there is no PyTorch, or no card to ask for."""
    torch = hello.get("torch")
    listed = torch.get("arch_list") if isinstance(torch, Mapping) else None
    return tuple(str(arch) for arch in listed[:64]) if isinstance(listed, list) else ()


def noted(line: str | None, card: str, archs: tuple[str, ...], now: datetime) -> str:
    """The fact with this report in it."""
    found = json.loads(line or "{}")
    found[card] = {"archs": list(archs), "at": now.isoformat()}
    return json.dumps(found, sort_keys=True)


def known(line: str | None, now: datetime, *, one_image: bool) -> dict[str, tuple[str, ...]]:
    """card -> architectures; with `one_image` also "", for any card that did not speak for itself."""
    reports = []
    for card, report in json.loads(line or "{}").items():
        at = datetime.fromisoformat(report["at"])
        if now - at <= KEPT:
            reports.append((at, card, tuple(report["archs"])))
    found = {card: archs for _, card, archs in reports}
    if reports and one_image:
        found[""] = max(reports)[2]
    return found

"""Partial answers: the parameter `fields`, e.g. "nextPageToken,files(id,name,properties/a)"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freegpu.testing.drive_server.model import Refusal


def select(data: Mapping[str, Any], wanted: str) -> dict[str, Any]:
    """What of an answer was asked for. Refusal 400: a text that is no list of fields."""
    chosen: dict[str, Any] = {}
    for part in _parts(wanted):
        if part == "*":
            return dict(data)
        name, inner = part, "*"
        if part.endswith(")"):
            name, _, inner = part[:-1].partition("(")
        if "/" in name:
            name, _, rest = name.partition("/")
            inner = rest if inner == "*" else f"{rest}({inner})"
        if not name.isalnum():
            raise Refusal(400, "invalidParameter", f"Invalid field selection {part}")
        if name not in data:
            continue
        value = data[name]
        if isinstance(value, Mapping):
            chosen[name] = {**chosen.get(name, {}), **select(value, inner)}
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            chosen[name] = [select(entry, inner) for entry in value]
        else:
            chosen[name] = value
    return chosen


def _parts(wanted: str) -> list[str]:
    parts, depth, here = [], 0, ""
    for letter in wanted:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(here)
            here = ""
        elif not letter.isspace():
            here += letter
    if depth:
        raise Refusal(400, "invalidParameter", f"Invalid field selection {wanted}")
    return [*parts, here]

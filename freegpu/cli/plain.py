"""Values as plain JSON, and the one envelope that every command answers in. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import PurePath
from typing import Any

from freegpu.cli.text import iso

__all__ = ["VERSION", "Failure", "envelope", "plain", "to_line"]

#: version of the envelope; a change that breaks a reader raises it
VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One thing that went wrong, as the envelope lists it."""

    code: str
    message: str
    hint: str = ""


def plain(value: Any) -> Any:
    """The value in dicts, lists, text, numbers, booleans and null. TypeError for anything unforeseen.

    Times become ISO 8601 in UTC; bytes become text; infinite and undefined numbers become null.
    """
    if value is None or (isinstance(value, bool | int) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(plain(item) for item in value)
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no plain form")


def envelope(
    command: str,
    *,
    exit_code: int,
    data: Any = None,
    errors: Sequence[Failure] = (),
) -> dict[str, Any]:
    """What `--json` prints. "partial": it was done (exit code 0), but `errors` say what went wrong beside it."""
    status = "error" if exit_code else "partial" if errors else "success"
    return {
        "freegpu_json": VERSION,
        "command": command,
        "status": status,
        "exit_code": exit_code,
        "data": plain(data),
        "errors": [plain(error) for error in errors],
    }


def to_line(document: Any, *, indent: int | None = None) -> str:
    """JSON in ASCII, so that it survives any terminal, locale and half a surrogate pair."""
    return json.dumps(document, indent=indent, allow_nan=False)

"""Amounts as people write them: durations, gigabytes, counts, moments.

Text in, number out; whatever does not fit raises ValueError with the rest of a sentence that begins with
what was found ("is not a duration: ..."). Knows nothing of YAML, fields or files.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = [
    "COUNT_PATTERN",
    "DURATION_PATTERN",
    "SIZE_PATTERN",
    "duration",
    "duration_text",
    "moment",
    "size_gb",
    "size_text",
    "threshold",
]

#: what `duration` takes, for the JSON Schema; the plain form is in seconds
DURATION_PATTERN = r"^\s*([0-9]+(\.[0-9]+)?\s*[dhms]\s*)+$|^\s*[0-9]+(\.[0-9]+)?\s*$"
#: what `size_gb` takes
SIZE_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtTpP]([iI][bB]?|[bB])?)?\s*\+?\s*$"
#: what `threshold` takes
COUNT_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*\+?\s*$"

# plain text on purpose, here and beside: `re` compiles on first use, and most commands read no spec
_PIECE = r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([dhms])\s*"
_NUMBER = r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*"
_SIZE = r"(?i)\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?:([kmgtp])(?:ib?|b)?)?\s*\+?\s*"
_COUNT = r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*\+?\s*"
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_GB = {"k": 1 / 1024**2, "m": 1 / 1024, "g": 1.0, "t": 1024.0, "p": 1024.0**2}


def duration(text: str) -> float:
    """Seconds in `1h30m`, `90s`, `1d 12h`, or a plain number of seconds. ValueError otherwise."""
    if whole := re.fullmatch(_NUMBER, text):
        return float(whole[1])
    seconds, at, units = 0.0, 0, ""
    while at < len(text) < 100 and (piece := re.match(_PIECE, text[at:])):
        seconds += float(piece[1]) * _SECONDS[piece[2]]
        units += piece[2]
        at += piece.end()
    # each unit once and from large to small: "30m1h" and "5m5m" are slips, not durations
    if not units or at < len(text) or units != "".join(u for u in "dhms" if u in units):
        message = "is not a duration: write 90s, 10m, 1h30m or 2d"
        raise ValueError(message)
    return seconds


def size_gb(text: str) -> float:
    """GB in `12`, `12+`, `12GB`, `512MB`, `1.5TB+` (powers of 1024). ValueError otherwise."""
    if not (found := re.fullmatch(_SIZE, text)):
        message = "is not an amount of memory: write 12, 12+ or 512MB (a plain number is in GB)"
        raise ValueError(message)
    return float(found[1]) * _GB[(found[2] or "g").lower()]


def threshold(text: str) -> float:
    """The number in `4`, `4+` or `0.5`. ValueError otherwise."""
    if not (found := re.fullmatch(_COUNT, text)):
        message = "is not a count: write 4 or 4+"
        raise ValueError(message)
    return float(found[1])


def moment(text: str) -> datetime:
    """An aware UTC time from ISO 8601 with a zone. ValueError otherwise, also where the zone is missing."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        message = "is not a time: write 2026-12-06T09:00+08:00"
        raise ValueError(message) from None
    if when.tzinfo is None:
        message = (
            f"has no time zone: add the offset, as in {when.isoformat(timespec='minutes')}+08:00,"
            " or Z for UTC"
        )
        raise ValueError(message)
    try:
        return when.astimezone(UTC)
    except OverflowError:
        message = "is outside the calendar"
        raise ValueError(message) from None


def duration_text(seconds: float) -> str:
    """Seconds as `duration` reads them: `1h30m`, `90s` becomes `1m30s`, 0 is `0s`."""
    whole, text = int(seconds), ""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= size:
            text += f"{whole // size}{unit}"
            whole %= size
    rest = whole + seconds - int(seconds)
    return text + (f"{rest:g}s" if rest or not text else "")


def size_text(size: int) -> str:
    """Bytes for people: `512 B`, `1.5 kB`, `10.0 GB` (powers of 1000, as the settings count)."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} TB"

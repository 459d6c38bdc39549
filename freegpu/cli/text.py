"""Words and columns for people: durations, sizes, safe text, tables that fit. Pure.

Decides how a value reads. Does not know what is printed, nor where: widths and styles are passed in.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = [
    "Column",
    "ago",
    "clip",
    "clock",
    "count",
    "duration",
    "number",
    "pad",
    "safe",
    "size",
    "table",
    "until",
    "width",
]

#: a style by name, or none: "bold", "dim", "good", "bad", "busy"
Paint = Callable[[str, str], str]

#: C0, DEL, C1, line separators, marks that turn the writing direction, lone surrogates
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: object) -> str:
    """One line that can do nothing to a terminal: control characters become visible escapes."""
    return _UNSAFE.sub(_escape, str(text))


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _NAMED.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def width(text: str) -> int:
    """Terminal columns of a safe text: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or char in "\u200c\u200d" or "\ufe00" <= char <= "\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clip(text: str, columns: int) -> str:
    """The text, cut to so many columns with an ellipsis where it is longer."""
    if width(text) <= columns:
        return text
    kept, used = [], 0
    for char in text:
        used += _columns(char)
        if used > columns - 1:
            break
        kept.append(char)
    return "".join(kept) + ("…" if columns > 0 else "")


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text filled with spaces to so many columns."""
    gap = " " * max(0, columns - width(text))
    return gap + text if right else text + gap


# --- values ------------------------------------------------------------------------------------------


def duration(seconds: float | None, *, days: bool = True) -> str:
    """Two units at most: "3 d 4 h", "2 h 10 min", "45 s", "1.5 s"; "-" when not known.

    Without `days` hours go on counting, as quotas are spoken of: "30 h".
    """
    if seconds is None or seconds != seconds:
        return "-"
    if seconds < 0:
        return "-" + duration(-seconds, days=days)
    if seconds == float("inf"):
        return "for ever"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 600 and whole % 60:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24 or not days:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    whole_days, hours = divmod(round(seconds / 3600), 24)
    return f"{whole_days} d {hours} h" if hours else f"{whole_days} d"


def until(moment: datetime | None, now: datetime) -> str:
    """ "in 3 d 4 h", "now" when it has come, "-" when there is none."""
    if moment is None:
        return "-"
    seconds = (moment - now).total_seconds()
    return f"in {duration(seconds)}" if seconds >= 0.5 else "now"


def ago(moment: datetime | None, now: datetime) -> str:
    """ "2 h 10 min ago", "now", "-"."""
    if moment is None:
        return "-"
    seconds = (now - moment).total_seconds()
    return f"{duration(round(seconds))} ago" if seconds >= 0.5 else "now"


def clock(moment: datetime | None) -> str:
    """Local time of day with the date, for lists of past events; "-" when there is none."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else "-"


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC, milliseconds, with Z: what JSON shows."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size(amount: float) -> str:
    """Bytes in decimal units: "0 B", "12.3 kB", "4.0 GB"."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.5 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.95 else f"{amount:.1f} {unit}"


def number(value: float | None) -> str:
    """A step or count without a needless fraction."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def count(amount: int, one: str, many: str = "") -> str:
    """ "1 job", "2 jobs"."""
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


# --- tables ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """How a column is set. A `flex` column gives way when the table is too wide."""

    title: str
    right: bool = False
    flex: bool = False


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str | tuple[str, str]]],
    *,
    room: int | None = None,
    paint: Paint | None = None,
) -> list[str]:
    """Aligned lines with a title line. A cell is text, or (text, style). `room`: columns there are.

    Cells are made safe here. Columns that are empty in every row are left out.
    """
    cells = [
        [(safe(c), "") if isinstance(c, str) else (safe(c[0]), c[1]) for c in row] for row in rows
    ]
    shown = [i for i in range(len(columns)) if not rows or any(row[i][0] for row in cells)]
    widths = {
        i: max([width(columns[i].title), *(width(row[i][0]) for row in cells)]) for i in shown
    }
    if room is not None:
        _shrink(columns, widths, room)
    titles = [(column.title, "dim") for column in columns]
    lines = []
    for row in [titles, *cells]:
        parts = []
        for i in shown:
            text, style = row[i]
            fitted = clip(text, widths[i])
            last = i == shown[-1] and not columns[i].right
            padded = fitted if last else pad(fitted, widths[i], right=columns[i].right)
            parts.append(paint(padded, style) if paint and style else padded)
        lines.append("  ".join(parts).rstrip())
    return lines


def _shrink(columns: Sequence[Column], widths: dict[int, int], room: int) -> None:
    """Take what is missing from the widest flexible columns, then from the widest of all."""
    for least, flexible in ((8, True), (4, False)):
        while sum(widths.values()) + 2 * (len(widths) - 1) > room:
            able = [i for i in widths if widths[i] > least and (columns[i].flex or not flexible)]
            if not able:
                break
            widths[max(able, key=lambda i: widths[i])] -= 1

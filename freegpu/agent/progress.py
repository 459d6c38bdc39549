"""How far a job is, read from what it prints.

Three dialects: our own line `FREEGPU_PROGRESS {"step": 120, "total": 4000, "loss": 0.31}`, the dicts that the
Hugging Face Trainer logs, and tqdm's bars. Pure: bytes in, the latest progress out. It does not know where
the bytes come from, and nothing that a job prints can make it raise.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, Optional, Tuple

#: longest line that is looked at, in bytes; what is longer is no progress
MAX_LINE = 4096
_MAX_FIELDS = 16
_MAX_TEXT = 200

_MARK = b"FREEGPU_PROGRESS"
_OWN = re.compile(rb"FREEGPU_PROGRESS[ \t]+(\{.*\})[ \t]*$")
_TRAINER = re.compile(rb"^\s*(\{['\"](?:loss|train_loss|eval_loss)['\"].*\})\s*$")
#: percentage, bar, n/total, elapsed and left, speed
_BAR = re.compile(
    rb"\d{1,3}%\|[^|\r\n]{0,400}\| *(\d{1,15})/(\d{1,15}) "
    rb"\[[0-9:]{1,16}<[0-9:?]{1,16}, +([0-9.]{1,12}|\?)(it/s|s/it)[^\]\r\n]{0,400}\]"
)
_SOME_BAR = b"%|"
_SOME_DICT = (b"{'loss'", b"{'train_loss'", b"{'eval_loss'", b'{"loss"', b'{"eval_loss"')


class Progress:
    """Reads a stream; `latest` is what is known so far (empty: nothing yet)."""

    def __init__(self) -> None:
        self.latest: Dict[str, Any] = {}
        self._rest = b""
        self._skipping = False
        self._told = False
        self._bar_total = 0

    @property
    def step(self) -> Optional[int]:
        """The last step that was printed, if any."""
        return self.latest.get("step")

    def feed(self, data: bytes) -> Optional[Dict[str, Any]]:
        """Take the next bytes of the stream; returns the progress if it changed."""
        whole = self._rest + data
        cut = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        lines, self._rest = whole[:cut], whole[cut:]
        if self._skipping and cut:
            first = min(at for at in (lines.find(b"\n"), lines.find(b"\r")) if at >= 0)
            lines, self._skipping = lines[first + 1 :], False
        if len(self._rest) > MAX_LINE:
            self._rest, self._skipping = b"", True
        before = dict(self.latest)
        self._read_own(lines)
        # a bar is complete before its line is: the carriage return comes with the next one
        self._read_bars(lines[-4 * MAX_LINE :] + (b"" if self._skipping else self._rest))
        self._read_trainer(lines)
        return dict(self.latest) if self.latest != before else None

    def _read_own(self, lines: bytes) -> None:
        for line in _lines_with(lines, _MARK):
            found = _OWN.search(line)
            told = _plain_fields(found.group(1)) if found else None
            if told is not None:
                # a script that speaks our dialect is believed, and nothing is mixed into what it says
                self.latest = {**self.latest, **told} if self._told else told
                self._told = True
                return

    def _read_trainer(self, lines: bytes) -> None:
        if self._told:
            return
        for mark in _SOME_DICT:
            for line in _lines_with(lines, mark):
                found = _TRAINER.match(line)
                told = _python_fields(found.group(1)) if found else None
                if told is not None:
                    self.latest.update(told)
                    break

    def _read_bars(self, text: bytes) -> None:
        if self._told or _SOME_BAR not in text:
            return
        for found in _BAR.finditer(text):
            step, total = int(found.group(1)), int(found.group(2))
            # an evaluation's short bar runs inside the training's long one, which is the one that counts
            if total < self._bar_total:
                continue
            self._bar_total = 0 if step >= total else total
            self.latest.update(step=step, total=total)
            rate = _rate(found.group(3), found.group(4))
            if rate is not None:
                self.latest["rate"] = rate


def _lines_with(lines: bytes, mark: bytes) -> List[bytes]:
    """The last few lines with this mark, latest first: only the latest that makes sense counts."""
    found: List[bytes] = []
    end = len(lines)
    while len(found) < 4:
        at = lines.rfind(mark, 0, end)
        if at < 0:
            break
        start = max(lines.rfind(b"\n", 0, at), lines.rfind(b"\r", 0, at)) + 1
        stop = min(
            (p for p in (lines.find(b"\n", at), lines.find(b"\r", at)) if p >= 0), default=-1
        )
        line = lines[start:] if stop < 0 else lines[start:stop]
        if len(line) <= MAX_LINE:
            found.append(line)
        end = start
    return found


def _rate(number: bytes, unit: bytes) -> Optional[float]:
    try:
        value = float(number)
    except ValueError:
        return None
    if unit == b"s/it":
        value = 1 / value if value else 0.0
    return round(value, 6) if math.isfinite(value) and value > 0 else None


def _plain_fields(text: bytes) -> Optional[Dict[str, Any]]:
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return _checked(value)


def _python_fields(text: bytes) -> Optional[Dict[str, Any]]:
    import ast

    try:
        value = ast.literal_eval(text.decode("utf-8"))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    if isinstance(value, dict):
        # the Trainer's own names for what we call loss; the others are kept as they are
        value = {str(k): _number(v) for k, v in value.items() if k in _TRAINER_FIELDS}
        if "loss" not in value and "train_loss" in value:
            value["loss"] = value.pop("train_loss")
        value = {key: number for key, number in value.items() if number is not None}
    return _checked(value) if value else None


_TRAINER_FIELDS = ("loss", "train_loss", "eval_loss", "epoch", "learning_rate", "grad_norm", "step")


def _number(value: Any) -> Optional[float]:
    """Newer Trainers print their numbers as text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if good else None


def _no_constant(name: str) -> float:
    message = f"{name} is no number"
    raise ValueError(message)


def _checked(value: Any) -> Optional[Dict[str, Any]]:
    """The fields, if all of them are plain, finite and small; step and total are whole numbers."""
    if not isinstance(value, dict) or len(value) > _MAX_FIELDS:
        return None
    fields: Dict[str, Any] = {}
    for key, item in value.items():
        if item is None:  # a script that does not know its total says null
            continue
        name, good = _field(key, item)
        if not good:
            return None
        fields[name] = int(item) if name in ("step", "total") else item
    return fields


def _field(key: Any, item: Any) -> Tuple[str, bool]:
    name = str(key)
    if not 0 < len(name) <= 64:
        return name, False
    if isinstance(item, bool):
        return name, name not in ("step", "total", "loss", "rate")
    if isinstance(item, str):
        return name, len(item) <= _MAX_TEXT and name not in ("step", "total", "loss", "rate")
    if not isinstance(item, (int, float)):
        return name, False
    if isinstance(item, float) and not math.isfinite(item):
        return name, False
    if name in ("step", "total"):
        return name, item == int(item) and 0 <= item < 10**15
    return name, abs(item) < 1e300

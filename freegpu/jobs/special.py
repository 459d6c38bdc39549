"""Values of the job spec that need more than a kind: names, paths inside the working folder, the matrix.

Checks take a text and return what to keep, or raise ValueError with the rest of a sentence ("is ...").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from freegpu import cards
from freegpu.cards import filters
from freegpu.jobs import units
from freegpu.jobs.accelerators import card_name
from freegpu.jobs.document import Array, Node, Object, Scalar, fail, found, quoted
from freegpu.jobs.kinds import MapOf, Reading, Text, Value, did_you_mean, text_of
from freegpu.jobs.model import Estimate

__all__ = [
    "ENV",
    "MAX_JOBS",
    "MAX_NAME",
    "Axes",
    "Mounts",
    "Names",
    "Secrets",
    "Workdir",
    "estimate",
    "inside",
    "job_name",
    "memory",
    "mount_target",
    "not_blank",
    "secret_name",
]

MAX_NAME = 100
#: jobs that one matrix may make
MAX_JOBS = 1000
#: names of environment variables
ENV = "[A-Za-z_][A-Za-z0-9_]{0,99}"
_DAY = 86400.0
#: names that this version of freegpu knows all of
_CLOSED = {"workload": cards.WORKLOADS, "precision": filters.PRECISIONS}
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"


def not_blank(text: str) -> str:
    if not text.strip():
        message = "is empty: write the command that the job runs"
        raise ValueError(message)
    return text


def job_name(text: str) -> str:
    """A name of 1 to 100 printable characters of any script. ValueError ("is ...") otherwise."""
    if not text.strip():
        message = "is empty"
    elif len(text) > MAX_NAME:
        message = f"has {len(text):,} characters; a name has at most {MAX_NAME}"
    elif not text.isprintable():
        bad = next(c for c in text if not c.isprintable())
        message = f"holds U+{ord(bad):04X}; a name is printable text on one line"
    elif text != text.strip() or text.startswith("-"):
        message = "begins or ends with a space, or begins with a dash"
    else:
        return text
    raise ValueError(message)


def inside(text: str) -> str:
    """A path that stays in the working folder, in its shortest spelling. ValueError otherwise."""
    path = PurePosixPath(text)
    if not text.strip() or str(path) == ".":
        message = "names no file or folder inside the working folder"
    elif path.is_absolute() or text.startswith("~"):
        message = "is not relative to the working folder"
    elif ".." in path.parts:
        message = "leaves the working folder (..)"
    else:
        return str(path)
    raise ValueError(message)


def mount_target(text: str) -> str:
    """As `inside`; SkyPilot's own name for the working folder is understood."""
    for prefix in ("~/sky_workdir/", "/root/sky_workdir/"):
        text = text.removeprefix(prefix)
    return inside(text)


def secret_name(key: str) -> str:
    """The variable that a key of `secrets` means: SkyPilot writes secrets:personal.HF_TOKEN for HF_TOKEN as well."""
    return re.sub(r"^(secrets:)?((personal|workspace|global)\.)?", "", key)


def _word(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", text):
        message = "is not a name: lower-case letters, digits, - and _"
        raise ValueError(message)
    return text


def estimate(text: str) -> Estimate:
    """`6h on T4`, or `6h` alone."""
    how_long, on, card = re.sub(r"\s+", " ", text.strip()).partition(" on ")
    seconds = units.duration(how_long)
    if not 0 < seconds <= 366 * _DAY:
        message = "is not between 1s and 366d"
        raise ValueError(message)
    if not on:
        return Estimate(seconds=seconds)
    try:
        return Estimate(seconds=seconds, card=card_name(card))
    except ValueError as error:
        message = f"names {quoted(card[:40])}, which {error}"
        raise ValueError(message) from None


def memory(text: str) -> tuple[str, float]:
    """("GB", amount), or ("x", times the CPUs) for SkyPilot's `4x`."""
    if ratio := re.fullmatch(r"\s*([0-9]{1,4}(?:\.[0-9]{1,4})?)\s*x\+?\s*", text):
        return "x", float(ratio[1])
    return "GB", units.size_gb(text)


@dataclass(kw_only=True, eq=False, repr=False)
class Names:
    """Platforms, classes of work, precisions: a name, checked against the known ones where they are told."""

    of: str

    def read(self, node: Node, name: str, reading: Reading) -> str:
        text: str = Text(what=f"the name of a {self.of}", check=_word).read(node, name, reading)
        known = reading.platforms if self.of == "platform" else _CLOSED[self.of]
        if known and text not in known:
            message = f"{name}: there is no {self.of} {quoted(text)}{did_you_mean(text, known)}"
            fail(node, name, message, hint=f"known: {', '.join(sorted(known))}")
        return text

    def schema(self) -> dict[str, Any]:
        if self.of in _CLOSED:
            return {"enum": list(_CLOSED[self.of])}
        return {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"}


@dataclass(kw_only=True, eq=False, repr=False)
class Workdir:
    """A local folder; SkyPilot's `{url, ref}` form is refused."""

    def read(self, node: Node, name: str, reading: Reading) -> str:
        if (isinstance(node, Object) and "url" in node.entries) or _is_url(node):
            message = f"{name} must be a folder on this machine, found a repository"
            fail(node, name, message, hint="clone it in setup:")
        return Text(what="a folder on this machine").read(node, name, reading)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "not": {"pattern": "://"}}


@dataclass(kw_only=True, eq=False, repr=False)
class Mounts:
    """Target inside the working folder -> local source, as written: variables are put in when envs are known."""

    def read(self, node: Node, name: str, reading: Reading) -> dict[str, str]:
        if not isinstance(node, Object):
            fail(node, name, f"{name} must map targets to local paths, found {found(node)}")
        mounts: dict[str, str] = {}
        for key, entry in node.entries.items():
            dotted = f"{name}.{key[:80]}"
            if isinstance(entry.value, Object) or _is_url(entry.value):
                message = f"{dotted} is a cloud bucket or URL: freegpu mounts local files only"
                fail(entry.key, dotted, message, hint="download it in setup:")
            source = Text(what="a local path").read(entry.value, dotted, reading)
            try:
                mount_target(key)
            except ValueError as error:
                message = f"{name}: the target {quoted(key[:80])} {error}"
                fail(entry.key, dotted, message, hint="write it relative, as in data/train.csv")
            mounts[key] = source
        return mounts

    def schema(self) -> dict[str, Any]:
        outside = r"^[/~](?!/?(root/)?sky_workdir/)|(^|/)\.\.(/|$)"
        return {
            "type": "object",
            "propertyNames": {"not": {"pattern": outside}},
            "additionalProperties": {"type": "string", "not": {"pattern": "^[A-Za-z0-9+.-]+://"}},
        }


@dataclass(kw_only=True, eq=False, repr=False)
class Secrets(MapOf):
    """Variables to null, or their names alone; SkyPilot's references to a secret that is kept elsewhere count as null."""

    def read(self, node: Node, name: str, reading: Reading) -> dict[str, Any]:
        if isinstance(node, Array):
            keys = [(item, text_of(item, name, what="a name")) for item in node.items]
            found_: dict[str, Any] = {}
            for item, key in keys:
                self.check_key(item, secret_name(key), name)
                found_[secret_name(key)] = None
            return found_
        if not isinstance(node, Object):
            fail(node, name, f"{name} must be a mapping of {self.what}, found {found(node)}")
        values: dict[str, Any] = {}
        for key, entry in node.entries.items():
            variable = secret_name(key)
            self.check_key(entry.key, variable, name)
            value = self.value.read(entry.value, f"{name}.{variable}", reading)
            if value is not None and variable != key:
                message = f"{name}.{variable}: a reference to a secret has no value; leave it empty"
                fail(entry.key, f"{name}.{variable}", message, hint=f"or write {variable}: alone")
            if values.get(variable) is None:  # --set gives a value beside the reference
                values[variable] = value
        return values

    def schema(self) -> dict[str, Any]:
        reference = r"^(secrets:)?((personal|workspace|global)\.)?"
        names = {"pattern": f"{reference}(?!FREEGPU_){self.keys}$"}
        values = self.value.schema()
        return {
            "anyOf": [
                {"type": "object", "propertyNames": names, "additionalProperties": values},
                {"type": "array", "items": {"type": "string", **names}},
            ]
        }


@dataclass(kw_only=True, eq=False, repr=False)
class Axes:
    """The matrix: axis -> its values, each as it was written."""

    def read(self, node: Node, name: str, reading: Reading) -> dict[str, tuple[str, ...]]:
        free = MapOf(value=_Cells(), keys=ENV, what="variables to lists of values")
        axes: dict[str, tuple[str, ...]] = free.read(node, name, reading)
        jobs = 1
        for values in axes.values():
            jobs *= len(values)
        if jobs > MAX_JOBS:
            sizes = " x ".join(str(len(values)) for values in axes.values())
            message = f"{name} makes {jobs:,} jobs ({sizes}); the limit is {MAX_JOBS:,}"
            fail(node, name, message, hint="split it over several files")
        return axes

    def schema(self) -> dict[str, Any]:
        values = {"type": "array", "items": Value().schema(), "minItems": 1}
        return MapOf(value=_Shape(values), keys=ENV, what="").schema()


@dataclass(kw_only=True, eq=False, repr=False)
class _Cells:
    """The values of one axis."""

    def read(self, node: Node, name: str, reading: Reading) -> tuple[str, ...]:
        if not isinstance(node, Array) or not node.items:
            fail(node, name, f"{name} must be a list of at least one value, found {found(node)}")
        values: dict[str, None] = {}
        for item in node.items:
            text = Value().read(item, name, reading)
            if text in values:
                fail(item, name, f"{name}: the value {quoted(str(text)[:40])} stands twice")
            values[str(text)] = None
        return tuple(values)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "minItems": 1}


@dataclass(eq=False, repr=False)
class _Shape:
    """A schema that another kind puts together."""

    shape: dict[str, Any]

    def read(self, node: Node, name: str, reading: Reading) -> None:
        return None

    def schema(self) -> dict[str, Any]:
        return self.shape


def _is_url(node: Node) -> bool:
    return isinstance(node, Scalar) and re.match(_SCHEME, node.text) is not None

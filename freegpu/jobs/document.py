"""YAML text as a tree of nodes that remember where they stand.

Decides what YAML freegpu reads at all: one document, UTF-8, no tags but `!!str`, no key twice, at most
1 MiB, 32 levels and 50,000 values after every alias is followed. A scalar keeps its own text, so that
`3e-4` stays `3e-4` and `no` stays `no`; what a text means is decided by the field that reads it.

The tree is built from parser events, not by yaml.load: nothing here recurses, so a file of a million
brackets costs a refusal and not the process. Does not know any field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import yaml

from freegpu.errors import JobSpecError

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_VALUES",
    "Array",
    "Entry",
    "Node",
    "Object",
    "Scalar",
    "fail",
    "found",
    "one_line",
    "parse",
    "read",
]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 50_000

_TOO_MUCH = "put what is so large into a file of the working folder and let the job read it"
_ALIAS = "write the value out, or put quotes around text that begins with *"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER = r"[-+]?[0-9]{1,18}"
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_BOOLEANS = frozenset({"true", "True", "TRUE", "false", "False", "FALSE"})
#: what YAML calls non-printable; libyaml reports only a byte offset for it
_UNPRINTABLE = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_STR_TAGS = ("!", "tag:yaml.org,2002:str")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A single value, as it was written."""

    text: str
    #: neither quoted nor a block: may mean a number, a boolean or nothing
    plain: bool
    #: the file, or "--set KEY"
    origin: str
    #: counted from 1; None on the command line
    line: int | None
    depth: int = 1
    weight: int = 1

    @property
    def null(self) -> bool:
        return self.plain and self.text in _NULLS

    @property
    def integer(self) -> int | None:
        """The whole number that this is, if it is one."""
        return int(self.text) if self.plain and re.fullmatch(_INTEGER, self.text) else None

    @property
    def number(self) -> bool:
        """Whether this was written as a number of any kind."""
        return self.plain and re.fullmatch(_FLOAT, self.text) is not None

    @property
    def boolean(self) -> bool:
        return self.plain and self.text in _BOOLEANS


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A list."""

    items: tuple[Node, ...]
    origin: str
    line: int | None
    depth: int = 1
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key and what stands behind it."""

    key: Scalar
    value: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """A mapping; keys are unique, in the order of the file."""

    entries: Mapping[str, Entry]
    origin: str
    line: int | None
    depth: int = 1
    weight: int = 1

    def get(self, key: str) -> Node | None:
        """The value of `key`, None if it is not there."""
        entry = self.entries.get(key)
        return entry.value if entry else None

    def with_value(self, key: str, value: Node) -> Object:
        """The same mapping with one value set. Aliased copies elsewhere keep the old one."""
        old = self.entries.get(key)
        name = old.key if old else Scalar(text=key, plain=True, origin=value.origin, line=None)
        entries = {**self.entries, key: Entry(key=name, value=value)}
        return Object(entries=MappingProxyType(entries), origin=self.origin, line=self.line)


Node = Scalar | Array | Object


def one_line(message: str) -> str:
    """A message that a terminal shows as one line of sensible length, whatever was quoted in it."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
    return shown if len(shown) < 400 else f"{shown[:240]} ... {shown[-120:]}"


def fail(node: Node, field: str, message: str, *, hint: str = "") -> NoReturn:
    """Raise the JobSpecError that points at this node."""
    raise JobSpecError(
        one_line(message), hint=hint, path=node.origin, line=node.line, field=one_line(field)
    )


def found(node: Node) -> str:
    """What stands there, for a message: a list, the number 5, the text 'abc'. Never longer than a line."""
    if isinstance(node, Array):
        return "a list" if node.items else "an empty list"
    if isinstance(node, Object):
        return "a mapping" if node.entries else "an empty mapping"
    if node.null:
        return "nothing"
    text = node.text if len(node.text) <= 40 else node.text[:37] + "..."
    if node.boolean:
        return text
    return f"the number {text}" if node.number else f"the text {quoted(text)}"


def quoted(text: str) -> str:
    """The text in quotes, with what would garble a terminal escaped; letters of any script stay."""
    return repr(text)


def read(path: Path) -> str:
    """The text of a file. JobSpecError: missing, a folder, unreadable, too large or not UTF-8."""
    where = one_line(str(path))
    try:
        with open(path, "rb", opener=_at_once) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise JobSpecError("there is no such file", hint=_neighbours(path), path=where) from None
    except IsADirectoryError:
        inside = next((n for n in ("job.yaml", "job.yml") if (path / n).is_file()), "")
        hint = f"did you mean {path / inside}?" if inside else "name the YAML file in it"
        raise JobSpecError("it is a folder, not a job spec", hint=hint, path=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "check its permissions, and that it is a file"
        raise JobSpecError(f"it cannot be read: {reason}", hint=hint, path=where) from error
    if len(data) > MAX_BYTES:
        message = f"it is larger than {MAX_BYTES >> 20} MiB, no job spec"
        raise JobSpecError(message, hint=_TOO_MUCH, path=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte {data[error.start]:#04x} is not UTF-8"
        hint = "save the file as UTF-8"
        raise JobSpecError(message, hint=hint, path=where, line=line) from None


def _at_once(path: str, flags: int) -> int:
    """Open without waiting: a named pipe that nobody writes into would hold a command up for ever, without a word."""
    found = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(found, True)
    return found


def _neighbours(path: Path) -> str:
    """What is there instead of a file that is not: YAML files in the same folder, the nearest name first."""
    try:
        names = [name for name in os.listdir(path.parent) if name.endswith((".yaml", ".yml"))]
    except OSError:
        return f"there is no folder {one_line(str(path.parent))}"
    if not names:
        return "name the YAML file of a job; the smallest one is one line: run: echo hello"
    import difflib

    near = difflib.get_close_matches(path.name, sorted(names), n=1, cutoff=0.0)[0]
    return f"did you mean {one_line(str(path.parent / near))}?"


def parse(text: str, origin: str, *, line: int | None = 1) -> Node:
    """The tree of one YAML document; `line=None` leaves line numbers out. JobSpecError: see the module."""
    builder = _Builder(origin, numbered=line is not None)
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES:
        builder.refuse(f"more than {MAX_BYTES >> 20} MiB of YAML", 0, hint=_TOO_MUCH)
    if bad := re.search(_UNPRINTABLE, text):
        at = text.count("\n", 0, bad.start())
        hint = "take it out; in double quotes it may be written as an escape"
        builder.refuse(f"the character U+{ord(bad[0]):04X} is not allowed in YAML", at, hint=hint)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = mark.line if mark else 0
        lines = text.splitlines()
        tab = at < len(lines) and "\t" in lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        if tab or "'\\t'" in (error.problem or ""):
            builder.refuse("a tab stands where YAML wants spaces", at, hint="indent with spaces")
        hint = "look at quotes, brackets and indentation there and just above"
        problem = error.problem or error.context or "unreadable"
        builder.refuse(f"not valid YAML: {problem}", at, hint=hint)
    except yaml.YAMLError as error:
        hint = "the smallest job is one line: run: echo hello"
        builder.refuse(f"not valid YAML: {' '.join(str(error).split())[:200]}", 0, hint=hint)
    return builder.result()


def _events(text: str) -> Iterator[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        while loader.check_event():
            yield loader.get_event()
    finally:
        loader.dispose()


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been seen."""

    line: int
    anchor: str | None
    mapping: bool
    items: list[Node]
    entries: dict[str, Entry]
    key: Scalar | None = None


class _Builder:
    """Takes parser events one by one and holds the tree that they make."""

    def __init__(self, origin: str, *, numbered: bool) -> None:
        self.origin = origin
        self.numbered = numbered
        self.open: list[_Open] = []
        self.anchors: dict[str, Node] = {}
        self.pending: set[str] = set()
        self.weight = 0
        self.documents: list[Node] = []

    def refuse(self, message: str, line: int, *, hint: str = "") -> NoReturn:
        """`line` counts from 0, as the parser does."""
        number = line + 1 if self.numbered else None
        raise JobSpecError(one_line(message), hint=hint, path=self.origin, line=number)

    def result(self) -> Node:
        filled = [d for d in self.documents if not (isinstance(d, Scalar) and d.null)]
        if not filled:
            self.refuse(
                "the file is empty", 0, hint="the smallest job is one line: run: echo hello"
            )
        if len(filled) > 1:
            raise JobSpecError(
                f"the file holds {len(filled)} YAML documents (a pipeline); a job spec is one",
                hint="write one file a job and order them with freegpu.after",
                path=self.origin,
                line=filled[1].line,
            )
        return filled[0]

    def take(self, event: Any) -> None:
        line = event.start_mark.line
        if isinstance(event, yaml.ScalarEvent):
            self._check_tag(event.tag, line)
            plain = not event.style and event.tag is None  # "" from libyaml, None from Python
            node = Scalar(
                text=event.value, plain=plain, origin=self.origin, line=self._number(line)
            )
            self._name(event.anchor, node)
            self._add(node, line)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._check_tag(event.tag, line, container=True)
            if len(self.open) >= MAX_DEPTH:
                self.refuse(f"more than {MAX_DEPTH} levels deep", line, hint=_TOO_MUCH)
            mapping = isinstance(event, yaml.MappingStartEvent)
            if event.anchor:
                self.pending.add(event.anchor)
            self.open.append(_Open(line, event.anchor, mapping, [], {}))
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            top = self.open.pop()
            self.pending.discard(top.anchor or "")
            node_ = self._close(top)
            self._name(top.anchor, node_)
            self._add(node_, line)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in self.pending:
                self.refuse(f"*{event.anchor} refers to itself", line, hint=_ALIAS)
            if event.anchor not in self.anchors:
                self.refuse(f"*{event.anchor} refers to nothing above it", line, hint=_ALIAS)
            self._add(self.anchors[event.anchor], line)

    def _number(self, line: int) -> int | None:
        return line + 1 if self.numbered else None

    def _check_tag(self, tag: str | None, line: int, *, container: bool = False) -> None:
        if tag is not None and (container or tag not in _STR_TAGS):
            short = tag.replace("tag:yaml.org,2002:", "!!")
            self.refuse(f"the YAML tag {short[:60]} is not allowed", line, hint="leave the tag out")

    def _name(self, anchor: str | None, node: Node) -> None:
        if anchor:
            self.anchors[anchor] = node

    def _close(self, top: _Open) -> Node:
        line = self._number(top.line)
        if not top.mapping:
            depth = 1 + max((item.depth for item in top.items), default=0)
            weight = 1 + sum(item.weight for item in top.items)
            self._check_size(depth, weight, top.line)
            return Array(
                items=tuple(top.items), origin=self.origin, line=line, depth=depth, weight=weight
            )
        entries = self._merged(top)
        depth = 1 + max((entry.value.depth for entry in entries.values()), default=0)
        weight = 1 + sum(1 + entry.value.weight for entry in entries.values())
        self._check_size(depth, weight, top.line)
        return Object(
            entries=MappingProxyType(entries),
            origin=self.origin,
            line=line,
            depth=depth,
            weight=weight,
        )

    def _check_size(self, depth: int, weight: int, line: int) -> None:
        if weight > MAX_VALUES:
            message = f"more than {MAX_VALUES:,} values once its aliases are followed"
            self.refuse(message, line, hint=_TOO_MUCH)
        if depth > MAX_DEPTH:
            self.refuse(f"more than {MAX_DEPTH} levels deep", line, hint=_TOO_MUCH)

    def _merged(self, top: _Open) -> dict[str, Entry]:
        """The entries with `<<: *base` filled in: what stands in the mapping itself wins."""
        merge = top.entries.get("<<")
        if merge is None or not merge.key.plain:
            return top.entries
        bases = merge.value.items if isinstance(merge.value, Array) else (merge.value,)
        own = {key: entry for key, entry in top.entries.items() if key != "<<"}
        for base in bases:
            if not isinstance(base, Object):
                hint = "write <<: *name, with &name at a mapping above"
                self.refuse(
                    f"<< wants a mapping to merge, found {found(base)}", top.line, hint=hint
                )
            for key, entry in base.entries.items():
                own.setdefault(key, entry)
        return own

    def _add(self, node: Node, line: int) -> None:
        if not self.open:
            self.documents.append(node)
            return
        top = self.open[-1]
        if not top.mapping:
            top.items.append(node)
            return
        if top.key is None:
            if not isinstance(node, Scalar):
                hint = "put text in front of the colon; braces and brackets in text want quotes"
                self.refuse(f"a key is text, found {found(node)}", line, hint=hint)
            if node.text in top.entries:
                first = top.entries[node.text].key.line
                also = f" (first on line {first})" if first else ""
                message = f"the key {quoted(node.text[:60])} stands twice{also}"
                self.refuse(message, line, hint="take one of them out")
            top.key = node
            return
        top.entries[top.key.text] = Entry(key=top.key, value=node)
        top.key = None

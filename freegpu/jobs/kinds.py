"""The kinds of values a job spec holds: how each is read, and how it looks in the JSON Schema.

One object a kind does both, so that the parser and the schema say the same. A kind gets a node and the
dotted name of its field; it returns a plain value or raises JobSpecError at that node. Which fields there
are is decided in table.py.

Kinds are dataclasses without comparison and repr: nobody compares them, and each generated method costs
time at import, which every `submit` pays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from freegpu.errors import JobSpecError
from freegpu.jobs.document import Array, Node, Object, Scalar, fail, found, quoted

__all__ = [
    "Anything",
    "Field",
    "Group",
    "Integer",
    "Kind",
    "ListOf",
    "MapOf",
    "Only",
    "Parsed",
    "Reading",
    "Section",
    "Text",
    "Value",
    "did_you_mean",
    "nearest",
    "text_of",
]

_NO_TEXT = "only text can be kept here; put other bytes into a file of the working folder"
#: the largest text that one environment variable may hold on Linux, less its name
MAX_VALUE_BYTES = 100_000


@dataclass(kw_only=True, slots=True)
class Reading:
    """What a reader brings along, and what it gathers."""

    #: platforms that exist; empty: any well-formed name is taken
    platforms: Collection[str] = ()
    notices: list[str] = field(default_factory=list)

    def notice(self, node: Node, text: str) -> None:
        """A line for the user about something that is legal and has no effect."""
        where = f"{node.origin}:{node.line}" if node.line else node.origin
        self.notices.append(f"{where}: {text}")


class Kind(Protocol):
    """How one kind of value is read and described."""

    def read(self, node: Node, name: str, reading: Reading) -> Any:
        """The value in this node; JobSpecError if it is not one."""
        ...

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the values that `read` takes."""
        ...


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that was probably meant, "" if none is near. Case does not matter."""
    import difflib

    folded = {name.casefold(): name for name in sorted(names, reverse=True)}
    # T5 and T4 share half of their letters: short words need a lower bar to find anything
    bar = 0.5 if len(word) <= 3 else 0.6
    close = difflib.get_close_matches(word.casefold()[:100], folded, n=1, cutoff=bar)
    return folded[close[0]] if close else ""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    near = nearest(word, names)
    return f"; did you mean {near}?" if near else ""


def text_of(node: Node, name: str, *, what: str = "text") -> str:
    """The text of a scalar that is meant as text: a bare number or true/false is a slip."""
    if not isinstance(node, Scalar) or node.null:
        fail(node, name, f"{name} must be {what}, found {found(node)}")
    if node.number or node.boolean:
        fail(
            node,
            name,
            f"{name} must be {what}, found {found(node)}",
            hint=f'put it in quotes if it is text: "{node.text}"',
        )
    check_storable(node, name)
    return node.text


def check_storable(node: Scalar, name: str) -> None:
    """Text that no environment, file name or database takes is refused here, not three hours later."""
    if "\0" in node.text:
        fail(node, name, f"{name} holds a NUL character", hint=_NO_TEXT)
    try:
        node.text.encode()
    except UnicodeEncodeError:
        message = f"{name} holds half a surrogate pair or a byte that is not UTF-8: no character"
        fail(node, name, message, hint=_NO_TEXT)


@dataclass(kw_only=True, eq=False, repr=False)
class Text:
    """Text, perhaps checked: `check` returns the text to keep or raises ValueError with "is ..."."""

    what: str = "text"
    check: Callable[[str], str] | None = None
    pattern: str = ""

    def read(self, node: Node, name: str, reading: Reading) -> str:
        text = text_of(node, name, what=self.what)
        if self.check is None:
            return text
        try:
            return self.check(text)
        except ValueError as error:
            fail(node, name, f"{name}: {found(node)} {error}")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", **({"pattern": self.pattern} if self.pattern else {})}


@dataclass(kw_only=True, eq=False, repr=False)
class Value:
    """Any single value, kept as the text that was written; None for null where `null` allows it.

    Never shown in a message: it may be a secret.
    """

    null: bool = False

    def read(self, node: Node, name: str, reading: Reading) -> str | None:
        if not isinstance(node, Scalar):
            fail(node, name, f"{name} must be a single value, found {found(node)}")
        if node.null:
            if not self.null:
                fail(node, name, f'{name} must be a value, found nothing; write "" for empty text')
            return None
        check_storable(node, name)
        if len(node.text.encode()) > MAX_VALUE_BYTES:
            fail(node, name, f"{name} is longer than {MAX_VALUE_BYTES:,} bytes: put it in a file")
        return node.text

    def schema(self) -> dict[str, Any]:
        return {"type": ["string", "number", "boolean", *(["null"] if self.null else [])]}


@dataclass(kw_only=True, eq=False, repr=False)
class Integer:
    """A whole number in a range; `word`, if given, is a text that stands for "without limit" (None)."""

    low: int
    high: int
    word: str = ""

    def read(self, node: Node, name: str, reading: Reading) -> int | None:
        if self.word and isinstance(node, Scalar) and node.text == self.word:
            return None
        number = node.integer if isinstance(node, Scalar) else None
        if number is None or not self.low <= number <= self.high:
            orelse = f" or {self.word}" if self.word else ""
            message = f"{name} must be a whole number from {self.low} to {self.high:,}{orelse}"
            fail(node, name, f"{message}, found {found(node)}")
        return number

    def schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [number, {"const": self.word}]} if self.word else number


@dataclass(kw_only=True, eq=False, repr=False)
class Parsed:
    """A text or number that `parse` turns into a value, or refuses with ValueError ("is not ...")."""

    what: str
    parse: Callable[[str], Any]
    pattern: str
    #: inclusive limits of what `parse` returns, in its unit; None: not a number
    low: float | None = None
    high: float | None = None
    #: whether a bare number is taken
    number: bool = True
    #: the limits as people write them
    limits: str = ""

    def read(self, node: Node, name: str, reading: Reading) -> Any:
        if not isinstance(node, Scalar) or node.null or node.boolean:
            fail(node, name, f"{name} must be {self.what}, found {found(node)}")
        try:
            value = self.parse(node.text)
        except ValueError as error:
            fail(node, name, f"{name}: {found(node)} {error}")
        if (self.low is not None and value < self.low) or (
            self.high is not None and value > self.high
        ):
            fail(node, name, f"{name} must be {self.limits}, found {found(node)}")
        return value

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "pattern": self.pattern}
        return {"anyOf": [{"type": "number", "minimum": 0}, text]} if self.number else text


@dataclass(kw_only=True, eq=False, repr=False)
class ListOf:
    """A list without repeats; one single value is taken for a list of one."""

    item: Kind
    what: str

    def read(self, node: Node, name: str, reading: Reading) -> tuple[Any, ...]:
        if isinstance(node, Object):
            fail(node, name, f"{name} must be a list of {self.what}, found {found(node)}")
        items = node.items if isinstance(node, Array) else (node,)
        if not items:
            fail(node, name, f"{name} is an empty list; leave it out, or name {self.what}")
        values = [
            self.item.read(item, name if isinstance(node, Scalar) else f"{name}[{at}]", reading)
            for at, item in enumerate(items)
        ]
        return tuple(dict.fromkeys(values))

    def schema(self) -> dict[str, Any]:
        one = self.item.schema()
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


@dataclass(kw_only=True, eq=False, repr=False)
class MapOf:
    """A mapping with free keys."""

    value: Kind
    #: a regular expression for keys, and what it means
    keys: str
    what: str

    def read(self, node: Node, name: str, reading: Reading) -> dict[str, Any]:
        if not isinstance(node, Object):
            fail(node, name, f"{name} must be a mapping of {self.what}, found {found(node)}")
        values = {}
        for key, entry in node.entries.items():
            self.check_key(entry.key, key, name)
            values[key] = self.value.read(entry.value, f"{name}.{key}", reading)
        return values

    def check_key(self, node: Node, key: str, name: str) -> None:
        """JobSpecError if the key is no name of a variable, or is one of ours."""
        if not re.fullmatch(self.keys, key):
            shown = quoted(key[:60])
            message = f"{shown} in {name} is not a name: letters, digits and _, no digit first"
            fail(node, f"{name}.{key[:60]}", message)
        if key.startswith("FREEGPU_"):
            message = (
                f"{key[:60]} in {name} is reserved: freegpu sets the FREEGPU_ variables itself"
            )
            fail(node, f"{name}.{key[:60]}", message)

    def schema(self) -> dict[str, Any]:
        names = {"pattern": f"^(?!FREEGPU_){self.keys}$"}
        return {
            "type": "object",
            "propertyNames": names,
            "additionalProperties": self.value.schema(),
        }


@dataclass(kw_only=True, eq=False, repr=False)
class Only:
    """One allowed value; anything else is refused with the reason."""

    number: int
    why: str

    def read(self, node: Node, name: str, reading: Reading) -> int:
        if not isinstance(node, Scalar) or node.integer != self.number:
            fail(node, name, f"{name} must be {self.number}, found {found(node)}: {self.why}")
        return self.number

    def schema(self) -> dict[str, Any]:
        return {"const": self.number}


@dataclass(kw_only=True, eq=False, repr=False)
class Anything:
    """A value that is not looked at: its field is ignored or refused."""

    def read(self, node: Node, name: str, reading: Reading) -> None:
        return None

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(kw_only=True, eq=False, repr=False)
class Field:
    """One field of the job spec: all that the parser, the schema and the reference page need."""

    name: str
    kind: Kind = field(default_factory=Anything)
    #: one sentence
    about: str = ""
    #: what holds where the field is missing, in words
    default: str = ""
    #: an example, as YAML would hold it
    example: Any = None
    #: why the field has no effect here
    ignored: str = ""
    #: why a file that has it cannot run here
    refused: str = ""

    @property
    def shown(self) -> str:
        """How it may be written, as a hint; "" where there is no example."""
        if self.example is None:
            return ""
        return f"for example {self.name}: {json.dumps(self.example, ensure_ascii=False)}"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A mapping that was read: values by field name, and the nodes they came from."""

    node: Object
    values: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, or the default where it was left out or null."""
        return self.values.get(name, default)

    def at(self, name: str) -> Node:
        """The node of a field, for errors; the whole mapping where the field is missing."""
        return self.node.get(name) or self.node


@dataclass(kw_only=True, eq=False, repr=False)
class Group:
    """A mapping with fixed fields. A field that is null counts as left out."""

    fields: tuple[Field, ...]
    #: fields that live in another section, by name: what to say instead of "unknown"
    elsewhere: Callable[[str], str] = lambda name: ""
    required: tuple[str, ...] = ()

    def field(self, name: str) -> Field | None:
        return next((one for one in self.fields if one.name == name), None)

    @property
    def usable(self) -> tuple[str, ...]:
        """Names of the fields that may be written."""
        return tuple(one.name for one in self.fields if not one.refused)

    def read(self, node: Node, name: str, reading: Reading) -> Section:
        if not isinstance(node, Object):
            fail(node, name, f"{name or 'a job spec'} must be a mapping, found {found(node)}")
        values: dict[str, Any] = {}
        for key, entry in node.entries.items():
            dotted = f"{name}.{key}" if name else key
            known = self.field(key)
            if known is None:
                self.unknown(entry.key, key, name)
            if isinstance(entry.value, Scalar) and entry.value.null:
                continue
            if known.refused:
                message = f"{dotted} is not possible here: {known.refused}"
                fail(entry.key, dotted, message, hint="take the field out")
            if known.ignored:
                reading.notice(entry.key, f"{dotted} is ignored: {known.ignored}")
                continue
            try:
                values[key] = known.kind.read(entry.value, dotted, reading)
            except JobSpecError as error:
                error.hint = error.hint or known.shown
                raise
        for key in self.required:
            if key not in values:
                one = next(one for one in self.fields if one.name == key)
                message = f"{key} is missing: {one.about.rstrip('.')}"
                fail(node.get(key) or node, key, message, hint=one.shown)
        return Section(node=node, values=values)

    def unknown(self, node: Scalar, key: str, name: str) -> NoReturn:
        """Raise the error for a field that is not here, with the one that was probably meant."""
        dotted = f"{name}.{key[:60]}" if name else key[:60]
        where = f" in {name}" if name else ""
        near = nearest(key, self.usable)
        if near:
            meant = f"; did you mean {near}?"
        elif there := self.elsewhere(key):
            meant = f"; did you mean {there}?"
        else:
            meant = ""
        useful = [one.name for one in self.fields if not one.refused and not one.ignored]
        hint = f"{name or 'a job spec'} takes {', '.join(useful)}"
        fail(node, dotted, f"unknown field {quoted(key[:60])}{where}{meant}", hint=hint)

    def schema(self) -> dict[str, Any]:
        properties = {}
        for one in self.fields:
            if not one.refused:
                properties[one.name] = _described(one, null=one.name not in self.required)
        required = {"required": list(self.required)} if self.required else {}
        return {
            "type": "object",
            "additionalProperties": False,
            **required,
            "properties": properties,
        }


def _described(one: Field, *, null: bool) -> dict[str, Any]:
    if one.ignored:
        return {"description": f"Ignored: {one.ignored}.", "deprecated": True}
    shape = one.kind.schema()
    about = f"{one.about} Default: {one.default}." if one.default else one.about
    examples = {} if one.example is None else {"examples": [one.example]}
    if not null:
        return {"description": about, **examples, **shape}
    return {"description": about, **examples, "anyOf": [shape, {"type": "null"}]}

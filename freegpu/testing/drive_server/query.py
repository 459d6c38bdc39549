"""The language of `q` in files.list, as documented in "Search query terms and operators" of Drive v3.

Terms: name, mimeType, trashed, starred, createdTime, modifiedTime, 'x' in parents, 'x' in owners,
properties and appProperties has {key='k' and value='v'}; and, or, not, parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Seen = Mapping[str, Any]
Test = Callable[[Seen], bool]

_TOKEN = re.compile(r"\s*(?:'((?:[^'\\]|\\.)*)'|(<=|>=|!=|[=<>(){}])|([A-Za-z]+))", re.DOTALL)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_TEXTS = ("name", "mimeType", "createdTime", "modifiedTime")


def parse(text: str) -> Test:
    """The query as a test of a file's resource. ValueError: it is not in the language."""
    words: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"q: cannot read {text[at : at + 20]!r}")
        at = match.end()
        if match[1] is not None:
            words.append(("text", re.sub(r"\\(.)", r"\1", match[1])))
        else:
            words.append(("word", match[2] or match[3]))
    reader = _Reader(words)
    test = reader.either()
    if reader.words:
        raise ValueError(f"q: {reader.words[0][1]!r} was not expected")
    return test


class _Reader:
    def __init__(self, words: list[tuple[str, str]]) -> None:
        self.words = words

    def take(self, kind: str, *allowed: str) -> str:
        if (
            not self.words
            or self.words[0][0] != kind
            or (allowed and self.words[0][1] not in allowed)
        ):
            found = self.words[0][1] if self.words else "the end"
            raise ValueError(f"q: {found!r} instead of {' or '.join(allowed) or kind}")
        return self.words.pop(0)[1]

    def sees(self, word: str) -> bool:
        if self.words and self.words[0] == ("word", word):
            self.words.pop(0)
            return True
        return False

    def either(self) -> Test:
        tests = [self.both()]
        while self.sees("or"):
            tests.append(self.both())
        return lambda seen: any(test(seen) for test in tests)

    def both(self) -> Test:
        tests = [self.one()]
        while self.sees("and"):
            tests.append(self.one())
        return lambda seen: all(test(seen) for test in tests)

    def one(self) -> Test:
        if self.sees("not"):
            inner = self.one()
            return lambda seen: not inner(seen)
        if self.sees("("):
            inner = self.either()
            self.take("word", ")")
            return inner
        if self.words and self.words[0][0] == "text":
            value = self.take("text")
            self.take("word", "in")
            where = self.take("word", "parents", "owners")
            return (lambda seen: value == "me") if where == "owners" else _among(where, value)
        name = self.take(
            "word", *_TEXTS, "trashed", "starred", "sharedWithMe", "properties", "appProperties"
        )
        if name in ("properties", "appProperties"):
            return self._has(name)
        if name not in _TEXTS:
            operator = self.take("word", "=", "!=")
            wanted = (self.take("word", "true", "false") == "true") == (operator == "=")
            return lambda seen: bool(seen.get(name, False)) == wanted
        operator = self.take("word", *_ORDER, "contains")
        value = self.take("text")
        if operator == "contains":
            return lambda seen: _contains(str(seen[name]), value)
        return lambda seen: _ORDER[operator](seen[name], value)

    def _has(self, name: str) -> Test:
        pair = {}
        self.take("word", "has")
        self.take("word", "{")
        for number in range(2):
            field = self.take("word", "key", "value")
            self.take("word", "=")
            pair[field] = self.take("text")
            self.take("word", "}" if number else "and")
        if len(pair) != 2:
            raise ValueError(f"q: {name} has needs a key and a value")
        return lambda seen: seen.get(name, {}).get(pair["key"]) == pair["value"]


def _among(where: str, value: str) -> Test:
    return lambda seen: value in seen.get(where, ())


def _contains(name: str, value: str) -> bool:
    """Drive's `contains` matches the beginnings of words only: 'Hello' is in HelloWorld, 'World' is not."""
    name, value = name.casefold(), value.casefold()
    return re.search(rf"(?:^|[\W_]){re.escape(value)}", name) is not None

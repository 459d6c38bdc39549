"""`--set KEY=VALUE`: changes to a job spec before it is read, so that they are checked like the file.

KEY is a dotted field (`freegpu.priority`), a variable (`envs.LR`, `secrets.TOKEN`), or a bare NAME in capitals,
which means the variable that the spec declares under that name. A variable that is an axis of the matrix is
pinned to the value. Messages name the key and never the value: it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType

from freegpu.errors import JobSpecError
from freegpu.jobs.document import (
    Array,
    Entry,
    Node,
    Object,
    Scalar,
    fail,
    found,
    one_line,
    parse,
    quoted,
)
from freegpu.jobs.kinds import Group, Kind, MapOf, Text, nearest
from freegpu.jobs.special import Axes, Mounts, Names, Workdir, secret_name
from freegpu.jobs.table import ROOT

__all__ = ["apply"]

_CAPITALS = r"[A-Z_][A-Z0-9_]*"


def apply(root: Object, overrides: Sequence[str]) -> Object:
    """The spec with every override in place, in order. JobSpecError names the one that does not fit."""
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip()
        origin = one_line(f"--set {key[:80]}")
        if not equals or not key:
            shown = quoted(key[:80])
            raise JobSpecError(f"{shown} is not KEY=VALUE", path="--set", hint="--set envs.LR=1e-3")
        root = _set(root, ROOT, "", _address(root, key, origin), value, origin)
    return root


def _address(root: Object, key: str, origin: str) -> str:
    """The dotted field that a key means."""
    if "." not in key and ROOT.field(key) is None and re.fullmatch(_CAPITALS, key):
        key = _declared(root, key, origin)
    section, _, name = key.partition(".")
    if section == "envs" and name in _keys(_matrix(root)):
        return f"freegpu.matrix.{name}"
    return key


def _declared(root: Object, name: str, origin: str) -> str:
    """Where a bare variable belongs. One that is only near to a declared one is a slip."""
    secrets = map(secret_name, _keys(root.get("secrets")))
    places = {variable: f"secrets.{variable}" for variable in secrets}
    for node in (_matrix(root), root.get("envs")):
        places.update({key: f"envs.{key}" for key in _keys(node)})
    if name not in places and (near := nearest(name, places)):
        raise JobSpecError(
            f"the spec has no variable {name}; did you mean {near}?",
            hint=f"a new variable is added with --set envs.{name}=...",
            path=origin,
            field=name,
        )
    return places.get(name, f"envs.{name}")


def _matrix(root: Object) -> Node | None:
    section = root.get("freegpu")
    return section.get("matrix") if isinstance(section, Object) else None


def _keys(node: Node | None) -> tuple[str, ...]:
    if isinstance(node, Object):
        return tuple(node.entries)
    if isinstance(node, Array):
        return tuple(item.text for item in node.items if isinstance(item, Scalar))
    return ()


def _set(node: Object, group: Group, name: str, rest: str, value: str, origin: str) -> Object:
    key, dot, deeper = rest.partition(".")
    field = group.field(key)
    at = Scalar(text=key, plain=True, origin=origin, line=None)
    if field is None:
        group.unknown(at, key, name)
    if not dot:
        return node.with_value(key, _value(field.kind, value, origin))
    dotted = f"{name}.{key}" if name else key
    inner = _as_object(node.get(key), origin)
    if inner is None:
        fail(at, dotted, f"{dotted} is {found(node.get(key) or at)}, it has no {deeper[:60]}")
    if isinstance(field.kind, Group):
        return node.with_value(key, _set(inner, field.kind, dotted, deeper, value, origin))
    if not isinstance(field.kind, Axes | MapOf | Mounts):
        fail(at, dotted, f"{dotted} has no fields, so no {deeper[:60]}")
    one: Node = Scalar(text=value, plain=False, origin=origin, line=None)
    if isinstance(field.kind, Axes):
        several = value.lstrip().startswith("[")
        one = (
            parse(value, origin, line=None)
            if several
            else Array(items=(one,), origin=origin, line=None)
        )
    return node.with_value(key, inner.with_value(deeper, one))


def _as_object(node: Node | None, origin: str) -> Object | None:
    """The mapping to set a key in: an empty one where there is none; a list of names gets nulls."""
    if node is None or (isinstance(node, Scalar) and node.null):
        return Object(entries=MappingProxyType({}), origin=origin, line=None)
    if isinstance(node, Array) and all(isinstance(item, Scalar) for item in node.items):
        entries = {
            item.text: Entry(
                key=item, value=Scalar(text="", plain=True, origin=item.origin, line=item.line)
            )
            for item in node.items
            if isinstance(item, Scalar)
        }
        return Object(entries=MappingProxyType(entries), origin=node.origin, line=node.line)
    return node if isinstance(node, Object) else None


def _value(kind: Kind, value: str, origin: str) -> Node:
    """Text fields take the text as it is; others YAML where it is a list or mapping, else one plain value."""
    if isinstance(kind, Text | Workdir | Names):
        return Scalar(text=value, plain=False, origin=origin, line=None)
    if value.lstrip()[:1] in ("[", "{"):
        return parse(value, origin, line=None)
    return Scalar(text=value.strip(), plain=True, origin=origin, line=None)

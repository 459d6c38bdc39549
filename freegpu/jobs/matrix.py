"""One spec, many jobs: the cells of a matrix and their names; and what waits for what in a circle.

Names are made so that a shell takes them as one word: `sweep-lr3e-4-seed0`. Deterministic: the last axis
changes fastest, as in nested loops in the order of the file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Cell", "after_cycle", "expand", "stem"]

_UNSAFE = r"[^A-Za-z0-9.+_-]+"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One job of a matrix: its name and the values it gets."""

    name: str
    values: Mapping[str, str] = field(default_factory=dict)


def expand(name: str, axes: Mapping[str, Sequence[str]], *, longest: int = 100) -> tuple[Cell, ...]:
    """The cells in order, with names of at most `longest` characters, no two alike.

    Without axes there is one cell that bears the name as it is. Where values are too long for a name, or
    differ only in characters that a name cannot hold, all cells are numbered.
    """
    if not axes:
        return (Cell(name=name),)
    rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    names = [f"{name}-{_suffix(row)}" for row in rows]
    if len(set(names)) < len(names) or max(map(len, names), default=0) > longest:
        digits = len(str(len(rows) - 1))
        head = name[: longest - digits - 1]
        names = [f"{head}-{at:0{digits}}" for at in range(len(rows))]
    return tuple(Cell(name=called, values=row) for called, row in zip(names, rows, strict=True))


def stem(name: str, cell: Mapping[str, str]) -> str:
    """The name that a matrix gave its cells their names from: `sweep` of `sweep-lr3e-4-seed0` and of `sweep-07`."""
    if not cell:
        return name
    suffix = f"-{_suffix(cell)}"
    return name[: -len(suffix)] if name.endswith(suffix) else re.sub(r"-[0-9]+$", "", name)


def _suffix(row: Mapping[str, str]) -> str:
    parts = (f"{axis.lower()}{re.sub(_UNSAFE, '-', value)}" for axis, value in row.items())
    return "-".join(parts).rstrip("-.")


def after_cycle(names: Mapping[str, Sequence[str]]) -> tuple[str, ...] | None:
    """A circle in "waits for", its first name again at the end, or None. Names that are no key end a path.

    Deterministic: the first circle met when names are followed in the mapping's order.
    """
    done: set[str] = set()
    for start in names:
        path: list[str] = []
        on_path: dict[str, int] = {}
        ahead = [iter((start,))]
        while ahead:
            name = next(ahead[-1], None)
            if name is None:
                ahead.pop()
                if path:
                    done.add(path[-1])
                    del on_path[path.pop()]
            elif name in on_path:
                return (*path[on_path[name] :], name)
            elif name in names and name not in done:
                on_path[name] = len(path)
                path.append(name)
                ahead.append(iter(names[name]))
    return None

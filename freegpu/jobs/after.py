"""The order that `after` gives to jobs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter

from freegpu.errors import JobSpecError

__all__ = ["refuse_circles"]


def refuse_circles(afters: Mapping[str, Collection[str]], names: Mapping[str, str]) -> None:
    """JobSpecError if jobs wait for each other. `afters`: id -> ids it waits for; `names`: id -> what people call it."""
    try:
        TopologicalSorter(afters).prepare()
    except CycleError as error:
        circle = " -> ".join(names.get(job, job) for job in error.args[1])
        raise JobSpecError(
            f"jobs wait for each other in a circle: {circle}",
            hint="take one name out of `after`; an earlier job of the same name is named by its id",
            field="freegpu.after",
        ) from None

"""One spec, many jobs; and circles in what waits for what."""

from __future__ import annotations

import itertools
import random
import shlex

import pytest

from freegpu.jobs.matrix import after_cycle, expand


def test_cells_come_in_the_order_of_nested_loops() -> None:
    """The last axis changes fastest, and names say what is in them."""
    cells = expand("sweep", {"LR": ["1e-4", "3e-4"], "SEED": ["0", "1"]})
    assert [cell.name for cell in cells] == [
        "sweep-lr1e-4-seed0",
        "sweep-lr1e-4-seed1",
        "sweep-lr3e-4-seed0",
        "sweep-lr3e-4-seed1",
    ]
    assert cells[2].values == {"LR": "3e-4", "SEED": "0"}
    assert [cell.name for cell in expand("my job", {})] == ["my job"]


@pytest.mark.parametrize(
    "values",
    [
        ["a b", "a  b", "a/b"],  # alike once a shell may read them
        ["x", "X" * 200],  # too long
        ["$(rm -rf)", "`id`", "a;b", "中文", "", " ", "\n"],
    ],
)
def test_names_are_unique_shell_safe_and_short_whatever_the_values(values: list[str]) -> None:
    """Where values do not fit into names, numbers do."""
    cells = expand("job", {"A": values, "B": ["1", "2"]}, longest=60)
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names) == 2 * len(values)
    assert all(shlex.quote(name) == name and len(name) <= 60 for name in names)
    assert [dict(cell.values) for cell in cells] == [
        {"A": a, "B": b} for a, b in itertools.product(values, ["1", "2"])
    ]


def test_a_long_base_name_is_cut_and_not_its_number() -> None:
    """A hundred characters hold for the jobs of a matrix too."""
    names = [cell.name for cell in expand("n" * 100, {"A": [str(n) for n in range(11)]})]
    assert names[10] == "n" * 97 + "-10"
    assert len(set(names)) == 11


def test_a_circle_is_found_and_named_in_order() -> None:
    """The first name stands at the end again, so that it reads as a circle."""
    assert after_cycle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == ("a", "b", "c", "a")
    assert after_cycle({"d": ["a"], "a": ["b"], "b": ["a"]}) == ("a", "b", "a")
    assert after_cycle({"a": ["a"]}) == ("a", "a")
    assert after_cycle({"a": ["b", "c"], "b": ["c"], "c": ["unknown"]}) is None
    assert after_cycle({}) is None


def test_a_long_chain_costs_no_recursion() -> None:
    """Thousands of jobs in a row, and a ladder with exponentially many paths."""
    chain = {str(n): [str(n + 1)] for n in range(20_000)}
    assert after_cycle(chain) is None
    circle = after_cycle({**chain, "20000": ["0"]})
    assert circle is not None
    assert len(circle) == 20_002
    ladder = {f"{n}{side}": [f"{n + 1}x", f"{n + 1}y"] for n in range(200) for side in "xy"}
    assert after_cycle(ladder) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_circle_is_found_exactly_where_there_is_one(seed: int) -> None:
    """Against a plain removal of what waits for nothing."""
    rng = random.Random(seed)
    graph = {str(n): [str(rng.randrange(12)) for _ in range(rng.randrange(3))] for n in range(12)}
    left = {name: set(deps) for name, deps in graph.items()}
    while free := [name for name, deps in left.items() if not deps & left.keys()]:
        for name in free:
            del left[name]
    circle = after_cycle(graph)
    assert (circle is not None) == bool(left)
    if circle:
        assert circle[0] == circle[-1]
        assert all(b in graph[a] for a, b in itertools.pairwise(circle))

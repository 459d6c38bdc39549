"""A SkyPilot task file on the command line: what has no meaning here is told field by field, the rest refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from freegpu.jobs.skypilot import RESOURCES_WITHOUT_MEANING, ROOT_WITHOUT_MEANING
from tests.acceptance.typed import inside, refused

_IGNORED = {
    **{one.name: one for one in ROOT_WITHOUT_MEANING if one.ignored},
    **{f"resources.{one.name}": one for one in RESOURCES_WITHOUT_MEANING if one.ignored},
}
_REFUSED = {
    **{one.name: one for one in ROOT_WITHOUT_MEANING if one.refused},
    **{f"resources.{one.name}": one for one in RESOURCES_WITHOUT_MEANING if one.refused},
}


@pytest.fixture(scope="module")
def desk(make_user: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A user who has the machine at hand and nothing else."""
    user = make_user(tmp_path_factory.mktemp("sky"))
    user.settings()
    yield user
    user.leave()


def _nested(dotted: str) -> str:
    """The lines that write this field; its name stands on the last one."""
    *sections, name = dotted.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    return "\n".join([*lines, f"{'  ' * len(sections)}{name}: [anything]"])


def test_every_ignored_field_gets_its_line(desk: Any) -> None:
    """File, line, field and reason, once each, on stderr and in the answer for programs; the job is taken."""
    root = [f"{name}: {{any: thing}}" for name in _IGNORED if "." not in name]
    inner = [f"  {name.partition('.')[2]}: x" for name in _IGNORED if "." in name]
    lines = ["name: all", "run: echo", *root, "resources:", *inner]
    desk.job_file("\n".join(lines), "task.yaml")
    code, out, err = inside(desk, ["submit", "task.yaml", "--dry-run"])
    assert code == 0
    assert out.startswith("would submit all\n")
    at = {line.split(":")[0].strip(): number for number, line in enumerate(lines, start=1)}
    expected = {
        f"task.yaml:{at[name.rpartition('.')[2]]}: {name} is ignored: {one.ignored}"
        for name, one in _IGNORED.items()
    }
    told = [line.removeprefix("note: ") for line in err.splitlines()]
    assert set(told) == expected
    assert len(told) == len(expected) > 25
    _, out, _ = inside(desk, ["submit", "task.yaml", "--dry-run", "--json"])
    assert set(json.loads(out)["data"]["notices"]) == expected


@pytest.mark.parametrize("dotted", _REFUSED)
def test_every_refused_field_is_named_with_its_line(dotted: str, desk: Any) -> None:
    """File, line, field and reason; exit code 11, as for any job spec that cannot be run."""
    text = f"run: echo\n{_nested(dotted)}"
    desk.job_file(text, "task.yaml")
    line = text.count("\n") + 1
    says = [f"task.yaml:{line}: {dotted} is not possible here: {_REFUSED[dotted].refused}"]
    refused(desk, ["submit", "task.yaml", "--dry-run"], "job_spec", says, "take the field out")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run: x\nnum_nodes: 2", "task.yaml:2: num_nodes must be 1, found the number 2"),
        (
            "run: x\nfile_mounts:\n  d: s3://bucket",
            "task.yaml:3: file_mounts.d is a cloud bucket or URL",
        ),
        ("run: x\nfile_mounts:\n  /d: .", "task.yaml:3: file_mounts: the target '/d' is not"),
        ("run: x\nenvs: {D: ..}\nfile_mounts:\n  $D/x: .", "task.yaml:4: file_mounts: the target"),
        ("run: x\nworkdir: {url: 'https://h/a'}", "task.yaml:2: workdir must be a folder"),
        (
            "run: x\nresources:\n  gpus: GH200",
            "task.yaml:3: resources.gpus: no free platform has GH200",
        ),
        (
            "run: x\nresources:\n  ordered: [{gpus: L40}, {accelerators: 'GH200:2'}]",
            "task.yaml:3: resources.ordered: no free platform has L40 and GH200",
        ),
        (
            "run: x\nresources:\n  accelerators: T4\n  gpus: T4",
            "task.yaml:4: resources has accelerators and gpus, which mean the same",
        ),
        (
            "run: x\nresources:\n  accelerators: amd:16GB",
            "task.yaml:3: resources.accelerators: the text 'amd:16GB' wants a card of amd",
        ),
        (
            "run: x\nsecrets:\n  secrets:HF_TOKEN: in-clear",
            "task.yaml:3: secrets.HF_TOKEN: a reference to a secret has no value",
        ),
    ],
)
def test_what_a_job_cannot_have_here_is_refused(text: str, says: str, desk: Any) -> None:
    """Never silently another job than the one that was asked for."""
    desk.job_file(text, "task.yaml")
    refused(desk, ["submit", "task.yaml", "--dry-run"], "job_spec", [says])


def test_what_was_understood_differently_is_told(desk: Any) -> None:
    """A card left out, a part of a card rounded up, a demand that counts for all."""
    desk.job_file(
        "name: t\nrun: echo\nresources:\n  any_of:\n"
        "  - {gpus: {GH200: 8}, memory: 999+}\n  - {accelerators: 'T4:0.5', memory: 16+}\n  - {gpus: L4, memory: 8+}\n",
        "task.yaml",
    )
    code, _, err = inside(desk, ["submit", "task.yaml", "--dry-run"])
    assert code == 0
    assert err.splitlines() == [
        "note: task.yaml:6: resources.any_of[1].accelerators: T4:0.5 becomes 1: cards are not shared",
        "note: task.yaml:5: resources.any_of: without GH200, which no free platform has",
        "note: task.yaml:4: resources: memory differs between alternatives; 16 is asked for in all",
    ]


def test_a_secret_by_reference_is_given_like_any_other(desk: Any) -> None:
    """SkyPilot's secrets:NAME from the environment, by --secret and by a bare --set."""
    desk.job_file("name: s\nrun: echo\nsecrets: ['secrets:personal.HF_TOKEN']\n", "task.yaml")
    refused(desk, ["submit", "task.yaml", "--dry-run"], "job_spec", ["HF_TOKEN is left open"])
    for more, env in (
        ([], {"HF_TOKEN": "from-outside"}),
        (["--secret", "HF_TOKEN=given"], {}),
        (["--set", "HF_TOKEN=given"], {}),
    ):
        code, out, err = inside(desk, ["submit", "task.yaml", "--dry-run", *more, "--json"], env)
        assert code == 0, err
        assert "given" not in out
        assert json.loads(out)["data"]["specs"][0]["secrets"] == ["HF_TOKEN"]

"""The JSON Schema, the parser and the reference page say the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from freegpu.errors import JobSpecError
from freegpu.jobs.schema import schema
from freegpu.jobs.spec import loads
from freegpu.jobs.table import ROOT, dotted_fields

ROOT_FOLDER = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT_FOLDER.glob("jobs/*/job.yaml"))
PAGE = ROOT_FOLDER / "docs/reference/job-spec.md"
#: SkyPilot's fields: mapped, ignored, refused
SKYPILOT_PAGE = ROOT_FOLDER / "docs/reference/skypilot.md"
CHECK = jsonschema.Draft202012Validator(schema())


class Plain(yaml.SafeLoader):
    """As editors read YAML: a time is text, and only true and false are booleans."""


Plain.yaml_implicit_resolvers = {
    letter: [
        (tag, pattern)
        for tag, pattern in resolvers
        if not tag.endswith((":timestamp", ":bool")) or (tag.endswith(":bool") and letter in "tTfF")
    ]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def both(text: str, **more: Any) -> tuple[bool, bool]:
    """Whether the schema and the parser take a text."""
    data = yaml.load(text, Loader=Plain)
    try:
        loads(text, environ={"TOKEN": "x", "WANDB_API_KEY": "x"}, **more)
    except JobSpecError:
        return CHECK.is_valid(data), False
    return CHECK.is_valid(data), True


def test_the_schema_is_a_schema() -> None:
    """Valid by its own meta-schema, and plain JSON."""
    jsonschema.Draft202012Validator.check_schema(json.loads(json.dumps(schema())))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_every_example_is_valid_and_loads(path: Path) -> None:
    """jobs/*/job.yaml, as an editor and as freegpu see them."""
    assert both(path.read_text(), path=path) == (True, True)


def test_there_are_examples() -> None:
    """A glob that finds nothing would pass the test above."""
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize(
    "text",
    [
        "run: x\nenvs: {A: 1, B: true, C: text, D: 3e-4}",
        "run: x\nsecrets: [TOKEN]",
        "run: x\nsecrets: {TOKEN: null}",
        "run: x\nsecrets: ['secrets:TOKEN']",
        "run: x\nsecrets: {'secrets:personal.TOKEN': }",
        "run: x\nresources: {gpus: {T4: 1}, memory: 16Gi+}",
        "run: x\nname:\nsetup:\nresources: {memory: }",
        "run: x\nresources: {accelerators: {T4: 1, L4: }, memory: 4x, cpus: 4+, disk_size: 50GB}",
        "run: x\nresources: {accelerators: [T4, 'L4:2']}",
        "run: x\nresources: {any_of: [{accelerators: T4, use_spot: true}, {accelerators: L4}]}",
        "run: x\nresources: {infra: aws, ports: [80], labels: {a: b}}\nnum_nodes: 1",
        "run: x\nfile_mounts: {~/sky_workdir/d: ., e: .}",
        "run: x\nfreegpu: {estimate: 90, vram: 12, deadline: 2026-12-06T09:00+08:00, after: a}",
        "run: x\nfreegpu: {retry: {failures: unlimited, preemptions: 3}, outputs: '*.pt'}",
        "run: x\nfreegpu: {checkpoint: {path: a/b, every: 1h30m, keep: 1, grace: 0, window: 0}}",
        "run: x\nfreegpu: {matrix: {A: [1, two, 3e-4, true]}, platforms: kaggle}",
        *(f"run: x\nfreegpu: {{workload: {name}}}" for name in ("general", "llm-decode")),
    ],
)
def test_what_is_right_is_right_for_both(text: str) -> None:
    """The schema marks nothing red that freegpu would run."""
    assert both(text) == (True, True)


@pytest.mark.parametrize(
    "text",
    [
        "name: a",
        "run: ''",
        "run: null",
        "run: [x]",
        "run: 5",
        "[run]",
        "run: x\nnum_nodes: 2",
        "run: x\nservice: {a: 1}",
        "run: x\nenvs: {A: [1]}",
        "run: x\nenvs: {A-B: 1}",
        "run: x\nenvs: {FREEGPU_A: 1}",
        "run: x\nsecrets: ['secrets:FREEGPU_A']",
        "run: x\nsecrets: {other:TOKEN: }",
        "run: x\nworkdir: {url: a}",
        "run: x\nworkdir: https://a/b",
        "run: x\nfile_mounts: {d: s3://b}",
        "run: x\nfile_mounts: {/d: a}",
        "run: x\nfile_mounts: {../d: a}",
        "run: x\nfile_mounts: {d: {source: a}}",
        "run: x\nresources: {accelerators: []}",
        "run: x\nresources: {accelerators: {T4: -1}}",
        "run: x\nresources: {any_of: [{any_of: []}]}",
        "run: x\nresources: {memory: lots}",
        "run: x\nfreegpu: {workload: nothing}",
        "run: x\nfreegpu: {vram: -1}",
        "run: x\nfreegpu: {estimate: soon}",
        "run: x\nfreegpu: {priority: 500}",
        "run: x\nfreegpu: {priority: '5'}",
        "run: x\nfreegpu: {deadline: 2026-12-06T09:00}",
        "run: x\nfreegpu: {retry: {failures: never}}",
        "run: x\nfreegpu: {checkpoint: {keep: 0}}",
        "run: x\nfreegpu: {checkpoint: {every: often}}",
        "run: x\nfreegpu: {platforms: []}",
        "run: x\nfreegpu: {matrix: {A: []}}",
        "run: x\nfreegpu: {matrix: {A: 1}}",
        "run: x\nfreegpu: {outputs: [/abs]}",
    ],
)
def test_what_is_wrong_in_shape_is_wrong_for_both(text: str) -> None:
    """An editor shows it before freegpu does."""
    assert both(text) == (False, False)


@pytest.mark.parametrize("dotted", [name for name, one in dotted_fields() if not one.refused])
def test_a_misspelt_field_is_refused_by_both(dotted: str) -> None:
    """Every field, with one letter too many."""
    section, _, name = dotted.rpartition(".")
    data: dict[str, Any] = {f"{name}q": None}
    for part in reversed(section.split(".") if section else []):
        data = {part: data}
    text = json.dumps({"run": "x", **data})
    assert both(text) == (False, False)
    with pytest.raises(JobSpecError, match="unknown field"):
        loads(text)


@pytest.mark.parametrize(
    "dotted", [name for name, one in dotted_fields() if one.example is not None]
)
def test_every_example_of_the_table_is_valid(dotted: str, tmp_path: Path) -> None:
    """What the schema shows as an example can be written so."""
    one = dict(dotted_fields())[dotted]
    data: Any = one.example
    for part in reversed(dotted.split(".")):
        data = {part: data}
    text = json.dumps({"run": "x", **data}).replace("~/datasets/mnist", str(tmp_path))
    assert both(text, path=tmp_path / "job.yaml") == (True, True)


def test_every_field_says_what_it_is_or_why_it_has_no_effect() -> None:
    """Exactly one of: a sentence, a reason to ignore, a reason to refuse; reasons are no sentences."""
    for dotted, one in dotted_fields():
        assert [bool(one.about), bool(one.ignored), bool(one.refused)].count(True) == 1, dotted
        assert not (one.ignored + one.refused).endswith("."), dotted
    assert {one.name for one in ROOT.fields} >= {"run", "freegpu", "resources"}


def rows(page: Path) -> dict[str, list[str]]:
    """Field -> the cells behind it, of all tables of a page."""
    lines = [line.split(" | ") for line in page.read_text().splitlines() if line[:3] == "| `"]
    return {cells[0].strip("|` "): cells[1:] for cells in lines}


@pytest.mark.parametrize(
    "dotted", [name for name, one in dotted_fields() if not one.ignored and not one.refused]
)
def test_every_field_stands_in_the_reference(dotted: str) -> None:
    """A field that nobody can look up is a field that nobody uses."""
    row = " | ".join(rows(PAGE)[dotted])
    one = dict(dotted_fields())[dotted]
    if one.default and not one.default.startswith(("none", "nothing")):
        assert one.default in row.replace("`", "")


def test_every_field_of_skypilot_s_stands_on_its_page_with_its_fate_and_reason() -> None:
    """Mapped, ignored or refused, and no row too many. The contract test holds the table to SkyPilot's schema."""
    text = SKYPILOT_PAGE.read_text().split("## Every field\n")[1].split("\n## ")[0]
    listed = {
        cells[0].strip("|` "): (cells[1], cells[2].removesuffix(" |"))
        for cells in (line.split(" | ") for line in text.splitlines() if line[:3] == "| `")
    }
    known = {name: one for name, one in dotted_fields() if name.partition(".")[0] != "freegpu"}
    assert set(listed) == set(known)
    for name, one in known.items():
        fate, reason = listed[name]
        assert fate == ("ignored" if one.ignored else "refused" if one.refused else "mapped"), name
        assert reason == (one.ignored or one.refused or reason), name


def test_the_yaml_of_the_reference_is_valid(tmp_path: Path) -> None:
    """People copy from it."""
    blocks = PAGE.read_text().split("```yaml\n")[1:]
    assert len(blocks) >= 2
    for block in blocks:
        assert both(block.partition("```")[0], path=tmp_path / "job.yaml") == (True, True)

"""A YAML file becomes jobs, or one clear sentence."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from freegpu import cards
from freegpu.errors import JobSpecError
from freegpu.jobs import document, skypilot
from freegpu.jobs.model import Accelerator, Checkpointing, Estimate, JobSpec, Needs
from freegpu.jobs.retry import Retry
from freegpu.jobs.spec import Loaded, load, loads

FULL = """\
name: mnist-resnet
workdir: .
setup: pip install -q -r requirements.txt
run: python train.py --epochs 40 --out "$FREEGPU_OUTPUT_DIR"
envs: {LR: 3e-4}
secrets: {WANDB_API_KEY: null}
file_mounts: {data: ./sets}
resources: {accelerators: [T4, L4, A100], memory: 10+, cpus: 4+, disk_size: 50}
num_nodes: 1
freegpu:
  workload: train-amp-cnn
  precision: bf16
  vram: 12+
  estimate: 6h on T4
  checkpoint: {path: ckpt, every: 10m, keep: 3, grace: 90s, window: 2}
  outputs: ["results/**"]
  deadline: 2026-12-06T09:00+08:00
  priority: -5
  retry: {failures: 2, preemptions: unlimited}
  platforms: [kaggle, colab]
  matrix: {LR: [1e-4, 3e-4], SEED: [0, 1]}
  after: [prepare-data]
"""


def one(text: str, **more: Any) -> JobSpec:
    (spec,) = loads(text, **more).specs
    return spec


def needs(resources: str) -> Needs:
    return one(f"run: x\nresources: {resources}").needs


def outcome(text: str, **more: Any) -> Loaded | JobSpecError:
    try:
        return loads(text, **more)
    except JobSpecError as error:
        return error


def refused(text: str, **more: Any) -> JobSpecError:
    with pytest.raises(JobSpecError) as caught:
        loads(text, **more)
    error = caught.value
    assert error.message
    assert "\n" not in error.message
    return error


# --- what a good file means ----------------------------------------------------------------------------


def test_every_field_reaches_the_spec(tmp_path: Path) -> None:
    """The example of the design, with nothing lost on the way."""
    (tmp_path / "sets").mkdir()
    path = tmp_path / "job.yaml"
    path.write_text(FULL)
    loaded = load(path, environ={"WANDB_API_KEY": "s3cret"})
    assert loaded.notices == ()
    assert loaded.secrets == {"WANDB_API_KEY": "s3cret"}
    assert [spec.cell for spec in loaded.specs] == [
        {"LR": "1e-4", "SEED": "0"},
        {"LR": "1e-4", "SEED": "1"},
        {"LR": "3e-4", "SEED": "0"},
        {"LR": "3e-4", "SEED": "1"},
    ]
    assert loaded.specs[3] == JobSpec(
        name="mnist-resnet-lr3e-4-seed1",
        run='python train.py --epochs 40 --out "$FREEGPU_OUTPUT_DIR"',
        setup="pip install -q -r requirements.txt",
        workdir=str(tmp_path),
        envs={"LR": "3e-4", "SEED": "1"},
        secrets=("WANDB_API_KEY",),
        file_mounts={"data": str(tmp_path / "sets")},
        needs=Needs(
            accelerators=(Accelerator(card="T4"), Accelerator(card="L4"), Accelerator(card="A100")),
            ordered=True,
            vram_gb=12,
            memory_gb=10,
            cpus=4,
            disk_gb=50,
            platforms=("kaggle", "colab"),
            workload="train-amp-cnn",
            precision="bf16",
        ),
        estimate=Estimate(seconds=6 * 3600, card="T4"),
        checkpoint=Checkpointing(path="ckpt", every_s=600, keep=3, grace_s=90, window=2),
        outputs=("results/**",),
        deadline=datetime(2026, 12, 6, 1, 0, tzinfo=UTC),
        priority=-5,
        retry=Retry(failures=2, preemptions=None),
        after=("prepare-data",),
        cell={"LR": "3e-4", "SEED": "1"},
    )
    for spec in loaded.specs:
        assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_one_line_is_a_job(tmp_path: Path) -> None:
    """Everything but `run` has a default, and null is the same as leaving a field out."""
    bare = one("run: echo hello", path=str(tmp_path / "digits/job.yaml"))
    assert bare == JobSpec(name="digits", run="echo hello")
    nulls = "name:\nworkdir: ~\nsetup: null\nrun: echo hello\nenvs:\nresources:\n  memory:\nfreegpu:\n  vram:\n"
    assert one(nulls, path=str(tmp_path / "digits.yaml")) == bare


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("3e-4", "3e-4"),
        ("0.10", "0.10"),
        ("no", "no"),
        ("on", "on"),
        ("True", "True"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        (".nan", ".nan"),
        ('"null"', "null"),
        ("''", ""),
        ("'two words'", "two words"),
        ("!!str 5", "5"),
        ("|\n    a\n    b", "a\nb"),
        ("中文", "中文"),
    ],
)
def test_a_variable_is_the_text_that_was_written(written: str, kept: str) -> None:
    """YAML would make 0.0003 of 3e-4, False of no, and 45045 of 12:30:45."""
    assert one(f"run: x\nenvs:\n  V: {written}").envs == {"V": kept}


def test_an_open_variable_comes_from_the_environment_or_the_matrix() -> None:
    """null asks for it; nobody answering is an error that says what to type."""
    text = "run: x\nenvs: {LR: null}\n"
    assert one(text, environ={"LR": ""}).envs == {"LR": ""}
    assert one(text, overrides=["LR=1"]).envs == {"LR": "1"}
    assert one(text + "freegpu: {matrix: {LR: [7]}}").envs == {"LR": "7"}
    error = refused(text)
    assert (error.field, error.line) == ("envs.LR", 2)
    assert "not in the environment" in error.message
    assert "--set LR=VALUE" in error.hint


def test_secret_values_are_in_no_spec_message_notice_or_repr() -> None:
    """Only names enter the spec; a literal in the file is told; an empty variable is no secret."""
    text = "run: x\nsecrets: {A: null, B: hunter2}"
    loaded = loads(text, environ={"A": "hunter3"})
    assert loaded.secrets == {"A": "hunter3", "B": "hunter2"}
    assert loaded.specs[0].secrets == ("A", "B")
    assert "hunter" not in f"{loaded!r} {loaded.specs!r} {loaded.notices}"
    assert loaded.notices == (
        "job.yaml:2: secrets.B is written in clear in this file; null takes it from the environment",
    )
    assert loads(text, overrides=["secrets.A=z", "B=y"]).secrets == {"A": "z", "B": "y"}
    assert loads(text, overrides=["secrets.A=z", "B=y"]).notices == ()
    assert loads("run: x\nsecrets: [A]", environ={"A": "v"}).secrets == {"A": "v"}
    assert "--secret A=VALUE" in refused(text, environ={"A": ""}).hint
    for bad in ("B: [hunter2]", "B: {hunter2: 1}", 'B: "hunter2\\0"', "A: hunter2\n  ZZ"):
        assert "hunter" not in refused(f"run: x\nsecrets:\n  {bad}").message
    both = refused("run: x\nenvs: {A: 1}\nsecrets: {A: hunter2}")
    assert "in secrets and in envs" in both.message
    assert "hunter" not in str(both)


@pytest.mark.parametrize(
    ("written", "cards", "ordered"),
    [
        ("T4", ["T4:1"], False),
        ("t4:2", ["T4:2"], False),
        ("Tesla-T4", ["T4:1"], False),
        ("NVIDIA A100", ["A100:1"], False),
        ("tpu-v5e-8", ["tpu-v5e-8:1"], False),
        ("cpu", ["CPU:1"], False),
        ("[A100, 'T4:2', L4]", ["A100:1", "T4:2", "L4:1"], True),
        ("[T4]", ["T4:1"], False),
        ("{T4: 1, L4: 2}", ["T4:1", "L4:2"], False),
        ("{L4:1, A10g:1}", ["L4:1", "A10G:1"], False),
        ("{V100, T4}", ["V100:1", "T4:1"], False),
        ("[T4, t4, T4:1]", ["T4:1"], True),
    ],
)
def test_cards_are_understood_however_skypilot_lets_them_be_written(
    written: str, cards: list[str], ordered: bool
) -> None:
    """A list is an order, a map or a set is any of; names are those of the card table."""
    got = needs(f"{{accelerators: {written}}}")
    assert [f"{a.card}:{a.count}" for a in got.accelerators] == cards
    assert got.ordered is ordered


def test_a_part_of_a_card_becomes_a_whole_one_and_says_so() -> None:
    """SkyPilot's T4:0.5: nothing here shares a card."""
    loaded = loads("run: x\nresources: {accelerators: 'T4:0.5'}")
    assert loaded.specs[0].needs.accelerators == (Accelerator(card="T4", count=1),)
    assert loaded.notices == (
        "job.yaml:2: resources.accelerators: T4:0.5 becomes 1: cards are not shared",
    )


def test_cards_by_memory_are_a_demand_on_memory() -> None:
    """SkyPilot's 16GB+ is what freegpu.vram says."""
    assert needs("{accelerators: 16GB+}") == Needs(vram_gb=16)
    assert needs("{any_of: [{accelerators: 24GB}, {accelerators: 16GB+}]}") == Needs(vram_gb=16)


def test_a_card_that_no_free_platform_has_may_stand_beside_others() -> None:
    """A file for clouds runs on what is here; what only that card's alternative asks for is not asked for."""
    loaded = loads("run: x\nresources: {accelerators: [GH200, 'tpu-v5p-8', L4, T4]}")
    assert [a.card for a in loaded.specs[0].needs.accelerators] == ["L4", "T4"]
    assert loaded.notices == (
        "job.yaml:2: resources.accelerators: without GH200 and tpu-v5p-8, which no free platform has",
    )
    got = needs("{any_of: [{gpus: 'GH200:1', memory: 400+, cpus: 64+}, {gpus: T4, memory: 8+}]}")
    assert (got.accelerators, got.memory_gb, got.cpus) == ((Accelerator(card="T4"),), 8, 0)
    got = needs("{gpus: L40, any_of: [{infra: aws}, {accelerators: T4}]}")
    assert got.accelerators == (Accelerator(card="T4"),)


def test_no_card_is_both_known_and_elsewhere() -> None:
    """Whoever adds a card to the table takes it off the list of those that no platform here has; of TPUs it holds other sizes."""
    both = {name for name in skypilot.CARDS_ELSEWHERE if cards.find(name)}
    assert {name for name in both if not name.startswith("tpu")} == set()


def test_gpus_is_another_word_for_accelerators() -> None:
    """SkyPilot's alias, in resources and in its alternatives; --set takes it too."""
    assert needs("{gpus: {t4: 2}}") == needs("{accelerators: 'T4:2'}")
    assert needs("{any_of: [{gpus: T4}, {accelerators: L4}]}").accelerators == (
        Accelerator(card="T4"),
        Accelerator(card="L4"),
    )
    set_ = loads("run: x", overrides=["resources.gpus=[L4, T4]"]).specs[0].needs
    assert set_ == needs("{accelerators: [L4, T4]}")


def test_secrets_by_reference_are_variables_that_the_file_leaves_open() -> None:
    """SkyPilot's secrets:NAME and its scopes; a value given with the command is taken for it."""
    text = "run: x\nsecrets: ['secrets:A', 'secrets:personal.B', C]"
    environ = {"A": "1", "B": "2", "C": "3"}
    assert loads(text, environ=environ).secrets == environ
    given = loads(text, environ=environ, overrides=["secrets.B=new", "A=bare"])
    assert given.secrets == {"A": "bare", "B": "new", "C": "3"}
    assert given.specs[0].envs == {}
    assert given.notices == ()


def test_variables_in_targets_are_put_in_and_then_checked(tmp_path: Path) -> None:
    """A target is inside the working folder when its variables are known, too."""
    (tmp_path / "a").touch()
    text = "run: x\nenvs: {D: deep/er}\nfile_mounts: {'${D}/f': a, '$OTHER': a}"
    spec = one(text, path=tmp_path / "job.yaml")
    assert set(spec.file_mounts) == {"deep/er/f", "$OTHER"}
    for value in ("/abs", "../up", "~"):
        bad = f"run: x\nenvs: {{D: {value!r}}}\nfile_mounts: {{$D/f: a}}"
        error = refused(bad, path=tmp_path / "job.yaml")
        assert (error.line, error.field) == (3, "file_mounts.$D/f")
    twice = "run: x\nenvs: {D: d}\nfile_mounts: {d: a, $D: a}"
    assert "'d' stands twice" in refused(twice, path=tmp_path / "job.yaml").message


def test_alternatives_are_merged() -> None:
    """any_of is a set, ordered an order; one without a card means a CPU, as in SkyPilot."""
    got = needs("{cpus: 2, any_of: [{accelerators: T4}, {accelerators: {L4: 2}}, {cpus: 4}]}")
    assert got.accelerators == (
        Accelerator(card="T4"),
        Accelerator(card="L4", count=2),
        Accelerator(card="CPU"),
    )
    assert (got.ordered, got.cpus) == (False, 4)
    assert needs("{ordered: [{accelerators: A100}, {accelerators: T4}]}").ordered
    inherited = needs("{accelerators: T4, any_of: [{use_spot: true}, {infra: aws}]}")
    assert inherited.accelerators == (Accelerator(card="T4"),)


def test_what_differs_between_alternatives_is_asked_for_in_all_and_told() -> None:
    """A floor cannot depend on the card that comes, so the safe one is taken."""
    text = "run: x\nresources:\n  any_of: [{accelerators: T4, memory: 8}, {accelerators: L4, memory: 16}]"
    loaded = loads(text)
    assert loaded.specs[0].needs.memory_gb == 16
    assert loaded.notices == (
        "job.yaml:3: resources: memory differs between alternatives; 16 is asked for in all",
    )


def test_memory_as_a_multiple_of_cpus() -> None:
    """SkyPilot's 4x; without cpus it has no meaning, and that is told."""
    assert needs("{cpus: 4+, memory: 2x}").memory_gb == 8
    loaded = loads("run: x\nresources: {memory: 4x}")
    assert loaded.specs[0].needs.memory_gb == 0
    assert "no effect without resources.cpus" in loaded.notices[0]


def test_nothing_is_ignored_silently() -> None:
    """Each field that means nothing here gets a line with the place, the field and the reason."""
    text = "run: x\nresources:\n  use_spot: true\n  cloud: aws\n  ports: [80]\n  zone: null\nconfig: {a: 1}\n"
    assert loads(text).notices == (
        "job.yaml:3: resources.use_spot is ignored: every free session may end early; checkpoints carry the job on",
        "job.yaml:4: resources.cloud is ignored: freegpu chooses the place; freegpu.platforms narrows it",
        "job.yaml:5: resources.ports is ignored: a session cannot be reached from outside",
        "job.yaml:7: config is ignored: it configures SkyPilot itself; instead of config.hooks, let run act on SIGTERM",
    )


def test_paths_are_seen_from_the_file_and_may_hold_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command runs: ~, ${NAME} of envs, and relative paths."""
    for name in ("proj/code", "home/sets", "elsewhere/wrong"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = (
        "run: x\nworkdir: ${W}\nenvs: {W: code}\nfile_mounts: {'~/sky_workdir/d': ~/sets, e: $W}\n"
    )
    spec = one(text, path=tmp_path / "proj/job.yaml", environ={"HOME": str(tmp_path / "home")})
    assert spec.workdir == str(tmp_path / "proj/code")
    assert spec.file_mounts == {
        "d": str(tmp_path / "home/sets"),
        "e": str(tmp_path / "proj/code"),
    }
    error = refused("run: x\nworkdir: wrong", path=tmp_path / "proj/job.yaml")
    assert error.message == f"workdir: {tmp_path}/proj/wrong does not exist"
    assert "beside the YAML file" in error.hint


def test_anchors_and_merge_keys_work_within_limits() -> None:
    """YAML's own shorthand; what stands in the mapping itself wins."""
    text = "run: x\nenvs: &e {A: 1, B: 2}\nfreegpu:\n  matrix:\n    C: &v [1, 2]\n    D: *v\n"
    assert len(loads(text).specs) == 4
    merged = "run: x\nresources:\n  any_of:\n  - &a {accelerators: T4, cpus: 2}\n  - {<<: *a, accelerators: L4}\n"
    assert [a.card for a in one(merged).needs.accelerators] == ["T4", "L4"]


# --- --set ----------------------------------------------------------------------------------------------


def test_set_changes_fields_and_variables_before_they_are_checked() -> None:
    """Dotted fields, lists, mappings, and bare variables wherever the spec declares them."""
    text = "run: x\nenvs: {LR: 1}\nfreegpu: {matrix: {SEED: [0, 1]}}"
    loaded = loads(
        text,
        overrides=[
            "LR=1e-3",
            "SEED=5",
            "envs.NEW=a: [b=c",
            "freegpu.priority=5",
            "freegpu.checkpoint.every=5m",
            "freegpu.outputs=*.pt",
            "freegpu.platforms=[kaggle, colab]",
            "resources.accelerators={T4: 2}",
            "run=python a.py",
            "name=5",
        ],
    )
    (spec,) = loaded.specs
    assert spec.envs == {"LR": "1e-3", "NEW": "a: [b=c", "SEED": "5"}
    assert spec.cell == {"SEED": "5"}
    assert (spec.name, spec.run, spec.priority) == ("5-seed5", "python a.py", 5)
    assert (spec.checkpoint.every_s, spec.outputs) == (300, ("*.pt",))
    assert spec.needs.platforms == ("kaggle", "colab")
    assert spec.needs.accelerators == (Accelerator(card="T4", count=2),)
    assert [s.cell["SEED"] for s in loads(text, overrides=["SEED=[7, 8]"]).specs] == ["7", "8"]
    assert one(text, overrides=["freegpu.matrix="]).cell == {}
    assert one("run: x", overrides=["EPOCHS=3"]).envs == {"EPOCHS": "3"}


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("LRR=1", "no variable LRR; did you mean LR?"),
        ("priority=1", "unknown field 'priority'; did you mean freegpu.priority?"),
        ("freegpu.prioritty=1", "unknown field 'prioritty' in freegpu; did you mean priority?"),
        ("freegpu.priority=x", "must be a whole number from -100 to 100, found the text 'x'"),
        ("freegpu.priority.x=1", "freegpu.priority has no fields"),
        ("envs.A-B=1", "'A-B' in envs is not a name"),
        ("nothing", "'nothing' is not KEY=VALUE"),
        ("=1", "'' is not KEY=VALUE"),
        ("freegpu.outputs=[a", "not valid YAML"),
        ("run=", "run"),
        ("run.x=1", "run"),
        ("secrets.A.B=hunter2", "'A.B' in secrets is not a name"),
    ],
)
def test_a_set_that_does_not_fit_says_which(override: str, part: str) -> None:
    """The place of the error is the option and not a line of the file; values are never repeated."""
    error = refused("run: x\nenvs: {LR: 1}", overrides=[override])
    assert part in error.message
    assert error.line is None
    assert error.path.startswith("--set")
    assert "hunter" not in str(error)


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        # unknown and misspelt fields
        ("run: x\nworkdri: .", 2, "unknown field 'workdri'; did you mean workdir?"),
        ("run: x\ncheckpoint: {}", 2, "unknown field 'checkpoint'; did you mean freegpu.checkpoint?"),
        ("run: x\nresources:\n  acelerators: T4", 3, "in resources; did you mean accelerators?"),
        ("run: x\nfreegpu:\n  checkpoint:\n    evry: 1m", 4, "in freegpu.checkpoint; did you mean every?"),
        ("run: x\nzzz: 1", 2, "unknown field 'zzz'"),
        # wrong types
        ("[run]", 1, "a job spec is a mapping of fields, found a list"),
        ("echo", 1, "a job spec is a mapping of fields, found the text 'echo'"),
        ("run: [x]", 1, "run must be a shell script, found a list"),
        ("run: 5", 1, "run must be a shell script, found the number 5"),
        ("run: x\nname: true", 2, "name must be a name, found true"),
        ("run: x\nenvs: [A]", 2, "envs must be a mapping of variables to values, found a list"),
        ("run: x\nenvs:\n  A: {b: 1}", 3, "envs.A must be a single value, found a mapping"),
        ("run: x\nresources: T4", 2, "resources must be a mapping, found the text 'T4'"),
        ("run: x\nfreegpu: {priority: high}", 2, "from -100 to 100, found the text 'high'"),
        ("run: x\nfreegpu: {priority: '5'}", 2, "found the text '5'"),
        ("run: x\nfreegpu: {priority: 101}", 2, "found the number 101"),
        ("run: x\nfreegpu: {priority: 1.5}", 2, "found the number 1.5"),
        (f"run: x\nfreegpu: {{priority: {'9' * 5000}}}", 2, "found the number 9999"),
        ("run: x\nfreegpu: {checkpoint: ckpt}", 2, "freegpu.checkpoint must be a mapping"),
        ("run: x\nfreegpu: {outputs: {a: 1}}", 2, "freegpu.outputs must be a list of patterns"),
        ("run: x\nfreegpu: {platforms: []}", 2, "freegpu.platforms is an empty list"),
        ("run: x\nfreegpu: {platforms: [Kaggle!]}", 2, "'Kaggle!' is not a name"),
        ("run: x\nfreegpu: {workload: train-amp-cn}", 2, "did you mean train-amp-cnn?"),
        ("run: x\nfreegpu: {retry: {failures: -1}}", 2, "from 0 to 1,000,000 or unlimited"),
        # run
        ("name: a", 1, "run is missing"),
        ("name: a\nrun:", 2, "run is missing"),
        ("run: ''", 1, "run: the text '' is empty"),
        ('run: " \\n "', 1, "is empty"),
        # amounts
        ("run: x\nfreegpu: {estimate: six hours}", 2, "is not a duration: write 90s, 10m"),
        ("run: x\nfreegpu: {estimate: -6h on T4}", 2, "is not a duration"),
        ("run: x\nfreegpu: {estimate: .inf}", 2, "is not a duration"),
        ("run: x\nfreegpu: {estimate: .nan}", 2, "is not a duration"),
        ("run: x\nfreegpu: {estimate: 0s}", 2, "is not between 1s and 366d"),
        ("run: x\nfreegpu: {estimate: 6h on T5}", 2, "is not a card freegpu knows; did you mean T4?"),
        ("run: x\nfreegpu: {checkpoint: {every: 30m1h}}", 2, "is not a duration"),
        ("run: x\nfreegpu: {checkpoint: {every: 0}}", 2, "must be from 1s to 7d"),
        ("run: x\nfreegpu: {checkpoint: {every: 1e9}}", 2, "is not a duration"),
        ("run: x\nfreegpu: {checkpoint: {grace: 2h}}", 2, "must be from 0s to 1h"),
        ("run: x\nfreegpu: {checkpoint: {keep: 0}}", 2, "from 1 to 1,000"),
        ("run: x\nfreegpu: {vram: lots}", 2, "is not an amount of memory"),
        ("run: x\nfreegpu: {vram: 99999999999}", 2, "must be at most 1,000,000 GB"),
        ("run: x\nfreegpu: {vram: -1}", 2, "is not an amount of memory"),
        ("run: x\nresources: {cpus: .inf}", 2, "is not a count"),
        ("run: x\nresources: {memory: true}", 2, "must be an amount of memory"),
        # times
        ("run: x\nfreegpu: {deadline: 2026-12-06T09:00}", 2, "has no time zone: add the offset"),
        ("run: x\nfreegpu: {deadline: 2026-12-06}", 2, "has no time zone"),
        ("run: x\nfreegpu: {deadline: tomorrow}", 2, "is not a time"),
        ("run: x\nfreegpu: {deadline: 2026-13-01T00:00Z}", 2, "is not a time"),
        ("run: x\nfreegpu: {deadline: '0001-01-01T00:00+14:00'}", 2, "is outside the calendar"),
        # cards
        ("run: x\nresources:\n  accelerators: H1000", 3, "'H1000' is not a card freegpu knows; did you mean H100?"),
        ("run: x\nresources:\n  accelerators:\n  - T4\n  - T44", 5, "did you mean T4?"),
        ("run: x\nresources: {accelerators: 'T4:0'}", 2, "'0' is not a number of cards"),
        ("run: x\nresources: {accelerators: {T4: -1}}", 2, "'-1' is not a number of cards"),
        ("run: x\nresources: {accelerators: {T4: .nan}}", 2, "'.nan' is not a number of cards"),
        ("run: x\nresources: {accelerators: 'T4:'}", 2, "'' is not a number of cards"),
        ("run: x\nresources: {accelerators: []}", 2, "names no card"),
        ("run: x\nresources: {accelerators: [[T4]]}", 2, "lists cards, found a list"),
        ("run: x\nresources: {accelerators: 80GB:2}", 2, "several cards without naming one"),
        ("run: x\nresources: {accelerators: amd:80GB+}", 2, "wants a card of amd"),
        ("run: x\nresources: {accelerators: [T4, 80GB+]}", 2, "is a size, and stands alone"),
        ("run: x\nresources: {accelerators: GH200}", 2, "no free platform has GH200"),
        ("run: x\nresources: {gpus: T4, accelerators: T4}", 2, "mean the same; choose one"),
        ("run: x\nsecrets: {'secrets:A': x}", 2, "a reference to a secret has no value"),
        ("run: x\nresources: {any_of: [], cpus: 1}", 2, "must be a list of resources"),
        ("run: x\nresources:\n  any_of: [{accelerators: T4}]\n  ordered: [{accelerators: L4}]", 4, "choose one"),
        ("run: x\nresources: {any_of: [{any_of: []}]}", 2, "unknown field 'any_of'"),
        ("run: x\nresources: {accelerators: CPU}\nfreegpu: {vram: 4}", 3, "for a CPU"),
        # what SkyPilot can and freegpu cannot
        ("run: x\nnum_nodes: 2", 2, "num_nodes must be 1, found the number 2: a job runs in one session"),
        ("run: x\nservice: {readiness_probe: /}", 2, "service is not possible here"),
        ("run: x\nfile_mounts:\n  /d: s3://bucket", 3, "is a cloud bucket or URL"),
        ("run: x\nfile_mounts:\n  d: {source: s3://b, mode: MOUNT}", 3, "is a cloud bucket or URL"),
        ("run: x\nfile_mounts:\n  /data: job.yaml", 3, "'/data' is not relative to the working folder"),
        ("run: x\nfile_mounts:\n  ../d: job.yaml", 3, "leaves the working folder"),
        ("run: x\nfile_mounts:\n  d: gone", 3, "gone does not exist"),
        ("run: x\nfile_mounts:\n  d: /\n  ./d: /", 4, "the target 'd' stands twice"),
        ("run: x\nworkdir: {url: 'https://github.com/a/b'}", 2, "found a repository"),
        ("run: x\nworkdir: https://github.com/a/b", 2, "found a repository"),
        ("name: p\n---\nrun: x", 3, "holds 2 YAML documents (a pipeline)"),
        # folders
        ("run: x\nworkdir: gone", 2, "gone does not exist"),
        ("run: x\nworkdir: /dev/null", 2, "/dev/null is not a folder"),
        (f"run: x\nworkdir: {'n' * 5000}", 2, "does not exist"),
        ("run: x\nfreegpu: {checkpoint: {path: /ckpt}}", 2, "is not relative to the working folder"),
        ("run: x\nfreegpu: {checkpoint: {path: a/../..}}", 2, "leaves the working folder"),
        ("run: x\nfreegpu: {checkpoint: {path: .}}", 2, "names no file or folder inside"),
        ("run: x\nfreegpu: {outputs: [a, ../b]}", 2, "leaves the working folder"),
        # names
        ('run: x\nname: "a\\nb"', 2, "holds U+000A; a name is printable text on one line"),
        ('run: x\nname: "a\\eb"', 2, "holds U+001B"),
        (f"run: x\nname: {'n' * 101}", 2, "has 101 characters; a name has at most 100"),
        ("run: x\nname: ''", 2, "is empty"),
        ("run: x\nname: -rf", 2, "begins with a dash"),
        ("run: x\nenvs: {1A: x}", 2, "'1A' in envs is not a name"),
        ("run: x\nenvs: {FREEGPU_HOME: x}", 2, "is reserved"),
        ('run: x\nenvs: {A: "\\0"}', 2, "holds a NUL character"),
        (f"run: x\nenvs: {{A: {'v' * 100_001}}}", 2, "is longer than 100,000 bytes"),
        # matrix and after
        ("run: x\nfreegpu: {matrix: {A: []}}", 2, "freegpu.matrix.A must be a list of at least one value"),
        ("run: x\nfreegpu: {matrix: {A: 1}}", 2, "freegpu.matrix.A must be a list"),
        ("run: x\nfreegpu: {matrix: {A: [1, 1]}}", 2, "the value '1' stands twice"),
        ("run: x\nfreegpu: {matrix: {A: [null]}}", 2, "must be a value, found nothing"),
        ("run: x\nname: a\nfreegpu: {after: a}", 3, "a waits for itself"),
        ("run: x\nname: a\nfreegpu:\n  matrix: {B: [1]}\n  after: [a-b1]", 5, "a-b1 waits for itself"),
        # YAML
        ("", 1, "the file is empty"),
        ("# only\n", 1, "the file is empty"),
        ("run: x\nrun: y", 2, "the key 'run' stands twice (first on line 1)"),
        ("run: x\nenvs: {A: 1, A: 2}", 2, "the key 'A' stands twice"),
        ("run: x\nenvs:\n\tA: 1", 3, "a tab stands where YAML wants spaces"),
        ("run: !!python/object/apply:os.system [id]", 1, "the YAML tag !!python/object/apply:os.system"),
        ("run: !env X", 1, "the YAML tag !env is not allowed"),
        ("run: x\nenvs: {? {a: 1} : 2}", 2, "a key is text, found a mapping"),
        ("run: x\nenvs: &a {A: *a}", 2, "*a refers to itself"),
        ("run: x\nenvs: {A: *b}", 2, "*b refers to nothing above it"),
        ("run: x\nenvs: {<<: 5}", 2, "<< wants a mapping to merge"),
        ("run: x\nenvs: {A: 'x", 2, "not valid YAML"),
        ("run: x\nenvs: {A: x", 2, "not valid YAML"),
        ("run: a: b: c", 1, "not valid YAML"),
        ("run: x\nname: a\x07", 2, "the character U+0007 is not allowed in YAML"),
        ("run: x\nname: \ud800", 2, "the character U+D800 is not allowed in YAML"),
        (f"run: x\nenvs: {'[' * 40}", 2, "more than 32 levels deep"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_line_and_reason(text: str, line: int, part: str) -> None:
    """What was found, what is allowed, the nearest name; one sentence, at the line that is wrong."""
    error = refused(text)
    assert part in error.message
    # the parser sees that a bracket is open only where the file ends
    assert error.line in ((line, line + 1) if "not valid YAML" in part else (line,))
    assert error.path == "job.yaml"
    assert str(error).startswith(f"job.yaml:{error.line}: ")
    assert len(error.message) < 400


def test_a_platform_that_does_not_exist_gets_the_nearest_one() -> None:
    """Checked where the caller tells which ones there are."""
    error = refused("run: x\nfreegpu: {platforms: [kagle]}", platforms=("kaggle", "colab"))
    assert error.message == (
        "freegpu.platforms[0]: there is no platform 'kagle'; did you mean kaggle?"
    )
    assert error.hint == "known: colab, kaggle"


def test_a_matrix_of_ten_thousand_says_the_number_and_the_limit() -> None:
    """Before anything is expanded: also one of 10 ** 30."""
    ten = ", ".join(map(str, range(10)))
    axes = ", ".join(f"{name}: [{ten}]" for name in "ABCD")
    error = refused(f"run: x\nfreegpu: {{matrix: {{{axes}}}}}")
    assert error.message == (
        "freegpu.matrix makes 10,000 jobs (10 x 10 x 10 x 10); the limit is 1,000"
    )
    assert (
        "the limit is 1,000"
        in refused(
            "run: x\nfreegpu: {matrix: {" + ", ".join(f"A{n}: [{ten}]" for n in range(30)) + "}}"
        ).message
    )
    thousand = f"run: x\nfreegpu: {{matrix: {{A: {list(range(1000))}}}}}"
    assert len({spec.name for spec in loads(thousand).specs}) == 1000


@pytest.mark.parametrize(
    "bomb",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 25)),
        "run: x\na: &a {x: 1}\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(40_000)),
        "[" * 1_000_000,
        "{a: " * 200_000,
        "- " * 300_000,
        "? " * 300_000,
        "run: x\nenvs: {" + ", ".join(f"A{n}: {n}" for n in range(60_000)) + "}",
        "x" * ((1 << 20) + 1),
        "&a " * 10_000,
        "!" * 10_000,
        "run: >\n" + " \n" * 200_000,
        "%YAML 9.9\n---\nrun: x",
        "run: x\nname: " + "9" * 500_000,
    ],
    ids=lambda bomb: bomb[:12].strip(),
)
def test_a_yaml_bomb_costs_a_refusal_and_nothing_else(bomb: str) -> None:
    """Neither memory, nor the stack, nor more than moments."""
    start = time.process_time()
    refused(bomb)
    assert time.process_time() - start < 5


def test_files_that_cannot_be_a_spec_are_named(tmp_path: Path) -> None:
    """Missing, a folder, no UTF-8, too large; a byte order mark and Windows line ends are fine."""
    cases: list[tuple[Path, str]] = [
        (tmp_path / "gone.yaml", "there is no such file"),
        (tmp_path, "is a folder, not a job spec"),
        (tmp_path / "latin.yaml", "byte 0xe9 is not UTF-8"),
        (tmp_path / "wide.yaml", "is not UTF-8"),
        (tmp_path / "big.yaml", "is larger than 1 MiB"),
        (tmp_path / ("n" * 300), "cannot be read: File name too long"),
        (Path("nul\0l"), "cannot be read"),
    ]
    (tmp_path / "latin.yaml").write_bytes(b"run: x\nname: caf\xe9\n")
    (tmp_path / "wide.yaml").write_bytes("run: x".encode("utf-16"))
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 21))
    for path, part in cases:
        with pytest.raises(JobSpecError, match=part):
            load(path, environ={})
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfrun: x\r\nname: a\r\n")
    assert load(tmp_path / "bom.yaml", environ={}).specs[0].name == "a"
    with pytest.raises(JobSpecError) as caught:
        load(tmp_path / "latin.yaml", environ={})
    assert (caught.value.line, caught.value.exit_code) == (2, 11)


@pytest.mark.parametrize(
    "name", ["two words", "it's", 'a "b"', "中文", "émile", "a/b", "$(rm)", "x" * 100, "no"]
)
def test_names_of_any_script_are_allowed_on_one_line(name: str) -> None:
    """Printable text: spaces, quotes and every alphabet."""
    assert one(f"run: x\nname: {json.dumps(name)}").name == name


# --- fuzz --------------------------------------------------------------------------------------------------

_PIECES = [
    ":", "- ", "\n", "  ", "{", "}", "[", "]", "*a", "&a ", "!!int ", "null", "~", "'", '"', "|\n", "#", "<<: ",
    "\t", "9" * 30, "-1", ".inf", ".nan", "1e999", "\u2028", "\0", "é", "中", "\U0001f600", ",", "? ", "%", "---\n",
    "T4:2", "16GB", "4x", "6h on", "true", "0x1F", "${A}", "~/x", "../", "s3://b", "\\", "@", "`", "FREEGPU_X",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_a_mutated_spec_raises_nothing_but_its_own_error(seed: int, tmp_path: Path) -> None:
    """Bounded and seeded: every result is a spec or one sentence with a place."""
    rng = random.Random(seed)
    (tmp_path / "sets").mkdir()
    good = 0
    for _ in range(150):
        text = list(FULL)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            at = rng.randrange(len(text))
            kind = rng.randrange(4)
            if kind == 0:
                text[at] = rng.choice(_PIECES)
            elif kind == 1:
                text.insert(at, rng.choice(_PIECES))
            elif kind == 2:
                del text[at : at + rng.randrange(1, 12)]
            else:
                start = rng.randrange(len(text))
                text[at:at] = text[start : start + rng.randrange(1, 40)]
        path, environ = tmp_path / "job.yaml", {"WANDB_API_KEY": "k"}
        loaded = outcome("".join(text), path=path, environ=environ)
        if isinstance(loaded, JobSpecError):
            assert loaded.message.isprintable()
            assert loaded.line is None or loaded.line >= 1
            continue
        good += 1
        for spec in loaded.specs:
            assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
            json.dumps(spec.to_json(), ensure_ascii=False).encode()
    assert 0 < good < 150


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_override_raises_nothing_but_its_own_error(seed: int) -> None:
    """The command line is input like the file."""
    rng = random.Random(seed)
    keys = [
        "envs.LR",
        "LR",
        "freegpu",
        "freegpu.matrix.SEED",
        "resources.any_of",
        "file_mounts.a.b",
        "secrets.T",
        "name",
    ]
    for _ in range(300):
        parts = [rng.choice(keys), *rng.choices([*_PIECES, ".", "=", "run"], k=rng.randrange(4))]
        rng.shuffle(parts)
        override = f"{''.join(parts)}={''.join(rng.choices(_PIECES, k=rng.randrange(5)))}"
        text = "run: x\nenvs: {LR: 1}\nfreegpu: {matrix: {SEED: [1]}}"
        got = outcome(text, overrides=[override])
        assert isinstance(got, Loaded) or str(got).isprintable()


def test_random_bytes_are_refused(tmp_path: Path) -> None:
    """Whatever file is named by mistake."""
    rng = random.Random(7)
    for _ in range(200):
        (tmp_path / "r").write_bytes(rng.randbytes(rng.randrange(1, 400)))
        with pytest.raises(JobSpecError):
            load(tmp_path / "r", environ={})


def test_the_parser_without_libyaml_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML built without its C part: slower, the same specs and places."""
    with_c = loads("run: x\nenvs: {A: no, B: '5', C: 3e-4}\n").specs
    monkeypatch.delattr("yaml.CSafeLoader")
    assert loads("run: x\nenvs: {A: no, B: '5', C: 3e-4}\n").specs == with_c
    assert refused("run: x\nrun: y").line == 2
    assert "levels deep" in refused("[" * 100_000).message


def test_reading_specs_imports_no_database_and_no_pydantic() -> None:
    """What `submit` pays before anything happens; pathspec waits for an ignore file."""
    script = (
        "import sys, freegpu.jobs.spec, freegpu.jobs.bundle\n"
        "print([m for m in ('pydantic', 'sqlalchemy', 'rich', 'click', 'pathspec', 'difflib') if m in sys.modules])"
    )
    env = {"PATH": os.environ.get("PATH", "")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.strip() == "[]"


def test_limits_are_those_the_reference_names() -> None:
    """A reader may rely on them."""
    assert (document.MAX_BYTES, document.MAX_DEPTH, document.MAX_VALUES) == (1 << 20, 32, 50_000)


def test_cards_that_cannot_compute_in_bf16_are_refused_where_they_are_all_that_is_asked_for() -> (
    None
):
    """Such a job would wait for ever; with one card that can, the others are passed over when it is placed."""
    error = refused("run: x\nresources: {accelerators: [T4, V100]}\nfreegpu: {precision: bf16}")
    assert "T4 and V100 cannot compute in it" in error.message
    spec = one("run: x\nresources: {accelerators: [T4, L4]}\nfreegpu: {precision: bf16}")
    assert spec.needs.refuses("T4")
    assert not spec.needs.refuses("L4")
    assert "did you mean bf16?" in refused("run: x\nfreegpu: {precision: bf1}").message

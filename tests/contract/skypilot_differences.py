"""Task files that SkyPilot and freegpu read differently, by the row of the reference page that tells users so.

The page is docs/reference/skypilot.md, the section "Where SkyPilot differs".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.contract.skypilot_files import File
from tests.contract.skypilot_files import with_resources as _with


@dataclass(frozen=True, kw_only=True, eq=False)
class Different(File):
    """A file that the two read differently: parts of both readings, or words of the refusal."""

    row: str
    sky: Any
    ours: Any


def _different(row: str, *files: tuple[str, Any, Any]) -> list[Different]:
    return [Different(text, row=row, sky=sky, ours=ours) for text, sky, ours in files]


#: of a row: file, SkyPilot's reading, freegpu's. "refused" and what follows is how a refusal begins
DIFFERENT: tuple[Different, ...] = (
    Different(
        "run: x\nworkdir: data\nfile_mounts: {d: one.txt}",
        row="relative `workdir`, relative sources of `file_mounts`",
        lies_in="code",
        sky={"run": "x"},
        ours="code/data does not exist",
    ),
    Different(
        "run: x\nworkdir: .\nfile_mounts: {d: ../one.txt}",
        row="relative `workdir`, relative sources of `file_mounts`",
        lies_in="code",
        sky="refused",
        ours={"run": "x"},
    ),
    *_different(
        "a slash at the end of a path in `file_mounts`",
        ("run: x\nfile_mounts: {d/: data/}", "refused", {"run": "x"}),
    ),
    *_different(
        "`workdir` that is a repository; sources that are buckets or URLs",
        ("run: x\nworkdir: {url: 'https://h/a', ref: main}", {"run": "x"}, "found a repository"),
        (
            "run: x\nfile_mounts: {d: 's3://bucket/x'}",
            {"mounts": {"d": "s3://bucket/x"}},
            "refused: file_mounts.d is a cloud bucket or URL",
        ),
        (
            "run: x\nfile_mounts: {d: {source: 's3://bucket', mode: COPY}}",
            {"buckets": ["d"]},
            "refused: file_mounts.d is a cloud bucket or URL",
        ),
    ),
    *_different(
        "targets of `file_mounts` outside the working folder",
        ("run: x\nfile_mounts: {/data: data}", {"run": "x"}, "not relative to the working folder"),
        ("run: x\nfile_mounts: {~/data: data}", {"run": "x"}, "not relative to the working folder"),
        ("run: x\nfile_mounts: {../d: data}", {"run": "x"}, "leaves the working folder"),
        (
            "run: x\nfile_mounts: {$D/x: data}\nenvs: {D: /abs}",
            {"run": "x"},
            "not relative to the working folder",
        ),
    ),
    *_different(
        "values of secrets in paths",
        (
            "run: x\nworkdir: $W\nsecrets: {W: code}",
            {"secrets": ["W"]},
            "$W does not exist",
        ),
    ),
    *_different(
        "`cpus: 4`, `memory: 16`",
        (
            _with("cpus: 4, memory: 16"),
            {"cpus": 4.0, "exactly": True},
            {"cpus": 4.0, "memory": 16.0},
        ),
    ),
    *_different(
        "`run` left out",
        ("name: idle", {"name": "idle", "run": None}, "refused: run is missing"),
        ("setup: x\nrun:", {"run": None}, "refused: run is missing"),
        ("run: ''", {"run": ""}, "refused: run"),
    ),
    *_different(
        "no `accelerators`",
        (_with("cpus: 4+"), {"cards": [], "only_cpu": True}, {"cards": []}),
    ),
    *_different(
        "`accelerators: T4:0.5`",
        (_with("accelerators: 'T4:0.5'"), {"cards": ["T4:0.5"]}, {"cards": ["T4:1"]}),
        (_with("accelerators: {T4: 1.5}"), {"cards": ["T4:1.5"]}, {"cards": ["T4:2"]}),
    ),
    *_different(
        "`accelerators: T4:100`",
        (
            _with("accelerators: 'T4:100'"),
            {"cards": ["T4:100"]},
            "is not a number of cards from 1 to 64",
        ),
    ),
    *_different(
        "`accelerators: 16GB`, `16GB+`",
        (
            _with("accelerators: 16GB"),
            {"cards": ["P100:1", "T4:1", "V100:1"]},
            {"cards": [], "vram": 16.0},
        ),
        (
            _with("accelerators: 80GB+"),
            {"cards": ["A100-80GB-SXM:1", "A100-80GB:1", "H100:1", "H200:1", "MI300X:1"]},
            {"cards": [], "vram": 80.0},
        ),
        (
            _with("accelerators: 'nvidia:141GB'"),
            {"cards": ["H200:1"]},
            {"cards": [], "vram": 141.0},
        ),
        (_with("accelerators: 'amd:16GB+'"), {"cards": ["MI300X:1"]}, "wants a card of amd"),
        (
            _with("accelerators: '141GB:2'"),
            {"cards": ["H200:2"]},
            "several cards without naming one",
        ),
        (
            _with("accelerators: [T4, 141GB]"),
            {"cards": ["T4:1", "H200:1"]},
            "is a size, and stands alone",
        ),
    ),
    *_different(
        "a card that no free platform has",
        (_with("accelerators: L40"), {"cards": ["L40:1"]}, "no free platform has L40"),
        (_with("accelerators: [L40, T4]"), {"cards": ["L40:1", "T4:1"]}, {"cards": ["T4:1"]}),
        (
            _with("accelerators: {L40: 1, T4: 1, L4: 1}"),
            {"cards": ["L40:1", "L4:1", "T4:1"]},
            {"cards": ["L4:1", "T4:1"]},
        ),
        (
            _with("any_of: [{accelerators: tpu-v6e-8, memory: 512+}, {accelerators: T4}]"),
            {"cards": ["T4:1", "tpu-v6e-8:1"], "memory": [0.0, 512.0]},
            {"cards": ["T4:1"], "memory": 0.0},
        ),
        (
            _with("any_of: [{accelerators: L40}, {accelerators: tpu-v6e-8}]"),
            {"cards": ["L40:1", "tpu-v6e-8:1"]},
            "no free platform has L40 and tpu-v6e-8",
        ),
    ),
    *_different(
        "a card that nobody knows, or part of a name",
        (_with("accelerators: T44"), {"cards": ["T44:1"]}, "'T44' is not a card freegpu knows"),
        (_with("accelerators: V100-32"), {"cards": ["V100-32GB:1"]}, "'V100-32' is not a card"),
        (_with("accelerators: RTX"), "refused", "'RTX' is not a card freegpu knows"),
    ),
    *_different(
        "several names of one card",
        (_with("accelerators: [T4, t4, 'T4:1']"), {"cards": ["T4:1"]}, {"cards": ["T4:1"]}),
        (_with("accelerators: Tesla T4"), {"cards": ["Tesla T4:1"]}, {"cards": ["T4:1"]}),
        (
            _with("accelerators: A100-80GB-SXM"),
            {"cards": ["A100-80GB-SXM:1"]},
            {"cards": ["A100-80GB:1"]},
        ),
        (_with("accelerators: tpu-v5e"), {"cards": ["tpu-v5e:1"]}, {"cards": ["tpu-v5e-1:1"]}),
    ),
    *_different(
        "alternatives that differ in more than the card",
        (
            _with("any_of: [{accelerators: T4, memory: 8+}, {accelerators: L4, memory: 16+}]"),
            {"memory": [8.0, 16.0]},
            {"memory": 16.0, "cards": ["L4:1", "T4:1"]},
        ),
        (
            _with(
                "disk_size: 100, ordered: [{accelerators: T4, disk_size: 50}, {accelerators: L4}]"
            ),
            {"disk": [50.0, 100.0]},
            {"disk": 100.0, "cards": ["T4:1", "L4:1"]},
        ),
    ),
    *_different(
        "several cards in one alternative, or a list of cards beside alternatives",
        (
            _with("any_of: [{accelerators: {T4: 1, L4: 1}}, {accelerators: A100}]"),
            "refused",
            {"cards": ["A100:1", "L4:1", "T4:1"]},
        ),
        (
            _with("accelerators: [T4, L4], ordered: [{infra: aws}, {infra: gcp}]"),
            "refused",
            {"cards": ["T4:1", "L4:1"], "ordered": True},
        ),
    ),
    *_different(
        "`memory: 0`, `disk_size: 0`, `cpus: 0`",
        *(
            (_with(f"{name}: 0"), "refused", {"run": "x"})
            for name in ("memory", "disk_size", "cpus")
        ),
    ),
    *_different(
        "`disk_size: 50g`, `1.5TB`, `50+`",
        (_with("disk_size: 50g"), "refused", {"disk": 50.0}),
        (_with("disk_size: 1.5TB"), "refused", {"disk": 1536.0}),
        (_with("disk_size: 50+"), "refused", {"disk": 50.0}),
        (_with("memory: 16G"), "refused", {"memory": 16.0}),
        (_with("disk_size: 256"), {"disk": 0.0}, {"disk": 256.0}),
        (_with("disk_size: 1PB"), {"disk": 1048576.0}, "at most 1,000,000 GB"),
    ),
    *_different(
        "values of `envs`",
        (
            "run: x\nenvs: {A: true, B: 010, C: 1.0e-3, D: yes, E: 1_000, F: 12:30, G: 1.50}",
            {
                "envs": {
                    "A": "True",
                    "B": "8",
                    "C": "0.001",
                    "D": "True",
                    "E": "1000",
                    "F": "750",
                    "G": "1.5",
                }
            },
            {
                "envs": {
                    "A": "true",
                    "B": "010",
                    "C": "1.0e-3",
                    "D": "yes",
                    "E": "1_000",
                    "F": "12:30",
                    "G": "1.50",
                }
            },
        ),
        (
            "run: x\nenvs: {A: [1, 2]}",
            {"envs": {"A": "[1, 2]"}},
            "refused: envs.A must be a single value",
        ),
    ),
    *_different(
        "`envs: {LR: }`",
        ("run: x\nenvs: {LR: }", "refused", {"envs": {"LR": "0.1"}}),
        ("run: x\nenvs: {NOWHERE: null}", "refused", "refused: envs.NOWHERE is left open"),
    ),
    *_different(
        "variables named `FREEGPU_...`",
        ("run: x\nenvs: {FREEGPU_HOME: x}", {"envs": {"FREEGPU_HOME": "x"}}, "is reserved"),
    ),
    *_different(
        "`secrets: {HF_TOKEN: }`",
        (
            "run: x\nsecrets: {EMPTY: }",
            {"secrets": ["EMPTY"]},
            "refused: secrets.EMPTY is left open",
        ),
        ("run: x\nsecrets: ['secrets:NOWHERE']", {"secrets": ["NOWHERE"]}, "NOWHERE is left open"),
    ),
    *_different(
        "one name in `envs` and `secrets`",
        (
            "run: x\nenvs: {A: b}\nsecrets: {A: c}",
            {"envs": {"A": "b"}, "secrets": ["A"]},
            "stands in secrets and in envs",
        ),
    ),
    *_different(
        "`secrets: {A-B: c}`",
        ("run: x\nsecrets: {A-B: c}", {"secrets": ["A-B"]}, "is not a name"),
    ),
    *_different(
        "`name`",
        ("run: x\nname: 训练", "refused", {"name": "训练"}),
        ("run: x\nname: two words", "refused", {"name": "two words"}),
        (f"run: x\nname: {'n' * 101}", {"name": "n" * 101}, "a name has at most 100"),
    ),
    *_different(
        "bare words that YAML 1.1 takes for something else",
        ("run: x\nname: no", "refused", {"name": "no"}),
        ("run: x\nname: 2026-12-06", "refused", {"name": "2026-12-06"}),
        (
            "run: x\nname: 1e3",
            {"name": "1e3"},
            "refused: name must be a name, found the number 1e3",
        ),
    ),
    *_different(
        "YAML tags",
        ("run: !!str x", {"run": "x"}, {"run": "x"}),
        ("run: x\nenvs: !!map {A: b}", {"envs": {"A": "b"}}, "refused: the YAML tag !!map"),
    ),
    *_different(
        "several documents",
        ("name: p\n---\nrun: x", {"run": "x"}, "refused: the file holds 2 YAML documents"),
        ("run: x\n---\nrun: y", "a pipeline", "refused: the file holds 2 YAML documents"),
    ),
    *_different(
        "`num_nodes: 2`",
        ("run: x\nnum_nodes: 2", {"num_nodes": 2}, "refused: num_nodes must be 1"),
    ),
    *_different(
        "fields without a meaning here",
        (_with("infra: nowhere"), "refused", {"run": "x"}),
        (_with("use_spot: maybe"), "refused", {"run": "x"}),
        (_with("cloud: aws, infra: gcp"), "refused", {"run": "x"}),
        (_with("labels: 5"), "refused", {"run": "x"}),
        ("run: x\nconfig: 5", "refused", {"run": "x"}),
        ("run: x\nservice: {readiness_probe: /}", "a service", "refused: service is not possible"),
        ("run: x\npool: {workers: 1}", "a service", "refused: pool is not possible here"),
        ("run: x\nmanaged_secrets: [A]", {"secrets": ["A"]}, "refused: managed_secrets is not"),
        ("run: x\nvolumes: {/v: my-volume}", {"run": "x"}, "refused: volumes is not possible here"),
    ),
)

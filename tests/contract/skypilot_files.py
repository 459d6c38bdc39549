"""Task files that SkyPilot and freegpu are both shown. Written for this test; none is SkyPilot's own.

`SAME`: both must read the same. `REFUSED`: neither takes it. `DIFFERENT`: what either makes of a file, by the row
of the reference page ("Where SkyPilot differs") that tells users so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: what is in the caller's environment, and beside every file: folders `code`, `data`, a file `one.txt`
ENVIRON = {"WANDB_API_KEY": "w-key", "HF_TOKEN": "h-token", "EMPTY": "", "LR": "0.1"}
#: name, GB and maker of the cards in the catalog that SkyPilot is given; None: in no list of sizes
CATALOG: tuple[tuple[str, int | None, str], ...] = (
    ("T4", 16, "nvidia"),
    ("L4", 24, "nvidia"),
    ("A10", 24, "nvidia"),
    ("A10G", 24, "nvidia"),
    ("A100", 40, "nvidia"),
    ("A100-80GB", 80, "nvidia"),
    ("A100-80GB-SXM", 80, "nvidia"),
    ("H100", 80, "nvidia"),
    ("H200", 141, "nvidia"),
    ("L40", 48, "nvidia"),
    ("L40S", 48, "nvidia"),
    ("K80", 12, "nvidia"),
    ("P100", 16, "nvidia"),
    ("V100", 16, "nvidia"),
    ("V100-32GB", 32, "nvidia"),
    ("RTX3090", 24, "nvidia"),
    ("RTX4090", 24, "nvidia"),
    ("RTX6000-Ada", 48, "nvidia"),
    ("MI300X", 192, "amd"),
    ("Gaudi HL-205", 32, "intel"),
    ("tpu-v5litepod", None, ""),
    ("tpu-v6e", None, ""),
)


@dataclass(frozen=True)
class File:
    """A file, and what the command line adds to it."""

    text: str
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    #: the folder in which the file lies, seen from where the command runs
    lies_in: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Different(File):
    """A file that the two read differently: parts of both readings, or words of the refusal."""

    row: str
    sky: Any
    ours: Any


def _with(resources: str) -> str:
    return f"run: x\nresources: {{{resources}}}"


# every name of a card, in the ways a name and a count can be written
_NAMES = [name for name, size, maker in CATALOG if maker == "nvidia" and name not in ("L40",)]
_CARDS = [
    *(f"accelerators: {name}" for name in _NAMES if name != "A100-80GB-SXM"),
    *(f"accelerators: {name.lower()}" for name in ("T4", "V100-32GB", "A100-80GB", "RTX6000-Ada")),
    *(f"accelerators: '{name}:{count}'" for name in ("T4", "a100", "L40s") for count in (1, 2, 8)),
    "accelerators: 'T4: 2'",
    "accelerators: 'T4:2.0'",
    "accelerators: {T4: 2}",
    "accelerators: {T4: 2.0}",
    "accelerators: {t4: 1, L4: 2, A100-80GB: 4}",
    "accelerators: {T4: , L4: }",
    "accelerators: {T4, L4}",
    "accelerators: {L4:1, A10g:1}",
    "accelerators: ['T4', 'L4:2', A100]",
    "accelerators: [A100-80GB]",
    "accelerators: ['H100:8', 'A100-80GB:8']",
    "accelerators: [V100-32GB, V100, P100, K80]",
    "accelerators: ",
    "gpus: T4",
    "gpus: 'T4:2'",
    "gpus: [L4, T4]",
    "gpus: {L4: 1, T4: 2}",
    "accelerators: tpu-v5litepod-8",
    "accelerators: TPU-V5LITEPOD-1",
    "accelerators: 'T4:2', accelerator_args: {}",
    # alternatives
    "any_of: [{accelerators: T4}, {accelerators: L4}]",
    "any_of: [{accelerators: T4}]",
    "any_of: [{accelerators: {T4: 2}}, {accelerators: 'A100:2'}]",
    "any_of: [{gpus: T4}, {accelerators: L4}]",
    "any_of: [{accelerators: T4, use_spot: true}, {accelerators: L4, use_spot: false}]",
    "any_of: [{infra: aws}, {infra: gcp}], accelerators: T4",
    "any_of: [{infra: aws, accelerators: L4}, {infra: gcp}], accelerators: T4",
    "any_of: [{accelerators: T4}, {cpus: 4}], cpus: 4",
    "ordered: [{accelerators: A100}, {accelerators: L4}, {accelerators: T4}]",
    "ordered: [{accelerators: 'T4:2'}]",
    "ordered: [{infra: aws/us-east-1}, {infra: gcp}], accelerators: T4",
    "ordered: [{accelerators: L4}, {accelerators: T4, infra: '*/*/us-east-1a'}], memory: 8+, cpus: 2+",
]

_AMOUNTS = [
    *(f"cpus: {amount}" for amount in ("4+", "'4'", "4", "0.5", "'0.5+'", "4.0", "96+", "")),
    *(
        f"memory: {amount}"
        for amount in ("10+", "16", "'16'", "1.5", "'1.5+'", "16GB", "16gb+", "")
    ),
    *(
        f"memory: {amount}"
        for amount in ("16Gi", "16gi+", "512MB", "1TB", "2Ti+", "1PB", "1048576KB")
    ),
    *(f"cpus: 4+, memory: {amount}" for amount in ("4x", "2x", "0.5x")),
    *(
        f"disk_size: {amount}"
        for amount in ("50", "'50'", "50GB", "50gb", "50Gi", "1TB", "2Ti", "2048MB")
    ),
    "cpus: 2+, memory: 4+, disk_size: 100",
    "accelerators: [T4, L4], cpus: 2+, memory: 13+, disk_size: 64",
]

_IGNORED = [
    "use_spot: true",
    *(f"infra: {place}" for place in ("aws", "gcp/us-central1", "'*/us-east-1'", "k8s/my-context")),
    "cloud: gcp, region: us-central1, zone: us-central1-a",
    "image_id: 'docker:ubuntu:22.04'",
    "job_recovery: failover",
    "job_recovery: {strategy: EAGER_NEXT_REGION, max_restarts_on_errors: 3}",
    "labels: {team: vision}",
    "autostop: 10",
    "autostop: {idle_minutes: 10, down: true}",
    "ports: 8080",
    "ports: ['8080', 9000-9010]",
    "disk_tier: best",
    "network_tier: best",
    "ephemeral_storage: 50",
    "max_hourly_cost: 1.5",
    "priority: 10",
    "accelerators: tpu-v5litepod-8, accelerator_args: {runtime_version: v2-alpha-tpuv5}",
    "_no_missing_accel_warnings: true",
]

SAME: tuple[File, ...] = (
    *(File(_with(text)) for text in (*_CARDS, *_AMOUNTS, *_IGNORED)),
    *(
        File(text)
        for text in (
            "run: echo hello",
            "run: |\n  set -e\n  python train.py\n  echo done\n",
            "run: >-\n  python train.py\n  --epochs 3\n",
            "run: 'echo \"quoted\" $HOME ${LR}'",
            "setup: pip install -q torch\nrun: python train.py",
            "setup: |\n  pip install -q -r requirements.txt\nrun: |\n  python train.py\n",
            "setup:\nrun: x",
            "setup: ''\nrun: x",
            "name: mnist\nrun: x",
            "name: Mnist-ResNet_18.v2\nrun: x",
            "name: 'a--b__c'\nrun: x",
            "name: '123'\nrun: x",
            "name: 1mnist\nrun: x",
            "name:\nrun: x",
            "num_nodes: 1\nrun: x",
            "num_nodes:\nrun: x",
            "run: x\nresources:",
            "run: x\nresources: {}",
            "# only a comment\nrun: x  # and another",
            "---\nrun: x\n",
            "run: x\n---\n",
            "{run: x, name: flow}",
            "run: &r x\nsetup: *r",
            "run: x\nresources:\n  any_of:\n  - &a {accelerators: T4, cpus: 2+}\n  - {<<: *a, accelerators: L4}\n",
            # whole files as people write them
            """
# fine-tune on whatever is cheap
name: finetune-lora
workdir: code
resources:
  infra: aws
  accelerators: {L4: 1, A10G: 1, A100: 1}
  use_spot: true
  disk_size: 200
  job_recovery: {max_restarts_on_errors: 2}
envs:
  MODEL: org/model-7b
  EPOCHS: 3
  OUT: results
secrets:
  HF_TOKEN: null
file_mounts:
  inputs/train.txt: ./one.txt
  ~/sky_workdir/extra: ~/data
setup: |
  conda create -n train python=3.11 -y
  conda activate train
  pip install -r requirements.txt
run: |
  conda activate train
  torchrun --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE train.py \\
    --model "$MODEL" --epochs ${EPOCHS} --out $OUT
""",
            """
name: eval_nightly.v2
num_nodes: 1
resources:
  cpus: 8+
  memory: 2x
  ordered:
    - infra: gcp/us-central1
      accelerators: 'A100-80GB:2'
    - infra: aws
      accelerators: {L40S: 4}
    - accelerators: "L4:8"
      use_spot: no
  ports: [6006]
  autostop: {idle_minutes: 30, down: true}
  labels: {owner: eval}
envs: {SEED: "0042", TAG: &tag nightly, TAG_AGAIN: *tag}
config:
  kubernetes:
    provision_timeout: 600
run: python eval.py --seed "$SEED"
""",
            # variables
            "run: x\nenvs: {A: text, B: '1', C: \"two words\", D: ''}",
            "run: x\nenvs: {A: 1, B: -5, C: 0.5, D: 3e-4, E: 1.5e-05, F: 1e3}",
            "run: x\nenvs: {A: $HOME, B: '${A}/x', C: 'a:b', D: 'x=y', E: '#no comment'}",
            "run: x\nenvs: {A: 2026-12-06, _under: x, lower_case9: y, URL: https://a/b?c=d}",
            "run: x\nenvs:\n  TEXT: |\n    two\n    lines\n",
            "run: x\nenvs: {}",
            "run: x\nenvs: &e {A: a}\nsetup: y",
            # secrets
            "run: x\nsecrets: {WANDB_API_KEY: }",
            "run: x\nsecrets: {WANDB_API_KEY: null, HF_TOKEN: ~}",
            "run: x\nsecrets: {HF_TOKEN: in-clear}",
            "run: x\nsecrets: ['secrets:HF_TOKEN']",
            "run: x\nsecrets: [HF_TOKEN, WANDB_API_KEY]",
            "run: x\nsecrets: ['secrets:personal.HF_TOKEN', 'secrets:global.WANDB_API_KEY']",
            "run: x\nsecrets: {'secrets:HF_TOKEN': , workspace.WANDB_API_KEY: }",
            "run: x\nsecrets:",
            # folders
            "run: x\nworkdir: .",
            "run: x\nworkdir: code",
            "run: x\nworkdir: ./code",
            "run: x\nworkdir: ~/code",
            "run: x\nworkdir: $W\nenvs: {W: code}",
            "run: x\nworkdir: ${W}/../data\nenvs: {W: code}",
            "run: x\nfile_mounts: {d: data}",
            "run: x\nfile_mounts: {d/one.txt: one.txt, ./e: ./code}",
            "run: x\nfile_mounts: {~/sky_workdir/d: ~/data}",
            "run: x\nfile_mounts: {'$D/x': '${S}', '${D}-y': data}\nenvs: {D: deep, S: data}",
            "run: x\nfile_mounts: {}",
            "run: x\nfile_mounts:",
            # without a meaning here
            "run: x\nconfig: {gcp: {vpc_name: null}}",
            "run: x\nevent_callback: 'echo $JOB_STATUS'",
            "run: x\ninputs: {'s3://bucket/in': 10}",
            "run: x\noutputs: {'s3://bucket/out': 1.5}",
            "run: x\napi_server_access: false",
            "run: x\n_metadata: {a: b}",
        )
    ),
    File("run: x\nenvs: {LR: 1, B: 2}", envs=(("LR", "5e-4"),)),
    File("run: x\nenvs: {LR: 1}", envs=(("NEW", "a=b c"),)),
    File("run: x\nenvs: {LR: }", envs=(("LR", ""),)),
    File("run: x\nworkdir: $W\nenvs: {W: code}", envs=(("W", "data"),)),
    File("run: x\nsecrets: {HF_TOKEN: }", secrets=(("HF_TOKEN", "given"),)),
    File("run: x\nsecrets: ['secrets:HF_TOKEN']", secrets=(("HF_TOKEN", "given"),)),
    File("run: x\nsecrets: {A: b}", secrets=(("HF_TOKEN", "given"),)),
)

REFUSED: tuple[str, ...] = (
    "run: [x]",
    "run: 5",
    "run: {a: b}",
    "setup: [a]\nrun: x",
    "name: 5\nrun: x",
    "name: true\nrun: x",
    "name: [a]\nrun: x",
    "run: x\nrun: y",
    "rum: x",
    "run: x\nresource: {}",
    "run: x\nresources: []",
    "run: x\nresources: T4",
    "run: x\nenvs: [A]",
    "run: x\nenvs: {1A: x}",
    "run: x\nenvs: {A-B: x}",
    "run: x\nenvs: {5: x}",
    "run: x\nnum_nodes: 0",
    "run: x\nnum_nodes: -1",
    "run: x\nnum_nodes: '1'",
    "run: x\nnum_nodes: 1.5",
    "run: x\nworkdir: [a]",
    "run: x\nworkdir: 5",
    "run: x\nworkdir: {ref: main}",
    "run: x\nworkdir: gone",
    "run: x\nworkdir: one.txt",
    "run: x\nfile_mounts: {d: gone}",
    "run: x\nfile_mounts: [a]",
    "run: x\nfile_mounts: {d: 5}",
    "run: x\nfile_mounts: {d: [a]}",
    "run: x\nsecrets: 5",
    "run: x\nsecrets: {'secrets:HF_TOKEN': value}",
    "run: x\nservice: {a: 1}\npool: {workers: 1}",
    "run: 'x",
    "run: x\n\tname: y",
    "run: *nothing",
    "just text",
    "",
    "- run: x",
    _with("accelerator: T4"),
    _with("accelerators: 4"),
    _with("accelerators: 'T4:0'"),
    _with("accelerators: 'T4:-1'"),
    _with("accelerators: 'T4:two'"),
    _with("accelerators: 'T4:'"),
    _with("accelerators: 'T4:1:2'"),
    _with("accelerators: {T4: 0}"),
    _with("accelerators: {T4: two}"),
    _with("accelerators: [[T4]]"),
    _with("accelerators: [{T4: 1}]"),
    _with("accelerators: T4, gpus: L4"),
    _with("cpus: four"),
    _with("cpus: -1"),
    _with("cpus: 4x"),
    _with("cpus: [4]"),
    _with("memory: lots"),
    _with("memory: -1"),
    _with("memory: 16QB"),
    _with("memory: {a: b}"),
    _with("disk_size: -5"),
    _with("disk_size: big"),
    _with("any_of: {accelerators: T4}"),
    _with("any_of: [{any_of: []}]"),
    _with("any_of: [{accelerator: T4}]"),
    _with("any_of: [{accelerators: T4}], ordered: [{accelerators: L4}]"),
)


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
        (_with("accelerators: MI300X"), {"cards": ["MI300X:1"]}, "no free platform has MI300X"),
        (_with("accelerators: [MI300X, T4]"), {"cards": ["MI300X:1", "T4:1"]}, {"cards": ["T4:1"]}),
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
            _with("any_of: [{accelerators: L40}, {accelerators: Gaudi HL-205}]"),
            {"cards": ["Gaudi HL-205:1", "L40:1"]},
            "no free platform has L40 and Gaudi HL-205",
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

"""Task files that SkyPilot and freegpu are both shown. Written for this test; none is SkyPilot's own.

`SAME`: both must read the same. `REFUSED`: neither takes it. What they read differently is in skypilot_differences.py.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def with_resources(resources: str) -> str:
    """The smallest file with these fields of resources."""
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
    *(File(with_resources(text)) for text in (*_CARDS, *_AMOUNTS, *_IGNORED)),
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
    with_resources("accelerator: T4"),
    with_resources("accelerators: 4"),
    with_resources("accelerators: 'T4:0'"),
    with_resources("accelerators: 'T4:-1'"),
    with_resources("accelerators: 'T4:two'"),
    with_resources("accelerators: 'T4:'"),
    with_resources("accelerators: 'T4:1:2'"),
    with_resources("accelerators: {T4: 0}"),
    with_resources("accelerators: {T4: two}"),
    with_resources("accelerators: [[T4]]"),
    with_resources("accelerators: [{T4: 1}]"),
    with_resources("accelerators: T4, gpus: L4"),
    with_resources("cpus: four"),
    with_resources("cpus: -1"),
    with_resources("cpus: 4x"),
    with_resources("cpus: [4]"),
    with_resources("memory: lots"),
    with_resources("memory: -1"),
    with_resources("memory: 16QB"),
    with_resources("memory: {a: b}"),
    with_resources("disk_size: -5"),
    with_resources("disk_size: big"),
    with_resources("any_of: {accelerators: T4}"),
    with_resources("any_of: [{any_of: []}]"),
    with_resources("any_of: [{accelerator: T4}]"),
    with_resources("any_of: [{accelerators: T4}], ordered: [{accelerators: L4}]"),
)

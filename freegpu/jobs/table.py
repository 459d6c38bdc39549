"""Every field of the job spec, once: the parser, the JSON Schema and the reference page are held to it.

SkyPilot's fields are all here, so that each is read, ignored with its reason, or refused with its reason
(those two in skypilot.py); what SkyPilot has no word for stands under `freegpu:`. How values of a kind are read is decided in
kinds.py, what they mean together in spec.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from freegpu.jobs import units
from freegpu.jobs.accelerators import Accelerators
from freegpu.jobs.document import Array, Node, fail, found
from freegpu.jobs.kinds import (
    Field,
    Group,
    Integer,
    ListOf,
    MapOf,
    Only,
    Parsed,
    Reading,
    Section,
    Text,
    Value,
)
from freegpu.jobs.skypilot import RESOURCES_WITHOUT_MEANING, ROOT_WITHOUT_MEANING
from freegpu.jobs.special import (
    ENV,
    MAX_JOBS,
    MAX_NAME,
    Axes,
    Mounts,
    Names,
    Secrets,
    Workdir,
    estimate,
    inside,
    job_name,
    memory,
    not_blank,
)

__all__ = ["ROOT", "dotted_fields"]

_DAY = 86400.0


@dataclass(kw_only=True, eq=False, repr=False)
class Alternatives:
    """`any_of` and `ordered`: a list of resources."""

    def read(self, node: Node, name: str, reading: Reading) -> tuple[Section, ...]:
        if not isinstance(node, Array) or not node.items:
            fail(node, name, f"{name} must be a list of resources, found {found(node)}")
        return tuple(
            ALTERNATIVE.read(item, f"{name}[{at}]", reading) for at, item in enumerate(node.items)
        )

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": ALTERNATIVE.schema(), "minItems": 1}


def _duration(low: float, high: float, limits: str) -> Parsed:
    what = "a duration such as 90s, 10m or 1h30m"
    pattern = units.DURATION_PATTERN
    return Parsed(
        what=what, parse=units.duration, pattern=pattern, low=low, high=high, limits=limits
    )


def _size(what: str) -> Parsed:
    return Parsed(
        what=what,
        parse=units.size_gb,
        pattern=units.SIZE_PATTERN,
        low=0,
        high=1e6,
        limits="at most 1,000,000 GB",
    )


# --- the table -----------------------------------------------------------------------------------------

_RESOURCES: tuple[Field, ...] = (
    Field(
        name="accelerators",
        kind=Accelerators(),
        about="Cards that will do: one, a list in order of preference, or a map of which any will do.",
        default="any card, or the CPU where freegpu.vram is not set",
        example=["T4", "L4", "A100"],
    ),
    Field(
        name="gpus",
        kind=Accelerators(),
        about="Another word for accelerators.",
        example="T4",
    ),
    Field(
        name="cpus",
        kind=Parsed(
            what="a number of CPUs such as 4 or 4+",
            parse=units.threshold,
            pattern=units.COUNT_PATTERN,
            low=0,
            high=4096,
            limits="at most 4096",
        ),
        about="CPU cores that a place must have at least.",
        default="no demand",
        example="4+",
    ),
    Field(
        name="memory",
        kind=Parsed(
            what="an amount of memory such as 16 or 16+ (GB)",
            parse=memory,
            pattern=f"{units.SIZE_PATTERN}|^\\s*[0-9]+(\\.[0-9]+)?\\s*x\\+?\\s*$",
        ),
        about="GB of main memory that a place must have at least; `4x` is four times `cpus`.",
        default="no demand",
        example="10+",
    ),
    Field(
        name="disk_size",
        kind=_size("a disk size such as 50 (GB)"),
        about="GB of free disk that a place must have at least.",
        default="no demand",
        example=50,
    ),
    *RESOURCES_WITHOUT_MEANING,
)

ALTERNATIVE = Group(fields=_RESOURCES)

RESOURCES = Group(
    fields=(
        *_RESOURCES,
        Field(
            name="any_of",
            kind=Alternatives(),
            about="Alternatives of which any will do; each may hold the fields of resources.",
            example=[{"accelerators": "T4"}, {"accelerators": "L4"}],
        ),
        Field(
            name="ordered",
            kind=Alternatives(),
            about="Alternatives in order of preference.",
            example=[{"accelerators": "A100"}, {"accelerators": "T4"}],
        ),
    )
)

CHECKPOINT = Group(
    fields=(
        Field(
            name="path",
            kind=Text(what="a folder inside the working folder", check=inside),
            about="The folder the script saves into, relative to the working folder.",
            default="ckpt",
            example="ckpt",
        ),
        Field(
            name="every",
            kind=_duration(1, 7 * _DAY, "from 1s to 7d"),
            about="How often freegpu looks for a new checkpoint and carries it to the store.",
            default="10m",
            example="10m",
        ),
        Field(
            name="keep",
            kind=Integer(low=1, high=1000),
            about="Confirmed generations to keep.",
            default="2",
            example=2,
        ),
        Field(
            name="grace",
            kind=_duration(0, 3600, "from 0s to 1h"),
            about="Time between SIGTERM and SIGKILL, for a last save.",
            default="120s",
            example="120s",
        ),
        Field(
            name="window",
            kind=Integer(low=0, high=1000),
            about="Pause the job while more than this many checkpoints are unconfirmed: a hard bound on lost work.",
            default="never pause",
            example=3,
        ),
    )
)

RETRY = Group(
    fields=(
        Field(
            name="failures",
            kind=Integer(low=0, high=1_000_000, word="unlimited"),
            about="Failed attempts that are forgiven.",
            default="1",
            example=1,
        ),
        Field(
            name="preemptions",
            kind=Integer(low=0, high=1_000_000, word="unlimited"),
            about="Interruptions (session over, preempted, lost) that are forgiven.",
            default="unlimited",
            example="unlimited",
        ),
    )
)

FREEGPU = Group(
    elsewhere=lambda name: _elsewhere(name),
    fields=(
        Field(
            name="workload",
            kind=Names(of="workload"),
            about="Class of work for the speed model.",
            default="general",
            example="train-amp-cnn",
        ),
        Field(
            name="precision",
            kind=Names(of="precision"),
            about="`bf16`: only cards that have it in silicon, so no T4, V100 or P100.",
            default="any",
            example="bf16",
        ),
        Field(
            name="vram",
            kind=_size("an amount of memory such as 12 or 12+ (GB)"),
            about="GB of memory that each card must have at least.",
            default="no demand",
            example="12+",
        ),
        Field(
            name="estimate",
            kind=Parsed(
                what="a duration on a card such as 6h on T4",
                parse=estimate,
                pattern=r"^\s*([0-9]+(\.[0-9]+)?\s*[dhms]?\s*)+( on .*\S)?\s*$",
            ),
            about="How long the job takes alone on that card.",
            default="unknown; without a card, T4 is meant",
            example="6h on T4",
        ),
        Field(
            name="checkpoint",
            kind=CHECKPOINT,
            about="Where the job saves, and what freegpu does with it.",
            example={"path": "ckpt", "every": "10m", "keep": 2, "grace": "120s"},
        ),
        Field(
            name="outputs",
            kind=ListOf(
                item=Text(what="a pattern of files", check=inside, pattern=r"^[^/~]"),
                what="patterns of files",
            ),
            about="Results to bring home: patterns relative to the working folder.",
            default="what lies in FREEGPU_OUTPUT_DIR",
            example=["results/**"],
        ),
        Field(
            name="deadline",
            kind=Parsed(
                what="a time with its zone such as 2026-12-06T09:00+08:00",
                parse=units.moment,
                pattern=r"^\s*[0-9W-]+[T ].*([zZ]|[+-][0-9:]+)\s*$",
                number=False,
            ),
            about="When the job should be done: ISO 8601 with a zone.",
            default="none",
            example="2026-12-06T09:00+08:00",
        ),
        Field(
            name="priority",
            kind=Integer(low=-100, high=100),
            about="Higher is more urgent.",
            default="0",
            example=10,
        ),
        Field(
            name="retry",
            kind=RETRY,
            about="How often the job is tried again.",
            example={"failures": 1, "preemptions": "unlimited"},
        ),
        Field(
            name="platforms",
            kind=ListOf(item=Names(of="platform"), what="platforms"),
            about="Platforms that may be used.",
            default="all that are connected",
            example=["kaggle", "colab"],
        ),
        Field(
            name="matrix",
            kind=Axes(),
            about=f"One job for each combination of these variables, at most {MAX_JOBS:,}.",
            default="one job",
            example={"LR": [0.0001, 0.001], "SEED": [0, 1]},
        ),
        Field(
            name="after",
            kind=ListOf(item=Text(what="the name of a job", check=job_name), what="jobs"),
            about="Names or ids of jobs that must have succeeded before.",
            default="none",
            example=["prepare-data"],
        ),
    ),
)

ROOT = Group(
    required=("run",),
    elsewhere=lambda name: _elsewhere(name),
    fields=(
        Field(
            name="name",
            kind=Text(what="a name", check=job_name, pattern=r"^[^\s-].*$"),
            about=f"What the job is called: printable text of at most {MAX_NAME} characters.",
            default="the file's name; for job.yaml, the folder's",
            example="mnist-resnet",
        ),
        Field(
            name="workdir",
            kind=Workdir(),
            about="The folder that travels with the job, relative to the file.",
            default="none: the job starts in an empty folder",
            example=".",
        ),
        Field(
            name="setup",
            kind=Text(what="a shell script"),
            about="Shell script that prepares a fresh session; runs before `run`.",
            default="nothing",
            example="pip install -q -r requirements.txt",
        ),
        Field(
            name="run",
            kind=Text(what="a shell script", check=not_blank, pattern=r"\S"),
            about="Shell script that is the job.",
            default="none: it must be there",
            example="python train.py",
        ),
        Field(
            name="envs",
            kind=MapOf(
                value=Value(null=True),
                keys=ENV,
                what="variables to values",
            ),
            about="Environment variables; null is taken from the caller's environment or --set.",
            default="none",
            example={"LR": 0.0003},
        ),
        Field(
            name="secrets",
            kind=Secrets(value=Value(null=True), keys=ENV, what="variables to null"),
            about="Variables whose values are never stored in clear; null is taken from the environment.",
            default="none",
            example={"WANDB_API_KEY": None},
        ),
        Field(
            name="file_mounts",
            kind=Mounts(),
            about="Further local files and folders: target inside the working folder, then source.",
            default="none",
            example={"data": "~/datasets/mnist"},
        ),
        Field(
            name="resources",
            kind=RESOURCES,
            about="What a place must have.",
            default="anything will do",
            example={"accelerators": "T4", "memory": "10+"},
        ),
        Field(
            name="num_nodes",
            kind=Only(number=1, why="a job runs in one session, never over several machines"),
            about="Always 1.",
            default="1",
            example=1,
        ),
        Field(name="freegpu", kind=FREEGPU, about="What SkyPilot has no word for."),
        *ROOT_WITHOUT_MEANING,
    ),
)


def _elsewhere(name: str) -> str:
    """The dotted place of a field that was written in the wrong section, "" if there is none."""
    return next(
        (
            dotted
            for dotted, one in dotted_fields()
            if dotted.rpartition(".")[2] == name and not one.refused and not one.ignored
        ),
        "",
    )


def dotted_fields(group: Group = ROOT, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Every field with its dotted name, sections before what is in them."""
    for one in group.fields:
        yield f"{prefix}{one.name}", one
        if isinstance(one.kind, Group):
            yield from dotted_fields(one.kind, f"{prefix}{one.name}.")

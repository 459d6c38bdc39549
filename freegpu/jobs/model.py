"""A job spec after it was read: frozen values that the rest of freegpu decides on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from freegpu import cards
from freegpu.cards import filters
from freegpu.jobs.retry import Retry


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """One acceptable card: its name as in the card table, and how many."""

    card: str
    count: int = 1


class Remembers:
    """Room in a frozen value for what was worked out of it once. It is no field: it is neither compared, written down nor
    copied."""

    __slots__ = ("memo",)
    memo: Any

    def remember(self, found: Any) -> None:
        """To be called by whoever worked it out, and by nobody else for values of this class."""
        object.__setattr__(self, "memo", found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs(Remembers):
    """What a place must have for the job to run there. Equal needs are judged once for all jobs."""

    #: acceptable cards; empty: any card, and a CPU too unless `vram_gb` is set
    accelerators: tuple[Accelerator, ...] = ()
    #: whether the order of `accelerators` is the user's preference (a list), or any will do (a set)
    ordered: bool = False
    #: GB that a card must have
    vram_gb: float = 0.0
    #: GB of main memory
    memory_gb: float = 0.0
    cpus: float = 0.0
    #: GB of free disk
    disk_gb: float = 0.0
    #: adapters that may be used; empty: all
    platforms: tuple[str, ...] = ()
    #: class of work for the speed model
    workload: str = "general"
    #: "bf16": only cards that have it in silicon; "any": the job asks FREEGPU_PRECISION, or does not mind
    precision: str = "any"

    def __hash__(self) -> int:
        # a decision looks the same needs up thousands of times, and hashing all fields takes longer than the look-up
        try:
            return self.memo  # type: ignore[no-any-return]
        except AttributeError:
            every = (self.accelerators, self.ordered, self.vram_gb, self.memory_gb, self.cpus)
            more = (self.disk_gb, self.platforms, self.workload, self.precision)
            self.remember(hash((every, more)))
            return hash((every, more))

    @property
    def allows_cpu(self) -> bool:
        """Whether the job may run without a card."""
        return self.vram_gb == 0 and (
            not self.accelerators or any(a.card == "CPU" for a in self.accelerators)
        )

    def refuses(self, card: str, archs: Sequence[str] = ()) -> str:
        """Why the job cannot run on this card whatever its size, "" if it can.

        `archs`: what the PyTorch of the place was built for. It does not count for a card that the job names, nor
        for a job that needs no card at all: that one runs beside any driver.
        """
        return filters.unfit(
            card,
            precision=self.precision,
            archs=() if self.allows_cpu else archs,
            named=any(cards.fulfils(card, asked.card) for asked in self.accelerators),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """How long the job takes alone on one card."""

    seconds: float
    card: str = "T4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpointing:
    """Where the job saves, and what freegpu does with it."""

    #: folder, relative to the working folder
    path: str = "ckpt"
    #: seconds between commits; None: freegpu chooses
    every_s: float | None = None
    #: confirmed generations to keep
    keep: int = 2
    #: seconds between SIGTERM and SIGKILL
    grace_s: float = 120.0
    #: pause after this many unconfirmed checkpoints; None: never
    window: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """One job, matrix already expanded."""

    name: str
    run: str
    setup: str = ""
    #: absolute folder on the user's machine; "" when the job needs none
    workdir: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)
    #: names only: the values never enter a spec, the ledger or the store
    secrets: tuple[str, ...] = ()
    #: which private file of the home holds their values; "" when there are none
    secrets_ref: str = ""
    #: target inside the working folder -> absolute local source
    file_mounts: Mapping[str, str] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    estimate: Estimate | None = None
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    outputs: tuple[str, ...] = ()
    #: aware UTC
    deadline: datetime | None = None
    #: -100..100, higher is more urgent
    priority: int = 0
    retry: Retry = field(default_factory=Retry)
    #: names or ids of jobs that must have succeeded
    after: tuple[str, ...] = ()
    #: the matrix cell that this job is, e.g. {"LR": "0.001"}; empty without a matrix
    cell: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; `from_json(to_json())` is equal."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSpec:
        """The inverse of `to_json`."""
        raw = dict(data)
        needs = dict(raw.pop("needs"))
        needs["accelerators"] = tuple(Accelerator(**a) for a in needs["accelerators"])
        needs["platforms"] = tuple(needs["platforms"])
        estimate, deadline = raw.pop("estimate"), raw.pop("deadline")
        return cls(
            needs=Needs(**needs),
            estimate=Estimate(**estimate) if estimate else None,
            checkpoint=Checkpointing(**raw.pop("checkpoint")),
            retry=Retry(**raw.pop("retry")),
            deadline=datetime.fromisoformat(deadline) if deadline else None,
            secrets=tuple(raw.pop("secrets")),
            outputs=tuple(raw.pop("outputs")),
            after=tuple(raw.pop("after")),
            **raw,
        )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value

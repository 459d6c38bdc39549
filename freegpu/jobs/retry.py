"""What an ended attempt means for its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from freegpu.jobs.lifecycle import EndReason, JobEvent

#: who is to blame: "done", "job" (counts as a failure), "world" (counts as a preemption), "nobody" (counts as nothing)
BLAME: Mapping[EndReason, str] = MappingProxyType(
    {
        EndReason.COMPLETED: "done",
        EndReason.COMMAND_FAILED: "job",
        EndReason.RESUME_REQUESTED: "world",
        EndReason.CANCELLED: "nobody",
        EndReason.PREEMPTED: "world",
        EndReason.SESSION_EXPIRED: "world",
        EndReason.QUOTA_EXHAUSTED: "world",
        EndReason.LOST: "world",
        EndReason.LAUNCH_FAILED: "nobody",
        EndReason.WRONG_CARD: "nobody",
        EndReason.SUPERSEDED: "nobody",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """How often a job may be tried again; None is without limit."""

    failures: int | None = 1
    preemptions: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What becomes of the job, and the sentence that says why."""

    event: JobEvent
    failures: int
    preemptions: int
    why: str


def decide(
    retry: Retry, reason: EndReason, *, failures: int, preemptions: int, begun: bool = True
) -> Verdict:
    """What the end of the current attempt does to its job, given its counts so far.

    `failures: 1` means that one failed attempt is forgiven: the second one fails the job. `begun`: its command
    ran. A session that ends in the moment when it is given work interrupts nothing, and counts as nothing.
    """
    blame = BLAME[reason]
    if blame == "world" and not begun:
        blame = "nobody"
    if blame == "done":
        return Verdict(
            event=JobEvent.SUCCEED, failures=failures, preemptions=preemptions, why="completed"
        )
    if reason is EndReason.CANCELLED:
        return Verdict(
            event=JobEvent.CANCEL, failures=failures, preemptions=preemptions, why="cancelled"
        )
    failures += blame == "job"
    preemptions += blame == "world"
    if blame == "job" and retry.failures is not None and failures > retry.failures:
        why = f"the command failed {failures} time{'s' if failures > 1 else ''}; retry.failures is {retry.failures}"
        return Verdict(event=JobEvent.FAIL, failures=failures, preemptions=preemptions, why=why)
    if blame == "world" and retry.preemptions is not None and preemptions > retry.preemptions:
        why = f"interrupted {preemptions} times; retry.preemptions is {retry.preemptions}"
        return Verdict(event=JobEvent.FAIL, failures=failures, preemptions=preemptions, why=why)
    return Verdict(
        event=JobEvent.RETURNED,
        failures=failures,
        preemptions=preemptions,
        why=f"{reason}: goes on elsewhere",
    )

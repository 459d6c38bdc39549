"""What an ended attempt means for its job: a table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from freegpu.jobs.lifecycle import EndReason, JobEvent
from freegpu.jobs.retry import BLAME, Retry, decide

GLOSSARY = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"
WORLD = ["resume_requested", "preempted", "session_expired", "quota_exhausted", "lost"]
NOBODY = ["launch_failed", "wrong_card", "superseded"]


def test_every_end_reason_has_somebody_to_blame_and_a_row_in_the_glossary() -> None:
    """A new reason must be judged, and explained to people."""
    assert set(BLAME) == set(EndReason)
    assert set(BLAME.values()) == {"done", "job", "world", "nobody"}
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| [^|]+ \|$", GLOSSARY.read_text(), re.MULTILINE)
    assert sorted(set(rows) - {"reason"}) == sorted(EndReason)


@pytest.mark.parametrize(
    ("retry", "reason", "before", "event", "after"),
    [
        (Retry(), "completed", (0, 0), JobEvent.SUCCEED, (0, 0)),
        (Retry(), "completed", (1, 9), JobEvent.SUCCEED, (1, 9)),
        (Retry(failures=0, preemptions=0), "completed", (5, 5), JobEvent.SUCCEED, (5, 5)),
        (Retry(), "command_failed", (0, 0), JobEvent.RETURNED, (1, 0)),
        (Retry(), "command_failed", (1, 0), JobEvent.FAIL, (2, 0)),
        (Retry(failures=0), "command_failed", (0, 0), JobEvent.FAIL, (1, 0)),
        (Retry(failures=3), "command_failed", (2, 0), JobEvent.RETURNED, (3, 0)),
        (Retry(failures=3), "command_failed", (3, 0), JobEvent.FAIL, (4, 0)),
        (Retry(failures=None), "command_failed", (99, 0), JobEvent.RETURNED, (100, 0)),
        # interruptions do not use up forgiveness for failures
        (Retry(), "command_failed", (0, 50), JobEvent.RETURNED, (1, 50)),
        *((Retry(), reason, (1, 99), JobEvent.RETURNED, (1, 100)) for reason in WORLD),
        *((Retry(preemptions=0), reason, (0, 0), JobEvent.FAIL, (0, 1)) for reason in WORLD),
        *((Retry(preemptions=2), reason, (0, 1), JobEvent.RETURNED, (0, 2)) for reason in WORLD),
        *((Retry(preemptions=2), reason, (0, 2), JobEvent.FAIL, (0, 3)) for reason in WORLD),
        # nobody's fault counts as nothing, whatever the limits
        *((Retry(failures=0, preemptions=0), reason, (0, 0), JobEvent.RETURNED, (0, 0)) for reason in NOBODY),
        (Retry(), "cancelled", (1, 2), JobEvent.CANCEL, (1, 2)),
    ],
)  # fmt: skip
def test_the_end_of_an_attempt_decides_about_its_job(
    retry: Retry, reason: str, before: tuple[int, int], event: JobEvent, after: tuple[int, int]
) -> None:
    """The event for the job and the new counts of failures and preemptions."""
    failures, preemptions = before
    verdict = decide(retry, EndReason(reason), failures=failures, preemptions=preemptions)
    assert (verdict.event, verdict.failures, verdict.preemptions) == (event, *after)


def test_a_job_that_fails_says_which_limit_it_met() -> None:
    """The sentence is what `freegpu show` prints."""
    once = decide(Retry(failures=0), EndReason.COMMAND_FAILED, failures=0, preemptions=0)
    assert once.why == "the command failed 1 time; retry.failures is 0"
    often = decide(Retry(), EndReason.COMMAND_FAILED, failures=1, preemptions=0)
    assert often.why == "the command failed 2 times; retry.failures is 1"
    hunted = decide(Retry(preemptions=2), EndReason.LOST, failures=0, preemptions=2)
    assert hunted.why == "interrupted 3 times; retry.preemptions is 2"


@pytest.mark.parametrize("reason", WORLD)
def test_what_never_began_interrupts_nothing(reason: str) -> None:
    """A session that ended in the moment when it was given work counts against no limit."""
    verdict = decide(
        Retry(preemptions=0), EndReason(reason), failures=0, preemptions=0, begun=False
    )
    assert (verdict.event, verdict.preemptions) == (JobEvent.RETURNED, 0)
    blamed = decide(
        Retry(failures=0), EndReason.COMMAND_FAILED, failures=0, preemptions=0, begun=False
    )
    assert blamed.event is JobEvent.FAIL

"""The three tables of states: every (state, event) pair is decided, and decided as written down here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from freegpu.errors import InvalidTransitionError
from freegpu.jobs.lifecycle import (
    ATTEMPT_TRANSITIONS,
    JOB_TRANSITIONS,
    SESSION_TRANSITIONS,
    AttemptEvent,
    AttemptState,
    JobEvent,
    JobState,
    SessionEvent,
    SessionState,
    advance,
)

# Rows are states, columns events, "-" is refused. Written a second time on purpose: a change of the code must
# be made here too, by somebody who means it.
JOBS = """
          assigned returned succeed   fail   cancel    retry
pending   active   -        succeeded failed cancelled -
active    -        pending  succeeded failed cancelled -
succeeded -        -        -         -      -         -
failed    -        -        -         -      -         pending
cancelled -        -        -         -      -         pending
"""
ATTEMPTS = """
          start    stop     end
allocated running  stopping ended
running   -        stopping ended
stopping  stopping stopping ended
ended     -        -        -
"""
SESSIONS = """
         accepted hello  ask_end end   unknown_word
planned  starting live   -       ended -
starting starting live   ending  ended unknown
live     live     live   ending  ended live
ending   -        ending ending  ended ending
ended    -        -      -       -     -
unknown  starting live   ending  ended unknown
"""


def read(drawing: str) -> dict[tuple[str, str], str]:
    head, *rows = (line.split() for line in drawing.strip().splitlines())
    return {
        (row[0], event): after for row in rows for event, after in zip(head, row[1:], strict=True)
    }


MACHINES: list[
    tuple[Mapping[Any, Any], type[StrEnum], type[StrEnum], dict[tuple[str, str], str]]
] = [
    (JOB_TRANSITIONS, JobState, JobEvent, read(JOBS)),
    (ATTEMPT_TRANSITIONS, AttemptState, AttemptEvent, read(ATTEMPTS)),
    (SESSION_TRANSITIONS, SessionState, SessionEvent, read(SESSIONS)),
]
PAIRS = [
    pytest.param(
        table, state, event, told[state, event], id=f"{state.__class__.__name__}-{state}-{event}"
    )
    for table, states, events, told in MACHINES
    for state, event in product(states, events)
]


@pytest.mark.parametrize(("table", "state", "event", "after"), PAIRS)
def test_every_pair_of_state_and_event_does_what_is_drawn(
    table: Mapping[Any, Any], state: StrEnum, event: StrEnum, after: str
) -> None:
    """Either the drawn state, or a refusal that names both."""
    if after == "-":
        with pytest.raises(InvalidTransitionError, match=f"{state} does not allow {event}"):
            advance(table, state, event)
    else:
        assert advance(table, state, event) == after


@pytest.mark.parametrize(
    ("table", "states", "events", "told"), MACHINES, ids=["job", "attempt", "session"]
)
def test_the_drawing_has_every_pair_and_no_other(
    table: Mapping[Any, Any],
    states: type[StrEnum],
    events: type[StrEnum],
    told: dict[tuple[str, str], str],
) -> None:
    """A state or event that is added must be drawn."""
    assert set(told) == {(str(state), str(event)) for state, event in product(states, events)}


@pytest.mark.parametrize(
    ("table", "first"),
    [
        (JOB_TRANSITIONS, JobState.PENDING),
        (ATTEMPT_TRANSITIONS, AttemptState.ALLOCATED),
        (SESSION_TRANSITIONS, SessionState.PLANNED),
    ],
    ids=["job", "attempt", "session"],
)
def test_every_state_is_reached_and_none_is_a_trap(
    table: Mapping[Any, Any], first: StrEnum
) -> None:
    """From the first state all others are reachable, and from each an end is."""
    ends = {JobState.SUCCEEDED, AttemptState.ENDED, SessionState.ENDED}

    def reached(start: StrEnum) -> set[StrEnum]:
        found, queue = {start}, [start]
        while queue:
            here = queue.pop()
            for (state, _), after in table.items():
                if state is here and after not in found:
                    found.add(after)
                    queue.append(after)
        return found

    assert reached(first) == set(type(first))
    for state in type(first):
        assert reached(state) & ends


def test_final_and_open_say_what_the_tables_say() -> None:
    """A final job is left by `retry` alone; an ended session by nothing; all others are open."""
    for job_state in JobState:
        leaving = {event for (state, event) in JOB_TRANSITIONS if state is job_state}
        assert job_state.final == (leaving <= {JobEvent.RETRY})
    for session_state in SessionState:
        leaves = any(state is session_state for (state, _) in SESSION_TRANSITIONS)
        assert session_state.open == leaves

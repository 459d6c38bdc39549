"""Few states, many reasons: the whole life of jobs, attempts and sessions, as tables.

Everything that changes a state goes through `advance`. This file does not know who sends an event or what
is done about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from freegpu.errors import InvalidTransitionError

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class JobState(StrEnum):
    """Where a job is."""

    PENDING = "pending"  #: waits for a slot, for its `after` jobs, or for the next attempt
    ACTIVE = "active"  #: has an attempt that has not ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class JobEvent(StrEnum):
    """What can happen to a job."""

    ASSIGNED = "assigned"  #: an attempt was allocated
    RETURNED = "returned"  #: its attempt ended and it may go on elsewhere
    SUCCEED = "succeed"  #: a result was accepted
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"  #: the user wants it again


class AttemptState(StrEnum):
    """Where an attempt is."""

    ALLOCATED = "allocated"  #: in the ledger; its ticket may or may not have been read
    RUNNING = "running"
    STOPPING = "stopping"  #: a stop or cancel ticket is on its way
    ENDED = "ended"


class AttemptEvent(StrEnum):
    """What can happen to an attempt."""

    START = "start"
    STOP = "stop"
    END = "end"


class SessionState(StrEnum):
    """Where a session is, as far as we know."""

    PLANNED = "planned"  #: in the ledger with its request key; the platform was perhaps called
    STARTING = "starting"  #: the platform has accepted it
    LIVE = "live"  #: its agent said hello
    ENDING = "ending"  #: we asked it to end
    ENDED = "ended"
    UNKNOWN = "unknown"  #: the platform used a word we do not know; nothing is concluded from it

    @property
    def open(self) -> bool:
        return self is not SessionState.ENDED


class SessionEvent(StrEnum):
    """What can happen to a session."""

    ACCEPTED = "accepted"  #: start() returned, or find() found it
    HELLO = "hello"
    ASK_END = "ask_end"
    END = "end"
    UNKNOWN_WORD = "unknown_word"


class EndReason(StrEnum):
    """Why an attempt ended."""

    COMPLETED = "completed"  #: exit 0
    COMMAND_FAILED = (
        "command_failed"  #: any exit code but 0 and 75, a signal nobody sent, a failed setup
    )
    RESUME_REQUESTED = "resume_requested"  #: exit 75: "saved, resume me"
    CANCELLED = "cancelled"  #: the user asked for it
    PREEMPTED = "preempted"  #: we or the platform wanted the slot
    SESSION_EXPIRED = "session_expired"  #: the session's time was up; the agent stopped it in time
    QUOTA_EXHAUSTED = "quota_exhausted"  #: the account's quota ended the session
    LOST = "lost"  #: the session is gone or silent, without a word
    LAUNCH_FAILED = (
        "launch_failed"  #: the platform refused, or the agent never came up or refused the ticket
    )
    WRONG_CARD = "wrong_card"  #: another card came than was asked for
    SUPERSEDED = "superseded"  #: a newer attempt of the job exists


JOB_TRANSITIONS: Mapping[tuple[JobState, JobEvent], JobState] = MappingProxyType(
    {
        (JobState.PENDING, JobEvent.ASSIGNED): JobState.ACTIVE,
        (JobState.PENDING, JobEvent.CANCEL): JobState.CANCELLED,
        (JobState.PENDING, JobEvent.FAIL): JobState.FAILED,
        # the result of a fenced attempt may arrive while the job waits for its next one
        (JobState.PENDING, JobEvent.SUCCEED): JobState.SUCCEEDED,
        (JobState.ACTIVE, JobEvent.RETURNED): JobState.PENDING,
        (JobState.ACTIVE, JobEvent.SUCCEED): JobState.SUCCEEDED,
        (JobState.ACTIVE, JobEvent.FAIL): JobState.FAILED,
        (JobState.ACTIVE, JobEvent.CANCEL): JobState.CANCELLED,
        (JobState.FAILED, JobEvent.RETRY): JobState.PENDING,
        (JobState.CANCELLED, JobEvent.RETRY): JobState.PENDING,
    }
)

ATTEMPT_TRANSITIONS: Mapping[tuple[AttemptState, AttemptEvent], AttemptState] = MappingProxyType(
    {
        (AttemptState.ALLOCATED, AttemptEvent.START): AttemptState.RUNNING,
        (AttemptState.ALLOCATED, AttemptEvent.STOP): AttemptState.STOPPING,
        (AttemptState.ALLOCATED, AttemptEvent.END): AttemptState.ENDED,
        (AttemptState.RUNNING, AttemptEvent.STOP): AttemptState.STOPPING,
        (AttemptState.RUNNING, AttemptEvent.END): AttemptState.ENDED,
        # the word "started" may be read after we asked it to stop
        (AttemptState.STOPPING, AttemptEvent.START): AttemptState.STOPPING,
        (AttemptState.STOPPING, AttemptEvent.STOP): AttemptState.STOPPING,
        (AttemptState.STOPPING, AttemptEvent.END): AttemptState.ENDED,
    }
)

SESSION_TRANSITIONS: Mapping[tuple[SessionState, SessionEvent], SessionState] = MappingProxyType(
    {
        (SessionState.PLANNED, SessionEvent.ACCEPTED): SessionState.STARTING,
        (SessionState.PLANNED, SessionEvent.HELLO): SessionState.LIVE,
        (SessionState.PLANNED, SessionEvent.END): SessionState.ENDED,
        (SessionState.STARTING, SessionEvent.ACCEPTED): SessionState.STARTING,
        (SessionState.STARTING, SessionEvent.HELLO): SessionState.LIVE,
        (SessionState.STARTING, SessionEvent.ASK_END): SessionState.ENDING,
        (SessionState.STARTING, SessionEvent.END): SessionState.ENDED,
        (SessionState.STARTING, SessionEvent.UNKNOWN_WORD): SessionState.UNKNOWN,
        (SessionState.LIVE, SessionEvent.ACCEPTED): SessionState.LIVE,
        (SessionState.LIVE, SessionEvent.HELLO): SessionState.LIVE,
        (SessionState.LIVE, SessionEvent.ASK_END): SessionState.ENDING,
        (SessionState.LIVE, SessionEvent.END): SessionState.ENDED,
        # the agent's own heartbeat says more than a word we do not know
        (SessionState.LIVE, SessionEvent.UNKNOWN_WORD): SessionState.LIVE,
        (SessionState.ENDING, SessionEvent.HELLO): SessionState.ENDING,
        (SessionState.ENDING, SessionEvent.ASK_END): SessionState.ENDING,
        (SessionState.ENDING, SessionEvent.END): SessionState.ENDED,
        (SessionState.ENDING, SessionEvent.UNKNOWN_WORD): SessionState.ENDING,
        (SessionState.UNKNOWN, SessionEvent.ACCEPTED): SessionState.STARTING,
        (SessionState.UNKNOWN, SessionEvent.HELLO): SessionState.LIVE,
        (SessionState.UNKNOWN, SessionEvent.ASK_END): SessionState.ENDING,
        (SessionState.UNKNOWN, SessionEvent.END): SessionState.ENDED,
        (SessionState.UNKNOWN, SessionEvent.UNKNOWN_WORD): SessionState.UNKNOWN,
    }
)


def advance(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """The state after the event. InvalidTransitionError if the table does not allow it."""
    try:
        return table[state, event]
    except KeyError:
        raise InvalidTransitionError(f"{state} does not allow {event}") from None

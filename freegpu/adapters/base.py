"""The port to a platform: what an adapter offers to the orchestrator, and the values they exchange.

An adapter is one account on one platform. It raises only AdapterError, and never sleeps, retries, prints or
logs: `wrappers` does that. A card that was asked for and the card that came are both recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NewType, Protocol, runtime_checkable

from freegpu.agent.wire import Profile
from freegpu.jobs.model import Remembers

__all__ = [
    "Adapter",
    "Capabilities",
    "Collected",
    "Diagnosed",
    "Entrusted",
    "Finding",
    "Launch",
    "LogPage",
    "Observation",
    "Offer",
    "PlatformState",
    "QuotaReport",
    "Request",
    "Rules",
    "SessionRef",
    "Tidy",
    "Unsettled",
    "Window",
    "WindowKind",
]

#: the platform's own handle for a session; opaque to everybody else
SessionRef = NewType("SessionRef", str)


class WindowKind(StrEnum):
    """How a quota comes back."""

    FIXED_WEEKLY = "fixed_weekly"  #: all of it at one moment of the week
    ROLLING = "rolling"  #: each hour comes back `period_s` after it was used
    MONTHLY = "monthly"  #: on the first of a calendar month, UTC
    FROM_FIRST_USE = "from_first_use"  #: all of it `period_s` after the first use
    PER_SESSION = "per_session"  #: only the session's own limit counts
    PREPAID = "prepaid"  #: does not come back
    NONE = "none"  #: one's own machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A quota as the platform declares it, as data with a source."""

    kind: WindowKind
    #: what can be used in one window, in seconds of session time at rate 1; None: not published
    limit_s: float | None = None
    #: length in seconds, for rolling and from_first_use
    period_s: float = 7 * 86400.0
    #: for fixed_weekly: seconds after Monday 00:00 UTC at which it resets
    reset_offset_s: float = 0.0
    #: where the figure comes from, and the day somebody looked (ISO date)
    source: str = ""
    verified_on: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Facts that the orchestrator decides on; constant for the object's life."""

    #: a person must click before a session starts
    attended: bool = False
    #: a session can be ended by us
    stop: bool = True
    #: the platform shows output while a session runs
    live_logs: bool = False
    #: quota() answers
    reports_quota: bool = False
    #: the session cannot reach the store: mailbox goes in with the launch, outbox comes back by collect()
    sealed: bool = False
    #: seconds after which the platform ends a session; None: no limit
    max_session_s: float | None = None
    #: sessions that may be open at once
    max_concurrent: int = 1
    #: sessions run as this user on this machine: its folders and credential files are theirs too
    here: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer(Remembers):
    """What an account could give now: one session of this shape."""

    #: the adapter's name
    platform: str
    account: str
    #: model name as in the card table, or "CPU"
    card: str
    #: cards of the session; each is a slot
    count: int = 1
    #: GB of one card; 0 for CPU
    vram_gb: float = 0.0
    #: main memory in GB; 0: not known
    memory_gb: float = 0.0
    cpus: float = 0.0
    disk_gb: float = 0.0
    #: seconds that one session may last; None: no limit
    session_limit_s: float | None = None
    #: seconds between start() and the agent's hello, as far as is known
    start_delay_s: float = 0.0
    #: the quota that a session of this offer draws on ("" : none), e.g. "gpu" or "tpu"
    pool: str = ""
    #: quota seconds charged per second of session
    rate: float = 1.0
    #: how many sessions of this shape could be started now, by the platform's own word; None: it does not say
    available: int | None = None
    #: device ids when the adapter can name them (CUDA_VISIBLE_DEVICES); empty: 0..count-1
    devices: tuple[str, ...] = ()
    #: its sessions will be sealed; set by the orchestrator, so that a session stays what it was when it began
    sealed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaReport:
    """What the platform itself says about one pool, in seconds of session time at rate 1."""

    pool: str
    used_s: float
    limit_s: float | None
    resets_at: datetime | None
    #: when it was true, aware UTC
    as_of: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Everything needed to start one session. `profile` goes to the agent as it is."""

    #: the request key: one session a key, also when called twice
    key: str
    offer: Offer
    profile: Profile
    #: local path of the agent's .pyz, its digest, and where it lies in the store
    agent_path: str
    agent_sha256: str
    agent_key: str
    #: sealed sessions: a folder here, laid out like the store, that goes in with the launch (orchestrator.sealed);
    #: "" for sessions that open the store themselves
    tree: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The exact payload for the platform; equal launches render equal requests."""

    key: str
    payload: Mapping[str, Any] = field(default_factory=dict)


class PlatformState(StrEnum):
    """A session as the platform reports it, in our words."""

    STARTING = "starting"  #: accepted or queued
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"  #: the platform does not know it (any more)
    UNKNOWN = "unknown"  #: a word we do not know: nothing follows from it


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One look at a session."""

    state: PlatformState
    #: the platform's own word
    raw: str = ""
    #: for people: an error text, a queue place
    detail: str = ""
    #: the card that came, where the platform tells it
    card: str = ""
    #: why it ended, where the platform tells it: "" or an EndReason value (session_expired, quota_exhausted, preempted)
    reason: str = ""
    #: seconds that the platform has charged or will charge, where it tells
    used_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPage:
    """Output of a session as the platform shows it; `cursor` continues from here."""

    text: str
    cursor: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What came home from a sealed session."""

    files: int
    #: False: the platform truncated or withheld something
    whole: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at for `connect` and `doctor`."""

    #: what: installed, credentials, quota, clock, store, ...; one word
    name: str
    #: None: neither good nor bad, for information
    ok: bool | None
    #: one sentence, lower case, without a full stop
    detail: str
    #: what to do next, where there is something to do
    hint: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a platform's terms say about programs that start its sessions; accepted by name before it is connected."""

    #: one word with hyphens; a person types it, and it stands in freegpu.toml as `accepted`
    name: str
    sentences: tuple[str, ...]
    #: where the terms are to be read
    url: str


@runtime_checkable
class Diagnosed(Protocol):
    """An adapter that can tell what is wrong with its account and its way there."""

    def diagnose(self, store: str, /) -> Sequence[Finding]:
        """Look at everything once: library, credentials, quota, clock skew, and whether sessions can open `store`.

        Nothing is started and nothing is raised: what fails is a finding. `store`: its URL as sessions see it.
        """
        ...


@runtime_checkable
class Tidy(Protocol):
    """An adapter whose sessions leave something on the platform when they are over."""

    def tidy(self, ref: SessionRef, /) -> None:
        """Remove what this session left there (its kernel, its datasets); all that mattered is home. Silent if gone.

        `ref` is the session's key where a start was never answered: find what it left by that, or be silent.
        """
        ...


@runtime_checkable
class Unsettled(Protocol):
    """An adapter whose starts may have got something on the platform without an answer, or while they were killed."""

    def unsettled(self) -> bool:
        """Whether there is such a start; cheap and offline."""
        ...

    def settle(self) -> None:
        """Give back what such starts have got, as far as it can be seen now."""
        ...


@runtime_checkable
class Entrusted(Protocol):
    """An adapter that can hand its sessions secrets without a request, a log or the store showing them."""

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        """`secrets`: what opening the store takes beside its URL, by name; asked for at each start."""
        ...


class Adapter(Protocol):
    """One account on one platform. Calls block; each returns or raises AdapterError within its own time limits.

    Two calls may come at once: one of start, collect and tidy beside one of the others.

    A class may say `one_account = "kaggle"`: a home then holds one platform of that word, since rotating accounts
    breaks every platform's terms. It may say `rules` (Rules).
    """

    @property
    def name(self) -> str:
        """The platform's name in the configuration; one word, lower case."""
        ...

    @property
    def account(self) -> str:
        """Which login this is, for people and for the ledger."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def windows(self) -> Mapping[str, Window]:
        """Declared quota windows by pool; a live quota() overrides the figures."""
        ...

    def offers(self) -> Sequence[Offer]:
        """What could be had now; empty is normal, not an error."""
        ...

    def quota(self) -> Sequence[QuotaReport] | None:
        """One report a pool. None: the platform does not tell, the ledger counts."""
        ...

    def render(self, launch: Launch, /) -> Request:
        """Pure: no network, equal inputs give equal requests, no secret but the session's key."""
        ...

    def start(self, request: Request, /) -> SessionRef:
        """Start one session for this key; the same key again returns the same session."""
        ...

    def find(self, key: str, /) -> SessionRef | None:
        """The session started for this key, after a crash between start and commit; None: there is none."""
        ...

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        """One look at many; every ref is answered, unknown ones with GONE."""
        ...

    def stop(self, ref: SessionRef, /) -> None:
        """Ask it to end, without waiting; silent if it is gone."""
        ...

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        """What the platform shows of the session's own output (the agent's, not the job's)."""
        ...

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        """Sealed sessions: bring the outbox home into this folder."""
        ...

    def close(self) -> None:
        """Release connections; calling it twice is fine."""
        ...

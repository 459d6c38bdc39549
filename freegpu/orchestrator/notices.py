"""Which notices follow from what happened: a few kinds, each thing told once. Pure.

Decides what a person is told, in which words, and what is remembered so that it is not told again. Does not
know the ledger, addresses or how anything is sent: see `notify`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from freegpu.adapters.base import WindowKind
from freegpu.orchestrator.model import AuditEvent, Balance
from freegpu.orchestrator.spots import span_text

__all__ = [
    "ACTIONS",
    "AGAIN_S",
    "TRIES",
    "Attended",
    "JobFacts",
    "Notice",
    "NoticeKind",
    "Queued",
    "State",
    "Watched",
    "attended",
    "from_events",
    "invitations",
    "put_off",
    "queued",
    "resets",
]

#: the lines of the audit that notices follow from
ACTIONS = ("job.succeeded", "job.failed", "attempt.ended")
#: the same invitation comes again after this long at the earliest, seconds ...
AGAIN_S = 6 * 3600.0
#: ... or when what it would buy has grown or shrunk by this factor
BY_A_LOT = 2.0
#: how often one notice is tried in all, and how long the second try waits, seconds; each further one twice as long
TRIES, PAUSE_S = 5, 30.0
#: so many new notices of one kind at once are told as they are; more become one
EACH = 4
#: notices that wait for another try; the oldest are given up first
MOST = 100
#: of a quota, this share must have been used in a window for its reset to be news
WORTH_TELLING = 0.01
#: a rolling quota with less than this share left is spent; with this share left it is back
SPENT, BACK = 0.05, 0.5
#: moments nearer than this are one moment: platforms round
_SAME_S = 120.0
_NAMES = 8


class NoticeKind(StrEnum):
    """What a person may want to hear of."""

    SUCCEEDED = "succeeded"  #: a job has its result
    FAILED = "failed"  #: a job has failed for good
    LOST = "lost"  #: a session went away with work in it
    QUOTA = "quota"  #: a quota that had been used came back
    ATTENDED = "attended"  #: one click of a person would pay off now


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One thing to tell. Two with the same key are the same."""

    kind: NoticeKind
    key: str
    title: str
    body: str
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attended:
    """An invitation: on this platform one click would pay off now."""

    platform: str
    notice: Notice
    #: what the click would buy, in any unit that stays the same, e.g. seconds of work
    worth: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """What a notice says about a job."""

    name: str
    why: str = ""
    attempts: int = 1
    lost_s: float = 0.0
    #: from submission to its end, seconds
    took_s: float | None = None
    has_checkpoint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """A notice and the addresses (by their digests) that it has not reached."""

    notice: Notice
    to: tuple[str, ...]
    tries: int = 0
    #: not before this moment is it tried (again)
    after: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A pool of quota as it was last seen."""

    resets_at: datetime | None
    #: enough of it was used (a rolling one: all but spent) for its return to be news
    used: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What is remembered between two looks; lies in the ledger as JSON."""

    #: audit lines up to this one have been dealt with
    cursor: int = 0
    queue: tuple[Queued, ...] = ()
    #: platform -> (when its invitation was last told, what it was worth)
    invited: Mapping[str, tuple[datetime, float]] = field(default_factory=dict)
    #: "platform/pool"
    windows: Mapping[str, Watched] = field(default_factory=dict)

    def to_json(self) -> str:
        """As text; equal states give equal texts."""
        return json.dumps(asdict(self), sort_keys=True, default=lambda value: value.isoformat())

    @classmethod
    def from_json(cls, text: str) -> State:
        """The inverse. ValueError: it is something else."""
        try:
            raw = json.loads(text)
            return cls(
                cursor=int(raw["cursor"]),
                queue=tuple(_queued(each) for each in raw["queue"]),
                invited={
                    name: (datetime.fromisoformat(at), float(worth))
                    for name, (at, worth) in raw["invited"].items()
                },
                windows={
                    name: Watched(resets_at=_time(each["resets_at"]), used=bool(each["used"]))
                    for name, each in raw["windows"].items()
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a state of notices: {error}") from error


def _queued(raw: Mapping[str, Any]) -> Queued:
    told = dict(raw["notice"])
    notice = Notice(**{**told, "kind": NoticeKind(told["kind"])})
    after = _time(raw["after"])
    return Queued(notice=notice, to=tuple(raw["to"]), tries=int(raw["tries"]), after=after)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


# --- what follows from the audit -------------------------------------------------------------------------


def from_events(events: Iterable[AuditEvent], jobs: Mapping[str, JobFacts]) -> list[Notice]:
    """Jobs that ended and sessions that were lost, in the order in which it happened; each once."""
    found: dict[str, Notice] = {}
    lost: dict[str, list[AuditEvent]] = {}
    for event in events:
        facts = jobs.get(event.job, JobFacts(name=event.job))
        if event.action == "job.succeeded":
            notice = _succeeded(event, facts)
            found.setdefault(notice.key, notice)
        elif event.action == "job.failed":
            notice = _failed(event, facts)
            found.setdefault(notice.key, notice)
        elif event.action == "attempt.ended" and _went_away(event):
            lost.setdefault(event.session, []).append(event)
            notice = _lost(lost[event.session], jobs)
            found[notice.key] = notice
    return list(found.values())


def _succeeded(event: AuditEvent, facts: JobFacts) -> Notice:
    parts = []
    if facts.took_s is not None and facts.took_s >= 60:
        parts.append(f"{span_text(facts.took_s)} after it was submitted")
    if facts.attempts > 1:
        parts.append(f"over {facts.attempts} attempts")
    if facts.lost_s >= 1:
        parts.append(f"{span_text(facts.lost_s)} of work had to be done again")
    return Notice(
        kind=NoticeKind.SUCCEEDED,
        key=f"succeeded:{event.job}",
        title=f"{facts.name} has succeeded",
        body=f"{', '.join(parts) or 'it is done'}. Its outputs: freegpu pull {event.job}",
    )


def _failed(event: AuditEvent, facts: JobFacts) -> Notice:
    # by its attempt: a job that was retried by hand may fail again, and that is news
    return Notice(
        kind=NoticeKind.FAILED,
        key=f"failed:{event.job}:{event.attempt}",
        title=f"{facts.name} has failed",
        body=f"{event.message or facts.why}. What it printed: freegpu logs {event.job}",
    )


def _went_away(event: AuditEvent) -> bool:
    """Whether the attempt was lost with its session; an end that the agent itself reported is not."""
    reason = event.message.partition(":")[0]
    return reason == "lost" and bool(event.session) and event.data.get("exit_code") is None


def _lost(events: Sequence[AuditEvent], jobs: Mapping[str, JobFacts]) -> Notice:
    first = events[0]
    words = []
    for event in events:
        facts = jobs.get(event.job, JobFacts(name=event.job))
        lost = event.data.get("lost_s")
        much = f", {span_text(lost)} of work lost" if isinstance(lost, int | float) and lost else ""
        start = "from its checkpoint" if facts.has_checkpoint else "from the beginning"
        words.append(f"{facts.name} ({event.job}) goes on {start}{much}")
    where = first.platform or "a platform"
    detail = first.message.partition(": ")[2]
    return Notice(
        kind=NoticeKind.LOST,
        key=f"lost:{first.session}",
        title=f"a session on {where} was lost",
        body="; ".join(words) + (f". Session {first.session}: {detail}" if detail else ""),
    )


# --- what follows from quotas ----------------------------------------------------------------------------


def resets(
    before: Mapping[str, Watched], balances: Sequence[Balance], now: datetime
) -> tuple[list[Notice], dict[str, Watched]]:
    """Quotas that came back since they were last seen, and what to remember of each pool.

    A quota whose limit nobody publishes has no reset that could be told. A prepaid one never comes back.
    """
    notices: list[Notice] = []
    after = dict(before)
    for balance in balances:
        if balance.limit_s is None or balance.limit_s <= 0:
            continue
        name = f"{balance.platform}/{balance.pool}"
        old = before.get(name)
        if balance.window.kind is WindowKind.ROLLING:
            back, after[name] = _rolling(old, balance)
        elif balance.resets_at is not None or balance.window.kind is WindowKind.FROM_FIRST_USE:
            back, after[name] = _at_once(old, balance, now)
        else:
            continue
        if back:
            moment = old.resets_at if old and old.resets_at else now
            notices.append(_back(balance, moment))
    return notices, after


def _at_once(old: Watched | None, balance: Balance, now: datetime) -> tuple[bool, Watched]:
    """Windows that end at a moment."""
    used = balance.used_s >= WORTH_TELLING * (balance.limit_s or 0.0) and balance.used_s > 0
    over = old is not None and old.resets_at is not None and old.resets_at <= now
    if old is not None and not over:
        used = used or old.used
        if _near(old.resets_at, balance.resets_at):
            return False, replace(old, used=used)
    return over and old is not None and old.used, Watched(resets_at=balance.resets_at, used=used)


def _rolling(old: Watched | None, balance: Balance) -> tuple[bool, Watched]:
    """Windows that come back bit by bit: news is that there is enough again after there was none."""
    limit, left = balance.limit_s or 0.0, balance.left_s or 0.0
    spent = old is not None and old.used
    if spent and left >= BACK * limit:
        return True, Watched(resets_at=None, used=False)
    return False, Watched(resets_at=None, used=spent or left < SPENT * limit)


def _near(one: datetime | None, other: datetime | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs((one - other).total_seconds()) < _SAME_S


def _back(balance: Balance, moment: datetime) -> Notice:
    pool = f" ({balance.pool})" if balance.pool not in ("", "gpu") else ""
    left = balance.left_s or 0.0
    ends = f", until {balance.resets_at:%Y-%m-%d %H:%M} UTC" if balance.resets_at else ""
    if balance.window.kind is WindowKind.ROLLING:
        ends = ""
    return Notice(
        kind=NoticeKind.QUOTA,
        key=f"quota:{balance.platform}:{balance.pool}:{moment.isoformat(timespec='minutes')}",
        title=f"the quota of {balance.platform}{pool} is back",
        body=f"{span_text(left)} can be used now{ends}.",
    )


# --- invitations -----------------------------------------------------------------------------------------


def attended(platform: str, url: str, sentence: str, *, worth: float = 0.0) -> Attended:
    """An invitation to click on `platform` at `url`; `sentence` says what that would buy.

    `worth` is the same as a number (seconds of work, say): the invitation comes again within AGAIN_S only
    if that has grown or shrunk by the factor BY_A_LOT. 0: not known.
    """
    notice = Notice(
        kind=NoticeKind.ATTENDED,
        key=f"attended:{platform}",
        title=f"one click on {platform} would pay off now",
        body=sentence,
        url=url,
    )
    return Attended(platform=platform, notice=notice, worth=max(0.0, worth))


def invitations(
    before: Mapping[str, tuple[datetime, float]], wanted: Sequence[Attended], now: datetime
) -> tuple[list[Notice], dict[str, tuple[datetime, float]]]:
    """Those that are to be told now, and what to remember."""
    notices: list[Notice] = []
    after = dict(before)
    for each in wanted:
        told = after.get(each.platform)
        if told is None or _due(told, each.worth, now):
            notices.append(each.notice)
            after[each.platform] = (now, each.worth)
    return notices, after


def _due(told: tuple[datetime, float], worth: float, now: datetime) -> bool:
    at, then = told
    if now - at >= timedelta(seconds=AGAIN_S) or at > now:
        return True
    low, high = sorted((then, worth))
    return low > 0 and high >= BY_A_LOT * low


# --- the queue -------------------------------------------------------------------------------------------


def queued(
    state: State, new: Sequence[Notice], addresses: Mapping[str, Sequence[str]]
) -> tuple[Queued, ...]:
    """The queue with the new notices behind it. `addresses`: digest -> the kinds that it wants to hear of.

    Many of one kind at once (a whole matrix has ended) become one.
    """
    waiting = {entry.notice.key for entry in state.queue}
    fresh = [notice for notice in new if notice.key not in waiting]
    queue = list(state.queue)
    for kind in dict.fromkeys(notice.kind for notice in fresh):
        to = tuple(name for name, wants in addresses.items() if kind in wants)
        if to:
            alike = [notice for notice in fresh if notice.kind is kind]
            shown = alike if len(alike) <= EACH else [_digest(alike)]
            queue += [Queued(notice=notice, to=to) for notice in shown]
    return tuple(queue[-MOST:])


def _digest(notices: Sequence[Notice]) -> Notice:
    first, many = notices[0], len(notices)
    named = [notice.title for notice in notices[:_NAMES]]
    more = f" and {many - _NAMES} more" if many > _NAMES else ""
    title = {
        NoticeKind.SUCCEEDED: f"{many} jobs have succeeded",
        NoticeKind.FAILED: f"{many} jobs have failed",
        NoticeKind.LOST: f"{many} sessions were lost",
        NoticeKind.QUOTA: f"{many} quotas are back",
        NoticeKind.ATTENDED: f"one click each on {many} platforms would pay off now",
    }[first.kind]
    return replace(first, key=f"{first.key}+{many}", title=title, body="; ".join(named) + more)


def put_off(entry: Queued, failed: Sequence[str], now: datetime) -> Queued | None:
    """The entry after a try that did not reach these addresses; None: nothing is left, or it is given up."""
    tries = entry.tries + 1
    if not failed or tries >= TRIES:
        return None
    wait = timedelta(seconds=PAUSE_S * 2.0 ** (tries - 1))
    return replace(entry, to=tuple(failed), tries=tries, after=now + wait)

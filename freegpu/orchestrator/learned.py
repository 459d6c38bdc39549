"""What past sessions show about limits that nobody publishes: ranges, with the sample they come from. Pure.

Decides: which ends of sessions say something about a platform's limit, and the range that follows. A session
that the platform ended (it expired, was taken away, fell silent) is *observed*; one that ended by our own doing
(nothing left to do, its agent stopped in order) or still lives is *cut off*: the limit is longer than that.
A person who stops a machine by hand looks like the platform; nobody can tell the two apart from here.

The range is for the next session: about eight in ten lie in it, fewer when few were seen (of n observed ones,
lowest to highest holds (n - 1) of n + 1). Quantiles come from the product-limit estimate of Kaplan and Meier in
the form of Herd and Johnson, whose steps r / (r + 1) are the expected ranks of a small sample; the plain steps
(r - 1) / r would promise that nothing is longer than the longest session seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from freegpu.adapters.base import Window, WindowKind
from freegpu.jobs.lifecycle import EndReason
from freegpu.orchestrator.model import Figures, Learned, Session

__all__ = [
    "MOST",
    "RECENT",
    "Sample",
    "allowance",
    "learn",
    "lengths",
    "refusals",
    "session_length",
    "summary",
    "unpublished",
]

#: sessions that are looked at: at most so many, and none that ended longer ago; platforms change their habits
MOST, RECENT = 60, timedelta(days=90)
#: the shares of sessions that the range leaves out below and above
LOW, HIGH = 0.1, 0.1
#: reasons of a session's end that are the platform's doing
_THEIRS = frozenset(
    {
        EndReason.LOST,
        EndReason.SESSION_EXPIRED,
        EndReason.QUOTA_EXHAUSTED,
        EndReason.PREEMPTED,
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One amount, seconds. Not observed: it was cut off there and would have been more."""

    amount_s: float
    observed: bool
    at: datetime


def unpublished(window: Window) -> bool:
    """Whether there is a limit that its platform does not tell."""
    return window.kind is not WindowKind.NONE and window.limit_s is None


def learn(sessions: Sequence[Session], window: Window, now: datetime) -> Figures:
    """All that these sessions of one account and pool show."""
    recent = [s for s in sessions if s.ended_at is None or now - s.ended_at <= RECENT][-MOST:]
    alone = window.kind is WindowKind.PER_SESSION  # what one session used is nothing to the next
    return Figures(
        session=session_length(recent, now),
        allowance=None if alone else allowance(recent, window.period_s, now),
        refusal=None if alone else refusals(recent, now),
    )


def session_length(sessions: Sequence[Session], now: datetime) -> Learned | None:
    """How long the platform lets a session live; None: none was seen."""
    return summary(lengths(sessions, now), "session", now)


def allowance(sessions: Sequence[Session], period_s: float, now: datetime) -> Learned | None:
    """How much could be used within `period_s` before the platform refused, seconds at rate 1.

    A refusal before which nothing was used says nothing. What has been used since without one is a lower bound.
    """
    period = timedelta(seconds=period_s)
    samples = []
    refused = _refused(sessions)
    for first, _, _ in refused:
        used = _used(sessions, first - period, first, now)
        if used > 0:
            samples.append(Sample(amount_s=used, observed=True, at=first))
    still = bool(refused) and refused[-1][2] is None
    used = 0.0 if still else _used(sessions, now - period, now, now)
    if used > 0:
        samples.append(Sample(amount_s=used, observed=False, at=now))
    found = [sample for sample in samples if sample.observed]
    return summary(samples, "refusal", now) if found else None


def refusals(sessions: Sequence[Session], now: datetime) -> Learned | None:
    """How long the platform went on refusing for want of quota, until a session lived again."""
    samples = [
        Sample(
            amount_s=((end or last) - first).total_seconds(),
            observed=end is not None,
            at=end or last,
        )
        for first, last, end in _refused(sessions)
    ]
    return summary(samples, "refusal", now)


# --- samples ---------------------------------------------------------------------------------------------


def lengths(sessions: Sequence[Session], now: datetime) -> list[Sample]:
    """The length of every session that came to life."""
    found = []
    for session in sessions:
        begin, end = _life(session, now)
        if begin is not None and end is not None:
            length = max(0.0, (end - begin).total_seconds())
            found.append(Sample(amount_s=length, observed=_theirs(session), at=end))
    return found


def _theirs(session: Session) -> bool:
    """Whether the platform ended it. An agent whose last word is "ended" stopped in order, for a reason of ours."""
    if session.ended_at is None or session.beat.get("state") == "ended":
        return False
    return session.reason.partition(":")[0] in _THEIRS


def _life(session: Session, now: datetime) -> tuple[datetime | None, datetime | None]:
    """When it began and when it was last known to live; (None, None): its agent never told.

    Not its end in the ledger: nobody may have looked for days after it.
    """
    begin = session.started_at or session.live_at
    if session.live_at is None or begin is None:
        return None, None
    uptime = session.beat.get("uptime_s")
    if not isinstance(uptime, int | float) or not uptime > 0:
        return None, None
    end = begin + timedelta(seconds=min(float(uptime), 1e9))
    return begin, min(end, session.ended_at or now)


def _refused(sessions: Sequence[Session]) -> list[tuple[datetime, datetime, datetime | None]]:
    """Stretches without quota: first refusal, last refusal, next session that lived (None: none yet)."""
    marks: list[tuple[datetime, bool]] = []
    for session in sessions:
        if session.live_at is not None:
            marks.append((session.live_at, True))
        if session.ended_at is not None and (
            session.reason.partition(":")[0] == EndReason.QUOTA_EXHAUSTED
        ):
            marks.append((session.ended_at, False))
    found: list[tuple[datetime, datetime, datetime | None]] = []
    for at, lives in sorted(marks):
        waiting = bool(found) and found[-1][2] is None
        if waiting:
            first, last, _ = found[-1]
            found[-1] = (first, last, at) if lives else (first, at, None)
        elif not lives:
            found.append((at, at, None))
    return found


def _used(sessions: Sequence[Session], since: datetime, until: datetime, now: datetime) -> float:
    """Quota seconds that these sessions used between two moments."""
    total = 0.0
    for session in sessions:
        begin, end = _life(session, now)
        if begin is not None and end is not None:
            both = (min(end, until) - max(begin, since)).total_seconds()
            total += max(0.0, both) * session.rate
    return total


# --- the range -------------------------------------------------------------------------------------------


def summary(samples: Sequence[Sample], noun: str, now: datetime) -> Learned | None:
    """The range that the samples show; None: there are none. `noun`: what each of them is, for people."""
    if not samples:
        return None
    steps = _survival(samples)
    longest = max(samples, key=lambda s: (s.amount_s, not s.observed))
    low, median, high = (_quantile(steps, q, longest) for q in (1 - LOW, 0.5, HIGH))
    observed = sum(sample.observed for sample in samples)
    return Learned(
        low_s=low,
        median_s=median,
        high_s=high,
        longest_s=longest.amount_s,
        seen=len(samples),
        observed=observed,
        age_s=max(0.0, (now - max(sample.at for sample in samples)).total_seconds()),
        text=f"{_range(low, high, longest.amount_s)} ({_sample(len(samples), observed, noun)})",
    )


def _survival(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """(amount, share of cases that get beyond it) for each observed amount, rising."""
    # at equal amounts the observed one comes first: what was cut off there had got as far
    ordered = sorted(samples, key=lambda sample: (sample.amount_s, not sample.observed))
    share, steps = 1.0, []
    for index, sample in enumerate(ordered):
        if sample.observed:
            left = len(ordered) - index
            share *= left / (left + 1)
            steps.append((sample.amount_s, share))
    return steps


def _quantile(steps: Sequence[tuple[float, float]], share: float, longest: Sample) -> float | None:
    """The amount that this share of cases gets beyond; None: the samples do not reach so far."""
    if not steps:
        return None
    before = steps[0]
    for amount, beyond in steps:
        if beyond <= share:
            gap = before[1] - beyond
            part = (before[1] - share) / gap if gap > 0 and before[1] > share else 1.0
            return before[0] + part * (amount - before[0])
        before = (amount, beyond)
    return longest.amount_s if longest.observed else None


def _range(low: float | None, high: float | None, longest: float) -> str:
    if low is None:
        return f"at least {_span(longest, _unit(longest))}"
    if high is None:
        return f"{_span(low, _unit(low))} or more"
    unit = _unit(high)
    first, last = _amount(low, unit), _amount(high, unit)
    return f"about {last} {unit[1]}" if first == last else f"{first}-{last} {unit[1]}"


def _sample(seen: int, observed: int, noun: str) -> str:
    many = f"{seen} {noun}{'s' if seen != 1 else ''}"
    cut = seen - observed
    return many if not cut else f"{many}, {'all' if not observed else cut} cut off"


def _unit(seconds: float) -> tuple[float, str]:
    if seconds < 120:
        return 1.0, "s"
    return (60.0, "min") if seconds < 2 * 3600 else (3600.0, "h")


def _amount(seconds: float, unit: tuple[float, str]) -> str:
    return f"{seconds / unit[0]:.1f}".removesuffix(".0")


def _span(seconds: float, unit: tuple[float, str]) -> str:
    return f"{_amount(seconds, unit)} {unit[1]}"

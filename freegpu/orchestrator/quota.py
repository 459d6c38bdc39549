"""How much of a quota is left, and when more comes back. Pure.

Decides: what a window, the ledger's lines and the platform's own word say about one pool at one moment. Does
not know where they come from. All times are UTC, so that no window changes its length with the season.

A session uses its quota evenly from its reserve to its charge; the part that lies before a reset, or before a
live reading that already counts it, is not counted (again). A reserve holds what its session has not used
yet. What happens at the very moment of a reset belongs to the new window; in a rolling window, use comes back
exactly `period_s` after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from freegpu.adapters.base import Window, WindowKind
from freegpu.orchestrator.model import Balance, Entry, EntryKind, FigureSource, Reading, Session

_WEEK = timedelta(days=7)
_EVER = datetime(1, 1, 1, tzinfo=UTC)
#: seconds that rounding may cost
_HAIR = 1e-6
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Use:
    """Quota seconds used evenly between two moments, which may be one."""

    start: datetime
    end: datetime
    amount_s: float

    def after(self, cut: datetime, *, at_cut: bool) -> float:
        """The part used after `cut`; `at_cut`: whether what happened at that very moment is part of it."""
        if self.start >= self.end:
            return self.amount_s if self.end > cut or (at_cut and self.end == cut) else 0.0
        if cut <= self.start:
            return self.amount_s
        left = (self.end - cut) / (self.end - self.start)
        return self.amount_s * max(0.0, left)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """An open reserve."""

    since: datetime
    amount_s: float
    #: quota seconds that its session uses a second; None: not known, nothing is taken as used
    rate: float | None


@dataclass(frozen=True, slots=True)
class Lines:
    """What entries and open sessions say of a pool, whatever the time is."""

    uses: Sequence[_Use]
    held: Sequence[_Held]

    @classmethod
    def of(cls, entries: Sequence[Entry], open_sessions: Sequence[Session]) -> Lines:
        return cls(_uses(entries), _held(entries, open_sessions))

    def used(self, spans: Iterable[tuple[datetime, datetime, float]]) -> Lines:
        """With further use: (start, end, quota seconds)."""
        more = [_Use(start=min(a, b), end=b, amount_s=amount) for a, b, amount in spans if amount]
        if not more:
            return self
        return Lines(sorted([*self.uses, *more], key=lambda u: (u.start, u.end)), self.held)


def charge_for(session_s: float, rate: float) -> float:
    """Quota seconds for a session of this many seconds; never negative."""
    return max(0.0, session_s) * max(0.0, rate)


def balance(
    window: Window,
    entries: Sequence[Entry],
    reading: Reading | None,
    open_sessions: Sequence[Session],
    now: datetime,
    *,
    platform: str = "",
    account: str = "",
    pool: str = "",
) -> Balance:
    """What is left of one pool at `now`: see `left`.

    `entries` are the pool's own (older ones than the window do no harm). The reading wins for all that
    happened up to its `as_of`, while its window lasts; what came after is added on top. `open_sessions` tell
    how fast an open reserve turns into use. The names are taken from what is given where they are left out.
    """
    told: list[Entry | Reading | Session] = [*entries, *open_sessions]
    if reading is not None:
        told.append(reading)
    known = told[0] if told else None
    return left(
        window,
        Lines.of(entries, open_sessions),
        reading,
        now,
        platform=platform or (known.platform if known else ""),
        account=account or (known.account if known else ""),
        pool=pool or (known.pool if known else ""),
    )


def below_nothing(
    window: Window,
    entries: Sequence[Entry],
    reading: Reading | None,
    open_sessions: Sequence[Session],
    now: datetime,
) -> float:
    """How far corrections have taken the use below nothing, seconds at rate 1; `balance` shows nothing then."""
    lines = Lines.of(entries, open_sessions)
    fresh = reading if reading and _holds(window, reading, now) else None
    return max(0.0, -_sums(window, lines.uses, lines.held, reading, fresh, now)[0])


def left(
    window: Window,
    lines: Lines,
    reading: Reading | None,
    now: datetime,
    *,
    platform: str,
    account: str,
    pool: str,
) -> Balance:
    """What is left of one pool at `now` by these lines, which may be of any time before."""
    uses, held = lines.uses, lines.held
    if window.kind is WindowKind.PER_SESSION:
        reading = None
    fresh = reading if reading and _holds(window, reading, now) else None
    used, reserved, resets_at = _sums(window, uses, held, reading, fresh, now)
    limit = reading.limit_s if reading and reading.limit_s is not None else window.limit_s
    if window.kind is WindowKind.NONE:
        limit = None
    elif window.kind is WindowKind.PREPAID and limit is not None and used < 0:
        limit, used = limit - used, 0.0  # more was bought than was ever used
    if fresh is not None:
        source = FigureSource.LIVE
    elif uses or held:
        source = FigureSource.LEDGER
    else:
        source = FigureSource.DECLARED
    return Balance(
        platform=platform,
        account=account,
        pool=pool,
        window=window,
        limit_s=limit,
        used_s=max(0.0, used),
        reserved_s=reserved,
        resets_at=resets_at,
        source=source,
        age_s=max(0.0, (now - fresh.as_of).total_seconds()) if fresh else None,
    )


def refill(
    window: Window,
    entries: Sequence[Entry],
    now: datetime,
    amount_s: float,
    *,
    reading: Reading | None = None,
    open_sessions: Sequence[Session] = (),
) -> datetime | None:
    """The first moment from `now` on at which `amount_s` is left if nothing more is used.

    None: never by itself (more than the limit, prepaid, or held by open reserves).
    """

    def enough(at: datetime) -> bool:
        left = balance(window, entries, reading, open_sessions, at).left_s
        return left is None or left + _HAIR >= amount_s

    if enough(now):
        return now
    found = _marks(window, entries, reading, open_sessions, now)
    marks = sorted({mark for mark in found if mark > now})
    begin = now
    for mark in marks:
        # between two marks what is left only grows, and does so steadily
        if mark - _TICK > begin and enough(mark - _TICK):
            return _first(begin, mark - _TICK, enough)
        if enough(mark):
            return mark
        begin = mark
    return None


def _first(low: datetime, high: datetime, enough: Callable[[datetime], bool]) -> datetime:
    """The first moment in (low, high] that is enough, to the millisecond; `high` is."""
    while high - low > timedelta(milliseconds=1):
        middle = low + (high - low) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _marks(
    window: Window,
    entries: Sequence[Entry],
    reading: Reading | None,
    open_sessions: Sequence[Session],
    now: datetime,
) -> list[datetime]:
    """Moments at which what is left may jump or change its slope."""
    period = timedelta(seconds=window.period_s)
    marks = []
    if reading is not None and reading.resets_at is not None:
        marks.append(reading.resets_at)
    if reading is not None and window.kind in (WindowKind.ROLLING, WindowKind.FROM_FIRST_USE):
        marks.append(reading.as_of + period)
    if window.kind is WindowKind.ROLLING:
        marks += [at + period for use in _uses(entries) for at in (use.start, use.end)]
        for each in _held(entries, open_sessions):
            marks.append(each.since + period)
            if each.rate:
                marks.append(each.since + period + timedelta(seconds=each.amount_s / each.rate))
    else:
        end = balance(window, entries, reading, open_sessions, now).resets_at
        if end is not None:
            marks.append(end)
    return marks


def _uses(entries: Sequence[Entry]) -> list[_Use]:
    """Charges, spread from the reserve of their session, and adjustments."""
    begun = {e.session: e.at for e in entries if e.kind is EntryKind.RESERVE and e.session}
    uses = []
    for entry in entries:
        if entry.kind is EntryKind.CHARGE:
            start = min(entry.at, begun.get(entry.session, entry.at))
            uses.append(_Use(start=start, end=entry.at, amount_s=entry.amount_s))
        elif entry.kind is EntryKind.ADJUST:
            uses.append(_Use(start=entry.at, end=entry.at, amount_s=entry.amount_s))
    return sorted((u for u in uses if u.amount_s), key=lambda u: (u.start, u.end))


def _held(entries: Sequence[Entry], open_sessions: Sequence[Session]) -> list[_Held]:
    """Reserves that no release has undone; of sessions whose reserve is too old to be among `entries`, too."""
    sessions = {s.id: s for s in open_sessions}
    amounts: dict[str, float] = {}
    since: dict[str, datetime] = {}
    for entry in entries:
        if entry.kind is EntryKind.RESERVE:
            amounts[entry.session] = amounts.get(entry.session, 0.0) + entry.amount_s
            since[entry.session] = min(entry.at, since.get(entry.session, entry.at))
        elif entry.kind is EntryKind.RELEASE:
            amounts[entry.session] = amounts.get(entry.session, 0.0) - entry.amount_s
    for session in open_sessions:
        if session.reserved_s and session.id not in since:
            amounts[session.id] = session.reserved_s
            since[session.id] = session.created_at
    held = []
    for name, amount in amounts.items():
        if amount <= _HAIR or name not in since:
            continue
        session_now = sessions.get(name)
        begun = (session_now.started_at if session_now else None) or since[name]
        rate = session_now.rate if session_now else None
        held.append(_Held(since=begun, amount_s=amount, rate=rate))
    return held


def _holds(window: Window, reading: Reading, now: datetime) -> bool:
    """Whether the platform's word still counts at `now`: its window has not ended since."""
    if reading.resets_at is not None and reading.resets_at <= now:
        return False
    if window.kind in (WindowKind.FIXED_WEEKLY, WindowKind.MONTHLY) and reading.resets_at is None:
        return reading.as_of >= _fixed(window, None, now)[0]
    if window.kind in (WindowKind.ROLLING, WindowKind.FROM_FIRST_USE):
        return reading.as_of + timedelta(seconds=window.period_s) > now
    return True


def _sums(
    window: Window,
    uses: Sequence[_Use],
    held: Sequence[_Held],
    reading: Reading | None,
    fresh: Reading | None,
    now: datetime,
) -> tuple[float, float, datetime | None]:
    """Used, reserved, and when the window ends."""
    if window.kind is WindowKind.PER_SESSION:
        return 0.0, 0.0, None
    if window.kind is WindowKind.ROLLING:
        return _rolling(window, uses, held, fresh, now)
    end: datetime | None = None
    cut = _EVER
    if window.kind in (WindowKind.FIXED_WEEKLY, WindowKind.MONTHLY):
        cut, end = _fixed(window, reading, now)
    elif window.kind is WindowKind.FROM_FIRST_USE:
        cut, end = _from_first_use(window, uses, held, reading, fresh, now)
    if fresh is None:
        return _used(uses, cut, at_cut=True), _reserved(held, cut), end
    # the reading counts all up to its moment, whatever the ledger thinks
    after = _used(uses, fresh.as_of, at_cut=False)
    return fresh.used_s + after, _reserved(held, fresh.as_of), fresh.resets_at or end


def _used(uses: Sequence[_Use], cut: datetime, *, at_cut: bool) -> float:
    # exact, and so the same in whatever order the lines arrived
    return math.fsum(use.after(cut, at_cut=at_cut) for use in uses)


def _reserved(held: Sequence[_Held], cut: datetime) -> float:
    """What the reserves still hold, without what their sessions used before `cut`."""
    return math.fsum(
        max(0.0, each.amount_s - max(0.0, (cut - each.since).total_seconds()) * (each.rate or 0.0))
        for each in held
    )


def next_reset(window: Window, reading: Reading | None, at: datetime) -> datetime:
    """When the weekly or monthly window around `at` ends, by the rhythm that a reading of any time told."""
    return _fixed(window, reading, at)[1]


def _fixed(window: Window, reading: Reading | None, now: datetime) -> tuple[datetime, datetime]:
    """Start and end of the weekly or monthly window around `now`.

    The platform's own reset moment, where it told one, sets the rhythm of the weeks.
    """
    at = now.astimezone(UTC)
    if window.kind is WindowKind.MONTHLY:
        start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        end = (start + timedelta(days=32)).replace(day=1)
        if reading is not None and reading.resets_at is not None and reading.resets_at <= now:
            start = max(start, reading.resets_at)
        return start, end
    anchor = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=window.reset_offset_s)  # a Monday
    if reading is not None and reading.resets_at is not None:
        anchor = reading.resets_at
    start = anchor + (at - anchor) // _WEEK * _WEEK
    return start, start + _WEEK


def _from_first_use(
    window: Window,
    uses: Sequence[_Use],
    held: Sequence[_Held],
    reading: Reading | None,
    fresh: Reading | None,
    now: datetime,
) -> tuple[datetime, datetime | None]:
    """Start and end of the window that `now` is in; (now, None): none has begun."""
    period = timedelta(seconds=max(1.0, window.period_s))
    spans = [(u.start, u.end) for u in uses if u.amount_s > 0]
    spans += [(each.since, now) for each in held]
    start = _EVER
    if reading is not None and reading.resets_at is not None and fresh is None:
        start = reading.resets_at  # by the platform's word the window before it ended then
    while True:
        later = [max(begin, start) for begin, end in spans if end > start or begin >= start]
        begun = min(later, default=None)
        if begun is None or begun > now:
            if fresh is not None and fresh.used_s > 0:
                return fresh.as_of, fresh.as_of + period
            return now, None
        if now < begun + period:
            return begun, begun + period
        start = begun + period


def _rolling(
    window: Window,
    uses: Sequence[_Use],
    held: Sequence[_Held],
    fresh: Reading | None,
    now: datetime,
) -> tuple[float, float, datetime | None]:
    """Used, reserved, and when all that was used will have come back."""
    period = timedelta(seconds=window.period_s)
    cut = now - period
    counted = [use for use in uses if use.end > cut and use.after(cut, at_cut=False)]
    back = [use.end + period for use in counted if use.amount_s > 0]
    if fresh is None:
        return _used(counted, cut, at_cut=False), _reserved(held, cut), max(back, default=None)
    as_of = fresh.as_of
    used = _used(uses, max(as_of, cut), at_cut=False)
    # of what the platform counted, the part that the ledger knows has come back by now is gone; the rest is
    # of unknown age and stays for a whole period
    old = [
        _Use(
            start=u.start, end=min(u.end, as_of), amount_s=u.amount_s - u.after(as_of, at_cut=False)
        )
        for u in uses
        if u.start <= as_of
    ]
    returned = _used(old, as_of - period, at_cut=False) - _used(old, cut, at_cut=False)
    used += max(0.0, fresh.used_s - max(0.0, returned))
    end = fresh.resets_at or as_of + period
    if fresh.used_s > 0:
        back.append(end)
    return used, _reserved(held, max(as_of, cut)), max(back, default=None)

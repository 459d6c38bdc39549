"""One pool of quota during a forecast: reserved, charged, spent, come back. Pure.

What is left is computed by the product's own `quota.balance`; here its entries are kept, and merged where that changes
no balance, since a forecast asks thousands of times.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from freegpu.adapters.base import Offer, WindowKind
from freegpu.jobs.lifecycle import SessionState
from freegpu.orchestrator import quota
from freegpu.orchestrator.forecast.world import Platform, Pool
from freegpu.orchestrator.model import Balance, Entry, EntryKind, Session

#: windows that end at one moment for everything in them
FIXED = (WindowKind.FIXED_WEEKLY, WindowKind.MONTHLY)
#: seconds of quota below which a pool is spent
HAIR_S = 1.0
_TICK = timedelta(microseconds=1)


class Purse:
    """One pool."""

    def __init__(self, platform: Platform, pool: Pool) -> None:
        self.platform, self.account, self.pool = platform.name, platform.account, pool
        self.window = pool.window
        self.entries: list[Entry] = list(pool.entries)
        #: sessions that hold quota; those that wait in the platform's queue use none yet
        self.open: dict[str, Session] = {}
        self.running: dict[str, datetime] = {}
        #: counts changes: an exhaustion that was foreseen before one of them is void
        self.version = 0
        self.used_s = 0.0
        self._number = len(self.entries)
        self._cached: tuple[int, datetime, Balance] | None = None
        #: what the entries say with all that is open, and without it
        self._lines: quota.Lines | None = None
        self._settled: quota.Lines | None = None

    @property
    def counted(self) -> bool:
        """Whether it can run out at all."""
        kind = self.window.kind
        limit = self.window.limit_s
        if self.pool.reading is not None and self.pool.reading.limit_s is not None:
            limit = self.pool.reading.limit_s
        return kind not in (WindowKind.NONE, WindowKind.PER_SESSION) and limit is not None

    def reserve(self, session: str, offer: Offer, amount_s: float, at: datetime) -> None:
        """A session is asked for."""
        self.open[session] = _session(session, offer, amount_s, at)
        self._add(EntryKind.RESERVE, session, amount_s, at)

    def granted(self, session: str, at: datetime) -> None:
        """From now on it costs."""
        self.running[session] = at
        self.version += 1

    def cancel(self, session: str) -> None:
        """It was refused: nothing is held or charged."""
        del self.open[session]
        self.entries = [entry for entry in self.entries if entry.session != session]
        self._forget()
        self.version += 1

    def settle(self, session: str, at: datetime) -> float:
        """It ended: release what was reserved and charge what was used; the charge, seconds at rate 1."""
        rate = self.open.pop(session).rate
        since = self.running.pop(session)
        charge = quota.charge_for((at - since).total_seconds(), rate)
        self.entries = [entry for entry in self.entries if entry.session != session]
        # a reserve of nothing at the moment of the grant: the charge is spread from there
        self._add(EntryKind.RESERVE, session, 0.0, since)
        self._add(EntryKind.CHARGE, session, charge, at)
        self.used_s += charge
        self.version += 1
        self._merge(at)
        return charge

    def balance(self, now: datetime) -> Balance:
        """What freegpu's ledger would say."""
        cached = self._cached
        if cached is not None and cached[0] == self.version and cached[1] > now:
            return cached[2]
        if self._lines is None:
            self._lines = quota.Lines.of(self.entries, list(self.open.values()))
        found = self._left(self._lines, now)
        if self.window.kind in (WindowKind.PREPAID, WindowKind.NONE, WindowKind.PER_SESSION):
            self._cached = (self.version, now + timedelta(days=1), found)
        elif self.window.kind in FIXED and found.resets_at is not None:
            self._cached = (self.version, found.resets_at, found)
        elif not self.entries:
            self._cached = (self.version, now + timedelta(days=1), found)
        return found

    def spent(self, now: datetime) -> tuple[float, float]:
        """(used, limit) of the present window by the platform's own count, which knows no reserves."""
        if self._settled is None:
            entries = [entry for entry in self.entries if entry.session not in self.open]
            self._settled = quota.Lines.of(entries, ())
        running = [
            (since, now, quota.charge_for((now - since).total_seconds(), self.open[session].rate))
            for session, since in self.running.items()
        ]
        found = self._left(self._settled.used(running), now)
        limit = math.inf if found.limit_s is None else found.limit_s
        return found.used_s, limit

    def empty(self, now: datetime) -> bool:
        """Whether the platform would refuse a session."""
        if not self.counted:
            return False
        used, limit = self.spent(now)
        return limit - used <= HAIR_S

    def ends_in(self, now: datetime) -> float | None:
        """Seconds until it may be spent at the present pace, 0 if it is; None: nothing uses it, or it cannot be."""
        burn = sum(self.open[session].rate for session in self.running)
        if burn <= 0 or not self.counted:
            return None
        used, limit = self.spent(now)
        if limit - used <= HAIR_S:
            return 0.0
        return (limit - used) / burn

    def resets_at(self, now: datetime) -> datetime | None:
        """When the window of now ends, if all windows end at one moment."""
        return self.balance(now).resets_at if self.window.kind in FIXED else None

    def closing(self, end: datetime) -> tuple[float, float]:
        """(used, limit) of the window that ends at `end`."""
        return self.spent(end - _TICK)

    def _merge(self, now: datetime) -> None:
        """Drop what no later balance counts; make one line of what all later ones count whole."""
        kind = self.window.kind
        if self.pool.reading is not None or kind is WindowKind.FROM_FIRST_USE:
            return
        if kind is WindowKind.ROLLING:
            cut = now - timedelta(seconds=self.window.period_s)
            gone = {
                e.session for e in self.entries if e.kind is EntryKind.CHARGE and e.at <= cut
            } - self.open.keys()
            if gone:
                self.entries = [e for e in self.entries if e.session not in gone]
                self._forget()
            return
        charges = [e for e in self.entries if e.kind in (EntryKind.CHARGE, EntryKind.ADJUST)]
        if kind in FIXED:
            end = self.resets_at(now)
            if end is None:
                return
            start = end - timedelta(days=7)
            if kind is WindowKind.MONTHLY:
                start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            begun = {e.session: e.at for e in self.entries if e.kind is EntryKind.RESERVE}
            old = {e.session for e in charges if e.at < start}
            whole = [e for e in charges if min(e.at, begun.get(e.session, e.at)) >= start]
        else:
            old, whole = set(), charges
        if not old and len(whole) < 2:
            return
        gone = {e.session for e in whole} | old
        self.entries = [e for e in self.entries if e.session not in gone]
        self._forget()
        if whole:
            total = sum(e.amount_s for e in whole)
            self._add(EntryKind.ADJUST, "merged", total, max(e.at for e in whole))

    def _add(self, kind: EntryKind, session: str, amount_s: float, at: datetime) -> None:
        self._number += 1
        self.entries.append(self._entry(self._number, kind, session, amount_s, at))
        self._forget()

    def _forget(self) -> None:
        self._cached = self._lines = self._settled = None

    def _left(self, lines: quota.Lines, now: datetime) -> Balance:
        return quota.left(
            self.window,
            lines,
            self.pool.reading,
            now,
            platform=self.platform,
            account=self.account,
            pool=self.pool.name,
        )

    def _entry(
        self, number: int, kind: EntryKind, session: str, amount_s: float, at: datetime
    ) -> Entry:
        return Entry(
            id=number,
            at=at,
            kind=kind,
            platform=self.platform,
            account=self.account,
            pool=self.pool.name,
            session=session,
            amount_s=amount_s,
            note="",
        )


def _session(session: str, offer: Offer, reserved_s: float, at: datetime) -> Session:
    """As much of a session as a balance looks at."""
    return Session(
        id=session,
        platform=offer.platform,
        account=offer.account,
        key=session,
        ref=session,
        state=SessionState.LIVE,
        raw_state="",
        reason="",
        card=offer.card,
        count=offer.count,
        offer=offer,
        card_seen="",
        created_at=at,
        started_at=at,
        live_at=None,
        ended_at=None,
        limit_s=offer.session_limit_s,
        reserved_s=reserved_s,
        charged_s=0.0,
        pool=offer.pool,
        rate=offer.rate,
        beat_counter=0,
        silent_polls=0,
        polled_at=None,
        inbox_next=1,
        outbox_seen=0,
        our_counter=0,
        beat={},
    )

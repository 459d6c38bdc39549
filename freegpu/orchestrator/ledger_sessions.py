"""Writes about sessions: planning, what is seen of them, their end with its charge; quota figures.

Decides: that a session and its attempts are durable before a platform hears of them, and that a session is
charged once. Does not know platforms or how much is charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import col, delete, select

from freegpu.adapters.base import Offer
from freegpu.errors import InvalidTransitionError, LedgerError
from freegpu.jobs.lifecycle import SESSION_TRANSITIONS, SessionEvent, SessionState, advance
from freegpu.orchestrator import ledger_attempts, rows
from freegpu.orchestrator.model import EntryKind
from freegpu.orchestrator.tables import AccountRow, BlockRow, EntryRow, ReadingRow, SessionRow
from freegpu.orchestrator.writing import Writing

#: an account that drew on its quota within this time is not exchanged for another: no window is longer
ACCOUNT_REST = timedelta(days=31)

_FIELDS = frozenset(
    {
        "ref",
        "raw_state",
        "reason",
        "card_seen",
        "started_at",
        "live_at",
        "limit_s",
        "beat",
        "beat_counter",
        "silent_polls",
        "polled_at",
        "outbox_seen",
        "our_counter",
    }
)


def plan(
    w: Writing,
    *,
    platform: str,
    account: str,
    offer: Offer,
    limit_s: float | None,
    reserve_s: float,
    jobs: Sequence[tuple[str, int]],
    why: str,
    id: str | None = None,
    decisions: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[str, list[str]]:
    """A PLANNED session with its reserve and ALLOCATED attempts; their ids. `decisions`: job -> what was seen for it.

    StaleEpochError: a job is not pending any more; then nothing at all is planned.
    """
    if offer.pool:
        _one_account(w, platform, account)
    session_id = w.new_id("s-", 8, SessionRow) if id is None else id
    reserved = max(0.0, reserve_s) if offer.pool else 0.0
    w.session.add(
        SessionRow(
            id=session_id,
            platform=platform,
            account=account,
            key=session_id,
            state=SessionState.PLANNED.value,
            card=offer.card,
            count=offer.count,
            offer=rows.offer_to_json(offer),
            created_at=w.now,
            limit_s=limit_s,
            reserved_s=reserved,
            pool=offer.pool,
            rate=offer.rate,
        )
    )
    w.session.flush()
    if reserved:
        _enter(w, session_id, platform, account, offer.pool, EntryKind.RESERVE, reserved, w.now)
    w.record(
        "session.planned",
        why,
        session=session_id,
        platform=platform,
        data={"card": offer.card, "count": offer.count, "reserve_s": reserved},
    )
    attempts = [
        ledger_attempts.allocate(
            w,
            session_id,
            job,
            slot,
            why=why,
            place=place,
            decision=(decisions or {}).get(job),
        )
        for place, (job, slot) in enumerate(jobs)
    ]
    return session_id, attempts


def event(w: Writing, session_id: str, happened: SessionEvent, **given: Any) -> None:
    """Move the session by the table. InvalidTransitionError; END goes through `end`."""
    if happened is SessionEvent.END:
        raise InvalidTransitionError("a session is ended together with its charge: end_session")
    session = w.session_row(session_id)
    before = SessionState(session.state)
    state = advance(SESSION_TRANSITIONS, before, happened)
    w.change(
        SessionRow,
        {"id": session_id, "state": before.value},
        state=state.value,
        **_columns(given),
    )
    w.record(
        f"session.{happened}",
        f"{before} -> {state}",
        session=session_id,
        platform=session.platform,
        data={name: value for name, value in given.items() if name != "beat"},
    )


def note(w: Writing, session_id: str, **given: Any) -> None:
    """Keep what was seen of it, without a change of state. No audit line: this happens at every poll."""
    if given:
        w.change(SessionRow, {"id": session_id}, **_columns(given))


def next_inbox(w: Writing, session_id: str) -> int:
    """Take the next free inbox number; it is never given out again."""
    seq = w.session_row(session_id).inbox_next
    w.change(SessionRow, {"id": session_id, "inbox_next": seq}, inbox_next=seq + 1)
    return seq


def end(w: Writing, session_id: str, *, reason: str, charged_s: float, at: datetime) -> bool:
    """ENDED, its reserve released and its use charged, once; False if it had ended."""
    session = w.session_row(session_id)
    if session.state == SessionState.ENDED:
        return False
    moment = rows.aware(at)
    charge = max(0.0, charged_s) * session.rate if session.pool else 0.0
    w.change(
        SessionRow,
        {"id": session_id, "state": session.state},
        state=SessionState.ENDED.value,
        reason=reason,
        charged_s=charge,
        ended_at=moment,
    )
    where = (session_id, session.platform, session.account, session.pool)
    if session.reserved_s:
        _enter(w, *where, EntryKind.RELEASE, session.reserved_s, moment)
    if session.pool:
        _enter(w, *where, EntryKind.CHARGE, charge, moment)
    w.record(
        "session.ended",
        reason,
        session=session_id,
        platform=session.platform,
        data={"charged_s": charge, "released_s": session.reserved_s},
    )
    return True


def add_entry(
    w: Writing,
    *,
    kind: EntryKind,
    platform: str,
    account: str,
    pool: str,
    amount_s: float,
    session: str,
    note: str,
    at: datetime | None,
) -> int:
    """Append one line; its id."""
    row = EntryRow(
        at=rows.aware(at or w.now),
        kind=kind.value,
        platform=platform,
        account=account,
        pool=pool,
        session=session,
        amount_s=amount_s,
        note=note,
    )
    w.session.add(row)
    w.session.flush()
    w.record(f"entry.{kind}", note, session=session, platform=platform, data={"s": amount_s})
    return int(row.id or 0)


def add_reading(
    w: Writing,
    platform: str,
    account: str,
    pool: str,
    used_s: float,
    limit_s: float | None,
    resets_at: datetime | None,
    as_of: datetime,
) -> None:
    """Keep what the platform says. The same figures again only move `as_of`: no line a poll."""
    moment = rows.aware(as_of)
    resets = rows.aware(resets_at) if resets_at else None
    newest = w.session.exec(
        select(ReadingRow)
        .filter_by(platform=platform, account=account, pool=pool)
        .order_by(col(ReadingRow.as_of).desc(), col(ReadingRow.id).desc())
    ).first()
    if newest and (newest.used_s, newest.limit_s, newest.resets_at) == (used_s, limit_s, resets):
        if newest.as_of < moment:
            w.change(ReadingRow, {"id": newest.id}, as_of=moment)
        return
    w.session.add(
        ReadingRow(
            platform=platform,
            account=account,
            pool=pool,
            used_s=used_s,
            limit_s=limit_s,
            resets_at=resets,
            as_of=moment,
        )
    )
    add_entry(
        w,
        kind=EntryKind.READING,
        platform=platform,
        account=account,
        pool=pool,
        amount_s=used_s,
        session="",
        note=f"the platform says: {used_s:.0f} s used",
        at=moment,
    )


def block(w: Writing, platform: str, until: datetime, why: str) -> None:
    """Leave the platform alone until then."""
    w.session.merge(BlockRow(platform=platform, until=rows.aware(until), why=why))
    w.record("platform.blocked", why, platform=platform, data={"until": until})


def unblock(w: Writing, platform: str) -> None:
    """Forget that it was to be left alone."""
    found = w.session.get(BlockRow, platform)
    if found is not None:
        w.run(delete(BlockRow).where(col(BlockRow.platform) == platform))
        w.record("platform.unblocked", f"was blocked: {found.why}", platform=platform)


def rebind(w: Writing, platform: str, account: str) -> None:
    """Use the platform with another account from now on.

    LedgerError while the old one has open sessions, or used quota within ACCOUNT_REST.
    """
    bound = w.session.get(AccountRow, platform)
    if bound is not None and bound.account != account:
        _refuse_rotation(w, bound, account)
    w.session.merge(AccountRow(platform=platform, account=account, since=w.now))
    w.record("account.bound", f"used with account {account}", platform=platform)


def _one_account(w: Writing, platform: str, account: str) -> None:
    """Bind the platform to its first account; refuse a second one: rotating breaks every platform's terms."""
    bound = w.session.get(AccountRow, platform)
    if bound is None:
        w.session.add(AccountRow(platform=platform, account=account, since=w.now))
        w.record("account.bound", f"used with account {account}", platform=platform)
    elif bound.account != account:
        _refuse_rotation(w, bound, account)
        rebind(w, platform, account)


def _refuse_rotation(w: Writing, bound: AccountRow, account: str) -> None:
    opened = w.session.exec(
        select(SessionRow.id)
        .filter_by(platform=bound.platform, account=bound.account)
        .where(SessionRow.state != SessionState.ENDED.value)
    ).first()
    used = w.session.exec(
        select(EntryRow.at)
        .filter_by(platform=bound.platform, account=bound.account, kind=EntryKind.CHARGE.value)
        .where(EntryRow.amount_s > 0)
        .order_by(col(EntryRow.at).desc())
    ).first()
    if opened or (used and used + ACCOUNT_REST > w.now):
        raise LedgerError(
            f"{bound.platform} is used with the account {bound.account!r}, not {account!r}:"
            " one account a platform",
            hint=f"log in as {bound.account!r} again; rotating accounts breaks the platform's terms",
        )


def _enter(
    w: Writing,
    session: str,
    platform: str,
    account: str,
    pool: str,
    kind: EntryKind,
    amount_s: float,
    at: datetime,
) -> None:
    w.session.add(
        EntryRow(
            at=at,
            kind=kind.value,
            platform=platform,
            account=account,
            pool=pool,
            session=session,
            amount_s=amount_s,
            note="",
        )
    )


def _columns(given: dict[str, Any]) -> dict[str, Any]:
    unknown = given.keys() - _FIELDS
    if unknown:
        raise TypeError(f"a session has no such field to set: {', '.join(sorted(unknown))}")
    values = dict(given)
    if "beat" in values:
        values["beat"] = rows.to_json(values["beat"])
    return values

"""Sessions, ledger entries, readings, accounts and places. On both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.errors import InvalidTransitionError, LedgerBusyError, LedgerError, StaleEpochError
from freegpu.jobs.lifecycle import SessionEvent, SessionState
from freegpu.orchestrator import database, migrations
from freegpu.orchestrator.database import connect_postgres, connect_sqlite, parse
from freegpu.orchestrator.model import EntryKind

if TYPE_CHECKING:
    Bench = Any


def raw(bench: Bench) -> Any:
    """A connection of some other program."""
    target = parse(bench.url)
    if target.path is not None:
        return connect_sqlite(target.path, write=True)
    return connect_postgres(target.dsn)


def test_a_planned_session_is_whole_before_a_platform_hears_of_it(bench: Bench) -> None:
    """Session, request key, reserve and attempts are one transaction, and another process sees them."""
    jobs = bench.submit("a", "b")
    offer = bench.offer(count=2, rate=2.0, devices=("0", "1"))
    session, attempts = bench.plan(*jobs, offer=offer, reserve_s=500)
    with bench.again() as other:
        found = other.session(session.id)
        assert found == session
        assert (found.state, found.key, found.offer) == (SessionState.PLANNED, session.id, offer)
        assert [(e.kind, e.amount_s, e.session) for e in other.entries()] == [
            (EntryKind.RESERVE, 500, session.id)
        ]
        assert other.attempts(session=session.id, open_only=True) == attempts
    assert session.id.startswith("s-")
    assert [(attempt.job, attempt.slot) for attempt in attempts] == [
        (job.id, slot) for slot, job in enumerate(jobs)
    ]


def test_a_session_without_a_pool_reserves_and_charges_nothing(bench: Bench) -> None:
    """One's own machine has no quota."""
    session, _ = bench.plan(offer=bench.offer(pool=""))
    assert session.reserved_s == 0
    assert bench.ledger.end_session(session.id, reason="idle", charged_s=50, at=bench.now)
    assert bench.ledger.entries() == []
    assert bench.ledger.session(session.id).charged_s == 0


def test_a_session_moves_by_the_table(bench: Bench) -> None:
    """Fields are set with the event; END has its own door, because a charge goes with it."""
    session, _ = bench.plan()
    started = bench.ledger.session_event(
        session.id, SessionEvent.ACCEPTED, ref="r1", raw_state="queued", started_at=bench.now
    )
    assert (started.state, started.ref, started.raw_state) == (
        SessionState.STARTING,
        "r1",
        "queued",
    )
    live = bench.ledger.session_event(
        session.id, SessionEvent.HELLO, card_seen="P100", live_at=bench.now
    )
    assert (live.state, live.card, live.card_seen) == (SessionState.LIVE, "T4", "P100")
    assert bench.ledger.session_event(session.id, SessionEvent.UNKNOWN_WORD).state is live.state
    with pytest.raises(InvalidTransitionError, match="end_session"):
        bench.ledger.session_event(session.id, SessionEvent.END)
    with pytest.raises(TypeError, match="no such field to set: inbox_next"):
        bench.ledger.note_session(session.id, inbox_next=1)
    bench.ledger.end_session(session.id, reason="idle", charged_s=1, at=bench.now)
    with pytest.raises(InvalidTransitionError):
        bench.ledger.session_event(session.id, SessionEvent.HELLO)


def test_what_is_seen_of_a_session_is_kept_without_an_audit_line(bench: Bench) -> None:
    """Beats come every second; a line for each would bury the decisions."""
    session, _ = bench.plan()
    lines = len(bench.ledger.events())
    beat = {"slots": [{"attempt": "a-1", "step": 3}], "left_s": 20.5}
    bench.ledger.note_session(
        session.id, beat=beat, beat_counter=7, silent_polls=1, polled_at=bench.now, outbox_seen=2
    )
    found = bench.ledger.session(session.id)
    assert (found.beat, found.beat_counter, found.silent_polls) == (beat, 7, 1)
    assert (found.polled_at, found.outbox_seen) == (bench.now, 2)
    assert len(bench.ledger.events()) == lines


def test_an_inbox_number_is_given_out_once(bench: Bench) -> None:
    """From 1 on, also across processes."""
    session, _ = bench.plan()
    with bench.again() as other:
        taken = [ledger.next_inbox(session.id) for ledger in (bench.ledger, other, bench.ledger)]
    assert taken == [1, 2, 3]


def test_a_session_is_charged_exactly_once(bench: Bench) -> None:
    """Reserve released and use charged at its rate in one step; the second end is refused."""
    session, _ = bench.plan(offer=bench.offer(rate=2.0), reserve_s=500)
    assert bench.ledger.end_session(session.id, reason="expired", charged_s=120, at=bench.now)
    with bench.again() as other:
        assert not other.end_session(session.id, reason="gone", charged_s=999, at=bench.now)
    found = bench.ledger.session(session.id)
    assert (found.state, found.reason, found.charged_s) == (SessionState.ENDED, "expired", 240)
    assert [(e.kind.value, e.amount_s) for e in bench.ledger.entries(pool="gpu")] == [
        ("reserve", 500),
        ("release", 500),
        ("charge", 240),
    ]
    assert bench.ledger.sessions() == []
    assert bench.ledger.sessions(open_only=False) == [found]


@pytest.mark.parametrize("kind", ["reserve", "charge", "release"])
def test_the_database_itself_refuses_a_second_line_of_a_kind(bench: Bench, kind: str) -> None:
    """Even a program with a bug cannot charge a session twice."""
    session, _ = bench.plan()
    bench.ledger.end_session(session.id, reason="x", charged_s=1, at=bench.now)
    with pytest.raises(LedgerError):
        bench.ledger.add_entry(
            kind=EntryKind(kind),
            platform="kaggle",
            account="me",
            pool="gpu",
            amount_s=1,
            session=session.id,
        )
    assert len(bench.ledger.entries()) == 3


@pytest.mark.parametrize("change", ["UPDATE entries SET amount_s = 0", "DELETE FROM entries"])
def test_entries_are_append_only_for_every_program(bench: Bench, change: str) -> None:
    """The database refuses to change or remove a line."""
    bench.plan()
    before = bench.ledger.entries()
    connection = raw(bench)
    try:
        with pytest.raises(Exception, match="never"):
            connection.execute(change)
    finally:
        connection.close()
    assert before
    assert bench.ledger.entries() == before


def test_entries_cannot_be_truncated_on_postgresql(bench: Bench) -> None:
    """TRUNCATE goes past row triggers; it is refused too."""
    if parse(bench.url).is_sqlite:
        pytest.skip("SQLite has no TRUNCATE")
    bench.plan()
    connection = raw(bench)
    try:
        with pytest.raises(Exception, match="never"):
            connection.execute("TRUNCATE entries")
    finally:
        connection.close()


def test_an_epoch_cannot_go_back_by_any_program(bench: Bench) -> None:
    """Fencing rests on it, so the database guards it."""
    (job,) = bench.submit("a")
    bench.ledger.bump_epoch(job.id)
    connection = raw(bench)
    try:
        with pytest.raises(Exception, match="epochs only grow"):
            connection.execute("UPDATE jobs SET epoch = 0")
    finally:
        connection.close()


def test_entries_are_found_by_pool_and_time(bench: Bench) -> None:
    """`since` counts its own instant."""
    for hours in (0, 1, 2):
        bench.ledger.add_entry(
            kind=EntryKind.ADJUST,
            platform="kaggle",
            account="me",
            pool="gpu" if hours else "tpu",
            amount_s=-hours,
            note="by hand",
            at=bench.now + timedelta(hours=hours),
        )
    found = bench.ledger.entries(pool="gpu", since=bench.now + timedelta(hours=1))
    assert [entry.amount_s for entry in found] == [-1, -2]
    assert bench.ledger.entries(platform="colab") == []


def test_the_newest_reading_of_each_pool_is_told(bench: Bench) -> None:
    """An older one that arrives late does not win; the same figures again only move their moment."""
    at = bench.now
    say = bench.ledger.add_reading
    say("kaggle", "me", "gpu", used_s=10, limit_s=100, resets_at=at, as_of=at)
    say("kaggle", "me", "gpu", used_s=10, limit_s=100, resets_at=at, as_of=at + timedelta(hours=1))
    say("kaggle", "me", "tpu", used_s=1, limit_s=None, resets_at=None, as_of=at)
    say("kaggle", "me", "gpu", used_s=5, limit_s=100, resets_at=at, as_of=at - timedelta(hours=1))
    found = {r.pool: r for r in bench.ledger.readings(platform="kaggle")}
    assert (found["gpu"].used_s, found["gpu"].as_of) == (10, at + timedelta(hours=1))
    assert (found["tpu"].limit_s, found["tpu"].resets_at) == (None, None)
    assert len([e for e in bench.ledger.entries() if e.kind is EntryKind.READING]) == 3


def test_one_account_a_platform(bench: Bench) -> None:
    """A second account is refused while the first is in use, and for a month after it drew on its quota."""
    session, _ = bench.plan()
    with pytest.raises(LedgerError, match="used with the account 'me', not 'other'"):
        bench.plan(offer=bench.offer(account="other"))
    bench.ledger.end_session(session.id, reason="x", charged_s=10, at=bench.now)
    with pytest.raises(LedgerError, match="one account a platform"):
        bench.plan(offer=bench.offer(account="other"))
    with pytest.raises(LedgerError, match="one account a platform"):
        bench.ledger.bind_account("kaggle", "other")
    assert bench.ledger.account("kaggle") == "me"
    bench.clock.sleep(31 * 86400)
    bench.plan(offer=bench.offer(account="other"))
    assert bench.ledger.account("kaggle") == "other"


def test_an_account_that_was_never_used_may_be_exchanged(bench: Bench) -> None:
    """A typing mistake at the first login is no rotation."""
    session, _ = bench.plan()
    bench.ledger.end_session(session.id, reason="refused", charged_s=0, at=bench.now)
    bench.ledger.bind_account("kaggle", "other")
    assert bench.ledger.account("kaggle") == "other"


def test_platforms_are_blocked_and_unblocked(bench: Bench) -> None:
    """The newest reason is told; unblocking twice is silent."""
    until = bench.now + timedelta(minutes=5)
    bench.ledger.block("colab", bench.now, "throttled")
    bench.ledger.block("colab", until, "refused")
    (found,) = bench.ledger.places().values()
    assert (found.platform, found.until, found.why) == ("colab", until, "refused")
    bench.ledger.unblock("colab")
    bench.ledger.unblock("colab")
    assert bench.ledger.places() == {}


def test_meta_is_set_once_when_asked(bench: Bench) -> None:
    """The first home to sign the ledger stays."""
    assert bench.ledger.meta("home") is None
    assert bench.ledger.set_meta("home", "a", if_absent=True) == "a"
    with bench.again() as other:
        assert other.set_meta("home", "b", if_absent=True) == "a"
        assert other.set_meta("home", "c") == "c"
    assert bench.ledger.meta("home") == "c"


def test_the_newest_sessions_come_with_a_limit(bench: Bench) -> None:
    """Still oldest first."""
    ids = []
    for _ in range(3):
        session, _ = bench.plan()
        ids.append(session.id)
        bench.clock.sleep(1)
    assert [s.id for s in bench.ledger.sessions(limit=2)] == ids[1:]
    with pytest.raises(LedgerError, match="no session has the id"):
        bench.ledger.session("s-nothing")


def test_a_failed_write_leaves_nothing_and_the_ledger_usable(bench: Bench) -> None:
    """Also after an error of the database itself in the middle of a transaction."""
    (job,) = bench.submit("a")
    session, _ = bench.plan()
    with pytest.raises(StaleEpochError):
        bench.ledger.plan_session(
            platform="kaggle",
            account="me",
            offer=bench.offer(),
            limit_s=None,
            reserve_s=1,
            jobs=[(job.id, 0), (job.id, 1)],
            why="twice the same job",
        )
    assert [s.id for s in bench.ledger.sessions()] == [session.id]
    assert bench.ledger.job(job.id).epoch == 0
    bench.ledger.allocate(session.id, job.id, 0, why="now")


def test_a_ledger_that_stays_locked_is_an_error_with_a_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer waits for another one, but not for ever; readers do not wait at all."""
    (job,) = bench.submit("a")
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    connection = raw(bench)
    try:
        if parse(bench.url).is_sqlite:
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection.execute("BEGIN")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (migrations.PG_WRITE_LOCK,))
        with bench.again() as other:
            assert other.job(job.id).name == "a"
            with pytest.raises(LedgerBusyError, match="another process has kept the ledger"):
                other.bump_epoch(job.id)
        connection.execute("ROLLBACK")
        assert bench.ledger.bump_epoch(job.id) == 1
    finally:
        connection.close()

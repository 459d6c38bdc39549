"""The ledger's schema, as numbered steps that are never changed once released.

Decides: what each version of the schema looks like on SQLite and on PostgreSQL, and how a ledger gets from
one to the next. Does not know what the rows mean. The version is a row of `meta`, the same on both. A step
is plain SQL, so that it stays what it was when `tables` moves on; a test holds the last step and `tables`
together.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from freegpu.errors import LedgerCorruptError, SchemaVersionError
from freegpu.orchestrator.database import (
    APPLICATION_ID,
    PATIENCE_S,
    PG_SCHEMA,
    Target,
    connect_postgres,
    connect_sqlite,
)

#: one step: SQL statements with {utc} {int} {real} {bool} {serial} for the types that differ
Step = Sequence[str]

#: PostgreSQL advisory lock that every writer of the ledger takes, so that writers queue as on SQLite
PG_WRITE_LOCK = 0x66677075

_FIRST: Step = (
    """CREATE TABLE accounts (
        platform TEXT NOT NULL PRIMARY KEY,
        account TEXT NOT NULL,
        since {utc} NOT NULL
    )""",
    """CREATE TABLE jobs (
        id TEXT NOT NULL PRIMARY KEY,
        seq {int} NOT NULL UNIQUE,
        name TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('pending','active','succeeded','failed','cancelled')),
        why TEXT NOT NULL,
        spec TEXT NOT NULL,
        needs TEXT NOT NULL,
        estimate_s {real},
        estimate_card TEXT NOT NULL,
        grace_s {real} NOT NULL,
        priority {int} NOT NULL,
        deadline {utc},
        bundle TEXT NOT NULL,
        created_at {utc} NOT NULL,
        updated_at {utc} NOT NULL,
        ended_at {utc},
        epoch {int} NOT NULL,
        attempts {int} NOT NULL,
        failures {int} NOT NULL,
        preemptions {int} NOT NULL,
        not_before {utc},
        patience {int} NOT NULL,
        checkpoint_id {int},
        progress TEXT NOT NULL,
        lost_s {real} NOT NULL,
        result_attempt TEXT NOT NULL,
        result_key TEXT NOT NULL,
        result_sha256 TEXT NOT NULL
    )""",
    "CREATE INDEX jobs_by_state ON jobs (state, seq)",
    "CREATE INDEX jobs_by_name ON jobs (name)",
    """CREATE TABLE afters (
        job TEXT NOT NULL REFERENCES jobs (id),
        after TEXT NOT NULL REFERENCES jobs (id),
        PRIMARY KEY (job, after)
    )""",
    """CREATE TABLE sessions (
        id TEXT NOT NULL PRIMARY KEY,
        platform TEXT NOT NULL,
        account TEXT NOT NULL,
        key TEXT NOT NULL UNIQUE,
        ref TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('planned','starting','live','ending','ended','unknown')),
        raw_state TEXT NOT NULL,
        reason TEXT NOT NULL,
        card TEXT NOT NULL,
        count {int} NOT NULL,
        offer TEXT NOT NULL,
        card_seen TEXT NOT NULL,
        created_at {utc} NOT NULL,
        started_at {utc},
        live_at {utc},
        ended_at {utc},
        limit_s {real},
        reserved_s {real} NOT NULL,
        charged_s {real} NOT NULL,
        pool TEXT NOT NULL,
        rate {real} NOT NULL,
        beat_counter {int} NOT NULL,
        silent_polls {int} NOT NULL,
        polled_at {utc},
        inbox_next {int} NOT NULL,
        outbox_seen {int} NOT NULL,
        our_counter {int} NOT NULL,
        beat TEXT NOT NULL
    )""",
    "CREATE INDEX sessions_by_state ON sessions (state)",
    """CREATE TABLE attempts (
        id TEXT NOT NULL PRIMARY KEY,
        job TEXT NOT NULL REFERENCES jobs (id),
        number {int} NOT NULL,
        epoch {int} NOT NULL,
        session TEXT NOT NULL REFERENCES sessions (id),
        slot {int} NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('allocated','running','stopping','ended')),
        reason TEXT,
        detail TEXT NOT NULL,
        exit_code {int},
        platform TEXT NOT NULL,
        card TEXT NOT NULL,
        created_at {utc} NOT NULL,
        started_at {utc},
        ended_at {utc},
        ticket_seq {int} NOT NULL,
        stop_reason TEXT,
        stop_seq {int} NOT NULL,
        base_epoch {int} NOT NULL,
        base_generation {int} NOT NULL,
        saved_at {utc},
        run_s {real} NOT NULL,
        lost_s {real} NOT NULL,
        outputs_key TEXT NOT NULL,
        outputs_sha256 TEXT NOT NULL,
        progress TEXT NOT NULL,
        fenced {bool} NOT NULL,
        UNIQUE (job, number),
        UNIQUE (job, epoch)
    )""",
    "CREATE INDEX attempts_by_session ON attempts (session)",
    "CREATE INDEX attempts_open ON attempts (state) WHERE state <> 'ended'",
    """CREATE TABLE checkpoints (
        id {serial},
        job TEXT NOT NULL REFERENCES jobs (id),
        key TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        attempt TEXT NOT NULL REFERENCES attempts (id),
        epoch {int} NOT NULL,
        generation {int} NOT NULL,
        step {int},
        size {int} NOT NULL,
        confirmed_at {utc} NOT NULL,
        UNIQUE (job, epoch, generation)
    )""",
    """CREATE TABLE entries (
        id {serial},
        at {utc} NOT NULL,
        kind TEXT NOT NULL CHECK (kind IN ('reserve','charge','release','adjust','reading')),
        platform TEXT NOT NULL,
        account TEXT NOT NULL,
        pool TEXT NOT NULL,
        session TEXT NOT NULL,
        amount_s {real} NOT NULL,
        note TEXT NOT NULL
    )""",
    "CREATE INDEX entries_by_pool ON entries (platform, account, pool, at)",
    # a session is reserved, charged and released at most once, whatever a program does
    """CREATE UNIQUE INDEX entries_once ON entries (session, kind)
        WHERE session <> '' AND kind IN ('reserve','charge','release')""",
    """CREATE TABLE readings (
        id {serial},
        platform TEXT NOT NULL,
        account TEXT NOT NULL,
        pool TEXT NOT NULL,
        used_s {real} NOT NULL,
        limit_s {real},
        resets_at {utc},
        as_of {utc} NOT NULL
    )""",
    "CREATE INDEX readings_by_pool ON readings (platform, account, pool, as_of)",
    """CREATE TABLE speeds (
        id {serial},
        job TEXT NOT NULL,
        card TEXT NOT NULL,
        workload TEXT NOT NULL,
        steps_per_s {real} NOT NULL,
        at {utc} NOT NULL
    )""",
    "CREATE INDEX speeds_by_job ON speeds (job)",
    """CREATE TABLE events (
        id {serial},
        at {utc} NOT NULL,
        action TEXT NOT NULL,
        message TEXT NOT NULL,
        job TEXT NOT NULL,
        attempt TEXT NOT NULL,
        session TEXT NOT NULL,
        platform TEXT NOT NULL,
        data TEXT NOT NULL
    )""",
    "CREATE INDEX events_by_job ON events (job)",
    "CREATE INDEX events_by_session ON events (session)",
    """CREATE TABLE blocks (
        platform TEXT NOT NULL PRIMARY KEY,
        until {utc} NOT NULL,
        why TEXT NOT NULL
    )""",
    """CREATE TABLE avoids (
        job TEXT NOT NULL REFERENCES jobs (id),
        platform TEXT NOT NULL,
        why TEXT NOT NULL,
        until {utc} NOT NULL,
        PRIMARY KEY (job, platform)
    )""",
)

# Entries are append-only and epochs only grow, for every program that opens the database, not only for ours.
_FIRST_SQLITE: Step = (
    """CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries
        BEGIN SELECT RAISE(ABORT, 'ledger entries are never changed'); END""",
    """CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries
        BEGIN SELECT RAISE(ABORT, 'ledger entries are never removed'); END""",
    """CREATE TRIGGER jobs_epoch_grows BEFORE UPDATE OF epoch ON jobs WHEN NEW.epoch < OLD.epoch
        BEGIN SELECT RAISE(ABORT, 'epochs only grow'); END""",
)
_FIRST_POSTGRES: Step = (
    """CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'ledger entries are never changed or removed'; END $$""",
    """CREATE TRIGGER entries_no_change BEFORE UPDATE OR DELETE ON entries
        FOR EACH ROW EXECUTE FUNCTION refuse_change()""",
    """CREATE TRIGGER entries_no_truncate BEFORE TRUNCATE ON entries
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()""",
    """CREATE FUNCTION refuse_epoch() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'epochs only grow'; END $$""",
    """CREATE TRIGGER jobs_epoch_grows BEFORE UPDATE OF epoch ON jobs
        FOR EACH ROW WHEN (NEW.epoch < OLD.epoch) EXECUTE FUNCTION refuse_epoch()""",
)

#: what was sent for a checkpoint, and who confirmed it: before, that was always the orchestrator
_SENT: Step = (
    "ALTER TABLE checkpoints ADD COLUMN sent {int}",
    "ALTER TABLE checkpoints ADD COLUMN confirmed_by TEXT NOT NULL DEFAULT 'orchestrator'",
)

#: over how long a speed was seen, seconds: short looks are less sure; 0: an older freegpu did not note it
_SPAN: Step = ("ALTER TABLE speeds ADD COLUMN span_s {real} NOT NULL DEFAULT 0",)

#: for each version from 1 on: what both databases do, then what only SQLite, only PostgreSQL does
STEPS: Sequence[tuple[Step, Step, Step]] = (
    (_FIRST, _FIRST_SQLITE, _FIRST_POSTGRES),
    (_SENT, (), ()),
    (_SPAN, (), ()),
)

#: the version that this freegpu writes
VERSION = len(STEPS)

_SQLITE_TYPES = {
    "utc": "DATETIME",
    "int": "INTEGER",
    "real": "FLOAT",
    "bool": "BOOLEAN",
    "serial": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
}
_POSTGRES_TYPES = {
    "utc": "TIMESTAMP WITH TIME ZONE",
    "int": "BIGINT",
    "real": "DOUBLE PRECISION",
    "bool": "BOOLEAN",
    "serial": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
}


def version_of(connection: Any, target: Target, newest: int = VERSION) -> int:
    """The schema version of an open ledger; 0: nothing is in it yet.

    SchemaVersionError: a newer freegpu wrote it. LedgerCorruptError: another program's database.
    """
    if target.is_sqlite:
        names = {
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    else:
        names = {
            row[0]
            for row in connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = %s",
                (PG_SCHEMA,),
            ).fetchall()
        }
    if not names:
        return 0
    found = None
    if "meta" in names and "entries" in names:
        found = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if found is None or not str(found[0]).isdigit():
        raise LedgerCorruptError(
            f"{target.shown} is a database, but no freegpu ledger",
            hint="set FREEGPU_DB to another place; this one was not changed",
        )
    version = int(found[0])
    if version > newest:
        raise SchemaVersionError(
            f"the ledger {target.shown} has schema version {version}, and this freegpu knows only"
            f" versions up to {newest}",
            hint="a newer freegpu wrote it: upgrade with `pip install -U freegpu-scheduler`",
        )
    return version


def migrate(target: Target, steps: Sequence[tuple[Step, Step, Step]] = STEPS) -> int:
    """Bring the ledger to the newest of `steps`, in one transaction; the version that it had.

    Safe when several processes do it at once: one does, the others find it done. Errors of the
    database come as they are.
    """
    if target.path is not None:
        connection: Any = connect_sqlite(target.path, write=True)
        try:
            _patiently(lambda: _set_wal(connection))
            _patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            return _run(connection, target, steps, _SQLITE_TYPES)
        finally:
            connection.close()
    connection = connect_postgres(target.dsn)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (PG_WRITE_LOCK,))
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {PG_SCHEMA}")
        return _run(connection, target, steps, _POSTGRES_TYPES)
    finally:
        connection.close()


def _run(
    connection: Any,
    target: Target,
    steps: Sequence[tuple[Step, Step, Step]],
    types: dict[str, str],
) -> int:
    try:
        before = version_of(connection, target, len(steps))
        if before == 0:
            connection.execute(
                "CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
            )
            connection.execute("INSERT INTO meta (key, value) VALUES ('schema', '0')")
            if target.is_sqlite:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for both, sqlite, postgres in steps[before:]:
            for statement in (*both, *(sqlite if target.is_sqlite else postgres)):
                connection.execute(_typed(statement, types))
        connection.execute(f"UPDATE meta SET value = '{len(steps):d}' WHERE key = 'schema'")  # noqa: S608 - a number
        connection.execute("COMMIT")
    except BaseException:
        if not target.is_sqlite or connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return before


def _typed(statement: str, types: dict[str, str]) -> str:
    for name, sql in types.items():
        statement = statement.replace("{" + name + "}", sql)
    return statement


def _set_wal(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode = WAL")


def _patiently(act: Callable[[], object]) -> None:
    """SQLite's own patience does not cover the switch to WAL: two processes may refuse each other at once."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            act()
        except sqlite3.OperationalError as error:
            busy = (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_BUSY")
            if not busy or time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return

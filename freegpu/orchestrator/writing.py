"""The write side of the ledger: one short transaction at a time, one writer at a time.

Decides: how a transaction begins, ends and fails. Does not know what is written. On SQLite it begins with
BEGIN IMMEDIATE, on PostgreSQL with an advisory lock: on both, writers queue, and what a writer has read
stays true until it commits.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql import Executable
from sqlmodel import Session, SQLModel, col, create_engine, select, update

from freegpu.clock import Clock, utc
from freegpu.errors import JobNotFoundError, LedgerError, StaleEpochError
from freegpu.orchestrator import rows
from freegpu.orchestrator.database import Target, connect_postgres, connect_sqlite, named
from freegpu.orchestrator.migrations import PG_WRITE_LOCK
from freegpu.orchestrator.tables import AttemptRow, EventRow, JobRow, SessionRow

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LETTERS_AND_DIGITS = _LETTERS + "0123456789"


@dataclass(frozen=True, slots=True)
class Writing:
    """One open transaction: what is done through it is committed together, or not at all."""

    session: Session
    #: the moment of the transaction
    now: datetime
    rng: random.Random

    def record(
        self,
        action: str,
        message: str,
        *,
        job: str = "",
        attempt: str = "",
        session: str = "",
        platform: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a line to the audit."""
        self.session.add(
            EventRow(
                at=self.now,
                action=action,
                message=message,
                job=job,
                attempt=attempt,
                session=session,
                platform=platform,
                data=rows.to_json(data or {}),
            )
        )

    def job(self, job_id: str) -> JobRow:
        """JobNotFoundError if there is none."""
        found = self.session.get(JobRow, job_id)
        if found is None:
            raise JobNotFoundError(
                f"no job has the id {job_id!r}", hint="`freegpu jobs` lists them"
            )
        return found

    def attempt(self, attempt_id: str) -> AttemptRow:
        """JobNotFoundError if there is none."""
        found = self.session.get(AttemptRow, attempt_id)
        if found is None:
            raise JobNotFoundError(f"no attempt has the id {attempt_id!r}")
        return found

    def session_row(self, session_id: str) -> SessionRow:
        """LedgerError if there is none."""
        found = self.session.get(SessionRow, session_id)
        if found is None:
            raise LedgerError(f"no session has the id {session_id!r}", hint="see `freegpu status`")
        return found

    def change(self, table: type[SQLModel], guard: Mapping[str, Any], **values: Any) -> None:
        """Update the row that still is as `guard` says. StaleEpochError if none is."""
        if not self.try_change(table, guard, **values):
            who = guard.get("id", "")
            raise StaleEpochError(f"{who} was changed by somebody newer in the meantime")

    def try_change(self, table: type[SQLModel], guard: Mapping[str, Any], **values: Any) -> bool:
        """Update the rows that still are as `guard` says; whether there was one."""
        statement = update(table).filter_by(**guard).values(**values)
        done = self.session.exec(statement.execution_options(synchronize_session="evaluate"))
        return bool(done.rowcount)

    def run(self, statement: Executable, values: list[dict[str, Any]] | None = None) -> None:
        """Execute a statement whose answer does not matter, once or for many rows."""
        self.session.connection().execute(statement, values)

    def new_id(self, prefix: str, length: int, table: type[Any]) -> str:
        """An id that no row of the table bears; its first own letter is no digit."""
        return self.new_ids(1, prefix, length, table)[0]

    def new_ids(self, count: int, prefix: str, length: int, table: type[Any]) -> list[str]:
        """That many of them, all different."""
        found: dict[str, None] = {}
        while len(found) < count:
            fresh = [self._random_id(prefix, length) for _ in range(min(500, count - len(found)))]
            taken = set(self.session.exec(select(table.id).where(col(table.id).in_(fresh))).all())
            found.update(dict.fromkeys(each for each in fresh if each not in taken))
        return list(found)

    def _random_id(self, prefix: str, length: int) -> str:
        rest = (self.rng.choice(_LETTERS_AND_DIGITS) for _ in range(length - 1))
        return prefix + self.rng.choice(_LETTERS) + "".join(rest)


class Writer:
    """Transactions on one ledger."""

    def __init__(self, target: Target, *, clock: Clock, rng: random.Random) -> None:
        self._target = target
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._engine = _engine(target)

    @contextmanager
    def begin(self) -> Iterator[Writing]:
        """One transaction. Any error undoes all of it; those of the database are named."""
        with self._lock:
            try:
                with Session(self._engine, expire_on_commit=False) as session, session.begin():
                    session.connection()  # takes the lock now, so that `now` is the moment of the write
                    yield Writing(session, utc(self._clock), self._rng)
            except DBAPIError as error:
                raise named(error, self._target) from error
            except StatementError as error:  # a value that no column takes, e.g. a naive time
                raise ValueError(str(error.orig or error)) from error

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()


def one_or_none(writing: Writing, table: type[Any], **guard: Any) -> Any:
    """The row that is as `guard` says, or None."""
    return writing.session.exec(select(table).filter_by(**guard)).first()


def _engine(target: Target) -> Engine:
    path = target.path
    if path is not None:
        engine = create_engine(
            "sqlite://", creator=lambda: connect_sqlite(path, write=True), poolclass=QueuePool
        )

        @event.listens_for(engine, "begin")
        def _begin_immediate(connection: Connection) -> None:
            # the driver's own BEGIN is off (isolation_level None); a deferred one could fail at commit
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        return engine

    def dial() -> Any:
        connection = connect_postgres(target.dsn)
        connection.autocommit = False
        return connection

    engine = create_engine("postgresql+psycopg://", creator=dial, pool_pre_ping=True)

    @event.listens_for(engine, "begin")
    def _queue(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (PG_WRITE_LOCK,))

    return engine

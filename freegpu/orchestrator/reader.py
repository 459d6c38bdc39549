"""The read side of the ledger: plain SQL over the plain DB-API, values out.

Decides: which rows answer a question, and in which order. Changes nothing, and does not know how rows come
about. Every question sees the latest committed state. One connection for all threads of the process, one
question at a time.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from freegpu.errors import FreeGPUError, JobNotFoundError, LedgerCorruptError, LedgerError
from freegpu.jobs import matrix
from freegpu.jobs.lifecycle import AttemptState, JobState, SessionState
from freegpu.jobs.model import JobSpec, Needs
from freegpu.orchestrator import migrations, rows
from freegpu.orchestrator.database import (
    FrozenConnection,
    Target,
    connect_postgres,
    connect_sqlite,
    named,
)
from freegpu.orchestrator.model import (
    Attempt,
    AuditEvent,
    Blocked,
    Checkpoint,
    Entry,
    Job,
    Reading,
    Session,
    Speed,
    Waiting,
)


def _select(table: str, columns: Iterable[str]) -> str:
    return f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - names from this file only


def _of(value: type) -> list[str]:
    return [field.name for field in fields(value)]


_JOBS = _select(
    "jobs j LEFT JOIN checkpoints c ON c.id = j.checkpoint_id",
    [f"j.{name}" for name in _of(Job) if name != "checkpoint"]
    + [f"c.{name} AS c_{name}" for name in rows.CHECKPOINT_COLUMNS],
)
_WAITING = _select("jobs j LEFT JOIN checkpoints c ON c.id = j.checkpoint_id", rows.WAITING_COLUMNS)
_READY = (
    " WHERE j.state = 'pending' AND (j.not_before IS NULL OR j.not_before <= ?)"
    " AND NOT EXISTS (SELECT 1 FROM afters a JOIN jobs b ON b.id = a.after"
    " WHERE a.job = j.id AND b.state <> 'succeeded') ORDER BY j.seq"
)
_ATTEMPTS = _select("attempts", _of(Attempt))
_SESSIONS = _select("sessions", _of(Session))
_ENTRIES = _select("entries", _of(Entry))
_EVENTS = _select("events", _of(AuditEvent))
_READINGS = _select("readings r", _of(Reading))
_SPEEDS = _select("speeds", _of(Speed))
_CHECKPOINTS = _select("checkpoints", rows.CHECKPOINT_COLUMNS)


def _reading(row: dict[str, Any]) -> Reading:
    resets_at, as_of = rows.time(row["resets_at"]), rows.sure(row["as_of"])
    return Reading(**{**row, "resets_at": resets_at, "as_of": as_of})


class Reader:
    """Questions to one ledger. Any of them may raise LedgerError or LedgerCorruptError."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._connection: Any = None

    def close(self) -> None:
        """Let go of the database; the next question opens it again."""
        with self._lock:
            self._hang_up()

    def version(self) -> int:
        """The schema version. SchemaVersionError for a newer one, LedgerCorruptError for no ledger."""
        with self._lock:
            try:
                return migrations.version_of(self._opened(), self._target)
            except FreeGPUError:
                raise
            except Exception as error:
                raise named(error, self._target) from error

    def damage(self) -> list[str]:
        """What is wrong with the file or with rows of jobs; empty: nothing. Reads all of it."""
        lines: list[str] = []
        if self._target.is_sqlite:
            lines += [row[0] for row in self._fetch("PRAGMA quick_check(10)")]
        found = [] if lines == ["ok"] else lines
        if found:
            return found  # its rows cannot be read at all, or mean nothing
        for row in self._dicts(_JOBS + " ORDER BY seq"):
            try:
                rows.job(row)
            except LedgerCorruptError as error:
                found.append(error.message)
        return found

    def meta(self, key: str) -> str | None:
        """A fact about this ledger; None: not set."""
        found = self._fetch("SELECT value FROM meta WHERE key = ?", key)
        return found[0][0] if found else None

    def account(self, platform: str) -> str | None:
        """The one account that the platform is used with; None: none so far."""
        found = self._fetch("SELECT account FROM accounts WHERE platform = ?", platform)
        return found[0][0] if found else None

    # --- jobs ---------------------------------------------------------------------------------------

    def jobs(
        self,
        *,
        states: Collection[JobState] | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Job]:
        """Jobs in the order of submission."""
        sql = _JOBS
        values: list[Any] = []
        if states is not None:
            marks, values = _any_of([state.value for state in states])
            sql += f" WHERE j.state IN {marks}"
        sql += " ORDER BY j.seq" + (" DESC" if newest_first else "")
        return [rows.job(row) for row in self._dicts(sql + _limit(limit), *values)]

    def job(self, id: str) -> Job:
        """The job with this id. JobNotFoundError."""
        for row in self._dicts(_JOBS + " WHERE j.id = ?", id):
            return rows.job(row)
        raise self._unknown(id)

    def jobs_of(self, ids: Collection[str]) -> list[Job]:
        """The jobs with these ids that there are, in the order of submission."""
        found, wanted = [], list(ids)
        for at in range(0, len(wanted), 500):
            marks, values = _any_of(wanted[at : at + 500])
            found += [
                rows.job(row) for row in self._dicts(_JOBS + f" WHERE j.id IN {marks}", *values)
            ]
        return sorted(found, key=lambda job: job.seq)

    def resolve(self, text: str) -> Job:
        """The job with this id; else the only one that bears this name or whose id begins so.

        JobNotFoundError: there is none, or there are several (they are listed), or it names a whole matrix.
        """
        wanted = text.strip()
        if not _storable(wanted):
            raise self._unknown(wanted)
        ids = self._fetch(
            "SELECT id, name, state FROM jobs WHERE id = ? OR substr(id, 1, ?) = ? OR name = ?"
            " ORDER BY seq DESC",
            *(wanted, len(wanted), wanted, wanted),
        )
        if not wanted or not ids:
            self._refuse_matrix(wanted)
            raise self._unknown(wanted)
        for said in (
            [row for row in ids if row[0] == wanted],
            [row for row in ids if row[1] == wanted],
            ids,
        ):
            if said is ids:  # before the beginning of an id: a matrix may bear the name `a`
                self._refuse_matrix(wanted)
            if len(said) == 1:
                return self.job(said[0][0])
            if said:
                ids = said
                break
        shown = ", ".join(f"{row[0]} ({row[1]}, {row[2]})" for row in ids[:8])
        more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
        raise JobNotFoundError(
            f"{len(ids)} jobs are meant by {wanted!r}: {shown}{more}",
            hint="give more letters of the id",
        )

    def meant(self, text: str) -> list[Job]:
        """The jobs that a command on several means: the one with this id or name, else the cells of the matrix of this
        name as they were submitted last, else the one whose id begins so. JobNotFoundError, as of `resolve`."""
        cells = self.cells(text.strip())
        return list(newest_cells(cells)) if cells else [self.resolve(text)]

    def cells(self, name: str) -> list[Job]:
        """Every job of the matrix with this name, in the order of submission; none where a job has it as its name or id."""
        if not name or not _storable(name):
            return []
        if self._fetch("SELECT id FROM jobs WHERE id = ? OR name = ? LIMIT 1", name, name):
            return []
        return [
            job
            for job in self.jobs_like(name)
            if job.spec.cell and matrix.stem(job.name, job.spec.cell) == name
        ]

    def _refuse_matrix(self, text: str) -> None:
        cells = newest_cells(self.cells(text))
        if cells:
            raise JobNotFoundError(
                f"{text!r} is a matrix of {len(cells)} jobs, and here one is meant",
                hint=f"`freegpu results {text}` lists them with their ids",
            )

    def unmet(self, job_id: str) -> list[Job]:
        """The jobs it waits for that have not succeeded."""
        sql = _JOBS + (
            " JOIN afters a ON a.after = j.id WHERE a.job = ? AND j.state <> 'succeeded' ORDER BY j.seq"
        )
        return [rows.job(row) for row in self._dicts(sql, job_id)]

    def prerequisites(self) -> dict[str, list[tuple[str, datetime | None]]]:
        """job -> (state, end) of each job that it comes after."""
        sql = "SELECT a.job, j.state, j.ended_at FROM afters a JOIN jobs j ON j.id = a.after"
        found: dict[str, list[tuple[str, datetime | None]]] = {}
        for job, state, ended in self._fetch(sql):
            found.setdefault(job, []).append((state, rows.time(ended)))
        return found

    def blockers(self) -> dict[str, tuple[int, int]]:
        """Pending job -> how many jobs it still waits for, and how many of them have failed or were cancelled."""
        over = (JobState.FAILED.value, JobState.CANCELLED.value)
        found = self._fetch(
            "SELECT a.job, count(*), sum(CASE WHEN b.state IN (?, ?) THEN 1 ELSE 0 END) FROM afters a"
            " JOIN jobs b ON b.id = a.after JOIN jobs j ON j.id = a.job"
            " WHERE j.state = 'pending' AND b.state <> 'succeeded' GROUP BY a.job",
            *over,
        )
        return {job: (int(all_), int(stuck)) for job, all_, stuck in found}

    def job_counts(self) -> dict[JobState, int]:
        """How many jobs are in each state; every state is there."""
        counts = dict(self._fetch("SELECT state, count(*) FROM jobs GROUP BY state"))
        return {state: counts.get(state.value, 0) for state in JobState}

    def waiting(self, now: datetime) -> tuple[Waiting, ...]:
        """Pending jobs that may be tried now: not_before has passed, all they wait for has succeeded."""
        moment = self._moment(now)
        avoid: dict[str, dict[str, str]] = {}
        for job, platform, why in self._fetch(
            "SELECT job, platform, why FROM avoids WHERE until > ?", moment
        ):
            avoid.setdefault(job, {})[platform] = why
        nothing: dict[str, str] = {}
        found = self._fetch(_WAITING + _READY, moment)
        return tuple(rows.waiting(row, avoid.get(row[0], nothing)) for row in found)

    def held(self, now: datetime) -> tuple[Waiting, ...]:
        """Pending jobs that may not be tried now, with what they wait for: other jobs, or their moment."""
        after: dict[str, list[str]] = {}
        for job, first in self._fetch(
            "SELECT a.job, a.after FROM afters a JOIN jobs b ON b.id = a.after JOIN jobs j ON j.id = a.job"
            " WHERE j.state = 'pending' AND b.state <> 'succeeded' ORDER BY a.job, b.seq"
        ):
            after.setdefault(job, []).append(first)
        later = self._fetch(
            "SELECT id, not_before FROM jobs WHERE state = 'pending' AND not_before > ?",
            self._moment(now),
        )
        moments = {job: rows.time(at) for job, at in later}
        found: list[Waiting] = []
        wanted = sorted(after.keys() | moments.keys())
        for at in range(0, len(wanted), 500):
            marks, values = _any_of(wanted[at : at + 500])
            for row in self._fetch(_WAITING + f" WHERE j.id IN {marks}", *values):
                job = rows.waiting(row, {})
                found.append(
                    replace(job, after=tuple(after.get(job.id, ())), not_before=moments.get(job.id))
                )
        return tuple(sorted(found, key=lambda job: job.seq))

    def asked_since(self, moment: datetime) -> tuple[Needs, ...]:
        """What the jobs that were submitted since then need, each once."""
        sql = "SELECT DISTINCT needs FROM jobs WHERE created_at > ?"
        return tuple(
            sorted((rows.needs(n) for (n,) in self._fetch(sql, self._moment(moment))), key=repr)
        )

    def came_since(self, moment: datetime) -> int:
        """How many jobs were submitted since then."""
        sql = "SELECT COUNT(*) FROM jobs WHERE created_at > ?"
        ((count,),) = self._fetch(sql, self._moment(moment))
        return int(count)

    def as_waiting(self, job: str) -> Waiting:
        """A job as a decision would see it if it waited, whatever it does. JobNotFoundError."""
        for row in self._fetch(_WAITING + " WHERE j.id = ?", job):
            return rows.waiting(row, {})
        raise self._unknown(job)

    def checkpoints(self, job: str) -> list[Checkpoint]:
        """Confirmed checkpoints, newest first."""
        sql = _CHECKPOINTS + " WHERE job = ? ORDER BY epoch DESC, generation DESC"
        return [rows.checkpoint(row) for row in self._dicts(sql, job)]

    def speeds(self, job_id: str | None = None) -> list[Speed]:
        """Speeds noted for a job, or for all, oldest first."""
        sql = _SPEEDS + (" WHERE job = ?" if job_id is not None else "") + " ORDER BY id"
        values = () if job_id is None else (job_id,)
        return [Speed(**{**row, "at": rows.sure(row["at"])}) for row in self._dicts(sql, *values)]

    def starts(self, limit: int) -> list[float]:
        """How long the newest attempts took from getting a slot of a session that lived to being seen to run, seconds."""
        sql = (
            "SELECT a.created_at AS given, e.at AS seen FROM events e"
            " JOIN attempts a ON a.id = e.attempt JOIN sessions s ON s.id = a.session"
            " WHERE e.action = 'attempt.start' AND s.live_at < a.created_at"
            " ORDER BY e.id DESC LIMIT ?"
        )
        return [
            max(0.0, (rows.sure(row["seen"]) - rows.sure(row["given"])).total_seconds())
            for row in self._dicts(sql, limit)
        ]

    def jobs_like(self, name: str) -> list[Job]:
        """Jobs with this name, or whose name goes on from it with a dash, in the order of submission."""
        if not _storable(name):
            return []
        sql = _JOBS + " WHERE j.name = ? OR substr(j.name, 1, ?) = ? ORDER BY j.seq"
        return [rows.job(row) for row in self._dicts(sql, name, len(name) + 1, f"{name}-")]

    def runs(self, ids: Collection[str]) -> dict[str, tuple[str, str, float, datetime | None]]:
        """job -> (platform, card) of its last attempt, seconds its command ran in attempts that ended, and since when
        the open one runs, if one does."""
        found: dict[str, tuple[str, str, float, datetime | None]] = {}
        wanted = list(ids)
        for at in range(0, len(wanted), 500):
            marks, values = _any_of(wanted[at : at + 500])
            columns = ("job", "platform", "card", "run_s", "state", "started_at")
            sql = _select("attempts", columns) + f" WHERE job IN {marks} ORDER BY job, number"
            for job, platform, card, run_s, state, started in self._fetch(sql, *values):
                before = found[job][2] if job in found else 0.0
                since = None if state == AttemptState.ENDED.value else rows.time(started)
                found[job] = (platform, card, before + run_s, since)
        return found

    def kindred(self) -> list[tuple[str, str, str, float | None]]:
        """(id, name, bundle, steps in all as it told) of jobs that are open, and of ended ones whose speed was noted."""
        open_or_seen = " WHERE state IN (?, ?) OR id IN (SELECT job FROM speeds) ORDER BY seq"
        sql = _select("jobs", ("id", "name", "bundle", "progress")) + open_or_seen
        found = self._fetch(sql, JobState.PENDING.value, JobState.ACTIVE.value)
        return [
            (id, name, bundle, None if told == "{}" else rows.progress(told).total)
            for id, name, bundle, told in found
        ]

    def specs(self, ids: Collection[str]) -> list[tuple[str, str, JobSpec]]:
        """(id, bundle, spec) of these jobs, those that there are."""
        return [(id, bundle, rows.spec(spec)) for id, bundle, spec in self._specs(ids)]

    def raw_specs(self, ids: Collection[str]) -> list[tuple[str, str, dict[str, Any]]]:
        """The same as plain JSON: ten thousand at once are ten times cheaper so."""
        return [(id, bundle, rows.from_json(spec)) for id, bundle, spec in self._specs(ids)]

    def _specs(self, ids: Collection[str]) -> list[Any]:
        found, wanted = [], list(ids)
        for at in range(0, len(wanted), 500):  # SQLite takes no more than 999 values in old builds
            marks, values = _any_of(wanted[at : at + 500])
            sql = _select("jobs", ("id", "bundle", "spec")) + f" WHERE id IN {marks}"
            found += self._fetch(sql, *values)
        return found

    # --- attempts, sessions -------------------------------------------------------------------------

    def attempts(
        self, *, job: str | None = None, session: str | None = None, open_only: bool = False
    ) -> list[Attempt]:
        """Attempts, oldest first."""
        where, values = _where(job=job, session=session)
        if open_only:
            where = _and(where, f"state <> '{AttemptState.ENDED.value}'")
        order = "number" if job is not None else "created_at, job, number"
        sql = _ATTEMPTS + where + f" ORDER BY {order}"
        return [rows.attempt(row) for row in self._dicts(sql, *values)]

    def attempt(self, id: str) -> Attempt:
        """The attempt with this id. JobNotFoundError."""
        for row in self._dicts(_ATTEMPTS + " WHERE id = ?", id):
            return rows.attempt(row)
        raise JobNotFoundError(f"no attempt has the id {id!r}")

    def sessions(
        self,
        *,
        open_only: bool = True,
        platform: str | None = None,
        account: str | None = None,
        limit: int | None = None,
    ) -> list[Session]:
        """Sessions, oldest first; with a limit the newest ones."""
        where, values = _where(platform=platform, account=account)
        if open_only:
            where = _and(where, f"state <> '{SessionState.ENDED.value}'")
        if limit is None:
            found = self._dicts(_SESSIONS + where + " ORDER BY created_at, id", *values)
        else:  # the newest ones, still oldest first
            order = " ORDER BY created_at DESC, id DESC"
            found = self._dicts(_SESSIONS + where + order + _limit(limit), *values)[::-1]
        return [rows.session(row) for row in found]

    def session(self, id: str) -> Session:
        """The session with this id. LedgerError."""
        for row in self._dicts(_SESSIONS + " WHERE id = ?", id):
            return rows.session(row)
        raise LedgerError(f"no session has the id {id!r}", hint="see `freegpu status`")

    # --- quota, audit, places -----------------------------------------------------------------------

    def entries(
        self,
        *,
        platform: str | None = None,
        account: str | None = None,
        pool: str | None = None,
        since: datetime | None = None,
    ) -> list[Entry]:
        """Ledger entries in the order in which they were made."""
        where, values = _where(platform=platform, account=account, pool=pool)
        if since is not None:
            where, values = _and(where, "at >= ?"), [*values, self._moment(since)]
        return [rows.entry(row) for row in self._dicts(_ENTRIES + where + " ORDER BY id", *values)]

    def readings(self, *, platform: str | None = None) -> list[Reading]:
        """The newest live quota reading of each platform, account and pool."""
        where, values = _where(platform=platform)
        newest = (
            "NOT EXISTS (SELECT 1 FROM readings n WHERE n.platform = r.platform AND"
            " n.account = r.account AND n.pool = r.pool AND"
            " (n.as_of > r.as_of OR (n.as_of = r.as_of AND n.id > r.id)))"
        )
        sql = _READINGS + _and(where, newest) + " ORDER BY platform, account, pool"
        return [_reading(row) for row in self._dicts(sql, *values)]

    def reading_history(self, since: datetime) -> list[Reading]:
        """All live quota readings from then on, oldest first."""
        sql = _READINGS + " WHERE r.as_of >= ? ORDER BY r.as_of, r.id"
        return [_reading(row) for row in self._dicts(sql, self._moment(since))]

    def events(
        self,
        *,
        job: str | None = None,
        session: str | None = None,
        actions: Collection[str] | None = None,
        after_id: int = 0,
        limit: int = 200,
    ) -> list[AuditEvent]:
        """Audit lines, oldest first; with `actions` only of these kinds."""
        where, values = _where(job=job, session=session)
        where, values = _and(where, "id > ?"), [*values, after_id]
        if actions is not None:
            marks, wanted = _any_of(list(actions))
            where, values = _and(where, f"action IN {marks}"), [*values, *wanted]
        sql = _EVENTS + where + " ORDER BY id" + _limit(limit)
        return [rows.event(row) for row in self._dicts(sql, *values)]

    def newest_events(self, action: str, jobs: Collection[str]) -> dict[str, AuditEvent]:
        """job -> its newest audit line of this kind, of those that have one."""
        found: dict[str, AuditEvent] = {}
        wanted = list(jobs)
        for at in range(0, len(wanted), 500):
            marks, values = _any_of(wanted[at : at + 500])
            newest = (
                "id IN (SELECT max(id) FROM events"  # noqa: S608 - marks only
                f" WHERE action = ? AND job IN {marks} GROUP BY job)"
            )
            sql = _EVENTS + f" WHERE {newest}"
            found |= {row["job"]: rows.event(row) for row in self._dicts(sql, action, *values)}
        return found

    def last_event(self) -> int:
        """The id of the newest audit line; 0: there is none."""
        found: int | None = self._fetch("SELECT max(id) FROM events")[0][0]
        return found or 0

    def places(self) -> dict[str, Blocked]:
        """Platforms that were to be left alone, also those whose time has passed."""
        return {
            platform: Blocked(platform=platform, until=rows.sure(until), why=why)
            for platform, until, why in self._fetch("SELECT platform, until, why FROM blocks")
        }

    def first_seen(self) -> dict[str, datetime]:
        """platform -> the first moment of which this ledger holds anything about it: that it was connected, asked or used.

        Not in it: a platform that stands in the settings and was never asked.
        """
        sql = (
            "SELECT name, min(at) FROM ("
            " SELECT platform AS name, at FROM events WHERE platform <> ''"
            " UNION ALL SELECT platform, created_at FROM sessions"
            " UNION ALL SELECT platform, at FROM entries"
            " UNION ALL SELECT platform, as_of FROM readings"
            # what a platform offered is a fact, whose first line in the audit is the day it first answered
            " UNION ALL SELECT substr(message, 8), at FROM events"
            " WHERE action = 'meta.set' AND substr(message, 1, 7) = 'offers:'"
            ") seen GROUP BY name"
        )
        return {name: rows.sure(at) for name, at in self._fetch(sql)}

    # --- the connection -----------------------------------------------------------------------------

    def _opened(self) -> Any:
        if self._connection is None:
            self._connection = (
                connect_sqlite(self._target.path, write=False)
                if self._target.path is not None
                else connect_postgres(self._target.dsn)
            )
        return self._connection

    def _query(self, sql: str, values: Sequence[Any]) -> tuple[list[Any], list[str]]:
        with self._lock:
            try:
                if self._target.is_sqlite:
                    cursor = self._opened().execute(sql, values)
                else:
                    # a server that was restarted closed the line: dial once more
                    if self._connection is not None and self._connection.broken:
                        self._hang_up()
                    cursor = self._opened().execute(sql.replace("?", "%s"), values)
                return cursor.fetchall(), [column[0] for column in cursor.description or ()]
            except FreeGPUError:
                raise
            except Exception as error:
                raise named(error, self._target) from error
            finally:
                if isinstance(self._connection, FrozenConnection):
                    self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _fetch(self, sql: str, *values: Any) -> list[Any]:
        return self._query(sql, values)[0]

    def _dicts(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        found, names = self._query(sql, values)
        return [dict(zip(names, row, strict=True)) for row in found]

    def _moment(self, at: datetime) -> Any:
        """A time as a column holds it."""
        moment = rows.aware(at)
        if not self._target.is_sqlite:
            return moment
        return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")

    def _unknown(self, text: str) -> JobNotFoundError:
        known = self._fetch("SELECT id, name FROM jobs ORDER BY seq DESC LIMIT 500")
        # ids are letters by chance: one must be very near to be what was meant
        near = difflib.get_close_matches(text, sorted({row[1] for row in known}), 1, 0.6)
        near = near or difflib.get_close_matches(text, sorted({row[0] for row in known}), 1, 0.8)
        hint = f"did you mean {near[0]!r}?" if near else "`freegpu jobs` lists them"
        return JobNotFoundError(f"no job has the id or name {text!r}", hint=hint)


def _where(**wanted: str | None) -> tuple[str, list[Any]]:
    given = {name: value for name, value in wanted.items() if value is not None}
    clause = " AND ".join(f"{name} = ?" for name in given)
    return (f" WHERE {clause}" if clause else ""), list(given.values())


def _and(where: str, more: str) -> str:
    return f"{where} AND {more}" if where else f" WHERE {more}"


def _any_of(values: list[str]) -> tuple[str, list[Any]]:
    if not values:
        return "(NULL)", []
    return "(" + ", ".join("?" for _ in values) + ")", list(values)


def _limit(limit: int | None) -> str:
    return "" if limit is None else f" LIMIT {max(0, int(limit))}"


def newest_cells(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Of jobs of one matrix those that were submitted last for their cell, in the order of submission."""
    newest = {tuple(sorted(job.spec.cell.items())): job for job in jobs}
    return tuple(sorted(newest.values(), key=lambda job: job.seq))


def _storable(text: str) -> bool:
    """Whether a database can hold it: a byte of the command line that is not UTF-8 is in no name."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

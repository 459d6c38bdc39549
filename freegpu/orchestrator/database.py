"""Where the ledger lies, how it is opened, and what each failure of a database means to a user.

Decides: which URL is which database, how connections are set up, and which sentence a database error
becomes. Does not know tables or jobs. SQLite and psycopg only, through their plain DB-API: SQLAlchemy
costs a third of a second to import, and a command that only reads must not pay it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from freegpu.errors import (
    ConfigError,
    FreeGPUError,
    LedgerBusyError,
    LedgerCorruptError,
    LedgerError,
)

#: seconds that a writer or reader waits for another process to let go of the ledger
PATIENCE_S = 30.0
#: on PostgreSQL all tables live in this schema, so that the database may be shared with other programs
PG_SCHEMA = "freegpu"
#: PRAGMA application_id of a SQLite ledger: "fgpu"
APPLICATION_ID = 0x66677075

#: SQLite's words for "the -shm file cannot be made"
_NO_SHM = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR_SHM")
#: bytes below which a disk counts as full when a write failed
_FULL = 256 * 1024
_SQLITE_MAGIC = b"SQLite format 3\x00"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One ledger. `path` for SQLite, `dsn` for PostgreSQL; `shown` is safe to print."""

    shown: str
    path: Path | None = None
    dsn: str = ""

    @property
    def is_sqlite(self) -> bool:
        return self.path is not None


def parse(url: str) -> Target:
    """The target of a URL or bare path. ConfigError if no ledger can lie there."""
    if url.startswith("sqlite://"):
        rest = url.removeprefix("sqlite://").removeprefix("/")
        if not rest or rest == ":memory:":
            raise ConfigError(
                f"the ledger must be a file, not {url!r}",
                hint="use a path, or sqlite:///PATH, or postgresql://USER@HOST/DATABASE",
            )
        path = Path(rest).expanduser()
        return Target(shown=str(path), path=path)
    scheme = re.match(r"([a-z][a-z0-9+]*)://", url)
    if scheme is None and url and url != ":memory:":
        path = Path(url).expanduser()
        return Target(shown=str(path), path=path)
    if scheme and scheme[1] in ("postgresql", "postgres", "postgresql+psycopg"):
        dsn = "postgresql://" + url[scheme.end() :]
        return Target(shown=_without_password(dsn), dsn=dsn)
    raise ConfigError(
        f"no ledger can be kept at {_without_password(url)!r}",
        hint="use a path, or sqlite:///PATH, or postgresql://USER@HOST/DATABASE",
    )


class FrozenConnection(sqlite3.Connection):
    """Reads the file as it was when it was opened: for one question only."""


def connect_sqlite(path: Path, *, write: bool) -> sqlite3.Connection:
    """A connection in autocommit; readers get mode=ro. sqlite3.Error as it comes.

    A reader may get a FrozenConnection.
    """
    location = "file:" + quote(str(path.absolute()))
    if write:
        return _sqlite(
            location + "?mode=rwc", "PRAGMA synchronous = FULL", "PRAGMA foreign_keys = ON"
        )
    look = "SELECT count(*) FROM sqlite_master"
    try:
        return _sqlite(location + "?mode=ro", look)
    except sqlite3.OperationalError as error:
        # A read-only folder or a full disk: WAL wants its -shm file and cannot make it. Without a journal
        # that still has to be played, the file itself is the whole truth and may be read as it is.
        if not _code(error).startswith(_NO_SHM) or _has_wal(path):
            raise
    return _sqlite(location + "?mode=ro&immutable=1", look, factory=FrozenConnection)


def connect_postgres(dsn: str) -> Any:
    """A psycopg connection in autocommit with our schema and UTC. psycopg.Error as it comes."""
    try:
        import psycopg
    except ImportError:
        raise LedgerError(
            "a ledger on PostgreSQL needs psycopg, which is not installed",
            hint="pip install 'freegpu-scheduler[postgres]'",
        ) from None
    connection = psycopg.connect(dsn, autocommit=True, connect_timeout=10)
    try:
        connection.execute(f"SET search_path TO {PG_SCHEMA}")
        connection.execute("SET TimeZone TO 'UTC'")
        connection.execute(f"SET lock_timeout TO {int(PATIENCE_S * 1000)}")
    except BaseException:
        connection.close()
        raise
    return connection


#: (device, inode) of every ledger file that this process has opened; see check_file
_OPENED: set[tuple[int, int]] = set()
_OPENING = threading.Lock()


def check_file(path: Path, *, create: bool) -> bool:
    """Whether a SQLite ledger lies there already (False: it is still to be made).

    Its first bytes are read only as long as this process has no connection to it: closing any descriptor of a file
    drops all of the process's POSIX locks on it, SQLite's own too. Once `up` opened its ledger a second time to send
    notices; the next command then believed itself alone, removed the write-ahead log, and the ledger was destroyed.

    LedgerError: a folder, no permission, a missing parent, or missing and not `create`;
    LedgerCorruptError: the file is something else.
    """
    try:
        if path.is_dir():
            raise LedgerError(
                f"the ledger {path} is a folder, not a file",
                hint="set FREEGPU_DB to a file, or move that folder away",
            )
        if not path.parent.is_dir():
            raise LedgerError(
                f"the ledger {path} cannot be made: there is no folder {path.parent}",
                hint=f"create it: mkdir -p {path.parent}",
            )
        there = path.exists() and path.stat().st_size > 0
        if there:
            head = _first_bytes(path)
            if head != _SQLITE_MAGIC:
                raise LedgerCorruptError(
                    f"{path} is not a freegpu ledger: it does not begin like a database",
                    hint=_RESCUE,
                )
        elif not create:
            refuse_absent(str(path))
    except PermissionError as error:
        raise LedgerError(f"no permission to read the ledger {path}", hint=_OWN) from error
    except OSError as error:
        raise LedgerError(
            f"the ledger {path} cannot be opened: {error.strerror}", hint=_OWN
        ) from error
    if create:
        _check_writable(path, there=there)
    return there


def _first_bytes(path: Path) -> bytes:
    """The beginning of the file, or what it must be if SQLite may be at work on it in this process."""
    with _OPENING:
        info = path.stat()
        if (info.st_dev, info.st_ino) in _OPENED:
            return _SQLITE_MAGIC
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC))
        if head == _SQLITE_MAGIC:
            _OPENED.add((info.st_dev, info.st_ino))
        return head


def note_opened(path: Path) -> None:
    """This process has just made the ledger at this path."""
    with _OPENING, contextlib.suppress(FileNotFoundError):
        info = path.stat()
        _OPENED.add((info.st_dev, info.st_ino))


def refuse_absent(shown: str) -> NoReturn:
    """LedgerError: no ledger was made at that place yet."""
    raise LedgerError(
        f"there is no ledger at {shown}", hint="run `freegpu init` or submit a job first"
    )


def named(error: BaseException, target: Target) -> FreeGPUError:
    """The error that a user sees for a database error; of SQLAlchemy's, the original is judged."""
    original = getattr(error, "orig", None) or error
    if isinstance(original, FreeGPUError):
        return original
    if isinstance(original, UnicodeError):
        return LedgerError(
            f"the ledger {target.shown} holds text only: {original}",
            hint="take out what is not UTF-8 text",
        )
    if isinstance(original, sqlite3.Error):
        return _named_sqlite(original, target)
    return _named_postgres(original, target)


_RESCUE = (
    "move it away and restore a copy; jobs and checkpoints in the store are not touched by this"
)
_OWN = "check who owns it and its permissions, or set FREEGPU_DB to another place"


def _sqlite(
    uri: str, *first: str, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=PATIENCE_S,
        isolation_level=None,
        check_same_thread=False,
        factory=factory,
    )
    try:
        for statement in first:
            connection.execute(statement).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _disk_full(target: Target) -> bool:
    try:
        return target.path is not None and shutil.disk_usage(target.path.parent).free < _FULL
    except OSError:
        return False


def _has_wal(path: Path) -> bool:
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _check_writable(path: Path, *, there: bool) -> None:
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise LedgerError(
            f"the ledger {path} cannot be written: its folder is read-only", hint=_OWN
        )
    if there and not os.access(path, os.W_OK):
        raise LedgerError(f"the ledger {path} is read-only", hint=_OWN)


def _code(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def _named_sqlite(error: sqlite3.Error, target: Target) -> FreeGPUError:
    code, where = _code(error), target.shown
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return LedgerCorruptError(f"the ledger {where} is damaged: {error}", hint=_RESCUE)
    if code.startswith("SQLITE_FULL") or (code.startswith("SQLITE_IOERR") and _disk_full(target)):
        return LedgerError(
            f"no space is left for the ledger {where}; nothing was changed",
            hint="free some space on that disk and run the command again",
        )
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LedgerBusyError(
            f"another process has kept the ledger {where} locked for {PATIENCE_S:.0f} s",
            hint="see which freegpu is running, then try again",
        )
    if code.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")):
        return LedgerError(f"the ledger {where} is read-only", hint=_OWN)
    if code.startswith("SQLITE_CANTOPEN"):
        return LedgerError(f"the ledger {where} cannot be opened or written", hint=_OWN)
    if code.startswith("SQLITE_IOERR"):
        return LedgerError(
            f"the disk failed while the ledger {where} was used ({code})",
            hint="check the disk and its free space; nothing half done was kept",
        )
    return LedgerError(f"the ledger {where} refused: {error}")


def _named_postgres(error: BaseException, target: Target) -> FreeGPUError:
    state = getattr(error, "sqlstate", None) or ""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    where = target.shown
    if state == "55P03":
        return LedgerBusyError(
            f"another process has kept the ledger {where} locked for {PATIENCE_S:.0f} s",
            hint="see which freegpu is running, then try again",
        )
    if state in ("53100", "53200"):
        return LedgerError(
            f"the ledger's database {where} has no space left; nothing was changed",
            hint="free some space on the database server and run the command again",
        )
    if state in ("42501", "25006"):
        return LedgerError(
            f"the ledger's database {where} does not allow writing: {first}",
            hint="grant this role CREATE on the database, or set FREEGPU_DB to another place",
        )
    if not state or state.startswith(("08", "28", "3D", "57P")):
        return LedgerError(
            f"the ledger's database {where} cannot be reached: {_without_password(first)}",
            hint="is the server running, and are name, user and password in FREEGPU_DB right?",
        )
    return LedgerError(f"the ledger's database {where} refused: {first}")


def _without_password(text: str) -> str:
    return re.sub(r"(//[^:/@\s]*):[^@\s]*@", r"\1:***@", text)

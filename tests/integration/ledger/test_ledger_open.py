"""Opening a ledger: what is made, what is refused, and in which words. Nothing is lost by a refusal."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.clock import SystemClock
from freegpu.errors import (
    ConfigError,
    FreeGPUError,
    LedgerCorruptError,
    LedgerError,
    SchemaVersionError,
)
from freegpu.orchestrator import migrations
from freegpu.orchestrator.ledger import Ledger

if TYPE_CHECKING:
    Bench = Any

#: opens the ledger of argv and prints what a user would be told
OPEN = """
import sys
from freegpu.clock import SystemClock
from freegpu.errors import FreeGPUError
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import NewJob
from freegpu.jobs.model import JobSpec
def attempt(url, create, write):
    try:
        with Ledger.open(url, clock=SystemClock(), create=create) as ledger:
            if write:
                ledger.add_jobs([NewJob(spec=JobSpec(name="n", run="x"))], why="w")
            print("ok", len(ledger.jobs()))
    except FreeGPUError as error:
        print(type(error).__name__, "|", error.message, "|", error.hint)
"""


def refusal(path: Path | str, *, create: bool = True) -> FreeGPUError:
    with pytest.raises(FreeGPUError) as caught:
        Ledger.open(str(path), clock=SystemClock(), create=create)
    error = caught.value
    assert error.message[0] != " "
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    assert error.hint
    return error


@pytest.mark.parametrize("before", ["absent", "empty"])
def test_a_ledger_is_made_where_none_is(tmp_path: Path, before: str) -> None:
    """No file and an empty file are both a fresh start; it is in WAL mode and bears our mark."""
    path = tmp_path / "state.db"
    if before == "empty":
        path.touch()
    with Ledger.open(str(path), clock=SystemClock()) as ledger:
        assert ledger.jobs() == []
        assert ledger.version() == migrations.VERSION
        assert ledger.damage() == []
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA application_id").fetchone() == (0x66677075,)
    connection.close()


def test_writes_reach_the_disk_before_they_return() -> None:
    """synchronous=FULL: after a power cut an epoch must not be handed out a second time."""
    import tempfile

    from freegpu.orchestrator.database import connect_sqlite

    with tempfile.TemporaryDirectory() as folder:
        connection = connect_sqlite(Path(folder) / "x.db", write=True)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        connection.close()


@pytest.mark.parametrize(
    "name", ["a b", "q'uo\"te", "per%20cent?mode=memory#x", "数字", "new\nline"]
)
def test_a_hostile_folder_name_is_just_a_name(tmp_path: Path, name: str) -> None:
    """Nothing in a path is a URL."""
    folder = tmp_path / name
    folder.mkdir()
    for url in (str(folder / "state.db"), f"sqlite:///{folder / 'other.db'}"):
        with Ledger.open(url, clock=SystemClock()) as ledger:
            ledger.record("note", "x")
    assert {"state.db", "other.db"} <= {each.name for each in folder.iterdir()}


def test_without_create_nothing_is_made(tmp_path: Path) -> None:
    """A command that only looks does not leave a ledger behind."""
    path = tmp_path / "state.db"
    error = refusal(path, create=False)
    assert type(error) is LedgerError
    assert "there is no ledger at" in error.message
    assert list(tmp_path.iterdir()) == []
    path.touch()
    assert "there is no ledger at" in refusal(path, create=False).message
    assert path.stat().st_size == 0


def test_a_missing_parent_folder_is_named(tmp_path: Path) -> None:
    """And not made: it may be a mistyped path."""
    error = refusal(tmp_path / "no" / "state.db")
    assert f"there is no folder {tmp_path / 'no'}" in error.message
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    """Not a file."""
    (tmp_path / "state.db").mkdir()
    assert "is a folder, not a file" in refusal(tmp_path / "state.db").message


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", ":memory:", "sqlite://", "sqlite:///:memory:", ""]
)
def test_a_url_that_can_hold_no_ledger_is_a_configuration_error(url: str) -> None:
    """In words, and without the password."""
    error = refusal(url)
    assert type(error) is ConfigError
    assert "secret" not in error.message


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_no_ledger(tmp_path: Path, seed: int) -> None:
    """They are left exactly as they were."""
    path = tmp_path / "state.db"
    content = random.Random(seed).randbytes(random.Random(seed).randrange(1, 40_000))
    path.write_bytes(content)
    assert type(refusal(path)) is LedgerCorruptError
    assert path.read_bytes() == content


@pytest.mark.parametrize("kept", [16, 50, 100, 512, 4096, 5000, 40_960])
def test_a_truncated_ledger_is_damaged(sqlite_bench: Bench, kept: int) -> None:
    """However little is left of it; what is left is not touched."""
    sqlite_bench.submit(*[f"job-{i}" for i in range(50)])
    sqlite_bench.ledger.close()
    path = Path(sqlite_bench.url)
    content = path.read_bytes()
    assert len(content) > kept
    path.write_bytes(content[:kept])
    assert type(refusal(path)) is LedgerCorruptError
    assert path.read_bytes() == content[:kept]


def test_pages_overwritten_in_the_middle_are_reported_not_raised_raw(sqlite_bench: Bench) -> None:
    """Damage that opening does not see is found by `damage`, or named by the question that meets it."""
    sqlite_bench.submit(*[f"job-{i}" for i in range(300)])
    sqlite_bench.ledger.close()
    path = Path(sqlite_bench.url)
    content = bytearray(path.read_bytes())
    first, last = len(content) // 8192 * 4096, len(content) - 4096
    content[first:last] = random.Random(1).randbytes(last - first)
    path.write_bytes(content)
    with Ledger.open(str(path), clock=SystemClock()) as ledger:
        assert ledger.damage()
        with pytest.raises(LedgerCorruptError, match="damaged"):
            ledger.jobs()


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """Its tables are not ours to add to."""
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    connection.commit()
    connection.close()
    content = path.read_bytes()
    error = refusal(path)
    assert type(error) is LedgerCorruptError
    assert "no freegpu ledger" in error.message
    assert path.read_bytes() == content


def test_a_newer_ledger_is_refused_by_name(bench: Bench) -> None:
    """Both versions are in the sentence, what to do is in the hint, and nothing was changed."""
    bench.submit("a")
    newer = [*migrations.STEPS, (("CREATE TABLE fancy (x TEXT)",), (), ())]
    from freegpu.orchestrator.database import parse

    migrations.migrate(parse(bench.url), newer)
    error = refusal(bench.url)
    assert type(error) is SchemaVersionError
    assert f"schema version {migrations.VERSION + 1}" in error.message
    assert f"up to {migrations.VERSION}" in error.message
    assert "upgrade" in error.hint
    assert "upgrade" in refusal(bench.url, create=False).hint
    assert len(bench.ledger.jobs()) == 1


def test_a_read_only_file_is_refused_for_writing_and_readable(
    open_folder: Path, as_user: Callable[[str], str]
) -> None:
    """With create it is an error at once; without, its jobs can be looked at, and a write says why not."""
    path = open_folder / "state.db"
    Ledger.open(str(path), clock=SystemClock()).close()
    path.chmod(0o444)
    told = as_user(
        OPEN
        + f"""
attempt({str(path)!r}, True, False)
attempt({str(path)!r}, False, False)
attempt({str(path)!r}, False, True)
"""
    ).splitlines()
    assert told[0].startswith(f"LedgerError | the ledger {path} is read-only | check who owns it")
    assert told[1] == "ok 0"
    assert told[2].startswith(f"LedgerError | the ledger {path} is read-only")


def test_a_read_only_folder_is_refused_for_writing_and_readable(
    open_folder: Path, as_user: Callable[[str], str]
) -> None:
    """SQLite wants to make files beside it even to read; the ledger can be read all the same."""
    path = open_folder / "state.db"
    Ledger.open(str(path), clock=SystemClock()).close()
    for each in open_folder.glob("state.db-*"):
        each.unlink()
    path.chmod(0o666)
    open_folder.chmod(0o555)
    told = as_user(
        OPEN
        + f"""
attempt({str(path)!r}, True, False)
attempt({str(path)!r}, False, False)
attempt({str(path)!r}, False, True)
attempt({str(open_folder / "new.db")!r}, True, False)
"""
    ).splitlines()
    assert told[0].startswith(f"LedgerError | the ledger {path} cannot be written: its folder")
    assert told[1] == "ok 0"
    assert told[2].startswith("LedgerError | the ledger")
    assert told[3].startswith("LedgerError | the ledger")


def test_an_unreadable_file_is_one_sentence(
    open_folder: Path, as_user: Callable[[str], str]
) -> None:
    """No permission to read."""
    path = open_folder / "state.db"
    Ledger.open(str(path), clock=SystemClock()).close()
    path.chmod(0)
    told = as_user(OPEN + f"attempt({str(path)!r}, False, False)")
    assert told.startswith(f"LedgerError | no permission to read the ledger {path}")


def test_a_full_disk_is_one_sentence_and_costs_nothing(tmp_path: Path) -> None:
    """On a real small disk: the write that does not fit is undone, all before it is there, and it goes on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        OPEN
        + f"""
import os
url = {str(disk / "state.db")!r}
attempt(url, True, True)
with open({str(disk / "ballast")!r}, "wb", buffering=0) as file:
    try:
        while file.write(b"x" * 4096):
            pass
    except OSError:
        pass
attempt(url, True, True)
attempt({str(disk / "second.db")!r}, True, True)
attempt(url, False, False)
os.unlink({str(disk / "ballast")!r})
attempt(url, True, True)
attempt({str(disk / "second.db")!r}, True, True)
with Ledger.open(url, clock=SystemClock()) as ledger:
    print(ledger.damage())
"""
    )
    mount = f'mount -t tmpfs -o size=1500k tmpfs "{disk}" && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode and "ok" not in done.stdout:
        pytest.skip("no small disk can be mounted here")
    told = done.stdout.splitlines()
    full = "LedgerError | no space is left for the ledger"
    assert told[0] == "ok 1"
    assert told[1].startswith(full)
    assert told[2].startswith(full)
    assert told[3] == "ok 1"
    assert told[4] == "ok 2"
    assert told[5] == "ok 1"
    assert told[6] == "[]"


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    """PostgreSQL by URL: no password in what is shown."""
    error = refusal("postgresql://me:secret@127.0.0.1:9/freegpu")
    assert type(error) is LedgerError
    assert "postgresql://me:***@127.0.0.1:9/freegpu cannot be reached" in error.message
    assert "secret" not in error.message + error.hint


def test_looking_at_jobs_imports_no_database_library(sqlite_bench: Bench) -> None:
    """SQLModel costs more than half a second; `freegpu status` must not pay it."""
    sqlite_bench.submit("a")
    script = f"""
import sys, datetime
from freegpu.clock import SystemClock
from freegpu.orchestrator.ledger import Ledger
with Ledger.open({sqlite_bench.url!r}, clock=SystemClock(), create=False) as ledger:
    now = datetime.datetime.now(datetime.UTC)
    assert len(ledger.jobs()) == len(ledger.waiting(now)) == 1
    ledger.job_counts(), ledger.sessions(), ledger.attempts(), ledger.events(), ledger.places()
    ledger.entries(), ledger.readings(), ledger.checkpoints("x"), ledger.meta("home")
print([name for name in ("sqlmodel", "sqlalchemy", "pydantic", "psycopg") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_opening_does_not_leave_the_file_open_on_failure(tmp_path: Path) -> None:
    """Nothing leaks: a refused ledger can be moved away and replaced."""
    path = tmp_path / "state.db"
    path.write_bytes(b"SQLite format 3\x00" + b"x" * 5000)
    for _ in range(3):
        refusal(path)
    if os.path.isdir("/proc/self/fd"):
        held = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{fd}")
        ]
        assert str(path) not in held


def test_opening_a_ledger_twice_in_one_process_keeps_the_first_one_s_locks(tmp_path: Path) -> None:
    """A short command of another process beside them must not believe itself alone: it would remove the log."""
    url = str(tmp_path / "state.db")
    clock = SystemClock()
    with Ledger.open(url, clock=clock) as first:
        first.set_meta("a", "1")
        with Ledger.open(url, clock=clock) as second:
            assert second.meta("a") == "1"
        script = (
            "import sys; from freegpu.orchestrator.ledger import Ledger; from freegpu.clock import SystemClock\n"
            "with Ledger.open(sys.argv[1], clock=SystemClock()) as ledger: ledger.set_meta('b', '2')"
        )
        for _ in range(3):
            subprocess.run([sys.executable, "-c", script, url], check=True)
            first.set_meta("c", "3")
        assert (tmp_path / "state.db-wal").exists()
        if Path("/proc/self/fd").exists():
            held = [os.readlink(fd.path) for fd in os.scandir("/proc/self/fd") if fd.is_symlink()]
            assert not [name for name in held if name.startswith(url) and "(deleted)" in name]
    with Ledger.open(url, clock=clock) as again:
        assert (again.meta("a"), again.meta("b"), again.meta("c")) == ("1", "2", "3")

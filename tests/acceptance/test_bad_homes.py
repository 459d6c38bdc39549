"""Homes, ledgers, stores, folders and terminals that are not as they should be: said once, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.typed import CODES, inside, refused, rows, told

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def template(make_user: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home at rest with one job that waits."""
    user = make_user(tmp_path_factory.mktemp("template"))
    user.settings()
    user.job_file("name: before\nrun: echo\nresources: {accelerators: H100}\n")
    user.ok("submit", "job.yaml")
    user.leave()
    home: Path = user.home
    return home


@pytest.fixture
def spoilt(template: Path, user: Any) -> Any:
    """A user whose home is a copy of the template, to be spoilt."""
    shutil.copytree(template, user.home)
    # the store has moved too, and is known where it is now; and the home goes on here
    assert inside(user, ["init", "--here"])[0] == 0
    user.job_file("name: after\nrun: echo\nresources: {accelerators: H100}\n")
    user.job_file("run: echo\nworkdir: .\nresources: {accelerators: H100}\n", "folder.yaml")
    return user


LOOK, ASK, PACK, TICK = ["jobs"], ["submit", "job.yaml"], ["submit", "folder.yaml"], ["tick"]


def _newer(home: Path) -> None:
    with contextlib.closing(sqlite3.connect(home / "state.db")) as db, db:
        db.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")


def _random(home: Path) -> None:
    (home / "state.db").write_bytes(random.Random(1).randbytes(20_000))


def _truncated(home: Path) -> None:
    os.truncate(home / "state.db", 9000)


def _scribbled(home: Path) -> None:
    with (home / "state.db").open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(2).randbytes(60_000))


def _folder(home: Path) -> None:
    (home / "state.db").unlink()
    (home / "state.db").mkdir()


def _locked_out(home: Path) -> None:
    (home / "submit.lock").unlink()
    (home / "submit.lock").mkdir()


def _short_key(home: Path) -> None:
    (home / "key").write_bytes(b"short")


def _toml(text: str) -> Callable[[Path], None]:
    def write(home: Path) -> None:
        (home / "freegpu.toml").write_bytes(text.encode("latin-1"))

    return write


@dataclass(frozen=True, kw_only=True)
class Spoilt:
    """One way in which a home is not usable."""

    name: str
    error: str
    says: tuple[str, ...]
    hint: str = ""
    spoil: Callable[[Path], object] = lambda home: None
    lines: tuple[list[str], ...] = (LOOK, ASK)
    env: Mapping[str, str] | None = None


LOOPBACK = '[platforms.blue]\nadapter = "freegpu.testing.loopback:LoopbackAdapter"\n'
HOMES = [
    Spoilt(name="ledger of a newer version", spoil=_newer, error="schema_version", says=("state.db", "999")),
    Spoilt(name="ledger of random bytes", spoil=_random, error="ledger_corrupt", says=("state.db",), hint="restore a copy"),
    Spoilt(name="ledger cut short", spoil=_truncated, error="ledger_corrupt", says=("state.db",), hint="restore a copy"),
    Spoilt(name="ledger with damaged pages", spoil=_scribbled, error="ledger_corrupt", says=("state.db",), hint="restore a copy"),
    Spoilt(name="ledger is a folder", spoil=_folder, error="ledger", says=("state.db is a folder",), hint="FREEGPU_DB"),
    Spoilt(name="ledger in no folder", env={"FREEGPU_DB": "no/where.db"}, error="ledger", says=("no/where.db", "no folder"), hint="mkdir -p"),
    Spoilt(name="ledger of no kind", env={"FREEGPU_DB": "mysql://me:hunter2@x/y"}, error="config", says=("mysql://me:***@x/y",), hint="postgresql://"),
    Spoilt(name="store that vanished", spoil=lambda home: shutil.rmtree(home / "store"), error="store", lines=(PACK, TICK), says=("/store is gone",), hint="mount or restore"),
    Spoilt(name="store without its mark", spoil=lambda home: (home / "store" / "freegpu.json").unlink(), error="store", lines=(PACK, TICK), says=("/store is gone",)),
    Spoilt(name="store in no folder", env={"FREEGPU_STORE": "no/such/store"}, error="store", lines=(PACK, TICK), says=("no/such is not there",), hint="mount it"),
    Spoilt(name="store is a file", env={"FREEGPU_STORE": "job.yaml"}, error="store", lines=(PACK, TICK), says=("job.yaml",)),
    Spoilt(name="store of no kind", env={"FREEGPU_STORE": "gopher://x"}, error="config", lines=(PACK, TICK), says=("gopher", "FREEGPU_STORE")),
    Spoilt(name="key cut short", spoil=_short_key, error="config", lines=(TICK,), says=("/key", "5 bytes instead of 32"), hint="backup"),
    Spoilt(name="file for the secrets", spoil=lambda home: (home / "secrets").write_text(""), error="config", lines=([*ASK, "--set", "secrets.TOKEN=abc"],), says=("/secrets",)),
    Spoilt(name="folder for the lock", spoil=_locked_out, error="config", lines=(ASK,), says=("submit.lock",)),
    Spoilt(name="home in a file", env={"FREEGPU_HOME": "job.yaml"}, error="config", says=("job.yaml cannot be written",), hint="FREEGPU_HOME"),
    Spoilt(name="home that cannot be made", env={"FREEGPU_HOME": "/proc/freegpu"}, error="config", says=("/proc/freegpu cannot be written",), hint="FREEGPU_HOME"),
    Spoilt(name="settings that are no TOML", spoil=_toml("tick_s = = 3\n"), error="config", says=("freegpu.toml:1: not valid TOML",)),
    Spoilt(name="settings that are not UTF-8", spoil=_toml('\nstore = "\xff"\n'), error="config", says=("freegpu.toml:2: not UTF-8",)),
    Spoilt(name="setting that is not there", spoil=_toml("tik_s = 3\n"), error="config", says=("freegpu.toml:1", "did you mean tick_s?")),
    Spoilt(name="setting of a wrong type", spoil=_toml('tick_s = "x"\n'), error="config", says=("freegpu.toml:1", "tick_s must be a number"), hint="tick_s = 5"),
    Spoilt(name="setting out of range", spoil=_toml("tick_s = -1\n"), error="config", says=("freegpu.toml:1", "between 0.05 and 3600")),
    Spoilt(name="platform that is not there", spoil=_toml("[platforms.locl]\n"), error="unknown_adapter", lines=(TICK,), says=("'locl'",), hint="did you mean local?"),
    Spoilt(name="option that is not there", spoil=_toml(f"{LOOPBACK}session_limit = 3\n"), error="config", lines=(TICK,), says=("platform blue", "'session_limit'"), hint="session_limit_s"),
    Spoilt(name="adapter that is not installed", spoil=_toml('[platforms.x]\nadapter = "no.such:Thing"\n'), error="unknown_adapter", lines=(TICK,), says=("no.such:Thing cannot be loaded",)),
]  # fmt: skip


@pytest.mark.parametrize("case", HOMES, ids=lambda case: case.name)
def test_a_home_that_cannot_be_used_is_said_once_and_left_as_it_is(
    case: Spoilt, spoilt: Any, template: Path
) -> None:
    """One sentence, its hint and its exit code; the ledger's bytes are not touched, and the job is still in it."""
    case.spoil(spoilt.home)
    ledger = spoilt.home / "state.db"
    damaged = case.spoil in (_newer, _random, _truncated, _scribbled)
    before = ledger.read_bytes() if damaged else b""
    for words in case.lines:
        refused(spoilt, words, case.error, case.says, case.hint, case.env)
    if damaged:
        assert ledger.read_bytes() == before
    elif case.spoil is not _folder:
        assert [row[:2] for row in rows(spoilt.home)] == [row[:2] for row in rows(template)]


def test_a_store_of_another_home_is_refused_by_name(spoilt: Any, tmp_path: Path) -> None:
    """Two homes cannot share a store; whose it is and who set it is said, and the first one keeps it."""
    assert inside(spoilt, ["init"], {"FREEGPU_STORE": str(tmp_path / "store")})[0] == 0
    other = {"FREEGPU_HOME": str(tmp_path / "other"), "FREEGPU_STORE": str(tmp_path / "store")}
    for words in (["init"], PACK, ASK):
        refused(spoilt, words, "foreign_store", ("belongs to home h-",), "FREEGPU_STORE", other)
    assert spoilt.types("jobs", "--json", env=other).json["data"]["jobs"] == []
    assert inside(spoilt, PACK, {"FREEGPU_STORE": str(tmp_path / "store")})[0] == 0


def test_a_home_whose_ledger_was_lost_does_not_begin_anew_in_the_old_store(spoilt: Any) -> None:
    """The store holds the checkpoints of the ledger that is gone: it is left alone, and the hint says why."""
    (spoilt.home / "state.db").unlink()
    refused(spoilt, TICK, "foreign_store", ("belongs to home h-",), "ledger of this home was lost")
    assert (spoilt.home / "store" / "freegpu.json").exists()


@contextlib.contextmanager
def unchangeable(path: Path) -> Iterator[None]:
    """A file or folder that even root cannot write."""
    if subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode:
        pytest.skip("chattr +i does not work here, and permission bits do not hold root")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)


def test_a_read_only_ledger_is_named_and_a_read_only_home_too(spoilt: Any, template: Path) -> None:
    """The job is still there when it can be written again."""
    with unchangeable(spoilt.home / "state.db"):
        refused(spoilt, ASK, "ledger", ("state.db is read-only",), "FREEGPU_DB")
    with unchangeable(spoilt.home):
        for words in (LOOK, ASK):
            says = (f"home {spoilt.home} cannot be written",)
            refused(spoilt, words, "config", says, "FREEGPU_HOME")
    assert [row[:2] for row in rows(spoilt.home)] == [row[:2] for row in rows(template)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_refuses_new_jobs_and_loses_none(
    spoilt: Any, template: Path, small_disk: Path
) -> None:
    """submit says that there is no space; the old jobs can be looked at; with space again it goes on."""
    home = small_disk / "home"
    shutil.copytree(template, home)
    env = {"FREEGPU_HOME": str(home)}
    assert spoilt.types("init", env=env).code == 0
    with (small_disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    for words in (ASK, PACK):
        ran = spoilt.types(*words, env=env)
        assert ran.code in (CODES["ledger"], CODES["workdir"], CODES["config"]), ran
        assert "space" in told(ran.err)[0], ran
        assert "space" in told(ran.err)[1], ran
    looked = spoilt.types("jobs", env=env)
    assert looked.code == 0, looked
    assert "before" in looked.out
    (small_disk / "fill").unlink()
    assert spoilt.types(*ASK, env=env).code == 0
    assert [row[1] for row in rows(home)] == ["before", "after"]


def test_a_limit_on_file_sizes_is_like_a_full_disk(spoilt: Any, template: Path) -> None:
    """`ulimit -f` stops the write in its middle: one sentence, and the ledger is whole."""
    done = subprocess.run(
        spoilt.argv(*ASK),
        cwd=spoilt.desk,
        env=spoilt.env,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == CODES["ledger"], done
    assert "state.db" in told(done.stderr)[0]
    assert [row[:2] for row in rows(spoilt.home)] == [row[:2] for row in rows(template)]
    assert inside(spoilt, ASK)[0] == 0

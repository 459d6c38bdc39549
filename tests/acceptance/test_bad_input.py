"""What a user may get wrong: one clear sentence each, the documented exit code, and nothing is lost.

Every case is typed as a person would and with --json. The jobs that were there before are there afterwards,
unchanged. Most commands run in this process, which is quicker; some of each kind run in one of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.cli.text import safe

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
#: name of an error -> its exit code, as documented
CODES = {
    name: int(code)
    for code, name in re.findall(
        r"^\| (\d+) \| `(\w+)`",
        (ROOT / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
} | {"os": 1, "internal": 1}


def inside(
    user: Any, words: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that runs in this process: ten times as quick."""
    out, err = io.StringIO(), io.StringIO()
    environ = {**user.env, **(env or {})}
    call = Call(out=Output(stdout=out, stderr=err, environ=environ), environ=environ)
    with contextlib.chdir(user.desk):
        code = run(words, call=call)
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return code, out.getvalue(), err.getvalue()


def told(err: str) -> tuple[str, str]:
    """The one sentence of a failure and its hint; nothing else may be there."""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("error: "), err
    assert lines[1].startswith("hint: "), err
    return lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


def refused(
    user: Any,
    words: Sequence[str],
    error: str,
    says: Sequence[str],
    hint: str = "",
    env: Mapping[str, str] | None = None,
) -> None:
    """The command fails with this class of error, as a sentence and as an envelope, and says all of this."""
    code, out, err = inside(user, words, env)
    assert (code, out) == (CODES[error], ""), out + err
    sentence, advice = told(err)
    for part in says:
        assert part in sentence, err
    assert not sentence.endswith("."), err
    assert hint in advice, err
    code, out, _ = inside(user, [*words, "--json"], env)
    document = json.loads(out)
    assert code == document["exit_code"] == CODES[error]
    assert document["status"] == "error"
    assert [e["code"] for e in document["errors"]] == [error]
    assert safe(document["errors"][0]["message"]) == sentence
    assert safe(document["errors"][0]["hint"]) == advice


def rows(home: Path) -> list[tuple[Any, ...]]:
    """What must not be lost: every job, what it is and how it stands."""
    with contextlib.closing(sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True)) as db:
        return db.execute(
            "SELECT id, name, state, spec, result_key, attempts FROM jobs ORDER BY seq"
        ).fetchall()


@pytest.fixture(scope="module")
def desk(make_user: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A user with one job that runs, some that ended, and forty that wait for a card nobody has here."""
    user = make_user(tmp_path_factory.mktemp("bad"))
    user.settings()
    user.job_file("name: done\nrun: echo no outputs\n", "done.yaml")
    user.job_file(
        "name: out\nrun: echo 1 > $FREEGPU_OUTPUT_DIR/a.txt; echo 2 > $FREEGPU_OUTPUT_DIR/b.txt\n",
        "out.yaml",
    )
    user.job_file(f"name: held\nrun: while ! [ -e {user.gate} ]; do sleep 0.2; done\n", "held.yaml")
    axis = ", ".join(map(str, range(40)))
    user.job_file(
        f"name: wait\nrun: echo\nresources: {{accelerators: H100}}\nfreegpu: {{matrix: {{N: [{axis}]}}}}\n",
        "wait.yaml",
    )
    user.ok("submit", "wait.yaml")
    user.ok("submit", "done.yaml", "--wait")
    user.ok("submit", "out.yaml", "--wait")
    user.ok("submit", "held.yaml")
    user.until(lambda: user.job("held")["attempts"])
    yield user
    user.leave()


# --- job specs -------------------------------------------------------------------------------------------

BOMB = "".join(
    f"{name}: &{name} [{', '.join([value] * 9)}]\n"
    for name, value in zip("abcdefg", ("x", "*a", "*b", "*c", "*d", "*e", "*f"), strict=True)
)
NINES = ", ".join(map(str, range(100)))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that a user gets wrong."""

    name: str
    says: tuple[str, ...]
    spec: str | bytes = "run: echo\n"
    more: tuple[str, ...] = ()
    file: str = "bad.yaml"
    error: str = "job_spec"
    hint: str = ""
    words: tuple[str, ...] = ()


SPECS = [
    Case(
        name="misspelt field",
        spec="run: echo\nfregpu: {priority: 1}\n",
        says=("bad.yaml:2", "'fregpu'", "did you mean freegpu?"),
        hint="a job spec takes name, ",
    ),
    Case(
        name="misspelt field of a section",
        spec="run: echo\nfreegpu:\n  priorty: 1\n",
        says=("bad.yaml:3", "'priorty' in freegpu", "did you mean priority?"),
    ),
    Case(
        name="field of another section",
        spec="run: echo\npriority: 1\n",
        says=("bad.yaml:2", "did you mean freegpu.priority?"),
    ),
    Case(
        name="wrong type",
        spec="run: echo\nfreegpu: {priority: high}\n",
        says=("bad.yaml:2", "freegpu.priority", "whole number from -100 to 100", "'high'"),
        hint="for example priority: 10",
    ),
    Case(
        name="a list for a text",
        spec="run: [a]\n",
        says=("bad.yaml:1", "run must be a shell script, found a list"),
        hint='for example run: "python train.py"',
    ),
    Case(
        name="YAML bomb",
        spec=f"run: echo\n{BOMB}",
        says=("bad.yaml:6", "more than 50,000 values"),
        hint="file",
    ),
    Case(name="brackets", spec="[" * 100_000, says=("bad.yaml:1",)),
    Case(
        name="duplicate key",
        spec="run: echo\nname: a\nname: b\n",
        says=("bad.yaml:3", "'name' stands twice (first on line 2)"),
        hint="take one of them out",
    ),
    Case(
        name="Python tag",
        spec="run: !!python/object/apply:os.system ['touch owned']\n",
        says=("bad.yaml:1", "!!python/object/apply:os.system is not allowed"),
        hint="leave the tag out",
    ),
    Case(
        name="workdir that is not there",
        spec="run: echo\nworkdir: ./nowhere\n",
        says=("bad.yaml:2", "workdir", "/desk/nowhere does not exist"),
        hint="workdir: .",
    ),
    Case(
        name="empty run",
        spec="name: a\nrun: '  '\n",
        says=("bad.yaml:2", "run", "empty"),
        hint="for example",
    ),
    Case(name="no run", spec="name: a\n", says=("bad.yaml:1", "run is missing"), hint="python"),
    Case(name="empty file", spec="", says=("bad.yaml:1", "empty"), hint="run: echo hello"),
    Case(
        name="matrix of 10,000",
        spec=f"run: echo\nfreegpu:\n  matrix:\n    A: [{NINES}]\n    B: [{NINES}]\n",
        says=("bad.yaml:4", "freegpu.matrix makes 10,000 jobs (100 x 100)", "1,000"),
        hint="split it",
    ),
    Case(name="bracket left open", spec="run: [echo\n", says=("bad.yaml:2", "not valid YAML")),
    Case(
        name="waits for itself",
        spec="name: a\nrun: echo\nfreegpu: {after: [a]}\n",
        says=("bad.yaml:3", "a waits for itself"),
    ),
    Case(
        name="waits for nobody",
        spec="name: a\nrun: echo\nfreegpu: {after: [donne]}\n",
        says=("'a' waits for 'donne'",),
        error="job_not_found",
    ),
    Case(name="not UTF-8", spec=b"run: echo\nname: caf\xe9\n", says=("bad.yaml:2", "0xe9")),
    Case(name="NUL", spec=b"run: 'a\0'\n", says=("bad.yaml:1", "U+0000")),
    Case(
        name="missing file",
        file="donne.yaml",
        spec=b"",
        words=("submit", "donne.yaml"),
        says=("donne.yaml: there is no such file",),
        hint="did you mean done.yaml?",
    ),
    Case(name="a folder", words=("submit", "."), says=(".: it is a folder, not a job spec",)),
    Case(
        name="name with a line break",
        spec='name: "a\\nb"\nrun: echo\n',
        says=("bad.yaml:1", "name", "U+000A"),
        hint="for example name:",
    ),
    Case(
        name="name with an escape",
        spec='name: "a\\eb"\nrun: echo\n',
        says=("bad.yaml:1", "U+001B"),
    ),
    Case(
        name="platform that is not there",
        spec="run: echo\nfreegpu: {platforms: [locl]}\n",
        says=("bad.yaml:2", "no platform 'locl'", "did you mean local?"),
    ),
    Case(
        name="card that is not there",
        spec="run: echo\nresources: {accelerators: T5}\n",
        says=("bad.yaml:2", "'T5'", "did you mean T4?"),
    ),
    Case(
        name="checkpoints outside",
        spec="run: echo\nfreegpu: {checkpoint: {path: ../x}}\n",
        says=("bad.yaml:2", "checkpoint.path", "leaves the working folder"),
    ),
    Case(name="set without =", more=("--set", "x"), says=("--set: 'x' is not KEY=VALUE",)),
    Case(
        name="set of nothing",
        more=("--set", "freegpu.prio=3"),
        says=("--set freegpu.prio", "did you mean priority?"),
    ),
    Case(
        name="set of a wrong type",
        more=("--set", "freegpu.priority=x"),
        says=("--set freegpu.priority", "whole number"),
    ),
    Case(
        name="secret left open",
        spec="run: echo\nsecrets: {NO_SUCH_TOKEN: null}\n",
        says=("bad.yaml:2", "NO_SUCH_TOKEN is not in the environment"),
        hint="--secret NO_SUCH_TOKEN=VALUE",
    ),
]
JOBS = [
    *(
        Case(name=f"{command} nobody", words=(command, "nobody"), says=("'nobody'",), error="job_not_found", hint="freegpu jobs")
        for command in ("show", "why", "logs", "cancel", "retry", "interrupt", "pull")
    ),
    Case(name="near a name", words=("show", "donne"), says=("'donne'",), error="job_not_found", hint="'done'"),
    Case(name="control characters", words=("show", "\x1b]0;x\x07"), says=("\\x1b",), error="job_not_found"),
    Case(name="half a character", words=("show", "\udcff"), says=("\\udcff",), error="job_not_found"),
    Case(name="attempt 99", words=("logs", "done", "--attempt", "99"), says=("done", "1 attempt", "99"), error="not_ready", hint="freegpu show"),
    Case(name="no outputs", words=("pull", "done", "x"), says=("done", "no outputs"), error="not_ready"),
    Case(name="retry while it runs", words=("retry", "held"), says=("held", "is active"), error="invalid_transition"),
    Case(name="retry of a success", words=("retry", "done"), says=("done", "is succeeded"), error="invalid_transition"),
    Case(name="cancel of what has ended", words=("cancel", "held", "done"), says=("done", "is over (succeeded)"), error="invalid_transition"),
    Case(name="interrupt of what waits", words=("interrupt", "wait-n7"), says=("wait-n7", "is pending"), error="not_ready"),
    Case(name="no such command", words=("sumbit", "x"), says=("did you mean submit?",), error="usage", hint="--help"),
    Case(name="no such option", words=("jobs", "--stat", "failed"), says=("--stat",), error="usage", hint="freegpu jobs --help"),
    Case(name="no such state", words=("jobs", "--state", "lost"), says=("'lost'",), error="usage"),
    Case(name="attempt 0", words=("logs", "done", "--attempt", "0"), says=("0",), error="usage"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*SPECS, *JOBS], ids=lambda case: case.name)
def test_what_cannot_be_meant_is_refused_in_one_sentence_and_nothing_is_lost(
    case: Case, desk: Any
) -> None:
    """What, where and what to do next; the documented exit code, also in the envelope; the jobs stay as they are."""
    path = desk.desk / "bad.yaml"
    path.write_bytes(case.spec if isinstance(case.spec, bytes) else case.spec.encode())
    before = rows(desk.home)
    try:
        words = case.words or ("submit", "bad.yaml", *case.more)
        refused(desk, words, case.error, case.says, case.hint)
    finally:
        path.unlink()
    assert rows(desk.home) == before
    assert not (desk.desk / "owned").exists()


def test_the_same_is_said_by_a_process_of_its_own(desk: Any) -> None:
    """The exit code is the process's; stdout stays empty."""
    for words, code, says in (
        (["submit", "nowhere.yaml"], 11, "nowhere.yaml: there is no such file"),
        (["show", "nobody"], 23, "no job has the id or name 'nobody'"),
        (["logs"], 2, "missing argument 'JOB'"),
        (["submit", "done.yaml", "--set", "nme=x"], 11, "did you mean name?"),
    ):
        ran = desk.types(*words)
        assert (ran.code, ran.out) == (code, ""), ran
        assert says in told(ran.err)[0]


def test_a_prefix_that_fits_several_jobs_lists_them(desk: Any) -> None:
    """The candidates with names and states; a longer prefix that fits one job is enough."""
    ids = [row[0] for row in rows(desk.home)]
    first = next(one for one in ids if sum(other[0] == one[0] for other in ids) > 1)
    refused(
        desk,
        ["show", first[0]],
        "job_not_found",
        ("jobs are meant by", first, "pending"),
        "letters",
    )
    short = next(
        first[:n]
        for n in range(2, len(first) + 1)
        if sum(i.startswith(first[:n]) for i in ids) == 1
    )
    code, out, _ = inside(desk, ["show", short, "--json"])
    assert code == 0
    assert json.loads(out)["data"]["job"]["id"] == first


def test_pull_overwrites_what_differs_only_by_force(desk: Any) -> None:
    """A changed file stops the command before the first byte is written; an equal one does not."""
    into = desk.desk / "pulled"
    assert inside(desk, ["pull", "out", "pulled"])[0] == 0
    assert inside(desk, ["pull", "out", "pulled"])[0] == 0
    (into / "b.txt").write_text("mine\n")
    (into / "a.txt").unlink()
    refused(
        desk, ["pull", "out", "pulled"], "config", ("pulled/b.txt is there already",), "--force"
    )
    assert (into / "b.txt").read_text() == "mine\n"
    assert sorted(path.name for path in into.iterdir()) == ["b.txt"]
    assert inside(desk, ["pull", "out", "pulled", "--force"])[0] == 0
    assert (into / "b.txt").read_text() == "2\n"


def test_gc_stands_back_while_an_orchestrator_is_at_work(desk: Any) -> None:
    """gc and tick say who it is; --dry-run looks all the same; nothing is deleted."""
    before = rows(desk.home)
    daemon = desk.starts("up")
    try:
        desk.until(lambda: inside(desk, ["tick"])[0] == CODES["ledger_busy"], 20)
        for command in ("gc", "tick", "up"):
            refused(desk, [command], "ledger_busy", (f"process {daemon.pid} (freegpu up",))
        assert inside(desk, ["gc", "--dry-run"])[0] == 0
    finally:
        daemon.terminate()
        daemon.communicate(timeout=20)
    assert daemon.returncode == 0
    assert rows(desk.home) == before


# --- homes, ledgers and stores ---------------------------------------------------------------------------


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
    assert inside(user, ["init"])[0] == 0  # the store has moved too, and is known where it is now
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
    spoil: Callable[[Path], None] = lambda home: None
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
    Spoilt(name="folder for the lock", spoil=lambda home: [(home / "submit.lock").unlink(), (home / "submit.lock").mkdir()] and None, error="config", lines=(ASK,), says=("submit.lock",)),
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

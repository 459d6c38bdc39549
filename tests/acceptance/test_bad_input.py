"""What a user may get wrong: one clear sentence each, the documented exit code, and nothing is lost.

Every case is typed as a person would and with --json. The jobs that were there before are there afterwards,
unchanged. Most commands run in this process, which is quicker; some of each kind run in one of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from freegpu.orchestrator.home import current_holder, orchestrator_lock
from tests.acceptance.typed import CODES, inside, refused, rows, told

pytestmark = pytest.mark.slow


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
    *(
        Case(name=f"{word} of {name}", words=(*command, name), says=(repr(name)[1:-1],), error=error, hint=hint)
        for name in ("nobody", "训练", "\udcff")
        for word, command, error, hint in (
            ("results", ("results",), "job_not_found", "freegpu jobs"),
            ("results --csv", ("results", "--csv"), "job_not_found", "freegpu jobs"),
            ("why --now", ("why", "--now"), "job_not_found", "freegpu jobs"),
            ("cards", ("cards",), "usage", "freegpu cards --help"),
            ("plan", ("plan",), "job_spec", ".yaml"),
        )
    ),
    *(
        Case(name=" ".join(words), words=words, says=(words[1], words[-1]), error="usage", hint=f"freegpu {words[0]} --help")
        for words in (
            ("report", "--weeks", "-1"), ("report", "--weeks", "0"), ("report", "--weeks", "1.5"), ("report", "--weeks", "9" * 30),
            ("simulate", "--weeks", "-1"), ("simulate", "--weeks", "27"), ("simulate", "--runs", "0"), ("simulate", "--goal", "x"),
            ("plan", "--runs", "-1"), ("cards", "--workload", "x"),
        )
    ),
    Case(name="no such column", words=("results", "wait", "--sort", "甲"), says=("'甲'", "known: N"), error="usage", hint="freegpu results --help"),
    Case(name="--csv=file", words=("results", "wait", "--csv=/nowhere/x.csv"), says=("--csv",), error="usage", hint="freegpu results --help"),
    Case(name="a file for --csv", words=("results", "wait", "--csv", "/nowhere/x.csv"), says=("/nowhere/x.csv",), error="usage"),
    Case(name="why of a matrix", words=("why", "wait"), says=("matrix of 40 jobs",), error="job_not_found", hint="freegpu results wait"),
    Case(name="plan after nobody", spec="run: echo\nfreegpu: {after: [nobody]}\n", words=("plan", "bad.yaml"), says=("'nobody'",), error="job_not_found"),
    Case(name="plan of a folder", words=("plan", "."), says=("it is a folder, not a job spec",), error="job_spec"),
    Case(name="plan of Latin-1", spec="name: \xe9\n".encode("latin-1"), words=("plan", "bad.yaml"), says=("bad.yaml:1", "0xe9 is not UTF-8"), error="job_spec"),
    Case(name="plan of nonsense", spec=":::{[", words=("plan", "bad.yaml"), says=("bad.yaml:1", "a mapping of fields"), error="job_spec"),
    Case(name="plan of nothing", spec="", words=("plan", "bad.yaml"), says=("bad.yaml:1", "the file is empty"), error="job_spec"),
    Case(name="plan of an empty axis", spec="run: echo\nfreegpu: {matrix: {LR: []}}\n", words=("plan", "bad.yaml"), says=("bad.yaml:2", "freegpu.matrix.LR", "an empty list"), error="job_spec"),
    Case(name="pull of a matrix that waits", words=("pull", "wait", "x"), says=("no job of wait has outputs yet: 40 pending",), error="not_ready", hint="freegpu results wait"),
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


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_a_pipe_that_nobody_writes_into_is_an_empty_file(command: str, desk: Any) -> None:
    """It would hold the command up for ever; one with a writer is read to its end, as from `<(...)`."""
    pipe = desk.desk / "pipe.yaml"
    os.mkfifo(pipe)
    try:
        refused(desk, [command, "pipe.yaml"], "job_spec", ("pipe.yaml:1: the file is empty",))
    finally:
        pipe.unlink()
    reads, writes = os.pipe()
    try:
        os.write(writes, b"name: piped\nrun: echo\n")
        os.close(writes)
        code, out, err = inside(desk, ["plan", f"/dev/fd/{reads}", "--runs", "2"])
    finally:
        os.close(reads)
    assert (code, "piped" in out) == (0, True), err


@pytest.mark.parametrize("words", [["report"], ["cards"], ["results", "wait", "--csv"]])
def test_a_full_disk_behind_stdout_is_told_and_is_a_failure(words: list[str], desk: Any) -> None:
    """A table that was cut off in the middle must not look like a whole one."""
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "freegpu", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=desk.env,
            cwd=desk.desk,
            timeout=120,
        )
    assert ran.returncode == CODES["os"]
    assert told(ran.stderr) == (
        "no space left on device: standard output",
        "free some space there, or write to another place",
    )


def test_the_same_is_said_by_a_process_of_its_own(desk: Any) -> None:
    """The exit code is the process's; stdout stays empty."""
    for words, code, says in (
        (["submit", "nowhere.yaml"], 11, "nowhere.yaml: there is no such file"),
        (["show", "nobody"], 23, "no job has the id or name 'nobody'"),
        (["logs"], 2, "missing argument 'JOB'"),
        (["submit", "done.yaml", "--set", "nme=x"], 11, "did you mean name?"),
        (["plan", "done.yaml", "--set"], 2, "option '--set' requires an argument"),
    ):
        ran = desk.types(*words)
        assert (ran.code, ran.out) == (code, ""), ran
        sentence, hint = told(ran.err)
        assert says in sentence
        assert code != 2 or f"`freegpu {words[0]} --help`" in hint


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


def test_up_waits_for_a_command_in_the_middle_of_its_tick(desk: Any) -> None:
    """Only another daemon sends it away: a command lets go in a moment."""
    with orchestrator_lock(desk.home, command="freegpu tick", since="now") as holder:
        assert holder is None
        daemon = desk.starts("up")
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(1.5)
        assert daemon.poll() is None
    try:
        desk.until(lambda: "freegpu up" in str(current_holder(desk.home)), 20)
    finally:
        daemon.terminate()
        daemon.communicate(timeout=20)
    assert daemon.returncode == 0


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

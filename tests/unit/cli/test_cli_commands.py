"""Each command as a person uses it: what it asks of the workspace, what it prints where, how it exits."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freegpu.cli import jobs as jobs_command
from freegpu.cli import plan as plan_page
from freegpu.errors import ConfigError, NotReadyError
from freegpu.jobs.lifecycle import JobState
from freegpu.orchestrator.views import Check, LogChunk, Ticked
from tests.unit.cli.conftest import AHEAD

GOLDEN = Path(__file__).parents[2] / "golden" / "cli"


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Past events are shown in local time; here that is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("status", ["status"]),
        ("show", ["show", "k3x9f2"]),
        ("why", ["why", "k3x9f2"]),
        ("why-now", ["why", "k3x9f2", "--now"]),
        ("results", ["results", "sweep", "--sort", "loss"]),
        ("results-csv", ["results", "sweep", "--csv", "--sort", "-loss"]),
        ("cards", ["cards"]),
        ("plan", ["plan", "job.yaml"]),
        ("simulate", ["simulate"]),
        ("report", ["report", "--weeks", "2"]),
        ("cards-one", ["cards", "l4", "--workload", "train-amp-cnn"]),
        ("checkpoints", ["checkpoints", "k3x9f2"]),
        ("submit-dry-run", ["submit", "job.yaml", "--dry-run"]),
    ],
)
def test_what_a_person_reads_is_the_golden_text(
    name: str, argv: list[str], shell: Callable[..., Any]
) -> None:
    """UPDATE_GOLDEN=1 writes the files anew; look at the difference before committing it."""
    answer = shell(*argv)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(answer.out, encoding="utf-8")
    assert answer.code == 0
    assert answer.out == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("room", [40, 80, 200])
def test_the_picture_of_a_forecast_is_as_wide_as_the_terminal(room: int) -> None:
    """No line is longer, and on a wide terminal the stretch of time takes what there is."""
    lines = plan_page._picture(AHEAD, room)
    assert max(map(len, lines[:-1])) <= room
    assert max(map(len, lines[:-1])) >= min(room, plan_page.WIDEST) - 10
    assert lines[0].split()[0] == "now"
    assert lines[0].endswith("7 h")
    assert set(lines[1].split("|")[1]) == {"="}, "one session fills the time until all is done"


def test_stdout_is_data_and_stderr_is_talk(shell: Callable[..., Any]) -> None:
    """`$(freegpu submit job.yaml | cut -d' ' -f1)` is the id of the job."""
    answer = shell("submit", "job.yaml", "--set", "LR=1", "--set", "freegpu.priority=3")
    assert answer.out == "k3x9f2  mnist  on kaggle T4\n"
    assert "note: disk_size has no meaning here" in answer.err
    assert "packed 3 files, 1.2 kB" in answer.err


def test_submit_passes_changes_and_secrets_and_ticks_once(
    shell: Callable[..., Any], fake: Any
) -> None:
    """A secret without a value is the environment's, so that it need not stand on a command line."""
    shell(
        "submit", "job.yaml", "--set", "LR=1", "--secret", "A=x=y", "--secret", "TOKEN",
        environ={"TOKEN": "t0k"},
    )  # fmt: skip
    assert ("submit", "job.yaml", ("LR=1", "secrets.A=x=y", "secrets.TOKEN=t0k")) in fake.asked
    assert [asked for asked in fake.asked if asked[0] == "tick"] == [("tick", True)]


def test_a_dry_run_neither_submits_nor_ticks(shell: Callable[..., Any], fake: Any) -> None:
    """It changes nothing."""
    shell("submit", "job.yaml", "--dry-run")
    assert {asked[0] for asked in fake.asked} == {"open", "dry_run"}


def test_submit_says_who_starts_the_job_if_it_is_not_us(
    shell: Callable[..., Any], fake: Any
) -> None:
    """With a daemon, submitting is all there is to do."""
    fake.answers["tick"] = Ticked(did=False, holder="process 7 (freegpu up, since noon)")
    assert "process 7 (freegpu up, since noon) starts what" in shell("submit", "j").err


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 32), ("cancelled", 32)])
def test_submit_wait_streams_the_output_and_exits_as_the_job_did(
    state: str, code: int, shell: Callable[..., Any], fake: Any
) -> None:
    """0 if it succeeded, 32 otherwise, with the reason."""
    detail = fake.show("k3")
    ended = dataclasses.replace(detail.job, state=state, why="exit code 3")
    fake.answers["show"] = dataclasses.replace(detail, job=ended)
    answer = shell("submit", "job.yaml", "--wait")
    assert answer.code == code
    assert answer.out.endswith("step 1\nstep 2 \udcff\ndone\n")
    verb = "was" if state == "cancelled" else "has"
    assert (f"error: mnist (k3x9f2) {verb} {state}: exit code 3" in answer.err) == (code == 32)
    document = shell("submit", "job.yaml", "--wait", "--json").envelope
    assert document["exit_code"] == code
    assert document["data"]["jobs"][0]["state"] == state
    assert "bundle" in document["data"]
    assert [e["code"] for e in document["errors"]] == (["job_failed"] if code else [])


def test_submit_wait_of_several_jobs_tells_each_change(
    shell: Callable[..., Any], fake: Any
) -> None:
    """Their outputs would be a jumble; their states are not."""
    usual = fake.submit("j", environ={})
    first = usual.jobs[0]
    both = (first, dataclasses.replace(first, id="q81mzt", name="mnist-2"))
    fake.answers["submit"] = dataclasses.replace(usual, jobs=both)
    view = fake.show("k3").job
    views = (
        dataclasses.replace(view, state="succeeded"),
        dataclasses.replace(view, id="q81mzt", name="mnist-2", state="failed", why="exit 1"),
    )
    fake.answers["jobs"] = fake.answers["wait"] = views
    answer = shell("submit", "j", "--wait")
    assert ("wait", ("k3x9f2", "q81mzt")) in fake.asked
    assert answer.code == 32
    assert "mnist-2 (q81mzt): failed on kaggle T4" in answer.err
    assert "error: mnist-2 (q81mzt) has failed: exit 1" in answer.err


def test_logs_marks_every_hop_on_stderr_and_keeps_stdout_clean(shell: Callable[..., Any]) -> None:
    """The job's bytes alone on stdout."""
    answer = shell("logs", "k3x9f2")
    assert answer.out == "step 1\nstep 2 \udcff\ndone\n"
    assert answer.err.splitlines() == [
        "--- attempt 1 on swift A100 ---",
        "--- attempt 2 on kaggle T4 ---",
    ]


def test_logs_follow_in_json_is_a_line_a_piece_and_the_envelope_last(
    shell: Callable[..., Any], fake: Any
) -> None:
    """A program may read line by line."""
    import json

    answer = shell("logs", "k3", "-f", "--json", "--attempt", "2")
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert [line.get("event") for line in lines] == ["log", "log", "log", None]
    assert lines[0] == {
        "freegpu_json": 1,
        "event": "log",
        "attempt": "k3x9f2-1",
        "platform": "swift",
        "card": "A100",
        "first": True,
        "text": "step 1\n",
    }
    assert lines[-1]["command"] == "logs"
    assert ("log_chunks", "k3x9f2", 2, True) in fake.asked


def test_logs_follow_stays_with_the_job_that_it_began_with(
    shell: Callable[..., Any], fake: Any
) -> None:
    """A name is resolved once: a new job of the same name does not take over."""
    shell("logs", "mnist", "-f")
    assert [a for a in fake.asked if a[0] == "log_chunks"] == [("log_chunks", "k3x9f2", None, True)]


def test_hostile_names_of_platforms_and_cards_are_neutralised(
    shell: Callable[..., Any], fake: Any
) -> None:
    """They come from agents and platforms."""
    fake.answers["log_chunks"] = (
        LogChunk(attempt="k-1", platform="x", card="\x1b]0;y\x07", data=b"", first=True),
    )
    assert "\x1b" not in shell("logs", "k").err


def test_jobs_asks_for_one_more_to_know_whether_there_are_more(
    shell: Callable[..., Any], fake: Any
) -> None:
    """And says how to see them."""
    view = fake.show("k").job
    fake.answers["jobs"] = tuple(dataclasses.replace(view, id=f"j{i}") for i in range(4))
    answer = shell("jobs", "--limit", "3", "--state", "active", "--state", "pending")
    assert ("jobs", [JobState.ACTIVE, JobState.PENDING], 4) in fake.asked
    assert [line.split()[0] for line in answer.out.splitlines()] == ["JOB", "j1", "j2", "j3"]
    assert "these are the newest 3" in answer.err
    assert shell("jobs", "--limit", "3", "--json").envelope["data"]["more"] is True
    shell("jobs", "--limit", "0")
    assert ("jobs", None, None) in fake.asked


def test_no_jobs_is_said_so(shell: Callable[..., Any], fake: Any) -> None:
    """An empty table would look like a mistake."""
    fake.answers["jobs"] = ()
    answer = shell("jobs")
    assert (answer.out, answer.err) == ("", "no jobs yet: freegpu submit job.yaml\n")


def test_the_states_that_can_be_asked_for_are_the_lifecycles() -> None:
    """The list is written out so that help needs no import; it must not fall behind."""
    assert set(jobs_command.STATES) == set(map(str, JobState))


def test_a_name_with_newlines_stays_on_its_line(shell: Callable[..., Any], fake: Any) -> None:
    """A table has one line a job, whatever a job is called."""
    view = fake.show("k").job
    fake.answers["jobs"] = (dataclasses.replace(view, name="evil\n\x1b[2Jname 训练"),)
    out = shell("jobs").out
    assert out.count("\n") == 2
    assert "\x1b" not in out
    assert "evil\\n\\x1b[2Jname 训练" in out


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        (["out", "--checkpoint"], (Path("out"), "latest", False)),
        (["--checkpoint", "2-1", "out"], (Path("out"), "2-1", False)),
        (["--force", "--checkpoint"], (None, "latest", True)),
    ],
)
def test_pull_brings_the_checkpoint_that_is_named(
    line: list[str], asked: tuple[Any, ...], shell: Callable[..., Any], fake: Any
) -> None:
    """Without a name the newest one; stdout lists the files, stderr says which one it was."""
    answer = shell("pull", "k3", *line)
    assert ("pull_checkpoint", "k3", *asked) in fake.asked
    assert answer.out.splitlines()[0].endswith("checkpoint-9/model.safetensors")
    assert "checkpoint 1-4 of attempt k3x9f2-1" in answer.err


def test_a_job_without_checkpoints_says_so(shell: Callable[..., Any], fake: Any) -> None:
    """An empty table would look like a failure."""
    fake.answers["checkpoints"] = dataclasses.replace(fake.checkpoints("k3"), checkpoints=())
    answer = shell("checkpoints", "k3")
    assert answer.out == ""
    assert "mnist (k3x9f2) has no checkpoints yet" in answer.err


def test_pull_goes_into_a_folder_named_after_the_job(shell: Callable[..., Any], fake: Any) -> None:
    """Unless one is named; --force is passed on."""
    shell("pull", "k3")
    assert ("pull", "k3", Path("k3x9f2"), False) in fake.asked
    shell("pull", "k3", "out/x", "--force")
    assert ("pull", "k3", Path("out/x"), True) in fake.asked


def test_partial_results_are_called_that(shell: Callable[..., Any], fake: Any) -> None:
    """Files of an unfinished job must not pass for its result."""
    pulled = fake.pull("k", Path("x"))
    job = dataclasses.replace(pulled.job, state="failed")
    fake.answers["pull"] = dataclasses.replace(pulled, partial=True, job=job)
    assert "the job is failed, this is not its result" in shell("pull", "k").err


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["cancel", "a", "b"], ("cancel", ("a", "b"))),
        (["retry", "a"], ("retry", "a", False)),
        (["retry", "a", "--from-scratch"], ("retry", "a", True)),
        (["interrupt", "a"], ("interrupt", "a")),
    ],
)
def test_decisions_are_recorded_first_and_then_sent_by_a_tick(
    argv: list[str], asked: tuple[Any, ...], shell: Callable[..., Any], fake: Any
) -> None:
    """If sending fails the decision still stands, and that is said."""
    fake.fails["tick"] = ConfigError("the store is away")
    answer = shell(*argv)
    assert [a[0] for a in fake.asked] == ["open", asked[0], "tick"]
    assert asked in fake.asked
    assert answer.code == 0
    assert answer.err == "note: the word is not sent yet: the store is away\n"


def test_tick_says_who_ticks_already(shell: Callable[..., Any], fake: Any) -> None:
    """Exit code 21, and nothing needs to be done."""
    fake.answers["tick"] = Ticked(did=False, holder="process 7 (freegpu up)")
    answer = shell("tick")
    assert answer.code == 21
    assert "error: process 7 (freegpu up) is the orchestrator" in answer.err


def test_doctor_exits_10_when_something_is_broken(shell: Callable[..., Any], fake: Any) -> None:
    """Information is no problem; every problem has its hint below."""
    fake.answers["doctor"] = (
        Check(name="local", ok=None, detail="no card now"),
        Check(name="store", ok=False, detail="does not answer", hint="mount it"),
    )
    answer = shell("doctor", "local")
    assert answer.code == 10
    assert ("doctor", "local") in fake.asked
    assert answer.out.splitlines()[0].startswith("information  local")
    assert "-> mount it" in answer.out
    assert answer.out.splitlines()[-1] == "1 problem"
    document = shell("doctor", "--json").envelope
    assert document["errors"][0]["message"] == "store: does not answer"


def test_doctor_works_when_nothing_else_does(
    shell: Callable[..., Any], fake: Any, tmp_path: Path
) -> None:
    """A settings file that is not one, a home that cannot be made: findings, not failures."""
    fake.fails["open"] = ConfigError("the home cannot be written", hint="mend it")
    answer = shell("doctor")
    assert answer.code == 10
    assert "problem      settings  the home cannot be written" in answer.out
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "freegpu.toml").write_text("stor = 1")
    assert "did you mean store?" in shell("doctor").out


def test_doctor_shows_every_setting_with_its_origin_and_no_password(
    shell: Callable[..., Any], fake: Any
) -> None:
    """What doctor prints may be pasted into an issue."""
    environ = {"FREEGPU_DB": "postgresql://me:s3cr3t@host/db"}
    detail = "cannot connect to postgresql://me:s3cr3t@host/db"
    fake.answers["doctor"] = (Check(name="ledger", ok=False, detail=detail),)
    for form in ([], ["--json"]):
        told = shell("doctor", *form, environ=environ)
        assert "s3cr3t" not in told.out + told.err
    answer = shell("doctor", environ=environ)
    assert "db    postgresql://me:***@host/db (from FREEGPU_DB)" in answer.out
    settings = shell("doctor", "--json", environ=environ).envelope["data"]["settings"]
    assert settings["db"] == {"value": "postgresql://me:***@host/db", "source": "FREEGPU_DB"}
    assert settings["poll_s"] == {"value": 1.0, "source": "default"}


def test_status_watch_looks_again_until_ctrl_c_which_is_no_failure(
    shell: Callable[..., Any], fake: Any
) -> None:
    """That is how a watch ends. Each look ticks if nobody else does."""
    looks = fake.status()
    count = iter(range(3))

    def status() -> Any:
        if next(count, None) is None:
            raise KeyboardInterrupt
        return looks

    fake.status = status
    answer = shell("status", "--watch", "--json")
    assert answer.code == 0
    assert len(answer.out.splitlines()) == 4
    assert sum(asked[0] == "tick_if_needed" for asked in fake.asked) == 4


def test_status_watch_on_a_terminal_draws_in_place(shell: Callable[..., Any], fake: Any) -> None:
    """And leaves the cursor as it found it."""
    looks = iter([fake.status()])

    def status() -> Any:
        for look in looks:
            return look
        raise KeyboardInterrupt

    fake.status = status
    answer = shell("status", "--watch", terminal=True)
    assert answer.code == 0
    assert "kaggle" in answer.out
    assert answer.out.count("\x1b[?25l") == answer.out.count("\x1b[?25h") == 1


def test_status_counts_pending_jobs_beyond_the_first_screen(
    shell: Callable[..., Any], fake: Any
) -> None:
    """A thousand lines help nobody; a program gets them all."""
    view = fake.show("k").job
    many = tuple(dataclasses.replace(view, id=f"p{i}", state="pending") for i in range(1000))
    fake.answers["status"] = dataclasses.replace(fake.status(), jobs=many)
    assert "... and 980 more pending jobs: freegpu jobs --state pending" in shell("status").out
    assert len(shell("status", "--json").envelope["data"]["jobs"]) == 1000


def test_up_tells_each_tick_and_ends_cleanly_on_sigterm(
    shell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM between two ticks, exit code 0; the signals are given back afterwards."""
    from freegpu.orchestrator import daemon

    def run(workspace: Any, *, stop: threading.Event, on_tick: Callable[[Ticked], None]) -> None:
        on_tick(Ticked(did=True, actions=("started s-1 on \x1b[2Jkaggle",), errors=("oh",)))
        on_tick(Ticked(did=True))
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)

    monkeypatch.setattr(daemon, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    answer = shell("up")
    assert answer.code == 0
    assert answer.out == "12:00:00  started s-1 on \\x1b[2Jkaggle\n"
    assert "note: 12:00:00  oh" in answer.err
    assert answer.err.splitlines()[-1] == "stopped; running agents go on"
    assert signal.getsignal(signal.SIGTERM) is before


def test_up_in_json_prints_a_line_for_each_tick_in_which_something_happened(
    shell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the totals as the envelope at the end."""
    import json

    from freegpu.orchestrator import daemon

    def run(workspace: Any, *, stop: threading.Event, on_tick: Callable[[Ticked], None]) -> None:
        on_tick(Ticked(did=True, actions=("a",)))
        on_tick(Ticked(did=True))
        on_tick(Ticked(did=True, errors=("oh",)))

    monkeypatch.setattr(daemon, "run", run)
    lines = [json.loads(line) for line in shell("up", "--json").out.splitlines()]
    assert [line["status"] for line in lines] == ["success", "partial", "success"]
    assert lines[-1]["data"] == {"ticks": 3, "actions": 1, "errors": 1}


def test_up_ends_when_nobody_reads_what_it_prints(
    shell: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also though it prints from the scheduler's thread."""
    from freegpu.orchestrator import daemon

    def run(workspace: Any, *, stop: threading.Event, on_tick: Callable[[Ticked], None]) -> None:
        on_tick(Ticked(did=True, actions=("a",)))
        assert stop.is_set()

    monkeypatch.setattr(daemon, "run", run)
    assert shell("up", closed=True).code == 141


def test_errors_are_a_sentence_and_a_hint(shell: Callable[..., Any], fake: Any) -> None:
    """With the exit code of their class, and hostile names in them made visible."""
    fake.fails["pull"] = NotReadyError("job \x1b[2J has no outputs yet", hint="follow it")
    answer = shell("pull", "k")
    assert answer.code == 33
    assert answer.out == ""
    assert answer.err == "error: job \\x1b[2J has no outputs yet\nhint: follow it\n"


def test_the_demo_refuses_a_folder_that_is_in_use(
    shell: Callable[..., Any], tmp_path: Path
) -> None:
    """It would mix its ledger with what lies there."""
    (tmp_path / "x").write_text("mine")
    answer = shell("demo", "--keep", str(tmp_path))
    assert answer.code == 2
    assert "is not empty" in answer.err


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["cards", "L44"], "'L44' is not a card freegpu knows; did you mean L4"),
        (["cards", "banana"], "'banana' is not a card freegpu knows; `freegpu cards` lists them"),
        (["cards", "--workload", "knitting"], "'llm-decode'"),
        (["cards", "T4", "L4"], "unexpected extra argument"),
        (["results"], "missing argument 'NAME'"),
        (["results", "sweep", "--sort", "los"], "there is no column 'los'; did you mean loss?"),
        (["results", "sweep", "--sort", "xyz"], "(known: LR, SEED, loss, note)"),
    ],
)
def test_a_card_class_or_column_that_there_is_not_is_told_with_what_there_is(
    argv: list[str], part: str, shell: Callable[..., Any]
) -> None:
    """Exit code 2, the nearest name, and where the list is."""
    answer = shell(*argv)
    assert answer.code == 2
    assert answer.out == ""
    assert part in answer.err


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("loss", "210"),
        ("-loss", "120"),
        ("LR", "012"),
        ("-SEED", "210"),
        ("note", "120"),
    ],
)
def test_results_are_sorted_by_figures_and_what_has_none_comes_last(
    sort: str, order: str, shell: Callable[..., Any]
) -> None:
    """1e-4 is less than 3e-4 as a number; cells without the column come last both ways."""
    answer = shell("results", "sweep", "--csv", "--sort", sort)
    rows = answer.out.splitlines()[1:]
    assert "".join(row.split(",")[0][-1] for row in rows) == order
    document = shell("results", "sweep", "--json", "--sort", sort).envelope
    assert "".join(cell["job"][-1] for cell in document["data"]["cells"]) == order

"""The envelope: one JSON document for every command, on success and on failure, and it never changes unseen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from freegpu.cli.lazy import COMMANDS
from freegpu.cli.plain import Failure, envelope, plain
from freegpu.errors import JobNotFoundError, LedgerBusyError, UnreachableError

GOLDEN = Path(__file__).parents[2] / "golden" / "cli"

#: command -> (its command line, the method that fails for the failure case)
LINES: dict[str, tuple[list[str], str]] = {
    "init": (["init"], "init"),
    "cell": (["cell", "colab"], "cell"),
    "connect store": (["connect", "store", "folder:/data"], "connect_store"),
    "connect colab": (["connect", "colab"], "connect_platform"),
    "connect kaggle": (["connect", "kaggle"], "connect_platform"),
    "connect lightning": (["connect", "lightning"], "connect_platform"),
    "connect ssh": (["connect", "ssh", "ada@lab.example.com"], "connect_platform"),
    "doctor": (["doctor"], "doctor"),
    "submit": (["submit", "job.yaml"], "submit"),
    "cancel": (["cancel", "k3"], "cancel"),
    "retry": (["retry", "k3"], "retry"),
    "interrupt": (["interrupt", "k3"], "interrupt"),
    "pull": (["pull", "k3", "out"], "pull"),
    "checkpoints": (["checkpoints", "k3"], "checkpoints"),
    "status": (["status"], "status"),
    "jobs": (["jobs"], "jobs"),
    "show": (["show", "k3"], "show"),
    "why": (["why", "k3"], "why"),
    "results": (["results", "sweep"], "results"),
    "cards": (["cards", "L4", "--workload", "train-amp-cnn"], "cards"),
    "report": (["report"], "report"),
    "plan": (["plan", "job.yaml"], "plan"),
    "simulate": (["simulate"], "simulate"),
    "logs": (["logs", "k3"], "log_chunks"),
    "tick": (["tick"], "tick"),
    "gc": (["gc", "--dry-run"], "gc"),
    "schema": (["schema"], ""),
    "version": (["version"], ""),
}
#: these have no fixed answer here: they are tried with real parts elsewhere
ELSEWHERE = {"demo", "up", "notify"}


def test_every_command_has_an_envelope_case() -> None:
    """A new command cannot be forgotten here."""
    assert {line.split()[0] for line in LINES} | ELSEWHERE == set(COMMANDS)


@pytest.mark.parametrize("name", list(LINES))
@pytest.mark.parametrize("place", ["before", "after"])
def test_success_is_one_envelope_on_stdout(
    name: str, place: str, shell: Callable[..., Any]
) -> None:
    """--json stands before or behind the command; stdout is exactly one document with the same keys."""
    line = LINES[name][0]
    answer = shell("--json", *line) if place == "before" else shell(*line, "--json")
    document = answer.envelope
    assert list(document) == ["freegpu_json", "command", "status", "exit_code", "data", "errors"]
    assert document["freegpu_json"] == 1
    assert document["command"] == name
    assert document["status"] == "success"
    assert document["exit_code"] == answer.code == 0
    assert document["errors"] == []
    assert document["data"] is not None
    assert answer.out.count("\n") == 1


@pytest.mark.parametrize("name", [name for name, (_, method) in LINES.items() if method])
def test_failure_is_an_envelope_too(name: str, shell: Callable[..., Any], fake: Any) -> None:
    """The error's code, sentence and hint, its exit code, and nothing on stderr to be parsed."""
    line, method = LINES[name]
    fake.fails[method] = JobNotFoundError("there is no job k3", hint="`freegpu jobs` lists them")
    answer = shell(*line, "--json")
    document = answer.envelope
    if name == "doctor":
        assert answer.code == 10
        assert document["data"]["checks"][0]["detail"] == "there is no job k3"
    else:
        assert answer.code == 23
        assert document["data"] is None
        assert document["errors"] == [
            {
                "code": "job_not_found",
                "message": "there is no job k3",
                "hint": "`freegpu jobs` lists them",
            }
        ]
    assert document["status"] == "error"
    assert document["exit_code"] == answer.code
    assert answer.err == ""


@pytest.mark.parametrize(
    ("line", "command", "part"),
    [
        (["statsu"], "freegpu", "there is no command 'statsu'; did you mean status?"),
        (["submit"], "submit", "missing argument"),
        (["jobs", "--state", "gone"], "jobs", "'gone' is not one of"),
        (["show", "a", "b"], "show", "unexpected extra argument"),
        (["--what"], "freegpu", "no such option"),
        (["connect"], "connect", "say what to connect: store"),
        (["connect", "sotre"], "connect", "there is no command 'sotre'; did you mean store?"),
        (["connect", "store"], "connect store", "missing argument"),
        (["submit", "j", "--dry-run", "--wait"], "submit", "nothing to --wait for"),
        (["submit", "j", "--secret", "TOKEN"], "submit", "there is no TOKEN in the environment"),
    ],
)
def test_a_command_line_that_cannot_be_parsed_is_answered_in_json_as_asked(
    line: list[str], command: str, part: str, shell: Callable[..., Any]
) -> None:
    """A program that reads envelopes gets one even for its own mistakes. Exit code 2."""
    answer = shell(*line, "--json")
    document = answer.envelope
    assert answer.code == document["exit_code"] == 2
    assert document["command"] == command
    assert document["errors"][0]["code"] == "usage"
    assert part in document["errors"][0]["message"]


def test_after_two_dashes_json_is_an_argument(shell: Callable[..., Any], fake: Any) -> None:
    """`--` ends the options: a job may be called --json."""
    assert shell("cancel", "--", "--json").code == 0
    assert ("cancel", ("--json",)) in fake.asked


def test_an_unexpected_exception_is_one_sentence_and_no_traceback(
    shell: Callable[..., Any], fake: Any
) -> None:
    """Bugs happen; a user gets a sentence and the way to more."""
    fake.fails["status"] = ZeroDivisionError("division by zero")
    answer = shell("status")
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.splitlines() == [
        "error: internal error: ZeroDivisionError: division by zero",
        "hint: this is a bug in freegpu; run again with --debug to see where",
    ]
    document = shell("status", "--json").envelope
    assert document["errors"][0]["code"] == "internal"


@pytest.mark.parametrize("argv", [["--debug", "status"], ["status", "--debug"]])
def test_debug_shows_the_traceback(argv: list[str], shell: Callable[..., Any], fake: Any) -> None:
    """Only when it is asked for, wherever the option stands; also for the errors freegpu knows."""
    fake.fails["status"] = UnreachableError("kaggle does not answer")
    answer = shell(*argv)
    assert "Traceback (most recent call last)" in answer.err
    assert answer.err.splitlines()[-1] == "error: kaggle does not answer"
    assert answer.code == 46


def test_a_file_system_error_names_the_file_without_a_class_name(
    shell: Callable[..., Any], fake: Any
) -> None:
    """What the operating system says is a user's matter, not a bug."""
    fake.fails["gc"] = PermissionError(13, "Permission denied", "/h/store/x")
    answer = shell("gc")
    assert answer.code == 1
    assert answer.err.splitlines()[0] == "error: permission denied: /h/store/x"


def test_ctrl_c_is_130_in_both_forms(shell: Callable[..., Any], fake: Any) -> None:
    """As shells expect of an interrupted program; a reader of envelopes gets one."""
    fake.fails["log_chunks"] = KeyboardInterrupt()
    assert shell("logs", "k3", "-f").code == 130
    document = shell("logs", "k3", "-f", "--json").envelope
    assert (document["exit_code"], document["errors"][0]["code"]) == (130, "interrupted")


def test_a_broken_pipe_is_silent(shell: Callable[..., Any], fake: Any) -> None:
    """`freegpu jobs | head -1` ends like any program whose reader has gone: 141, no word."""
    answer = shell("jobs", closed=True)
    assert (answer.code, answer.out, answer.err) == (141, "", "")
    assert shell("jobs", "--json", closed=True).code == 141
    assert shell("logs", "k3", closed=True).code == 141


def test_a_pipe_that_breaks_elsewhere_is_no_reader_that_has_gone(
    shell: Callable[..., Any], fake: Any
) -> None:
    """A platform's connection can break too; that must not end in silence."""
    fake.fails["jobs"] = BrokenPipeError(32, "Broken pipe")
    answer = shell("jobs")
    assert (answer.code, answer.err.splitlines()[0]) == (1, "error: broken pipe")


def test_trouble_beside_what_was_asked_for_is_partial_with_exit_code_0(
    shell: Callable[..., Any], fake: Any
) -> None:
    """The job is submitted, whatever the tick after it met."""
    fake.fails["tick"] = UnreachableError("kaggle does not answer", hint="wait")
    document = shell("submit", "job.yaml", "--json").envelope
    assert document["status"] == "partial"
    assert document["exit_code"] == 0
    assert document["data"]["jobs"][0]["id"] == "k3x9f2"
    assert document["errors"][0]["code"] == "unreachable"


def test_looking_works_while_nothing_can_be_moved_on(shell: Callable[..., Any], fake: Any) -> None:
    """A tick that fails is a note on stderr; the jobs are shown all the same."""
    fake.fails["tick_if_needed"] = LedgerBusyError("the ledger is locked")
    answer = shell("jobs", "--json")
    assert answer.code == 0
    assert answer.envelope["status"] == "success"
    assert answer.err == "note: could not move jobs on: the ledger is locked\n"


# --- golden documents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in LINES if n not in ("schema", "version", "doctor")])
def test_the_envelope_is_the_golden_one(name: str, shell: Callable[..., Any]) -> None:
    """What programs read. UPDATE_GOLDEN=1 writes the files anew; look at the difference before committing it."""
    document = shell(*LINES[name][0], "--json").envelope
    path = GOLDEN / f"{name.replace(' ', '-')}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    assert document == json.loads(path.read_text(encoding="utf-8"))


def test_the_dry_run_envelope_is_the_golden_one(shell: Callable[..., Any]) -> None:
    """The same for the other form of submit."""
    document = shell("submit", "job.yaml", "--dry-run", "--json").envelope
    path = GOLDEN / "submit-dry-run.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    assert document == json.loads(path.read_text(encoding="utf-8"))


# --- plain values ----------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Thing:
    at: datetime
    rest: Any


def test_every_kind_of_value_becomes_plain_json() -> None:
    """Times in UTC whatever their zone, sets sorted, enumerations by value, nothing JSON cannot say."""
    berlin = timezone(timedelta(hours=1))
    thing = Thing(
        at=datetime(2026, 12, 2, 1, 0, 0, 5000, tzinfo=berlin),
        rest={
            Colour.RED: (1, 2.5, True, None),
            "set": frozenset({"b", "a"}),
            "path": PurePosixPath("/a/b"),
            "bytes": b"ok \xff",
            "nan": float("nan"),
            "inf": float("-inf"),
        },
    )
    assert plain(thing) == {
        "at": "2026-12-02T00:00:00.005Z",
        "rest": {
            "red": [1, 2.5, True, None],
            "set": ["a", "b"],
            "path": "/a/b",
            "bytes": "ok �",
            "nan": None,
            "inf": None,
        },
    }


def test_a_value_without_a_plain_form_is_refused() -> None:
    """A forgotten kind of value fails in the tests, not as `<object at 0x7f..>` in somebody's program."""
    with pytest.raises(TypeError, match="object has no plain form"):
        plain({"x": object()})


def test_status_follows_from_exit_code_and_errors() -> None:
    """error: it failed; partial: done, with errors beside it; success: neither."""
    oops = [Failure(code="c", message="m")]
    assert envelope("x", exit_code=0)["status"] == "success"
    assert envelope("x", exit_code=0, errors=oops)["status"] == "partial"
    assert envelope("x", exit_code=3, errors=oops)["status"] == "error"
    assert envelope("x", exit_code=3, data=datetime(2026, 1, 1, tzinfo=UTC))["data"] is not None

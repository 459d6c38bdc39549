"""`freegpu notify` as a person types it, in a real home: what it prints, and that no secret is in it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.clock import SystemClock
from freegpu.orchestrator import addresses, notify
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.notices import Notice

pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

GOLDEN = Path(__file__).parents[2] / "golden" / "cli"
TELEGRAM = "tgram://123456789:AbcdefGhijKlmnop/12315544"
Shell = Callable[..., "Answer"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def envelope(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.out)
        return document


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def typed(home: Path) -> Shell:
    """Runs a command line with the real workspace."""

    def call(*argv: str) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        environ = {"FREEGPU_HOME": str(home)}
        code = run(
            argv, call=Call(out=Output(stdout=out, stderr=err, environ=environ), environ=environ)
        )
        return Answer(code=code, out=out.getvalue(), err=err.getvalue())

    return call


def golden(name: str, found: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["", "add", "list", "remove", "test"])
def test_the_help_is_the_golden_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help goes to stdout by click; UPDATE_GOLDEN=1 writes the files anew."""
    assert run(["notify", *name.split(), "--help"], call=Call(environ={})) == 0
    golden(f"notify-help{'-' * bool(name)}{name}.txt", capsys.readouterr().out)


def test_the_envelopes_are_the_golden_ones(typed: Shell) -> None:
    """What programs read, in the order in which a person would do it."""
    added = typed("notify", "add", "json://127.0.0.1:9/hidden", "--on", "lost,failed", "--json")
    typed("notify", "add", TELEGRAM)
    listed = typed("notify", "list", "--json")
    removed = typed("notify", "remove", "1", "--json")
    for name, answer in (("add", added), ("list", listed), ("remove", removed)):
        assert answer.code == 0
        golden(f"notify-{name}.json", json.dumps(answer.envelope, indent=2) + "\n")


def test_no_secret_is_printed_whatever_is_typed(typed: Shell, home: Path) -> None:
    """Neither on success nor in an error."""
    said = []
    for argv in (
        ["add", TELEGRAM], ["list"], ["list", "--json"], ["add", "nope://AbcdefGhijKlmnop/12315544"],
        ["add", "AbcdefGhijKlmnop"], ["add", TELEGRAM, "--on", "never"], ["remove", "9"],
        ["remove", TELEGRAM],
    ):  # fmt: skip
        answer = typed("notify", *argv)
        said.append(answer.out + answer.err)
    assert "AbcdefGhijKlmnop" not in "".join(said)
    assert "12315544" not in "".join(said)
    assert addresses.read(home) == ()


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["add", "nope://x"], 10, "nope:// is no service that can be notified"),
        (["add", "x"], 10, "this is no notification URL"),
        (["add"], 2, "missing argument"),
        (["add", "json://h", "--on", "never"], 2, "'never' is no event"),
        (["add", "json://h", "--on", ","], 2, "it names no event"),
        (["remove", "1"], 10, "there is none"),
        (["test"], 10, "there is no address yet"),
        (["tset"], 2, "did you mean test?"),
        (["--json"], 2, "say what to do: add, list, remove, test"),
    ],
)
def test_what_makes_no_sense_is_one_sentence_and_changes_nothing(
    argv: list[str], code: int, words: str, typed: Shell, home: Path
) -> None:
    """And its exit code is that of its class."""
    answer = typed("notify", *argv)
    assert answer.code == code
    assert words in (answer.envelope["errors"][0]["message"] if "--json" in argv else answer.err)
    assert not (home / addresses.FILE_NAME).exists()


def test_a_url_may_come_by_standard_input(
    typed: Shell, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it stands on no command line."""
    monkeypatch.setattr("sys.stdin", io.StringIO(TELEGRAM + "\n"))
    assert typed("notify", "add", "-").code == 0
    assert [address.url for address in addresses.read(home)] == [TELEGRAM]


def test_the_same_url_again_changes_what_it_hears_of(typed: Shell, home: Path) -> None:
    """It is not there twice."""
    typed("notify", "add", TELEGRAM)
    typed("notify", "add", "json://127.0.0.1:9")
    answer = typed("notify", "add", TELEGRAM, "--on", "failed", "--json")
    assert answer.envelope["data"]["number"] == 1
    assert [address.on for address in addresses.read(home)] == [
        ("failed",),
        ("succeeded", "failed", "lost", "quota", "attended"),
    ]


def test_a_test_that_does_not_arrive_is_told_for_each_address(
    typed: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 46, and what the others got."""
    typed("notify", "add", "json://127.0.0.1:9")
    typed("notify", "add", TELEGRAM)
    reasons = {"json://127.0.0.1:9": "connection refused"}
    monkeypatch.setattr(addresses, "send", lambda address, _: reasons.get(address.url, ""))
    answer = typed("notify", "test", "--json")
    assert answer.code == 46
    assert [each["sent"] for each in answer.envelope["data"]["results"]] == [False, True]
    assert answer.envelope["errors"][0]["message"].endswith("connection refused")
    plain = typed("notify", "test")
    assert plain.out == "2  tgram://***  sent\n"
    assert "number 1, json://127.0.0.1:9/...: connection refused" in plain.err


def test_a_command_that_ticks_sends_after_its_output(
    typed: Shell, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`freegpu tick` with a failed job in the ledger: said here first, then elsewhere."""
    sent: list[str] = []

    def send(_: addresses.Address, notice: Notice) -> str:
        sent.append(notice.title)
        return ""

    monkeypatch.setattr(notify, "pump", partial(notify.pump, sender=send))
    typed("notify", "add", "json://127.0.0.1:9")
    assert typed("tick").code == 0
    assert sent == []
    with Ledger.open(str(home / "state.db"), clock=SystemClock()) as ledger:
        ledger.record("job.failed", "the command failed", job="k3x9f2", attempt="k3x9f2-1")
    assert typed("tick").code == 0
    assert sent == ["k3x9f2 has failed"]
    assert typed("tick").code == 0
    assert sent == ["k3x9f2 has failed"]

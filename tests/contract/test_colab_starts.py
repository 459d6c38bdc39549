"""Starts that come to no end: killed, cut, without an answer. No runtime is left, also none that comes afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Request
from freegpu.adapters.colab import notes, program
from freegpu.errors import NoCapacityError, UnreachableError
from freegpu.testing.colab_server import ColabServer
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import until
from tests.contract.colab import colab_fixture, posts, stage_fixture

__all__ = ["colab_fixture", "stage_fixture"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_START = """
import json, sys
from pathlib import Path
from freegpu.adapters.base import Request
from freegpu.adapters.colab import ColabAdapter
from freegpu.clock import SystemClock
given = json.load(sys.stdin)
options = {"accepted": "free-unattended-use", "cli": given["cli"], "token": given["token"]}
adapter = ColabAdapter.from_options("colab-cli", options, home=Path(given["home"]), clock=SystemClock())
adapter.start(Request(key=given["key"], payload=given["payload"]))
"""


def starts(colab: ColabServer, stage: Stage, request: Request) -> subprocess.Popen[str]:
    """A process of its own that starts this session."""
    adapter: Any = stage.adapter
    given = {
        "home": str(stage.home),
        "cli": adapter._program.cli,
        "token": str(colab.folder / "token.json"),
        "key": request.key,
        "payload": dict(request.payload),
    }
    process = subprocess.Popen([sys.executable, "-c", _START], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(given))
    process.stdin.close()
    return process


def programs(home: Path) -> list[int]:
    """Google's programs that run with a HOME below this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            around = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"HOME={home / 'colab'}".encode() in around:
            found.append(int(folder.name))
    return found


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in doubt is looked at twice a second."""
    monkeypatch.setattr(notes, "DOUBT_EVERY_S", 0.5)


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("with_program", [False, True], ids=["alone", "with-the-program"])
def test_killed_in_the_middle_of_an_assignment_leaves_no_runtime(
    colab: ColabServer, stage: Stage, kind: signal.Signals, with_program: bool
) -> None:
    """The program outlives us and finishes, or dies too and Colab finishes: both are given back by a later process."""
    colab.set_account(late_s=4)
    request = stage.adapter.render(stage.launch("s-killed"))
    process = starts(colab, stage, request)
    until(lambda: posts(colab) == 1, seconds=60)
    process.send_signal(kind)
    assert process.wait(20) != 0
    if with_program:
        for pid in programs(stage.home):
            os.kill(pid, signal.SIGKILL)
    later: Any = stage.make(stage.home)
    assert later.find("s-killed") is None
    until(lambda: len(list((colab.folder / "machines").glob("gpu-*"))) == 1, seconds=60)
    until(lambda: (not later.unsettled() or later.settle()) and not colab.endpoints(), seconds=60)
    assert posts(colab) == 1
    assert later.find("s-killed") is None
    assert not list((stage.home / "colab").rglob("colab.log"))
    later.close()


@pytest.mark.usefixtures("_often")
def test_a_runtime_that_comes_after_we_looked_is_found_by_a_later_look(
    colab: ColabServer, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our deadline for the program ends first, Colab goes on: there was nothing when we looked, and then there is."""
    monkeypatch.setattr(program, "LIMITS_S", {"new": 12.0})
    colab.set_account(late_s=20)
    request = stage.adapter.render(stage.launch("s-late"))
    with pytest.raises(UnreachableError, match="did not end within 12 s"):
        stage.adapter.start(request)
    assert posts(colab) == 1
    assert colab.endpoints() == []
    assert stage.adapter.find("s-late") is None
    until(colab.endpoints, seconds=60)
    adapter: Any = stage.adapter
    until(lambda: (not adapter.unsettled() or adapter.settle()) and not colab.endpoints())


@pytest.mark.usefixtures("_often")
def test_a_doubt_ends_when_nothing_came_for_long_enough(
    colab: ColabServer, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked about a lost request for ever."""
    monkeypatch.setattr(notes, "DOUBT_FOR_S", 3.0)
    colab.set_faults(hang_s={"value": 1, "only": ["assign"], "times": 1})
    with pytest.raises(UnreachableError):
        stage.adapter.start(stage.adapter.render(stage.launch("s-lost")))
    adapter: Any = stage.adapter
    until(adapter.unsettled)
    time.sleep(3)
    adapter.settle()
    asked = len(colab.requests)
    assert not adapter.unsettled()
    time.sleep(1)
    assert not adapter.unsettled()
    assert len(colab.requests) == asked


def test_a_log_that_could_not_be_settled_at_once_is_kept_until_it_is(
    colab: ColabServer, stage: Stage
) -> None:
    """Colab accepts, cuts, and lets nothing be given back: the request's address in the log is all that names it."""
    request = stage.adapter.render(stage.launch("s-away"))
    colab.set_faults(
        accept_then_cut={"value": True, "times": 1, "only": ["assign"]},
        fail={"value": 500, "only": ["prepare-unassign"]},
    )
    with pytest.raises(UnreachableError):
        stage.adapter.start(request)
    assert len(colab.endpoints()) == 1
    colab.set_faults(accept_then_cut=None, fail=None)
    later: Any = stage.make(stage.home)
    assert later.unsettled()
    later.settle()
    assert colab.endpoints() == []
    assert not later.unsettled()
    later.close()


def test_too_many_sessions_is_busy_and_leaves_nothing_in_doubt(
    colab: ColabServer, stage: Stage
) -> None:
    """A 412 is a clear word: it is asked once, and nobody looks for a runtime afterwards."""
    colab.set_faults(refuse_sessions=True)
    with pytest.raises(NoCapacityError):
        stage.adapter.start(stage.adapter.render(stage.launch("s-many")))
    adapter: Any = stage.adapter
    assert not adapter.unsettled()
    assert posts(colab) == 1


def test_a_start_that_another_process_is_at_is_left_alone(colab: ColabServer, stage: Stage) -> None:
    """A tick beside it neither waits for it nor gives its runtime back."""
    colab.set_account(late_s=3)
    process = starts(colab, stage, stage.adapter.render(stage.launch("s-other")))
    until(lambda: posts(colab) == 1, seconds=60)
    adapter: Any = stage.adapter
    began = time.monotonic()
    assert not adapter.unsettled()
    adapter.settle()
    assert time.monotonic() - began < 1
    assert process.wait(60) == 0
    ref = adapter.find("s-other")
    assert ref == "s-other"
    stage.remember(ref)
    until(lambda: stage.pids("s-other"), seconds=30)

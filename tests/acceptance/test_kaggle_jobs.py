"""Jobs on Kaggle through the command line: two cards, what a stop costs, a tick that is killed, and Kaggle's faults."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing.kaggle_server import KaggleServer
from tests.acceptance.kaggle import attempts, heard, me, server, signed_in

__all__ = ["me", "server", "signed_in"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def with_store(user: Any, folder: Path) -> None:
    """Connected so that its sessions open the store, which both sides see as this folder."""
    folder.mkdir()
    user.ok("connect", "kaggle")
    path = user.home / "freegpu.toml"
    text = path.read_text().replace('carry = "sealed"', 'carry = "store"')
    text = text.replace("[platforms.kaggle]\n", f'[platforms.kaggle]\nstore = "folder:{folder}"\n')
    path.write_text(f'store = "folder:{folder}"\n{text}')
    assert "folder:" in user.ok("connect", "kaggle", "--carry", "store").out


#: waits until as many jobs as `together` have begun beside it, and until the gate is opened; says its card
_PAIR = """
python3 - <<'PY'
import os, pathlib, sys, time
seen = pathlib.Path("{seen}"); seen.mkdir(exist_ok=True)
(seen / os.environ["FREEGPU_JOB_ID"]).touch()
end = time.time() + 60
while len(list(seen.iterdir())) < {together} or not pathlib.Path("{gate}").exists():
    if time.time() > end:
        sys.exit(3)
    time.sleep(0.05)
print("card", os.environ["CUDA_VISIBLE_DEVICES"], "of", os.environ["FREEGPU_GPU_COUNT"])
PY
"""


def pair(user: Any, name: str, together: int, matrix: str = "") -> str:
    text = _PAIR.format(seen=user.desk / "seen", together=together, gate=user.gate)
    body = "".join(f"  {line}\n" for line in text.strip().splitlines())
    return str(
        user.job_file(
            f"name: {name}\nresources: {{accelerators: T4}}\nrun: |\n{body}{matrix}", f"{name}.yaml"
        )
    )


def test_two_jobs_that_wait_run_side_by_side_each_with_one_card(
    signed_in: Any, server: KaggleServer
) -> None:
    """One sealed session, charged once; each job waits for the other, so one after the other would fail."""
    signed_in.ok("connect", "kaggle")
    signed_in.go()
    signed_in.ok(
        "submit", pair(signed_in, "pair", 2, "freegpu: {matrix: {N: [1, 2]}}\n"), timeout=90
    )
    names = [job["name"] for job in signed_in.ok("jobs", "--json").json["data"]["jobs"]]
    assert len(names) == 2
    for name in names:
        signed_in.until_job(name, "succeeded")
    assert len(heard(server, "SaveKernel")) == 1
    told = {signed_in.ok("logs", name).out.strip() for name in names}
    assert told == {"card 0 of 1", "card 1 of 1"}
    signed_in.until(lambda: signed_in.types("tick") and not server.kernels)
    assert not server.data.known


def test_the_second_slot_is_filled_when_a_job_comes_later(
    signed_in: Any, server: KaggleServer, tmp_path: Path
) -> None:
    """With the store a session is reached while it runs: the later job gets the other card of the same session."""
    with_store(signed_in, tmp_path / "shared")
    signed_in.ok("submit", pair(signed_in, "one", 2), timeout=90)
    signed_in.until(lambda: signed_in.ok("tick") and list((signed_in.desk / "seen").glob("*")))
    signed_in.ok("submit", pair(signed_in, "two", 2), timeout=90)
    signed_in.go()
    for name in ("one", "two"):
        signed_in.until_job(name, "succeeded")
    assert len(heard(server, "SaveKernel")) == 1
    told = {signed_in.ok("logs", name).out.strip() for name in ("one", "two")}
    assert told == {"card 0 of 1", "card 1 of 1"}


@pytest.mark.parametrize("after", [True, False], ids=["accepted", "refused"])
def test_a_tick_that_is_killed_while_it_starts_a_session_leaves_one_or_none(
    signed_in: Any, server: KaggleServer, expected: Any, after: bool
) -> None:
    """kill -9 between the push and the note of it: the slug was written down before, and the account tells the rest."""
    signed_in.ok("connect", "kaggle")
    signed_in.go()
    came, go_on, first = threading.Event(), threading.Event(), server._on_SaveKernel

    def held(request: Any, told: Any) -> Any:
        reply = first(request, told) if after else server.error(503, "away")
        came.set()
        go_on.wait(60)
        return reply

    server._on_SaveKernel = held  # type: ignore[method-assign, assignment]
    process = signed_in.starts("submit", signed_in.counter(total=5))
    assert came.wait(60)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    server._on_SaveKernel = first  # type: ignore[method-assign]
    go_on.set()
    signed_in.until_job("count", "succeeded")
    assert len(heard(server, "SaveKernel")) == (1 if after else 2)
    signed_in.ok("pull", "count", "home")
    assert json.loads((signed_in.desk / "home" / "result.json").read_text()) == expected(5)
    if after:
        assert attempts(signed_in) == [("kaggle", "completed")]
    signed_in.until(lambda: signed_in.types("tick") and not server.kernels)
    assert not server.data.known


def test_what_a_stop_costs_is_said_and_nothing_stays(signed_in: Any, server: KaggleServer) -> None:
    """Interrupting a sealed session is refused, cancelling says what is lost; the notebook and its dataset go."""
    signed_in.ok("connect", "kaggle")
    signed_in.ok("submit", signed_in.counter(total=10, hold=3), timeout=90)
    signed_in.until(lambda: signed_in.ok("tick") and server.kernels)
    (slug,) = server.kernels
    assert slug in signed_in.types("doctor", "kaggle").out
    ran = signed_in.types("interrupt", "count")
    assert ran.code == 33, ran
    assert "ending it now would lose its work" in ran.err
    ran = signed_in.ok("cancel", "count")
    assert "what it did since it began is deleted with it" in ran.err
    signed_in.until(
        lambda: signed_in.types("tick") and not server.kernels and not server.data.known
    )
    assert signed_in.job("count")["job"]["state"] == "cancelled"
    assert not signed_in.processes("counter.py")


def test_a_full_account_is_busy_and_nothing_is_sent_again_and_again(
    signed_in: Any, server: KaggleServer
) -> None:
    """No failure of the job, said by `why`; no second upload while it lasts; it starts when there is room."""
    signed_in.ok("connect", "kaggle")
    signed_in.go()
    server.set_faults(refuse_sessions=True)
    job = signed_in.counter(total=5, extra="platforms: [kaggle]")
    signed_in.ok("submit", job, "--set", "resources.accelerators=T4", timeout=90)
    detail = signed_in.job("count")
    assert detail["job"]["state"] == "pending"
    assert "session count of 2 reached" in signed_in.ok("why", "count").out
    assert len(heard(server, "StartBlobUpload")) == 1
    signed_in.ok("tick")
    assert len(heard(server, "StartBlobUpload")) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accept_then_5xx", {"value": True, "only": ["SaveKernel"], "times": 1}),
        ("accept_then_cut", {"value": True, "only": ["SaveKernel"], "times": 1}),
        ("unknown_word", "HYPERSTATE"),
        ("lies_running", True),
        ("truncate_output", {"value": 40, "only": ["output"], "times": 1}),
        ("throttle_s", {"value": 1, "only": ["ListKernelSessionOutput"], "times": 1}),
    ],
)
def test_a_fault_of_kaggle_s_costs_time_and_nothing_else(
    signed_in: Any, server: KaggleServer, expected: Any, name: str, value: Any
) -> None:
    """One session, one attempt, the same bytes; while the word is wrong nothing is concluded from it."""
    signed_in.ok("connect", "kaggle")
    signed_in.go()
    server.set_faults(**{name: value})
    signed_in.types("submit", signed_in.counter(total=5), timeout=90)
    if name in ("unknown_word", "lies_running"):
        signed_in.until(
            lambda: server.kernels and not any(map(server.machines.alive, server.machines.names()))
        )
        for _ in range(3):
            signed_in.ok("tick")
        assert signed_in.job("count")["job"]["state"] == "active"
        server.set_faults(**{name: None})
    signed_in.until_job("count", "succeeded")
    assert attempts(signed_in) == [("kaggle", "completed")]
    assert len(heard(server, "SaveKernel")) == 1
    signed_in.ok("pull", "count", "home")
    assert json.loads((signed_in.desk / "home" / "result.json").read_text()) == expected(5)


def test_another_card_than_the_job_can_use_ends_its_attempt(
    signed_in: Any, server: KaggleServer
) -> None:
    """P100 in the place of T4 in a sealed session, which no word of ours reaches: the ledger tells what came."""
    signed_in.ok("connect", "kaggle")
    signed_in.go()
    server.set_faults(wrong_card="Tesla P100-PCIE-16GB")
    job = signed_in.counter(total=5)
    signed_in.ok("submit", job, "--set", "resources.accelerators=T4", timeout=90)
    signed_in.until(lambda: signed_in.types("tick") and attempts(signed_in)[0][1])
    assert attempts(signed_in)[0] == ("kaggle", "wrong_card")

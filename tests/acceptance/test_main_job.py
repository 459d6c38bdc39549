"""The main job, as typed: submit, run, lose the session, resume, finish."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_a_job_runs_here_without_configuration_or_daemon_and_its_results_come_home(
    user: Any,
) -> None:
    """Empty configuration: submit returns, the agent goes on by itself, a later command collects."""
    job = user.counter(total=5)
    submitted = user.ok("submit", job)
    assert "count" in submitted.out
    detail = user.until_job("count", "succeeded")
    assert detail["job"]["platform"] == "local"
    pulled = user.ok("pull", "count", "home")
    assert "result.json" in pulled.out
    assert json.loads((user.desk / "home" / "result.json").read_text())["step"] == 5
    log = user.ok("logs", "count")
    assert "begin at 0 resume=0 attempt=1" in log.out
    assert "finished" in log.out
    assert "local" in user.ok("why", "count").out
    for words in (["status"], ["jobs"], ["show", "count"], ["why", "count"], ["doctor"]):
        answer = user.ok(*words, "--json").json
        assert answer["status"] == "success"
        assert answer["exit_code"] == 0
        assert answer["command"] == words[0]


def test_an_interrupted_job_resumes_from_its_checkpoint_and_ends_like_an_undisturbed_one(
    user: Any, expected: Any
) -> None:
    """The second attempt begins where the first saved; the bytes are the same."""
    user.settings()
    user.ok("submit", user.counter(total=20, hold=10))
    user.until(lambda: user.ok("tick") and user.job("count")["checkpoints"])
    user.ok("interrupt", "count")
    user.go()
    user.until_job("count", "succeeded")
    detail = user.job("count")
    # an agent may go for want of work in the very moment in which it is given some: that attempt never begins
    began = [a for a in detail["attempts"] if a["started_at"]]
    assert [a["reason"] for a in began] == ["preempted", "completed"]
    log = user.ok("logs", "count").out
    begins = [line for line in log.splitlines() if line.startswith("begin")]
    assert len(begins) == 2
    assert f"resume=1 attempt={began[1]['number']}" in begins[1]
    assert int(begins[1].split()[2]) > 0
    user.ok("pull", "count", "home")
    assert json.loads((user.desk / "home" / "result.json").read_text()) == expected(20)


def test_a_killed_agent_takes_its_job_with_it_and_the_next_command_goes_on(
    user: Any, expected: Any
) -> None:
    """kill -9 of the agent: no orphan trains on; the next attempt resumes; nothing is left out or done twice."""
    user.settings()
    user.ok("submit", user.counter(total=20, hold=10))
    user.until(lambda: user.ok("tick") and user.job("count")["checkpoints"])
    os.kill(user.agent(), signal.SIGKILL)
    user.until(lambda: not user.processes("counter.py"), 10)
    user.go()
    detail = user.until_job("count", "succeeded")
    assert [a["reason"] for a in detail["attempts"]] == ["lost", "completed"]
    assert detail["attempts"][1]["base_generation"] >= 1
    user.ok("pull", "count", "home")
    assert json.loads((user.desk / "home" / "result.json").read_text()) == expected(20)


def test_a_cancelled_job_stops_within_its_grace_and_can_be_retried_from_its_checkpoint(
    user: Any, expected: Any
) -> None:
    """cancel stops the process; retry goes on where it was; --from-scratch begins anew."""
    user.settings()
    user.ok("submit", user.counter(total=20, hold=10))
    user.until(lambda: user.ok("tick") and user.job("count")["checkpoints"])
    user.ok("cancel", "count")
    user.until(lambda: not user.processes("counter.py"), 15)
    user.go()
    assert user.job("count")["job"]["state"] == "cancelled"
    again = user.types("cancel", "count")
    assert again.code == 30
    user.ok("retry", "count")
    user.until_job("count", "succeeded")
    assert "begin at 0 resume=1" not in user.ok("logs", "count", "--attempt", "2").out
    user.ok("pull", "count", "home")
    assert json.loads((user.desk / "home" / "result.json").read_text()) == expected(20)


def test_a_failing_command_is_tried_again_and_its_last_lines_and_exit_code_are_kept(
    user: Any,
) -> None:
    """retry.failures: 1 forgives one failure; `submit --wait` says so with exit code 32."""
    user.settings()
    job = user.job_file("name: bad\nrun: |\n  echo about to fail\n  exit 3\n")
    ran = user.types("submit", job, "--wait", timeout=90)
    assert ran.code == 32, ran
    detail = user.job("bad")
    assert detail["job"]["state"] == "failed"
    assert [a["exit_code"] for a in detail["attempts"]] == [3, 3]
    assert "about to fail" in detail["attempts"][0]["detail"]


def test_submit_wait_shows_the_output_and_ends_with_the_job(user: Any) -> None:
    """Exit code 0 and the job's own output on stdout."""
    user.settings()
    ran = user.types("submit", user.counter(total=3), "--wait")
    assert ran.code == 0, ran
    assert "finished" in ran.out


def test_a_failing_setup_is_named_as_such(user: Any) -> None:
    """The command never runs, and the reason says that it was the setup."""
    user.settings()
    job = user.job_file(
        "name: s\nsetup: no-such-program --version\nrun: echo never\nfreegpu: {retry: {failures: 0}}\n"
    )
    assert user.types("submit", job, "--wait").code == 32
    assert "setup" in user.job("s")["attempts"][0]["detail"]
    assert "never" not in user.ok("logs", "s").out


def test_secrets_reach_the_job_and_lie_nowhere_in_clear(user: Any) -> None:
    """Not in the ledger, not in the store, not in a log; only in a private file until the job is done."""
    user.settings()
    value = "s3cr3t-Va1ue-0123456789"
    job = user.job_file(
        f"name: sec\nsecrets: {{TOKEN: null}}\nrun: |\n"
        f"  {sys.executable} -c 'import hashlib, os; print(hashlib.sha256(os.environ[\"TOKEN\"].encode()).hexdigest())'\n"
    )
    missing = user.types("submit", job)
    assert missing.code == 11
    assert "TOKEN" in missing.err
    ran = user.types("submit", job, "--wait", env={"TOKEN": value})
    assert ran.code == 0, ran
    import hashlib

    assert hashlib.sha256(value.encode()).hexdigest() in ran.out
    holders = [
        path
        for path in user.home.rglob("*")
        if path.is_file() and value.encode() in path.read_bytes()
    ]
    assert all(
        path.parent.name == "secrets" and path.stat().st_mode & 0o077 == 0 for path in holders
    )
    user.ok("gc")
    assert not list((user.home / "secrets").glob("*")) or holders


def test_a_matrix_becomes_jobs_and_after_keeps_their_order(user: Any) -> None:
    """Four cells are four jobs; the one that comes after them begins when all have succeeded."""
    user.settings()
    first = user.job_file(
        "name: cell\nrun: echo $A-$B\nfreegpu: {matrix: {A: [1, 2], B: [x, y]}}\n", "m.yaml"
    )
    listed = user.ok("submit", first, "--json").json["data"]["jobs"]
    assert len(listed) == 4
    names = [job["name"] for job in listed]
    assert len(set(names)) == 4
    last = user.job_file(
        f"name: last\nrun: echo after all\nfreegpu: {{after: {json.dumps(names)}}}\n", "l.yaml"
    )
    user.ok("submit", last)
    user.until_job("last", "succeeded")
    ended = {j["name"]: j["ended_at"] for j in user.ok("jobs", "--json").json["data"]["jobs"]}
    began = user.job("last")["attempts"][0]["created_at"]
    assert all(ended[name] <= began for name in names)


def test_logs_follow_a_job_over_a_hop_to_its_end(user: Any) -> None:
    """logs -f says that the job moved on and ends when the job does."""
    user.settings()
    user.ok("submit", user.counter(total=20, hold=10))
    follower = user.starts("logs", "count", "-f")
    user.until(lambda: user.job("count")["checkpoints"])
    user.ok("interrupt", "count")
    user.go()
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 0, err
    assert out.count("begin at") == 2
    assert "finished" in out
    assert "attempt 2" in err


def test_a_dry_run_changes_nothing(user: Any) -> None:
    """It tells where the job would go, and no job is there afterwards."""
    user.settings()
    ran = user.ok("submit", user.counter(), "--dry-run")
    assert "local" in ran.out
    assert user.ok("jobs", "--json").json["data"]["jobs"] == []
    assert not user.processes("freegpu-agent")


def test_the_store_may_be_away_while_the_job_runs(user: Any, expected: Any) -> None:
    """The mount vanishes for some seconds and comes back: the job was not harmed and loses nothing."""
    user.settings()
    user.ok("submit", user.counter(total=20, hold=10))
    user.until(lambda: user.ok("tick") and user.job("count")["checkpoints"])
    store, away = user.home / "store", user.home / "unplugged"
    store.rename(away)
    gone = user.types("submit", "count.yaml")
    assert gone.code == 50, gone
    assert "store" in gone.err
    assert user.processes("counter.py")
    away.rename(store)
    user.go()
    detail = user.until_job("count", "succeeded")
    assert len(detail["attempts"]) == 1
    user.ok("pull", "count", "home")
    assert json.loads((user.desk / "home" / "result.json").read_text()) == expected(20)

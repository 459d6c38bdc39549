"""Several platforms, their limits and their faults, through the command line; the platforms are loopback ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from freegpu.clock import SystemClock
from freegpu.testing.loopback import LoopbackAdapter

pytestmark = pytest.mark.slow

WEEK = {"kind": "fixed_weekly", "limit_s": 600}


def platform(user: Any, name: str) -> LoopbackAdapter:
    """The platform itself, to switch its faults."""
    return LoopbackAdapter(name, home=user.home, clock=SystemClock())


def attempts(user: Any, name: str = "count") -> list[tuple[str, str]]:
    return [(a["platform"], a["reason"]) for a in user.job(name)["attempts"]]


def until_saved(user: Any, name: str = "count") -> None:
    user.until(lambda: user.ok("tick") and user.job(name)["checkpoints"])


def pulled(user: Any, name: str = "count") -> Any:
    user.ok("pull", name, "home")
    return json.loads((user.desk / "home" / "result.json").read_text())


def test_a_session_that_reaches_its_limit_saves_and_the_job_goes_on_elsewhere(
    user: Any, expected: Any
) -> None:
    """The agent stops it in time; the quota of the first platform is used up, so it moves to the second."""
    quick = {
        "card": "A100",
        "session_limit_s": 14,
        "window": {"kind": "fixed_weekly", "limit_s": 16},
    }
    user.settings({"quick": quick, "slow": {"card": "T4", "window": WEEK}})
    user.ok("submit", user.counter(total=20, hold=10, extra="estimate: 3s on A100"))
    user.until(lambda: user.ok("tick") and attempts(user)[0][1])
    user.go()
    detail = user.until_job("count", "succeeded", 120)
    ends = attempts(user)
    assert ends[0] == ("quick", "session_expired")
    assert ends[-1] == ("slow", "completed")
    assert detail["job"]["lost_s"] < 2.0
    assert pulled(user) == expected(20)
    rows = {p["name"]: p for p in user.ok("status", "--json").json["data"]["platforms"]}
    assert 6 <= rows["quick"]["used_s"] <= 20
    assert rows["quick"]["source"] == "live"


def test_a_session_whose_quota_ends_first_saves_before_it_is_spent(
    user: Any, expected: Any
) -> None:
    """The agent knows of that end from the beginning; the platform has no need to kill it, and nothing is lost."""
    quick = {"card": "A100", "window": {"kind": "fixed_weekly", "limit_s": 16}}
    user.settings({"quick": quick, "slow": {"card": "T4", "window": WEEK}})
    user.ok("submit", user.counter(total=20, hold=10, extra="estimate: 3s on A100"))
    user.until(lambda: user.ok("tick") and attempts(user)[0][1])
    user.go()
    detail = user.until_job("count", "succeeded", 120)
    assert attempts(user)[0] == ("quick", "session_expired")
    assert attempts(user)[-1] == ("slow", "completed")
    assert detail["job"]["lost_s"] < 2.0
    assert pulled(user) == expected(20)


def test_sessions_that_share_a_quota_save_before_it_is_spent(user: Any) -> None:
    """Two burn it twice as fast as either was told: the orchestrator ends them in time, and says why."""
    shared = {
        "card": "A100",
        "max_concurrent": 2,
        "reports_quota": False,
        "window": {"kind": "fixed_weekly", "limit_s": 60},
    }
    # commands of a busy machine are seconds apart; the orchestrator allows for as long as its ticks are
    user.settings({"quick": shared}, tick_s=8)
    for name in ("one", "two"):
        job = user.counter(name=name, total=20, hold=10, extra="estimate: 3s on A100")
        user.ok("submit", job)
    user.until(lambda: user.ok("tick") and all(attempts(user, n) for n in ("one", "two")))
    user.until(lambda: user.ok("tick") and all(attempts(user, n)[0][1] for n in ("one", "two")))
    assert {attempts(user, n)[0] for n in ("one", "two")} == {("quick", "session_expired")}
    [quick] = user.ok("status", "--json").json["data"]["platforms"]
    assert quick["used_s"] <= 60


def test_a_machine_taken_away_without_notice_costs_at_most_the_work_since_the_last_checkpoint(
    user: Any, expected: Any
) -> None:
    """The platform SIGKILLs everything and refuses more: the job resumes on the other one."""
    user.settings({"one": {"card": "L4", "window": WEEK}, "two": {"card": "T4", "window": WEEK}})
    user.ok("submit", user.counter(total=20, hold=10))
    until_saved(user)
    session = user.job("count")["attempts"][0]["session"]
    place = platform(user, "one")
    place.set_faults(refuse_capacity=True)
    assert place.kill(session)
    assert not user.processes("counter.py")
    user.go()
    user.until_job("count", "succeeded")
    assert attempts(user)[0] == ("one", "lost")
    assert attempts(user)[-1] == ("two", "completed")
    begins = [
        line for line in user.ok("logs", "count").out.splitlines() if line.startswith("begin")
    ]
    assert begins[-1].startswith("begin at 10 resume=1")
    assert pulled(user) == expected(20)


def test_an_answer_lost_after_accepting_never_starts_a_second_session(user: Any) -> None:
    """5xx after accepting: one session in the ledger, one agent on the machine."""
    user.settings({"one": {"card": "T4", "window": WEEK, "max_concurrent": 3}})
    platform(user, "one").set_faults(accept_then_5xx=True)
    user.types("submit", user.counter(total=20))
    platform(user, "one").set_faults(accept_then_5xx=False)
    user.until_job("count", "succeeded")
    assert attempts(user) == [("one", "completed")]
    assert len(list((user.home / "sessions").iterdir())) == 1


def test_a_platform_that_refuses_is_explained_and_the_other_one_taken(user: Any) -> None:
    """No capacity on the better card: the job goes to the next, and `why` tells."""
    user.settings({"one": {"card": "A100"}, "two": {"card": "T4"}})
    platform(user, "one").set_faults(refuse_capacity=True)
    user.ok("submit", user.counter(total=20))
    user.ok("tick")
    ran = user.ok("why", "count")
    assert "no A100 is free" in ran.out
    user.until_job("count", "succeeded")
    assert attempts(user)[-1] == ("two", "completed")


def test_a_substituted_card_is_noticed_and_the_job_taken_off(user: Any) -> None:
    """A K80 came instead of the T4 that the job needs: wrong_card, and on to the other platform."""
    user.settings({"one": {"card": "T4"}, "two": {"card": "T4", "start_delay_s": 2}})
    platform(user, "one").set_faults(wrong_card="K80")
    job = user.counter(total=20, hold=10)
    user.ok("submit", job, "--set", "resources.accelerators=T4")
    user.until(lambda: user.ok("tick") and attempts(user)[0][1])
    user.go()
    user.until_job("count", "succeeded")
    assert attempts(user)[0] == ("one", "wrong_card")
    assert attempts(user)[-1] == ("two", "completed")


def test_an_unknown_word_of_a_platform_ends_nothing(user: Any) -> None:
    """The status word changes to one that nobody knows; the job runs to its end."""
    user.settings({"one": {"card": "T4"}})
    user.ok("submit", user.counter(total=20, hold=10))
    until_saved(user)
    platform(user, "one").set_faults(unknown_word="HYPERSTATE")
    user.ok("tick")
    user.go()
    user.until_job("count", "succeeded")
    assert attempts(user) == [("one", "completed")]


def test_two_jobs_share_a_session_of_two_cards(user: Any) -> None:
    """T4 x2: side by side in one session, each with its own card."""
    user.settings({"one": {"card": "T4", "count": 2}})
    job = user.job_file(
        "name: pair\nrun: |\n  echo card $CUDA_VISIBLE_DEVICES\n  sleep 3\nfreegpu: {matrix: {N: [1, 2]}}\n"
    )
    user.ok("submit", job)
    names = [j["name"] for j in user.ok("jobs", "--json").json["data"]["jobs"]]
    for name in names:
        user.until_job(name, "succeeded")
    sessions = {user.job(name)["attempts"][0]["session"] for name in names}
    assert len(sessions) == 1
    assert {user.ok("logs", name).out.strip() for name in names} == {"card 0", "card 1"}


def test_up_is_continuous_alone_and_dies_without_harm(user: Any, expected: Any) -> None:
    """`up` moves the job over a hop by itself; a second one is told who holds it; kill -9 leaves no lock."""
    user.settings({"one": {"card": "L4", "window": WEEK}, "two": {"card": "T4", "window": WEEK}})
    daemon = user.starts("up")
    user.until(lambda: user.ok("status", "--json").json["data"]["orchestrator"])
    second = user.types("up")
    assert second.code == 21
    assert str(daemon.pid) in second.err
    user.ok("submit", user.counter(total=20, hold=10))
    user.until(lambda: user.job("count")["checkpoints"])
    session = user.job("count")["attempts"][0]["session"]
    platform(user, "one").set_faults(refuse_capacity=True)
    platform(user, "one").kill(session)
    user.until(
        lambda: (
            len(user.job("count")["attempts"]) >= 2
            and user.job("count")["attempts"][-1]["started_at"]
        )
    )
    os.kill(daemon.pid, signal.SIGKILL)
    daemon.communicate()
    user.go()
    user.until_job("count", "succeeded")
    assert pulled(user) == expected(20)
    third = user.starts("up")
    user.until(lambda: user.ok("status", "--json").json["data"]["orchestrator"])
    third.send_signal(signal.SIGTERM)
    _, err = third.communicate(timeout=20)
    assert third.returncode == 0, err


def test_commands_killed_at_any_moment_leave_a_home_that_goes_on(user: Any, expected: Any) -> None:
    """kill -9 of submit, tick, up, interrupt, pull and gc at many moments: one result, no two attempts at once."""
    user.settings({"one": {"card": "L4", "window": WEEK}, "two": {"card": "T4", "window": WEEK}})
    user.counter(total=60)
    commands = [
        ("submit", "count.yaml"),
        ("tick",),
        ("up",),
        ("tick",),
        ("interrupt", "count"),
        ("gc",),
        ("status",),
        ("pull", "count", "early"),
        ("up",),
        ("gc", "--keep-days", "0"),
    ]
    delay = 0.25
    for number, words in enumerate(commands * 2):
        process = user.starts(*words)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        delay = 0.25 + (number * 0.37) % 1.1
        listed = user.ok("jobs", "--json").json["data"]["jobs"]
        if not listed:
            user.ok("submit", "count.yaml")
        assert len(user.processes("counter.py")) <= 2 * max(1, len(listed))
    jobs = user.ok("jobs", "--json").json["data"]["jobs"]
    for job in jobs:
        detail = user.until_job(job["id"], "succeeded", 150)
        epochs = [a["epoch"] for a in detail["attempts"]]
        assert epochs == sorted(set(epochs))
        assert [a["reason"] for a in detail["attempts"]].count("completed") == 1
        assert pulled(user, job["id"]) == expected(60)
        (user.desk / "home" / "result.json").unlink()


def test_commands_at_once_neither_corrupt_nor_start_anything_twice(user: Any) -> None:
    """Eight commands in the same moment: every job is started once."""
    user.settings({"one": {"card": "T4", "max_concurrent": 4}})
    user.counter(total=10)
    user.ok("init")
    together = [user.starts("submit", "count.yaml") for _ in range(4)]
    together += [user.starts(word) for word in ("tick", "tick", "status", "jobs")]
    for process in together:
        _, err = process.communicate(timeout=60)
        assert process.returncode in (0, 21), err
        assert "Traceback" not in err
    jobs = user.ok("jobs", "--json").json["data"]["jobs"]
    assert len(jobs) == 4
    for job in jobs:
        detail = user.until_job(job["id"], "succeeded", 120)
        assert len(detail["attempts"]) == 1


def test_the_demo_keeps_its_promise(user: Any, tmp_path: Path) -> None:
    """One expired, one killed, the same bytes; within a minute and 400 MB."""
    ran = user.ok("demo", "--json", "--seed", "3", timeout=180)
    found = ran.json["data"]
    reasons = [a["reason"] for a in found["attempts"]]
    assert "session_expired" in reasons
    assert "lost" in reasons
    assert reasons[-1] == "completed"
    assert found["identical"] is True
    assert found["accuracy"] > 0.9
    assert found["size"] < 400_000_000
    assert any(moment["kind"] == "killed" for moment in found["timeline"])

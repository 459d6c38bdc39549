"""Real processes: racing for the same jobs, creating at the same moment, killed in the middle of anything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from freegpu.clock import SystemClock
from freegpu.jobs.lifecycle import AttemptState, JobState, SessionState
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import EntryKind

if TYPE_CHECKING:
    Bench = Any

#: waits for the file `go`, then tries to take every job, one session a job
RACER = """
import pathlib, sys, time
from freegpu.adapters.base import Offer
from freegpu.clock import SystemClock
from freegpu.errors import StaleEpochError
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator import ledger_sessions
url, go = sys.argv[1], pathlib.Path(sys.argv[2])
with Ledger.open(url, clock=SystemClock()) as ledger:
    jobs = [job.id for job in ledger.jobs()]
    ledger.record("warm", "the library is loaded and the connection is open")
    print("ready", flush=True)
    while not go.exists():
        time.sleep(0.001)
    for job in jobs:
        try:
            ledger.plan_session(
                platform="p", account="me", offer=Offer(platform="p", account="me", card="T4", pool="gpu"),
                limit_s=None, reserve_s=10, jobs=[(job, 0)], why="race")
        except StaleEpochError:
            continue
        print(job, flush=True)
"""

#: opens a ledger that is not there yet, as soon as the file `go` is
CREATOR = """
import pathlib, sys, time
from freegpu.clock import SystemClock
from freegpu.orchestrator.ledger import Ledger
url, go = sys.argv[1], pathlib.Path(sys.argv[2])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
with Ledger.open(url, clock=SystemClock()) as ledger:
    print(ledger.set_meta("home", sys.argv[3], if_absent=True))
"""

#: a process that has imported everything and forks a writer for each line of its input: (seed, log file)
NURSERY = """
import os, random, sys
from datetime import UTC, datetime, timedelta
from freegpu.adapters.base import Offer
from freegpu.clock import SystemClock
from freegpu.errors import FreeGPUError
from freegpu.jobs.lifecycle import AttemptEvent, AttemptState, EndReason, JobState, SessionEvent
from freegpu.jobs.model import JobSpec
from freegpu.jobs.retry import Retry, decide
from freegpu.orchestrator import ledger_attempts, ledger_jobs, ledger_sessions, writing
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Checkpoint, NewJob, Progress
url = sys.argv[1]

def write_for_ever(seed, log):
    rng = random.Random(seed)
    ledger = Ledger.open(url, clock=SystemClock())
    offer = Offer(platform="p", account="me", card="T4", count=2, pool="gpu", rate=2.0)
    said = open(log, "a", buffering=1)
    def say(*words):  # after the commit: what is said here is durable, whatever happens next
        said.write(" ".join(map(str, words)) + "\\n")
    def one():
        now = datetime.now(UTC)
        jobs, sessions = ledger.jobs(), ledger.sessions()
        attempts = ledger.attempts(open_only=True)
        act = rng.randrange(12)
        if act == 0 or not jobs:
            retry = Retry(failures=rng.choice([0, 1, None]))
            ledger.add_jobs([NewJob(spec=JobSpec(name=f"j{i}", run="x", retry=retry)) for i in range(3)], why="s")
        elif act == 1 or not sessions:
            waiting = [(w.id, i % 2) for i, w in enumerate(ledger.waiting(now)[:2])]
            session, made = ledger.plan_session(platform="p", account="me", offer=offer,
                limit_s=100, reserve_s=100, jobs=waiting, why="plan")
            for each in made:
                say("epoch", each.job, each.epoch)
        elif act == 2:
            ready = ledger.waiting(now)
            if ready:
                made = ledger.allocate(rng.choice(sessions).id, rng.choice(ready).id, 0, why="more")
                say("epoch", made.job, made.epoch)
        elif act == 3:
            job = rng.choice(jobs)
            say("epoch", job.id, ledger.bump_epoch(job.id))
        elif act == 4:
            session = rng.choice(sessions)
            say("inbox", session.id, ledger.next_inbox(session.id))
        elif act == 5 and attempts:
            a = rng.choice(attempts)
            ledger.confirm_checkpoint(Checkpoint(key=f"{a.id}/{now.timestamp()}", sha256="0", attempt=a.id,
                epoch=a.epoch, generation=rng.randrange(1000), step=1, size=1, confirmed_at=now), a.job, saved_at=now)
        elif act in (6, 7) and attempts:
            a = rng.choice(attempts)
            job = ledger.job(a.job)
            reason = rng.choice([EndReason.LOST, EndReason.COMMAND_FAILED, EndReason.SESSION_EXPIRED])
            verdict = decide(job.spec.retry, reason, failures=job.failures, preemptions=job.preemptions)
            ledger.end_attempt(a.id, reason=reason, detail="", exit_code=1, run_s=1, lost_s=1, outputs=None,
                brought_checkpoint=False, verdict=verdict, not_before=None, at=now)
        elif act == 8:
            session = rng.choice(sessions)
            if not ledger.attempts(session=session.id, open_only=True):
                if ledger.end_session(session.id, reason="x", charged_s=30, at=now):
                    say("ended", session.id)
        elif act == 9 and attempts:
            a = rng.choice(attempts)
            if ledger.accept_result(a.job, a.id, (a.id, "0"), at=now):
                say("result", a.job, a.id)
        elif act == 10:
            job = rng.choice(jobs)
            (ledger.retry_job(job.id, from_scratch=rng.random() < 0.5) if job.state.final
                else ledger.cancel_job(job.id, at=now))
        elif act == 11 and attempts:
            a = rng.choice(attempts)
            ledger.note_attempt(a.id, progress=Progress(step=rng.random(), total=1))
            if a.state is AttemptState.ALLOCATED:
                ledger.attempt_event(a.id, AttemptEvent.START, started_at=now)
    while True:
        try:
            one()
        except FreeGPUError as error:
            if error.exit_code not in (30, 31):  # somebody else was faster: that is the point
                say("error", repr(error))
        said.write("did\\n")

print("ready", flush=True)
for line in sys.stdin:
    seed, log = line.split()
    pid = os.fork()
    if pid == 0:
        write_for_ever(int(seed), log)
    print(pid, flush=True)
"""


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def together(script: str, go: Path, *arguments: list[str]) -> list[list[str]]:
    """Start one process for each list, let them loose at one moment, and return what each printed."""
    racers = [start(script, *each) for each in arguments]
    for racer in racers:
        assert racer.stdout is not None
        first = racer.stdout.readline()
        assert first == "ready\n", racer.communicate()[1]
    go.touch()
    printed = []
    for racer in racers:
        out, error = racer.communicate(timeout=120)
        assert racer.returncode == 0, error
        printed.append(out.split())
    return printed


@pytest.mark.slow
def test_of_two_processes_exactly_one_gets_a_job(bench: Bench, tmp_path: Path) -> None:
    """Twenty jobs, two orchestrators at once: every job is started once, with one session and one reserve."""
    jobs = bench.submit(*[f"job-{i}" for i in range(20)])
    go = tmp_path / "go"
    one, two = together(RACER, go, [bench.url, str(go)], [bench.url, str(go)])
    assert sorted(one + two) == sorted(job.id for job in jobs)
    assert len(bench.ledger.sessions()) == len(bench.ledger.entries()) == 20
    assert {job.epoch for job in bench.ledger.jobs()} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(3))
def test_several_processes_may_create_the_ledger_at_once(
    url: str, tmp_path: Path, round_: int
) -> None:
    """One makes it, the others find it; all agree on its facts."""
    go = tmp_path / "go"
    printed = together(CREATOR, go, *[[url, str(go), f"home-{i}"] for i in range(4)])
    homes = {words[-1] for words in printed}
    assert len(homes) == 1
    with Ledger.open(url, clock=SystemClock()) as ledger:
        assert ledger.meta("home") in homes
        assert ledger.damage() == []


def check(ledger: Ledger, said: list[list[str]]) -> None:
    """Everything that must hold whatever was interrupted."""
    assert ledger.damage() == []
    by_session: dict[str, Counter[str]] = {}
    amounts: dict[tuple[str, EntryKind], float] = {}
    for entry in ledger.entries():
        by_session.setdefault(entry.session, Counter())[entry.kind.value] += 1
        amounts[entry.session, entry.kind] = entry.amount_s
    sessions = {session.id: session for session in ledger.sessions(open_only=False)}
    assert set(by_session) == set(sessions)
    for name, session in sessions.items():
        ended = session.state is SessionState.ENDED
        lines = {"reserve": 1, "release": 1, "charge": 1} if ended else {"reserve": 1}
        assert by_session[name] == lines, name
        if ended:
            assert amounts[name, EntryKind.RELEASE] == amounts[name, EntryKind.RESERVE]
            assert amounts[name, EntryKind.CHARGE] == session.charged_s == 60
    attempts = ledger.attempts()
    open_jobs = {a.job for a in attempts if a.state is not AttemptState.ENDED}
    jobs = {job.id: job for job in ledger.jobs()}
    for job in jobs.values():
        own = [a for a in attempts if a.job == job.id]
        if job.state is JobState.ACTIVE:
            assert job.id in open_jobs, f"{job.id} is active without an open attempt"
            assert sum(not a.fenced for a in own) <= 1
        assert [a.number for a in own] == list(range(1, job.attempts + 1))
        assert [a.epoch for a in own] == sorted({a.epoch for a in own})
        assert all(a.epoch <= job.epoch for a in own)
        assert (job.state is JobState.SUCCEEDED) == bool(job.result_attempt)
    for attempt in attempts:
        assert attempt.session in sessions
    allocated = Counter(
        e.attempt for e in ledger.events(limit=1_000_000) if e.action == "attempt.allocated"
    )
    assert allocated == Counter(a.id for a in attempts), "a write and its audit line go together"
    # what a writer was told is durable and was told to nobody else
    for kind in ("epoch", "inbox", "ended", "result"):
        told = Counter(tuple(words[1:]) for words in said if words[0] == kind)
        assert not [each for each, times in told.items() if times > 1], kind
    for kind, name, *rest in (words for words in said if len(words) > 1):
        if kind == "epoch":
            assert int(rest[0]) <= jobs[name].epoch
        elif kind == "inbox":
            assert int(rest[0]) < sessions[name].inbox_next
        elif kind == "ended":
            assert sessions[name].state is SessionState.ENDED
        elif kind == "result":
            assert jobs[name].result_attempt == rest[0]
        else:
            pytest.fail(f"a writer met {kind} {name} {rest}")


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_a_whole_ledger(url: str, tmp_path: Path) -> None:
    """Twenty rounds of two writers at once, each killed at a random moment of a loop of every kind of write."""
    Ledger.open(url, clock=SystemClock()).close()
    rng = random.Random(20261202)
    nursery = start(NURSERY, url)
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    logs: list[Path] = []
    try:
        assert nursery.stdout.readline() == "ready\n"
        for round_ in range(20):
            pids = []
            for writer in range(2):
                logs.append(tmp_path / f"{round_}-{writer}.log")
                nursery.stdin.write(f"{round_ * 10 + writer} {logs[-1]}\n")
                nursery.stdin.flush()
                pids.append(int(nursery.stdout.readline()))
            for pid, log in zip(pids, logs[-2:], strict=True):
                # by deeds, not by time: on a busy machine a writer gets little done in a second
                deeds, until = rng.randrange(1, 16), time.monotonic() + 60
                while not log.exists() or log.read_text().count("did\n") < deeds:
                    assert time.monotonic() < until, "a writer does nothing"
                    time.sleep(0.002)
                time.sleep(rng.uniform(0.0, 0.02))
                os.kill(pid, signal.SIGKILL)
            with Ledger.open(url, clock=SystemClock()) as ledger:
                said = [line.split() for log in logs for line in log.read_text().splitlines()]
                check(ledger, [words for words in said if words != ["did"]])
                ledger.record("test", "and it can be written to")
    finally:
        nursery.stdin.close()
        nursery.kill()
        nursery.wait()
        nursery.stdout.close()
        assert nursery.stderr is not None
        nursery.stderr.close()
    with Ledger.open(url, clock=SystemClock()) as ledger:
        assert len(ledger.attempts()) > 20, "the writers did something"
        assert len(ledger.sessions(open_only=False)) > len(ledger.sessions()), "and ended some"

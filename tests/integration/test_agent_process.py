"""The agent as it is shipped: the built archive in a process of its own, on a folder store, with real commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from freegpu.agent import wire
from freegpu.orchestrator import agent_archive
from tests.integration.agent_session import AgentSession, gone, until

SAVER = """
echo '{"step": 0}' > "$FREEGPU_CHECKPOINT_DIR/state.json"
python3 -c '
import json, os, signal, sys, time
path = os.path.join(os.environ["FREEGPU_CHECKPOINT_DIR"], "state.json")
def save(*_):
    time.sleep(0.3)
    open(path, "w").write(json.dumps({"step": 41}))
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
'
"""


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_archive.build(tmp_path_factory.mktemp("archive"))[0]


@pytest.fixture
def session(tmp_path: Path, archive: Path) -> Iterator[AgentSession]:
    made = AgentSession(tmp_path, archive)
    yield made
    made.close()


def restored(session: AgentSession, event: dict[str, object]) -> wire.Base:
    """The base that a checkpoint event names."""
    return wire.Base(
        key=str(event["key"]),
        sha256=str(event["sha256"]),
        epoch=int(str(event["epoch"])),
        generation=int(str(event["generation"])),
    )


# --- one attempt ---------------------------------------------------------------------------------------


def test_a_job_runs_from_its_bundle_to_its_outputs(session: AgentSession) -> None:
    """Setup, run, output, outputs, checkpoint, events in order, and a heartbeat that says so."""
    bundle = session.bundle({"train.sh": "echo training\nmkdir results\necho 1 > results/score"})
    ticket = session.run(
        'cat made; bash train.sh; echo model > "$FREEGPU_OUTPUT_DIR/model.bin"',
        setup="echo installed > made",
        bundle=bundle,
        outputs=("results/**",),
    )
    session.start()
    ended = session.event("ended")
    assert (ended["reason"], ended["exit_code"], ended["signal"]) == ("completed", 0, None)
    assert [event["kind"] for event in session.events()] == ["started", "ended"]
    assert session.log(ticket.attempt) == b"installed\ntraining\n"
    assert ended["log_segments"] == len(session.store.list(wire.log_prefix(ticket.attempt)))
    outputs = session.manifest(ended["outputs"]["key"], ended["outputs"]["sha256"])
    assert session.contents(outputs) == {"model.bin": b"model\n", "results/score": b"1\n"}
    until(lambda: session.beat()["state"] == "idle")
    assert session.beat()["slots"] == []
    until(lambda: not (session.work / "attempts" / ticket.attempt).exists())


def test_hello_tells_what_the_session_is(session: AgentSession) -> None:
    """Signed, with the machine's facts and no problem on a CPU slot."""
    session.start(limit_s=600.0)
    hello = session.hello()
    assert hello["python"] == ".".join(map(str, sys.version_info[:3]))
    assert hello["slots"][0]["asked"] == "CPU"
    assert (hello["problems"], hello["limit_s"], hello["torch"]) == ([], 600.0, None)
    assert hello["disk_free_gb"] > 0
    assert 0 < session.beat()["left_s"] <= 600


def test_the_command_sees_what_freegpu_and_skypilot_promise(session: AgentSession) -> None:
    """The variables of the design, none of the agent's own, and the secrets in clear only here."""
    secrets = wire.seal(session.key, os.urandom(16), {"WANDB_API_KEY": "very-secret-value"})
    script = 'python3 -c \'import json, os; print(json.dumps(dict(os.environ)))\' > env.json; test "$WANDB_API_KEY" = very-secret-value && cp env.json "$FREEGPU_OUTPUT_DIR"; python3 -c \'import freegpu_job\'; sed -i s/very-secret-value/hidden/ "$FREEGPU_OUTPUT_DIR/env.json"'
    slot = wire.Slot(index=0, card="T4", gpus=("1", "2"), vram_gb=15.0, precision="fp16")
    session.run(script, number=3, epoch=4, envs={"LR": "0.1"}, secrets=secrets, grace_s=5.0)
    before = time.time()
    session.start(slots=(slot,), limit_s=120.0)
    ended = session.event("ended")
    assert ended["reason"] == "completed", ended
    manifest = session.manifest(ended["outputs"]["key"], ended["outputs"]["sha256"])
    env = json.loads(session.contents(manifest)["env.json"])
    source = session.work / "attempts" / "job-1-4" / "src"
    expected = {
        "LR": "0.1",
        "FREEGPU_JOB_ID": "job-1",
        "FREEGPU_ATTEMPT": "3",
        "FREEGPU_RESUME": "0",
        "FREEGPU_CHECKPOINT_DIR": str(source / "ckpt"),
        "FREEGPU_CARD": "T4",
        "FREEGPU_GPU_COUNT": "2",
        "FREEGPU_VRAM_GB": "15",
        "FREEGPU_PRECISION": "fp16",
        "CUDA_VISIBLE_DEVICES": "1,2",
        "PYTHONUNBUFFERED": "1",
        "SKYPILOT_NODE_RANK": "0",
        "SKYPILOT_NUM_NODES": "1",
        "SKYPILOT_NODE_IPS": "127.0.0.1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_SETUP_NODE_RANK": "0",
        "SKYPILOT_SETUP_NODE_IPS": "127.0.0.1",
        "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": "2",
        "SKYPILOT_TASK_ID": "job-1-4",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert before + 100 < int(env["FREEGPU_DEADLINE"]) < time.time() + 120
    assert "FREEGPU_HOME" not in env
    assert int(env["FREEGPU_CPU_COUNT"]) >= 1


def test_a_secret_lies_nowhere_in_clear_but_in_the_commands_memory(session: AgentSession) -> None:
    """Not in the store, not in the log even if the job prints it, not in the work folder's scripts."""
    secret = "s3cr3t-of-the-user"
    sealed = wire.seal(session.key, os.urandom(16), {"TOKEN": secret})
    session.run('echo "token $TOKEN."; echo half ${TOKEN:0:7}; exit 3', secrets=sealed)
    session.start()
    ended = session.event("ended")
    assert session.log("job-1-1").startswith(b"token ***.\n")
    assert ended["exit_code"] == 3
    for path in session.root.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    ("script", "reason", "code"),
    [
        ("true", "completed", 0),
        ("exit 75", "resume_requested", 75),
        ("exit 3", "command_failed", 3),
        ("no-such-command", "command_failed", 127),
    ],
)
def test_the_exit_code_says_how_it_ended(
    session: AgentSession, script: str, reason: str, code: int
) -> None:
    """0 is done, 75 is "saved, resume me", anything else has failed; also if it exits at once."""
    session.run(script)
    session.start()
    ended = session.event("ended")
    assert (ended["reason"], ended["exit_code"]) == (reason, code)


def test_a_failed_command_shows_its_last_lines(session: AgentSession) -> None:
    """The detail is what a person needs first."""
    session.run("seq 1 50; echo 'ValueError: no such layer' >&2; exit 1")
    session.start()
    detail = session.event("ended")["detail"]
    assert detail.startswith("exit code 1\n")
    assert detail.endswith("50\nValueError: no such layer")
    assert "\n30\n" not in detail


def test_a_failed_setup_is_told_as_such_and_nothing_is_started(session: AgentSession) -> None:
    """There is no `started` event: the command never ran."""
    session.run("echo never", setup="echo one\nfalse\necho two")
    session.start()
    ended = session.event("ended")
    assert (ended["reason"], ended["exit_code"]) == ("command_failed", 1)
    assert ended["detail"] == "setup: exit code 1\none"
    assert [event["kind"] for event in session.events()] == ["ended"]


def test_a_command_killed_by_a_signal_is_told_by_name(session: AgentSession) -> None:
    """The usual one is the kernel's, when memory runs out."""
    session.run("kill -9 $$")
    session.start()
    ended = session.event("ended")
    assert (ended["reason"], ended["exit_code"], ended["signal"]) == ("command_failed", None, 9)
    assert "SIGKILL" in ended["detail"]


def test_invalid_utf8_and_progress_bars_pass_through_as_bytes(session: AgentSession) -> None:
    """Output is bytes; nothing is decoded on the way."""
    script = r"""printf '\xff\xfe\x00\r 12%%|# | 120/1000 [00:10<01:20, 10.9it/s]\n'; sleep 0.5"""
    session.run(script)
    session.start()
    ended = session.event("ended")
    expected = b"\xff\xfe\x00\r 12%|# | 120/1000 [00:10<01:20, 10.9it/s]\n"
    assert session.log("job-1-1") == expected
    assert ended["progress"] == {"step": 120, "total": 1000, "rate": 10.9}


def test_progress_shows_in_the_heartbeat_while_the_job_runs(session: AgentSession) -> None:
    """With the job's place and phase beside it."""
    session.run('echo \'FREEGPU_PROGRESS {"step": 7, "total": 9}\'; sleep 30')
    session.start()
    slot = until(lambda: next((s for s in session.beat()["slots"] if s["progress"]), None))
    assert slot == {
        "slot": 0,
        "attempt": "job-1-1",
        "job": "job-1",
        "epoch": 1,
        "phase": "running",
        "progress": {"step": 7, "total": 9},
    }


@pytest.mark.slow
def test_a_hundred_megabytes_of_output_do_not_hold_up_the_job(session: AgentSession) -> None:
    """The job writes into a file at its own speed; every byte arrives."""
    script = 'python3 -c \'\nimport sys, time\nstart = time.time()\nfor i in range(100): sys.stdout.buffer.write(b"%015d\\n" % i * 65536)\nsys.stdout.flush(); print("took", round(time.time() - start, 2))\''
    session.run(script)
    session.start()
    ended = session.event("ended", seconds=60)
    log = session.log("job-1-1")
    assert len(log) > 100 << 20
    assert log[: 100 << 20] == b"".join(b"%015d\n" % i * 65536 for i in range(100))
    assert float(log.rsplit(b" ", 1)[1]) < 10
    assert ended["log_segments"] >= 100


# --- ends ----------------------------------------------------------------------------------------------


def test_a_stop_lets_the_job_save_and_brings_the_checkpoint_home(session: AgentSession) -> None:
    """SIGTERM, grace, then the last checkpoint; the reason is the ticket's."""
    session.run(SAVER)
    session.start()
    session.shows("job-1-1", b"ready")
    session.send(wire.stop_ticket("job-1", 2, "preempted"))
    ended = session.event("ended")
    assert (ended["reason"], ended["exit_code"]) == ("preempted", 75)
    last = [event for event in session.events() if event["kind"] == "checkpoint"][-1]
    manifest = session.manifest(last["key"], last["sha256"])
    assert session.contents(manifest) == {"state.json": b'{"step": 41}'}
    assert session.log("job-1-1").endswith(b"saved\n")


def test_a_stop_of_the_same_epoch_does_not_stop(session: AgentSession) -> None:
    """Only a strictly higher epoch fences; a stale or repeated ticket may not end the newest attempt."""
    session.run("echo ready; sleep 30", epoch=5)
    session.start()
    session.shows("job-1-5", b"ready")
    session.send(wire.stop_ticket("job-1", 5, "preempted"))
    session.send(wire.stop_ticket("job-2", 9, "preempted"))
    session.send(wire.cancel_ticket("job-1", 4))
    until(lambda: session.beat()["inbox_seq"] == 4)
    time.sleep(0.3)
    assert session.phase() == "running"
    session.send(wire.stop_ticket("job-1", 6, "preempted"))
    assert session.event("ended")["reason"] == "preempted"


def test_a_cancel_of_the_same_epoch_stops(session: AgentSession) -> None:
    """And it is cancelled whatever the exit code says: nobody wants the result."""
    session.run("trap 'exit 0' TERM; echo ready; sleep 30 & wait", epoch=5)
    session.start()
    session.shows("job-1-5", b"ready")
    session.send(wire.cancel_ticket("job-1", 5))
    ended = session.event("ended")
    assert (ended["reason"], ended["exit_code"]) == ("cancelled", 0)


def test_a_job_that_finishes_while_it_is_stopped_has_finished(session: AgentSession) -> None:
    """Exit 0 is done, also after SIGTERM: the result is whole, and throwing it away helps nobody."""
    session.run(
        "trap 'echo 1 > $FREEGPU_OUTPUT_DIR/x; exit 0' TERM; echo ready; sleep 30 & wait", epoch=1
    )
    session.start()
    session.shows("job-1-1", b"ready")
    session.send(wire.stop_ticket("job-1", 2, "superseded"))
    ended = session.event("ended")
    assert ended["reason"] == "completed"
    assert ended["outputs"]


def test_a_command_that_ignores_sigterm_is_killed_after_its_grace(session: AgentSession) -> None:
    """With everything that it started."""
    session.run("trap '' TERM\nsleep 300 &\necho pid $!\necho ready\nsleep 300", grace_s=1.0)
    session.start()
    session.shows("job-1-1", b"ready")
    pid = int(session.log("job-1-1").split()[1])
    began = time.monotonic()
    session.send(wire.stop_ticket("job-1", 2, "preempted"))
    ended = session.event("ended")
    assert (ended["reason"], ended["signal"]) == ("preempted", 9)
    assert 0.9 < time.monotonic() - began < 6
    until(lambda: gone(pid), 2)


@pytest.mark.parametrize(
    "leave", ["sleep 300 &", "nohup sleep 300 >/dev/null 2>&1 &", "(setsid sleep 300 &) &"]
)
def test_what_a_finished_command_left_behind_is_killed(session: AgentSession, leave: str) -> None:
    """Background, nohup and a double fork into another session: the card is free afterwards."""
    session.run(f"{leave}\nsleep 0.3; pgrep -f 'sleep 300' > \"$FREEGPU_OUTPUT_DIR/pids\"; true")
    session.start()
    ended = session.event("ended")
    assert ended["reason"] == "completed"
    manifest = session.manifest(ended["outputs"]["key"], ended["outputs"]["sha256"])
    pids = [int(pid) for pid in session.contents(manifest)["pids"].split()]
    ours = [pid for pid in pids if not gone(pid) and _is_ours(pid, session)]
    assert pids
    assert not ours


def _is_ours(pid: int, session: AgentSession) -> bool:
    """Whether a process belongs to this test; others may run beside it."""
    try:
        return str(session.work).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
def test_the_limit_stops_the_job_in_time_and_saves_it(session: AgentSession) -> None:
    """By the agent's own clock: the orchestrator says nothing. Then the session ends by itself."""
    session.run(SAVER, grace_s=1.5)
    began = time.monotonic()
    session.start(limit_s=6.0, margin_s=2.0)
    ended = session.event("ended")
    assert (ended["reason"], ended["exit_code"]) == ("session_expired", 75)
    assert time.monotonic() - began < 6
    last = [event for event in session.events() if event["kind"] == "checkpoint"][-1]
    assert session.contents(session.manifest(last["key"], last["sha256"])) == {
        "state.json": b'{"step": 41}'
    }
    assert session.wait() == 0
    assert time.monotonic() - began < 6.5
    assert session.exit["end"] == "limit"
    assert session.beat()["state"] == "ended"


def test_nothing_is_begun_when_too_little_time_is_left(session: AgentSession) -> None:
    """Grace and margin have to fit."""
    session.run("echo no", grace_s=30.0)
    session.start(limit_s=20.0)
    assert "s are left of the session" in session.event("refused")["detail"]


def test_sigterm_to_the_agent_is_like_the_limit(session: AgentSession) -> None:
    """The platform, or a person, wants the machine back."""
    session.run(SAVER)
    process = session.start()
    session.shows("job-1-1", b"ready")
    process.send_signal(signal.SIGTERM)
    assert session.wait() == 0
    assert session.event("ended")["reason"] == "session_expired"
    assert session.exit["end"] == "signal"
    assert session.exit["attempts"] == [{"attempt": "job-1-1", "outcome": "session_expired"}]


@pytest.mark.parametrize("kill_setup", [True, False])
def test_no_command_survives_an_agent_that_is_killed(
    session: AgentSession, kill_setup: bool
) -> None:
    """SIGKILL to the agent: its guard ends the job within a second or two."""
    script = "trap '' TERM\necho pid $$\nsetsid sleep 300 &\necho pid $!\necho ready\nsleep 300"
    session.run(**({"script": "true", "setup": script} if kill_setup else {"script": script}))
    process = session.start()
    session.shows("job-1-1", b"ready")
    pids = [int(line.split()[1]) for line in session.log("job-1-1").splitlines() if b"pid" in line]
    assert len(pids) == 2
    process.kill()
    process.wait()
    until(lambda: all(gone(pid) for pid in pids), 2)


def test_an_idle_agent_ends_by_itself(session: AgentSession) -> None:
    """A session without work costs quota."""
    session.start(idle_s=0.5)
    assert session.wait() == 0
    assert session.exit["end"] == "idle"
    assert session.beat()["state"] == "ended"


def test_a_drained_session_finishes_what_runs_and_takes_nothing_new(session: AgentSession) -> None:
    """Then it ends."""
    session.run("echo ready; sleep 1")
    session.start()
    session.shows("job-1-1", b"ready")
    session.run("echo waiting", job="job-2")
    session.send(wire.drain_ticket())
    session.run("echo late", job="job-3")
    assert session.wait() == 0
    assert session.event("ended", "job-1-1")["reason"] == "completed"
    assert session.event("refused", "job-2-1")
    assert session.event("refused", "job-3-1")
    assert session.exit["end"] == "drained"


# --- several attempts ------------------------------------------------------------------------------------


def test_a_second_attempt_resumes_from_the_first_ones_checkpoint(session: AgentSession) -> None:
    """Same session, one after the other; the base is named and verified."""
    session.run(SAVER)
    session.start()
    session.shows("job-1-1", b"ready")
    session.send(wire.stop_ticket("job-1", 2, "preempted"))
    session.event("ended", "job-1-1")
    last = [event for event in session.events() if event["kind"] == "checkpoint"][-1]
    script = 'echo resume=$FREEGPU_RESUME; cat "$FREEGPU_CHECKPOINT_DIR/state.json"'
    session.run(script, number=2, epoch=2, base=restored(session, last))
    ended = session.event("ended", "job-1-2")
    assert ended["reason"] == "completed"
    assert session.log("job-1-2") == b'resume=1\n{"step": 41}'
    assert session.event("started", "job-1-2")["resumed"] is True


def test_slots_run_side_by_side_and_a_busy_slot_queues(session: AgentSession) -> None:
    """Two slots, three tickets: the third waits for its slot, and no longer."""
    slots = (wire.Slot(0, "T4", ("0",)), wire.Slot(1, "T4", ("1",)))
    meet = "touch {0}; for i in $(seq 100); do [ -e {1} ] && exit 0; sleep 0.05; done; exit 1"
    ours, theirs = session.folder / "a", session.folder / "b"
    session.run(meet.format(ours, theirs) + "", job="job-1", slot=0)
    session.run(meet.format(theirs, ours), job="job-2", slot=1)
    session.run("echo $CUDA_VISIBLE_DEVICES", job="job-3", slot=1)
    session.start(slots=slots)
    assert session.event("ended", "job-1-1")["reason"] == "completed"
    assert session.event("ended", "job-2-1")["reason"] == "completed"
    assert session.event("ended", "job-3-1")["reason"] == "completed"
    assert session.log("job-3-1") == b"1\n"


def test_a_newer_attempt_of_the_same_job_supersedes_the_older_one(session: AgentSession) -> None:
    """The run ticket itself fences; the older attempt's command ends quickly."""
    slots = (wire.Slot(0, "T4", ("0",)), wire.Slot(1, "T4", ("1",)))
    session.run("echo ready; sleep 300", epoch=1, slot=0)
    session.start(slots=slots)
    session.shows("job-1-1", b"ready")
    session.run("echo newer", epoch=2, slot=1)
    assert session.event("ended", "job-1-1")["reason"] == "superseded"
    assert session.event("ended", "job-1-2")["reason"] == "completed"
    session.run("echo stale", epoch=1, attempt="job-1-again", slot=0)
    assert "newer epoch" in session.event("refused", "job-1-again")["detail"]


def test_a_ticket_that_waits_can_be_cancelled(session: AgentSession) -> None:
    """It ends without having begun."""
    session.run("echo ready; sleep 30", job="job-1")
    session.run("echo never", job="job-2")
    session.start()
    session.shows("job-1-1", b"ready")
    session.send(wire.cancel_ticket("job-2", 1))
    ended = session.event("ended", "job-2-1")
    assert (ended["reason"], ended["exit_code"]) == ("cancelled", None)


@pytest.mark.slow
def test_a_window_pauses_the_job_until_somebody_confirms(session: AgentSession) -> None:
    """window 0: never more than one interval of work is at stake."""
    script = """
for i in $(seq 1 200); do
  echo "{\\"step\\": $i}" > "$FREEGPU_CHECKPOINT_DIR/tmp" && mv "$FREEGPU_CHECKPOINT_DIR/tmp" "$FREEGPU_CHECKPOINT_DIR/state.json"
  echo $i
  sleep 1
done"""
    session.run(script, window=0)
    session.start()
    until(lambda: session.phase() == "paused")
    time.sleep(0.5)
    held = session.log("job-1-1")
    time.sleep(1.5)
    assert session.log("job-1-1") == held

    def goes_on() -> bool:
        # one more may have been on its way when it was paused: confirm what is there
        there = [e["generation"] for e in session.events() if e["kind"] == "checkpoint"]
        session.answer(0, {"job-1-1": max(there, default=0)})
        return len(session.log("job-1-1")) > len(held)

    until(goes_on)
    until(lambda: session.phase() == "paused")
    session.send(wire.cancel_ticket("job-1", 1))
    assert session.event("ended")["reason"] == "cancelled"


# --- the mailbox ----------------------------------------------------------------------------------------


def test_a_forged_ticket_is_not_obeyed_and_does_not_block_the_real_one(
    session: AgentSession,
) -> None:
    """Another writer of the shared folder has no key; nor may he move a ticket to another number."""
    proof = session.folder / "proof"
    forged = session.ticket(f"touch {proof}", attempt="forged-1")
    session.send(forged.to_json(), key=b"x" * 32)
    session.start()
    session.beat()
    moved = wire.pack_ticket(session.session, 7, forged.to_json(), session.key)
    session.store.put(wire.inbox_key(session.session, 1), moved)
    time.sleep(0.5)
    assert not proof.exists()
    session.tickets = 0
    session.run("true")
    assert session.event("ended")["reason"] == "completed"
    assert not proof.exists()


def test_a_torn_ticket_is_read_when_it_is_whole_and_later_ones_wait_for_it(
    session: AgentSession,
) -> None:
    """Tickets are handled in the order of their numbers or not at all."""
    ticket = session.ticket("echo first")
    data = wire.pack_ticket(session.session, 1, ticket.to_json(), session.key)
    session.store.put(wire.inbox_key(session.session, 1), data[: len(data) // 2])
    session.tickets = 1
    session.run("echo second", job="job-2")
    session.start()
    session.beat()
    time.sleep(0.5)
    assert session.events() == []
    session.store.put(wire.inbox_key(session.session, 1), data)
    session.event("ended", "job-2-1")
    ended = [event["attempt"] for event in session.events() if event["kind"] == "ended"]
    assert ended == ["job-1-1", "job-2-1"]


def test_the_same_attempt_under_two_numbers_runs_once(session: AgentSession) -> None:
    """An orchestrator that was killed between two steps may send it again."""
    mark = session.folder / "mark"
    ticket = session.run(f"echo x >> {mark}")
    session.send(ticket.to_json())
    session.run("true", job="job-2")
    session.start()
    session.event("ended", "job-2-1")
    assert mark.read_text() == "x\n"


def test_a_ticket_that_cannot_be_done_is_refused_with_a_reason(session: AgentSession) -> None:
    """Unknown slot, secrets of another key, an incomplete ticket, a kind of the future."""
    session.run("true", attempt="no-slot", slot=7)
    sealed = wire.seal(b"y" * 32, os.urandom(16), {"A": "b"})
    session.run("true", attempt="no-key", secrets=sealed)
    session.send({"kind": "run", "job": "job-1", "attempt": "no-run", "epoch": 1})
    session.send({"kind": "dance"})
    digest = session.bundle({"a": "b"})
    session.store.put(wire.input_key(wire.sha256(b"no archive")), b"no archive")
    session.run("true", attempt="no-archive", job="job-2", bundle=wire.sha256(b"no archive"))
    session.run("true", attempt="fine", job="job-3", bundle=digest)
    session.start()
    assert "no slot 7" in session.event("refused", "no-slot")["detail"]
    assert "secrets" in session.event("refused", "no-key")["detail"]
    assert "incomplete" in session.event("refused", "no-run")["detail"]
    assert "unpacked" in session.event("refused", "no-archive")["detail"]
    assert session.event("notice")["code"] == "unknown_ticket"
    assert session.event("ended", "fine")["reason"] == "completed"


def test_an_event_that_nobody_acknowledged_is_written_again_byte_for_byte(
    session: AgentSession,
) -> None:
    """A store may lose a file without an error. (The wait of 30 s is in the unit test; here: no ack, no harm.)"""
    session.run("true")
    session.start()
    session.event("ended")
    session.answer(len(session.events()))
    session.send(wire.bye_ticket())
    assert session.wait() == 0
    assert session.exit["unsent_events"] == 0


@pytest.mark.slow
def test_a_job_goes_on_while_the_store_is_away(session: AgentSession) -> None:
    """Nothing is lost: output, events and outputs arrive when it is back, and the job noticed nothing."""
    script = (
        "for i in $(seq 1 30); do echo line $i; sleep 0.1; done; echo x > $FREEGPU_OUTPUT_DIR/x"
    )
    session.run(script)
    session.start()
    session.shows("job-1-1", b"line 1\n")
    away = session.root.with_name("away")
    session.root.rename(away)
    time.sleep(5)
    assert not session.root.exists()
    away.rename(session.root)
    ended = session.event("ended", seconds=40)
    assert ended["reason"] == "completed"
    assert ended["seconds"] < 5
    assert session.log("job-1-1") == b"".join(b"line %d\n" % i for i in range(1, 31))
    assert session.contents(session.manifest(**_named(ended))) == {"x": b"x\n"}


def _named(ended: dict[str, dict[str, str]]) -> dict[str, str]:
    return {"key": ended["outputs"]["key"], "digest": ended["outputs"]["sha256"]}


def test_two_agents_do_not_share_a_session(session: AgentSession) -> None:
    """The second one would number its events like the first; it says so and leaves."""
    first = session.start()
    session.hello()
    second = session.start()
    assert second.wait(10) == 3
    assert "another agent is at work" in session.said
    first.send_signal(signal.SIGTERM)
    assert first.wait(10) == 0
    third = session.start()
    assert third.wait(10) == 3
    assert "has had its agent" in session.said


def test_a_store_of_another_home_is_left_alone(session: AgentSession) -> None:
    """The agent writes nothing into it."""
    session.store.put("freegpu.json", json.dumps({"format": 1, "home": "other"}).encode())
    session.start()
    assert session.wait() == 4
    assert "belongs to home other" in session.said
    assert session.store.list("") == ["freegpu.json"]


def test_a_profile_that_makes_no_sense_is_refused_in_one_line(session: AgentSession) -> None:
    """No traceback."""
    process = session.start()
    process.kill()
    process.wait()
    (session.folder / "agent.err").write_text("")
    for text in ("{", '{"format": 99}', '{"format": 1}', "[]"):
        (session.folder / "bad.json").write_text(text)
        command = [session.python, "-I", str(session.archive), str(session.folder / "bad.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "not usable" in done.stderr


def test_a_run_ticket_survives_its_way_through_json() -> None:
    """What the agent reads is what the orchestrator meant."""
    run = wire.Run("j", "a", 1, 1, 0, "n", "r", base=wire.Base("k", "s", 1, 2), outputs=("x",))
    assert wire.Run.from_json(json.loads(json.dumps(run.to_json()))) == replace(run)

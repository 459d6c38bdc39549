"""Tickets, attempts and the session's end, on a manual clock: every part is the real one but the processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from freegpu.agent import wire
from freegpu.agent.attempt import judge, stronger
from freegpu.agent.limits import Limits
from freegpu.agent.place import Place
from tests.unit.agent_parts import Bench

T4S = (wire.Slot(0, "T4", ("0",)), wire.Slot(1, "T4", ("1",)))


@pytest.mark.parametrize(
    ("code", "wish", "ran", "reason"),
    [
        (0, "", True, "completed"),
        (75, "", True, "resume_requested"),
        (1, "", True, "command_failed"),
        (143, "", True, "command_failed"),
        (-9, "", True, "command_failed"),
        (0, "preempted", True, "completed"),
        (0, "session_expired", True, "completed"),
        (0, "superseded", True, "completed"),
        (0, "cancelled", True, "cancelled"),
        (75, "preempted", True, "preempted"),
        (75, "session_expired", True, "session_expired"),
        (1, "preempted", True, "preempted"),
        (-15, "cancelled", True, "cancelled"),
        (0, "preempted", False, "preempted"),
        (1, "", False, "command_failed"),
        (75, "", False, "command_failed"),
        (None, "cancelled", False, "cancelled"),
    ],
)
def test_what_an_exit_means(code: int | None, wish: str, ran: bool, reason: str) -> None:
    """The whole table; `ran` is False for setup and for what never began."""
    assert judge(code, wish, ran=ran).reason == reason


def test_a_signal_is_told_also_when_a_shell_passed_it_on() -> None:
    """137 is a shell's way to say SIGKILL; 255 and 200 are ordinary codes."""
    assert (judge(-9, "", ran=True).exit_code, judge(-9, "", ran=True).signal) == (None, 9)
    assert (judge(137, "", ran=True).exit_code, judge(137, "", ran=True).signal) == (137, 9)
    assert judge(255, "", ran=True).signal is None
    assert judge(128, "", ran=True).signal is None


def test_the_strongest_wish_is_reported() -> None:
    """A cancel after a preemption is a cancel; a limit after a cancel changes nothing."""
    order = ["", "session_expired", "preempted", "superseded", "cancelled"]
    for low, weak in enumerate(order):
        for strong in order[low:]:
            assert stronger(weak, strong) == stronger(strong, weak) == strong


def test_the_limit_leaves_room_for_grace_margin_and_upload() -> None:
    """Stop at limit - margin - grace - upload (at most half the margin); kill at limit - margin."""
    limits = Limits(start=100.0, limit_s=1000.0, margin_s=40.0)
    assert (limits.end, limits.kill) == (1100.0, 1060.0)
    assert limits.stop(60.0, 0.0) == 1000.0
    assert limits.stop(60.0, 15.0) == 985.0
    assert limits.stop(60.0, 900.0) == 980.0
    assert limits.room(999.0, 60.0)
    assert not limits.room(1000.0, 60.0)
    assert (limits.left(200.0), limits.left(2000.0)) == (900.0, 0.0)
    forever = Limits(0.0, None, 40.0)
    assert forever.left(1e9) is None
    assert forever.room(1e9, 60.0)


@pytest.mark.parametrize(
    ("named", "where"),
    [
        ("ckpt", "ckpt"),
        ("./out/ckpt/", "out/ckpt"),
        ("/content/ckpt", "content/ckpt"),
        ("../../etc", "etc"),
        ("a/../../b", "b"),
        ("~/ckpt", "ckpt"),
        ("", "ckpt"),
        (".", "ckpt"),
        ("/", "ckpt"),
    ],
)
def test_the_checkpoint_folder_stays_in_the_working_folder(named: str, where: str) -> None:
    """Restoring replaces that folder: one outside would be somebody else's."""
    place = Place(Path("/w/attempts/a"))
    assert place.checkpoints(named) == Path("/w/attempts/a/src") / where


def test_an_attempt_goes_from_ticket_to_ended(tmp_path: Path) -> None:
    """started when the command runs, ended when everything is in the store."""
    bench = Bench(tmp_path)
    command = bench.run()
    assert command.text.rstrip().endswith("train")
    assert bench.beat()["slots"][0]["phase"] == "running"
    bench.pass_time(100)
    command.says(b"hello\n")
    command.code = 0
    bench.pass_time(3)
    assert [event["kind"] for event in bench.events()] == ["started", "ended"]
    assert (bench.ended["reason"], bench.ended["log_segments"]) == ("completed", 1)
    assert bench.ended["seconds"] == pytest.approx(104, abs=3)
    assert command.released
    assert bench.beat()["state"] == "idle"


def test_setup_comes_first_and_started_means_the_command(tmp_path: Path) -> None:
    """An hour of pip install is not an hour of training."""
    bench = Bench(tmp_path)
    setup = bench.run(setup="pip install")
    bench.pass_time(50)
    assert bench.events() == []
    assert bench.beat()["slots"][0]["phase"] == "setup"
    setup.code = 0
    bench.pass_time(1)
    assert len(bench.commands) == 2
    assert [event["kind"] for event in bench.events()] == ["started"]


def test_a_stopped_command_gets_sigterm_its_grace_and_then_sigkill(tmp_path: Path) -> None:
    """In this order, and not earlier."""
    bench = Bench(tmp_path)
    command = bench.run(grace_s=30.0)
    command.on_term = None
    bench.send(wire.stop_ticket("job-1", 2, "preempted"))
    bench.pass_time(5)
    assert command.signals[:2] == [signal.SIGCONT, signal.SIGTERM]
    bench.pass_time(20)
    assert signal.SIGKILL not in command.signals
    bench.pass_time(10)
    assert signal.SIGKILL in command.signals
    bench.pass_time(2)
    assert (bench.ended["reason"], bench.ended["signal"]) == ("preempted", 9)


def test_a_superseded_command_has_little_time(tmp_path: Path) -> None:
    """Nobody wants what it could still save; its card is wanted."""
    bench = Bench(tmp_path)
    command = bench.run(grace_s=600.0)
    command.on_term = None
    bench.send(wire.stop_ticket("job-1", 2, "superseded"))
    bench.pass_time(10)
    assert bench.ended["reason"] == "superseded"
    assert not bench.store.list(wire.checkpoint_prefix("job-1"))


def test_children_that_still_save_are_waited_for_within_the_grace(tmp_path: Path) -> None:
    """The shell may be gone before what it started."""
    bench = Bench(tmp_path)
    command = bench.run(grace_s=30.0)
    command.lingers = True
    bench.send(wire.stop_ticket("job-1", 2, "preempted"))
    bench.pass_time(10)
    assert bench.events("ended") == []
    command.lingers = False
    bench.pass_time(2)
    assert bench.ended["reason"] == "preempted"


def test_what_a_finished_command_left_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody asked it to stop: it is done when it says so."""
    bench = Bench(tmp_path)
    command = bench.run()
    command.lingers = True
    command.code = 0
    bench.pass_time(2)
    assert command.released
    assert bench.ended["reason"] == "completed"


def test_the_agent_stops_in_time_although_nobody_tells_it(tmp_path: Path) -> None:
    """SIGTERM at limit - margin - grace, all uploads done before the limit, the session over."""
    bench = Bench(tmp_path, limit_s=300.0, margin_s=20.0)
    began = bench.clock.now
    command = bench.run(grace_s=30.0)
    command.on_term = None
    bench.pass_time(began + 249.0 - bench.clock.now)
    assert command.signals == []
    bench.pass_time(2)
    assert signal.SIGTERM in command.signals
    bench.pass_time(27)
    assert signal.SIGKILL not in command.signals
    bench.pass_time(4)
    assert signal.SIGKILL in command.signals
    bench.pass_time(10)
    assert bench.ended["reason"] == "session_expired"
    assert bench.over
    assert bench.agent.control.end == "limit"


def test_the_job_is_told_when_it_must_have_saved(tmp_path: Path) -> None:
    """FREEGPU_DEADLINE is when SIGKILL would come, in seconds since 1970; absent without a limit."""
    bench = Bench(tmp_path, limit_s=300.0, margin_s=20.0)
    end = bench.clock.time() + 280
    assert abs(int(bench.run().env["FREEGPU_DEADLINE"]) - end) <= 2
    assert "FREEGPU_DEADLINE" not in Bench(tmp_path / "other").run().env


def test_a_clock_that_jumps_moves_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the monotonic clock decides."""
    bench = Bench(tmp_path, limit_s=300.0)
    command = bench.run()
    for years in (-20, 30):
        monkeypatch.setattr(bench.clock, "time", lambda years=years: 1.7e9 + years * 3.2e7)
        bench.pass_time(20)
    assert command.signals == []
    assert bench.beat()["slots"][0]["phase"] == "running"


def test_a_window_pauses_and_a_stop_continues_before_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process would not read SIGTERM."""
    bench = Bench(tmp_path)
    command = bench.run(window=1)
    berth = bench.agent.control._berths[0]
    assert berth.attempt
    ahead = [0]
    monkeypatch.setattr(type(berth.attempt.cargo), "unconfirmed", property(lambda self: ahead[0]))
    for ahead[0], sent in ((1, []), (2, [signal.SIGSTOP]), (1, [signal.SIGSTOP, signal.SIGCONT])):
        bench.pass_time(6)
        assert command.signals == sent
    ahead[0] = 2
    bench.pass_time(6)
    assert bench.beat()["slots"][0]["phase"] == "paused"
    bench.send(wire.cancel_ticket("job-1", 1))
    bench.pass_time(3)
    assert command.signals[3:5] == [signal.SIGCONT, signal.SIGTERM]


@pytest.mark.parametrize(
    ("ticket", "stops"),
    [
        (wire.stop_ticket("job-1", 4, "preempted"), False),
        (wire.stop_ticket("job-1", 5, "preempted"), False),
        (wire.stop_ticket("job-1", 6, "preempted"), True),
        (wire.stop_ticket("job-2", 6, "preempted"), False),
        (wire.cancel_ticket("job-1", 4), False),
        (wire.cancel_ticket("job-1", 5), True),
        ({"kind": "stop", "job": "job-1", "epoch": "6"}, False),
        ({"kind": "stop", "job": "job-1"}, False),
        ({"kind": "cancel", "job": ["job-1"], "epoch": 9}, False),
    ],
)
def test_which_tickets_stop_an_attempt_of_epoch_five(
    tmp_path: Path, ticket: dict[str, object], stops: bool
) -> None:
    """stop: strictly below the ticket's epoch; cancel: up to it; nonsense: nothing."""
    bench = Bench(tmp_path)
    command = bench.run(epoch=5)
    bench.send(ticket)
    bench.pass_time(4)
    assert (signal.SIGTERM in command.signals) is stops


def test_a_busy_slot_queues_and_slots_are_independent(tmp_path: Path) -> None:
    """In the order of the tickets, each in its slot."""
    bench = Bench(tmp_path, slots=T4S)
    first = bench.run(job="job-1", slot=0)
    bench.send(bench.ticket(job="job-2", slot=0).to_json())
    other = bench.run(job="job-3", slot=1)
    assert other.env["CUDA_VISIBLE_DEVICES"] == "1"
    bench.pass_time(30)
    assert len(bench.commands) == 2
    first.code = 0
    bench.pass_time(3)
    assert len(bench.commands) == 3
    assert bench.commands[-1].env["FREEGPU_JOB_ID"] == "job-2"


def test_a_stale_run_ticket_is_refused_after_its_fence(tmp_path: Path) -> None:
    """A stop for a job names the epoch below which nothing is begun here any more."""
    bench = Bench(tmp_path)
    bench.send(wire.stop_ticket("job-1", 3, "superseded"))
    bench.send(bench.ticket(epoch=2).to_json())
    bench.pass_time(5)
    assert bench.commands == []
    assert "newer epoch" in bench.events("refused")[0]["detail"]


def test_a_torn_bundle_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    """The digest decides; after ten minutes the orchestrator should try elsewhere."""
    bench = Bench(tmp_path)
    digest = wire.sha256(b"whole")
    bench.store.put(wire.input_key(digest), b"torn")
    bench.send(bench.ticket(bundle=digest).to_json())
    bench.pass_time(590)
    assert bench.events() == []
    assert bench.beat()["slots"][0]["phase"] == "fetching"
    bench.pass_time(60)
    assert "not whole after 600 s" in bench.events("refused")[0]["detail"]
    assert bench.beat()["slots"] == []


def test_a_base_is_waited_for_until_it_is_whole(tmp_path: Path) -> None:
    """Never another one, never half of it, never without it."""
    bench = Bench(tmp_path)
    blob = b'{"step": 9}'
    part = wire.Part(
        wire.attempt_blob_key("job-1-1", wire.sha256(blob)), wire.sha256(blob), len(blob)
    )
    file = wire.File("state.json", len(blob), part.sha256, 0, 0o600, (part,))
    manifest = wire.Manifest("job-1", "job-1-1", 1, 3, 9, 0.0, (file,)).to_bytes()
    key = wire.checkpoint_key("job-1", 1, 3)
    bench.store.put(key, manifest)
    base = wire.Base(key, wire.sha256(manifest), 1, 3)
    bench.send(bench.ticket(epoch=2, base=base).to_json())
    bench.pass_time(100)
    assert bench.commands == []
    assert bench.beat()["slots"][0]["phase"] == "restoring"
    bench.store.put(part.key, blob)
    bench.pass_time(40)
    command = bench.commands[0]
    assert Path(command.env["FREEGPU_CHECKPOINT_DIR"], "state.json").read_bytes() == blob
    assert command.env["FREEGPU_RESUME"] == "1"
    (started,) = bench.events("started")
    assert (started["resumed"], started["step"]) == (True, 9)


def test_a_stop_while_the_base_is_awaited_ends_the_attempt(tmp_path: Path) -> None:
    """It never ran: no exit code, no checkpoint, and the slot is free."""
    bench = Bench(tmp_path)
    base = wire.Base("jobs/job-1/checkpoints/x.json", "0" * 64, 1, 1)
    bench.send(bench.ticket(epoch=2, base=base).to_json())
    bench.pass_time(10)
    bench.send(wire.cancel_ticket("job-1", 2))
    bench.pass_time(5)
    assert (bench.ended["reason"], bench.ended["exit_code"]) == ("cancelled", None)
    assert bench.beat()["state"] == "idle"


def test_the_end_waits_for_a_store_that_is_away(tmp_path: Path) -> None:
    """ended is told when the outputs are home, however long that takes."""
    bench = Bench(tmp_path)
    command = bench.run()
    command.says(b"last words\n")
    bench.store.away = True
    Path(command.env["FREEGPU_OUTPUT_DIR"], "model").write_bytes(b"weights")
    command.code = 0
    bench.pass_time(900)
    bench.store.away = False
    bench.pass_time(60)
    assert bench.ended["reason"] == "completed"
    assert bench.ended["outputs"]["key"] == wire.outputs_key("job-1-1")
    assert bench.ended["log_segments"] == 1
    assert {event["code"] for event in bench.events("notice")} == {"store_away", "store_back"}


def test_the_end_does_not_wait_beyond_the_limit(tmp_path: Path) -> None:
    """What could not be brought home is said, and the work folder keeps it."""
    bench = Bench(tmp_path, limit_s=200.0, margin_s=20.0)
    command = bench.run()
    Path(command.env["FREEGPU_OUTPUT_DIR"], "model").write_bytes(b"weights")
    bench.pass_time(100)
    bench.store.away = True
    bench.pass_time(95)
    assert signal.SIGTERM in command.signals
    bench.pass_time(10)
    assert bench.over
    bench.store.away = False
    bench.agent.close()
    bench.pass_time(30)
    assert "did not reach the store" in bench.ended["detail"]
    assert Path(command.env["FREEGPU_OUTPUT_DIR"], "model").exists()


@pytest.mark.parametrize("how", ["drain", "bye", "signal", "idle"])
def test_the_four_ways_to_end_a_session(tmp_path: Path, how: str) -> None:
    """drain waits for the command; bye and a signal stop it; idle has none. The last heartbeat says ended."""
    bench = Bench(tmp_path, idle_s=60.0)
    command = bench.run()
    bench.send(bench.ticket(job="job-2").to_json())
    bench.pass_time(3)
    if how == "drain":
        bench.send(wire.drain_ticket())
    elif how == "bye":
        bench.send(wire.bye_ticket())
    elif how == "signal":
        bench.agent.control.terminate()
    else:
        bench.send(wire.cancel_ticket("job-2", 1))
    bench.pass_time(5)
    stopped = how in ("bye", "signal")
    assert (signal.SIGTERM in command.signals) is stopped
    assert len(bench.events("refused")) == (how != "idle")
    command.code = 0 if command.code is None else command.code
    bench.pass_time(5)
    assert bench.over is (how != "idle")
    bench.pass_time(65)
    assert bench.over
    assert bench.agent.control.end == {"drain": "drained"}.get(how, how)
    bench.agent.close()
    bench.pass_time(1)
    assert bench.agent.mailbox.done
    assert bench.beat()["state"] == "ended"


def test_an_attempt_ready_to_start_on_a_full_disk_is_refused_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the job's fault and must not count as its failure."""
    bench = Bench(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("freegpu.agent.attempt.write_script", full)
    bench.send(bench.ticket().to_json())
    bench.pass_time(5)
    assert "disk" in bench.events("refused")[0]["detail"]
    assert bench.events("ended") == []


def test_a_result_that_cannot_be_brought_home_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 0 with outputs that cannot be read, or with no time left to bring them, is not `completed`."""
    bench = Bench(tmp_path)
    command = bench.run()
    Path(command.env["FREEGPU_OUTPUT_DIR"], "model").write_bytes(b"weights")

    def unreadable(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("freegpu.agent.cargo.collect_outputs", unreadable)
    command.code = 0
    bench.pass_time(5)
    assert (bench.ended["reason"], bench.ended["exit_code"]) == ("command_failed", 0)
    assert "the outputs did not reach the store" in bench.ended["detail"]
    assert Path(command.env["FREEGPU_OUTPUT_DIR"], "model").exists()


def test_a_result_that_comes_too_late_lets_the_job_go_on_elsewhere(tmp_path: Path) -> None:
    """The session's end is nobody's failure."""
    bench = Bench(tmp_path, limit_s=200.0, margin_s=20.0)
    command = bench.run()
    Path(command.env["FREEGPU_OUTPUT_DIR"], "model").write_bytes(b"weights")
    bench.pass_time(100)
    bench.store.away = True
    command.code = 0
    bench.pass_time(110)
    bench.store.away = False
    bench.agent.close()
    bench.pass_time(30)
    assert bench.ended["reason"] == "session_expired"
    assert "the outputs" in bench.ended["detail"]

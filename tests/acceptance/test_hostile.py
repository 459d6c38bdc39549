"""Jobs that misbehave: the agent survives them, the others run on, and nothing of them stays behind."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from freegpu.orchestrator.home import current_holder
from tests.acceptance.typed import inside

pytestmark = pytest.mark.slow

LINE = "x" * 99
FLOOD = 1_000_000
SPEWED = b"\xff\xfe\x80 not UTF-8 \xc3\n\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\r\x00done\n"

SCRIPTS = {
    "flood": f"yes {LINE} | head -n {FLOOD}\necho end of the flood",
    "spew": f"echo {base64.b64encode(SPEWED).decode()} | base64 -d",
    "stubborn": "trap '' TERM INT HUP\necho deaf\nwhile :; do sleep 0.1; done",
    "orphans": "setsid sleep 4321 &\nnohup sleep 4321 >/dev/null 2>&1 &\n(sleep 4321 &)\necho born",
    "quick": "exit 0",
    "sudden": "exit 7",
    "restless": (
        "for i in $(seq 30); do head -c 100000 /dev/zero >> $FREEGPU_CHECKPOINT_DIR/grows.bin;"
        " sleep 0.1; done\necho 1 > $FREEGPU_OUTPUT_DIR/result"
    ),
    "escape": (
        "mkdir res && cd res && echo mine > own.txt && ln -s own.txt inside && ln -s /etc/passwd file"
        " && ln -s /etc folder && ln -s ../../.. up && ln -s loop loop && ln -s nowhere broken\n"
        "cp -P file folder up $FREEGPU_OUTPUT_DIR/\necho out > $FREEGPU_OUTPUT_DIR/out.txt"
    ),
    "many": (
        'for i in $(seq 2000); do echo $i > "$FREEGPU_OUTPUT_DIR/$i.txt"; done\n'
        "chmod 444 $FREEGPU_OUTPUT_DIR/1.txt"
    ),
    "linked": (
        'cat "$FREEGPU_CHECKPOINT_DIR/state.json" && exit 0\nmkdir real\n'
        'rmdir "$FREEGPU_CHECKPOINT_DIR" && ln -s "$PWD/real" "$FREEGPU_CHECKPOINT_DIR"\n'
        'echo \'{"saved": 1}\' > "$FREEGPU_CHECKPOINT_DIR/state.json"\nexit 75'
    ),
}
MORE = {
    "stubborn": "checkpoint: {grace: 1s}",
    "sudden": "retry: {failures: 0}",
    "restless": "checkpoint: {every: 1s}",
    "escape": 'outputs: ["res/**"]',
}


@pytest.fixture(scope="module")
def pit(make_user: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """All of them at once in the slots of one session, with a daemon that moves them on."""
    user = make_user(tmp_path_factory.mktemp("pit"))
    try:
        user.settings({"pit": {"count": len(SCRIPTS)}})
        for name, script in SCRIPTS.items():
            body = "".join(f"  {line}\n" for line in script.splitlines())
            user.job_file(
                f"name: {name}\nworkdir: empty\nrun: |\n{body}"
                f"freegpu: {{{MORE.get(name, 'priority: 0')}}}\n",
                f"{name}.yaml",
            )
        (user.desk / "empty").mkdir()
        user.starts("up")
        user.until(lambda: current_holder(user.home), 20)
        for name in SCRIPTS:
            code, out, err = inside(user, ["submit", f"{name}.yaml"])
            assert code == 0, out + err
        yield user
    finally:
        user.leave()


def over(user: Any, name: str, state: str, seconds: float = 60) -> Any:
    """The job when it has ended, as `show --json` has it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        code, out, _ = inside(user, ["show", name, "--json"])
        assert code == 0, out
        detail = json.loads(out)["data"]
        if detail["job"]["state"] in ("succeeded", "failed", "cancelled"):
            assert detail["job"]["state"] == state, detail
            return detail
        time.sleep(0.2)
    raise AssertionError(f"{name} did not end: {inside(user, ['show', name])[1]}")


def test_a_job_that_ends_at_once_has_ended(pit: Any) -> None:
    """With 0 it has succeeded; with 7 it has failed, and the code is kept."""
    assert over(pit, "quick", "succeeded")["attempts"][0]["exit_code"] == 0
    (attempt,) = over(pit, "sudden", "failed")["attempts"]
    assert (attempt["reason"], attempt["exit_code"]) == ("command_failed", 7)


def test_output_that_is_no_text_stays_as_it_is(pit: Any) -> None:
    """A pipe gets every byte; JSON gets text; lines of people get nothing that moves a terminal."""
    over(pit, "spew", "succeeded")
    done = subprocess.run(
        pit.argv("logs", "spew"), cwd=pit.desk, env=pit.env, capture_output=True, check=True
    )
    assert done.stdout == SPEWED
    assert b"\x1b" not in done.stderr
    chunks = json.loads(inside(pit, ["logs", "spew", "--json"])[1])["data"]["chunks"]
    assert "".join(c["text"] for c in chunks) == SPEWED.decode("utf-8", "replace")


def test_a_job_deaf_to_sigterm_is_gone_after_its_grace(pit: Any) -> None:
    """cancel returns at once; a second after SIGTERM comes SIGKILL."""
    pit.until(lambda: b"deaf" in inside(pit, ["logs", "stubborn"])[1].encode(), 30)
    assert inside(pit, ["cancel", "stubborn"])[0] == 0
    over(pit, "stubborn", "cancelled")
    pit.until(lambda: not pit.processes("stubborn"), 15)
    detail = pit.until(
        lambda: next(
            (a for a in over(pit, "stubborn", "cancelled")["attempts"] if a["reason"]), None
        ),
        15,
    )
    assert detail["reason"] == "cancelled"


def test_children_do_not_outlive_their_job(pit: Any) -> None:
    """Not in the background, not with nohup, not in a session of their own."""
    over(pit, "orphans", "succeeded")
    pit.until(lambda: not pit.processes("4321"), 10)


def test_a_checkpoint_that_never_settles_is_never_taken_half(pit: Any) -> None:
    """A file that grows all the time is left alone; the job and its result are not harmed."""
    detail = over(pit, "restless", "succeeded")
    assert [a["reason"] for a in detail["attempts"]] == ["completed"]
    assert {c["size"] for c in detail["checkpoints"]} <= {3_000_000}


def test_outputs_bring_nothing_from_outside_the_working_folder(pit: Any) -> None:
    """Links that leave it, lead nowhere or in a circle are passed over; what they stand beside comes."""
    over(pit, "escape", "succeeded")
    assert inside(pit, ["pull", "escape", "escaped"])[0] == 0
    into = pit.desk / "escaped"
    found = sorted(str(path.relative_to(into)) for path in into.rglob("*"))
    assert found == ["out.txt", "res", "res/inside", "res/own.txt"]


def test_two_thousand_small_files_come_home(pit: Any) -> None:
    """Each with its bytes."""
    over(pit, "many", "succeeded", 90)
    assert inside(pit, ["pull", "many", "many"])[0] == 0
    names = os.listdir(pit.desk / "many")
    assert len(names) == 2000
    assert all((pit.desk / "many" / name).read_text().strip() == name[:-4] for name in names)


def test_a_checkpoint_folder_that_is_a_link_is_followed(pit: Any) -> None:
    """What lies behind it is saved, and the next attempt has it in a folder of its own."""
    detail = over(pit, "linked", "succeeded")
    assert [a["reason"] for a in detail["attempts"]] == ["resume_requested", "completed"]
    assert '{"saved": 1}' in inside(pit, ["logs", "linked", "--attempt", "2"])[1]


def test_a_hundred_megabytes_of_output_arrive_whole_and_hold_nobody_up(pit: Any) -> None:
    """The job never waits for the store, and the log is complete."""
    over(pit, "flood", "succeeded", 120)
    out = subprocess.Popen(
        pit.argv("logs", "flood"),
        cwd=pit.desk,
        env=pit.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert out.stdout is not None
    digest, size = hashlib.sha256(), 0
    while chunk := out.stdout.read(1 << 20):
        digest.update(chunk)
        size += len(chunk)
    out.stdout.close()
    assert out.wait() == 0
    wanted = hashlib.sha256(f"{LINE}\n".encode() * FLOOD + b"end of the flood\n")
    assert (size, digest.digest()) == (100 * FLOOD + 17, wanted.digest())


@pytest.fixture
def crowded(user: Any) -> Iterator[Any]:
    """A user whose sessions work on a disk of 200 MB of their own."""
    user.settings()
    disk = user.home / "sessions"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield user
    user.leave()
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_told_and_does_not_harm_the_job(crowded: Any) -> None:
    """The agent gives up a reserve, so that the job's output still has room; the event is in `show`."""
    user = crowded
    user.job_file(
        f"""
        name: talker
        run: |
          set -e
          i=0
          while ! [ -e {user.gate} ]; do i=$((i + 1)); echo line $i; sleep 0.05; done
          echo $i > $FREEGPU_OUTPUT_DIR/lines
        """
    )
    user.ok("submit", "job.yaml")
    user.until(lambda: "line 3\n" in inside(user, ["logs", "talker"])[1], 30)
    fill = user.home / "sessions" / "somebody-elses"
    with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)) == 1 << 16:
            pass
    told = user.until(
        lambda: [
            line for line in inside(user, ["show", "talker"])[1].splitlines() if "disk full" in line
        ],
        30,
    )
    assert "are left on the session's disk" in told[0]
    said = inside(user, ["logs", "talker"])[1].count("\n")
    user.until(lambda: inside(user, ["logs", "talker"])[1].count("\n") > said + 10, 30)
    fill.unlink()
    user.go()
    (attempt,) = over(user, "talker", "succeeded")["attempts"]
    assert attempt["reason"] == "completed"
    lines = inside(user, ["logs", "talker"])[1].splitlines()
    assert lines == [f"line {n}" for n in range(1, len(lines) + 1)]
    assert inside(user, ["pull", "talker", "talked"])[0] == 0
    assert (user.desk / "talked" / "lines").read_text() == f"{len(lines)}\n"

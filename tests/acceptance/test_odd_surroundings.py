"""Odd folders, names, locales and terminals: what is allowed makes the whole round trip, the rest is said."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from freegpu.cli.text import width
from tests.acceptance.typed import CODES, inside, refused, told

pytestmark = pytest.mark.slow

#: a name that a shell, a table and a path must be handled with care for
NAME = 'it\'s a "name", $HOME `x` 数据 é'
FILES = (
    "with space.txt",
    'quote\'s "two" `x` $HOME.txt',
    "line\nbreak.txt",
    "数据 é.txt",
    "escape\x1b[31m.txt",
    "-dash",
    "back\\slash",
    "b%20c+d#e?",
    "  around  ",
)


def test_odd_names_make_the_round_trip_through_run_logs_and_pull(user: Any) -> None:
    """Job names, file names of the working folder, variables and outputs arrive as they were; links that turn in
    circles, sockets and pipes are left out and named."""
    user.settings()
    work = user.desk / "my work"
    work.mkdir()
    for name in FILES:
        (work / name).write_text(f"this is {name}\n")
    (work / "loop").symlink_to("loop")
    (work / "up").symlink_to("..")
    (work / "round").mkdir()
    (work / "round" / "again").symlink_to("../round")
    os.mkfifo(work / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(work):  # the path of a socket is short
        listening.bind("sock")
    user.job_file(
        f"""
        name: {json.dumps(NAME, ensure_ascii=False)}
        workdir: my work
        envs: {{ODD: "a\\nb 'c' \\"d\\" $HOME 数"}}
        run: |
          {sys.executable} - <<'EOF'
          import os, shutil
          from pathlib import Path
          print(repr(os.environ["ODD"]))
          print(sorted(os.listdir(b".")))
          shutil.copytree(".", os.environ["FREEGPU_OUTPUT_DIR"] + "/copy", symlinks=True)
          EOF
        """
    )
    ran = user.ok("submit", "job.yaml", "--wait")
    listening.close()
    for name, why in (("pipe", "named pipe"), ("sock", "socket"), ("up", "outside the folder")):
        assert re.search(rf"note: {name} is left out: .*{why}", ran.err), ran
    assert repr("a\nb 'c' \"d\" $HOME 数") in ran.out
    for name in FILES:
        assert repr(name.encode()) in ran.out, name
    assert "\x1b" not in ran.err
    code, out, _ = inside(user, ["show", NAME, "--json"])
    assert code == 0
    assert json.loads(out)["data"]["job"]["name"] == NAME
    listed = inside(user, ["jobs"])[1].splitlines()
    assert len(listed) == 2
    assert NAME in listed[1]
    assert repr("a\nb 'c' \"d\" $HOME 数") in inside(user, ["logs", NAME])[1]
    code, out, _ = inside(user, ["pull", NAME, "an odd\nfolder", "--json"])
    assert code == 0
    assert {f"copy/{name}" for name in FILES} <= set(json.loads(out)["data"]["files"])
    for name in FILES:
        assert (user.desk / "an odd\nfolder" / "copy" / name).read_text() == f"this is {name}\n"
    code, out, _ = inside(user, ["pull", NAME, "again"])
    assert out.count("\n") == len(
        json.loads(inside(user, ["pull", NAME, "third", "--json"])[1])["data"]["files"]
    )
    assert "\x1b" not in out


def test_a_working_folder_that_is_too_large_names_its_largest_files(user: Any) -> None:
    """10 GB are refused at a look; ignore files keep data out, .freegpuignore after .gitignore."""
    user.settings()
    for at in range(7):
        with (user.desk / f"data-{at}.bin").open("wb") as file:
            file.truncate((at + 1) * 10**9 // 2)
    user.job_file("run: echo\nworkdir: .\nresources: {accelerators: H100}\n")
    started = time.monotonic()
    refused(
        user,
        ["submit", "job.yaml"],
        "workdir",
        (
            "14.0 GB, more than 1.0 GB",
            "data-6.bin (3.5 GB)",
            "data-5.bin",
            "data-4.bin",
            "data-3.bin",
            "data-2.bin",
        ),
        ".freegpuignore",
    )
    assert time.monotonic() - started < 5
    assert "data-1.bin" not in inside(user, ["submit", "job.yaml"])[2]
    (user.desk / ".gitignore").write_text("*.bin\n")
    code, out, _ = inside(user, ["submit", "job.yaml", "--dry-run", "--json"])
    assert code == 0
    assert [name for name, _ in json.loads(out)["data"]["largest"]] == ["job.yaml", ".gitignore"]
    (user.desk / ".freegpuignore").write_text("!data-0.bin\n")
    code, out, _ = inside(user, ["submit", "job.yaml", "--dry-run", "--json"])
    assert json.loads(out)["data"]["largest"][0] == ["data-0.bin", 500_000_000]


def test_a_folder_whose_name_is_no_text_is_refused(user: Any) -> None:
    """The ledger holds text; a name that is not UTF-8 is said before anything is stored."""
    user.settings()
    folder = os.fsencode(user.desk) + b"/d\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "job.yaml").write_text("run: echo\nworkdir: .\n")
    ran = user.types("submit", os.fsdecode(folder + b"/job.yaml"))
    assert ran.code == CODES["job_spec"], ran
    assert "is not UTF-8 text" in told(ran.err)[0]
    assert inside(user, ["jobs"])[1] == ""


# --- where and how it is typed ---------------------------------------------------------------------------


@pytest.fixture
def ready(user: Any) -> Any:
    """A user with one job of a long and foreign name that waits."""
    user.settings()
    user.job_file(f"name: {'données-数据-' * 8}\nrun: echo\nresources: {{accelerators: H100}}\n")
    assert inside(user, ["submit", "job.yaml"])[0] == 0
    return user


def shell(user: Any, line: str, **env: str | None) -> subprocess.CompletedProcess[bytes]:
    """A line of sh with `freegpu` in it; a variable that is None is unset."""
    environ = {**user.env, "PYTHON": sys.executable}
    for name, value in env.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    done = subprocess.run(
        ["/bin/bash", "-c", line.replace("freegpu", '"$PYTHON" -m freegpu')],
        cwd=user.desk,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr + done.stdout, done
    assert b"Exception ignored" not in done.stderr, done
    return done


def test_folders_that_are_read_only_or_deleted_are_fine_to_stand_in(ready: Any) -> None:
    """Nothing is written where the user happens to be; pull says that it cannot."""
    done = shell(ready, "cd /proc && freegpu jobs")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "données".encode() in done.stdout
    done = shell(ready, "mkdir gone && cd gone && rmdir ../gone && freegpu jobs")
    assert (done.returncode, done.stderr) == (0, b"")
    done = shell(
        ready, "mkdir gone && cd gone && rmdir ../gone && freegpu jobs", FREEGPU_HOME="home"
    )
    assert done.returncode == 1
    assert "the folder you are in has been deleted" in told(done.stderr.decode())[0]


def test_without_home_in_the_environment_the_systems_folder_is_used(ready: Any) -> None:
    """HOME unset and FREEGPU_HOME empty: XDG's folder, or the one of the user database."""
    data = ready.desk / "data"
    done = shell(ready, "freegpu init", HOME=None, FREEGPU_HOME="", XDG_DATA_HOME=str(data))
    assert done.returncode == 0, done
    assert (data / "freegpu" / "state.db").is_file()


def test_a_foreign_locale_changes_nothing(ready: Any) -> None:
    """With LC_ALL=C and Python's UTF-8 mode off: names, arguments, folders and output are UTF-8 all the same."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell(ready, f"freegpu show {'données-数据-' * 8}", **locale)
    assert done.returncode == 0, done
    assert "données-数据".encode() in done.stdout
    (ready.desk / "döner").mkdir()
    ready.job_file("name: d\nrun: echo\nworkdir: döner\nresources: {accelerators: H100}\n")
    done = shell(ready, "freegpu submit job.yaml", **locale)
    assert done.returncode == 0, done


def test_a_reader_that_goes_away_and_streams_that_are_closed_end_quietly(ready: Any) -> None:
    """141 for a pipe that nobody reads; closed streams are nobody's; a full disk behind stdout is said."""
    done = shell(ready, "freegpu jobs | true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (141, b"")
    done = shell(ready, "freegpu jobs | head -1")
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)
    done = shell(ready, "freegpu jobs --json >&- && freegpu show nobody >&- 2>&-")
    assert (done.returncode, done.stderr) == (23, b"")
    for form in ("", "--json"):
        done = shell(ready, f"freegpu jobs {form} > /dev/full")
        assert done.returncode == 1
        assert "no space left on device: standard output" in told(done.stderr.decode())[0]


def terminal(user: Any, *words: str, **env: str) -> str:
    """What a terminal gets to see."""
    ours, theirs = pty.openpty()
    environ = {**user.env, "TERM": "xterm-256color", **env}
    process = subprocess.Popen(
        user.argv(*words), cwd=user.desk, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # EIO: the other side is closed
            break
        if not chunk:
            break
        seen += chunk
    assert process.wait(30) == 0
    os.close(ours)
    return seen.decode()


def test_a_narrow_terminal_is_kept_to_and_colours_can_be_turned_off(ready: Any) -> None:
    """Forty columns hold every line of a table, wide letters counted double; NO_COLOR leaves no escape."""
    for words in (["jobs"], ["status"]):
        seen = terminal(ready, *words, COLUMNS="40", NO_COLOR="1")
        assert "\x1b" not in seen
        for line in seen.splitlines():
            assert width(line) <= 40, seen
        assert "données" in seen
    assert "\x1b[" in terminal(ready, "jobs", COLUMNS="40")

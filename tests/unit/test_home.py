"""The home: a key that is made once, secrets that only their owner reads, one orchestrator at a time."""

from __future__ import annotations

import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from freegpu.errors import ConfigError
from freegpu.orchestrator.home import (
    Holder,
    current_holder,
    forget_secrets,
    home_key,
    load_secrets,
    make_home,
    orchestrator_lock,
    save_secrets,
    secret_refs,
)

HOLD = """
import sys
from pathlib import Path
from freegpu.orchestrator.home import orchestrator_lock
with orchestrator_lock(Path(sys.argv[1]), command="freegpu up", since="noon") as holder:
    print(holder, flush=True)
    sys.stdin.read()
"""
MAKE_KEY = """
import sys
from pathlib import Path
from freegpu.orchestrator.home import home_key
sys.stdin.read()
print(home_key(Path(sys.argv[1])).hex())
"""
SUBMIT = """
import sys
from pathlib import Path
from freegpu.orchestrator.home import submission_lock
print("trying", flush=True)
with submission_lock(Path(sys.argv[1]), alone=sys.argv[2] == "alone"):
    print("in", flush=True)
    sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def process(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A second process; it goes on when its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


# --- folder and key --------------------------------------------------------------------------------------


def test_a_home_is_made_for_its_owner_alone_and_may_be_there_already(tmp_path: Path) -> None:
    """With all its parents; a second time nothing changes and nothing is left behind."""
    home = tmp_path / "a" / "b c"
    make_home(home)
    make_home(home)
    assert mode(home) == 0o700
    assert list(home.iterdir()) == []


def test_a_home_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    """A file stands in its way; the sentence names the folder, the hint the setting."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written") as caught:
        make_home(tmp_path / "file" / "home")
    assert "FREEGPU_HOME" in caught.value.hint


def test_the_key_is_made_once_private_and_32_random_bytes(tmp_path: Path) -> None:
    """Later calls read it; another home has another."""
    key = home_key(tmp_path)
    assert len(key) == 32
    assert home_key(tmp_path) == key
    assert mode(tmp_path / "key") == 0o600
    (tmp_path / "other").mkdir()
    assert home_key(tmp_path / "other") != key
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "other"]


def test_commands_that_race_for_the_first_key_agree_on_one(tmp_path: Path) -> None:
    """Two keys would make one of the two sessions deaf for ever."""
    with (
        process(MAKE_KEY, tmp_path) as a,
        process(MAKE_KEY, tmp_path) as b,
        process(MAKE_KEY, tmp_path) as c,
    ):
        for started in (a, b, c):
            assert started.stdin is not None
            started.stdin.close()
        keys = {line(started) for started in (a, b, c)}
    assert keys == {home_key(tmp_path).hex()}


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_damaged_key_is_an_error_and_never_replaced(tmp_path: Path, size: int) -> None:
    """A new key would lock out every session that runs."""
    (tmp_path / "key").write_bytes(b"x" * size)
    with pytest.raises(ConfigError, match=f"{size} bytes instead of 32") as caught:
        home_key(tmp_path)
    assert "backup" in caught.value.hint
    assert (tmp_path / "key").stat().st_size == size


def test_a_key_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """A folder in its place."""
    (tmp_path / "key").mkdir()
    with pytest.raises(ConfigError, match="cannot be read or made"):
        home_key(tmp_path)


# --- secrets ---------------------------------------------------------------------------------------------


def test_secrets_are_kept_in_private_files_and_come_back(tmp_path: Path) -> None:
    """0600 in a folder 0700, whatever the umask; any text; no leftovers beside them."""
    values = {"TOKEN": "t\n'\"é家", "EMPTY": ""}
    old = os.umask(0)
    try:
        ref = save_secrets(tmp_path, values)
    finally:
        os.umask(old)
    (path,) = (tmp_path / "secrets").iterdir()
    assert mode(path) == 0o600
    assert mode(tmp_path / "secrets") == 0o700
    assert load_secrets(tmp_path, ref) == values
    assert "TOKEN" not in ref


def test_each_submission_has_secrets_of_its_own_until_they_are_forgotten(tmp_path: Path) -> None:
    """Listed, told apart, removed once and again in silence; no reference, no secrets."""
    assert secret_refs(tmp_path) == ()
    first, second = save_secrets(tmp_path, {"A": "1"}), save_secrets(tmp_path, {"A": "2"})
    assert secret_refs(tmp_path) == tuple(sorted((first, second)))
    forget_secrets(tmp_path, first)
    forget_secrets(tmp_path, first)
    assert secret_refs(tmp_path) == (second,)
    assert load_secrets(tmp_path, second) == {"A": "2"}
    assert load_secrets(tmp_path, "") == {}


@pytest.mark.parametrize("left", [None, b"", b"{"])
def test_secrets_that_are_gone_or_damaged_are_told_with_what_to_do(
    tmp_path: Path, left: bytes | None
) -> None:
    """A job never runs with some of its secrets missing."""
    ref = save_secrets(tmp_path, {"A": "1"})
    path = tmp_path / "secrets" / f"{ref}.json"
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(ConfigError, match="secrets of this job") as caught:
        load_secrets(tmp_path, ref)
    assert "submit it again" in caught.value.hint


@pytest.mark.parametrize("ref", ["../key", "..", "/etc/passwd", "a/b"])
def test_a_reference_never_leaves_the_folder(tmp_path: Path, ref: str) -> None:
    """References lie in the ledger; what they name is in secrets/ or nowhere."""
    for call in (load_secrets, forget_secrets):
        with pytest.raises(ValueError, match="not an id"):
            call(tmp_path, ref)


# --- locks -----------------------------------------------------------------------------------------------


def test_a_second_orchestrator_is_told_who_the_first_one_is(tmp_path: Path) -> None:
    """Its process, command and beginning; and when it ends in peace the lock is free at once."""
    assert current_holder(tmp_path) is None
    with process(HOLD, tmp_path) as other:
        assert line(other) == "None"
        expected = Holder(pid=other.pid, command="freegpu up", since="noon")
        with orchestrator_lock(tmp_path, command="freegpu tick", since="later") as holder:
            assert holder == expected
        assert current_holder(tmp_path) == expected
        assert str(holder) == f"process {other.pid} (freegpu up, since noon)"
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait(30) == 0
        assert current_holder(tmp_path) is None
        with orchestrator_lock(tmp_path, command="freegpu tick", since="later") as holder:
            assert holder is None


def test_the_lock_of_a_killed_orchestrator_is_free_and_its_name_is_not_believed(
    tmp_path: Path,
) -> None:
    """SIGKILL leaves the text in the file, but not the lock."""
    with process(HOLD, tmp_path) as other:
        assert line(other) == "None"
        other.kill()
        other.wait(30)
        assert str(other.pid) in (tmp_path / "orchestrator.lock").read_text()
        assert current_holder(tmp_path) is None
        with orchestrator_lock(tmp_path, command="freegpu up", since="now") as holder:
            assert holder is None
            mine = current_holder(tmp_path)
            assert mine is not None
            assert mine.pid == os.getpid()


def test_a_holder_that_has_not_written_its_name_yet_is_starting(tmp_path: Path) -> None:
    """Between locking and writing the file is empty, or names somebody else's past."""
    with process(HOLD, tmp_path) as other:
        assert line(other) == "None"
        for text in ("", "{", '{"pid": "x"}', "[]"):
            (tmp_path / "orchestrator.lock").write_text(text)
            holder = current_holder(tmp_path)
            assert holder == Holder(pid=0, command="starting", since="now")


def test_the_lock_is_released_when_a_tick_raises(tmp_path: Path) -> None:
    """Or a daemon would lock itself out."""
    with pytest.raises(RuntimeError), orchestrator_lock(tmp_path, command="x", since="y"):
        raise RuntimeError
    assert current_holder(tmp_path) is None


def test_many_submit_at_once_and_a_collection_waits_for_them(tmp_path: Path) -> None:
    """Submissions share the lock; gc is alone with it, and is in as soon as the last one is out."""
    with (
        process(SUBMIT, tmp_path, "shared") as other,
        process(SUBMIT, tmp_path, "shared") as another,
    ):
        for submission in (other, another):
            assert (line(submission), line(submission)) == ("trying", "in")
        with process(SUBMIT, tmp_path, "alone") as gc:
            assert line(gc) == "trying"
            assert gc.stdout is not None
            for submission in (other, another):
                assert select.select([gc.stdout], [], [], 0.2)[0] == []
                assert submission.stdin is not None
                submission.stdin.close()
            assert line(gc) == "in"


def test_a_lock_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    """The home was removed under us."""
    with (
        pytest.raises(ConfigError, match=r"orchestrator\.lock cannot be opened"),
        orchestrator_lock(tmp_path / "gone", command="x", since="y"),
    ):
        pytest.fail("nothing was locked")

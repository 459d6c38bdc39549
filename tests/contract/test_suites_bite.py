"""A suite that everything passes proves nothing: broken adapters and stores are caught, each by its own test."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-a-platform.md").read_text(encoding="utf-8")
SHED, SUITE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

#: what somebody might write instead of a line of the page, and the test that must not let it pass
BROKEN_ADAPTERS = {
    "a session for every call": (
        "self._shed.start(request.key, request.payload",
        "self._shed.start(f'{request.key}-{id(request)}', request.payload",
        "test_starting_twice_with_one_key_gives_one_session",
    ),
    "finds what was never started": (
        "SessionRef(key) if self._shed.started(key) else None",
        "SessionRef(key)",
        "test_a_session_that_the_platform_does_not_know_is_gone",
    ),
    "finds nothing": (
        "SessionRef(key) if self._shed.started(key) else None",
        "None",
        "test_a_started_session_is_found_by_its_key",
    ),
    "leaves unknown sessions out": (
        "words = {ref: self._word(ref) for ref in refs}",
        "words = {ref: self._word(ref) for ref in refs if self._shed.started(ref)}",
        "test_one_look_answers_for_every_session",
    ),
    "takes the dead for living": (
        "if self._shed.alive(ref)",
        "if self._shed.started(ref)",
        "test_a_killed_session_is_seen_as_ended",
    ),
    "does not stop": (
        "self._shed.terminate(ref)",
        "return",
        "test_a_stopped_session_ends_and_stopping_it_again_is_silent",
    ),
    "ends its sessions when it is closed": (
        "self._shed.close()",
        "[self._shed.terminate(key) for key in self._shed.keys()]",
        "test_a_session_lives_on_when_its_adapter_is_closed",
    ),
    "a request that changes": (
        '"profile": launch.profile.to_json()}',
        '"profile": launch.profile.to_json(), "nonce": id(object()) + id(launch)}',
        "test_a_request_is_a_pure_function_of_the_launch",
    ),
    "sends the environment": (
        '"profile": launch.profile.to_json()}',
        '"profile": launch.profile.to_json(), "env": dict(__import__("os").environ)}',
        "test_a_request_holds_no_secret_but_the_session_s_key",
    ),
    "talks through a shell": (
        'argv = [sys.executable, "-I", launch.agent_path, str(profile)]',
        'argv = ["/bin/sh", "-c", f"{sys.executable} -I {launch.agent_path} {profile}"]',
        "test_a_home_of_any_name_works",
    ),
    "shows the log from its beginning again": (
        "self._shed.log(ref, cursor)",
        "self._shed.log(ref, None)",
        "test_what_the_platform_shows_is_read_page_by_page",
    ),
    "a card that nobody knows": (
        'card="T4"',
        'card="T4-16GB-special"',
        "test_offers_are_consistent",
    ),
    "a pool without a window": (
        'pool="gpu"',
        'pool="gpus"',
        "test_offers_are_consistent",
    ),
    "a figure without a source": (
        'source="the notice on the shed\'s door"',
        'source=""',
        "test_every_window_is_declared_with_a_kind_and_a_source",
    ),
    "ignores typing errors": (
        "if unknown:",
        "if False:",
        "test_an_option_that_it_does_not_know_is_a_configuration_error",
    ),
}

STORE = """
import os
from pathlib import Path

from freegpu.agent.stores.base import Properties, check_key
from freegpu.agent.stores.folder import FolderStore
from freegpu.testing.suites import StoreSuite


class Broken(FolderStore):
{mistake}


class TestBroken(StoreSuite):
    def begin(self, folder):
        (folder / "store").mkdir()

    def open(self, folder):
        return Broken(folder / "store", sync=False)

    def unplug(self, folder):
        (folder / "store").rename(folder / "away")
        return True

    def plug(self, folder):
        (folder / "away").rename(folder / "store")

    def litter(self, folder):
        (folder / "store" / "jobs" / ".freegpu-unfinished").write_bytes(b"?")
        return True
"""
BROKEN_STORES = {
    "writes in place": (
        """
        def put(self, key, source):
            super().put(key, b"")
            data = source if isinstance(source, bytes) else Path(source).read_bytes()
            (self.root / key).write_bytes(data)
        """,
        "test_readers_see_the_old_object_or_the_new_one_and_never_half",
    ),
    "looks before it leaps": (
        """
        def put_new(self, key, source):
            if self.stat(key):
                return False
            __import__("time").sleep(0.001)
            self.put(key, source)
            return True
        """,
        "test_of_eight_racing_put_new_exactly_one_wins",
    ),
    "replaces what is there": (
        """
        def put_new(self, key, source):
            self.put(key, source)
            return True
        """,
        "test_put_new_never_replaces",
    ),
    "lists everything": (
        """
        def list(self, prefix, after=""):
            super().list(prefix)
            found = (p.relative_to(self.root).as_posix() for p in (self.root / prefix).rglob("*"))
            return sorted(k for k in found if k > after and (self.root / k).is_file())
        """,
        "test_unfinished_writes_and_other_people_s_files_are_never_listed",
    ),
    "lists by the beginning of the name": (
        """
        def list(self, prefix, after=""):
            return [k for k in super().list("") if k.startswith(prefix) and k > after]
        """,
        "test_a_listing_is_sorted_complete_and_of_that_folder_only",
    ),
    "makes its root anew": (
        """
        def put(self, key, source):
            (self.root / key).parent.mkdir(parents=True, exist_ok=True)
            (self.root / "freegpu.json").touch()
            super().put(key, source)
        """,
        "test_a_store_that_vanished_says_so",
    ),
    "takes a dead store for an empty one": (
        """
        def list(self, prefix, after=""):
            return super().list(prefix, after) if self.root.is_dir() else []
        """,
        "test_a_store_that_vanished_says_so",
    ),
    "reads any path": (
        """
        def get(self, key, start=0, end=None):
            return (self.root / key).read_bytes()[start:end]
        """,
        "test_what_is_no_key_is_refused_by_every_call",
    ),
    "believes the name instead of the bytes": (
        """
        def fetch(self, key, into):
            size, _ = super().fetch(key, into)
            return size, key.rsplit("/", 1)[1]
        """,
        "test_a_file_is_put_and_fetched_with_its_digest",
    ),
}


def failing(folder: Path, only: str) -> tuple[int, set[str]]:
    """Run these tests in a process of their own: pytest's exit code, and the names of those that failed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rf", "-x", "-p", "no:cacheprovider"),
            *("-k", only, "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), str(folder)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    failed = re.findall(r"^FAILED \S+::(test_\w+)", done.stdout, re.MULTILINE)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, set(failed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a platform's author would run pytest; patience is short, so that hopeless waits end soon."""
    (tmp_path / "author").mkdir()
    (tmp_path / "author" / "pytest.ini").write_text("[pytest]\n")
    return tmp_path / "author"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "test"), BROKEN_ADAPTERS.values(), ids=BROKEN_ADAPTERS.keys()
)
def test_a_broken_adapter_is_caught(folder: Path, right: str, wrong: str, test: str) -> None:
    """One line of the page is changed, and the suite has a test that says so."""
    assert SHED.count(right) == 1
    (folder / "shed.py").write_text(SHED.replace(right, wrong))
    (folder / "test_shed.py").write_text(SUITE + "    patience_s = 3.0\n")
    assert failing(folder, test) == (1, {test})


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "test"), BROKEN_STORES.values(), ids=BROKEN_STORES.keys())
def test_a_broken_store_is_caught(folder: Path, mistake: str, test: str) -> None:
    """One method is done the way one does it first."""
    text = STORE.format(mistake=textwrap.indent(textwrap.dedent(mistake), "    "))
    (folder / "test_broken.py").write_text(text)
    code, failed = failing(folder, test)
    assert code == 1
    assert all(name.startswith(test) for name in failed)


@pytest.mark.slow
def test_what_is_right_is_not_caught(folder: Path) -> None:
    """Run this way, the page's own adapter and a plain folder pass."""
    (folder / "shed.py").write_text(SHED)
    (folder / "test_shed.py").write_text(SUITE)
    (folder / "test_store.py").write_text(STORE.format(mistake='    """Not broken."""'))
    assert failing(folder, "test_") == (0, set())

"""`doctor PLATFORM --live` through the command line, real clients against loopback platforms: a job is really run, nothing stays."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_platform_pairs import at_home, made, use
from tests.servers.rigs import Rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PLATFORMS = ("kaggle", "lightning", "ssh", "colab")


@contextlib.contextmanager
def there(platform: str, folder: Path, user: Any) -> Iterator[tuple[Rig, Path]]:
    """A user with this platform connected and a store that both see."""
    store = folder / "shared store"
    store.mkdir()
    with made(platform, folder / platform, user) as rig:
        at_home(user, folder, rig)
        use(user, store, rig)
        user.ok("tick", timeout=120)
        yield rig, store


def live(user: Any, rig: Rig) -> tuple[Any, str]:
    """The live check, and what was told meanwhile; nothing of the rehearsal is in the ledger."""
    ran = user.types("doctor", rig.name, "--live", "--json", timeout=200)
    checks = {check["name"]: check for check in ran.json["data"]["checks"]}
    assert ran.code in (0, 10)
    assert user.ok("jobs", "--json").json["data"]["jobs"] == []
    return checks[f"{rig.name} live"], ran.err


def nothing_left(rig: Rig, store: Path) -> None:
    """No session runs, and the store has no folder of the rehearsal."""
    assert rig.lose() == 0
    assert [path.name for path in store.iterdir() if path.name.startswith("live-")] == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_job_is_run_and_everything_is_released(user: Any, tmp_path: Path, platform: str) -> None:
    """The output came back; what it costs was said first; neither the platform nor the store keeps anything."""
    with there(platform, tmp_path, user) as (rig, store):
        check, told = live(user, rig)
        assert check["ok"] is True, (check, told)
        assert "brought its output back" in check["detail"]
        assert "quota" in told.partition("so far")[0]
        nothing_left(rig, store)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_card_that_never_comes_is_a_sentence(user: Any, tmp_path: Path, platform: str) -> None:
    """A refusal for want of a card is a finding with exit code 10 and no crash."""
    with there(platform, tmp_path, user) as (rig, store):
        rig.refuse(True)
        check, told = live(user, rig)
        assert check["ok"] is False, (check, told)
        assert check["detail"]
        nothing_left(rig, store)


@pytest.mark.parametrize("platform", ["kaggle", "lightning"])
def test_a_session_that_dies_at_once_is_told(user: Any, tmp_path: Path, platform: str) -> None:
    """Killed as soon as it runs: the reason is told, and the job is not tried again.

    On ssh hosts and Colab the same blow hits what is just starting the session; their own suites look at that.
    """
    with there(platform, tmp_path, user) as (rig, store):
        over = threading.Event()

        def strike() -> None:
            while not over.is_set() and not rig.lose():
                time.sleep(0.02)

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            check, told = live(user, rig)
        finally:
            over.set()
            thread.join()
        assert check["ok"] is False, (check, told)
        assert "session ended" in check["detail"]
        nothing_left(rig, store)


@pytest.mark.parametrize("platform", ["lightning"])
def test_a_store_that_sessions_cannot_open_is_told(
    user: Any, tmp_path: Path, platform: str
) -> None:
    """The platform sees the store elsewhere, where there is none: its agent ends, and that is told."""
    with there(platform, tmp_path, user) as (rig, store):
        path = user.home / "freegpu.toml"
        text = path.read_text()
        told_there = f"store = {json.dumps(rig.opens(store))}\n"
        before, _, after = text.rpartition(told_there)
        path.write_text(f'{before}store = "folder:/nowhere/at-all"\n{after}')
        check, told = live(user, rig)
        assert check["ok"] is False, (check, told)
        nothing_left(rig, store)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_interrupted_in_the_middle_nothing_is_left(
    user: Any, tmp_path: Path, platform: str, number: signal.Signals
) -> None:
    """Ctrl-C or SIGTERM while it waits for the session: it is ended and cleaned before the command returns."""
    with there(platform, tmp_path, user) as (rig, store):
        process = user.starts("doctor", rig.name, "--live")
        for line in process.stderr:
            if "waiting for the" in line or "the session runs" in line:
                break
        process.send_signal(number)
        _, told = process.communicate(timeout=180)
        assert process.returncode == 130, told
        assert "Traceback" not in told
        assert "not cleaned" not in told
        nothing_left(rig, store)

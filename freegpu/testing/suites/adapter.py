# ruff: noqa: S101 - a suite is made of asserts
"""What every adapter must do, as tests; see AdapterSuite and PaperSuite."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from freegpu import cards
from freegpu.adapters import registry
from freegpu.adapters.base import Adapter, PlatformState, SessionRef, WindowKind
from freegpu.agent import wire
from freegpu.clock import SystemClock
from freegpu.errors import ConfigError
from freegpu.orchestrator import agent_archive
from freegpu.testing.suites.stage import HOME_KEY, OVER, Stage, until

#: names of folders that people really have, and that some shell or file format would stumble over
ODD_NAMES = (
    "a b",
    'it\'s "quoted"',
    "line\nbreak",
    "; echo oops >&2 #",
    "$(echo oops) `id` %s {x}",
    "-rf",
    "Übungen 家 🎲",
)
_STARTER = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
from pathlib import Path
from freegpu.adapters import registry
from freegpu.adapters.base import Request
from freegpu.clock import SystemClock
adapter = registry.create(
    given["name"], given["adapter"], given["options"], home=Path(given["home"]), clock=SystemClock()
)
print("ready", flush=True)
sys.stdin = open(given["gate"])
sys.stdin.read()
print(adapter.start(Request(key=given["key"], payload=given["payload"])), flush=True)
adapter.close()
"""


class PaperSuite:
    """What can be told without a session; the whole suite for platforms where a person must click first."""

    #: the platform's name in the configuration
    name: ClassVar[str]
    #: an entry point or "module:Class"
    adapter: ClassVar[str]
    #: within how many seconds a session is up, and one that was stopped or killed is seen as over
    patience_s: ClassVar[float] = 15.0
    #: credentials that the options contain, and that may be in no request
    credentials: ClassVar[Sequence[str]] = ()
    #: a session that was stopped is gone from the platform, with its output
    stop_erases: ClassVar[bool] = False

    def options(self, folder: Path) -> Mapping[str, Any]:
        """The platform's options (plain JSON); `folder` is the test's own."""
        return {}

    # --- fixtures ---------------------------------------------------------------------------------------

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[Stage]:
        with_options = dict(self.options(tmp_path))
        stage = Stage(
            tmp_path / "stage",
            lambda home: self._make(with_options, home),
            patience_s=self.patience_s,
        )
        yield stage
        stage.close()

    def _make(self, options: Mapping[str, Any], home: Path) -> Adapter:
        return registry.create(self.name, self.adapter, options, home=home, clock=SystemClock())

    def test_it_says_who_it_is_and_what_it_can(self, stage: Stage) -> None:
        """Name as configured, an account for people, capabilities that do not change."""
        assert stage.adapter.name == self.name
        assert stage.adapter.account.strip()
        known = stage.adapter.capabilities
        assert known == stage.adapter.capabilities
        assert known.max_concurrent >= 1
        assert known.max_session_s is None or known.max_session_s > 0

    def test_every_window_is_declared_with_a_kind_and_a_source(self, stage: Stage) -> None:
        """A figure that nobody can trace is a rumour."""
        assert stage.adapter.windows
        for window in stage.adapter.windows.values():
            assert window.source
            assert window.limit_s is None or window.limit_s >= 0
            if window.kind in (WindowKind.ROLLING, WindowKind.FROM_FIRST_USE):
                assert window.period_s > 0

    def test_offers_are_consistent(self, stage: Stage) -> None:
        """A known card with its memory, at least one of it, a declared pool, this platform's name."""
        offers = stage.adapter.offers()
        assert offers, "the suite needs at least one offer"
        for offer in offers:
            known = cards.find(offer.card)
            assert known is not None, f"no card is called {offer.card!r}: add it to freegpu/cards"
            assert offer.card == known.name
            assert offer.platform == self.name
            assert offer.account == stage.adapter.account
            assert offer.count >= 1
            assert (offer.vram_gb > 0) == (known.kind != "cpu")
            assert offer.pool in stage.adapter.windows
            assert offer.rate >= 0
            assert offer.start_delay_s >= 0
            assert len(offer.devices) in (0, offer.count)
            limit = stage.adapter.capabilities.max_session_s
            if limit is not None:
                assert offer.session_limit_s is not None
                assert offer.session_limit_s <= limit

    def test_quota_reports_are_of_declared_pools_and_dated(self, stage: Stage) -> None:
        """None exactly when the capabilities say that the platform does not tell."""
        reports = stage.adapter.quota()
        assert (reports is not None) == stage.adapter.capabilities.reports_quota
        for report in reports or ():
            assert report.pool in stage.adapter.windows
            assert report.used_s >= 0
            assert report.as_of.utcoffset() == timedelta()
            assert report.resets_at is None or report.resets_at.utcoffset() == timedelta()

    def test_a_request_is_a_pure_function_of_the_launch(self, stage: Stage) -> None:
        """Equal launches, equal requests; plain JSON; nothing is written, and another key shows."""
        before = sorted(stage.home.rglob("*"))
        request = stage.adapter.render(stage.launch("s-pure"))
        assert request == stage.adapter.render(stage.launch("s-pure"))
        assert request == stage.make(stage.home).render(stage.launch("s-pure"))
        assert request.key == "s-pure"
        assert json.loads(json.dumps(request.payload)) == request.payload
        assert request != stage.adapter.render(stage.launch("s-other"))
        assert sorted(stage.home.rglob("*")) == before

    def test_a_request_holds_no_secret_but_the_session_s_key(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not the home's key, no credential, nothing of the environment: a request is printed by --dry-run."""
        monkeypatch.setenv("SUITE_TOKEN", "canary-in-the-environment")
        launch = stage.launch("s-secret")
        text = json.dumps(stage.adapter.render(launch).payload, ensure_ascii=False)
        others = [wire.session_key(HOME_KEY, "s-another")]
        for secret in (HOME_KEY, *others):
            assert secret.hex() not in text
            assert base64.b64encode(secret).decode() not in text
        for word in ("canary-in-the-environment", *self.credentials):
            assert word not in text
        other = replace(launch, profile=replace(launch.profile, key="0" * 64))
        if not stage.adapter.capabilities.attended:  # a person's cell brings its own profile
            assert stage.adapter.render(other) != stage.adapter.render(launch)

    @pytest.mark.parametrize(
        "ref", ["s-nobody", "", "../..", "a b", "x" * 300, "ü", "a\nb"], ids=ascii
    )
    def test_a_session_that_the_platform_does_not_know_is_gone(
        self, stage: Stage, ref: str
    ) -> None:
        """Observed as GONE, stopped in silence, found as None; whatever the handle looks like.

        Where a person starts the sessions there may be nobody to ask: then UNKNOWN is the truth.
        """
        allowed = {PlatformState.GONE}
        if stage.adapter.capabilities.attended:
            allowed.add(PlatformState.UNKNOWN)
        assert stage.state(SessionRef(ref)) in allowed
        stage.adapter.stop(SessionRef(ref))
        assert stage.adapter.find(ref) is None

    def test_closing_twice_is_fine(self, stage: Stage) -> None:
        """And so is closing without having done anything."""
        stage.adapter.close()
        stage.adapter.close()

    def test_an_option_that_it_does_not_know_is_a_configuration_error(self, stage: Stage) -> None:
        """A typing error in freegpu.toml is told, with its name, and never ignored."""
        wrong = {**self.options(stage.folder), "no_such_option": 1}
        with pytest.raises(ConfigError, match="no_such_option"):
            self._make(wrong, stage.home)


class AdapterSuite(PaperSuite):
    """Everything, with sessions that are really started (on a real platform: against a loopback server).

    Subclass it as `class TestMine(AdapterSuite)` and name the adapter as freegpu.toml would::

        class TestShed(AdapterSuite):
            name = "shed"
            adapter = "shed:ShedAdapter"
    """

    def test_starting_twice_with_one_key_gives_one_session(self, stage: Stage) -> None:
        """The same handle, one process; also for another process that repeats the request."""
        request = stage.adapter.render(stage.launch("s-twice"))
        ref = stage.start_request(request)
        assert stage.adapter.start(request) == ref
        again = stage.make(stage.home)
        assert again.start(request) == ref
        again.close()
        self._is_up(stage, "s-twice", ref)
        time.sleep(0.3)  # a second one would need a moment to note its start
        assert len(stage.pids("s-twice")) == 1

    def test_two_processes_that_start_one_key_at_once_start_one_session(self, stage: Stage) -> None:
        """Two commands plan the same: whoever comes second finds the first one's session."""
        request = stage.adapter.render(stage.launch("s-race"))
        gate = stage.folder / "gate"
        os.mkfifo(gate)
        given = {
            "path": sys.path,
            "name": self.name,
            "adapter": self.adapter,
            "options": dict(self.options(stage.folder.parent)),
            "home": str(stage.home),
            "gate": str(gate),
            "key": request.key,
            "payload": request.payload,
        }
        starters = [
            subprocess.Popen(
                [sys.executable, "-c", _STARTER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(4)
        ]
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write(json.dumps(given))
            starter.stdin.close()
        for starter in starters:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "ready\n"
        with open(gate, "w"):
            time.sleep(0.2)  # all of them hold the gate; closing it lets them go together
        answers = []
        for starter in starters:
            assert starter.stdout is not None
            answers.append(starter.stdout.read().strip())
            starter.stdout.close()
            assert starter.wait(30) == 0
        ref = SessionRef(answers[0])
        stage.remember(ref)
        assert set(answers) == {ref}
        self._is_up(stage, "s-race", ref)
        time.sleep(0.3)  # a second one would need a moment to note its start
        assert len(stage.pids("s-race")) == 1

    def test_a_started_session_is_found_by_its_key(self, stage: Stage) -> None:
        """Also by a process that did not start it; this is how a crash between start and commit is mended."""
        ref = stage.start("s-find")
        assert stage.adapter.find("s-find") == ref
        assert stage.adapter.find("s-fin") is None
        other = stage.make(stage.home)
        assert other.find("s-find") == ref
        other.close()

    def test_one_look_answers_for_every_session(self, stage: Stage) -> None:
        """Known and unknown ones together; none is asked for, none is answered."""
        ref = stage.start("s-look")
        unknown = SessionRef("s-unknown")
        self._is_up(stage, "s-look", ref)
        seen = stage.adapter.observe([unknown, ref])
        assert set(seen) == {ref, unknown}
        assert seen[unknown].state is PlatformState.GONE
        assert seen[ref].state is PlatformState.RUNNING
        assert stage.adapter.observe([]) == {}

    def test_a_session_lives_on_when_its_adapter_is_closed(self, stage: Stage) -> None:
        """The command that started it ends; its session does not."""
        ref = stage.start("s-orphan")
        self._is_up(stage, "s-orphan", ref)
        stage.adapter.close()
        stage.adapter = stage.make(stage.home)
        for _ in range(10):
            assert stage.state(ref) is PlatformState.RUNNING
            time.sleep(0.05)

    def test_a_stopped_session_ends_and_stopping_it_again_is_silent(self, stage: Stage) -> None:
        """stop() does not wait; the end is seen soon after."""
        if not stage.adapter.capabilities.stop:
            pytest.skip("this platform's sessions cannot be stopped")
        ref = stage.start("s-stop")
        self._is_up(stage, "s-stop", ref)
        stage.adapter.stop(ref)
        self._is_over(stage, ref, erased=self.stop_erases)
        stage.adapter.stop(ref)
        assert stage.state(ref) in OVER
        assert stage.adapter.find("s-stop") == (None if self.stop_erases else ref)

    def test_a_killed_session_is_seen_as_ended(self, stage: Stage) -> None:
        """SIGKILL leaves no word behind; the platform says so all the same, to every process."""
        ref = stage.start("s-kill")
        self._is_up(stage, "s-kill", ref)
        os.kill(stage.pids("s-kill")[0], signal.SIGKILL)
        self._is_over(stage, ref)
        other = stage.make(stage.home)
        assert stage.state(ref, other) is PlatformState.ENDED
        other.close()

    def test_what_the_platform_shows_is_read_page_by_page(self, stage: Stage) -> None:
        """A cursor goes on where the last page ended, and nothing is shown twice."""
        ref = stage.start("s-logs")
        self._is_up(stage, "s-logs", ref)
        if not stage.adapter.capabilities.live_logs:
            stage.adapter.logs(ref)
            return
        page = until(lambda: (p := stage.adapter.logs(ref)).text and p, seconds=self.patience_s)
        assert "the stand-in is up" in page.text
        assert page.cursor is not None
        assert "the stand-in is up" not in stage.adapter.logs(ref, cursor=page.cursor).text

    def test_a_real_agent_says_hello_and_goes_when_it_is_asked_to(self, stage: Stage) -> None:
        """From start() to a signed hello in the store, and to ENDED after stop()."""
        self._real_session(stage, "s-real")

    @pytest.mark.parametrize("odd", ODD_NAMES, ids=ascii)
    def test_a_home_of_any_name_works(self, tmp_path: Path, odd: str) -> None:
        """Spaces, quotes, line breaks, shell text, Unicode: a path is data and never a command."""
        options = dict(self.options(tmp_path))
        stage = Stage(
            tmp_path / odd, lambda home: self._make(options, home), patience_s=self.patience_s
        )
        try:
            self._real_session(stage, "s-odd")
        finally:
            stage.close()

    def _real_session(self, stage: Stage, key: str) -> None:
        archive, _ = agent_archive.build(stage.home / "agent")
        ref = stage.start(key, agent=archive)
        if stage.adapter.capabilities.sealed:
            self._sealed_session(stage, key, ref)
            return
        seen = until(
            lambda: stage.hello(key) or stage.state(ref) in OVER,
            seconds=self.patience_s,
            why="no hello",
        )
        assert isinstance(seen, dict), f"it ended: {stage.adapter.logs(ref).text}"
        assert seen["session"] == key
        assert stage.state(ref) is PlatformState.RUNNING
        stage.adapter.stop(ref)
        self._is_over(stage, ref, erased=self.stop_erases)

    def _sealed_session(self, stage: Stage, key: str, ref: SessionRef) -> None:
        """It has nothing to do, ends by itself, and what it wrote comes home."""
        self._is_over(stage, ref)
        home = stage.folder / "came home"
        home.mkdir()
        collected = stage.adapter.collect(ref, home)
        assert collected.whole, f"its log: {stage.adapter.logs(ref).text}"
        assert collected.files >= 2
        seen = stage.hello(key, home)
        assert seen is not None, f"no hello; its log: {stage.adapter.logs(ref).text}"
        assert seen["session"] == key

    def _is_up(self, stage: Stage, key: str, ref: SessionRef) -> None:
        def up() -> bool:
            state = stage.state(ref)
            assert state not in OVER, f"it ended: {stage.adapter.logs(ref).text}"
            return state is PlatformState.RUNNING and bool(stage.pids(key))

        until(up, seconds=self.patience_s, why="the session does not come up")

    def _is_over(self, stage: Stage, ref: SessionRef, *, erased: bool = False) -> None:
        until(
            lambda: stage.state(ref) in (OVER if erased else (PlatformState.ENDED,)),
            seconds=self.patience_s,
            why="the session is not seen as ended",
        )

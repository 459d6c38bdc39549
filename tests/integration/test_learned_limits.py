"""Limits learned end to end: real agents on a loopback platform that takes sessions away and refuses new ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from freegpu import config
from freegpu.adapters.base import SessionRef
from freegpu.cli import tables
from freegpu.clock import SystemClock, utc
from freegpu.jobs.lifecycle import SessionState
from freegpu.orchestrator.model import Session
from freegpu.orchestrator.operations import Workspace
from freegpu.orchestrator.views import PlatformView
from freegpu.testing.loopback import LoopbackAdapter

pytestmark = pytest.mark.slow

#: a platform that says nothing about its limits, and asks to be called as seldom as freegpu pleases
TOML = """
poll_s = 0.1
beat_s = 0.1
tick_s = 0.1
[platforms.local]
enabled = false
[platforms.grey]
adapter = "freegpu.testing.loopback:LoopbackAdapter"
card = "T4"
reports_quota = false
window = {kind = "rolling"}
"""


def until(workspace: Workspace, what: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come about"
        workspace.tick()
        time.sleep(0.05)


def test_sessions_that_were_taken_away_and_a_refusal_become_ranges_in_status(
    tmp_path: Path,
) -> None:
    """Two sessions killed without notice, one that ended because there was nothing to do, one refusal."""
    home = tmp_path / "home"
    home.mkdir()
    (home / config.FILE_NAME).write_text(TOML)
    (tmp_path / "job.yaml").write_text(
        "name: long\nrun: sleep 600\nfreegpu: {checkpoint: {grace: 1s}}\n"
    )
    settings = replace(config.load({}, home=home), store=f"folder:{tmp_path / 'store'}")
    (tmp_path / "store").mkdir()
    with Workspace.open(settings) as workspace:
        platform = workspace.adapters["grey"].inner
        assert isinstance(platform, LoopbackAdapter)

        def view() -> PlatformView:
            [found] = workspace.status().platforms
            return found

        def live() -> Session | None:
            found = workspace.ledger.sessions()
            alive = [s for s in found if s.state is SessionState.LIVE and s.beat.get("uptime_s")]
            return alive[0] if alive else None

        def take_away(after_s: float) -> None:
            """Kill the next session without notice when it has lived so long; wait until that is known."""
            until(workspace, lambda: live() is not None)
            session = live()
            assert session is not None
            until(
                workspace,
                lambda: workspace.ledger.session(session.id).beat["uptime_s"] > after_s,
            )
            assert platform.kill(SessionRef(session.ref))
            until(workspace, lambda: not workspace.ledger.session(session.id).state.open)

        try:
            before = view().learned
            assert before is not None
            assert before.session is None
            job = workspace.submit(tmp_path / "job.yaml", environ={}).jobs[0]
            for stay in (1.0, 2.5):
                take_away(stay)
            until(workspace, lambda: live() is not None)
            workspace.cancel([job.id])
            until(workspace, lambda: not workspace.ledger.sessions())
            lengths = view().learned
            assert lengths is not None
            assert lengths.session is not None
            assert (lengths.session.seen, lengths.session.observed) == (3, 2)
            assert lengths.session.low_s is not None
            assert 0.5 < lengths.session.low_s < 20.0
            assert lengths.session.text.endswith("(3 sessions, 1 cut off)")
            assert lengths.allowance is None

            platform.set_faults(refuse_quota=True)
            workspace.submit(tmp_path / "job.yaml", environ={})
            workspace.tick()
            shown = view()
            assert shown.source == "learned"
            assert shown.learned is not None
            assert shown.learned.allowance is not None
            assert shown.learned.allowance.observed == 1
            assert shown.learned.allowance.low_s == pytest.approx(shown.used_s, abs=5.0)
            assert shown.learned.refusal is not None
            assert shown.learned.refusal.observed == 0
            row = tables.platform_row(replace(shown, problem=""), utc(SystemClock()))
            assert "(1 refusal)" in row[2]
            # with the age of the newest session or refusal, which a slow machine makes a minute
            assert str(row[4]).startswith("learned, ")
            assert row[6][0] == f"sessions lasted {shown.learned.session.text}"  # type: ignore[union-attr]
        finally:
            platform.set_faults(refuse_quota=False)
            for session in workspace.ledger.sessions(open_only=False):
                platform.kill(SessionRef(session.ref or session.id))

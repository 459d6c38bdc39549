"""A cell that is made while `up` is at work is served by that `up`."""

from __future__ import annotations

from pathlib import Path

from freegpu import config
from freegpu.agent import wire
from freegpu.jobs.lifecycle import SessionState
from freegpu.orchestrator import cells
from freegpu.orchestrator.operations import Workspace
from freegpu.testing.clock import ManualClock


def test_a_cell_made_after_the_orchestrator_began_is_served_without_a_restart(
    tmp_path: Path,
) -> None:
    """The orchestrator has put its platforms together before; the cell is made by another command."""
    settings = config.load({}, home=tmp_path / "home")
    with (
        Workspace.open(settings, clock=ManualClock()) as up,
        Workspace.open(settings, clock=ManualClock()) as command,
    ):
        assert up.tick().did
        assert "jupyter" not in up.adapters
        command.cell("jupyter")
        cell = cells.known(command.ledger)["jupyter"]
        session = wire.guest_session(cell.id, "0")
        key = wire.session_key(command.identity.key, session)
        slots = [["CPU", 0.0, "fp32"]]
        body = {"session": session, "platform": "jupyter", "slots": slots, "limit_s": None}
        command.store.put_new(wire.announcement_key(cell.id, session), wire.pack(body, key))
        assert up.tick().did
        taken = up.ledger.session(session)
        assert (taken.platform, taken.state) == ("jupyter", SessionState.STARTING)

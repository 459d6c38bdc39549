"""`doctor --live`: a one-line job through everything, on each platform, in a home that is thrown away.

The user's own ledger and store see nothing of it; a platform's quota does, by a few seconds.
"""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from freegpu.cli.call import Call
from freegpu.cli.text import duration
from freegpu.errors import FreeGPUError

if TYPE_CHECKING:
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.views import Check

#: ticks that the job may take; with the pause between them about two minutes
TICKS = 240
PAUSE_S = 0.5
#: how long the agent stays when the job is over; the home goes only when it has left, at most so many ticks later
IDLE_S = 2.0
LEAVING_TICKS = 40


def run(call: Call, platform: str | None) -> Iterator[Check]:
    """One check a platform: its job was run and its output came back."""
    for name in call.settings.platforms:
        if platform in (None, name):
            yield _rehearse(call, name)


def _rehearse(call: Call, name: str) -> Check:
    from freegpu.orchestrator.views import Check

    word = secrets.token_hex(8)
    begun = call.now()
    with tempfile.TemporaryDirectory(prefix="freegpu-live-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        spec = home / "job.yaml"
        spec.write_text(
            f"name: doctor\nrun: echo {word}\nfreegpu: {{retry: {{failures: 0}}}}\n",
            encoding="utf-8",
        )
        settings = dataclasses.replace(
            call.settings,
            home=home / "home",
            store=f"folder:{home / 'home' / 'store'}",
            db=str(home / "home" / "state.db"),
            platforms={name: call.settings.platforms[name]},
            idle_s=IDLE_S,
            sources={},
        )
        try:
            with call.opened(settings) as workspace:
                job = workspace.submit(spec, environ={}).jobs[0].id
                view = workspace.show(job).job
                for _ in range(TICKS):
                    workspace.tick(block=True)
                    view = workspace.show(job).job
                    if view.state not in ("pending", "active"):
                        break
                    call.sleep(PAUSE_S)
                else:
                    workspace.cancel([job])
                    workspace.tick(block=True)
                output = b"".join(chunk.data for chunk in workspace.log_chunks(job))
                took = duration((call.now() - begun).total_seconds())
                _let_go(call, workspace)
        except FreeGPUError as error:
            return Check(name=f"{name} live", ok=False, detail=str(error), hint=error.hint)
    if view.state == "succeeded" and word.encode() in output:
        detail = f"ran a job on {view.card} and brought its output back in {took}"
        return Check(name=f"{name} live", ok=True, detail=detail)
    detail = f"a one-line job is {view.state} after {took}: {view.why or 'no reason known'}"
    hint = f"`freegpu doctor {name}` without --live shows whether the platform offers anything now"
    return Check(name=f"{name} live", ok=False, detail=detail, hint=hint)


def _let_go(call: Call, workspace: Workspace) -> None:
    """Tick until the session has ended, so that no agent outlives its home."""
    for _ in range(LEAVING_TICKS):
        if not workspace.status().sessions:
            return
        call.sleep(PAUSE_S)
        workspace.tick(block=True)

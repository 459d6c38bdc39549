"""`doctor`: what is installed, reachable and configured, one line each, and what to do about it.

A finding is a line, never an exception: the one command that must work when nothing else does.
"""

from __future__ import annotations

import platform as machine
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from freegpu import __version__
from freegpu.agent.stores.base import StoreError
from freegpu.errors import FreeGPUError
from freegpu.orchestrator.home import current_holder, home_key
from freegpu.orchestrator.views import Check, StoreReport

if TYPE_CHECKING:
    from freegpu.adapters.wrappers import Patient
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.probe import Measured

#: below this much free disk, checkpoints and bundles are in danger, bytes
LOW_DISK = 2_000_000_000


def run(workspace: Workspace, only: str | None) -> tuple[Check, ...]:
    """All checks, or those of one platform."""
    checks = [] if only else [*_machine(workspace), *_ledger(workspace), *_store(workspace)]
    return (*checks, *_platforms(workspace, only))


def _machine(workspace: Workspace) -> Iterator[Check]:
    home = workspace.settings.home
    yield Check(
        name="freegpu",
        ok=None,
        detail=f"version {__version__}, Python {machine.python_version()} ({sys.executable})",
    )
    shell = shutil.which("bash") or shutil.which("sh")
    yield Check(
        name="shell",
        ok=shell is not None,
        detail=shell or "neither bash nor sh was found",
        hint="" if shell else "install bash: jobs are run by it",
    )
    free = shutil.disk_usage(home).free
    yield Check(
        name="disk",
        ok=free > LOW_DISK,
        detail=f"{free / 1e9:.1f} GB free where {home} lies",
        hint=""
        if free > LOW_DISK
        else "free some space; `freegpu gc --dry-run` shows what could go",
    )
    try:
        home_key(home)
        yield Check(name="home", ok=True, detail=str(home))
    except FreeGPUError as error:
        yield Check(name="home", ok=False, detail=error.message, hint=error.hint)
    holder = current_holder(home)
    yield Check(
        name="orchestrator",
        ok=None,
        detail=str(holder) if holder else "none is running: each command ticks by itself",
        hint="" if holder else "`freegpu up` moves jobs on while you are away",
    )


def _ledger(workspace: Workspace) -> Iterator[Check]:
    try:
        counts = workspace.ledger.job_counts()
        damage = workspace.ledger.damage()
        total = sum(counts.values())
        yield Check(
            name="ledger",
            ok=not damage,
            detail=f"{workspace.settings.db}, {total} job{'s' if total != 1 else ''}"
            + "".join(f"; {line}" for line in damage[:3]),
            hint="restore state.db from a backup" if damage else "",
        )
    except FreeGPUError as error:
        yield Check(name="ledger", ok=False, detail=error.message, hint=error.hint)


def _store(workspace: Workspace) -> Iterator[Check]:
    where = (
        f"{workspace.settings.store} (set by {workspace.settings.sources.get('store', 'default')})"
    )
    try:
        store = workspace.store
        probe = "doctor/probe.txt"
        store.put(probe, b"freegpu doctor")
        same = store.get(probe) == b"freegpu doctor"
        store.delete(probe)
        yield Check(
            name="store",
            ok=same,
            detail=f"{where}: {'writes and reads back' if same else 'does not read back what was written'}",
            hint="" if same else "choose another store",
        )
    except FreeGPUError as error:
        yield Check(name="store", ok=False, detail=f"{where}: {error.message}", hint=error.hint)
    except StoreError as error:
        yield Check(name="store", ok=False, detail=f"{where}: {error}", hint="mount or mend it")


def store_report(workspace: Workspace, say: Callable[[str], None]) -> StoreReport:
    """`doctor store`: the store measured by two clients, and what that means. Findings, never an exception."""
    from freegpu.orchestrator import connection, probe

    first = next(_store(workspace))
    if first.ok is False:
        return StoreReport(checks=(first,), measured=None, means=())
    try:
        found = connection.measure(workspace, workspace.settings, say)
    except FreeGPUError as error:
        failed = Check(name="store", ok=False, detail=error.message, hint=error.hint)
        return StoreReport(checks=(failed,), measured=None, means=())
    return StoreReport(
        checks=(first, *_measured(found)),
        measured=found,
        means=probe.means(found, workspace.settings.store),
    )


def _measured(found: Measured) -> Iterator[Check]:
    """What is wrong with it, if anything: the figures themselves are shown beside these lines."""
    slow = found.lag_s is None
    yield Check(
        name="visibility",
        ok=not slow,
        detail="not every change was seen by the other client in time"
        if slow
        else f"the other client saw each change within {found.lag_s or 0:.1f} s",
        hint="if it is a mounted or synced folder, see docs/how-to/choose-a-store.md"
        if slow
        else "",
    )
    free = found.space.free if found.space else None
    if free is not None:
        yield Check(
            name="space",
            ok=free > LOW_DISK,
            detail=f"{free / 1e9:.1f} GB are left in the store",
            hint=""
            if free > LOW_DISK
            else "make room: `freegpu gc --dry-run` shows what could go, and trash may count too",
        )
    for problem in found.problems:
        yield Check(
            name="probe", ok=False, detail=problem, hint="try again, or choose another store"
        )


def _platforms(workspace: Workspace, only: str | None) -> Iterator[Check]:
    try:
        adapters = workspace.adapters
    except FreeGPUError as error:
        yield Check(name="platforms", ok=False, detail=error.message, hint=error.hint)
        return
    if only is not None and only not in adapters:
        known = ", ".join(sorted(adapters)) or "none"
        yield Check(
            name=only,
            ok=False,
            detail=f"no platform of this name is configured; configured: {known}",
            hint="add a [platforms.NAME] table to freegpu.toml",
        )
        return
    for name, adapter in sorted(adapters.items()):
        if only not in (None, name):
            continue
        try:
            offers = adapter.offers()
            adapter.quota()
        except FreeGPUError as error:
            yield from _diagnosed(workspace, name, adapter)
            yield Check(name=name, ok=False, detail=error.message, hint=error.hint)
            continue
        yield from _diagnosed(workspace, name, adapter)
        cards = ", ".join(f"{o.card} x{o.count}" if o.count > 1 else o.card for o in offers)
        if adapter.capabilities.attended:
            yield Check(
                name=name,
                ok=None,
                detail=f"account {adapter.account}; usually {cards or 'whatever the machine has'};"
                " a person starts its sessions",
                hint=f"`freegpu cell {name}` makes the cell to run there",
            )
            continue
        yield Check(
            name=name,
            ok=True if offers else None,
            detail=f"account {adapter.account}; offers {cards or 'nothing now'}",
            hint=""
            if offers
            else "nothing is wrong: the platform has no card for you at the moment",
        )


def _diagnosed(workspace: Workspace, name: str, adapter: Patient) -> Iterator[Check]:
    """What the platform's own look at itself found."""
    from freegpu.orchestrator import connection

    for finding in connection.diagnose(adapter.inner, workspace.settings):
        yield Check(
            name=f"{name} {finding.name}",
            ok=finding.ok,
            detail=finding.detail,
            hint=finding.hint,
        )

"""Whether the account has room for one more session, looked at before anything is uploaded for it.

What goes in with a sealed session may be gigabytes of checkpoint, and a push that is refused makes them worthless: they
bear the session's name. So running sessions are counted first, and a refusal is remembered while its cause is there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from freegpu.adapters.base import PlatformState
from freegpu.adapters.hosts import write_private
from freegpu.adapters.kaggle import words
from freegpu.adapters.kaggle.calls import Calls, DeniedError, MissingError

__all__ = ["CAP", "lacking", "ours", "remember", "running"]

#: batch sessions with cards that an account may have (reports, 2026-12-02); of others nothing is known
CAP: Mapping[str, int] = {words.GPU: 2}
#: a refusal counts for so long, unless a session that ran then is over, seconds
AGAIN_S = 600.0
#: no session that began earlier still runs: 12 h, and slack for queue and clocks, seconds
_RECENT_S = 15 * 3600.0
#: so many notebooks are looked at, the one that ran last first
_MOST = 20
_ALIVE = (PlatformState.STARTING, PlatformState.RUNNING)


def lacking(calls: Calls, pool: str, folder: Path) -> str:
    """Why a session with cards of this pool would be refused now; "" if nothing speaks against it. AdapterError."""
    cap, note = CAP.get(pool), _note(folder, pool)
    fresh = note is not None and 0 <= calls.clock.time() - note["at"] < AGAIN_S
    if cap is None and not fresh:
        return ""
    there = running(calls, pool)
    if cap is not None and len(there) >= cap:
        return f"{len(there)} sessions run already: {', '.join(there)}"
    if note is not None and fresh and set(note["running"]) <= set(there):
        return f"Kaggle refused one a moment ago ({note['error']}), and nothing has ended since"
    return ""


def remember(calls: Calls, pool: str, folder: Path, error: str) -> None:
    """Note that Kaggle refused a session, and what ran then. AdapterError: the account cannot be looked at."""
    notes = {**_notes(folder)}
    notes[pool] = {"at": calls.clock.time(), "error": error, "running": running(calls, pool)}
    hidden = folder / f".busy-{os.getpid()}"
    write_private(hidden, json.dumps(notes).encode())
    os.replace(hidden, folder / "busy.json")


def running(calls: Calls, pool: str) -> list[str]:
    """OWNER/SLUG of the notebooks whose session is queued or runs, whoever started it. AdapterError."""
    return [ref for ref, row in _recent(calls) if words.pool(row) == pool and _alive(calls, ref)]


def ours(calls: Calls, prefix: str) -> list[tuple[str, bool]]:
    """(slug, whether it runs) of this account's recent notebooks with a name of ours. AdapterError."""
    found = [ref for ref, _ in _recent(calls) if ref.partition("/")[2].startswith(prefix)]
    return [(ref.partition("/")[2], _alive(calls, ref)) for ref in found]


def _recent(calls: Calls) -> Iterator[tuple[str, Mapping[str, Any]]]:
    told = calls.ask("ListKernels", group="PROFILE", sortBy="DATE_RUN", page=1, pageSize=_MOST)
    rows = told.get("kernels")
    now = calls.clock.time() + (calls.skew_s or 0.0)
    for row in (rows if isinstance(rows, list) else [])[:_MOST]:
        ref = str(row.get("ref") or "").removeprefix("/code/") if isinstance(row, dict) else ""
        when: datetime | None = words.moment(row.get("lastRunTime")) if ref else None
        if ref.count("/") == 1 and (when is None or now - when.timestamp() < _RECENT_S):
            yield ref, row


def _alive(calls: Calls, ref: str) -> bool:
    """As far as Kaggle tells: a deleted notebook stays in the list for a while."""
    owner, slug = ref.split("/")
    try:
        told = calls.ask("GetKernelSessionStatus", userName=owner, kernelSlug=slug)
    except (MissingError, DeniedError):
        return False
    return words.observation(told).state in _ALIVE


def _notes(folder: Path) -> dict[str, Any]:
    try:
        told = json.loads((folder / "busy.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _note(folder: Path, pool: str) -> dict[str, Any] | None:
    note = _notes(folder).get(pool)
    return note if isinstance(note, dict) and {"at", "error", "running"} <= note.keys() else None

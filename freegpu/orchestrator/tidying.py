"""What sessions leave behind on a platform when they are over: noted before a session ends, removed after, once.

A studio goes on costing, a dataset with credentials lies there: so it is noted in the ledger before the session counts as
ended, and tried again by later ticks until the platform said yes, or for so long that nothing can be left of it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from freegpu.adapters.base import Adapter, SessionRef, Tidy, Unsettled
from freegpu.errors import AdapterError
from freegpu.orchestrator.lanes import Lanes, Late
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Session

__all__ = ["left", "note", "settle", "sweep"]

log = logging.getLogger(__name__)

_META = "tidy"
#: a platform that failed is asked again after so long, and no longer than that, seconds
AGAIN_S, FOR_S = 300.0, 14 * 86400.0


def note(ledger: Ledger, session: Session, adapters: Mapping[str, Adapter]) -> None:
    """Remember that this session's leftovers are to be removed, if its platform has such.

    A start that was never answered has no handle, and may have left a Studio with credentials in it: its key stands there.
    """
    adapter = adapters.get(session.platform)
    if isinstance(_inner(adapter), Tidy):
        left = _left(ledger)
        ref = session.ref or session.key
        left.setdefault(session.id, {"platform": session.platform, "ref": ref})
        _write(ledger, left)


def left(ledger: Ledger) -> tuple[str, ...]:
    """The sessions whose leftovers are still to be removed."""
    return tuple(_left(ledger))


def sweep(
    ledger: Ledger, adapters: Mapping[str, Adapter], lanes: Lanes, now: datetime
) -> list[str]:
    """Remove what is noted, as far as the platforms let us now; returns problems, as sentences."""
    left, problems = _left(ledger), []
    for session, entry in list(left.items()):
        adapter: Any = adapters.get(entry["platform"])
        again = datetime.fromisoformat(entry["again"]) if "again" in entry else now
        if not isinstance(_inner(adapter), Tidy) or now < again:
            continue
        what = f"tidy {session}"
        lanes.call(
            entry["platform"],
            what,
            partial(adapter.tidy, SessionRef(entry["ref"])),
            vital=True,
        )
        try:
            lanes.take(entry["platform"], what, wait_s=WAIT_S)
        except Late:
            continue
        except AdapterError as error:
            log.info("tidy %s: %s", session, error, extra={"action": "tidy_failed"})
            since = datetime.fromisoformat(entry.setdefault("since", now.isoformat()))
            entry["again"] = (now + timedelta(seconds=AGAIN_S)).isoformat()
            if now - since > timedelta(seconds=FOR_S):
                del left[session]
            problems.append(f"what session {session} left on {entry['platform']}: {error.message}")
        else:
            del left[session]
        _write(ledger, left)
    return problems


def settle(adapters: Mapping[str, Adapter], lanes: Lanes) -> list[str]:
    """Let platforms give back what starts without an answer have got; returns problems, as sentences.

    Not only while a job waits or a session is open: what came late runs, and costs, when everything else is over.
    """
    problems = []
    for platform, adapter in adapters.items():
        inner: Any = _inner(adapter)
        if not isinstance(inner, Unsettled):
            continue
        asked: Any = adapter
        if not lanes.under_way(platform, "settle"):
            if not inner.unsettled():
                continue
            lanes.call(platform, "settle", asked.settle, vital=True)
        try:
            lanes.take(platform, "settle", wait_s=WAIT_S)
        except Late:
            continue
        except AdapterError as error:
            problems.append(f"{platform}: {error.message}")
    return problems


#: a tick waits so long for one platform's broom, seconds; the call goes on
WAIT_S = 2.0


def _inner(adapter: Adapter | None) -> Any:
    """The adapter that does the work: its wrapper answers to every name."""
    return getattr(adapter, "inner", adapter)


def _left(ledger: Ledger) -> dict[str, dict[str, str]]:
    told: dict[str, dict[str, str]] = json.loads(ledger.meta(_META) or "{}")
    return told


def _write(ledger: Ledger, left: Mapping[str, Any]) -> None:
    ledger.set_meta(_META, json.dumps(left, sort_keys=True))

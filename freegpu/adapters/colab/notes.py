"""What was noted of each start, and giving back what a start that came to no end has got, also when it comes late.

Colab's list knows no names, and its program makes a new request id at each call: so the endpoint, and before that the
address of the request itself, is all by which a runtime can be known for ours.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freegpu.adapters.colab.account import Account
from freegpu.adapters.colab.answers import NotFoundError
from freegpu.adapters.colab.program import asked, scrub, session
from freegpu.adapters.hosts import held, is_held, write_private
from freegpu.agent.wire import check_name
from freegpu.errors import AdapterError

__all__ = ["Notes", "noted"]

#: a request without an answer may still be worked on: so long it is looked for, and so often, seconds
DOUBT_FOR_S, DOUBT_EVERY_S = 600.0, 20.0


class Notes:
    """One folder for each session below the platform's; a start notes there what it is about to do, before it does."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.folder = account.folder

    def place(self, key: str) -> Path:
        """The session's folder. ValueError: no session is called so."""
        return self.folder / check_name(key)

    def known(self, key: str) -> Path | None:
        """The session's folder, if there is one: a reference that somebody made up is merely unknown."""
        try:
            place = self.place(key)
        except ValueError:
            return None
        return place if place.is_dir() else None

    def note(self, place: Path, **told: Any) -> None:
        """Write down how far the start of this session is."""
        write_private(place / "session.json", json.dumps({"at": time.time(), **told}).encode())

    def settle(self, place: Path) -> bool:
        """Whether the session of this folder was started. If it came only half the way, what it got is given back.

        Called with the folder's lock held; the program holds it too, so none of them is at work any more.
        """
        note = noted(place)
        if note.get("phase") == "started":
            return True
        if note:
            for endpoint in self._half(place, note):
                self.account.unassign(endpoint)
            (place / "session.json").unlink(missing_ok=True)
            (place / ".config" / "colab-cli" / "sessions.json").unlink(missing_ok=True)
        scrub(place)
        return False

    def _half(self, place: Path, note: Mapping[str, Any]) -> set[str]:
        """The runtimes that a start which came to no end has got; what may come yet is put down as a doubt."""
        found = {str(note.get("endpoint") or ""), session(place, place.name).get("endpoint") or ""}
        for answer in asked(place):
            if answer.method != "POST" or "/assign?" not in answer.url:
                continue
            if endpoint := answer.json.get("endpoint"):
                found.add(endpoint)
            elif answer.status not in (400, 412) and "outcome" not in answer.json:
                # it may have happened: the same address names the runtime, if there is one
                endpoint = self._assigned(answer.url)
                found.add(endpoint)
                if not endpoint and answer.status in (0, 502, 504):
                    self._doubt(place, answer.url)
        return found - {""}

    def _assigned(self, url: str) -> str:
        """The endpoint that came of the request with this address, "" if none did. It only looks: a GET assigns nothing."""
        try:
            return str(self.account.ask("GET", url).get("endpoint") or "")
        except NotFoundError:
            return ""

    # --- doubts -----------------------------------------------------------------------------------------

    def _doubt(self, place: Path, url: str) -> None:
        doubts = {str(doubt["url"]): doubt for doubt in _doubts(place)}
        doubts.setdefault(url, {"url": url, "until": time.time() + DOUBT_FOR_S})
        self._write_doubts(place, [*doubts.values()])

    def _write_doubts(self, place: Path, doubts: list[dict[str, Any]]) -> None:
        if doubts:
            told = {"asked": time.time(), "doubts": doubts}
            write_private(place / "doubts.json", json.dumps(told).encode())
        else:
            (place / "doubts.json").unlink(missing_ok=True)

    def _dispel(self, place: Path) -> None:
        """Ask again for what had no answer, and give it back if it came meanwhile."""
        left = []
        for doubt in _doubts(place):
            if endpoint := self._assigned(str(doubt["url"])):
                self.account.unassign(endpoint)
            elif time.time() < float(doubt["until"]):
                left.append(doubt)
        self._write_doubts(place, left)

    # --- all of them ------------------------------------------------------------------------------------

    def _due(self) -> list[Path]:
        """Folders of starts that came to no end, or whose doubts it is time to look at. Offline."""
        due = []
        for place in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            half = noted(place).get("phase") in ("claimed", "assigned")
            if (half or 0 <= _rests_until(place) <= time.time()) and not is_held(place / "lock"):
                due.append(place)
        return due

    def unsettled(self) -> bool:
        """Whether there is anything for `sweep`; offline."""
        return bool(self._due())

    def sweep(self) -> None:
        """Give back what starts that were killed or had no answer have left; those still at work are left alone."""
        for place in self._due():
            with held(place / "lock", wait=False) as lock, contextlib.suppress(AdapterError):
                if lock is not None:
                    self.settle(place)
                    self._dispel(place)


def noted(place: Path) -> dict[str, Any]:
    """What was noted of the start of this session; {} if nothing was."""
    try:
        told = json.loads((place / "session.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _doubts(place: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads((place / "doubts.json").read_bytes())["doubts"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _rests_until(place: Path) -> float:
    """When doubts of this session are to be looked at again, epoch seconds; -1: there are none."""
    try:
        return float(json.loads((place / "doubts.json").read_bytes())["asked"]) + DOUBT_EVERY_S
    except (OSError, ValueError, KeyError, TypeError):
        return -1.0

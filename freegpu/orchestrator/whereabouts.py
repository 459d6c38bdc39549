"""Where a home is at work: a copy of it on another laptop must not hand out the same jobs a second time.

The home remembers the machine that it works on. On another one (or under another path) it does nothing until a
person says that it is to go on there; that is written into the store with a growing number, and the home that it was
copied from stops when it sees the higher one. Nothing is taken over by itself: a copy knows only what the ledger knew
when it was copied, and epochs that were given out since would be given out again.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from freegpu.agent import wire
from freegpu.agent.stores.base import ObjectMissing, Store, StoreError
from freegpu.errors import LedgerError
from freegpu.orchestrator.ledger import Ledger

__all__ = ["FILE", "KEY", "Whereabouts", "this_machine"]

#: in the home: the machine that it works on
FILE = "machine.json"
#: in the store: which machine goes on with the home
KEY = "orchestrator.json"
_TERM = "term"
#: the store is asked no more often than this
_AGAIN = timedelta(seconds=60)


def this_machine(home: Path) -> str:
    """What stands for this machine and the home's path on it; "" where the machine has no name of its own."""
    try:
        name = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return wire.sha256(f"{name}\n{home.resolve()}".encode())[:16] if name else ""


@dataclass(slots=True)
class Whereabouts:
    """See the module."""

    home: Path
    ledger: Ledger
    store: Store
    key: bytes
    now: Callable[[], datetime]
    machine: str
    _asked: datetime | None = None

    def check(self) -> None:
        """Raise LedgerError if somebody else goes on with this home, or if it is a copy that nobody has confirmed.

        A store that does not answer says nothing about that.
        """
        if not self.machine:
            return
        known = self._remembered()
        if known is None:
            self._remember()
        elif known["machine"] != self.machine:
            raise LedgerError(
                f"this home was made at {known['host']}:{known['home']}, and is a copy or was moved",
                hint="use it there; or, to go on with this one from now on, run `freegpu init --here`",
            )
        now = self.now()
        if self._asked is not None and timedelta(0) <= now - self._asked < _AGAIN:
            return
        self._asked = now
        try:
            told = self._told()
            if told is None:
                self._tell(self._term())
                return
        except StoreError:
            return
        if told["machine"] != self.machine and told["term"] >= self._term():
            raise LedgerError(
                f"this home goes on at {told['host']}:{told['home']} since {told['since']}",
                hint="use it there; to take it back, run `freegpu init --here`",
            )

    def go_on_here(self) -> None:
        """A person says so. StoreError: the others cannot be told."""
        told = self._told()
        term = max(self._term(), told["term"] if told else 0) + 1
        self._tell(term)
        self.ledger.set_meta(_TERM, str(term))
        self._remember()

    def _term(self) -> int:
        return int(self.ledger.meta(_TERM) or 1)

    def _remembered(self) -> dict[str, str] | None:
        try:
            found = json.loads((self.home / FILE).read_text(encoding="utf-8"))
            return {name: str(found[name]) for name in ("machine", "host", "home")}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _remember(self) -> None:
        hidden = self.home / f".{FILE}.{os.getpid()}"
        hidden.write_text(json.dumps(self._here()), encoding="utf-8")
        os.replace(hidden, self.home / FILE)

    def _here(self) -> dict[str, str]:
        return {
            "machine": self.machine,
            "host": platform.node() or "localhost",
            "home": str(self.home),
        }

    def _told(self) -> dict[str, Any] | None:
        """What the store says; None: nothing, or nothing that this home has signed."""
        try:
            found = wire.unpack(self.store.get(KEY), self._signing())
            return {**found, "term": int(found["term"])}
        except (ObjectMissing, wire.Unreadable, KeyError, TypeError, ValueError):
            return None

    def _tell(self, term: int) -> None:
        since = self.now().isoformat(timespec="seconds")
        self.store.put(
            KEY, wire.pack({**self._here(), "term": term, "since": since}, self._signing())
        )

    def _signing(self) -> bytes:
        return wire.session_key(self.key, "orchestrator")

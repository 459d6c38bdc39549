"""What an acceptance test knows of a platform that it drives through the command line: see Rig.

Each platform brings one in `tests/servers/rig_NAME.py`, as `rig(folder)`, a context manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Rig(Protocol):
    """A platform on loopback, with the credentials that a user would have, and the power to do it harm."""

    @property
    def name(self) -> str:
        """The platform's name in freegpu.toml."""
        ...

    @property
    def table(self) -> Mapping[str, Any]:
        """Its table in freegpu.toml, as `freegpu connect` would write it: adapter and options."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """What the user's shell holds: where credentials lie, how the platform is reached."""
        ...

    @property
    def connect(self) -> tuple[str, ...]:
        """The words after `freegpu connect` that make `table`."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Canaries: credentials of the user that may reach the platform in no source, argument, URL or log."""
        ...

    def opens(self, store: Path) -> str:
        """How sessions there see a store in this folder, "" if they do not open it (sealed)."""
        ...

    def saved(self, job: str) -> bool | None:
        """Whether a session there holds a committed checkpoint of this job; None: ask the ledger, it knows."""
        ...

    def lose(self) -> int:
        """Take every running session away without notice; how many there were."""
        ...

    def refuse(self, on: bool) -> None:
        """Whether further sessions are refused for want of a card."""
        ...

    def heard(self) -> bytes:
        """Everything that the platform ever received, as it came."""
        ...

"""Stores that lie in a folder of this machine, whatever client they are reached by."""

from __future__ import annotations

from pathlib import Path

from freegpu.testing.suites import StoreSuite


class OnFolder(StoreSuite):
    """Made as the folder `store`; taken away and brought back by its name."""

    def begin(self, folder: Path) -> None:
        (folder / "store").mkdir()

    def unplug(self, folder: Path) -> bool:
        (folder / "store").rename(folder / "unplugged")
        return True

    def plug(self, folder: Path) -> None:
        (folder / "unplugged").rename(folder / "store")

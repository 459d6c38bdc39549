"""A store that is not there, for those who only look: the ledger answers, and whoever asks the store is told why not."""

from __future__ import annotations

import os
from typing import NoReturn

from freegpu.agent.stores.base import Properties, Source, Stat, StoreGone

__all__ = ["AwayStore"]


class AwayStore:
    """Every call raises StoreGone with the reason that was given."""

    def __init__(self, why: str) -> None:
        self.why = why

    @property
    def properties(self) -> Properties:
        return Properties(cas=False, ordered=False, lists_lag=True, max_object=None, min_poll=1.0)

    def list(self, prefix: str, after: str = "") -> list[str]:
        self._tell()

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._tell()

    def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
        self._tell()

    def put(self, key: str, source: Source) -> None:
        self._tell()

    def put_new(self, key: str, source: Source) -> bool:
        self._tell()

    def delete(self, key: str) -> None:
        self._tell()

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        self._tell()

    def _tell(self) -> NoReturn:
        raise StoreGone(self.why)

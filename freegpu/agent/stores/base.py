"""What freegpu needs of a shared storage, and nothing more.

The weakest store sets the rules (docs/protocol.md): keys are written once and never changed, but for
the heartbeats; a reader believes bytes only after their digest; nothing is decided by listing alone.
Keys are relative paths with `/`, in `[A-Za-z0-9._-]`, and never begin with a dot.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Callable, List, Mapping, Optional, Protocol, Tuple, Union

Source = Union[bytes, "os.PathLike[str]"]

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class StoreError(Exception):
    """The store did not do it; `transient` says whether trying again later can help."""

    transient = True


class ObjectMissing(StoreError):  # noqa: N818 - reads as what happened; the agent's errors are its own
    """No object has this key, as far as this reader can see now."""


class StoreGone(StoreError):  # noqa: N818
    """The store's root is not there: unmounted, deleted or never made."""


class StoreFull(StoreError):  # noqa: N818
    """No space or quota is left for another object."""


class ForeignStore(StoreError):  # noqa: N818
    """The store belongs to another home, or speaks a newer format."""

    transient = False


@dataclass(frozen=True)
class Properties:
    """Facts about a store, found out by probing it, never by its brand."""

    #: put_new admits exactly one of several racing writers
    cas: bool
    #: another reader sees objects in the order in which they were written
    ordered: bool
    #: a listing may miss objects that are there
    lists_lag: bool
    #: largest object in bytes; None: no limit that matters
    max_object: Optional[int]
    #: polling more often than this many seconds is no use or impolite
    min_poll: float
    #: stat(digest=True) is answered by the server itself, so that the writer may trust it
    server_digest: bool = False


@dataclass(frozen=True)
class Stat:
    """Size in bytes, and the SHA-256 where it was asked for."""

    size: int
    sha256: Optional[str] = None


@dataclass(frozen=True)
class Access:
    """What opening a store may need besides its URL. It never lies in the store, in a log or in a URL."""

    #: by the names that the store's own tools use: AWS_ACCESS_KEY_ID, FREEGPU_DRIVE, ...
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: a fresh access token and the seconds that it is good for, where somebody else hands them out
    token: Optional[Callable[[], Tuple[str, float]]] = field(default=None, repr=False)
    #: bytes a second for uploads; None: no limit
    bandwidth: Optional[float] = None
    #: what a probe found when the store was connected; None: be as careful as nobody knows
    known: Optional[Properties] = None
    #: told (key, bytes done, bytes in all) while a large object is on its way
    progress: Optional[Callable[[str, int, int], None]] = None


class Store(Protocol):
    """A shared storage. Any method may raise StoreError; a call may be repeated safely."""

    @property
    def properties(self) -> Properties: ...

    def list(self, prefix: str, after: str = "") -> List[str]:
        """Keys directly or deeper under the folder `prefix`, sorted, greater than `after`.

        A folder that is not there has no keys. Unfinished writes are never listed.
        """
        ...

    def get(self, key: str, start: int = 0, end: Optional[int] = None) -> bytes:
        """Bytes [start, end) of an object. ObjectMissing if this reader cannot see it."""
        ...

    def fetch(self, key: str, into: "os.PathLike[str]") -> Tuple[int, str]:
        """Write an object to a local file; returns (size, SHA-256) of what was read. OSError: the file's disk."""
        ...

    def put(self, key: str, source: Source) -> None:
        """Write an object, replacing any of that name. Readers see the old one or the new one."""
        ...

    def put_new(self, key: str, source: Source) -> bool:
        """Write an object only if none has this key. False: there is one already."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; silent if there is none."""
        ...

    def stat(self, key: str, digest: bool = False) -> Optional[Stat]:
        """Size (and digest) as the store tells it now; None if this reader cannot see it."""
        ...


def is_key(name: str) -> bool:
    """Whether this is a well-formed key."""
    return _KEY.fullmatch(name) is not None


def check_key(key: str) -> str:
    """The key, if it is well formed; ValueError otherwise. Keeps a hostile name inside the store."""
    if not is_key(key):
        message = f"not a store key: {key!r}"
        raise ValueError(message)
    return key

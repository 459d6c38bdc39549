"""A store that behaves like the worst shared folder, by a seeded choice.

Models a mount or sync client with a cache: a writer sees its own writes at once, everybody else after a delay,
in any order, or never; a reader may find an object torn, stale or unlisted; calls fail before or after they
took effect; the whole store goes away for a while. Equal seeds and equal calls give equal faults.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from freegpu.agent.stores.base import (
    ObjectMissing,
    Properties,
    Source,
    Stat,
    Store,
    StoreError,
    StoreGone,
    check_key,
)
from freegpu.clock import Clock

__all__ = ["Faults", "FaultyStore"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Faults:
    """How bad it is. Figures are probabilities a call, unless they say seconds."""

    #: any call fails and did nothing
    error: float = 0.0
    #: a write fails, but has taken effect
    error_after: float = 0.0
    #: the store goes away for `outage_s` seconds
    outage: float = 0.0
    outage_s: float = 60.0
    #: a write succeeds for its writer, and nobody else ever sees it
    lost: float = 0.0
    #: a read shows a beginning of the object, perhaps an empty one
    torn: float = 0.0
    #: a read shows what the object was before it was last replaced
    stale: float = 0.0
    #: seconds, at least and at most, until others see a write
    delay_s: tuple[float, float] = (0.0, 0.0)
    #: a key, each for itself, is missing from a listing
    unlisted: float = 0.0
    #: a key, each for itself, is listed a second time as "name (1).json"
    duplicated: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """A write on its way: data, or None for a deletion."""

    writer: FaultyStore
    due: float
    key: str
    data: bytes | None


class _Sea:
    """What all parties share: the true store, what is on its way there, and what was there before."""

    def __init__(self, inner: Store, clock: Clock) -> None:
        self.inner = inner
        self.clock = clock
        self.lock = threading.RLock()
        self.away_until = float("-inf")
        self.previous: dict[str, bytes] = {}
        self.injected: Counter[str] = Counter()
        self.outgoing: list[_Write] = []

    def deliver(self, now: float) -> None:
        """What is due arrives, whoever wrote it and whether or not its writer still runs."""
        for write in sorted((w for w in self.outgoing if w.due <= now), key=lambda w: w.due):
            self.apply(write)
            self.outgoing.remove(write)
            write.writer.arrived(write, self.outgoing)

    def apply(self, write: _Write) -> None:
        if write.data is None:
            self.inner.delete(write.key)
            return
        try:
            self.previous[write.key] = self.inner.get(write.key)
        except ObjectMissing:
            self.previous.pop(write.key, None)
        self.inner.put(write.key, write.data)


class FaultyStore:
    """One party's view of the store; `beside()` gives another party's.

    `faults` may be replaced at any time. `injected` counts, over all parties, what really happened.
    """

    def __init__(
        self,
        inner: Store,
        rng: random.Random,
        faults: Faults,
        *,
        clock: Clock,
        _sea: _Sea | None = None,
    ) -> None:
        self.faults = faults
        self._rng = rng
        self._sea = _sea or _Sea(inner, clock)
        #: what this party believes because it wrote it
        self._own: dict[str, bytes | None] = {}

    def beside(self, faults: Faults | None = None) -> FaultyStore:
        """Another party at the same store, by default with the same faults; the random numbers are shared."""
        sea = self._sea
        return FaultyStore(sea.inner, self._rng, faults or self.faults, clock=sea.clock, _sea=sea)

    @property
    def injected(self) -> Counter[str]:
        """How often each fault has struck, by the names of Faults."""
        return self._sea.injected

    def go_away(self, seconds: float) -> None:
        """The store is gone for everybody for this long."""
        with self._sea.lock:
            self._sea.away_until = self._sea.clock.monotonic() + seconds

    def settle(self) -> None:
        """Everything that anybody wrote arrives now, but for what was lost."""
        with self._sea.lock:
            self._sea.deliver(float("inf"))

    def crash(self) -> None:
        """This party's machine dies: what had not arrived never does, and its cache is gone."""
        with self._sea.lock:
            self._sea.outgoing = [w for w in self._sea.outgoing if w.writer is not self]
            self._own.clear()

    def arrived(self, write: _Write, outgoing: list[_Write]) -> None:
        """This party's cache lets go of what others can see now, unless it has written the key again."""
        newer = any(w.writer is self and w.key == write.key for w in outgoing)
        if not newer and self._own.get(write.key) is write.data:
            self._own.pop(write.key, None)

    # --- the store's protocol ---------------------------------------------------------------------------

    @property
    def properties(self) -> Properties:
        known = self._sea.inner.properties
        late = self.faults.delay_s[1] > 0 or self.faults.lost > 0
        return replace(
            known,
            cas=known.cas and not late,
            ordered=known.ordered and not late,
            lists_lag=known.lists_lag or late or self.faults.unlisted > 0,
            server_digest=known.server_digest and not late,
        )

    def list(self, prefix: str, after: str = "") -> list[str]:
        with self._call():
            keys = set(self._sea.inner.list(prefix))
            folder = f"{prefix}/" if prefix else ""
            for key, data in self._own.items():
                if key.startswith(folder):
                    (keys.discard if data is None else keys.add)(key)
            shown = [key for key in sorted(keys) if not self._strikes("unlisted")]
            twins = [_twin(key) for key in shown if self._strikes("duplicated")]
            return sorted(key for key in (*shown, *twins) if key > after)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._call():
            return self._look(key)[start:end]

    def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
        with self._call():
            data = self._look(key)
            Path(into).write_bytes(data)
            return len(data), hashlib.sha256(data).hexdigest()

    def put(self, key: str, source: Source) -> None:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        with self._call():
            self._write(check_key(key), data)

    def put_new(self, key: str, source: Source) -> bool:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
        with self._call():
            if self._visible(check_key(key)) is not None:
                return False
            self._write(key, data)
            return True

    def delete(self, key: str) -> None:
        with self._call():
            self._write(check_key(key), None)

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        with self._call():
            try:
                data = self._look(key)
            except ObjectMissing:
                return None
            return Stat(len(data), hashlib.sha256(data).hexdigest() if digest else None)

    # --- inside -----------------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        """One call at a time; what is due arrives first, and then the call may fail."""
        sea = self._sea
        with sea.lock:
            now = sea.clock.monotonic()
            if self._strikes("outage"):
                sea.away_until = now + self.faults.outage_s
            if now < sea.away_until:
                raise StoreGone("the store is away")
            sea.deliver(now)
            if self._strikes("error"):
                raise StoreError("the store failed")
            yield

    def _strikes(self, fault: str) -> bool:
        chance: float = getattr(self.faults, fault)
        struck = chance > 0 and self._rng.random() < chance
        self._sea.injected[fault] += struck
        return struck

    def _write(self, key: str, data: bytes | None) -> None:
        lost = self._strikes("lost")
        if lost:
            self._own[key] = data
        else:
            low, high = self.faults.delay_s
            delay = self._rng.uniform(low, high) if high > 0 else 0.0
            # of one file, even a sync client uploads the versions in their order
            due = self._sea.clock.monotonic() + delay
            for earlier in self._sea.outgoing:
                if earlier.writer is self and earlier.key == key:
                    due = max(due, earlier.due)
            write = _Write(self, due, key, data)
            if delay > 0:
                self._sea.injected["delay_s"] += 1
                self._sea.outgoing.append(write)
                self._own[key] = data
            else:
                self._own.pop(key, None)
                self._sea.apply(write)
        if self._strikes("error_after"):
            raise StoreError("the store failed, but had done it")

    def _visible(self, key: str) -> bytes | None:
        """The whole object as this party sees it; None: it does not."""
        if key in self._own:
            return self._own[key]
        try:
            return self._sea.inner.get(key)
        except ObjectMissing:
            return None

    def _look(self, key: str) -> bytes:
        """What a read shows. ObjectMissing: nothing."""
        data = self._visible(check_key(key))
        if data is None:
            raise ObjectMissing(f"{key} is not in the store")
        old = self._sea.previous.get(key)
        if key not in self._own and old is not None and self._strikes("stale"):
            data = old
        if data and self._strikes("torn"):
            data = data[: self._rng.randrange(len(data))]
        return data


def _twin(key: str) -> str:
    """The name a sync client gives to the second of two files of one name."""
    stem, dot, suffix = key.rpartition(".")
    return f"{stem} (1).{suffix}" if dot else f"{key} (1)"

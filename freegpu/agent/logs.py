"""From a job's spool file to log segments in the store.

Decides where segments are cut and what is given up when the store stays away. The job writes into a file and
never waits for this; a segment that was cut stays as it is until the store has it, so a repeated put writes
the same bytes. It also reads progress from the output and keeps the user's secrets out of the store.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from freegpu.agent import wire
from freegpu.agent.clock import Clock
from freegpu.agent.progress import Progress
from freegpu.agent.stores.base import Store, StoreError

#: largest segment, bytes of output
SEGMENT = 1 << 20
#: unshipped output that is kept for a store that is away, bytes
CAP = 256 << 20
#: shorter secrets are not looked for in the output: they would hit everything
_SHORTEST_SECRET = 6
_CALM_S = 0.5
_BACKOFF_S = (1.0, 30.0)


class LogShipper:
    """Ships one attempt's output. `step` may be called by one thread only; the rest by any."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        attempt: str,
        spool: Path,
        notice: Callable[[str, str], None],
        *,
        secrets: Sequence[str] = (),
        cap: int = CAP,
    ) -> None:
        self._store = store
        self._clock = clock
        self._attempt = attempt
        self._spool = spool
        self._notice = notice
        self._secrets = _needles(secrets)
        self._cap = cap
        self._progress = Progress()
        self._read = 0  # bytes of the spool that were looked at for progress
        self._cut = 0  # bytes of the spool that are in segments, or were given up
        self._pending = b""  # a cut segment that the store has not taken yet
        self._preface = b""
        self._last_cut = float("-inf")
        self._backoff = 0.0
        self._retry_at = float("-inf")
        self._calm = 0.05
        self._closing = False
        self._deadline: Optional[float] = None
        #: segments in the store
        self.segments = 0
        #: nothing will be shipped any more
        self.done = False

    @property
    def progress(self) -> Optional[Dict[str, Any]]:
        """The latest progress; None if the job has printed none."""
        return dict(self._progress.latest) or None

    @property
    def step_number(self) -> Optional[int]:
        """The step that the job printed last."""
        return self._progress.step

    def close(self, deadline: Optional[float] = None) -> None:
        """The job writes no more. Ship the rest, until this monotonic time at the latest."""
        self._deadline = deadline
        self._closing = True

    def step(self) -> Optional[float]:
        """Ship one segment if it is time; seconds until the next look, None after the last."""
        closing = self._closing  # before the size: what is written before close() is shipped
        size = self._size()
        self._look(size)
        now = self._clock.monotonic()
        if closing and self._deadline is not None and now >= self._deadline:
            self.done = True
            return None
        if now < self._retry_at:
            return min(self._retry_at - now, _CALM_S)
        self._skip(size)
        if not self._pending and self._due(now, size, closing):
            self._cut_segment(size, now, closing)
        if self._pending and not self._ship(now):
            return min(self._backoff, _CALM_S)
        if self._read < size or self._cut + SEGMENT <= size or (closing and self._cut < size):
            return 0.0
        if closing:
            self.done = True
            return None
        return self._wait(now, size)

    def tail(self, lines: int = 20, limit: int = 2000) -> str:
        """The last lines of the output, for people; at most `limit` characters."""
        size = self._size()
        text = self._bytes(max(0, size - 16384), size)
        for needle in self._secrets:
            text = text.replace(needle, b"***")
        shown = [
            line.rstrip("\r").rsplit("\r", 1)[-1]
            for line in text.decode("utf-8", "replace").rstrip().split("\n")
        ]
        return "\n".join(shown[-lines:])[-limit:]

    # --- reading the spool -----------------------------------------------------------------------

    def _size(self) -> int:
        try:
            return os.stat(self._spool).st_size
        except OSError:  # nothing was started yet
            return 0

    def _bytes(self, start: int, end: int) -> bytes:
        try:
            with open(self._spool, "rb") as file:
                file.seek(start)
                return file.read(end - start)
        except OSError:
            return b""

    def _look(self, size: int) -> None:
        """Read progress also while the store is away: it labels the checkpoints."""
        if self._read < size:
            data = self._bytes(self._read, min(size, self._read + 4 * SEGMENT))
            # a spool that cannot be read any more (the job removed it) must not hold up the end
            self._read = self._read + len(data) if data else size
            self._progress.feed(data)

    # --- cutting ---------------------------------------------------------------------------------

    def _due(self, now: float, size: int, closing: bool) -> bool:
        """The first output at once; then full segments at once, others after a while."""
        if self._cut >= size:
            return False
        return closing or size - self._cut >= SEGMENT or now - self._last_cut >= self._every()

    def _every(self) -> float:
        """Seconds between small segments: a long job may not fill the store with thousands of files."""
        if self.segments < 60:
            return 1.0
        return 2.0 if self.segments < 300 else 5.0

    def _cut_segment(self, size: int, now: float, closing: bool) -> None:
        text = self._bytes(self._cut, min(size, self._cut + SEGMENT))
        if not text:
            self._cut = size
        full = len(text) == SEGMENT
        if full and b"\n" in text:
            text = text[: text.rindex(b"\n") + 1]
        if not (closing and self._cut + len(text) == size):
            text = text[: len(text) - _half_secret(text, self._secrets)]
        if not text:
            return
        self._cut += len(text)
        for needle in self._secrets:
            text = text.replace(needle, b"***")
        self._pending = wire.pack_log(self._preface + text)
        self._preface = b""
        self._last_cut = now

    def _skip(self, size: int) -> None:
        """Give up the oldest output if the store has been away too long."""
        if size - self._cut <= self._cap:
            return
        start = size - self._cap // 2
        newline = self._bytes(start, start + 65536).find(b"\n")
        start += newline + 1
        lost = start - self._cut
        self._cut = start
        line = (
            f"[freegpu: {lost} bytes of output are left out here: the store was away or too slow]\n"
        )
        self._preface = line.encode()
        self._notice("log_truncated", f"{lost} bytes of output were not shipped")

    # --- shipping --------------------------------------------------------------------------------

    def _ship(self, now: float) -> bool:
        key = wire.log_key(self._attempt, self.segments + 1)
        try:
            self._store.put(key, self._pending)
        except StoreError:
            self._backoff = min(_BACKOFF_S[1], max(_BACKOFF_S[0], self._backoff * 2))
            self._retry_at = now + self._backoff
            return False
        self.segments += 1
        self._pending = b""
        self._backoff = 0.0
        return True

    def _wait(self, now: float, size: int) -> float:
        """Short waits while the first line is awaited, longer ones when nothing is said."""
        if self._cut < size:
            self._calm = 0.1
            return max(0.02, min(_CALM_S, self._last_cut + self._every() - now))
        self._calm = min(_CALM_S, self._calm * 1.2)
        return self._calm


def _needles(secrets: Sequence[str]) -> List[bytes]:
    """What to look for: each secret and its lines; the longest first, since one may contain another."""
    found = {
        part.encode("utf-8", "surrogateescape")
        for secret in secrets
        for part in (secret, *secret.splitlines())
        if len(part) >= _SHORTEST_SECRET
    }
    return sorted(found, key=lambda needle: (-len(needle), needle))


def _half_secret(text: bytes, secrets: Sequence[bytes]) -> int:
    """How many last bytes of the text may be the beginning of a secret."""
    return max(
        (
            length
            for needle in secrets
            for length in range(1, min(len(needle), len(text) + 1))
            if text.endswith(needle[:length])
        ),
        default=0,
    )

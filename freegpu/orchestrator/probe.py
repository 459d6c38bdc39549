"""Finding out what a store can do: two clients of it, measured, whatever its brand promises.

Everything that is written lies under `probe/<random>/` and is deleted in the end, also after an error. What
could not be established counts as absent: a probe may make freegpu more careful than needed, never less.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from freegpu.agent.stores.base import ObjectMissing, Properties, Store, StoreError, StoreFull
from freegpu.agent.stores.folder import FolderStore
from freegpu.clock import Clock, utc

__all__ = ["MAX_AGE", "Latency", "Measured", "Space", "dump", "load", "means", "probe"]

#: version of what is kept in the ledger; what an older freegpu measured in another way is measured anew
VERSION = 1
#: a store may change hands, plans or versions: what was found longer ago is not believed
MAX_AGE = timedelta(days=60)
#: racing writers a round, and rounds, for put_new
RACERS = 8
ROUNDS = 4
#: objects whose order of arrival is watched
SEQUENCE = 12
#: calls of each kind whose time is taken
SAMPLES = 10
#: the largest object that is tried, bytes; it also gives the throughput
LARGEST = 16 << 20
#: no larger object is tried after one that took this many seconds
SLOW_S = 8.0
#: how long an object may take to appear before the probe goes on without it, seconds
PATIENCE_S = 90.0
#: and how long once one has not appeared in time
IMPATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Seconds that a small call takes."""

    median_s: float
    p95_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Bytes, as the store tells them; None: it does not."""

    free: int | None
    total: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a probe found. Times are seconds, sizes bytes, rates bytes a second."""

    at: datetime
    #: put_new admitted exactly one of several racing writers, every time
    cas: bool
    #: the other client saw objects in the order in which they were written, every time
    ordered: bool
    #: until a listing of the other client had a new object; None: not within the patience
    list_lag_s: float | None
    #: until the other client could read a new object by its name; None: not within the patience
    read_lag_s: float | None
    #: until the other client saw that an object was replaced; None: not within the patience
    replace_lag_s: float | None
    #: the largest object that the store takes; None: more than `at_least`
    max_object: int | None
    #: the largest object that was tried and came back whole
    at_least: int
    #: stat tells the right digest, and it is the server that tells it
    server_digest: bool
    put: Latency
    get: Latency
    list: Latency
    stat: Latency
    up: float | None
    down: float | None
    space: Space | None
    #: politeness that the store asks for between two looks
    min_poll: float
    #: what went wrong on the way, in sentences
    problems: tuple[str, ...] = ()

    @property
    def lag_s(self) -> float | None:
        """Until another reader has surely seen a change; None: longer than the patience."""
        lags = (self.list_lag_s, self.read_lag_s, self.replace_lag_s)
        known = [lag for lag in lags if lag is not None]
        return max(known) if len(known) == len(lags) else None

    @property
    def properties(self) -> Properties:
        """The part that a store's client and the protocol go by."""
        return Properties(
            cas=self.cas,
            ordered=self.ordered,
            lists_lag=self.list_lag_s is None or self.list_lag_s > 0,
            max_object=self.max_object,
            min_poll=self.min_poll,
            server_digest=self.server_digest,
        )


def probe(
    connect: Callable[[], Store],
    clock: Clock,
    *,
    patience_s: float = PATIENCE_S,
    largest: int = LARGEST,
    say: Callable[[str], None] = lambda step: None,
) -> Measured:
    """Measure the store that `connect` gives clients of. It must bear its mark already.

    `say` is told what is being measured. StoreError: the store failed; what was written is deleted all the same.
    """
    writer, reader = connect(), connect()
    looks = _Looks(writer, reader, clock, patience_s)
    with _tidy(writer, looks.root) as problems:
        say("calls")
        times = looks.times()
        say("order and lag")
        ordered, list_lag, read_lag = looks.sequence()
        replace_lag = looks.replaced()
        say("racing writers")
        cas = looks.race(problems)
        say("throughput")
        with tempfile.TemporaryDirectory(prefix="freegpu-probe-") as folder:
            sizes = looks.sizes(Path(folder), largest, problems)
        say("digests")
        digest = looks.digest()
    return Measured(
        at=utc(clock),
        cas=cas,
        ordered=ordered,
        list_lag_s=list_lag,
        read_lag_s=read_lag,
        replace_lag_s=replace_lag,
        max_object=sizes.refused_above or writer.properties.max_object,
        at_least=sizes.at_least,
        server_digest=digest,
        put=times["put"],
        get=times["get"],
        list=times["list"],
        stat=times["stat"],
        up=sizes.up,
        down=sizes.down,
        space=_space(writer),
        min_poll=writer.properties.min_poll,
        problems=tuple(problems),
    )


@dataclass(slots=True)
class _Sizes:
    at_least: int = 0
    refused_above: int | None = None
    up: float | None = None
    down: float | None = None


class _Looks:
    """The single measurements, each leaving its objects to `_tidy`."""

    def __init__(self, writer: Store, reader: Store, clock: Clock, patience_s: float) -> None:
        self.writer, self.reader, self.clock = writer, reader, clock
        self.patience_s = patience_s
        self.root = f"probe/{secrets.token_hex(6)}"
        self.gap_s = max(0.05, writer.properties.min_poll / 2)

    def times(self) -> dict[str, Latency]:
        """How long small calls take, by one client."""
        key, data = f"{self.root}/calls/beat.json", b"x" * 300
        # the first call of all opens connections: it is no sample
        self.writer.put(key, data)
        calls: dict[str, Callable[[], object]] = {
            "put": lambda: self.writer.put(key, data),
            "get": lambda: self.writer.get(key),
            "stat": lambda: self.writer.stat(key),
            "list": lambda: self.writer.list(f"{self.root}/calls"),
        }
        return {name: self._latency(call) for name, call in calls.items()}

    def _latency(self, call: Callable[[], object]) -> Latency:
        taken = []
        for _ in range(SAMPLES):
            began = self.clock.monotonic()
            call()
            taken.append(self.clock.monotonic() - began)
        taken.sort()
        return Latency(
            median_s=statistics.median(taken), p95_s=taken[min(SAMPLES - 1, int(SAMPLES * 0.95))]
        )

    def sequence(self) -> tuple[bool, float | None, float | None]:
        """(seen in order, list lag, read lag): the other client looks after each write, then until it has seen all."""
        folder = f"{self.root}/order"
        keys = [f"{folder}/{number:04d}.json" for number in range(SEQUENCE)]
        written: dict[str, float] = {}
        listed: dict[str, float] = {}
        readable: dict[str, float] = {}
        ordered = True
        # the reader knows the folder before anything lies in it, as an agent knows its inbox
        self.reader.list(folder)

        def look(fresh: str) -> None:
            nonlocal ordered
            began = self.clock.monotonic()
            found = self.reader.list(folder)
            # whoever sees a later object and not an earlier one would skip a ticket
            ordered = ordered and found == keys[: len(found)]
            for key in set(found) & written.keys():
                listed.setdefault(key, 0.0 if key == fresh else began - written[key])
            for key in sorted(written.keys() - readable.keys()):
                began = self.clock.monotonic()
                if self._reads(key, key.encode()):
                    readable[key] = 0.0 if key == fresh else began - written[key]

        for key in keys:
            self.writer.put_new(key, key.encode())
            written[key] = self.clock.monotonic()
            look(key)
        self._until(lambda: len(listed) == len(readable) == SEQUENCE, lambda: look(""))
        return ordered, _worst(listed), _worst(readable)

    def replaced(self) -> float | None:
        """Until the other client has seen that an object was replaced, the worst of three; None: it never did."""
        key, worst = f"{self.root}/replaced/beat.json", 0.0
        for turn in range(4):
            data = b'{"counter": %d}' % turn
            self.writer.put(key, data)
            since = self.clock.monotonic()
            if self._reads(key, data):
                continue
            if not self._settles(key, data):
                return None
            # the first one only makes it: when a new object appears is measured elsewhere
            if turn:
                worst = max(worst, self.clock.monotonic() - since)
        return worst

    def race(self, problems: list[str]) -> bool:
        """Whether of several threads over both clients exactly one made each object, and its bytes stayed."""
        for turn in range(ROUNDS):
            key = f"{self.root}/race/{turn}"
            won, failed = self._one_race(key)
            if len(won) != 1:
                return False
            if failed:
                problems.append(f"a racing write failed: {failed[0]}")
            # whoever comes late must lose too, and the winner's bytes must stay
            if self.reader.put_new(key, b"late") or not self._settles(key, won[0]):
                return False
        return True

    def _one_race(self, key: str) -> tuple[list[bytes], list[str]]:
        """(what each winner wrote, what each failure said)."""
        barrier = threading.Barrier(RACERS)
        won: list[bytes] = []
        failed: list[str] = []

        def run(number: int) -> None:
            client = (self.writer, self.reader)[number % 2]
            data = b"%d" % number * 500
            barrier.wait()
            try:
                if client.put_new(key, data):
                    won.append(data)
            except StoreError as error:
                failed.append(str(error))

        threads = [threading.Thread(target=run, args=(n,)) for n in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return won, failed

    def sizes(self, folder: Path, largest: int, problems: list[str]) -> _Sizes:
        """Objects of doubling size, up to `largest` bytes or until one takes long; the last gives the rates."""
        found, size = _Sizes(), 1 << 20
        source, target = folder / "up", folder / "down"
        while size <= largest:
            _write_random(source, size)
            key = f"{self.root}/sizes/{size}"
            began = self.clock.monotonic()
            try:
                self.writer.put(key, source)
            except StoreFull as error:
                problems.append(f"no room for an object of {size} bytes: {error}")
                break
            except StoreError as error:
                if error.transient and found.at_least == 0:
                    raise
                problems.append(f"an object of {size} bytes was refused: {error}")
                found.refused_above = found.at_least
                break
            up = self.clock.monotonic() - began
            found.up = size / max(up, 1e-6)
            if not self._settles(key, None):
                problems.append(f"an object of {size} bytes was not seen by another client in time")
                break
            began = self.clock.monotonic()
            read, digest = self.reader.fetch(key, target)
            down = self.clock.monotonic() - began
            if (read, digest) != (size, _sha256(source)):
                problems.append(f"an object of {size} bytes came back changed")
                break
            found.at_least = size
            found.down = size / max(down, 1e-6)
            self.writer.delete(key)
            if up + down > SLOW_S:
                break
            size *= 2
        return found

    def digest(self) -> bool:
        """Whether the server itself tells digests, and tells them right."""
        key, data = f"{self.root}/digest", secrets.token_bytes(70_000)
        self.writer.put(key, data)
        self._settles(key, data)
        told = self.writer.stat(key, digest=True)
        right = told is not None and told.sha256 == hashlib.sha256(data).hexdigest()
        # a store that finds out on use whether its server does it says so only now
        claimed = getattr(self.writer, "digests_by_server", self.writer.properties.server_digest)
        return right and bool(claimed)

    def _settles(self, key: str, data: bytes | None) -> bool:
        """Wait until the other client reads this object (with these bytes); False: the patience was not enough."""
        done = False

        def look() -> None:
            nonlocal done
            done = self._reads(key, data) if data is not None else self.reader.stat(key) is not None

        look()
        self._until(lambda: done, look)
        return done

    def _reads(self, key: str, data: bytes) -> bool:
        try:
            return self.reader.get(key) == data
        except ObjectMissing:
            return False

    def _until(self, done: Callable[[], bool], look: Callable[[], None]) -> None:
        deadline = self.clock.monotonic() + self.patience_s
        gap_s = self.gap_s
        while not done() and self.clock.monotonic() < deadline:
            self.clock.sleep(gap_s)
            gap_s = min(gap_s * 1.5, 5.0)
            look()
        if not done():
            # it is known now that changes are late: the rest need not wait as long to find that out
            self.patience_s = min(self.patience_s, IMPATIENCE_S)


@contextmanager
def _tidy(store: Store, root: str) -> Iterator[list[str]]:
    """What went wrong is collected; in the end everything below `root` is deleted."""
    problems: list[str] = []
    try:
        yield problems
    finally:
        try:
            # a listing may lag: whatever it misses is found by looking once more
            for _ in range(2):
                for key in store.list(root):
                    store.delete(key)
        except StoreError as error:
            problems.append(f"the probe's own objects under {root} could not be deleted: {error}")


def _space(store: Store) -> Space | None:
    """What is left, where the store can tell."""
    if isinstance(store, FolderStore):
        usage = shutil.disk_usage(store.root)
        return Space(free=usage.free, total=usage.total)
    tell = getattr(store, "space", None)
    if tell is None:
        return None
    try:
        free, total = tell()
    except StoreError:
        return None
    return None if free is None and total is None else Space(free=free, total=total)


def _worst(seen: dict[str, float]) -> float | None:
    return max(seen.values()) if len(seen) == SEQUENCE else None


def _write_random(path: Path, size: int) -> None:
    """Bytes that nothing between here and the store can compress."""
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(secrets.token_bytes(1 << 20))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- kept in the ledger ---------------------------------------------------------------------------------------


def dump(measured: Measured) -> str:
    """As text for the ledger."""
    return json.dumps({"version": VERSION, **asdict(measured), "at": measured.at.isoformat()})


def load(text: str | None, now: datetime) -> Measured | None:
    """What was kept; None: nothing, too long ago, or by a freegpu that measured otherwise."""
    try:
        data: dict[str, Any] = json.loads(text or "")
        if data.pop("version") != VERSION or data.keys() != {f.name for f in fields(Measured)}:
            return None
        at = datetime.fromisoformat(data["at"]).astimezone(UTC)
        if not timedelta(0) <= now - at + timedelta(days=1) <= MAX_AGE + timedelta(days=1):
            return None
        times = {name: Latency(**data[name]) for name in ("put", "get", "list", "stat")}
        space = Space(**data["space"]) if data["space"] else None
        return Measured(
            **{**data, **times, "at": at, "space": space, "problems": tuple(data["problems"])}
        )
    except (ValueError, KeyError, TypeError):
        return None


# --- what it means --------------------------------------------------------------------------------------------

#: the checkpoint that sentences speak of, bytes
_EXAMPLE = 1_000_000_000


def means(measured: Measured, url: str) -> tuple[str, ...]:
    """What the figures mean for jobs, in sentences. Pure."""
    said = []
    if measured.up:
        upload_s = _EXAMPLE / measured.up
        said.append(
            f"a checkpoint of 1 GB takes {_span(upload_s)} to save and"
            f" {_span(_EXAMPLE / (measured.down or measured.up))} to restore from here:"
            f" `checkpoint.every` below {_rounded_up(upload_s)} makes no sense for one of that size"
        )
    lag = measured.lag_s
    if lag is None:
        said.append(
            "another reader did not see every change within the patience of this probe: freegpu stays correct,"
            " but hops are slow and an interruption costs that much more work"
        )
    elif lag >= 1:
        said.append(
            f"changes are seen by others up to {_span(lag)} later: an interruption costs up to that much more"
            " work, and cancelling takes as long"
        )
    else:
        said.append(
            "changes are seen by others at once: an interruption costs one interval at most"
        )
    if url.startswith("folder:"):
        # both clients went through one cache: a synced folder looks perfect from here
        said.append(
            "both clients were on this machine: if the folder is a mounted or synced drive, other machines see"
            " changes later than measured here"
        )
    scheme = url.partition(":")[0]
    if scheme in ("sftp", "rclone"):
        said.append(
            f"only your side speaks {scheme}: agents must see the same files as a folder, and a cell is told where"
            " with `freegpu cell --store folder:/path`"
        )
    if measured.server_digest:
        said.append("the server tells digests: a checkpoint is confirmed without being read back")
    elif measured.down:
        said.append(
            "the server tells no digests: each checkpoint is read back to confirm it, and 1 GB takes"
            f" {_span(_EXAMPLE / measured.down)}"
        )
    if not measured.cas:
        said.append("racing writers are not told apart; freegpu does not rely on that")
    if measured.max_object is not None:
        said.append(
            f"objects have at most {measured.max_object / 1e6:,.0f} MB; larger ones are cut up"
        )
    free = measured.space.free if measured.space else None
    if free is not None:
        said.append(
            f"{free / 1e9:,.1f} GB are left: room for {free // _EXAMPLE:,} checkpoints of 1 GB"
        )
    return tuple(said)


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _rounded_up(seconds: float) -> str:
    """As a job spec writes it: never shorter than the time itself."""
    if seconds <= 60:
        return f"{max(1, math.ceil(seconds))}s"
    return f"{math.ceil(seconds / 60)}m"

"""Files into the store as pieces, and back out of it, every byte verified.

Decides what need not be sent again and how pieces travel: new ones together, in blobs of some megabytes, so
that a store that counts requests sees few, however small the pieces are. Does not know what a checkpoint is,
or when to try once more: a StoreError or Unreadable goes to the caller, and what was done until then is not
lost. A blob is named by its SHA-256 and belongs to the attempt that put it; whether it was put is known
from `known`, never from a listing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Callable, Container, Dict, Iterable, List, Optional, Set, Tuple

from freegpu.agent import wire
from freegpu.agent.clock import Clock, SystemClock
from freegpu.agent.crew import MOST, Crew
from freegpu.agent.cuts import cuts
from freegpu.agent.snapshot import Item
from freegpu.agent.stores.base import Store

#: a blob is full from here on: a sixteenth of what is sent, within these bounds
_BLOB = (4 << 20, 32 << 20)
#: what a manifest's blobs hold may be so many times what it needs
_SPARE = 1.5
#: never more in one
_MOST_BLOB = 64 << 20
_CHUNK = 1 << 20
#: bytes asked for at once; and what lies between two wanted pieces is read along, up to this
_READ, _GAP = 32 << 20, 1 << 19
#: with a limit on the bandwidth, a blob is what goes through in this time, so that the flow is even
_PACE_S = 8.0
#: less than this is fetched by one thread
_LITTLE = 1 << 20

#: SHA-256 of a piece -> where the store has it
Known = Dict[str, wire.Part]


class Stopped(Exception):  # noqa: N818 - nothing failed: the caller asked for it
    """`should_stop` said so."""


class Changed(OSError):  # noqa: N818
    """A file that was linked, not copied, was written to meanwhile."""


def known_parts(manifests: Iterable[wire.Manifest]) -> Known:
    """The pieces that these manifests name."""
    return {part.piece: part for manifest in manifests for part in manifest.blobs()}


def thin_blobs(manifest: wire.Manifest) -> Set[str]:
    """Keys of the blobs that had better not be referred to again, for they hold too little that is needed.

    Those with the smallest share, until what is left has at most half as much again as the manifest needs:
    whoever refers to a blob keeps all of it in the store. Sent once more, the pieces lie in a fuller one.
    """
    sizes: Dict[str, int] = {}
    used: Dict[str, int] = {}
    for part in known_parts([manifest]).values():
        sizes[part.key] = part.size
        used[part.key] = used.get(part.key, 0) + part.bytes
    excess = sum(sizes.values()) - sum(used.values()) * _SPARE
    thin = set()
    for key in sorted(sizes, key=lambda key: used[key] / sizes[key]):
        if excess <= 0:
            break
        thin.add(key)
        excess -= sizes[key] - used[key]
    return thin


def upload(
    store: Store,
    attempt: str,
    items: Iterable[Item],
    known: Known,
    *,
    clock: Optional[Clock] = None,
    bandwidth: Optional[float] = None,
    should_stop: Optional[Callable[[], bool]] = None,
    guard: Optional[Callable[[], None]] = None,
    lasting: Container[str] = (),
) -> Tuple[wire.File, ...]:
    """Put what the store lacks of these files; their entries for a manifest.

    `known` is added to blob by blob, so that a second try goes on where the first one failed. `bandwidth`
    in bytes a second. `lasting`: pieces that earlier checkpoints had already; they travel apart from those
    that are new, which the next checkpoint will hardly have. `guard` is called now and then and may raise. StoreError, OSError (a file cannot be
    read; Changed), Stopped.
    """
    items = tuple(items)
    total = sum(item.size for item in items)
    full = max(_BLOB[0], min(_BLOB[1], total // 16))
    if bandwidth:
        full = min(full, max(_CHUNK, int(bandwidth * _PACE_S)))
    sender = _Sender(store, attempt, known, clock or SystemClock(), bandwidth, should_stop, guard)
    sender.full, sender.lasting = full, lasting
    sender.limit = store.properties.max_object or _MOST_BLOB
    try:
        found = [_read_item(sender, item) for item in items]
        sender.finish()
    finally:
        sender.crew.wait()
    return tuple(
        wire.File(
            item.path, size, digest, item.mtime_ns, item.mode, tuple(known[p] for p in pieces)
        )
        for item, (size, digest, pieces) in zip(items, found)
    )


def _read_item(sender: "_Sender", item: Item) -> Tuple[int, str, List[str]]:
    """Give the file's pieces to the sender; size, SHA-256 and the pieces' digests."""
    whole, size, pieces = hashlib.sha256(), 0, []  # type: Any, int, List[str]
    with open(item.source, "rb") as file:
        ends = cuts(file, item.size, most=min(max(sender.full, _CHUNK), sender.limit))
        file.seek(0)
        for end in ends:
            sender.check()
            data = file.read(end - size)
            _still(item, os.fstat(file.fileno()))
            if len(data) != end - size:
                raise Changed(errno.EIO, "it became shorter while it was read", item.path)
            digest = hashlib.sha256(data)
            if len(ends) == 1:
                whole = digest  # a file of one piece is hashed once
            else:
                whole.update(data)
            size = end
            pieces.append(digest.hexdigest())
            sender.add(pieces[-1], data)
    return size, whole.hexdigest(), pieces


def _still(item: Item, info: os.stat_result) -> None:
    if item.mark and item.mark != (info.st_size, info.st_mtime_ns, info.st_ino):
        raise Changed(errno.EIO, "it was rewritten in place while it was read", item.path)


class _Sender:
    """Puts pieces of one attempt, in its bandwidth."""

    full = limit = 0
    lasting: Container[str] = ()

    def __init__(
        self,
        store: Store,
        attempt: str,
        known: Known,
        clock: Clock,
        bandwidth: Optional[float],
        should_stop: Optional[Callable[[], bool]],
        guard: Optional[Callable[[], None]],
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._known = known
        self._clock = clock
        self._bandwidth = bandwidth
        self._should_stop = should_stop
        self._guard = guard
        self._lock = threading.Lock()
        self.crew = Crew(self.check, 1 if bandwidth else MOST)
        #: digests of pieces that are on their way, and what the blobs that are being filled will hold
        self._begun: Set[str] = set()
        self._filling: Dict[bool, List[Tuple[str, bytes]]] = {False: [], True: []}
        self._filled = {False: 0, True: 0}

    def add(self, digest: str, data: bytes) -> None:
        if digest in self._begun or digest in self._known:
            return
        kind = digest in self.lasting
        if self._filled[kind] + len(data) > self.limit:
            self._send(kind)
        self._begun.add(digest)
        self._filling[kind].append((digest, data))
        self._filled[kind] += len(data)
        # not "when the next one does not fit": after a failure the same blobs must come about again
        if self._filled[kind] >= self.full:
            self._send(kind)

    def finish(self) -> None:
        for kind in self._filling:
            self._send(kind)
        self.crew.finish()

    def _send(self, kind: bool) -> None:
        pieces, self._filling[kind], self._filled[kind] = self._filling[kind], [], 0
        if pieces:
            self.crew.run(lambda: self._put(pieces))

    def _put(self, pieces: List[Tuple[str, bytes]]) -> None:
        start = self._clock.monotonic()
        alone = len(pieces) == 1
        data = pieces[0][1] if alone else b"".join(data for _, data in pieces)
        sha256 = pieces[0][0] if alone else wire.sha256(data)
        blob = wire.Part(wire.attempt_blob_key(self._attempt, sha256), sha256, len(data))
        if not self._store.put_new(blob.key, data):
            self._replace_if_torn(blob, data)
        at, found = 0, {}
        for digest, piece in pieces:
            place = (at, len(piece), digest)
            found[digest] = blob if alone else wire.Part(blob.key, sha256, blob.size, *place)
            at += len(piece)
        with self._lock:
            self._known.update(found)
        if self._bandwidth:
            self._wait_until(start + len(data) / self._bandwidth)

    def _replace_if_torn(self, part: wire.Part, data: bytes) -> None:
        """It is not in our ledger, so it is what an earlier try that failed may have left."""
        digest = self._store.properties.server_digest
        there = self._store.stat(part.key, digest=digest)
        if there is None or there.size != part.size or (digest and there.sha256 != part.sha256):
            self._store.put(part.key, data)

    def _wait_until(self, moment: float) -> None:
        while True:
            left = moment - self._clock.monotonic()
            if left <= 0:
                return
            self.check()
            self._clock.sleep(min(left, 0.5))

    def check(self) -> None:
        if self._should_stop and self._should_stop():
            raise Stopped
        if self._guard:
            self._guard()


def read_manifest(store: Store, base: wire.Base) -> wire.Manifest:
    """The manifest that was named. StoreError; Unreadable if it is not (yet) that one."""
    return wire.Manifest.from_bytes(store.get(base.key), base.sha256)


def download(
    store: Store,
    manifest: wire.Manifest,
    into: Path,
    *,
    should_stop: Optional[Callable[[], bool]] = None,
) -> None:
    """Make `into` hold exactly what the manifest says: replaced when all of it is there, untouched until then.

    Modification times and modes come back, and a folder gets the time of the newest file in it (the Trainer
    removes the oldest of its folders). StoreError or Unreadable when something is missing or torn: try
    again, what was verified is kept beside `into`, under a hidden name. OSError (the local disk, also
    when it has no room for all of it), Stopped.
    """
    _check_paths(manifest)
    scratch = into.parent / f".{into.name}.restoring"
    target = scratch / wire.sha256(manifest.to_bytes())[:16]
    if scratch.is_symlink() or (scratch.exists() and not target.exists()):
        _remove(scratch)  # what a try for another base has left
    target.mkdir(parents=True, exist_ok=True)

    def check() -> None:
        if should_stop and should_stop():
            raise Stopped

    wholes = {f.path: _Whole(f, target / f.path) for f in manifest.files}
    wanted = _wanted(manifest, target, wholes, check)
    reads = [read for key, pieces in wanted.items() for read in _reads(key, pieces)]
    little = sum(read.end - read.start for read in reads) < _LITTLE
    crew = Crew(check, 1 if little else MOST)
    try:
        for read in reads:
            crew.run(lambda read=read: read.into_place(store))  # type: ignore[misc]
        crew.finish()
        for files in _portions(manifest.files):
            crew.run(lambda files=files: _finish(files, wholes, check))  # type: ignore[misc]
        crew.finish()
    finally:
        crew.wait()
    _stamp_folders(target, manifest)
    _remove(into)
    os.rename(target, into)
    shutil.rmtree(scratch, ignore_errors=True)


class _Whole:
    """A file that pieces are brought into, and its check as a whole once all of them are in place."""

    def __init__(self, file: wire.File, path: Path) -> None:
        self.file = file
        self.path = path
        # a file of one piece that has the file's digest needs no second look
        self._proved = [part.piece for part in file.parts] == [file.sha256]

    def finish(self) -> None:
        """Check the whole, as it lies on the disk; give it its mode and time."""
        if not self._proved and self._hashed() != self.file.sha256:
            message = f"the parts of {self.file.path} do not make up the file"
            raise wire.Unreadable(message)
        os.chmod(self.path, (self.file.mode & 0o777) | 0o600)
        os.utime(self.path, ns=(self.file.mtime_ns, self.file.mtime_ns))

    def _hashed(self) -> str:
        digest = hashlib.sha256()
        with open(self.path, "rb", buffering=0) as file:
            for data in iter(lambda: file.read(_CHUNK), b""):
                digest.update(data)
        return digest.hexdigest()


#: a piece, and the places that it belongs to: file, offset
_Place = Tuple[_Whole, int]
_Piece = Tuple[wire.Part, List[_Place]]


def _wanted(
    manifest: wire.Manifest, target: Path, wholes: Dict[str, _Whole], check: Callable[[], None]
) -> Dict[str, List[_Piece]]:
    """The pieces that are not in place yet, by blob. The files get their full length."""
    found: Dict[str, List[_Piece]] = {}
    places: Dict[Tuple[str, int, int], List[_Place]] = {}
    lacking, folders = 0, set()  # type: int, Set[Path]
    for file in manifest.files:
        check()
        path = target / file.path
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        fresh, at = not path.exists(), 0
        with open(path, "w+b" if fresh else "r+b") as out:
            if not fresh:
                # Windows does not tell what a file with holes takes
                blocks = getattr(os.fstat(out.fileno()), "st_blocks", 0)
                lacking -= min(blocks * 512, file.size)
            out.truncate(file.size)
            lacking += file.size
            for part in file.parts:
                if fresh or not _holds(out, at, part):
                    where = (part.key, part.at, part.length)
                    if where not in places:
                        places[where] = []
                        found.setdefault(part.key, []).append((part, places[where]))
                    places[where].append((wholes[file.path], at))
                at += part.bytes
    free = shutil.disk_usage(target).free
    if lacking > free:
        message = (
            f"the checkpoint needs {lacking / 1e6:.0f} MB more, and {free / 1e6:.0f} MB are free"
        )
        raise OSError(errno.ENOSPC, message)
    return found


def _holds(file: Any, at: int, part: wire.Part) -> bool:
    """Whether the piece is there from the last try."""
    digest, left = hashlib.sha256(), part.bytes
    file.seek(at)
    while left:
        data = file.read(min(left, _CHUNK))
        if not data:
            return False
        digest.update(data)
        left -= len(data)
    return digest.hexdigest() == part.piece


class _Read:
    """Bytes [start, end) of a blob, with pieces in them; one piece only if there are many bytes."""

    def __init__(self, key: str, first: _Piece) -> None:
        self.key = key
        self.pieces = [first]
        self.start, self.end = first[0].at, first[0].at + first[0].bytes

    def takes(self, piece: _Piece) -> bool:
        """Add one that lies behind, if it is near enough."""
        end = piece[0].at + piece[0].bytes
        near = piece[0].at <= self.end + _GAP and end - self.start <= _READ
        if near:
            self.pieces.append(piece)
            self.end = max(self.end, end)
        return near

    def into_place(self, store: Store) -> None:
        if self.end - self.start > _READ:
            return self._stream(store, *self.pieces[0])
        data = memoryview(self._get(store, self.start, self.end))
        for part, places in self.pieces:
            piece = data[part.at - self.start :][: part.bytes]
            self._agree(part, hashlib.sha256(piece).hexdigest())
            _write(places, 0, piece)
        return None

    def _stream(self, store: Store, part: wire.Part, places: List[_Place]) -> None:
        digest = hashlib.sha256()
        for at in range(self.start, self.end, _READ):
            data = self._get(store, at, min(self.end, at + _READ))
            digest.update(data)
            _write(places, at - self.start, data)
        self._agree(part, digest.hexdigest())

    def _get(self, store: Store, start: int, end: int) -> bytes:
        try:
            data = store.get(self.key, start, end)
        except ValueError as error:  # a key that no store of ours would have
            raise wire.Unreadable(str(error)) from error
        if len(data) != end - start:
            self._torn()
        return data

    def _agree(self, part: wire.Part, found: str) -> None:
        if found != part.piece:
            self._torn()

    def _torn(self) -> None:
        message = f"{self.key} is not what the manifest says (torn, or still on its way)"
        raise wire.Unreadable(message)


def _write(places: List[_Place], further: int, data: "bytes | memoryview") -> None:
    for whole, at in places:
        with open(whole.path, "r+b", buffering=0) as file:
            file.seek(at + further)
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]


def _reads(key: str, pieces: List[_Piece]) -> List[_Read]:
    found: List[_Read] = []
    for piece in sorted(pieces, key=lambda piece: (piece[0].at, piece[0].bytes)):
        if not found or not found[-1].takes(piece):
            found.append(_Read(key, piece))
    return found


def _portions(files: Tuple[wire.File, ...]) -> Iterable[List[wire.File]]:
    portion: List[wire.File] = []
    size = 0
    for file in files:
        portion.append(file)
        size += file.size + _CHUNK // 16
        if size >= 2 * _READ:
            yield portion
            portion, size = [], 0
    yield portion


def _finish(files: List[wire.File], wholes: Dict[str, _Whole], check: Callable[[], None]) -> None:
    for file in files:
        check()
        whole = wholes[file.path]
        whole.finish()


def _remove(path: Path) -> None:
    """A link goes, not what it points to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _check_paths(manifest: wire.Manifest) -> None:
    paths = {file.path for file in manifest.files}
    folders = {parent for path in paths for parent in _parents(path)}
    try:
        for path in paths:
            wire.check_relative(path)
    except ValueError as error:
        raise wire.Unreadable(str(error)) from error
    if len(paths) != len(manifest.files) or paths & folders:
        message = "the manifest names a path twice"
        raise wire.Unreadable(message)


def _parents(path: str) -> Iterable[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _stamp_folders(folder: Path, manifest: wire.Manifest) -> None:
    newest: Dict[str, int] = {}
    for file in manifest.files:
        for parent in _parents(file.path):
            newest[parent] = max(newest.get(parent, 0), file.mtime_ns)
    for where, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            path = Path(where, name)
            stamp = newest[path.relative_to(folder).as_posix()]
            os.utime(path, ns=(stamp, stamp))

"""Files into the store as parts, and back out of it, every byte verified.

Decides how a file is cut and what need not be sent again. Does not know what a checkpoint is, or when to try
once more: a StoreError or Unreadable goes to the caller, and what was done until then is not lost. A part
is named by its SHA-256 and belongs to the attempt that put it; whether it was put is known from `known`,
never from a listing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Callable, Dict, Iterable, List, Optional, Tuple

from freegpu.agent import wire
from freegpu.agent.clock import Clock, SystemClock
from freegpu.agent.snapshot import Item
from freegpu.agent.stores.base import Store

if TYPE_CHECKING:
    from hashlib import _Hash

PART_SIZE = 64 << 20
_CHUNK = 1 << 20
#: with a limit on the bandwidth, a part is what goes through in this time, so that the flow is even
_PACE_S = 8.0

#: SHA-256 -> the part in the store that has it
Known = Dict[str, wire.Part]


_NOTHING = hashlib.sha256().digest()


class Stopped(Exception):  # noqa: N818 - nothing failed: the caller asked for it
    """`should_stop` said so."""


def known_parts(manifests: Iterable[wire.Manifest]) -> Known:
    """The parts that these manifests name."""
    return {part.sha256: part for manifest in manifests for part in manifest.blobs()}


def upload(
    store: Store,
    attempt: str,
    items: Iterable[Item],
    known: Known,
    *,
    clock: Optional[Clock] = None,
    part_size: int = PART_SIZE,
    bandwidth: Optional[float] = None,
    should_stop: Optional[Callable[[], bool]] = None,
) -> Tuple[wire.File, ...]:
    """Put what the store lacks of these files; their entries for a manifest.

    `known` is added to part by part, so that a second try goes on where the first one failed. `bandwidth`
    in bytes a second. StoreError, OSError (a file cannot be read), Stopped.
    """
    part_size = min(part_size, store.properties.max_object or part_size)
    if bandwidth:
        part_size = min(part_size, max(_CHUNK, int(bandwidth * _PACE_S)))
    sender = _Sender(store, attempt, known, clock or SystemClock(), bandwidth, should_stop)
    return tuple(_upload_one(sender, item, part_size) for item in items)


def _upload_one(sender: "_Sender", item: Item, part_size: int) -> wire.File:
    parts: List[wire.Part] = []
    size, whole = 0, hashlib.sha256()
    with open(item.source, "rb") as file:
        for data in iter(lambda: file.read(part_size), b""):
            digest = hashlib.sha256(data)
            if parts:
                whole.update(data)
            else:
                whole = digest.copy()  # a file of one part is hashed once
            size += len(data)
            parts.append(sender.send(digest.hexdigest(), data))
    return wire.File(item.path, size, whole.hexdigest(), item.mtime_ns, item.mode, tuple(parts))


class _Sender:
    """Puts parts of one attempt, in its bandwidth."""

    def __init__(
        self,
        store: Store,
        attempt: str,
        known: Known,
        clock: Clock,
        bandwidth: Optional[float],
        should_stop: Optional[Callable[[], bool]],
    ) -> None:
        self._store = store
        self._attempt = attempt
        self._known = known
        self._clock = clock
        self._bandwidth = bandwidth
        self._should_stop = should_stop

    def send(self, sha256: str, data: bytes) -> wire.Part:
        self._check()
        part = self._known.get(sha256)
        if part is None:
            start = self._clock.monotonic()
            part = wire.Part(wire.attempt_blob_key(self._attempt, sha256), sha256, len(data))
            if not self._store.put_new(part.key, data):
                self._replace_if_torn(part, data)
            self._known[sha256] = part
            if self._bandwidth:
                self._wait_until(start + len(data) / self._bandwidth)
        return part

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
            self._check()
            self._clock.sleep(min(left, 0.5))

    def _check(self) -> None:
        if self._should_stop and self._should_stop():
            raise Stopped


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
    again, what was verified is kept beside `into`, under a hidden name. OSError, Stopped.
    """
    _check_paths(manifest)
    scratch = into.parent / f".{into.name}.restoring"
    target = scratch / wire.sha256(manifest.to_bytes())[:16]
    if scratch.is_symlink() or (scratch.exists() and not target.exists()):
        _remove(scratch)  # what a try for another base has left
    target.mkdir(parents=True, exist_ok=True)
    for file in manifest.files:
        _download_one(store, file, target / file.path, should_stop)
    _stamp_folders(target, manifest)
    _remove(into)
    os.rename(target, into)
    shutil.rmtree(scratch, ignore_errors=True)


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


def _download_one(
    store: Store, file: wire.File, target: Path, should_stop: Optional[Callable[[], bool]]
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with open(target, "r+b" if target.exists() else "w+b") as out:
        trusted = True  # the beginning may be there from the last try
        for part in file.parts:
            if should_stop and should_stop():
                raise Stopped
            at = out.tell()
            further = _read(out, part, digest) if trusted else None
            if further is None:
                trusted = False
                out.seek(at)
                out.truncate()
                further = _fetch(store, part, out, digest)
            digest = further
        out.truncate()
        if out.tell() != file.size or digest.hexdigest() != file.sha256:
            message = f"the parts of {file.path} do not make up the file"
            raise wire.Unreadable(message)
    os.chmod(target, (file.mode & 0o777) | 0o600)
    os.utime(target, ns=(file.mtime_ns, file.mtime_ns))


def _read(out: "IO[bytes]", part: wire.Part, digest: "_Hash") -> "Optional[_Hash]":
    """The digest of the file after this part, if the next bytes in it are the part already."""
    check = _Check(part, digest)
    for chunk in iter(lambda: out.read(min(check.left, _CHUNK)), b""):
        check.add(chunk)
    return check.whole()


def _fetch(store: Store, part: wire.Part, out: "IO[bytes]", digest: "_Hash") -> "_Hash":
    """Append the part; the digest of the file after it. The file is as before if that fails."""
    at, check = out.tell(), _Check(part, digest)
    try:
        while check.left:
            start = part.size - check.left
            data = store.get(part.key, start, min(part.size, start + PART_SIZE))
            if not data or len(data) > check.left:
                break
            check.add(data)
            out.write(data)
    except ValueError as error:  # a key that no store of ours would have
        raise wire.Unreadable(str(error)) from error
    further = check.whole()
    if further is None:
        out.seek(at)
        out.truncate()
        message = f"{part.key} is not what the manifest says (torn, or still on its way)"
        raise wire.Unreadable(message)
    return further


class _Check:
    """Follows the bytes of a part, and with them the digest of the file that it continues."""

    def __init__(self, part: wire.Part, digest: "_Hash") -> None:
        self._part = part
        self._first = digest.digest() == _NOTHING
        self._own = hashlib.sha256()
        self._further = digest.copy()
        self.left = part.size

    def add(self, data: bytes) -> None:
        self.left -= len(data)
        self._own.update(data)
        if not self._first:
            self._further.update(data)

    def whole(self) -> "Optional[_Hash]":
        if self.left or self._own.hexdigest() != self._part.sha256:
            return None
        return self._own if self._first else self._further  # a file of one part is hashed once


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

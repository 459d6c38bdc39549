"""Any storage that rclone has a remote for: `rclone:REMOTE:path`. Orchestrator only.

One `rclone rcd` a store is kept and spoken to over its remote control (https://rclone.org/rc/, read for 1.75):
a process for every call would cost 150 ms each. rclone has no conditional writes, so put_new looks before it
leaps. The root is made here only where the storage has no folders and it comes into being with its first object.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import re
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from freegpu.adapters.stores.rclone_daemon import PARTIAL, Daemon
from freegpu.agent.stores.base import (
    Access,
    ObjectMissing,
    Properties,
    Source,
    Stat,
    StoreError,
    StoreFull,
    StoreGone,
    check_key,
    is_key,
)

__all__ = ["RcloneStore"]

MARKER = "freegpu.json"
_CHUNK = 1 << 20
#: seconds that a small call may take; copying has no limit of ours, rclone has its own for silence
_CALL_S = 120.0
#: tries of a read whose object was replaced in the middle, and seconds before each new one
_TRIES = 5
_PAUSE_S = 0.05
_FULL = re.compile(r"no space left|quota ?exceeded|insufficient storage|disk full|over quota", re.I)
_AWAY = re.compile(
    r"dial tcp|no such host|connection refused|i/o timeout|couldn't connect|network is unreachable|no route to host",
    re.I,
)
#: the last one: it lies below an object
_ABSENT = re.compile(r"(object|directory) not found|not a directory", re.I)
_UNKNOWN_REMOTE = "didn't find section in config file"


class RcloneRefused(StoreError):  # noqa: N818 - reads as what happened
    """rclone cannot use this remote as it is configured; a person must act."""

    transient = False


class RcloneStore:
    """See the module. Safe to be used by several threads."""

    def __init__(
        self,
        rest: str,
        access: Access | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`rest` is the URL behind "rclone:". ValueError: it cannot be meant. Starts rclone on use."""
        name, colon, path = rest.rpartition(":")
        if not colon or not name or "]" in rest or "\0" in rest:
            raise ValueError(
                "an rclone URL is rclone:REMOTE:path, REMOTE as `rclone listremotes` has it"
            )
        self.fs = f"{name}:{path.rstrip('/')}"
        self._access = access or Access()
        self._sleep = sleep
        self._daemon = Daemon(bandwidth=self._access.bandwidth)
        self._lock = threading.Lock()
        # whoever forgets to close it still leaves no process behind
        self.close = weakref.finalize(self, self._daemon.stop)

    @property
    def properties(self) -> Properties:
        # what nobody has probed is not believed
        return self._access.known or Properties(
            cas=False, ordered=False, lists_lag=True, max_object=None, min_poll=2.0
        )

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """What rclone says of the remote: Features, Hashes."""
        return self._call("operations/fsinfo", fs=self.fs)

    @property
    def digests_by_server(self) -> bool:
        """Whether the storage itself keeps SHA-256; where rclone would read the bytes to hash them it does not."""
        return "sha256" in (self._facts.get("Hashes") or ()) and not self._facts["Features"].get(
            "SlowHash"
        )

    # --- the protocol -----------------------------------------------------------------------------------

    def list(self, prefix: str, after: str = "") -> list[str]:
        folder = check_key(prefix) if prefix else ""
        options = {"recurse": True, "filesOnly": True, "noModTime": True, "noMimeType": True}
        try:
            found = self._call("operations/list", fs=self.fs, remote=folder, opt=options)["list"]
        except ObjectMissing:
            found = []
        except StoreError:
            # an object is not its own folder
            if not folder or self._item(folder) is None:
                raise
            found = []
        keys = [item["Path"] for item in found or ()]
        self._require_root(keys if not folder else ())
        return sorted(
            key for key in keys if key > after and is_key(key) and not key.endswith(PARTIAL)
        )

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        if end is not None and end <= start:
            self._present(key)
            return b""
        blocks: list[bytes] = []
        self._read(key, blocks, start, end)
        return b"".join(blocks)

    def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
        check_key(key)
        self._present(key)
        for last in _tries():
            with open(into, "wb") as target:
                try:
                    return self._stream(key, target.write)
                except _Torn as error:
                    if last:
                        raise StoreError(f"{key} did not come whole: {error}") from error
            self._sleep(_PAUSE_S)
        raise AssertionError("unreachable")

    def put(self, key: str, source: Source) -> None:
        check_key(key)
        self._prepare(key)
        self._copy(key, source)

    def put_new(self, key: str, source: Source) -> bool:
        check_key(key)
        self._prepare(key)
        if self._item(key) is not None:
            return False
        self._copy(key, source)
        return True

    def delete(self, key: str) -> None:
        check_key(key)
        try:
            if self._item(key) is not None:
                self._call("operations/deletefile", fs=self.fs, remote=key)
                return
        except ObjectMissing:
            pass  # somebody else was quicker
        self._require_root()

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        check_key(key)
        hashed = digest and "sha256" in (self._facts.get("Hashes") or ())
        item = self._item(key, hashed=hashed)
        if item is None:
            self._missing(key)
            return None
        size = int(item["Size"])
        if not digest:
            return Stat(size)
        told = (item.get("Hashes") or {}).get("sha256", "")
        if told:
            return Stat(size, told)
        try:
            for last in _tries():
                try:
                    return Stat(*self._stream(key, len))
                except _Torn as error:
                    if last:
                        raise StoreError(f"{key} did not come whole: {error}") from error
                self._sleep(_PAUSE_S)
        except ObjectMissing:
            pass
        return None

    def space(self) -> tuple[int | None, int | None]:
        """(bytes free, bytes in all); None where the storage does not tell."""
        if not self._facts["Features"].get("About"):
            return None, None
        told = self._call("operations/about", fs=self.fs)
        return told.get("free"), told.get("total")

    # --- what is there ----------------------------------------------------------------------------------

    def _item(self, key: str, *, hashed: bool = False) -> dict[str, Any] | None:
        options: dict[str, Any] = {"noModTime": True, "noMimeType": True, "filesOnly": True}
        if hashed:
            options |= {"showHash": True, "hashTypes": ["sha256"]}
        try:
            item = self._call("operations/stat", fs=self.fs, remote=key, opt=options)["item"]
        except ObjectMissing:
            return None
        return None if item is None or item["IsDir"] else dict(item)

    def _present(self, key: str) -> None:
        if self._item(key) is None:
            self._missing(key)
            raise ObjectMissing(f"{key} is not in the store")

    def _missing(self, key: str) -> None:
        """StoreGone unless it is only this object that is not there."""
        if key == MARKER:
            self._prepare(key)
        else:
            self._require_root()

    def _prepare(self, key: str) -> None:
        """Refuse to write into a root that is not there; the marker may be the first object in it."""
        if key != MARKER:
            self._require_root()
        elif not self._facts["Features"].get("BucketBased"):
            try:
                self._call("operations/list", fs=self.fs, remote="", opt={"noModTime": True})
            except ObjectMissing:
                raise StoreGone(
                    f"the store rclone:{self.fs} is not there (`rclone mkdir {self.fs}` makes it)"
                ) from None

    def _require_root(self, listed: Collection[str] = ()) -> None:
        if MARKER not in listed and self._item(MARKER) is None:
            raise StoreGone(f"the store rclone:{self.fs} is not there (no {MARKER} in it)")

    # --- moving bytes -----------------------------------------------------------------------------------

    def _copy(self, key: str, source: Source) -> None:
        with _as_file(source) as path:
            size = path.stat().st_size
            self._tell(key, 0, size)
            try:
                self._call(
                    "operations/copyfile",
                    patience_s=None,
                    srcFs=str(path.parent),
                    srcRemote=path.name,
                    dstFs=self.fs,
                    dstRemote=key,
                    # equal size and time must not pass for equal bytes: heartbeats are replaced every second
                    _config={"IgnoreTimes": True},
                )
            except ObjectMissing as error:
                raise StoreError(f"{key} cannot be written: {error}") from error
            self._tell(key, size, size)

    def _tell(self, key: str, done: int, size: int) -> None:
        if self._access.progress is not None and size > _CHUNK:
            self._access.progress(key, done, size)

    def _read(self, key: str, blocks: Any, start: int, end: int | None) -> None:
        for last in _tries():
            try:
                self._stream(key, blocks.append, start, end)
            except ObjectMissing:
                self._missing(key)
                raise
            except _Torn as error:
                blocks.clear()
                if last:
                    raise StoreError(f"{key} did not come whole: {error}") from error
                self._sleep(_PAUSE_S)
            else:
                return

    def _stream(
        self,
        key: str,
        take: Callable[[bytes], object],
        start: int = 0,
        end: int | None = None,
    ) -> tuple[int, str]:
        """Hand out the bytes [start, end) as they come; (how many, their SHA-256). _Torn: the object changed meanwhile."""
        headers = {}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        path = f"/{quote(f'[{self.fs}]', safe='')}/{quote(key)}"
        digest, size = hashlib.sha256(), 0
        with self._answer("GET", path, None, headers, _CALL_S) as answer:
            if answer.status == 416:
                return 0, digest.hexdigest()
            if answer.status not in (200, 206):
                raise self._refusal(answer.read())
            length = answer.headers["Content-Length"]
            if length is None:
                # how it answers a range that begins beyond the end
                item = self._item(key)
                if item is not None and start >= int(item["Size"]):
                    return 0, digest.hexdigest()
                raise _Torn("an answer of unknown length")
            total = int(length)
            try:
                while block := answer.read(_CHUNK):
                    digest.update(block)
                    size += len(block)
                    take(block)
                    self._tell(key, size, total)
            except (http.client.IncompleteRead, OSError) as error:
                raise _Torn(str(error)) from error
        if size != total:
            raise _Torn(f"{size} bytes of {total}")
        return size, digest.hexdigest()

    # --- calls ------------------------------------------------------------------------------------------

    def _call(
        self, name: str, *, patience_s: float | None = _CALL_S, **parameters: Any
    ) -> dict[str, Any]:
        body = json.dumps(parameters).encode()
        headers = {"Content-Type": "application/json"}
        with self._answer("POST", f"/{name}", body, headers, patience_s) as answer:
            text = answer.read()
            if answer.status != 200:
                raise self._refusal(text)
            try:
                told: dict[str, Any] = json.loads(text)
            except ValueError as error:
                raise StoreError(f"rclone answered {text[:80]!r} to {name}") from error
            return told

    @contextlib.contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        patience_s: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        """rclone's answer; it is started if it does not run, and once more if it has died."""
        for again in (False, True):
            with self._lock:
                port, password = self._daemon.ready()
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
            pair = base64.b64encode(f"freegpu:{password}".encode()).decode()
            try:
                line.request(method, path, body, {**headers, "Authorization": f"Basic {pair}"})
                answer = line.getresponse()
            except TimeoutError as error:
                line.close()
                raise StoreGone(
                    f"the store rclone:{self.fs} does not answer within {patience_s} s"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                line.close()
                with self._lock:
                    self._daemon.stop()
                if again:
                    raise StoreGone(
                        f"rclone died on us ({error or type(error).__name__})"
                    ) from error
                continue
            try:
                yield answer
            finally:
                line.close()
            return

    def _refusal(self, text: bytes) -> StoreError:
        """rclone's error as a store error."""
        try:
            said = json.loads(text)
            words, status = " ".join(str(said["error"]).split()), int(said.get("status", 500))
        except (ValueError, KeyError, TypeError):
            words, status = repr(text[:200]), 500
        if status == 404 or _ABSENT.search(words):
            return ObjectMissing(f"not in the store rclone:{self.fs}: {words}")
        if _UNKNOWN_REMOTE in words:
            return RcloneRefused(
                f"rclone has no remote for {self.fs}: `rclone config` makes one, `rclone listremotes` shows them"
            )
        if _FULL.search(words):
            return StoreFull(f"the store rclone:{self.fs} is full ({words[:200]})")
        if _AWAY.search(words):
            return StoreGone(f"the store rclone:{self.fs} does not answer ({words[:200]})")
        return StoreError(f"the store rclone:{self.fs} failed: {words[:300]}")


class _Torn(Exception):  # noqa: N818 - caught here, never raised to a caller
    """An object was replaced while it was read."""


def _tries() -> Iterator[bool]:
    """False for every try but the last."""
    for number in range(_TRIES):
        yield number == _TRIES - 1


@contextlib.contextmanager
def _as_file(source: Source) -> Iterator[Path]:
    """The source as a local file, which is what rclone copies."""
    if not isinstance(source, bytes):
        yield Path(os.path.abspath(source))
        return
    with tempfile.TemporaryDirectory(prefix="freegpu-rclone-") as folder:
        path = Path(folder) / "object"
        path.write_bytes(source)
        yield path

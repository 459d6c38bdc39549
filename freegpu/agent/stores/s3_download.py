"""An object in ranges, several at a time, that all belong to one and the same version of it."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Callable, Optional, Tuple, Union

from freegpu.agent.stores.base import StoreError
from freegpu.agent.stores.http import Reply, Sink
from freegpu.agent.stores.s3_upload import hash_file, together

#: read by one request when an object is fetched
PIECE = 8 << 20
#: the same when only its digest is wanted
_LONG_PIECE = 64 << 20


class Replaced(Exception):  # noqa: N818 - reads as what happened
    """The object is not the one any more that was begun with."""


class Download:
    """Reads one object. `ask` sends a request as S3Store does; `tell` hears how far a large fetch is."""

    def __init__(
        self, ask: Callable[..., Reply], key: str, tell: Callable[[str, int, int], None]
    ) -> None:
        self._ask = ask
        self._key = key
        self._tell = tell

    def fetch(self, into: "os.PathLike[str]") -> Tuple[int, str]:
        """Into a file, in pieces that several threads read. Size and SHA-256; Replaced: begin anew."""
        reply, first = self.part(0, PIECE)
        etag, total = reply.headers.get("etag"), _total(reply)
        if total is None:  # no ranges here: it is the whole
            first, total = reply.body, len(reply.body)
        if total > len(first) and not etag:
            first = b""  # without a tag nobody can tell whether pieces fit together: all in one
        digest = hashlib.sha256(first)
        with open(into, "wb") as file:
            file.write(first)
        if total <= len(first):
            return len(first), digest.hexdigest()
        step = PIECE if etag else total
        pieces = [(at, min(at + step, total)) for at in range(len(first), total, step)]

        def load(piece: Tuple[int, int]) -> None:
            with open(into, "r+b") as file:
                file.seek(piece[0])
                self._piece(piece, etag, file)

        with open(into, "rb") as again, together() as pool:
            again.seek(len(first))
            for piece, done in [(piece, pool.submit(load, piece)) for piece in pieces]:
                done.result()
                hash_file(digest, again, piece[1] - piece[0])
                self._tell(self._key, piece[1], total)
        return total, digest.hexdigest()

    def part(self, start: int, end: Optional[int]) -> Tuple[Reply, bytes]:
        """The answer and its bytes, which are Python's slice of the object."""
        last = "" if end is None else str(end - 1)
        headers = {"Range": f"bytes={start}-{last}"} if start or last else {}
        reply = self._ask("GET", self._key, headers=headers, ok=(200, 206, 416))
        if reply.status == 416:
            return reply, b""
        if _total(reply) is None:  # a server may answer with the whole
            return reply, reply.body[start:end]
        _check_start(reply, start)
        return reply, reply.body

    def _piece(
        self, piece: Tuple[int, int], etag: Optional[str], into: Sink, *, first: bool = False
    ) -> Optional[str]:
        """Stream bytes of the object as it was under this tag; the tag. Replaced: it is another by now."""
        headers = {"Range": f"bytes={piece[0]}-{piece[1] - 1}"}
        if etag:
            headers["If-Match"] = etag
        before = into.tell()
        reply = self._ask("GET", self._key, headers=headers, ok=(200, 206, 412, 416), into=into)
        found = reply.headers.get("etag")
        if reply.status in (412, 416) or (etag and found != etag and not (first and reply.moved)):
            raise Replaced
        if _total(reply) is not None:
            _check_start(reply, piece[0])
        if into.tell() - before != piece[1] - piece[0]:
            message = f"another part of {self._key} came than was asked for"
            raise StoreError(message)
        return found

    def digest(self, size: int, etag: Optional[str]) -> str:
        """The SHA-256 of the object that has this size and tag, by reading it. Replaced: it is another by now."""
        sink = _Digest()
        for at in range(0, size, _LONG_PIECE):
            told = self._piece((at, min(at + _LONG_PIECE, size)), etag, sink, first=not at)
            etag = etag and told  # where the bytes come from a CDN, they have its own tag
        return sink.digest.hexdigest()


class _Digest:
    """A file that only computes what was written to it, and can go back to where a piece began."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._size = 0
        self._kept = (0, self.digest.copy())

    def tell(self) -> int:
        if self._size != self._kept[0]:
            self._kept = (self._size, self.digest.copy())
        return self._size

    def seek(self, to: int) -> int:
        if to != self._size:
            self._size, self.digest = self._kept[0], self._kept[1].copy()
        return self._size

    def write(self, data: Union[bytes, memoryview]) -> int:
        self.digest.update(data)
        self._size += len(data)
        return len(data)


def _total(reply: Reply) -> Optional[int]:
    """The whole object's size, if the answer is a range; the status does not tell (rclone's server says 200)."""
    told = reply.headers.get("content-range")
    if told is None:
        return None
    size = told.rpartition("/")[2]
    if not size.isdigit():
        message = "the server does not tell how large the object is"
        raise StoreError(message)
    return int(size)


def _check_start(reply: Reply, start: int) -> None:
    told = re.match(r"bytes (\d+)-\d+/\d+$", reply.headers.get("content-range", ""))
    if not told or int(told.group(1)) != start:
        message = "the server sent another range than it was asked for"
        raise StoreError(message)

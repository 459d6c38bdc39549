"""Bytes on their way into a Drive: in one request where they are few, else resumable, in chunks, without twins.

A resumable upload that was cut is asked how far it came (`Content-Range: bytes */N`) and goes on there; one that the
server has forgotten begins anew. The id in the metadata was given out before, so that a second create is refused (409)
instead of making a twin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from freegpu.agent.clock import Clock
from freegpu.agent.stores.base import ObjectMissing, Source, StoreError, StoreFull
from freegpu.agent.stores.drive_layout import FIELDS
from freegpu.agent.stores.google import Api
from freegpu.agent.stores.http import Body, FileRange, Reply

#: up to this many bytes go in one request with the metadata; Google names 5 MB
SMALL = 5_000_000
#: a chunk of a resumable upload; a multiple of 256 KiB
CHUNK = 16 << 20
#: tries in a row without a byte that arrived, and the longest wait between two, seconds
_TRIES = 6
_LONGEST_S = 20.0
_BLOCK = 1 << 20
_MIME = "application/octet-stream"

Tell = Callable[[int, int], None]


class Taken(Exception):  # noqa: N818 - reads as what happened
    """A file with this id is there already."""


class Uploads:
    """Uploads of one client. What was begun and failed is gone on with when the same bytes come again."""

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._begun: Dict[Tuple[str, str], str] = {}

    def send(
        self,
        file_id: str,
        metadata: Mapping[str, Any],
        source: Source,
        size: int,
        sha256: str,
        tell: Tell,
        *,
        create: bool,
    ) -> Dict[str, Any]:
        """Create the file of this id, or replace the content of it; its resource as the server has it then.

        Taken: it is there already (create). ObjectMissing: it is not there (replace), or its folder is not.
        """
        method = "POST" if create else "PATCH"
        path = "/upload/drive/v3/files" + ("" if create else f"/{file_id}")
        described = {**metadata, "id": file_id} if create else dict(metadata)
        if size <= SMALL:
            reply = self._at_once(method, path, described, source)
        else:
            reply = self._in_chunks(method, path, described, source, size, (file_id, sha256), tell)
        if reply.status == 409:
            raise Taken
        return self._api.read(reply)

    def _at_once(
        self, method: str, path: str, metadata: Mapping[str, Any], source: Source
    ) -> Reply:
        content = source if isinstance(source, bytes) else _read(source)
        boundary = secrets.token_hex(20)
        edge = f"--{boundary}\r\nContent-Type: "
        head = f"{edge}application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n{edge}{_MIME}\r\n\r\n"
        return self._api.ask(
            method,
            path,
            {"uploadType": "multipart", "fields": FIELDS},
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            body=b"".join((head.encode(), content, f"\r\n--{boundary}--\r\n".encode())),
            ok=(200, 409),
        )

    def _in_chunks(
        self,
        method: str,
        path: str,
        metadata: Mapping[str, Any],
        source: Source,
        size: int,
        name: Tuple[str, str],
        tell: Tell,
    ) -> Reply:
        where = self._begun.get(name)
        at: Optional[int] = None if where else 0
        failed = 0
        while True:
            try:
                if where is None:
                    begun = self._begin(method, path, metadata, size)
                    if begun.status == 409:
                        return begun
                    where, at = begun.headers["location"], 0
                    self._begun[name] = where
                reply, at = self._go_on(where, at, source, size)
                if reply.status != 308:
                    self._begun.pop(name, None)
                    tell(size, size)
                    return reply
                failed = 0
                tell(at, size)
            except ObjectMissing:
                if where is None:
                    raise  # not the upload is gone, but the folder or the file
                # the server has forgotten the upload
                self._begun.pop(name, None)
                where, failed = None, failed + 1
                if failed >= _TRIES:
                    message = f"{self._api.host} forgets an upload again and again"
                    raise StoreError(message) from None
            except StoreError as error:
                failed += 1
                full = isinstance(error, StoreFull)
                if full or not error.transient:
                    self._begun.pop(name, None)
                if full or not error.transient or failed >= _TRIES or where is None:
                    raise
                self._clock.sleep(min(_LONGEST_S, 0.5 * 2**failed))
                at = None

    def _begin(self, method: str, path: str, metadata: Mapping[str, Any], size: int) -> Reply:
        headers = {
            "Content-Type": "application/json; charset=UTF-8",
            "X-Upload-Content-Type": _MIME,
            "X-Upload-Content-Length": str(size),
        }
        query = {"uploadType": "resumable", "fields": FIELDS}
        reply = self._api.ask(
            method, path, query, headers=headers, body=json.dumps(metadata).encode(), ok=(200, 409)
        )
        if reply.status == 200 and not reply.headers.get("location"):
            message = f"{self._api.host} does not say where to send the content"
            raise StoreError(message)
        return reply

    def _go_on(self, where: str, at: Optional[int], source: Source, size: int) -> Tuple[Reply, int]:
        """Send the next chunk, or ask where to go on if that is unknown; the answer, and how far it is."""
        if at is None:
            headers = {"Content-Range": f"bytes */{size}"}
            reply = self._api.ask("PUT", where, headers=headers, ok=(200, 201, 308))
        else:
            end = min(at + CHUNK, size)
            body: Body = (
                memoryview(source)[at:end]
                if isinstance(source, bytes)
                else FileRange(source, at, end - at)
            )
            headers = {"Content-Range": f"bytes {at}-{end - 1}/{size}"}
            # a chunk is not sent twice: what arrived of it is asked for
            reply = self._api.ask(
                "PUT", where, headers=headers, body=body, ok=(200, 201, 308), repeat=False
            )
        told = re.match(r"bytes=0-(\d+)$", reply.headers.get("range", ""))
        return reply, int(told.group(1)) + 1 if told else 0


def hash_of(source: Source) -> Tuple[int, str]:
    """Size and SHA-256 of what is to be sent."""
    if isinstance(source, bytes):
        return len(source), hashlib.sha256(source).hexdigest()
    digest, size = hashlib.sha256(), 0
    with open(source, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def md5_of(source: Source) -> str:
    """For a server that tells no SHA-256."""
    # by name, because `usedforsecurity` is needed where a policy forbids MD5
    digest = hashlib.new("md5", usedforsecurity=False)
    if isinstance(source, bytes):
        digest.update(source)
    else:
        with open(source, "rb") as file:
            for block in iter(lambda: file.read(_BLOCK), b""):
                digest.update(block)
    return digest.hexdigest()


def _read(source: "os.PathLike[str]") -> bytes:
    with open(source, "rb") as file:
        return file.read()

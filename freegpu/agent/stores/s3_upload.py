"""A large object in parts, several at a time, that appears as a whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import IO, TYPE_CHECKING, Callable, Iterator, List, Mapping, Tuple

from freegpu.agent.stores.base import Source, StoreError
from freegpu.agent.stores.http import Body, FileRange, Reply
from freegpu.agent.stores.s3_xml import parsed, texts

if TYPE_CHECKING:
    from hashlib import _Hash

#: of one part; servers want 5 MiB at least and 10,000 parts at most (Amazon S3 user guide, "limits")
PART = 16 << 20
_MOST_PARTS = 9_000
_THREADS = 4
_CHUNK = 1 << 20


@contextlib.contextmanager
def together() -> Iterator[ThreadPoolExecutor]:
    """Some threads. After an error what has not begun is dropped, and what has is waited for."""
    pool = ThreadPoolExecutor(_THREADS, "freegpu-s3")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def hash_file(digest: "_Hash", file: "IO[bytes]", size: int) -> None:
    """Add the next `size` bytes of the file. OSError: it has no more so many."""
    block = memoryview(bytearray(min(_CHUNK, size)))
    while size:
        count = file.readinto(block[:size])  # type: ignore[attr-defined]
        if not count:
            raise OSError(f"{file.name} became shorter while it was read")
        digest.update(block[:count])
        size -= count


def body_of(source: Source, start: int, size: int) -> Tuple[Body, str]:
    """Bytes [start, start + size) as a request's body, and their SHA-256."""
    if isinstance(source, bytes):
        view = memoryview(source)[start : start + size]
        return view, hashlib.sha256(view).hexdigest()
    digest = hashlib.sha256()
    with open(source, "rb", buffering=0) as file:
        file.seek(start)
        hash_file(digest, file, size)
    return FileRange(source, start, size), digest.hexdigest()


class Upload:
    """One try is one `run`. `ask` sends a request as S3Store does."""

    def __init__(
        self,
        ask: Callable[..., Reply],
        key: str,
        source: Source,
        size: int,
        tell: Callable[[str, int, int], None],
    ) -> None:
        self._ask = ask
        self._key = key
        self._source = source
        self._size = size
        self._tell = tell
        # all parts but the last are of one size: R2 insists on it
        part = max(PART, -(-size // _MOST_PARTS))
        self._pieces = [(at, min(part, size - at)) for at in range(0, size, part)]

    def run(self, about: Mapping[str, str], condition: Mapping[str, str]) -> Reply:
        """The answer to the last request: 200 (perhaps with an error in it), 412, or 404 if the upload is unknown.

        `about` are headers of the object, `condition` those of its completion. Whatever fails, the parts are removed.
        """
        begun = self._ask("POST", self._key, {"uploads": ""}, headers=about)
        identity = {"uploadId": "".join(texts(parsed(begun, "the store"), "UploadId"))}
        if not identity["uploadId"]:
            raise StoreError("the store began an upload without naming it")
        whole = False
        try:
            tags = self._send(identity)
            parts = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
                for number, tag in enumerate(tags, 1)
            )
            body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
            reply = self._ask(
                "POST",
                self._key,
                identity,
                headers={"Content-Type": "application/xml", **condition},
                body=body,
                sha256=hashlib.sha256(body).hexdigest(),
                ok=(200, 404, 412),
            )
            whole = reply.status != 412 and b"<Error" not in reply.body
            return reply
        finally:
            if not whole:
                # what this cannot remove, S3Store.sweep will
                with contextlib.suppress(StoreError):
                    self._ask("DELETE", self._key, identity, ok=(200, 204, 404))

    def sha256(self) -> str:
        """The whole object's digest."""
        return body_of(self._source, 0, self._size)[1]

    def _send(self, identity: Mapping[str, str]) -> List[str]:
        tags = [""] * len(self._pieces)
        sent = 0

        def send(index: int) -> int:
            start, size = self._pieces[index]
            body, sha256 = body_of(self._source, start, size)
            query = {**identity, "partNumber": str(index + 1)}
            reply = self._ask("PUT", self._key, query, body=body, sha256=sha256)
            tags[index] = reply.headers.get("etag", "")
            return size

        with together() as pool:
            for done in as_completed([pool.submit(send, index) for index in range(len(tags))]):
                sent += done.result()
                self._tell(self._key, sent, self._size)
        return tags

"""A bucket of any server that speaks S3: Amazon's, R2, B2, Hugging Face buckets, MinIO, SeaweedFS.

`s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION`; keys never stand in it. Addressing is by path. What a
server can do is what a probe found (`access.known`), since many accept conditions and checksums and ignore both:
rclone's server answers 200 to `If-None-Match: *`, and tells back whatever checksum it was sent. Until a probe has
spoken, put_new looks before it writes, and a digest is computed by reading.

Writes are whole or not at all: one PUT, or a multipart upload that appears when it is completed. The bucket
is never made here, and since some servers make one on the first PUT (SeaweedFS, with an administrator's key),
a write looks for it first unless it was seen just now.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
from typing import Callable, Container, Dict, List, Mapping, Optional, Tuple
from urllib.parse import unquote, urlsplit

from freegpu.agent.clock import Clock, SystemClock
from freegpu.agent.stores import sigv4
from freegpu.agent.stores.base import (
    Access,
    ObjectMissing,
    Properties,
    Source,
    Stat,
    StoreError,
    StoreGone,
    check_key,
    is_key,
)
from freegpu.agent.stores.http import Body, Http, Refused, Reply, Sink
from freegpu.agent.stores.s3_download import Download, Replaced
from freegpu.agent.stores.s3_errors import code_of, explained, means_later
from freegpu.agent.stores.s3_place import place
from freegpu.agent.stores.s3_upload import Upload, body_of
from freegpu.agent.stores.s3_xml import moment, moment_of, parsed, tag, texts

#: larger objects go in parts; a checkpoint's parts are just not larger
SINGLE = 64 << 20
#: a bucket that was seen so many seconds ago is taken to be there still
_SEEN_S = 60.0
#: an unprobed server is not looked at more often than this, seconds
_POLL_S = 5.0
#: how often a fetch begins anew because the object was replaced meanwhile
_RESTARTS = 4
_MARK = "x-amz-meta-freegpu"
_SUM = "x-amz-checksum-sha256"


class S3Store:
    """See the module. ValueError: the URL cannot be meant. Nothing is asked before the first call."""

    def __init__(
        self,
        rest: str,
        access: Optional[Access] = None,
        *,
        http: Optional[Http] = None,
        clock: Optional[Clock] = None,
    ) -> None:
        self._access = access or Access()
        self._clock = clock or SystemClock()
        self._http = http or Http(clock=self._clock, bandwidth=self._access.bandwidth)
        self.bucket, self._prefix, self._endpoint, self._region = place(rest)
        parts = urlsplit(self._endpoint)
        self.host = parts.netloc
        self._root = f"{parts.path}/{self.bucket}"
        self._key: Optional[sigv4.AccessKey] = None
        self._seen: Optional[float] = None
        self._digests: Optional[bool] = None
        #: what servers call "not implemented" is not sent a second time
        self._plain = False

    @property
    def properties(self) -> Properties:
        return self._access.known or Properties(
            cas=False, ordered=False, lists_lag=True, max_object=None, min_poll=_POLL_S
        )

    # --- reading ----------------------------------------------------------------------------------------

    def list(self, prefix: str, after: str = "") -> List[str]:
        folder = f"{check_key(prefix)}/" if prefix else ""
        query = {"list-type": "2", "encoding-type": "url", "prefix": self._prefix + folder}
        if after:
            query["start-after"] = self._prefix + after
        keys: List[str] = []
        while True:
            page = parsed(self._ask("GET", query=query), self.host)
            found = (unquote(key) for key in texts(page, "Contents", "Key"))
            keys += [key[len(self._prefix) :] for key in found if key.startswith(query["prefix"])]
            token = "".join(texts(page, "NextContinuationToken"))
            if texts(page, "IsTruncated") != ["true"]:
                break
            if token in ("", query.get("continuation-token")):
                message = f"{self.host} does not go on with a listing of {prefix or self.bucket}"
                raise StoreError(message)
            query = {**query, "continuation-token": token}
        # folders that consoles make, and what people put here, are nobody's objects
        return sorted(key for key in set(keys) if key > after and is_key(key))

    def get(self, key: str, start: int = 0, end: Optional[int] = None) -> bytes:
        check_key(key)
        if end is not None and end <= start:
            if self.stat(key) is None:
                raise self._missing(key)
            return b""
        return self._download(key).part(start, end)[1]

    def fetch(self, key: str, into: "os.PathLike[str]") -> Tuple[int, str]:
        check_key(key)
        for _ in range(_RESTARTS):
            with contextlib.suppress(Replaced):
                return self._download(key).fetch(into)
        message = f"{key} is being replaced all the time"
        raise StoreError(message)

    def stat(self, key: str, digest: bool = False) -> Optional[Stat]:
        check_key(key)
        for _ in range(_RESTARTS):
            head = self._head(key)
            if head is None:
                self._look_for_bucket()
                return None
            size = int(head.get("content-length", "0"))
            if not digest:
                return Stat(size)
            told = self._told_digest(head)
            if told and self.properties.server_digest:
                return Stat(size, told)
            with contextlib.suppress(Replaced, ObjectMissing):
                return Stat(size, self._download(key).digest(size, head.get("etag")))
        message = f"{key} is being replaced all the time"
        raise StoreError(message)

    # --- writing ----------------------------------------------------------------------------------------

    def put(self, key: str, source: Source) -> None:
        self._write(check_key(key), source, new=False)

    def put_new(self, key: str, source: Source) -> bool:
        check_key(key)
        # not every server minds the condition: where nobody has tried, look before the leap
        if not self.properties.cas and self._head(key) is not None:
            return False
        return self._write(key, source, new=True)

    def delete(self, key: str) -> None:
        with contextlib.suppress(ObjectMissing):
            self._ask("DELETE", check_key(key), ok=(200, 202, 204))

    def sweep(self, older_than_s: float) -> int:
        """Abort multipart uploads of ours that began so many seconds ago by the server's clock; how many.

        Whoever died in the middle of a large object leaves parts behind that nobody sees and everybody pays for.
        """
        swept, query = 0, {"uploads": "", "prefix": self._prefix}
        while True:
            reply = self._ask("GET", query=query, ok=(200, 404, 501))
            if reply.status != 200:
                if code_of(reply) == "NoSuchBucket":
                    raise self._explained(reply)
                return swept  # rclone's server keeps no such list, and nothing to sweep either
            now, page = moment_of(reply, self._clock.time()), parsed(reply, self.host)
            for upload in (part for part in page if tag(part) == "Upload"):
                told = {tag(part): part.text or "" for part in upload}
                name = told.get("Key", "")
                key, begun = name[len(self._prefix) :], moment(told.get("Initiated", ""))
                ours = name.startswith(self._prefix) and is_key(key)
                if ours and begun is not None and now - begun >= older_than_s:
                    with contextlib.suppress(ObjectMissing):
                        self._ask("DELETE", key, {"uploadId": told["UploadId"]}, ok=(200, 204))
                        swept += 1
            marks = {
                "key-marker": "".join(texts(page, "NextKeyMarker")),
                "upload-id-marker": "".join(texts(page, "NextUploadIdMarker")),
            }
            if texts(page, "IsTruncated") != ["true"] or marks.items() <= query.items():
                return swept
            query = {**query, **marks}

    @property
    def digests_by_server(self) -> bool:
        """Whether the server computes SHA-256 itself. Found out once, by sending it a wrong one to refuse."""
        if self._digests is None:
            self._digests = self._try_digests()
        return self._digests

    def _try_digests(self) -> bool:
        key, data = f"probe/{secrets.token_hex(8)}/digest", secrets.token_bytes(64)
        wrong = base64.b64encode(hashlib.sha256(b"something else").digest()).decode()
        url, name = self._url(key), self._path(key)
        self._look_for_bucket()
        try:
            headers = self._signed("PUT", name, "", {_SUM: wrong}, hashlib.sha256(data).hexdigest())
            refused = self._http.request("PUT", url, headers, data, ok=(200, 400), repeat=True)
            if refused.status == 200:
                return False
            self.put(key, data)
            head = self._head(key)
            told = self._told_digest(head) if head else None
            return told == hashlib.sha256(data).hexdigest()
        except Refused:
            return False
        finally:
            self.delete(key)

    def _download(self, key: str) -> Download:
        return Download(self._ask, key, self._tell)

    # --- reading, in detail -----------------------------------------------------------------------------

    def _head(self, key: str) -> Optional[Mapping[str, str]]:
        """The object's headers; None: it is not there, or its bucket is not."""
        try:
            return self._ask("HEAD", key, headers={"x-amz-checksum-mode": "ENABLED"}).headers
        except ObjectMissing:
            return None

    def _told_digest(self, head: Mapping[str, str]) -> Optional[str]:
        """The SHA-256 of the whole object as the server has it; None: it has none (parts have their own)."""
        value = head.get(_SUM, "")
        if head.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT" or "-" in value:
            return None
        try:
            raw = base64.b64decode(value, validate=True)
        except ValueError:
            return None
        return raw.hex() if len(raw) == 32 else None

    # --- writing, in detail -----------------------------------------------------------------------------

    def _write(self, key: str, source: Source, *, new: bool) -> bool:
        if self._seen is None or self._clock.monotonic() - self._seen > _SEEN_S:
            self._look_for_bucket()
        size = len(source) if isinstance(source, bytes) else os.stat(source).st_size
        mark = {_MARK: secrets.token_hex(8)}
        if size > SINGLE:
            upload = Upload(self._ask, key, source, size, self._tell)
            reply = self._conditional(
                lambda extra: upload.run(mark, extra), {"If-None-Match": "*"} if new else {}
            )
            if code_of(reply) not in ("", "NoSuchUpload", "PreconditionFailed"):
                raise self._explained(reply, "POST", key)
            if reply.status == 404 and not self._is_mine(key, mark, None):
                message = f"the upload of {key} was lost at {self.host}"
                raise StoreError(message)
            return reply.status != 412 or self._is_mine(key, mark, None)
        body, sha256 = body_of(source, 0, size)
        wishes = {_SUM: base64.b64encode(bytes.fromhex(sha256)).decode()}
        if new:
            wishes["If-None-Match"] = "*"

        def send(extra: Mapping[str, str]) -> Reply:
            return self._ask(
                "PUT", key, headers={**mark, **extra}, body=body, sha256=sha256, ok=(200, 412)
            )

        reply = self._conditional(send, wishes)
        return reply.status == 200 or self._is_mine(key, mark, sha256)

    def _conditional(
        self, send: Callable[[Mapping[str, str]], Reply], wishes: Mapping[str, str]
    ) -> Reply:
        """With what the server may not implement; without it, if it says so and nobody relies on it."""
        if self._plain:
            return send({})
        try:
            return send(wishes)
        except _NotImplementedThere:
            if not wishes or self.properties.cas:
                raise
            reply = send({})
            self._plain = True
            return reply

    def _is_mine(self, key: str, mark: Mapping[str, str], sha256: Optional[str]) -> bool:
        """Whether what stands there is what this call wrote: its answer may have been lost on the way."""
        head = self._head(key)
        if head is None:
            return False
        if _MARK in head or not sha256:
            return head.get(_MARK) == mark[_MARK]
        stat = self.stat(key, digest=True)
        return stat is not None and stat.sha256 == sha256

    def _look_for_bucket(self) -> None:
        """StoreGone if there is none. A key that may not ask is taken for an answer: it is told later."""
        reply = self._ask("HEAD", ok=(200, 403, 404))
        if reply.status == 404:
            message = f"the bucket {self.bucket} is not there at {self.host}"
            raise StoreGone(message)
        self._seen = self._clock.monotonic()

    # --- requests ---------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        key: str = "",
        query: Optional[Mapping[str, str]] = None,
        *,
        headers: Optional[Mapping[str, str]] = None,
        body: Body = b"",
        sha256: str = sigv4.EMPTY_SHA256,
        ok: Container[int] = (200,),
        into: Optional[Sink] = None,
    ) -> Reply:
        """One signed request. Every one of them may be repeated: what could be written twice is marked."""
        text = sigv4.query_of(query or {})
        url = self._url(key) + (f"?{text}" if text else "")
        try:
            reply = self._http.request(
                method,
                url,
                lambda: self._signed(method, self._path(key), text, headers or {}, sha256),
                body,
                into=into,
                ok=ok,
                repeat=True,
                again=means_later,
            )
        except Refused as error:
            raise self._explained(error.reply, method, key) from None
        except StoreGone:
            self._seen = None
            raise
        if reply.status < 300 and method in ("GET", "HEAD"):
            self._seen = self._clock.monotonic()
        return reply

    def _explained(self, reply: Reply, method: str = "", key: str = "") -> StoreError:
        if method == "HEAD" and reply.status in (400, 403):
            # an answer to HEAD tells no reason; the same question by GET does
            query = {"list-type": "2", "max-keys": "1", "prefix": self._prefix}
            try:
                self._ask("GET", query=query)
            except StoreError as told:
                return told
        code = code_of(reply)
        if code in ("ExpiredToken", "InvalidAccessKeyId"):
            self._key = None  # the credentials file may hold a newer one by now
        error = explained(reply, self.host, self.bucket, self._clock.time())
        if isinstance(error, StoreGone):
            self._seen = None
        if isinstance(error, ObjectMissing):
            return self._missing(key)
        if code == "NotImplemented" or reply.status == 501:
            return _NotImplementedThere(str(error))
        return error

    def _missing(self, key: str) -> ObjectMissing:
        return ObjectMissing(f"{key or self.bucket} is not in the store")

    def _signed(
        self, method: str, path: str, query: str, headers: Mapping[str, str], sha256: str
    ) -> Dict[str, str]:
        key = self._key = self._key or sigv4.find_key(self._access.secrets)
        return sigv4.signed(
            method,
            self.host,
            path,
            query,
            headers,
            key=key,
            region=self._region,
            now=self._clock.time(),
            payload=sha256,
        )

    def _path(self, key: str) -> str:
        return f"{self._root}/{self._prefix}{key}" if key else self._root

    def _url(self, key: str) -> str:
        scheme = self._endpoint.partition("://")[0]
        return f"{scheme}://{self.host}{self._path(key)}"

    def _tell(self, key: str, done: int, total: int) -> None:
        if self._access.progress:
            self._access.progress(key, done, total)


class _NotImplementedThere(StoreError):  # noqa: N818
    """The server knows the request but not one of its headers."""

    transient = False

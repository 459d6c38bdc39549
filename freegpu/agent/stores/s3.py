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
from dataclasses import replace
from typing import Callable, Container, ContextManager, Dict, List, Mapping, Optional, Set, Tuple
from urllib.parse import unquote, urljoin, urlsplit

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
_CONDITION = "If-None-Match"


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
        #: headers that this server does not implement: B2 has neither checksums nor conditions
        self._unknown: Set[str] = set()

    @property
    def properties(self) -> Properties:
        return self._access.known or Properties(
            cas=False, ordered=False, lists_lag=True, max_object=None, min_poll=_POLL_S
        )

    # --- reading ----------------------------------------------------------------------------------------

    def hurried(self, seconds: float) -> "ContextManager[None]":
        """A block in which somebody waits: a server that does not answer is given up after so many seconds."""
        return self._http.hurried(seconds)

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
            head = self._head(key, digest=digest and self.properties.server_digest)
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
            reply = self._ask("GET", query=query, ok=(200, 400, 404, 405, 501))
            if reply.status != 200:
                if code_of(reply) == "NoSuchBucket":
                    raise self._explained(reply)
                return swept  # some servers show no such list
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
            head = self._head(key, digest=True)
            told = self._told_digest(head) if head else None
            return told == hashlib.sha256(data).hexdigest()
        except StoreGone:
            raise
        except StoreError:
            return False
        finally:
            self.delete(key)

    def _download(self, key: str) -> Download:
        return Download(self._ask, key, self._tell)

    # --- reading, in detail -----------------------------------------------------------------------------

    def _head(self, key: str, *, digest: bool = False) -> Optional[Mapping[str, str]]:
        """The object's headers; None: it is not there, or its bucket is not."""
        try:
            wish = {"x-amz-checksum-mode": "ENABLED"} if digest else {}
            return self._ask("HEAD", key, headers=wish).headers
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
            if new and self._head(key) is not None:
                return False  # not every server minds the condition of a completion
            reply = self._wished(
                lambda extra: upload.run(mark, extra), {_CONDITION: "*"} if new else {}
            )
            if code_of(reply) not in ("", "NoSuchUpload", "PreconditionFailed"):
                raise self._explained(reply, "POST", key)
            if reply.status == 200 or self._is_mine(key, mark, reply, upload.sha256):
                return True
            if reply.status == 404:
                message = f"the upload of {key} was lost at {self.host}"
                raise StoreError(message)
            return False
        body, sha256 = body_of(source, 0, size)
        wishes = {_SUM: base64.b64encode(bytes.fromhex(sha256)).decode()}
        if new:
            wishes[_CONDITION] = "*"

        def send(extra: Mapping[str, str]) -> Reply:
            return self._ask(
                "PUT", key, headers={**mark, **extra}, body=body, sha256=sha256, ok=(200, 412)
            )

        reply = self._wished(send, wishes)
        return reply.status == 200 or self._is_mine(key, mark, reply, lambda: sha256)

    def _wished(
        self, send: Callable[[Mapping[str, str]], Reply], wishes: Mapping[str, str]
    ) -> Reply:
        """With headers that the server may not implement; without, if it says so and nobody relies on them."""
        known = self.properties
        while True:
            sent = {name: wishes[name] for name in wishes if name not in self._unknown}
            try:
                return send(sent)
            except _NotImplementedThere:
                spare = [
                    name
                    for name, needed in ((_SUM, known.server_digest), (_CONDITION, known.cas))
                    if name in sent and not needed
                ]
                if not spare:
                    raise
                self._unknown.add(spare[0])

    def _is_mine(
        self, key: str, mark: Mapping[str, str], reply: Reply, sha256: Callable[[], str]
    ) -> bool:
        """Whether what stands there is what this call wrote: its answer may have been lost on the way."""
        head = self._head(key)
        if head is None:
            return False
        if _MARK in head:
            return head[_MARK] == mark[_MARK]
        if reply.tries < 2:
            return False
        # Hugging Face's buckets keep no metadata; then equal bytes are as good as ours
        stat = self.stat(key, digest=True)
        return stat is not None and stat.sha256 == sha256()

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
                ok=_Also(ok) if method == "GET" and key else ok,
                repeat=True,
                again=means_later,
            )
        except Refused as error:
            raise self._explained(error.reply, method, key) from None
        except StoreGone:
            self._seen = None
            raise
        if reply.status < 400 and method in ("GET", "HEAD"):
            self._seen = self._clock.monotonic()
        return (
            reply
            if reply.status < 300 or reply.status >= 400
            else self._elsewhere(reply, headers, ok, into)
        )

    def _elsewhere(
        self,
        reply: Reply,
        headers: Optional[Mapping[str, str]],
        ok: Container[int],
        into: Optional[Sink],
    ) -> Reply:
        """The bytes from where the server says that they are: Hugging Face hands out links to its CDN.

        Nothing of ours but the range goes there, and never from TLS to a plain connection.
        """
        link = reply.headers.get("location", "")
        there = urljoin(self._endpoint, link)
        scheme, host = urlsplit(there).scheme, urlsplit(there).hostname
        if (
            code_of(reply)
            or not link
            or not host
            or scheme not in {"https", urlsplit(self._endpoint).scheme}
        ):
            raise self._explained(reply)
        own = {name: value for name, value in (headers or {}).items() if name == "Range"}
        try:
            got = self._http.request("GET", there, own, into=into, ok=ok, repeat=True)
            return replace(got, moved=True)
        except Refused as error:
            message = f"{host}, where {self.host} keeps it, answered {error.reply.status}"
            raise StoreError(message) from None

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
        if code == "NotImplemented" or reply.status == 501 or b"nsupported header" in reply.body:
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


class _Also:
    """These statuses, and those that send a download on."""

    def __init__(self, ok: Container[int]) -> None:
        self._ok = ok

    def __contains__(self, status: object) -> bool:
        return status in (302, 303, 307) or status in self._ok

"""HTTP/1.1 for the stores that live behind it: few connections, kept open; patience; no word too many.

Decides when a request is sent again: after a broken connection and after the answers that mean "later" (408,
429, 500, 502, 503, 504), if the caller says that it may be repeated, with waits that double, are jittered and
obey Retry-After (RFC 9110, 10.2.3). A connection that could not be made is always tried again: nothing was
sent. Redirects are never followed: the request carries credentials, and where they go is the caller's to decide.
No error names more of a URL than its host, and none holds a header.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import ssl
import threading
from dataclasses import dataclass, field, replace
from typing import (
    IO,
    Any,
    Callable,
    Container,
    Iterator,
    Mapping,
    Optional,
    Protocol,
    Tuple,
    Union,
)
from urllib.parse import SplitResult, urlsplit

from freegpu.agent.clock import Clock, SystemClock
from freegpu.agent.stores.base import StoreError, StoreFull, StoreGone
from freegpu.agent.stores.connections import Broken, Connections, origin, proxy_headers

_BLOCK = 256 << 10
#: statuses that mean: the same request may succeed later
LATER = frozenset((408, 429, 500, 502, 503, 504))
#: an error's body is kept up to this many bytes
_MOST_ERROR = 64 << 10
#: waits between tries: the first, and the longest, seconds
_FIRST_S, _LONGEST_S = 0.5, 20.0


@dataclass(frozen=True)
class FileRange:
    """`size` bytes of a file from `start` on, as a body that is streamed."""

    path: "os.PathLike[str]"
    start: int
    size: int


Body = Union[bytes, memoryview, FileRange]


class Sink(Protocol):
    """What a body can be streamed into: a binary file, or what behaves like one."""

    def tell(self) -> int: ...
    def seek(self, to: int, /) -> int: ...
    def write(self, data: memoryview, /) -> object: ...


Headers = Mapping[str, str]


@dataclass(frozen=True)
class Reply:
    """What the server said. Header names are lower case."""

    status: int
    headers: Headers = field(repr=False)
    #: empty where the body was streamed into a file
    body: bytes = field(repr=False)
    #: how many times the request was sent until this came
    tries: int = 1
    #: it came from another server, where the first one had sent us; set by who went there
    moved: bool = False


class Refused(StoreError):  # noqa: N818 - reads as what happened
    """A status that was not expected, at the end of all patience."""

    def __init__(self, message: str, reply: Reply) -> None:
        super().__init__(message)
        self.reply = reply
        self.transient = reply.status in LATER


class Throttle:
    """At most `rate` bytes a second through all threads that take from it."""

    def __init__(self, rate: float, clock: Optional[Clock] = None) -> None:
        self.rate = rate
        #: what one take should ask for, so that the flow is even and no server thinks that it has stalled
        self.block = int(max(1024, min(_BLOCK, rate / 8)))
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._free_at = self._clock.monotonic()

    def take(self, size: int) -> None:
        """Wait until so many bytes may be sent."""
        with self._lock:
            now = self._clock.monotonic()
            wait = self._free_at - now
            self._free_at = max(now, self._free_at) + size / self.rate
        if wait > 0:
            self._clock.sleep(wait)


class Http:
    """A client that any thread may use; connections go back to a pool and are used again.

    `tries` and `patience` (seconds) bound how long a request is repeated. `connect_s` and `read_s` are the
    time limits of one connection and of one silence. `bandwidth` limits uploads, in bytes a second. The system's
    proxies (HTTPS_PROXY, NO_PROXY, ...) are used; a proxy must speak plain HTTP.
    """

    def __init__(
        self,
        *,
        tries: int = 6,
        patience: float = 90.0,
        connect_s: float = 15.0,
        read_s: float = 60.0,
        bandwidth: Optional[float] = None,
        clock: Optional[Clock] = None,
        jitter: Callable[[], float] = random.random,
        context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self.tries = tries
        self.patience = patience
        self._clock = clock or SystemClock()
        self._connections = Connections(connect_s, read_s, self._clock, context)
        self._throttle = Throttle(bandwidth, self._clock) if bandwidth else None
        self._jitter = jitter

    @contextlib.contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """In this block a silence, and all tries of a request together, last no longer than that."""
        patience, limits = self.patience, self._connections.limits
        self.patience = min(patience, seconds)
        self._connections.limits = (min(limits[0], seconds), min(limits[1], seconds))
        try:
            yield
        finally:
            self.patience, self._connections.limits = patience, limits

    def close(self) -> None:
        """Close what is idle; the client may be used on."""
        self._connections.close()

    def request(
        self,
        method: str,
        url: str,
        headers: Union[Headers, Callable[[], Headers], None] = None,
        body: Body = b"",
        *,
        into: Optional[Sink] = None,
        ok: Container[int] = (200,),
        repeat: bool = False,
        again: Optional[Callable[[Reply], bool]] = None,
    ) -> Reply:
        """Send it until an expected status comes.

        `headers` may be a function: it is asked before each try (signatures and tokens age). A body that
        comes with an expected 2xx is streamed `into` a file, from its position on; a repeated answer begins
        there again, and what lies behind its end is the caller's. `repeat`: sending it twice does no harm.
        `again` judges answers besides: True means "later", also for an expected status.

        StoreGone: no connection, or no answer. Refused: another status than `ok`; it has the reply. StoreFull:
        status 507. StoreError: certificate or proxy. OSError: the local file.
        """
        parts = urlsplit(url)
        end = self._clock.monotonic() + self.patience
        at = into.tell() if into is not None else 0
        tried, sent, stale = 0, 0, False
        while True:
            tried, sent = tried + 1, sent + 1
            if into is not None:
                into.seek(at)
            wait = min(_LONGEST_S, _FIRST_S * 2 ** (tried - 1)) * (0.5 + self._jitter() / 2)
            given = headers() if callable(headers) else headers or {}
            try:
                reply = self._once(method, parts, given, body, into, ok)
            except Broken as broken:
                if broken.stale and repeat and not stale:
                    # the server closed what idled, as it may: that says nothing about how it is now
                    self.close()
                    tried, stale = tried - 1, True
                    continue
                may = repeat or not broken.sent
                failure: StoreError = StoreGone(
                    f"{parts.hostname} does not answer ({broken.reason})"
                )
            else:
                later = again is not None and again(reply)
                if reply.status in ok and not later:
                    return replace(reply, tries=sent)
                may = repeat and (later or reply.status in LATER)
                wait = max(wait, _retry_after(reply, self._clock.time()))
                failure = _refused(method, parts.hostname or "", replace(reply, tries=sent))
            if not may or tried >= self.tries or self._clock.monotonic() + wait > end:
                raise failure
            self._clock.sleep(wait)

    def _once(
        self,
        method: str,
        parts: SplitResult,
        headers: Headers,
        body: Body,
        into: Optional[Sink],
        ok: Container[int],
    ) -> Reply:
        with contextlib.ExitStack() as stack:
            source = None
            if isinstance(body, FileRange):
                source = stack.enter_context(open(body.path, "rb"))
                source.seek(body.start)
            connection, used = self._connections.take(parts)
            unless_kept = stack.enter_context(contextlib.ExitStack())
            unless_kept.callback(connection.close)
            try:
                response, reusable = self._send(connection, method, parts, headers, body, source)
            except (http.client.HTTPException, OSError) as error:
                stale = used and not isinstance(error, socket.timeout)
                raise Broken(error, sent=True, stale=stale) from error
            except _Local as error:
                raise error.error from None
            unless_kept.callback(response.close)
            told = {name.lower(): value for name, value in response.getheaders()}
            good = response.status in ok
            try:
                if into is not None and good and response.status < 300:
                    data = b""
                    _stream(response, into)
                else:
                    data = response.read() if good else response.read(_MOST_ERROR)
            except (http.client.HTTPException, OSError) as error:
                raise Broken(error, sent=True) from error
            except _Local as error:
                raise error.error from None
            if reusable and response.isclosed() and connection.sock is not None:
                unless_kept.pop_all()
                self._connections.keep(parts, connection)
            return Reply(response.status, told, data)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        parts: SplitResult,
        headers: Headers,
        body: Body,
        source: "Optional[IO[bytes]]",
    ) -> Tuple[http.client.HTTPResponse, bool]:
        """The answer's head, and whether the connection is good for another request after it."""
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        proxy = self._connections.proxy(parts)
        if proxy and parts.scheme == "http":
            target = f"{origin(parts)}{target}"
            headers = {**headers, **proxy_headers(proxy)}
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", parts.netloc.rpartition("@")[2])
        for name, value in headers.items():
            connection.putheader(name, value)
        size = body.size if isinstance(body, FileRange) else len(body)
        if size or method in ("PUT", "POST", "PATCH"):
            connection.putheader("Content-Length", str(size))
        connection.endheaders()
        try:
            if source is not None:
                self._send_file(connection, source, size)
            elif size:
                self._send_bytes(connection, body)
        except (BrokenPipeError, ConnectionResetError) as error:
            # a server that refuses need not read the body; its answer may be here already
            try:
                return connection.getresponse(), False
            except (http.client.HTTPException, OSError):
                raise error from None
        return connection.getresponse(), True

    def _send_bytes(self, connection: http.client.HTTPConnection, body: Any) -> None:
        if self._throttle is None:
            connection.send(body)
            return
        view = memoryview(body)
        for start in range(0, len(view), self._throttle.block):
            block = view[start : start + self._throttle.block]
            self._throttle.take(len(block))
            connection.send(block)

    def _send_file(
        self, connection: http.client.HTTPConnection, source: "IO[bytes]", size: int
    ) -> None:
        left = size
        if self._throttle is None and type(connection.sock) is socket.socket:
            # the kernel copies: half the processor time of read and send
            left -= connection.sock.sendfile(source, source.tell(), size)
        block = bytearray(min(left, self._throttle.block if self._throttle else _BLOCK))
        while left:
            view = memoryview(block)[:left]
            count = _locally(source.readinto, view)  # type: ignore[attr-defined]
            if not count:
                break
            if self._throttle:
                self._throttle.take(count)
            connection.send(view[:count])
            left -= count
        if left:
            raise _Local(OSError(f"{source.name} became shorter while it was sent"))


class _Local(Exception):  # noqa: N818
    """Trouble with the local file, so that it is not taken for the connection's."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error


def _locally(call: Callable[[Any], Any], data: Any) -> Any:
    try:
        return call(data)
    except OSError as error:
        raise _Local(error) from error


def _stream(response: http.client.HTTPResponse, into: Sink) -> None:
    """The whole body into the file; http.client tells nobody when a body ends too early."""
    expected, got = response.length, 0
    block = memoryview(bytearray(_BLOCK))
    while True:
        count = response.readinto(block)
        if not count:
            break
        _locally(into.write, block[:count])
        got += count
    if expected is not None and got < expected:
        raise http.client.IncompleteRead(b"", expected - got)


def _refused(method: str, host: str, reply: Reply) -> StoreError:
    if reply.status == 507:
        return StoreFull(f"{host} has no space left (507)")
    if 300 <= reply.status < 400:
        there = urlsplit(reply.headers.get("location", "")).hostname or "elsewhere"
        return Refused(f"{host} sends {method} on to {there}, which is not followed", reply)
    return Refused(f"{host} answered {reply.status} to {method}", reply)


def _retry_after(reply: Reply, now: float) -> float:
    """Seconds that the server asks us to wait; a number or a date (RFC 9110, 10.2.3)."""
    value = reply.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    if value:
        from email.utils import parsedate_to_datetime

        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    return 0.0

"""Connections of the stores' HTTP client: made directly or by the system's proxy, kept for the next request."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.request
from base64 import b64encode
from typing import Dict, List, Optional, Tuple
from urllib.parse import SplitResult, unquote, urlsplit

from freegpu.agent.clock import Clock
from freegpu.agent.stores.base import StoreError

#: servers close what idles for a minute or so; a connection older than this is not used again, seconds
_IDLE_S = 45.0
_IDLE_MOST = 16


class Broken(Exception):  # noqa: N818 - reads as what happened
    """The connection failed. `sent`: the server may have got the request; `stale`: it had been used before."""

    def __init__(self, error: Exception, *, sent: bool, stale: bool = False) -> None:
        super().__init__()
        self.reason = _reason(error)
        self.sent, self.stale = sent, stale


class Connections:
    """A pool that any thread may use. `connect_s` and `read_s` are time limits, in seconds."""

    def __init__(
        self, connect_s: float, read_s: float, clock: Clock, context: Optional[ssl.SSLContext]
    ) -> None:
        #: time limits of dialling and of one silence, seconds
        self.limits = (connect_s, read_s)
        self._clock = clock
        self._context = context
        self._lock = threading.Lock()
        self._idle: Dict[str, List[Tuple[float, http.client.HTTPConnection]]] = {}
        self._proxies: Dict[str, Optional[SplitResult]] = {}

    def close(self) -> None:
        """Close what is idle; new ones may be made."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for kept in idle.values():
            for _, connection in kept:
                connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    def keep(self, parts: SplitResult, connection: http.client.HTTPConnection) -> None:
        """For the next request to the same server."""
        with self._lock:
            kept = self._idle.setdefault(origin(parts), [])
            kept.append((self._clock.monotonic(), connection))
            spare = kept.pop(0)[1] if len(kept) > _IDLE_MOST else None
        if spare:
            spare.close()

    def take(self, parts: SplitResult) -> Tuple[http.client.HTTPConnection, bool]:
        """A connection to the server, and whether it was used before."""
        while True:
            with self._lock:
                kept = self._idle.get(origin(parts))
                since, connection = kept.pop() if kept else (0.0, None)
            if connection is None:
                return self._connect(parts), False
            if self._clock.monotonic() - since < _IDLE_S and _is_open(connection.sock):
                connection.sock.settimeout(self.limits[1])
                return connection, True
            connection.close()

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        proxy, secure = self.proxy(parts), parts.scheme == "https"
        near = proxy or parts
        port = near.port or (443 if near.scheme == "https" else 80)
        connection: http.client.HTTPConnection
        if secure:
            with self._lock:
                if self._context is None:
                    self._context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                near.hostname or "", port, timeout=self.limits[0], context=self._context
            )
            if proxy:
                connection.set_tunnel(
                    parts.hostname or "", parts.port or 443, headers=proxy_headers(proxy)
                )
        else:
            connection = http.client.HTTPConnection(
                near.hostname or "", port, timeout=self.limits[0]
            )
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            connection.close()
            failure = StoreError(
                f"the certificate of {parts.hostname} is not trusted ({error.verify_message})"
            )
            failure.transient = False
            raise failure from None
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise Broken(error, sent=False) from error
        connection.sock.settimeout(self.limits[1])
        return connection

    def proxy(self, parts: SplitResult) -> Optional[SplitResult]:
        """The system's proxy for this server; None: there is none. StoreError: one that cannot be used."""
        server = origin(parts)
        if server not in self._proxies:
            found = urllib.request.getproxies()
            url = found.get(parts.scheme) or found.get("all") or ""
            if not url or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
                self._proxies[server] = None
            else:
                proxy = urlsplit(url if "://" in url else f"http://{url}")
                if proxy.scheme != "http":
                    message = (
                        f"the proxy for {parts.scheme} is set to a {proxy.scheme} address; "
                        "only http proxies can be used here"
                    )
                    failure = StoreError(message)
                    failure.transient = False
                    raise failure
                self._proxies[server] = proxy
        return self._proxies[server]


def _is_open(sock: socket.socket) -> bool:
    """Whether a kept connection is silent, as it should be: not closed, and nothing unasked in it."""
    try:
        sock.settimeout(0)
        # the plain socket's own call: a TLS socket takes no flags
        socket.socket.recv(sock, 1, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return True
    except (OSError, ValueError):
        return False
    return False


def origin(parts: SplitResult) -> str:
    """Scheme, host and port of a URL, without any password in it."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def proxy_headers(proxy: SplitResult) -> Dict[str, str]:
    """What the proxy itself wants to know."""
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + b64encode(pair.encode()).decode()}


def _reason(error: Exception) -> str:
    """Why a connection failed, in words that hold nothing of the request."""
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(error, socket.timeout):
        return "timed out"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "the connection was cut"

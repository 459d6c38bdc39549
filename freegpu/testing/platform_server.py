"""The base of loopback platforms: an HTTP server that speaks a platform's wire format and really runs what is started.

A subclass answers operations; here are the socket, the record of what came, the clock, and the switches for what goes
wrong, the same for every platform. `faults.json` in the server's folder holds them, so that any process may switch.
Run one by itself with `python -m freegpu.testing.NAME_server FOLDER [--port N]`; its address is in FOLDER/url.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl, urlsplit

from freegpu.adapters.hosts import write_private
from freegpu.errors import ConfigError
from freegpu.testing.machines import Machines

__all__ = ["FAULTS", "Heard", "PlatformServer", "Reply", "main", "set_faults"]

#: switches of faults.json, and what they do. A value is the switch's own, or {"value": v, "only": [operations],
#: "times": n}. Those marked with * hit the operations that start sessions unless `only` says otherwise.
FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "fail": "the answer is this HTTP status, and nothing is done",
        "throttle_s": "* 429 with Retry-After of so many seconds",
        "accept_then_5xx": "* it is done, and the answer is 502",
        "accept_then_cut": "* it is done, and the connection is closed without an answer",
        "hang_s": "nothing comes for so many seconds, then the connection is closed",
        "expired_token": "401: the token has expired",
        "skew_s": "the platform's clock is ahead by so many seconds",
        "refuse_quota": "a start is refused: the quota is used up",
        "refuse_sessions": "a start is refused: too many sessions run already",
        "refuse_capacity": "a start is refused: no such card is free",
        "unknown_word": "a session's state is this word, which nobody knows",
        "lies_running": "a session is said to run, also when it has ended",
        "truncate_output": "so many bytes of each output file come, and then the end",
        "wrong_card": "this card comes instead of the one asked for, as its driver names it",
    }
)
_ON_START = frozenset({"throttle_s", "accept_then_5xx", "accept_then_cut"})
#: bytes of a request's body that the record keeps
_KEPT = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """One request, as it came."""

    method: str
    path: str
    query: Mapping[str, str]
    #: lower-case names
    headers: Mapping[str, str]
    body: bytes
    #: what the platform calls it; the subclass names it
    operation: str = ""

    @property
    def json(self) -> Any:
        """The body as JSON; {} if it is empty or none."""
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            return {}


@dataclass(kw_only=True, slots=True)
class Reply:
    """An answer; `json` goes before `body`."""

    status: int = 200
    json: Any = None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    #: close the connection without a word, or after so many bytes of the body
    cut_after: int | None = None


class PlatformServer:
    """See the module. Use it as a context; `url` is its address."""

    #: operations that start a session
    starts: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, folder: Path, *, port: int = 0) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.machines = Machines(folder / "machines")
        #: held while a request is carried out
        self.lock = threading.RLock()
        #: everything that came, oldest first; also in requests.jsonl, for other processes
        self.requests: list[Heard] = []
        self._used: dict[str, int] = {}
        self._stamp = 0
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _Exchange)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self._http.platform = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    # --- what a subclass says ---------------------------------------------------------------------------

    def operation(self, heard: Heard) -> str:
        """What the platform calls this request; "" for one that it does not know."""
        raise NotImplementedError

    def answer(self, heard: Heard) -> Reply:
        """Carry it out. Called with `lock` held unless `unlocked` names the operation."""
        raise NotImplementedError

    def error(self, status: int, message: str) -> Reply:
        """An error in the platform's own shape."""
        return Reply(status=status, json={"code": status, "message": message})

    #: operations that may take long (streams): carried out without the lock
    unlocked: ClassVar[frozenset[str]] = frozenset()

    # --- life -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)
        self.machines.close()

    def now(self) -> float:
        """The platform's clock, epoch seconds."""
        return time.time() + float(self.fault("skew_s") or 0.0)

    # --- faults -----------------------------------------------------------------------------------------

    def set_faults(self, **faults: Any) -> None:
        """Switch faults; False or None switches one off. ConfigError: there is no such switch."""
        set_faults(self.folder, **faults)

    def fault(self, name: str, operation: str = "") -> Any:
        """The value of a switch for this operation, None if it is off; counts down its `times`."""
        given = self._faults().get(name)
        if not isinstance(given, dict):
            hits = name not in _ON_START or not operation or operation in self.starts
            return (given or None) if hits else None
        only = given.get("only") or (self.starts if name in _ON_START else ())
        if only and operation not in only:
            return None
        times = given.get("times")
        with self.lock:
            if times is not None and self._used.get(name, 0) >= int(times):
                return None
            self._used[name] = self._used.get(name, 0) + 1
        return given.get("value", True)

    def _faults(self) -> dict[str, Any]:
        path = self.folder / "faults.json"
        try:
            stamp, told = path.stat().st_mtime_ns, json.loads(path.read_bytes())
        except (OSError, ValueError):
            return {}
        if stamp != self._stamp:
            self._stamp = stamp
            self._used.clear()
        return dict(told)

    # --- one request ------------------------------------------------------------------------------------

    def hear(self, heard: Heard) -> Reply:
        """Record it, let the faults that are on have their say, and answer."""
        with self.lock:
            self.requests.append(heard)
            self._write_down(heard)
        name = heard.operation
        if (hang := self.fault("hang_s", name)) is not None:
            time.sleep(float(hang))
            return Reply(cut_after=0)
        if self.fault("expired_token", name):
            return self.error(401, "Unauthenticated: the token has expired")
        if (status := self.fault("fail", name)) is not None:
            return self.error(int(status), "the platform has a problem")
        if (wait := self.fault("throttle_s", name)) is not None:
            reply = self.error(429, "Too many requests")
            reply.headers["Retry-After"] = str(int(wait))
            return reply
        if name in self.unlocked:
            reply = self.answer(heard)
        else:
            with self.lock:
                reply = self.answer(heard)
        if reply.status < 400 and self.fault("accept_then_cut", name):
            return Reply(cut_after=0)
        if reply.status < 400 and self.fault("accept_then_5xx", name):
            return self.error(502, "Bad Gateway")
        return reply

    def _write_down(self, heard: Heard) -> None:
        line = {
            "at": time.time(),
            "operation": heard.operation,
            "method": heard.method,
            "path": heard.path,
            "query": dict(heard.query),
            "headers": dict(heard.headers),
            "body": heard.body[:_KEPT].decode("latin-1"),
        }
        with (self.folder / "requests.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


class _Exchange(BaseHTTPRequestHandler):
    """One connection: bytes to `Heard`, `Reply` to bytes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "freegpu-loopback"

    def do_GET(self) -> None:
        platform: PlatformServer = self.server.platform  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        heard = Heard(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self._read(),
        )
        named = Heard(
            method=heard.method,
            path=heard.path,
            query=heard.query,
            headers=heard.headers,
            body=heard.body,
            operation=platform.operation(heard),
        )
        try:
            self._send(platform, platform.hear(named))
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names that http.server asks for

    def _read(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, platform: PlatformServer, reply: Reply) -> None:
        if reply.cut_after == 0:
            self.close_connection = True
            return
        body = reply.body if reply.json is None else json.dumps(reply.json).encode()
        self.send_response_only(reply.status)
        headers = {"Date": formatdate(platform.now(), usegmt=True), **reply.headers}
        if reply.json is not None:
            headers.setdefault("Content-Type", "application/json")
        headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if reply.cut_after is None else body[: reply.cut_after])
        self.close_connection = self.close_connection or reply.cut_after is not None

    def log_message(self, *_: object) -> None:
        """Silent: `requests` tells it."""


def set_faults(folder: Path, **faults: Any) -> None:
    """Switch faults of the platform whose folder this is; False or None switches one off. ConfigError: no such switch."""
    for name in sorted(set(faults) - set(FAULTS)):
        raise ConfigError(f"no fault is called {name!r}", hint=", ".join(FAULTS))
    path = folder / "faults.json"
    try:
        before = json.loads(path.read_bytes())
    except (OSError, ValueError):
        before = {}
    hidden = folder / f".faults-{os.getpid()}"
    hidden.write_text(json.dumps({k: v for k, v in {**before, **faults}.items() if v}))
    os.replace(hidden, path)


def main(kind: type[PlatformServer], arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted; the address is written into the folder's file `url` when it answers."""
    parser = argparse.ArgumentParser(description=kind.__doc__)
    parser.add_argument("folder", type=Path, help="where the platform keeps its state")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args(arguments)
    with kind(given.folder, port=given.port) as server:
        write_private(given.folder / "url", server.url.encode())
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 130
    return 0

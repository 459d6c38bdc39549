"""A gate in front of a real HTTP server: it can be shut, and it can spoil single requests and answers.

It reads a request, asks the rules what becomes of it, and passes it on unchanged otherwise, so that signatures over
Host stay right as long as the client signs the gate's own address.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedIOBase

_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass(frozen=True)
class Asked:
    """A request that came to the gate."""

    method: str
    target: str
    head: str = field(repr=False)
    size: int

    def header(self, name: str) -> str | None:
        """The header's value."""
        found = re.search(rf"^{name}:\s*(.*?)\s*$", self.head, re.IGNORECASE | re.MULTILINE)
        return found.group(1) if found else None


@dataclass(frozen=True)
class Fault:
    """What becomes of a request instead of what should."""

    #: answer so, and do not ask the server
    answer: bytes | None = None
    #: cut the connections when so many bytes of the request's body were passed on
    cut_request: int | None = None
    #: let the server do it, then cut when so many bytes of the answer's body were passed back
    cut_answer: int | None = None
    #: let the server do it, then cut before any of its answer
    lose_answer: bool = False
    #: run this before the request is passed on
    before: Callable[[], object] | None = None


def answer(status: int, code: str = "", headers: str = "", *, body: bytes | None = None) -> bytes:
    """A canned answer with an S3 error in it."""
    if body is None:
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b""
    head = f"HTTP/1.1 {status} Because\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


class Gate:
    """Listens on `port` from the start until `close`; `shut` and `reopen` in between."""

    def __init__(self, behind: int, rule: Callable[[Asked], Fault | None] | None = None) -> None:
        self.behind = behind
        self.rule = rule
        self.asked: list[Asked] = []
        #: a header that no answer has here, in lower case
        self.hide = ""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.port = 0
        self.reopen()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def once(self, matches: Callable[[Asked], bool], *faults: Fault) -> None:
        """Spoil the first requests that match, one fault each."""
        left = list(faults)

        def rule(asked: Asked) -> Fault | None:
            with self._lock:
                return left.pop(0) if left and matches(asked) else None

        self.rule = rule

    def reopen(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        """Refuse connections, and cut those that are open."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The end of it."""
        self.shut()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.behind)) as server:
            with self._lock:
                self._open |= {client, server}
            try:
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                reader: BufferedIOBase = client.makefile("rb")
                while self._pass(client, reader, server):
                    pass
            except (OSError, http.client.HTTPException, ValueError):
                return  # one of the two has gone, and takes the other with it
            finally:
                with self._lock:
                    self._open -= {client, server}

    def _pass(self, client: socket.socket, reader: BufferedIOBase, server: socket.socket) -> bool:
        lines = []
        for line in iter(reader.readline, b"\r\n"):
            if not line:
                return False
            lines.append(line)
        head = b"".join(lines)
        text = head.decode("latin-1")
        method, target, _ = text.split(" ", 2)
        found = re.search(r"^content-length:\s*(\d+)", text, re.IGNORECASE | re.MULTILINE)
        asked = Asked(method, target, text, int(found.group(1)) if found else 0)
        with self._lock:
            self.asked.append(asked)
        fault = (self.rule(asked) if self.rule else None) or Fault()
        if fault.before:
            fault.before()
        if fault.answer is not None:
            _discard(reader, asked.size)
            client.sendall(fault.answer)
            return True
        server.sendall(head + b"\r\n")
        left = asked.size if fault.cut_request is None else min(asked.size, fault.cut_request)
        while left:
            data = reader.read(min(left, 1 << 18))
            if not data:
                return False
            server.sendall(data)
            left -= len(data)
        if fault.cut_request is not None:
            _reset(client)
            return False
        response = http.client.HTTPResponse(server, method=method)
        response.begin()
        body = response.read()
        if fault.lose_answer:
            _reset(client)
            return False
        kept = [
            (name, value)
            for name, value in response.getheaders()
            if name.lower() not in (*_HOP, self.hide)
        ]
        length = response.getheader("content-length") if method == "HEAD" else str(len(body))
        if length is not None and response.status not in (204, 304):
            kept.append(("Content-Length", length))
        start = f"HTTP/1.1 {response.status} {response.reason}\r\n"
        start += "".join(f"{name}: {value}\r\n" for name, value in kept) + "\r\n"
        client.sendall(start.encode("latin-1") + body[: fault.cut_answer])
        if fault.cut_answer is not None:
            _reset(client)
            return False
        return not response.will_close


def _discard(reader: BufferedIOBase, size: int) -> None:
    while size:
        size -= len(reader.read(min(size, 1 << 18))) or size


def _reset(sock: socket.socket) -> None:
    """Cut it as a broken network does, without a proper end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()

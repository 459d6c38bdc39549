"""Big files over SFTP at the speed of the line: large requests, several on their way, a bounded number of them.

paramiko's own ways are each slow or unbounded somewhere: `prefetch` with a limit sleeps 10 ms a round (5 MB/s), without
one it asks for the whole file at once; pipelined writes wait for every answer as soon as one has come. (paramiko 5.1,
sftp_file.py; measured by benchmarks/ssh_transfer.py.) Knows no store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["LARGE", "SMALL", "Pipe", "limits", "send_all"]

_READ, _WRITE, _DATA = 5, 6, 103
#: what every SFTP server takes in one request (draft-ietf-secsh-filexfer-02, section 3), bytes
SMALL = 32768
#: OpenSSH takes 256 KiB less the head of a packet; it tells so (its file PROTOCOL, limits@openssh.com)
LARGE = 261120
#: bytes on their way: paramiko's window, and no more than a server must keep
_AHEAD = 2 << 20


class Pipe:
    """One SFTP channel; `limits`: the largest read and write that its server takes, bytes."""

    def __init__(self, client: Any, limits: tuple[int, int] = (SMALL, SMALL)) -> None:
        self.client = client
        self.reads, self.writes = limits

    def read(self, file: Any, start: int, size: int, take: Callable[[bytes], object]) -> None:
        """Give these bytes of an open file to `take`, in order; a file that ends early ends it."""
        wanted = deque(
            (at, min(self.reads, start + size - at))
            for at in range(start, start + size, self.reads)
        )
        answers = _Answers(self.client)
        under_way: deque[tuple[int, int, int]] = deque()
        most = max(2, _AHEAD // self.reads)
        try:
            while wanted or under_way:
                while wanted and len(under_way) < most:
                    at, size = wanted.popleft()
                    number = answers.ask(_READ, file.handle, at, size)
                    under_way.append((number, at, size))
                number, at, size = under_way.popleft()
                data = answers.data(number)
                while data and len(data) < size:
                    # a server may give less than was asked for
                    take(data)
                    at, size = at + len(data), size - len(data)
                    data = answers.data(answers.ask(_READ, file.handle, at, size))
                if not data:
                    return
                take(data)
        finally:
            answers.drain()

    def write(self, file: Any, blocks: Iterable[bytes], told: Callable[[int], object]) -> None:
        """Write the blocks one after another into an open file; `told` hears how many bytes were sent so far."""
        answers = _Answers(self.client)
        under_way: deque[int] = deque()
        most = max(2, _AHEAD // self.writes)
        at = 0
        try:
            for block in blocks:
                for start in range(0, len(block), self.writes):
                    part = block[start : start + self.writes]
                    while len(under_way) >= most:
                        answers.status(under_way.popleft())
                    under_way.append(answers.ask(_WRITE, file.handle, at, part))
                    at += len(part)
                told(at)
            while under_way:
                answers.status(under_way.popleft())
        finally:
            answers.drain()


class _Answers:
    """Requests, and answers as they come, in whatever order; none is left behind for who uses the channel next.

    It speaks the wire format itself (draft-ietf-secsh-filexfer-02, section 3): paramiko copies a packet once for each
    32 KiB that it sends, and moves all that has arrived at each of its many small reads.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._channel = client.get_channel()
        self._open: set[int] = set()
        self._come: dict[int, tuple[int, bytes]] = {}
        self._rest = bytearray()

    def ask(self, kind: int, handle: bytes, at: int, *words: int | bytes) -> int:
        client = self._client
        with client._lock:
            number: int = client.request_number
            client.request_number += 1
        body = b"".join(
            [
                kind.to_bytes(1, "big"),
                number.to_bytes(4, "big"),
                len(handle).to_bytes(4, "big"),
                handle,
                at.to_bytes(8, "big"),
                *(
                    word.to_bytes(4, "big")
                    if isinstance(word, int)
                    else len(word).to_bytes(4, "big") + word
                    for word in words
                ),
            ]
        )
        self._open.add(number)
        send_all(self._channel, len(body).to_bytes(4, "big") + body)
        return number

    def _wait(self, number: int) -> tuple[int, bytes]:
        while number not in self._come:
            self._take()
        return self._come.pop(number)

    def _take(self) -> None:
        """Whatever has come."""
        data = self._channel.recv(_AHEAD)
        if not data:
            raise EOFError("the channel was closed")
        self._rest += data
        at = 0
        with memoryview(self._rest) as view:
            while len(view) - at >= 4:
                size = int.from_bytes(view[at : at + 4], "big")
                if len(view) - at - 4 < size:
                    break
                kind, number = view[at + 4], int.from_bytes(view[at + 5 : at + 9], "big")
                # in data the four bytes of its length come first, which the packet's own makes known
                body = bytes(view[at + (13 if kind == _DATA else 9) : at + 4 + size])
                at += 4 + size
                if number in self._open:
                    self._open.discard(number)
                    self._come[number] = (kind, body)
        del self._rest[:at]

    def data(self, number: int) -> bytes:
        """What was read; empty at the end of the file. OSError."""
        kind, body = self._wait(number)
        if kind == _DATA:
            return body
        try:
            self._convert(body)
        except EOFError:
            return b""
        raise OSError("the server answers a read with nothing")

    def status(self, number: int) -> None:
        """It was done. OSError: it was not."""
        self._convert(self._wait(number)[1])

    def _convert(self, body: bytes) -> None:
        import paramiko

        self._client._convert_status(paramiko.Message(body))

    def drain(self) -> None:
        """Take the answers that nobody waits for any more; a channel that broke gives none."""
        import paramiko

        try:
            while self._open:
                self._take()
        except (OSError, EOFError, paramiko.SSHException):
            self._open.clear()


def send_all(channel: Any, data: bytes) -> None:
    """Send everything, a packet at a time; paramiko's sendall copies what is left for each of them."""
    with memoryview(data) as view:
        at = 0
        while at < len(view):
            sent = channel.send(bytes(view[at : at + SMALL]))
            if not sent:
                raise EOFError("the channel was closed")
            at += sent


def limits(client: Any) -> tuple[int, int]:
    """The largest read and write that this server takes, bytes; it is asked."""
    import paramiko

    try:
        _, told = client._request(paramiko.sftp.CMD_EXTENDED, "limits@openssh.com")
    except OSError:
        return SMALL, SMALL
    _, reads, writes, _ = (told.get_int64() for _ in range(4))
    return max(SMALL, min(LARGE, reads)), max(SMALL, min(LARGE, writes))

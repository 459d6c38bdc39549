"""The stores' HTTP client against a raw server on the loopback that does what its script says."""

from __future__ import annotations

import contextlib
import datetime
import io
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from freegpu.agent.stores.base import StoreError, StoreFull, StoreGone
from freegpu.agent.stores.http import FileRange, Http, Refused, Throttle
from freegpu.testing.clock import ManualClock

#: what never may be in an error's text
SECRET = "hunter2-signature"
HEADERS = {"Authorization": f"Bearer {SECRET}"}

#: what becomes of one request: bytes are sent back; None: the connection is cut without an answer
Step = bytes | None | Callable[[socket.socket], object]


def reply(status: int = 200, body: bytes = b"", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Script:
    """Answers one request after the other by its steps; `seen` has (connection, head, body)."""

    def __init__(self, *steps: Step, context: ssl.SSLContext | None = None) -> None:
        self.steps = list(steps)
        self.seen: list[tuple[int, str, bytes]] = []
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def talks(self) -> list[threading.Thread]:
        """What serves the connections, one each."""
        return self._threads[1:]

    @property
    def url(self) -> str:
        scheme = "https" if self._context else "http"
        return f"{scheme}://127.0.0.1:{self.port}/bucket/key?X-Amz-Signature={SECRET}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock, len(self._open)))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(sock.close)
            if self._context:
                sock = stack.enter_context(self._context.wrap_socket(sock, server_side=True))
            reader = stack.enter_context(sock.makefile("rb"))
            while self.steps:
                head = (
                    "".join(iter(lambda: reader.readline().decode(), "\r\n"))
                    if reader.peek(1)
                    else ""
                )
                if not head:
                    return
                step = self.steps.pop(0)
                size = next(
                    (
                        int(line.split(":")[1])
                        for line in head.splitlines()
                        if line.lower().startswith("content-length")
                    ),
                    0,
                )
                if callable(step):
                    self.seen.append((number, head, b""))
                    step(sock)
                    return
                self.seen.append((number, head, reader.read(size)))
                if step is None:
                    reset(sock)
                    return
                sock.sendall(step)


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    made: list[Script] = []

    def make(*steps: Step, context: ssl.SSLContext | None = None) -> Script:
        made.append(Script(*steps, context=context))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def http(clock: ManualClock) -> Iterator[Http]:
    client = Http(clock=clock, jitter=lambda: 1.0, read_s=5)
    yield client
    client.close()


Make = Callable[..., Script]


# --- repeating ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_busy_then_ok_is_ok(http: Http, clock: ManualClock, script: Make, status: int) -> None:
    """Waits double from half a second on; the answer tells how often it was asked for."""
    server = script(reply(status), reply(status), reply(status), reply(200, b"yes"))
    got = http.request("GET", server.url, repeat=True)
    assert (got.status, got.body, got.tries) == (200, b"yes", 4)
    assert clock.slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("status", [400, 403, 404, 412, 501])
def test_a_refusal_is_not_repeated(http: Http, script: Make, status: int) -> None:
    """It comes out with its reply at once, and is not transient."""
    server = script(reply(status, b"<why/>"))
    with pytest.raises(Refused) as caught:
        http.request("GET", server.url, repeat=True)
    assert caught.value.reply.status == status
    assert caught.value.reply.body == b"<why/>"
    assert not caught.value.transient
    assert len(server.seen) == 1


def test_what_may_not_be_repeated_is_sent_once(http: Http, script: Make) -> None:
    """Neither after a busy answer nor after a cut: nobody knows whether it was done."""
    server = script(reply(503), None, reply())
    with pytest.raises(Refused) as caught:
        http.request("POST", server.url, body=b"x")
    assert caught.value.transient
    with pytest.raises(StoreGone):
        http.request("POST", server.url, body=b"x")
    assert len(server.seen) == 2


def test_a_connection_that_was_never_made_is_tried_again_always(
    http: Http, clock: ManualClock, script: Make
) -> None:
    """Nothing was sent, so nothing can have been done; and it ends after the tries."""
    server = script()
    server.close()
    with pytest.raises(StoreGone, match=r"^127\.0\.0\.1 does not answer \(Connection refused\)$"):
        http.request("POST", server.url, body=b"x")
    assert clock.slept == [0.5, 1.0, 2.0, 4.0, 8.0]


def test_the_waits_are_jittered_and_end_with_the_patience(clock: ManualClock, script: Make) -> None:
    """Half of the wait is by chance, no wait is longer than 20 s, and the patience is never passed."""
    server = script(*[reply(503)] * 60)
    lots = random.Random(1)
    http = Http(clock=clock, tries=50, patience=100, jitter=lots.random)
    with pytest.raises(Refused):
        http.request("GET", server.url, repeat=True)
    assert len(set(clock.slept)) == len(clock.slept)
    for number, wait in enumerate(clock.slept):
        longest = min(20.0, 0.5 * 2**number)
        assert longest / 2 <= wait <= longest
    assert 80 <= sum(clock.slept) <= 100
    http.close()


def test_retry_after_is_obeyed_in_both_forms_or_given_up(
    http: Http, clock: ManualClock, script: Make
) -> None:
    """Seconds or a date; what is longer than the patience is not waited for; nonsense is ignored."""
    date = formatdate(clock.time() + 33, usegmt=True)
    server = script(
        reply(429, headers="Retry-After: 17\r\n"),
        reply(503, headers=f"Retry-After: {date}\r\n"),
        reply(),
    )
    http.request("GET", server.url, repeat=True)
    assert clock.slept[0] == 17.0
    assert clock.slept[1] == pytest.approx(33 - 17, abs=1.1)
    clock.slept.clear()
    server = script(reply(503, headers="Retry-After: 3600\r\n"))
    with pytest.raises(Refused):
        http.request("GET", server.url, repeat=True)
    assert clock.slept == []
    server = script(reply(503, headers="Retry-After: soon\r\n"), reply())
    http.request("GET", server.url, repeat=True)
    assert clock.slept == [0.5]


def test_headers_are_asked_for_anew_before_each_try(http: Http, script: Make) -> None:
    """Signatures and tokens age while one waits."""
    server = script(reply(503), reply())
    turns = iter(range(9))
    http.request("GET", server.url, lambda: {"X-Turn": str(next(turns))}, repeat=True)
    assert ["X-Turn: 0" in server.seen[0][1], "X-Turn: 1" in server.seen[1][1]] == [True, True]


def test_the_caller_may_see_a_later_where_the_status_says_ok(http: Http, script: Make) -> None:
    """As S3 does: 200 with an error in it."""
    server = script(reply(200, b"<Error>"), reply(200, b"<Ok>"))
    got = http.request("GET", server.url, repeat=True, again=lambda r: b"<Error>" in r.body)
    assert (got.body, got.tries) == (b"<Ok>", 2)


# --- connections ----------------------------------------------------------------------------------------


def test_one_connection_serves_many_requests(http: Http, script: Make) -> None:
    """Also after refusals, empty answers and HEAD."""
    server = script(
        reply(), reply(404, b"no"), reply(204), reply(200), reply(200, b"x" * 100_000), reply()
    )
    http.request("GET", server.url)
    http.request("GET", server.url, ok=(404,))
    http.request("DELETE", server.url, ok=(204,))
    http.request("HEAD", server.url)
    http.request("PUT", server.url, body=b"y" * 1000)
    http.request("GET", server.url)
    assert {number for number, _, _ in server.seen} == {1}


def test_a_kept_connection_that_the_server_closed_costs_nothing(
    http: Http, clock: ManualClock, script: Make
) -> None:
    """Closed while idle: found out before anything is sent, also for what may not be repeated."""

    def say_and_close(sock: socket.socket) -> None:
        sock.sendall(reply())

    server = script(say_and_close, say_and_close, reply())
    for _ in range(3):
        http.request("POST", server.url)
        # the last connection stays open; threads of other tests are none of our business
        for thread in server.talks[:2]:
            thread.join(5)
    assert [number for number, _, _ in server.seen] == [1, 2, 3]
    assert clock.slept == []


def test_a_kept_connection_that_dies_under_a_request_is_replaced_at_once(
    http: Http, clock: ManualClock, script: Make
) -> None:
    """The race that keep-alive has; it counts as sent, so the caller knows that there may be two."""
    server = script(reply(), None, reply(200, b"2"))
    http.request("GET", server.url, repeat=True)
    got = http.request("PUT", server.url, body=b"x", repeat=True)
    assert (got.body, got.tries) == (b"2", 2)
    assert clock.slept == []


def test_a_server_that_says_nothing_is_given_up(clock: ManualClock, script: Make) -> None:
    """After the time limit of one silence, for each try."""
    over = threading.Event()
    server = script(*[lambda sock: bool(over.wait(10))] * 2)
    http = Http(clock=clock, tries=2, read_s=0.05)
    with pytest.raises(StoreGone, match="timed out"):
        http.request("GET", server.url, repeat=True)
    over.set()
    http.close()


# --- bodies ---------------------------------------------------------------------------------------------


def test_a_range_of_a_file_is_sent_as_it_is(http: Http, script: Make, tmp_path: Path) -> None:
    """Also again after a cut; a file that became shorter is an OSError, not a network's trouble."""
    data = random.Random(1).randbytes(1_000_000)
    (tmp_path / "f").write_bytes(data)
    server = script(None, reply(), reply())
    http.request("PUT", server.url, body=FileRange(tmp_path / "f", 1000, 900_000), repeat=True)
    assert [body for _, _, body in server.seen] == [data[1000:901_000]] * 2
    with pytest.raises(OSError, match="became shorter"):
        http.request(
            "PUT", server.url, body=FileRange(tmp_path / "f", 1000, 1_000_000), repeat=True
        )


@pytest.mark.parametrize("cut", [0, 1, 300_000, 599_999])
def test_a_download_that_was_cut_begins_again_where_it_began(
    http: Http, script: Make, cut: int
) -> None:
    """In a file that had something before; no byte twice, none missing."""
    data = random.Random(2).randbytes(600_000)
    whole = reply(200, data)

    def half(sock: socket.socket) -> None:
        sock.sendall(whole[: len(whole) - len(data) + cut])

    server = script(half, half, whole)
    into = io.BytesIO(b"before")
    into.seek(6)
    got = http.request("GET", server.url, into=into, repeat=True)
    assert (got.body, got.tries) == (b"", 3)
    assert into.getvalue() == b"before" + data


def test_an_error_s_body_is_not_written_into_the_file(http: Http, script: Make) -> None:
    """Nor is one that is expected but no success."""
    server = script(reply(500, b"oops"), reply(416, b"range"), reply(200, b"good"))
    into = io.BytesIO()
    assert http.request("GET", server.url, into=into, ok=(200, 416), repeat=True).body == b"range"
    assert into.getvalue() == b""
    http.request("GET", server.url, into=into)
    assert into.getvalue() == b"good"


def test_trouble_with_the_local_file_is_told_as_such(http: Http, script: Make) -> None:
    """A full disk is not a broken connection: nothing is repeated."""

    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    server = script(reply(200, b"data"), reply(200, b"data"))
    with pytest.raises(OSError, match="No space left"):
        http.request("GET", server.url, into=Full(), repeat=True)
    assert len(server.seen) == 1


def test_a_server_that_refuses_before_it_has_read_all_is_heard(
    http: Http, script: Make, tmp_path: Path
) -> None:
    """It answers and closes while we still send; the answer counts, not the broken pipe."""
    (tmp_path / "f").write_bytes(bytes(30 << 20))

    def refuse(sock: socket.socket) -> None:
        sock.sendall(reply(403, b"<Error/>", "Connection: close\r\n"))
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(5)
        with contextlib.suppress(OSError):
            for _ in range(8):
                sock.recv(1 << 16)

    server = script(refuse)
    with pytest.raises((Refused, StoreGone)) as caught:
        http.request("PUT", server.url, body=FileRange(tmp_path / "f", 0, 30 << 20))
    assert isinstance(caught.value, Refused), caught.value
    assert caught.value.reply.status == 403


# --- bandwidth ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_uploads_stay_within_their_bandwidth(
    clock: ManualClock, script: Make, tmp_path: Path, kind: str
) -> None:
    """3 MB at 100 kB a second take 30 seconds, in small steps, over several requests together."""
    http = Http(clock=clock, bandwidth=100_000)
    server = script(reply(), reply(), reply())
    (tmp_path / "f").write_bytes(bytes(1_000_000))
    for _ in range(3):
        body = bytes(1_000_000) if kind == "bytes" else FileRange(tmp_path / "f", 0, 1_000_000)
        http.request("PUT", server.url, body=body)
    assert clock.monotonic() == pytest.approx(30, abs=0.3)
    assert max(clock.slept) < 0.5
    assert [len(body) for _, _, body in server.seen] == [1_000_000] * 3
    http.close()


def test_threads_share_one_throttle() -> None:
    """Each waits for what all have taken; time that went by unused is not saved up."""
    clock = ManualClock()
    throttle = Throttle(1000.0, clock)
    throttle.take(500)
    assert clock.slept == []
    throttle.take(500)
    assert clock.slept == [0.5]
    clock.advance(3600)
    throttle.take(2000)
    throttle.take(1)
    assert clock.slept == [0.5, 2.0]


# --- where requests go, and what is told about them -------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(http: Http, script: Make, status: int) -> None:
    """The credentials in the headers are for one server; whoever expects the status gets it as it is."""
    other = script(reply())
    here = script(*[reply(status, headers=f"Location: {other.url}\r\n")] * 2)
    with pytest.raises(
        Refused, match=r"sends GET on to 127\.0\.0\.1, which is not followed"
    ) as caught:
        http.request("GET", here.url, HEADERS, repeat=True)
    assert SECRET not in str(caught.value)
    assert http.request("GET", here.url, HEADERS, ok=(status,)).status == status
    assert other.seen == []


@pytest.mark.parametrize("step", [reply(403), reply(503), reply(507), reply(302, headers="Location: https://x/?t=hunter2-signature\r\n"), None, b"nonsense\r\n\r\n", lambda sock: sock.sendall(reply(200, b"x")[:-1])], ids=["403", "503", "507", "302", "cut", "nonsense", "short"])  # fmt: skip
def test_no_error_tells_a_secret(http: Http, script: Make, step: Step) -> None:
    """Neither the URL's query nor a header, in any kind of failure, nor in what led to it."""
    server = script(*[step] * 12)
    with pytest.raises(StoreError) as caught:
        http.request("PUT", server.url, HEADERS, SECRET.encode(), repeat=True)
    error: BaseException | None = caught.value
    assert isinstance(error, StoreFull) is (step == reply(507))
    while error is not None:
        assert SECRET not in repr(error) + str(error)
        error = error.__cause__ or error.__context__
    assert SECRET not in repr(getattr(caught.value, "reply", ""))
    assert "127.0.0.1" in str(caught.value)


def test_the_system_s_proxy_is_used_and_no_proxy_obeyed(
    script: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain requests name the whole address to it, secure ones a tunnel; with its own password."""
    proxy = script(reply(200, b"by proxy"), reply(403))
    direct = script(reply(200, b"direct"))
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://me:pass%40word@127.0.0.1:{proxy.port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    http = Http(clock=clock, tries=1)
    assert http.request("GET", direct.url).body == b"direct"
    assert http.request("GET", "http://s3.invalid/b/k?x=1").body == b"by proxy"
    assert proxy.seen[0][1].startswith(
        "GET http://s3.invalid/b/k?x=1 HTTP/1.1\r\nHost: s3.invalid\r\n"
    )
    assert "Proxy-Authorization: Basic bWU6cGFzc0B3b3Jk\r\n" in proxy.seen[0][1]
    with pytest.raises(StoreGone, match=r"s3\.invalid does not answer") as caught:
        http.request("GET", f"https://s3.invalid/b/k?x={SECRET}", HEADERS)
    assert proxy.seen[1][1].startswith("CONNECT s3.invalid:443 HTTP/1")
    assert SECRET not in proxy.seen[1][1]
    assert "word" not in str(caught.value)
    http.close()


def test_a_proxy_of_another_kind_is_refused_in_one_sentence(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not passed by: what it hides may be the reason that it is there."""
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"socks5://u:{SECRET}@127.0.0.1:9")
    with pytest.raises(StoreError, match="set to a socks5 address") as caught:
        http.request("GET", "https://s3.invalid/")
    assert not caught.value.transient
    assert SECRET not in str(caught.value)


def certificate(folder: Path) -> ssl.SSLContext:
    """A server's context whose certificate nobody has signed but itself; the file is `cert.pem`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    import ipaddress

    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def test_over_tls_everything_goes_the_same_way_and_strangers_are_not_trusted(
    clock: ManualClock, script: Make, tmp_path: Path
) -> None:
    """Kept connections, files both ways; a certificate that nobody vouches for is refused for good."""
    context = certificate(tmp_path)
    data = random.Random(3).randbytes(1_000_000)
    (tmp_path / "f").write_bytes(data)
    server = script(reply(), reply(200, data), reply(), context=context)
    http = Http(clock=clock, context=ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
    http.request("PUT", server.url, body=FileRange(tmp_path / "f", 0, len(data)))
    into = io.BytesIO()
    http.request("GET", server.url, into=into)
    assert server.seen[0][2] == into.getvalue() == data
    http.request("GET", server.url)
    assert {number for number, _, _ in server.seen} == {1}
    http.close()
    stranger = script(reply(), reply(), context=context)
    http = Http(clock=clock)
    with pytest.raises(StoreError, match=r"certificate of 127\.0\.0\.1 is not trusted") as caught:
        http.request("GET", stranger.url, HEADERS, repeat=True)
    assert not caught.value.transient
    assert clock.slept == []
    assert stranger.seen == []
    http.close()


def test_a_hurried_client_gives_up_soon_and_is_patient_again_afterwards() -> None:
    """Somebody waits for the command that opens a store; what works later may take its time."""
    http = Http(patience=90.0)
    before = http.patience, http._connections.limits
    with http.hurried(8.0):
        assert (http.patience, http._connections.limits) == (8.0, (8.0, 8.0))
    assert (http.patience, http._connections.limits) == before

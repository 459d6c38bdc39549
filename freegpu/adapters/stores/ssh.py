"""One ssh connection, as the user's own ssh would make it: keys, agent, ~/.ssh/config, known_hosts, jumps.

A host whose key is not known is refused with the sentence that says how to accept it. No password is ever used.
Everything has a time limit: paramiko by itself waits for ever, and never calls a connection dead because the other
side is silent (paramiko 5.1, issues 2463 and 503).
"""

from __future__ import annotations

import contextlib
import logging
import select
import shlex
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freegpu.adapters.stores import ssh_keys, ssh_known
from freegpu.adapters.stores.sftp_pipe import send_all
from freegpu.adapters.stores.ssh_config import (
    Route,
    SshRefused,
    Target,
    commanded,
    parse_target,
    resolve,
)
from freegpu.adapters.stores.ssh_known import Verdict
from freegpu.agent.stores.base import Source, StoreError, StoreGone

if TYPE_CHECKING:
    import paramiko

__all__ = ["HostKey", "KeyRefused", "Line", "Said", "SshRefused", "Target", "broke", "parse_target"]

#: seconds for connecting, for the server's greeting, and for a call without any answer
CONNECT_S = 15.0
SILENT_S = 60.0
KEEPALIVE_S = 30
#: bytes that a command may print before it counts as one that does not end
OUTPUT = 8 << 20
#: bytes given to a channel at once; paramiko cuts them into packets
_BLOCK = 1 << 18
#: seconds between the end of a broken connection's channels and its own
_DYING_S = 0.5
#: hosts on the way to a host
_JUMPS = 6
#: AES-GCM costs the least of what paramiko can do: 120 against 53 MB/s for its own first choice (paramiko 5.1)
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostKey:
    """The key that a host has shown, and what is known of it."""

    #: whose it is, for people
    host: str
    #: its name in known_hosts
    entry: str
    kind: str
    blob: bytes
    verdict: Verdict
    #: the file that knows it, or knows another one
    file: Path | None = None

    @property
    def fingerprint(self) -> str:
        return ssh_known.fingerprint(self.blob)


class KeyRefused(SshRefused):
    """The host's key is not one that we know; `key` says which it is."""

    def __init__(self, message: str, key: HostKey) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a command printed, and its exit code; None: it was not waited for."""

    out: bytes
    err: bytes
    code: int | None


def broke(error: BaseException) -> bool:
    """Whether this means that the connection is gone, and not that the server said no."""
    import paramiko

    gone = (EOFError, paramiko.SSHException, socket.timeout, ConnectionError)
    if isinstance(error, (*gone, paramiko.ssh_exception.NoValidConnectionsError)):
        return not isinstance(
            error, (paramiko.AuthenticationException, paramiko.BadHostKeyException)
        )
    return isinstance(error, OSError) and (
        str(error) in ("Socket is closed", "Channel closed", "Server connection dropped")
    )


class Line:
    """The connection to one host, dialled when it is first needed and again when it broke.

    `own`: a known_hosts file of ours beside the user's, e.g. in freegpu's home.
    """

    def __init__(
        self,
        target: Target,
        *,
        own: Path | None = None,
        jumps: tuple[Target, ...] = (),
        depth: int = 0,
    ) -> None:
        """`jumps`: hosts on the way, instead of what the configuration says. `depth`: jumps that led here."""
        self.target = target
        self.own = own
        self._jumps = jumps
        self._depth = depth
        self._transport: paramiko.Transport | None = None
        self._before: Line | None = None
        self._proxy: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        #: the host's key, once it was seen, and with what we were let in
        self.host_key: HostKey | None = None
        self.signed_in_with = ""

    def transport(self) -> paramiko.Transport:
        """The live connection. StoreGone: the host does not answer; SshRefused: a key is not accepted."""
        with self._lock:
            if self._transport is None or not self._transport.is_active():
                self._hang_up()
                self._transport = self._dial(sign_in=True)
                self._transport.set_keepalive(KEEPALIVE_S)
            return self._transport

    def _opened(self) -> paramiko.Channel:
        """A new channel. A kept connection may have died without a word, and asking is how one learns it: dialled anew."""
        kept = self._transport
        transport = self.transport()
        try:
            return transport.open_session(timeout=CONNECT_S)
        except Exception as error:
            if transport is not kept or transport.is_active() or not broke(error):
                raise
        return self.transport().open_session(timeout=CONNECT_S)

    def look(self) -> HostKey:
        """The host's key and what is known of it, without signing in. KeyRefused: a host on the way is not known."""
        with self._lock:
            self._hang_up()
            try:
                self._dial(sign_in=False)
            except KeyRefused as error:
                if error.key != self.host_key:
                    raise
            finally:
                self._hang_up()
            if self.host_key is None:
                raise StoreGone(f"{self.target} showed no key")
            return self.host_key

    def accept(self, key: HostKey) -> None:
        """Know this key from now on, in our own file."""
        if self.own is not None:
            ssh_known.remember(self.own, key.entry, key.kind, key.blob)

    def sftp(self) -> paramiko.SFTPClient:
        """A new SFTP channel on the connection."""
        import paramiko

        # not SFTPClient.from_transport: it would wait an hour for a channel
        channel = self._opened()
        channel.settimeout(SILENT_S)
        with _answered(channel):
            channel.invoke_subsystem("sftp")
        return paramiko.SFTPClient(channel)

    def run(self, command: str, *, timeout: float | None) -> tuple[int, str]:
        """(exit code, what it printed) of a command on the host; (-1, "") where the server runs none.

        `timeout`: seconds without an answer after which it counts as none; None: as long as it takes.
        """
        import paramiko

        try:
            said = self.say(command, timeout=timeout, limit=1 << 16)
        except (paramiko.SSHException, EOFError, OSError):
            return -1, ""
        return (-1 if said.code is None else said.code), said.out.decode("utf-8", "replace")

    def say(
        self,
        command: str,
        source: Source = b"",
        *,
        timeout: float | None,
        total: float | None = None,
        limit: int = OUTPUT,
        until: Callable[[bytearray], bool] | None = None,
        head: bytes = b"",
    ) -> Said:
        """Run a command on the host and give it `head` and `source` on its stdin.

        Both outputs are read while it runs, or a command that fills one of them would never end. `timeout`: seconds
        without a sign of life, `total`: for everything. `until`: what was printed so far is all that is wanted.
        Raises what paramiko raises, and TimeoutError.
        """
        end = None if total is None else time.monotonic() + total
        with self._opened() as channel:
            channel.settimeout(timeout)
            with _answered(channel):
                channel.exec_command(command)
            heard = _Heard(channel, limit)
            try:
                for block in _blocks(head, source):
                    _in_time(end)
                    send_all(channel, block)
                    heard.take()
                # a server that is forced to speak SFTP waits for words of ours: it gets an end instead
                channel.shutdown_write()
            except (OSError, EOFError) as error:
                # it ended before it had read everything: what it said to that is the answer, if the line still holds
                if isinstance(error, TimeoutError) or not channel.get_transport().is_active():
                    raise
            while not heard.over and not (until is not None and until(heard.out)):
                _in_time(end)
                heard.wait(timeout)
            if heard.over and _cut(channel) and not (until is not None and until(heard.out)):
                raise EOFError("the connection broke before the command had ended")
            code = None
            if heard.over and channel.status_event.wait(CONNECT_S if timeout is None else timeout):
                code = channel.recv_exit_status()
            return Said(out=bytes(heard.out), err=bytes(heard.err), code=code)

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        before, self._before = self._before, None
        if before is not None:
            before.close()
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            proxy.terminate()
            try:
                proxy.wait(2)
            except subprocess.TimeoutExpired:
                proxy.kill()
                proxy.wait(2)

    # --- dialling ---------------------------------------------------------------------------------------

    def _dial(self, *, sign_in: bool) -> paramiko.Transport:
        import paramiko

        if not logging.getLogger("paramiko").isEnabledFor(logging.DEBUG):
            # it logs tracebacks of what we put into a sentence
            logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        route = resolve(self.target)
        if self._jumps:
            route = replace(route, jumps=self._jumps, proxy="")
        self.host_key, self.signed_in_with = None, ""
        transport: paramiko.Transport | None = None
        refused: SshRefused | None = None
        try:
            try:
                sock = self._through(route)
            except KeyRefused:
                raise
            except SshRefused as error:
                # the user's own ssh may have ways into the host between that we have not (a smart card, Kerberos)
                if not route.jumps or shutil.which("ssh") is None:
                    raise
                refused = error
                sock = self._programmed(commanded(route, route.jumps))
            transport = paramiko.Transport(sock)
            transport.banner_timeout = transport.handshake_timeout = CONNECT_S
            transport.auth_timeout = CONNECT_S * 2
            transport.channel_timeout = CONNECT_S
            files = [*route.known_hosts, *([self.own] if self.own else [])]
            known = ssh_known.lines_for(route.entry, files)
            # paramiko's rule (512 MiB) hangs it: a channel that closes while keys are exchanged makes the one thread
            # that could end the exchange wait for its end. This is OpenSSH's rule for AES, in bytes.
            transport.packetizer.REKEY_BYTES = 1 << 36
            _prefer(transport, {line.kind for line in known if not line.revoked})
            transport.start_client(timeout=CONNECT_S)
            self._check(route, known, transport.get_remote_server_key())
            if sign_in:
                self.signed_in_with = ssh_keys.sign_in(transport, route)
        except BaseException as error:
            if transport is not None:
                transport.close()
            self._hang_up()
            told = _told(refused or error, self.target, route)
            if told is None:
                raise
            raise told from error
        if not sign_in:
            transport.close()
        return transport

    def _check(self, route: Route, known: list[ssh_known.Known], shown: paramiko.PKey) -> None:
        """KeyRefused unless the key that the host has shown is known."""
        kind, blob = shown.get_name(), shown.asbytes()
        found = ssh_known.verdict(known, kind, blob)
        files = [line.file for line in known if line.blob == blob or line.kind == kind]
        key = HostKey(
            host=str(self.target),
            entry=route.entry,
            kind=kind,
            blob=blob,
            verdict=found,
            file=files[0] if files else None,
        )
        self.host_key = key
        if found is Verdict.KNOWN:
            return
        print_ = f"{kind} {key.fingerprint}"
        if found is Verdict.UNKNOWN:
            message = (
                f"the host key of {self.target.host} is not known here ({print_}):"
                f" run `{self.target.command}` once and accept it if the fingerprint is right"
            )
        elif found is Verdict.OTHER_TYPE:
            kinds = ", ".join(sorted({line.kind for line in known if not line.revoked}))
            message = (
                f"the host key of {self.target.host} is known, but only of another type ({kinds}), and it showed"
                f" {print_}: run `{self.target.command}` once and accept it if the fingerprint is right"
            )
        elif found is Verdict.REVOKED:
            message = (
                f"the host key of {self.target.host} ({print_}) is marked as revoked in {key.file}"
            )
        else:
            message = (
                f"the host key of {self.target.host} is not the one in {key.file}, it is {print_}: if the machine was"
                f" set up anew, run `ssh-keygen -R {shlex.quote(route.entry)} -f {shlex.quote(str(key.file))}` and"
                f" then `{self.target.command}`; if not, somebody may be in between"
            )
        raise KeyRefused(message, key)

    def _through(self, route: Route) -> Any:
        """What the connection runs over: a socket, a program, or a channel of a host in between."""
        if route.proxy:
            return self._programmed(route.proxy)
        if not route.jumps:
            direct = socket.create_connection((route.host, route.port), timeout=CONNECT_S)
            # or small requests wait up to 40 ms for the answer to the one before (Nagle): 70 instead of 200 MiB/s
            direct.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return direct
        if self._depth + len(route.jumps) > _JUMPS:
            raise SshRefused(
                f"the way to {self.target} has more than {_JUMPS} jumps, or leads in a circle"
            )
        self._before = before = Line(
            route.jumps[-1], own=self.own, jumps=route.jumps[:-1], depth=self._depth + 1
        )
        return before.transport().open_channel(
            "direct-tcpip", (route.host, route.port), ("127.0.0.1", 0), timeout=CONNECT_S
        )

    def _programmed(self, command: str) -> socket.socket:
        """A program of the user's as a socket. paramiko's own ProxyCommand spins when the program has ended."""
        ours, theirs = socket.socketpair()
        try:
            self._proxy = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            theirs.close()
        return ours


class _Heard:
    """Both outputs of a command, as far as they have come."""

    def __init__(self, channel: paramiko.Channel, limit: int) -> None:
        self._channel = channel
        self._limit = limit
        self.out = bytearray()
        self.err = bytearray()

    @property
    def over(self) -> bool:
        """Whether nothing more will come, or more came than anybody wants."""
        channel = self._channel
        ended = channel.eof_received or channel.closed
        ready = channel.recv_ready() or channel.recv_stderr_ready()
        return (ended and not ready) or len(self.out) >= self._limit

    def take(self) -> bool:
        """Take what is there; False: nothing was."""
        taken = False
        while self._channel.recv_ready() and len(self.out) < self._limit:
            self.out += self._channel.recv(1 << 16)
            taken = True
        while self._channel.recv_stderr_ready():
            self.err += self._channel.recv_stderr(1 << 16)
            del self.err[:-4096]  # the end says why
            taken = True
        return taken

    def wait(self, timeout: float | None) -> None:
        """Take something, or wait for it. TimeoutError."""
        if self.take():
            return
        ready, _, _ = select.select([self._channel.fileno()], [], [], timeout)
        if not ready:
            raise TimeoutError("no answer")
        if not self.take() and not self.over:
            time.sleep(0.005)  # the pipe told of bytes that are not there yet


@contextlib.contextmanager
def _answered(channel: paramiko.Channel) -> Iterator[None]:
    """A limit for requests on a channel: paramiko waits for their answer for ever, whatever timeout the channel has.

    The connection is closed by it; TimeoutError.
    """
    late = threading.Event()

    def give_up() -> None:
        late.set()
        channel.get_transport().close()

    timer = threading.Timer(CONNECT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if late.is_set():
            raise TimeoutError("no answer") from error
        raise
    finally:
        timer.cancel()


def _cut(channel: paramiko.Channel) -> bool:
    """Whether this channel ended because the connection did, and not by the command's own end."""
    if channel.status_event.is_set() and channel.exit_status != -1:
        return False
    transport = channel.get_transport()
    if channel.closed:
        # a dying connection closes its channels a moment before it says that it is dead itself
        transport.join(_DYING_S)
    return not transport.is_active()


def _in_time(end: float | None) -> None:
    if end is not None and time.monotonic() > end:
        raise TimeoutError("no end of its answer")


def _blocks(head: bytes, source: Source) -> Iterator[bytes]:
    if head:
        yield head
    if isinstance(source, bytes):
        for at in range(0, len(source), _BLOCK):
            yield source[at : at + _BLOCK]
        return
    with Path(source).open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _prefer(transport: paramiko.Transport, kinds: set[str]) -> None:
    """The cheapest ciphers first, and the types of host key that we can check."""
    options = transport.get_security_options()
    options.ciphers = (*_CIPHERS, *(name for name in options.ciphers if name not in _CIPHERS))
    wanted = {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in kinds else set()
    wanted |= kinds
    offered = options.key_types
    options.key_types = (
        *(name for name in offered if name in wanted),
        *(name for name in offered if name not in wanted),
    )


def _told(error: BaseException, target: Target, route: Route) -> BaseException | None:
    """The error in a sentence; None: it is not about a key or an address."""
    import paramiko

    where = f"{target}" if route.host == target.host else f"{target} ({route.host})"
    if isinstance(error, StoreError):
        return error
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return SshRefused(
            f"{where} speaks only what is no longer safe ({error}): its sshd is too old, as RSA keys signed with SHA-1"
        )
    if isinstance(error, paramiko.ChannelException):
        return StoreGone(f"the last host on the way does not get to {where} ({error})")
    if isinstance(error, socket.gaierror):
        return StoreGone(f"there is no host {route.host} ({error.strerror})")
    if isinstance(error, TimeoutError):
        return TimeoutError(f"{where} does not answer")
    if isinstance(error, OSError) and not broke(error):
        return StoreGone(f"{where} does not answer ({error.strerror or error})")
    if isinstance(error, paramiko.SSHException) and "banner" in str(error):
        return EOFError(
            f"{where} takes the call and says nothing, or hangs up at once: too many are dialling, or no sshd is there"
        )
    if isinstance(error, (EOFError, paramiko.SSHException)):
        return EOFError(f"the connection to {where} broke ({error or 'it was closed'})")
    return None

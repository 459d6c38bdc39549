"""One ssh connection, as the user's own ssh would make it: keys, agent, ~/.ssh/config, known_hosts, jumps.

A host whose key is not known is refused with the sentence that says how to accept it. No password is ever used.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freegpu.agent.stores.base import StoreError, StoreGone

if TYPE_CHECKING:
    import paramiko

__all__ = ["Line", "SshRefused", "Target", "broke"]

#: seconds for connecting, for the server's greeting, and for a call without any answer
CONNECT_S = 15.0
SILENT_S = 60.0
KEEPALIVE_S = 30


class SshRefused(StoreError):  # noqa: N818 - reads as what happened
    """The host's key or ours is not accepted; a person must act."""

    transient = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Who and where, as the URL says it; the rest is up to ~/.ssh/config."""

    host: str
    port: int | None = None
    user: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}{f':{self.port}' if self.port else ''}"

    @property
    def command(self) -> str:
        """What a person types to get there."""
        user = f"{self.user}@" if self.user else ""
        return f"ssh {f'-p {self.port} ' if self.port else ''}{user}{self.host}"


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
    """The connection to one host, dialled when it is first needed and again when it broke."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._client: paramiko.SSHClient | None = None
        self._lock = threading.Lock()

    def transport(self) -> paramiko.Transport:
        """The live connection. StoreGone: the host does not answer; SshRefused: a key is not accepted."""
        with self._lock:
            transport = self._client.get_transport() if self._client else None
            if transport is None or not transport.is_active():
                self._hang_up()
                self._client = self._dial()
                transport = self._client.get_transport()
                if transport is None:
                    raise EOFError("the connection was closed at once")
                transport.set_keepalive(KEEPALIVE_S)
            return transport

    def sftp(self) -> paramiko.SFTPClient:
        """A new SFTP channel on the connection."""
        import paramiko

        client = paramiko.SFTPClient.from_transport(self.transport())
        channel = client.get_channel() if client else None
        if client is None or channel is None:
            raise EOFError("no SFTP channel was given")
        channel.settimeout(SILENT_S)
        return client

    def run(self, command: str, *, timeout: float | None) -> tuple[int, str]:
        """(exit code, what it printed) of a command on the host; (-1, "") where the server runs none.

        `timeout`: seconds without an answer after which it counts as none; None: as long as it takes.
        """
        import paramiko

        try:
            with self.transport().open_session(timeout=CONNECT_S) as channel:
                channel.settimeout(timeout)
                channel.exec_command(command)
                # a server that is forced to speak SFTP waits for words of ours: it gets an end instead
                channel.shutdown_write()
                text = b""
                while len(text) < 1 << 16:
                    block = channel.recv(4096)
                    if not block:
                        break
                    text += block
                if timeout is not None and not channel.status_event.wait(timeout):
                    return -1, ""
                return channel.recv_exit_status(), text.decode("utf-8", "replace")
        except (paramiko.SSHException, EOFError, OSError):
            return -1, ""

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _dial(self) -> paramiko.SSHClient:
        import paramiko

        if not logging.getLogger("paramiko").isEnabledFor(logging.DEBUG):
            # it logs tracebacks of what we put into a sentence
            logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        config = _config(self.target.host)
        host = config.get("hostname", self.target.host)
        client = paramiko.SSHClient()
        for path in _known_hosts(config):
            with contextlib.suppress(OSError):
                client.load_system_host_keys(str(path))
        client.set_missing_host_key_policy(_refusing(self.target))
        try:
            client.connect(
                host,
                port=self.target.port or int(config.get("port", 22)),
                username=self.target.user or config.get("user") or None,
                sock=_through(config, self.target, host),
                timeout=CONNECT_S,
                banner_timeout=CONNECT_S,
                auth_timeout=CONNECT_S * 2,
                **_keys(config),
            )
        except BaseException as error:
            client.close()
            if isinstance(error, paramiko.AuthenticationException) and "EOF" in str(error):
                # paramiko's word for a line that went dead while it signed in: no key was refused
                raise EOFError(f"the connection to {self.target} broke") from error
            told = _told(error, self.target)
            if told is None:
                raise
            raise told from error
        return client


def _config(host: str) -> dict[str, Any]:
    """What ~/.ssh/config says about the host."""
    import paramiko

    path = Path("~/.ssh/config").expanduser()
    try:
        return dict(paramiko.SSHConfig.from_path(str(path)).lookup(host))
    except FileNotFoundError:
        return {}
    except (OSError, paramiko.ConfigParseError, UnicodeDecodeError) as error:
        message = f"{path} cannot be used: {error}"
        raise SshRefused(message) from error


def _keys(config: dict[str, Any]) -> dict[str, Any]:
    """Which keys are offered: those named for the host, then the agent's and those of ~/.ssh unless it forbids that."""
    named = [path for path in config.get("identityfile", ()) if Path(path).exists()]
    others = config.get("identitiesonly", "no") != "yes"
    return {"key_filename": named or None, "look_for_keys": others, "allow_agent": others}


def _known_hosts(config: dict[str, Any]) -> list[Path]:
    named = shlex.split(config.get("userknownhostsfile", "~/.ssh/known_hosts"))
    return [Path("/etc/ssh/ssh_known_hosts"), *(Path(name).expanduser() for name in named)]


def _through(config: dict[str, Any], target: Target, host: str) -> Any:
    """A jump, as ~/.ssh/config asks for one; the user's own ssh makes it."""
    import paramiko

    command = config.get("proxycommand", "")
    jump = config.get("proxyjump", "")
    if not command and jump and jump != "none":
        first, _, rest = jump.rpartition(",")
        before = f"-J {shlex.quote(first)} " if first else ""
        port = target.port or int(config.get("port", 22))
        command = f"ssh {before}-W {shlex.quote(f'[{host}]:{port}')} {shlex.quote(rest)}"
    return paramiko.ProxyCommand(command) if command and command != "none" else None


def _refusing(target: Target) -> Any:
    import paramiko

    class Refusing(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, client: Any, hostname: str, key: paramiko.PKey) -> None:
            message = (
                f"the host key of {target.host} is not known here ({key.get_name()} {key.fingerprint}):"
                f" run `{target.command}` once and accept it if the fingerprint is right"
            )
            raise SshRefused(message)

    return Refusing()


def _told(error: BaseException, target: Target) -> StoreError | None:
    """The error in a sentence; None: it is not about a key or an address."""
    import paramiko

    if isinstance(error, SshRefused):
        return error
    if isinstance(error, paramiko.BadHostKeyException):
        return SshRefused(
            f"the host key of {target.host} is not the one in known_hosts: if the machine was set up anew,"
            f" run `ssh-keygen -R {target.host}` and then `{target.command}`; if not, somebody may be in between"
        )
    if isinstance(error, paramiko.PasswordRequiredException):
        return SshRefused(
            f"the key for {target.host} has a passphrase: give it to your ssh-agent with `ssh-add`"
        )
    if isinstance(error, paramiko.AuthenticationException):
        return SshRefused(
            f"{target} accepts none of your keys: `{target.command}` must work without a password"
            " (ssh-keygen, then ssh-copy-id)"
        )
    if isinstance(error, paramiko.SSHException) and "No authentication methods" in str(error):
        return SshRefused(
            f"there is no ssh key for {target} in ~/.ssh and no ssh-agent: make one with ssh-keygen, and"
            " send it with ssh-copy-id"
        )
    if isinstance(error, socket.gaierror):
        return StoreGone(f"there is no host {target.host} ({error.strerror})")
    if isinstance(error, OSError) and not broke(error):
        return StoreGone(f"{target} does not answer ({error.strerror or error})")
    return None

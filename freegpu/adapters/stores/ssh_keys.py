"""Signing in with the user's keys: which are offered, in which order, and why none of them was taken.

paramiko offers what the agent holds first; with more keys than the server's patience (MaxAuthTries, 6) it ends in
"No existing session". Here the keys named for the host go first and the count is kept. No password, ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from freegpu.adapters.stores.ssh_config import Route, SshRefused

if TYPE_CHECKING:
    import paramiko

__all__ = ["sign_in"]

#: hosts may name different agents, and the environment is one
_NAMING = threading.Lock()


def sign_in(transport: paramiko.Transport, route: Route) -> str:
    """Sign in; returns with what, for people. SshRefused: none of the keys is taken. EOFError: the line broke."""
    import paramiko

    try:
        transport.auth_none(route.user)
    except paramiko.BadAuthenticationType as error:
        if "publickey" not in error.allowed_types:
            raise SshRefused(
                f"{route.target} takes no keys, only {', '.join(error.allowed_types)}: freegpu keeps no passwords"
            ) from error
    except paramiko.AuthenticationException as error:
        raise EOFError(f"the connection broke while signing in ({error})") from error
    else:
        return "no key at all: the server asked for none"
    keys = _Keys(route)
    try:
        return _offer(transport, route, keys)
    finally:
        keys.close()


def _offer(transport: paramiko.Transport, route: Route, keys: _Keys) -> str:
    """Offer one key after the other."""
    import paramiko

    tried, silent = 0, False
    for key, name in keys:
        if not transport.is_active():
            break
        tried += 1
        try:
            more = transport.auth_publickey(route.user, key)
        except paramiko.BadAuthenticationType as error:
            raise _wants_more(route, error.allowed_types) from error
        except paramiko.AuthenticationException as error:
            silent = "timeout" in str(error).lower()
            if silent or "EOF" in str(error):
                break
        except paramiko.SSHException as error:
            # the server hung up after too many keys, or the agent cannot sign with this one
            if not transport.is_active() or "session" in str(error):
                break
        else:
            if more:
                raise _wants_more(route, more)
            return name
    if silent:
        # no answer is no refusal: the next try may be heard
        raise EOFError("the host fell silent while signing in")
    command = route.target.command
    if not transport.is_active():
        # one or two keys are nobody's limit: that was the line
        if tried < 3:
            raise EOFError("the connection broke while signing in")
        raise SshRefused(
            f"{route.target} hung up after {tried} keys, as servers do after six: name the right one in ~/.ssh/config"
            f" (Host {route.target.host}, IdentityFile, IdentitiesOnly yes)"
        )
    if keys.locked:
        raise SshRefused(
            f"the key for {route.target} has a passphrase: give it to your ssh-agent with `ssh-add {keys.locked[0]}`"
        )
    if not tried:
        raise SshRefused(
            f"there is no ssh key for {route.target} in ~/.ssh and no ssh-agent: make one with ssh-keygen, and"
            " send it with ssh-copy-id"
        )
    raise SshRefused(
        f"{route.target} accepts none of your keys: `{command}` must work without a password"
        " (ssh-keygen, then ssh-copy-id)"
    )


def _wants_more(route: Route, kinds: list[str]) -> SshRefused:
    return SshRefused(
        f"{route.target} wants more than a key ({', '.join(kinds)}): nobody is there to answer when freegpu connects"
    )


class _Keys:
    """The keys to offer, in order; `locked` fills with those that only an agent could open."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self.locked: list[Path] = []
        self._agent: paramiko.Agent | None = None

    def close(self) -> None:
        """Let go of the agent; it was asked for signatures until now."""
        if self._agent is not None:
            self._agent.close()

    def __iter__(self) -> Iterator[tuple[paramiko.PKey, str]]:
        held = self._held()
        seen: set[bytes] = set()
        named = [(path, _public(path)) for path in self._route.keys if _there(path)]
        blobs = {blob for _, blob in named if blob}
        for blob, key in held.items():
            if blob in blobs:
                seen.add(blob)
                yield key, f"a key of your ssh-agent ({key.get_name()})"
        for path, blob in named:
            if blob in seen:
                continue
            loaded = self._load(path)
            if loaded is not None and loaded.asbytes() not in seen:
                seen.add(loaded.asbytes())
                yield loaded, f"{path}"
        if not self._route.only_these:
            for blob, key in held.items():
                if blob not in seen:
                    yield key, f"a key of your ssh-agent ({key.get_name()})"

    def _load(self, path: Path) -> paramiko.PKey | None:
        import paramiko

        try:
            key: paramiko.PKey = paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):
            # cryptography's word for a missing passphrase is TypeError
            self.locked.append(path)
            return None
        except (
            Exception
        ):  # a public half, a key of a kind that paramiko does not have, no key at all
            return None
        return key

    def _held(self) -> dict[bytes, paramiko.PKey]:
        """What the agent holds, by public half."""
        where = self._route.agent or os.environ.get("SSH_AUTH_SOCK", "")
        if not where or where == "none":
            return {}
        with _NAMING:
            return self._asked(where)

    def _asked(self, where: str) -> dict[bytes, paramiko.PKey]:
        import paramiko

        before = os.environ.get("SSH_AUTH_SOCK")
        os.environ["SSH_AUTH_SOCK"] = where  # paramiko knows no other way to name it
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
                # an agent that hangs must not hang us: paramiko waits for it without a limit
                probe.settimeout(2)
                probe.connect(where)
                probe.sendall(b"\0\0\0\1\x0b")
                if not probe.recv(4):
                    return {}
            self._agent = paramiko.Agent()
            return {key.asbytes(): key for key in self._agent.get_keys()}
        except (OSError, paramiko.SSHException):
            return {}
        finally:
            if before is None:
                os.environ.pop("SSH_AUTH_SOCK", None)
            else:
                os.environ["SSH_AUTH_SOCK"] = before


def _there(path: Path) -> bool:
    return path.exists() or Path(f"{path}.pub").exists()


def _public(path: Path) -> bytes:
    """The public half of a key file, from the file beside it; empty if there is none."""
    import base64

    try:
        words = Path(f"{path}.pub").read_text(errors="replace").split()
        return base64.b64decode(words[1]) if len(words) > 1 else b""
    except (OSError, ValueError):
        return b""

"""What the user's ssh configuration says about a host: asked of `ssh -G`, which alone knows Include, Match and jumps.

Where no ssh is installed, paramiko's reader must do; it follows no Include. Connects to nothing.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from freegpu.agent.stores.base import StoreError

__all__ = ["Route", "SshRefused", "Target", "commanded", "parse_target", "resolve"]

#: `Match exec` may run a program of the user's: it gets this long, seconds
_ASK_S = 10.0


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How a host is reached, after every rule of the configuration."""

    target: Target
    host: str
    port: int
    user: str
    #: private keys, in order; not all of them need exist
    keys: tuple[Path, ...] = ()
    #: only those keys, also of the agent's
    only_these: bool = False
    known_hosts: tuple[Path, ...] = ()
    #: the name that the host's key is kept under, if it is another one
    alias: str = ""
    #: hosts in between, nearest first
    jumps: tuple[Target, ...] = ()
    #: a program whose stdin and stdout lead there
    proxy: str = ""
    #: the agent's socket; "": $SSH_AUTH_SOCK; "none": no agent
    agent: str = ""

    @property
    def entry(self) -> str:
        """The host's name in known_hosts."""
        name = self.alias or self.host
        return name if self.port == 22 or self.alias else f"[{name}]:{self.port}"


def parse_target(text: str) -> Target:
    """`[user@]host[:port]`, an IPv6 address in brackets. ValueError: it cannot be meant."""
    wrong = f"{text!r} is not user@host, user@host:port or a name from ~/.ssh/config"
    if not text or text.startswith("-") or re.search(r"[\s/\\?#\0]", text):
        raise ValueError(wrong)
    user, at, where = text.rpartition("@")
    if ":" in user:
        raise ValueError(
            "a host is named without a password: keys are used (ssh-keygen, ssh-copy-id)"
        )
    # as it was written: names in ~/.ssh/config may have capitals; `ssh -G` puts any address into brackets
    found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", where)
    if found is None or (at and not user):
        raise ValueError(wrong)
    host, port = found[1] or found[2], int(found[3]) if found[3] else None
    if host.startswith("-") or (port is not None and not 0 < port < 65536):
        raise ValueError(wrong)
    return Target(host=host, port=port, user=user)


def resolve(target: Target) -> Route:
    """The way to this host. SshRefused: the configuration cannot be read."""
    program = shutil.which("ssh")
    told = _asked(program, target) if program else _read(target)
    first = {key: values[0] for key, values in told.items() if values}
    route = Route(
        target=target,
        host=first.get("hostname", target.host),
        port=target.port or int(first.get("port", "22")),
        user=target.user or first.get("user") or _me(),
        only_these=first.get("identitiesonly") == "yes",
        known_hosts=_files(first, "globalknownhostsfile", "/etc/ssh/ssh_known_hosts")
        + _files(first, "userknownhostsfile", "~/.ssh/known_hosts"),
        alias=first.get("hostkeyalias", ""),
        jumps=_jumps(first.get("proxyjump", "")),
        agent=_agent(first.get("identityagent", "")),
    )
    proxy = first.get("proxycommand", "")
    return replace(
        route,
        keys=tuple(_path(_filled(name, route)) for name in told.get("identityfile", _KEYS)),
        proxy="" if proxy == "none" or route.jumps else _filled(proxy, route),
    )


_KEYS = ["~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"]


def _asked(program: str, target: Target) -> dict[str, list[str]]:
    """The answer of `ssh -G`, a list of values a word."""
    words = [program, "-G"]
    elsewhere = _account_home()
    if elsewhere:
        # ssh goes by the account's home and not by $HOME, which everything else here goes by
        own = Path("~/.ssh/config").expanduser()
        words += ["-F", str(own) if own.exists() else "none"]
    words += ["-p", str(target.port)] if target.port else []
    words += ["-l", target.user] if target.user else []
    try:
        done = subprocess.run(
            [*words, "--", target.host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = f"`ssh -G {target.host}` does not answer: {error}"
        raise SshRefused(message) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        message = f"your ssh configuration cannot be used: {why}"
        raise SshRefused(message)
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        word, _, value = line.partition(" ")
        value = value.strip()
        if elsewhere and word.lower() == "userknownhostsfile":
            value = value.replace(f"{elsewhere}/.ssh/known_hosts", "~/.ssh/known_hosts")
        found.setdefault(word.lower(), []).append(value)
    return found


def _account_home() -> str:
    """The account's home where $HOME is another folder, else ""."""
    home = os.environ.get("HOME", "")
    with contextlib.suppress(KeyError):
        account = pwd.getpwuid(os.getuid()).pw_dir
        if home and Path(home).resolve() != Path(account).resolve():
            return account
    return ""


def _read(target: Target) -> dict[str, list[str]]:
    """~/.ssh/config as paramiko reads it."""
    import paramiko

    path = Path("~/.ssh/config").expanduser()
    try:
        read: dict[str, Any] = dict(paramiko.SSHConfig.from_path(str(path)).lookup(target.host))
    except FileNotFoundError:
        return {}
    except (OSError, paramiko.ConfigParseError, UnicodeDecodeError) as error:
        message = f"{path} cannot be used: {error}"
        raise SshRefused(message) from error
    return {key: value if isinstance(value, list) else [value] for key, value in read.items()}


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "root"


def _files(first: dict[str, str], word: str, default: str) -> tuple[Path, ...]:
    try:
        names = shlex.split(first.get(word, default))
    except ValueError:
        names = [first.get(word, default)]
    return tuple(_path(name) for name in names if name != "none")


def _path(name: str) -> Path:
    return Path(name).expanduser() if name.startswith("~") else Path(name)


def _agent(value: str) -> str:
    if value.upper() in ("", "SSH_AUTH_SOCK"):
        return ""
    if value.startswith("$"):
        return os.environ.get(value.strip("${}"), "none")
    return value if value == "none" else str(_path(value))


def _jumps(value: str) -> tuple[Target, ...]:
    if value in ("", "none"):
        return ()
    try:
        names = [name.strip().removeprefix("ssh://").rstrip("/") for name in value.split(",")]
        return tuple(parse_target(name) for name in names)
    except ValueError as error:
        message = f"your ssh configuration names a jump that cannot be meant: {error}"
        raise SshRefused(message) from error


def _filled(text: str, route: Route) -> str:
    """The text with ssh's own tokens put in (ssh_config(5), TOKENS)."""
    tokens = {
        "%": "%",
        "h": route.host,
        "n": route.target.host,
        "p": str(route.port),
        "r": route.user,
        "d": str(Path("~").expanduser()),
        "u": _me(),
    }
    return re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), text)


def commanded(route: Route, jumps: Sequence[Target]) -> str:
    """The user's own ssh as the way through these hosts, where what lies between is more than we can do."""
    *before, last = [str(jump) for jump in jumps]
    words = ["ssh", "-o", "BatchMode=yes", *(["-J", ",".join(before)] if before else [])]
    return shlex.join([*words, "-W", f"[{route.host}]:{route.port}", f"ssh://{last}"])

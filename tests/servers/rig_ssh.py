"""An ssh host for acceptance tests: a real sshd as this user, a machine of its own, and a user's keys for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from freegpu.testing import ssh_host
from freegpu.testing.machines import Hardware
from tests.servers.present import absent
from tests.servers.rigs import Rig

__all__ = ["SshRig", "rig"]


class SshRig:
    """See Rig. The server is a process of its own; its sessions are processes here."""

    name = "lab"

    def __init__(self, host: ssh_host.SshHost) -> None:
        self.host = host
        key = (host.home / ".ssh" / "id_ed25519").read_text()
        #: the private key never leaves this side
        self.secrets = tuple(key.splitlines()[1:-1])
        self.env = {"HOME": str(host.home), "SSH_AUTH_SOCK": ""}
        self.table: Mapping[str, Any] = {"adapter": "ssh", "host": host.host}
        self.connect = ("ssh", host.host, "--as", self.name)

    def opens(self, store: Path) -> str:
        """The host is this machine: it sees the folder where it lies."""
        return f"folder:{store}"

    def saved(self, job: str) -> bool | None:
        return None

    def lose(self) -> int:
        return self.host.kill()

    def refuse(self, on: bool) -> None:
        self.host.set_cards(self.host.cards, used={0: "4242"} if on else {})

    def heard(self) -> bytes:
        return self.host.heard()


@contextlib.contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """A host with one T4."""
    if ssh_host.programs() is None:
        absent("OpenSSH's sshd and ssh-keygen are not installed")
    host = ssh_host.SshHost(folder / "ssh-host", cards=Hardware())
    host.start()
    try:
        yield SshRig(host)
    finally:
        host.stop()
        host.kill()

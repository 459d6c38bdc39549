"""A real OpenSSH server on loopback for tests; they are skipped where there is none."""

from __future__ import annotations

from freegpu.testing import ssh_host
from freegpu.testing.ssh_host import free_port
from tests.servers.present import absent

__all__ = ["SshHost", "Sshd", "free_port", "need_sshd"]


def need_sshd() -> tuple[str, str]:
    """(sshd, ssh-keygen); the test is skipped where they are not installed."""
    found = ssh_host.programs()
    if found is None:
        absent("OpenSSH's sshd and ssh-keygen are not installed")
    return found


class Sshd(ssh_host.Sshd):
    """See freegpu.testing.ssh_host."""

    def start(self) -> None:
        need_sshd()
        super().start()


class SshHost(ssh_host.SshHost):
    """See freegpu.testing.ssh_host."""

    def start(self) -> None:
        need_sshd()
        super().start()

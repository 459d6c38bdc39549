"""A real OpenSSH server on loopback for tests; they are skipped where there is none."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.testing import ssh_host
from freegpu.testing.machines import Hardware
from freegpu.testing.ssh_host import free_port
from tests.servers.present import absent

__all__ = ["SshHost", "Sshd", "at_home", "free_port", "need_sshd", "typed"]


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


@contextmanager
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    """A machine with a card behind a server; its account's home is that of the user here, too."""
    server = SshHost(tmp_path / "host", cards=Hardware())
    server.start()
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield server
    server.stop()
    server.kill()


def typed(home: Path, *argv: str) -> tuple[int, str, str]:
    """Run a command line in this process; (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    around = {"FREEGPU_HOME": str(home)}
    made = Call(out=Output(stdout=out, stderr=err, environ=around), environ=around)
    return run(argv, call=made), out.getvalue(), err.getvalue()

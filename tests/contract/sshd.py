"""A real OpenSSH server on loopback for tests, run as whoever runs them: own host key, own authorized key."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.present import absent

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
KEYGEN = shutil.which("ssh-keygen")


def need_sshd() -> tuple[str, str]:
    """(sshd, ssh-keygen); the test is skipped where they are not installed."""
    if SSHD is None or KEYGEN is None:
        absent("OpenSSH's sshd and ssh-keygen are not installed")
    return SSHD, KEYGEN


@dataclass
class Sshd:
    """The server and a home whose ~/.ssh can reach it. `extra`: more lines for its configuration."""

    folder: Path
    extra: str = ""
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def user(self) -> str:
        return getpass.getuser()

    def url(self, path: Path) -> str:
        return f"sftp://{self.user}@127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        """Start it, on the port that it had before if it had one."""
        sshd, keygen = need_sshd()
        dot_ssh = self.home / ".ssh"
        if not dot_ssh.exists():
            dot_ssh.mkdir(parents=True, mode=0o700)
            for path in (self.folder / "host_key", dot_ssh / "id_ed25519"):
                subprocess.run(
                    [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True
                )
            shutil.copy(dot_ssh / "id_ed25519.pub", self.folder / "authorized_keys")
        self.port = self.port or free_port()
        config = self.folder / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
            f"MaxStartups 100\nPidFile none\nSubsystem sftp internal-sftp\n{self.extra}\n"
        )
        key = (self.folder / "host_key.pub").read_text().split()
        (dot_ssh / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")
        if os.geteuid() == 0:
            # where it puts the part that has no rights; a package's start script makes this folder
            Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sshd, "-D", "-f", str(config), "-E", str(self.folder / "sshd.log")],
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    log = (self.folder / "sshd.log").read_text()
                    pytest.fail(f"sshd did not come up: {log}")
                time.sleep(0.02)

    def connections(self) -> list[int]:
        """The processes that serve a connection."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def cut(self) -> None:
        """Kill whatever serves a connection now; the server goes on."""
        for pid in self.connections():
            os.kill(pid, 9)

    def stop(self) -> None:
        """Stop it and everything that it serves."""
        if self.process is not None:
            self.cut()
            self.process.terminate()
            self.process.wait(20)
            self.process = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port

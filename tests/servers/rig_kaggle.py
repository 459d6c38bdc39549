"""Kaggle for acceptance tests: the loopback server, and a user's credentials for it. Sessions are sealed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from freegpu.testing.kaggle_server import KaggleServer
from tests.servers.rigs import Rig

__all__ = ["KaggleRig", "rig"]


class KaggleRig:
    """See Rig. The server runs in a thread of the test; its machines are processes."""

    name = "kaggle"
    table: Mapping[str, Any] = {"adapter": "kaggle", "account": "ada", "carry": "sealed"}
    connect = ("kaggle",)

    def __init__(self, server: KaggleServer) -> None:
        self.server = server
        self.secrets = (server.key,)
        self.env = {
            "FREEGPU_KAGGLE_ENDPOINT": server.url,
            "KAGGLE_USERNAME": server.user,
            "KAGGLE_KEY": server.key,
            # a client that forgot the address above would reach nobody
            "HTTPS_PROXY": "http://127.0.0.1:9",
        }

    def opens(self, store: Path) -> str:
        return ""

    def saved(self, job: str) -> bool | None:
        """Whether a running kernel has noted a checkpoint of this job among what will be its output."""
        prefix = f"jobs/{job}/checkpoints/"
        for kernel in list(self.server.kernels.values()):
            path = self.server.machines.place(kernel.machine) / "working" / "freegpu-output.json"
            try:
                noted = json.loads(path.read_bytes())["files"]
            except (OSError, ValueError, KeyError):
                continue
            if any(key.startswith(prefix) for key in noted):
                return True
        return False

    def lose(self) -> int:
        machines = self.server.machines
        running = [name for name in machines.names() if machines.alive(name)]
        # one that has not quite begun is not hit: who waits for a blow must not take that for one
        return sum(bool(machines.kill(name)) for name in running)

    def refuse(self, on: bool) -> None:
        self.server.set_faults(refuse_capacity=on)

    def heard(self) -> bytes:
        """Everything but the credential's own header, which is where it belongs."""
        with self.server.lock:
            told = list(self.server.requests)
        return b"\n".join(
            f"{heard.method} {heard.path} {dict(heard.query)}".encode() + b"\n" + heard.body
            for heard in told
        )


@contextlib.contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    with KaggleServer(folder / "kaggle") as server:
        yield KaggleRig(server)

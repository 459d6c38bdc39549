"""Lightning AI for acceptance tests: the loopback server, and a user's credentials for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from freegpu.testing.lightning_server import LightningServer
from tests.servers.rigs import Rig

__all__ = ["LightningRig", "rig"]


class LightningRig:
    """See Rig. The server runs in a thread of the test; its machines are processes."""

    name = "lightning"
    table: Mapping[str, Any] = {"adapter": "lightning", "teamspace": "ada/lab"}
    connect = ("lightning", "--teamspace", "ada/lab")

    def __init__(self, server: LightningServer) -> None:
        self.server = server
        self.secrets = (server.key,)
        self.env = {
            "LIGHTNING_CLOUD_URL": server.url,
            "LIGHTNING_USER_ID": "usr-1",
            "LIGHTNING_API_KEY": server.key,
        }

    def opens(self, store: Path) -> str:
        """A machine of the server is a process here: it sees the folder where it lies."""
        return f"folder:{store}"

    def saved(self, job: str) -> bool | None:
        return None

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
    with LightningServer(folder / "lightning") as server:
        yield LightningRig(server)

"""Colab as an acceptance test sees it: the loopback Colab in this process, Google's program, and its sign-in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from freegpu.testing.colab_server import ColabServer
from tests.servers.colab_cli import colab_program


class ColabRig:
    """See `rigs`."""

    name = "colab-cli"

    def __init__(self, server: ColabServer) -> None:
        self.server = server
        self.program = colab_program()

    @property
    def table(self) -> Mapping[str, Any]:
        return {
            "adapter": "colab-cli",
            "accepted": "free-unattended-use",
            "cli": self.program,
            "token": str(self.server.folder / "token.json"),
        }

    @property
    def env(self) -> Mapping[str, str]:
        # the program's sign-in lies where it always does, below the user's own home
        return {**self.server.env, "HOME": str(self.server.folder / "user")}

    @property
    def connect(self) -> tuple[str, ...]:
        return ("colab", "--accept", "free-unattended-use", "--cli", self.program)

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.server.refresh_token,)

    def opens(self, store: Path) -> str:
        return f"folder:{store}"

    def saved(self, job: str) -> bool | None:
        return None

    def lose(self) -> int:
        return self.server.lose()

    def refuse(self, on: bool) -> None:
        self.server.set_faults(refuse_capacity=on)

    def heard(self) -> bytes:
        path = self.server.folder / "requests.jsonl"
        return path.read_bytes() if path.exists() else b""


@contextmanager
def rig(folder: Path) -> Iterator[ColabRig]:
    """The platform until the block ends; it fails if any host but Colab's was asked for."""
    with ColabServer(folder / "colab") as server:
        server.sign_in(server.folder / "user" / ".config" / "colab-cli" / "token.json")
        yield ColabRig(server)
        assert server.refused == []

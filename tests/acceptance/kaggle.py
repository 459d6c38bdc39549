"""What the acceptance tests of Kaggle share: a server, and a user with a home folder of their own."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing.kaggle_server import KaggleServer

__all__ = ["attempts", "heard", "me", "secret_free", "server", "signed_in", "table"]

_TOKENS = ("API_TOKEN", "USERNAME", "KEY", "CONFIG_DIR", "KERNEL_RUN_TYPE", "DATA_PROXY_URL")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KaggleServer]:
    with KaggleServer(tmp_path / "kaggle") as server:
        yield server


@pytest.fixture
def me(user: Any, server: KaggleServer, tmp_path: Path) -> Any:
    """A user whose home folder holds no credentials, and who can reach no other Kaggle."""
    home = tmp_path / "me"
    (home / ".kaggle").mkdir(parents=True)
    for name in _TOKENS:
        user.env.pop(f"KAGGLE_{name}", None)
    user.env.pop("XDG_CONFIG_HOME", None)
    user.env |= {
        "HOME": str(home),
        "FREEGPU_KAGGLE_ENDPOINT": server.url,
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    user.settings()
    off = "[platforms.local]\nenabled = false\n"
    (user.home / "freegpu.toml").write_text((user.home / "freegpu.toml").read_text() + off)
    return user


@pytest.fixture
def signed_in(me: Any, server: KaggleServer) -> Any:
    (Path(me.env["HOME"]) / ".kaggle/access_token").write_text(server.token)
    return me


def table(user: Any) -> dict[str, Any]:
    """What freegpu.toml says of Kaggle."""
    read = tomllib.loads((user.home / "freegpu.toml").read_text())
    found: dict[str, Any] = read.get("platforms", {}).get("kaggle", {})
    return found


def attempts(user: Any, name: str = "count") -> list[tuple[str, str]]:
    return [(a["platform"], a["reason"]) for a in user.job(name)["attempts"]]


def heard(server: KaggleServer, operation: str) -> list[Any]:
    return [request.json for request in list(server.requests) if request.operation == operation]


def secret_free(user: Any, server: KaggleServer) -> None:
    """No credential lies in the home, whatever happened there."""
    for path in user.home.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for secret in (server.token, server.key, server.refresh, server.renewed):
                assert secret.encode() not in data, path

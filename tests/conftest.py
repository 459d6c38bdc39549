"""What holds for every test: no FREEGPU_* from the developer's shell, and no word to anybody but this machine."""

from __future__ import annotations

import os

import pytest

#: nobody listens on the discard port of the loopback: a client library that picks its own host ends here
DEAD_PROXY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's settings and credentials colour no result, and child processes reach loopback only."""
    for name in list(os.environ):
        if name.startswith("FREEGPU_"):
            monkeypatch.delenv(name)
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ):
        monkeypatch.setenv(name, DEAD_PROXY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost,::1")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost,::1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

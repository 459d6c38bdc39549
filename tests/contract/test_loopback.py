"""A loopback platform keeps the contract of a platform: what is proven on it holds for real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freegpu.testing.suites import AdapterSuite


class TestLoopbackWithQuota(AdapterSuite):
    """Two T4 for ten minutes a session, an hour a week, and the platform tells what is left."""

    name = "blue"
    adapter = "freegpu.testing.loopback:LoopbackAdapter"

    def options(self, folder: Path) -> Mapping[str, Any]:
        window = {"kind": "fixed_weekly", "limit_s": 3600}
        return {"card": "T4", "count": 2, "session_limit_s": 600, "window": window}


class TestLoopbackWithoutQuota(AdapterSuite):
    """One P100 without limits, whose sessions take a moment to come up."""

    name = "green"
    adapter = "freegpu.testing.loopback:LoopbackAdapter"

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"card": "P100", "start_delay_s": 0.3}

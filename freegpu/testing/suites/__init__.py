"""Conformance suites: subclass one in a test file, say how to open yours, and run pytest.

Needs pytest (`pip install "freegpu-scheduler[test]"`).
"""

from __future__ import annotations

import pytest

# before the suites are imported, so that a failing assert shows its values
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("adapter", "stage", "store")))

from freegpu.testing.suites.adapter import AdapterSuite, PaperSuite  # noqa: E402
from freegpu.testing.suites.stage import Stage  # noqa: E402
from freegpu.testing.suites.store import StoreSuite  # noqa: E402

__all__ = ["AdapterSuite", "PaperSuite", "Stage", "StoreSuite"]

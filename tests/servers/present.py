"""What becomes of a test whose server is not on this machine."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

#: set by .ci/run, which installs every server first: there a missing one is a mistake, not a reason to skip
NEEDED = "FREEGPU_TESTS_NEED_SERVERS"


def absent(why: str) -> NoReturn:
    """Skip the test and say why; where every server was to be installed, fail it."""
    if os.environ.get(NEEDED):
        pytest.fail(f"{why}, and {NEEDED} is set")
    pytest.skip(why)

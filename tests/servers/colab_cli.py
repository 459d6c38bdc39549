"""Google's own `colab` program for tests. It needs Python 3.12 or newer, which freegpu itself does not."""

from __future__ import annotations

import sys

from tests.servers.ahead import Ahead

COLAB = Ahead(
    folder="colab-cli",
    package="google-colab-cli",
    version="0.7.5",
    called="Google's colab program",
    wanted_by="the tests of Colab",
    lowest=(3, 12),
)
VERSION = COLAB.version


def colab_program() -> str:
    """The path of the program. Skips the test, or fails it in CI, where it was not made ahead."""
    return COLAB.path("colab")


if __name__ == "__main__":
    sys.exit(COLAB.main())

"""`python -m freegpu.testing.kaggle_server FOLDER [--port N]`."""

from __future__ import annotations

import sys

from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.platform_server import main

if __name__ == "__main__":
    sys.exit(main(KaggleServer))

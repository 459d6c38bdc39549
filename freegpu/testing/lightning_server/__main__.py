"""`python -m freegpu.testing.lightning_server FOLDER [--port N]`."""

from __future__ import annotations

import sys

from freegpu.testing.lightning_server import LightningServer
from freegpu.testing.platform_server import main

if __name__ == "__main__":
    sys.exit(main(LightningServer))

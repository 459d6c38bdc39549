"""Lightning AI on the loopback: its wire format as lightning-sdk 2026.10.13 speaks it, and jobs that really run.

`python -m freegpu.testing.lightning_server FOLDER`. What only the real platform can tell is not claimed here.
"""

from __future__ import annotations

from freegpu.testing.lightning_server.server import LightningServer

__all__ = ["LightningServer"]

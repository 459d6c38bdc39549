"""Kaggle on the loopback: its wire format as kagglesdk 0.1.38 speaks it, and kernels that really run.

`python -m freegpu.testing.kaggle_server FOLDER`. What only the real platform can tell is not claimed here.
"""

from __future__ import annotations

from freegpu.testing.kaggle_server.server import KaggleServer

__all__ = ["KaggleServer"]

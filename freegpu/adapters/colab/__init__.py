"""Google Colab by Google's own command line program `colab`; off unless a person connects it. See `adapter`."""

from __future__ import annotations

from freegpu.adapters.colab.account import forget_block
from freegpu.adapters.colab.adapter import GPUS, ColabAdapter

__all__ = ["GPUS", "ColabAdapter", "forget_block"]

"""Lightning AI as a platform, by plain REST; see `adapter`."""

from __future__ import annotations

from freegpu.adapters.lightning.adapter import LightningAdapter

__all__ = ["LightningAdapter"]

"""Kaggle notebooks as sessions, through Kaggle's own client library; see `adapter`."""

from __future__ import annotations

from freegpu.adapters.kaggle.adapter import KaggleAdapter

__all__ = ["KaggleAdapter"]

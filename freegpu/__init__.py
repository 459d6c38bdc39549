"""freegpu: one queue over all your free GPUs. Imports nothing: the agent ships this file too."""

__version__ = "0.1.0"

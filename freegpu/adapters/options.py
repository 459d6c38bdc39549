"""What every adapter checks of its table in freegpu.toml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from freegpu.errors import ConfigError

__all__ = ["refuse_unknown"]


def refuse_unknown(name: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """ConfigError: the table of platform `name` says something that its adapter does not know."""
    known = tuple(known)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            f"platform {name}: unknown option {unknown[0]!r}", hint=f"known: {', '.join(known)}"
        )

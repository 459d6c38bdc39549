"""Adapters by name: installed ones (entry points), or "module:Class". Imported only when one is made."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from freegpu.adapters.base import Adapter
from freegpu.clock import Clock
from freegpu.config import PlatformSettings
from freegpu.errors import ConfigError, FreeGPUError, UnknownAdapterError

GROUP = "freegpu.adapters"


def known() -> tuple[str, ...]:
    """Names of installed adapters."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def create(
    name: str, adapter: str, options: Mapping[str, Any], *, home: Path, clock: Clock
) -> Adapter:
    """The adapter for a platform of the configuration.

    UnknownAdapterError: nothing of that name; ConfigError: it does not take these options.
    """
    kind = _load(name, resolve(adapter))
    if not callable(getattr(kind, "from_options", None)):
        raise UnknownAdapterError(
            f"platform {name}: {adapter} is not an adapter: it has no from_options",
            hint="name the class, as in `module:Class`",
        )
    try:
        made = kind.from_options(name, options, home=home, clock=clock)
    except FreeGPUError:
        raise
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"platform {name}: its options are not usable: {error}",
            hint=f"see the [platforms.{name}] table in freegpu.toml",
        ) from error
    return cast("Adapter", made)


def resolve(adapter: str) -> str:
    """The name of the adapter that is meant: a kind of notebook stands for `attended` unless one is installed for it."""
    from freegpu.adapters import attended

    return "attended" if adapter in attended.kinds() and adapter not in known() else adapter


def kind_of(name: str, adapter: str) -> Any:
    """The adapter's class. UnknownAdapterError."""
    return _load(name, resolve(adapter))


def refuse_second_accounts(platforms: Mapping[str, PlatformSettings]) -> None:
    """ConfigError: two of these are accounts on one platform that allows a person one."""
    seen: dict[str, str] = {}
    for name, platform in platforms.items():
        word = getattr(kind_of(name, platform.adapter), "one_account", "")
        if word and word in seen:
            raise ConfigError(
                f"platforms {seen[word]} and {name} are both accounts on {word}",
                hint=f"one account a platform: rotating accounts breaks {word}'s terms; remove one of them"
                " from freegpu.toml",
            )
        if word:
            seen[word] = name


def _load(name: str, adapter: str) -> Any:
    module, colon, kind = adapter.partition(":")
    try:
        if colon:
            return getattr(importlib.import_module(module), kind)
        for entry in entry_points(group=GROUP):
            if entry.name == adapter:
                return entry.load()
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise UnknownAdapterError(
            f"platform {name}: {adapter} cannot be loaded: {error}",
            hint="install the package that brings it, or correct `adapter`",
        ) from error
    near = difflib.get_close_matches(adapter.casefold(), known(), 1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise UnknownAdapterError(
        f"platform {name}: there is no adapter {adapter!r}",
        hint=f"{guess}known: {', '.join(known()) or 'none'}, or module:Class",
    )

"""Shared storage: one protocol, one module a backend, opened by URL."""

from __future__ import annotations

import importlib
import json
from typing import Any, Dict, Optional

from freegpu.agent.stores.base import Access, ForeignStore, Store, StoreError

__all__ = ["FORMAT", "Access", "Store", "StoreError", "check_home", "open_store"]

#: the version of the store's layout; see docs/protocol.md
FORMAT = 1

#: scheme of the URL -> (module, class); imported on use
_BACKENDS = {
    "folder": ("freegpu.agent.stores.folder", "FolderStore"),
    "s3": ("freegpu.agent.stores.s3", "S3Store"),
    "drive": ("freegpu.agent.stores.drive", "DriveStore"),
}


def open_store(url: str, access: Optional[Access] = None) -> Store:
    """The store behind `folder:/path` (a bare path is a folder too).

    Asks no server anything yet. ValueError: unknown scheme, or a URL that cannot be meant.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in _BACKENDS:
        if colon and "/" not in scheme and len(scheme) > 1:
            message = f"no store speaks {scheme!r}; known: {', '.join(sorted(_BACKENDS))}"
            raise ValueError(message)
        scheme, rest = "folder", url
    if scheme == "folder" and not rest.strip():
        message = "a folder store names its folder, as in folder:/data/freegpu"
        raise ValueError(message)
    module, name = _BACKENDS[scheme]
    store: Store = getattr(importlib.import_module(module), name)(rest, access)
    return store


def check_home(store: Store, home: str) -> None:
    """Raise ForeignStore unless the store's marker names this home and a format we speak."""
    try:
        marker: Dict[str, Any] = json.loads(store.get("freegpu.json"))
        found, version = str(marker["home"]), int(marker["format"])
    except (ValueError, KeyError, TypeError) as error:
        message = "freegpu.json in the store is not readable"
        raise StoreError(message) from error
    if version > FORMAT:
        message = f"the store has format {version}; this freegpu reads up to {FORMAT}"
        raise ForeignStore(message)
    if found != home:
        message = f"the store belongs to home {found}, not to {home}"
        raise ForeignStore(message)

"""Opening any store. `sftp:` and `rclone:` live here: only the orchestrator reaches them, agents see the same tree another way."""

from __future__ import annotations

import importlib

from freegpu.agent.stores import Access, Store, open_store

__all__ = ["SCHEMES", "open_any", "orchestrator_only"]

#: scheme of the URL -> (module, class), imported on use; each is given what stands behind the colon
SCHEMES = {
    "sftp": ("freegpu.adapters.stores.sftp", "SftpStore"),
    "rclone": ("freegpu.adapters.stores.rclone", "RcloneStore"),
}


def orchestrator_only(url: str) -> bool:
    """Whether an agent cannot open this URL by itself."""
    return url.partition(":")[0] in SCHEMES


def open_any(url: str, access: Access | None = None) -> Store:
    """The store behind any URL that freegpu knows. Asks no server anything yet.

    ValueError: unknown scheme, or a URL that cannot be meant.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCHEMES:
        try:
            return open_store(url, access)
        except ValueError as error:
            known = str(error)
            if "no store speaks" not in known:
                raise
            message = f"{known}, {', '.join(SCHEMES)}"
            raise ValueError(message) from None
    module, name = SCHEMES[scheme]
    store: Store = getattr(importlib.import_module(module), name)(rest, access)
    return store

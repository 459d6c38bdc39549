"""Opening the shared store: first use, later use, and every way in which it may not be ours or not be there."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from freegpu.adapters.base import Adapter, Entrusted
from freegpu.adapters.stores import open_any, orchestrator_only
from freegpu.agent import stores
from freegpu.agent.stores import s3_place, sigv4
from freegpu.agent.stores.base import (
    Access,
    ForeignStore,
    ObjectMissing,
    Store,
    StoreError,
    StoreGone,
)
from freegpu.agent.wire import canonical
from freegpu.clock import Clock, SystemClock, utc
from freegpu.config import Settings, without_password
from freegpu.errors import ConfigError, ForeignStoreError, SharedStoreError
from freegpu.orchestrator import probe
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.probe import Measured

MARKER = "freegpu.json"
#: a server that has not answered for so long when its store is opened is away, seconds
ANSWER_S = 8.0
#: stores on the far side of a line that may be down, which their clients tell from an absent root
_DIALLED = ("sftp:", "rclone:")
#: the same, but their folder is made at first use
_ASKED = ("s3:", "drive:")


def folder_of(url: str) -> Path | None:
    """The folder behind a folder store's URL; None for any other store."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "folder":
        return Path(rest)
    return None if colon and "/" not in scheme else Path(url)


def open_shared(
    settings: Settings,
    ledger: Ledger,
    home_id: str,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> Store:
    """The store, checked to be this home's; made if this home never had one there.

    A store that this home has used before is never made anew: if it is gone, its checkpoints are, and only a
    person can know whether a disk is merely unplugged.
    """
    where = settings.sources.get("store", "default")
    used_before = ledger.meta(f"store:{settings.store}") is not None
    folder = folder_of(settings.store)
    if folder is not None and not used_before and not folder.exists():
        _make(folder, default=where == "default")
    store = open_client(settings, ledger, progress=progress)
    hurried = getattr(store, "hurried", None)
    try:
        # somebody may wait for this command: whether the server is there at all is known soon
        with nullcontext() if hurried is None else hurried(ANSWER_S):
            stores.check_home(store, home_id)
    except ForeignStore as error:
        raise ForeignStoreError(
            str(error),
            hint="the ledger of this home was lost or replaced: restore it, or move the store away"
            if where == "default"
            else f"the store is set by {where}; choose another one, or use the home it belongs to",
        ) from error
    except (ObjectMissing, StoreGone) as error:
        far = _DIALLED + (_ASKED if used_before else ())
        if isinstance(error, StoreGone) and settings.store.startswith(far):
            # a host that does not answer is not a store that is gone, and a new one would not answer either
            raise SharedStoreError(
                str(error),
                hint="try again when it answers or is put back: what lies in the store is not lost by this"
                if used_before
                else "see that it answers and that its folder exists, then try again",
            ) from error
        if used_before:
            raise SharedStoreError(
                f"the store {settings.store} is gone: it was there before, and holds the checkpoints",
                hint="mount or restore it and try again; to begin with an empty one, use a new FREEGPU_HOME",
            ) from error
        _mark(store, settings.store, home_id)
    except StoreError as error:
        raise SharedStoreError(str(error), hint="run `freegpu doctor`") from error
    if not used_before:
        ledger.set_meta(f"store:{settings.store}", "made", if_absent=True)
    return store


def open_client(
    settings: Settings,
    ledger: Ledger,
    *,
    known: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Store:
    """A client of the configured store, with credentials and with what a probe found; nothing is checked yet.

    `known` False: as careful as if nothing had been found. ConfigError: the URL cannot be meant, or credentials are missing.
    """
    try:
        access = replace(access_for(settings, ledger), progress=progress)
        return open_any(settings.store, access if known else replace(access, known=None))
    except ValueError as error:
        where = settings.sources.get("store", "default")
        raise ConfigError(
            f"the store {settings.store!r} (from {where}) cannot be used: {error}",
            hint='set `store` to a folder, e.g. store = "folder:/data/freegpu"',
        ) from error


def measured(ledger: Ledger, url: str, clock: Clock | None = None) -> Measured | None:
    """What the newest probe of this store found; None: there was none lately."""
    return probe.load(ledger.meta(_found_key(url)), utc(clock or SystemClock()))


def remember(ledger: Ledger, url: str, found: Measured) -> None:
    """Keep what a probe found, for every client that is opened from now on."""
    ledger.set_meta(_found_key(url), probe.dump(found))


def _found_key(url: str) -> str:
    return f"store:{url}:properties"


def hang_up(store: Store) -> None:
    """End what a store's client keeps open (a connection, a process), if it keeps anything."""
    close = getattr(store, "close", None)
    if close is not None:
        close()


def access_for(settings: Settings, ledger: Ledger) -> Access:
    """What opening the configured store needs besides its URL. S3 and SFTP read the user's own files for it."""
    access = Access()
    if settings.store.startswith("drive:"):
        from freegpu.orchestrator import drive_access

        access = drive_access.access_for(settings)
    found = measured(ledger, settings.store)
    return replace(access, known=found.properties if found else None, bandwidth=settings.bandwidth)


def unseen(settings: Settings, adapter: Adapter) -> str:
    """Why sessions on this platform could not open the store; "" if they can, or need not."""
    known, url = adapter.capabilities, settings.store_for(adapter.name)
    if known.attended or known.sealed:
        return ""
    say = f"say in [platforms.{adapter.name}] how it sees the store"
    if orchestrator_only(url):
        return f'an agent cannot open {without_password(url)}: {say}, e.g. store = "folder:/mnt/freegpu"'
    named = settings.platforms.get(adapter.name)
    if folder_of(url) is not None and not known.here and not (named is not None and named.store):
        return f"sessions there cannot open {url}, a folder of this machine: {say}, or choose a store that both reach"
    return ""


def out_of_reach(url: str) -> str:
    """Which kind of address an s3 store has that means nothing elsewhere: "loopback", "private", or "" if it has none.

    Offline: a name is judged by its ending and never looked up.
    """
    if not url.startswith("s3:"):
        return ""
    try:
        host = urlsplit(s3_place.place(url.removeprefix("s3:"))[2]).hostname or ""
    except ValueError:
        return ""
    if host == "localhost" or host.endswith(".localhost"):
        return "loopback"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        local = "." not in host or host.endswith((".local", ".lan", ".internal", ".home.arpa"))
        return "private" if local else ""
    if address.is_loopback or address.is_unspecified:
        return "loopback"
    return "private" if not address.is_global else ""


def entrust(adapter: Adapter, settings: Settings, ledger: Ledger, name: str) -> None:
    """Let the adapter hand its sessions what opening the store takes, asked for at each start."""
    if isinstance(adapter, Entrusted):
        here = adapter.capabilities.here
        adapter.entrust(partial(secrets_for, settings, ledger, name, here=here))


def secrets_for(
    settings: Settings, ledger: Ledger, platform: str, *, here: bool
) -> Mapping[str, str]:
    """What a session on this platform needs to open the store, by name. ConfigError, StoreError: it is not to be had.

    `here`: it runs as this user on this machine and finds the user's own files by itself.
    """
    url = settings.store_for(platform)
    if url.startswith("s3:") and not here:
        return sigv4.named(sigv4.find_key({}))
    return access_for(replace(settings, store=url), ledger).secrets


def _make(folder: Path, *, default: bool) -> None:
    try:
        # a store on a disk that is not mounted must not be made on the disk beneath it
        folder.mkdir(parents=default, exist_ok=True)
    except FileNotFoundError:
        raise SharedStoreError(
            f"the store's parent folder {folder.parent} is not there",
            hint="mount it or make it, then try again",
        ) from None
    except OSError as error:
        raise SharedStoreError(
            f"the store {folder} cannot be made ({error.strerror or error})",
            hint="choose another folder with FREEGPU_STORE",
        ) from error


def _mark(store: Store, url: str, home_id: str) -> None:
    try:
        store.put_new(MARKER, canonical({"format": stores.FORMAT, "home": home_id}))
        stores.check_home(store, home_id)
    except ForeignStore as error:
        raise ForeignStoreError(
            str(error), hint="two homes raced for it; choose another store"
        ) from error
    except StoreError as error:
        raise SharedStoreError(
            f"the store {url} cannot be written: {error}",
            hint="make its bucket or folder if there is none, see that your key may write there, or choose another one",
        ) from error

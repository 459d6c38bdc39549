"""The sign-in to Google Drive of this home: kept in the system's keyring, or in a private file where there is none.

`drive.json` in the home says which: it holds the sign-in itself (mode 0600), or that the keyring has it, so that a command
which needs no Drive never asks the keyring. The environment variable FREEGPU_DRIVE goes before both.
"""

from __future__ import annotations

import configparser
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from freegpu.agent.stores.base import Access, StoreError
from freegpu.agent.stores.drive import DEFAULT, DriveStore
from freegpu.agent.stores.google import SECRET, SignInGone, is_loopback, is_safe, parse_secret
from freegpu.config import Settings
from freegpu.errors import AuthError, ConfigError, SharedStoreError
from freegpu.orchestrator.home import make_home, write_private

__all__ = [
    "FULL",
    "SCOPES",
    "Client",
    "SignedIn",
    "access_for",
    "check",
    "from_rclone",
    "keep",
    "kept",
]

log = logging.getLogger(__name__)

FILE = "drive.json"
#: developers.google.com/workspace/drive/api/guides/api-specific-auth
FULL = "https://www.googleapis.com/auth/drive"
SCOPES: Mapping[str, str] = {"drive.file": f"{FULL}.file", "drive": FULL}
_MAX_FILE = 100_000
#: under this name, and the home's path, the keyring keeps it
_KEYRING = "freegpu drive"
_AUTH = "https://accounts.google.com/o/oauth2/v2/auth"


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """An OAuth client of the kind "desktop app": the program in whose name the person signs in."""

    id: str
    secret: str
    auth_uri: str
    token_uri: str

    @classmethod
    def read(cls, path: Path) -> Client:
        """From the JSON file that Google's console offers. ConfigError: it is something else."""
        try:
            with path.open("rb") as file:
                document = json.loads(file.read(_MAX_FILE))
        except OSError as error:
            raise ConfigError(
                f"the client file {path} cannot be read ({error.strerror or error})",
                hint="download it in Google's console: Clients, your desktop app, Download JSON",
            ) from error
        except ValueError:
            document = None
        if isinstance(document, dict) and "web" in document:
            raise ConfigError(
                f"{path} is of a web application, which cannot sign in from here",
                hint='make another OAuth client, of the type "Desktop app"',
            )
        try:
            found: Any = document["installed"]
            client = cls(
                id=str(found["client_id"]),
                secret=str(found["client_secret"]),
                auth_uri=str(found.get("auth_uri") or _AUTH),
                token_uri=str(found.get("token_uri") or "https://oauth2.googleapis.com/token"),
            )
        except (TypeError, KeyError, AttributeError):
            raise ConfigError(
                f"{path} is not the JSON file of an OAuth client",
                hint='it begins with {"installed": and holds client_id and client_secret',
            ) from None
        for url in (client.auth_uri, client.token_uri):
            if not is_safe(url):
                raise ConfigError(
                    f"{path} names {url[:80]}, which is not https",
                    hint="download the file anew: a client's secret goes to no such address",
                )
        return client


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedIn:
    """A sign-in that was tried just now. Sizes are bytes; None: without limit."""

    account: str
    #: "drive.file" or "drive"
    scope: str
    free: int | None
    total: int | None
    #: the store that it can be used for
    store: str
    #: other folders of the store's name in that Drive
    twins: int


def access_for(settings: Settings) -> Access:
    """What opening a Drive store needs; without a sign-in the store itself says what to do. ConfigError."""
    text = os.environ.get(SECRET) or kept(settings.home)
    return Access(secrets={SECRET: text} if text else {})


def kept(home: Path) -> str:
    """The sign-in as text, as the secret FREEGPU_DRIVE has it; "": there is none. ConfigError: it cannot be read."""
    path = home / FILE
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise ConfigError(
            f"the sign-in to Drive in {path} cannot be read ({reason})",
            hint="delete the file and run `freegpu connect drive` again",
        ) from error
    if document != {"kept_in": "keyring"}:
        return json.dumps(document)
    import keyring
    from keyring.errors import KeyringError

    try:
        found = keyring.get_password(_KEYRING, str(home))
    except KeyringError as error:
        raise ConfigError(
            f"the keyring does not give the sign-in to Drive ({type(error).__name__})",
            hint="unlock it, or run `freegpu connect drive` again",
        ) from error
    return found or ""


def keep(home: Path, grant: Mapping[str, str]) -> str:
    """Keep a sign-in; "keyring", or the path of the private file. ConfigError: neither works."""
    make_home(home)
    text = json.dumps(dict(grant))
    path = home / FILE
    in_keyring = _into_keyring(str(home), text)
    try:
        write_private(path, b'{"kept_in": "keyring"}' if in_keyring else text.encode())
    except OSError as error:
        raise ConfigError(
            f"the sign-in cannot be kept in {path} ({error.strerror or error})",
            hint="mend the permissions of its folder",
        ) from error
    return "keyring" if in_keyring else str(path)


def _into_keyring(name: str, text: str) -> bool:
    """Whether the system has a keyring that gives back what it was given."""
    import keyring
    from keyring.errors import KeyringError

    try:
        keyring.set_password(_KEYRING, name, text)
        return keyring.get_password(_KEYRING, name) == text
    except KeyringError as error:
        log.debug("no keyring: %s", error)
    except (
        Exception
    ) as error:  # backends speak to D-Bus, Keychain and more, and raise what those raise
        log.debug("the keyring failed: %s: %s", type(error).__name__, error)
    return False


def check(
    grant: Mapping[str, str],
    folder: str = DEFAULT,
    *,
    open_drive: Callable[..., DriveStore] = DriveStore,
) -> SignedIn:
    """Ask Drive who we are, how much is left, and what bears the store's name already.

    AuthError: it does not take the sign-in. SharedStoreError: no answer, or the API is not enabled.
    """
    url = store_url(grant, folder)
    access = Access(secrets={SECRET: json.dumps(dict(grant))})
    store = open_drive(url.partition(":")[2], access)
    try:
        account, free, total = store.account()
        twins = store.look()
    except SignInGone as error:
        raise AuthError(str(error), hint="sign in again with `freegpu connect drive`") from error
    except StoreError as error:
        raise SharedStoreError(
            f"signed in, but Drive cannot be used: {error}",
            hint="the sign-in was not kept; mend it and run `freegpu connect drive` again",
        ) from error
    scope = "drive" if FULL in grant.get("scope", "").split() else "drive.file"
    return SignedIn(account=account, scope=scope, free=free, total=total, store=url, twins=twins)


def store_url(grant: Mapping[str, str], folder: str = DEFAULT) -> str:
    """The store's URL. A sign-in to a Drive server on this machine is of use there only."""
    token_uri = grant.get("token_uri", "")
    url = f"drive:{quote(folder)}"
    if is_loopback(token_uri):
        url += f"?endpoint=http://{urlsplit(token_uri).netloc}"
    return url


def client_of(text: str) -> Client | None:
    """The client that a kept sign-in was made with, so that nobody is asked for its file again."""
    try:
        grant = parse_secret(text)
        auth_uri = str(json.loads(text).get("auth_uri") or "")
    except SignInGone:
        return None
    if not is_safe(auth_uri):
        return None  # the sign-in came from elsewhere
    return Client(
        id=grant["client_id"],
        secret=grant["client_secret"],
        auth_uri=auth_uri,
        token_uri=grant["token_uri"],
    )


def from_rclone(remote: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The sign-in of a remote of rclone's. ConfigError: it has none that can be used."""
    path = _rclone_file(environ)
    try:
        raw = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"rclone's configuration {path} cannot be read ({error.strerror or error})",
            hint="`rclone config file` tells where it is; set RCLONE_CONFIG to it",
        ) from error
    if "RCLONE_ENCRYPT_V" in raw[:400]:
        raise ConfigError(
            f"rclone's configuration {path} is encrypted, and freegpu does not ask for its password",
            hint="sign in with your own client: freegpu connect drive --client FILE.json",
        )
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(raw)
    except configparser.Error as error:
        raise ConfigError(
            f"rclone's configuration {path} cannot be understood",
            hint="`rclone config show` tells why",
        ) from error
    name = remote.rstrip(":")
    if not parser.has_section(name):
        found = ", ".join(
            s for s in parser.sections() if parser.get(s, "type", fallback="") == "drive"
        )
        raise ConfigError(
            f"rclone has no remote {name!r} in {path}",
            hint=f"its Drive remotes are: {found or 'none'}",
        )
    section = dict(parser[name])
    _refuse_remote(name, section)
    try:
        refresh = str(json.loads(section.get("token", ""))["refresh_token"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"the remote {name} is not signed in",
            hint=f"run `rclone config reconnect {name}:` first",
        ) from None
    scopes = [
        part for part in section.get("scope", "drive").replace(",", " ").split() if part in SCOPES
    ]
    if not scopes:
        raise ConfigError(
            f"the remote {name} may not write files (scope {section.get('scope')})",
            hint="freegpu needs the scope drive or drive.file",
        )
    return {
        "client_id": section["client_id"],
        "client_secret": section["client_secret"],
        "refresh_token": refresh,
        "token_uri": section.get("token_url") or "https://oauth2.googleapis.com/token",
        "scope": " ".join(SCOPES[scope] for scope in scopes),
    }


def _refuse_remote(name: str, section: Mapping[str, Any]) -> None:
    """ConfigError where a remote is none that the store can use."""
    kind = section.get("type", "")
    if kind != "drive":
        raise ConfigError(
            f"the remote {name} is of type {kind or 'none'}, not drive",
            hint=f"any remote can be a store as it is: freegpu connect store rclone:{name}:freegpu",
        )
    if section.get("service_account_file") or section.get("service_account_credentials"):
        raise ConfigError(
            f"the remote {name} is a service account, which has no space of its own in Drive",
            hint="sign in as yourself: freegpu connect drive --client FILE.json",
        )
    if section.get("team_drive"):
        raise ConfigError(
            f"the remote {name} is a shared drive, and the store is a folder in My Drive",
            hint=f"use it through rclone: freegpu connect store rclone:{name}:freegpu",
        )
    if not section.get("client_id") or not section.get("client_secret"):
        raise ConfigError(
            f"the remote {name} signs in with rclone's own OAuth client, which is rclone's and shared by all its users",
            hint="give the remote a client_id of your own, or: freegpu connect drive --client FILE.json",
        )


def _rclone_file(environ: Mapping[str, str]) -> Path:
    """Where rclone keeps its configuration: rclone.org/docs, "--config"."""
    if environ.get("RCLONE_CONFIG"):
        return Path(environ["RCLONE_CONFIG"]).expanduser()
    home = Path(environ.get("HOME") or Path.home())
    base = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    for path in (base / "rclone" / "rclone.conf", home / ".rclone.conf"):
        if path.exists():
            return path
    return base / "rclone" / "rclone.conf"

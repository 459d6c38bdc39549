"""Which credentials a person has for Kaggle, found where Kaggle's own tools keep them, and never copied.

The order is theirs: access token, legacy key, OAuth sign-in (kagglesdk 0.1.38 and kaggle 2.2.5, looked at on
2026-12-02). One thing is done otherwise: kagglesdk takes an OAuth token for valid until 30 minutes after it expired.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from freegpu.errors import AuthError

__all__ = ["Credentials", "find"]

HINT = "make a token at https://www.kaggle.com/settings and keep it in ~/.kaggle/access_token"
#: a token that expires within this many seconds is renewed first
_SPARE_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """One way to sign in; what is secret is in no repr."""

    #: "access token", "legacy key" or "OAuth sign-in"
    kind: str
    #: where it was found, for people
    where: str
    #: the user name where it is kept beside the secret, else ""
    username: str = ""
    token: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    #: epoch seconds; None: not known
    expires_at: float | None = None

    def stale(self, now: float) -> bool:
        """Whether it has to be looked up or renewed before it is used again."""
        return self.expires_at is not None and self.expires_at - now < _SPARE_S


def find() -> Credentials:
    """The credentials that Kaggle's own tools would use. AuthError: there are none, or they cannot be read."""
    from kagglesdk.kaggle_env import get_access_token_from_env

    try:
        token, source = get_access_token_from_env()
    except (OSError, ValueError) as error:
        raise AuthError(f"the access token cannot be read: {error}", hint=HINT) from error
    if token:
        return Credentials(kind="access token", where=_where(str(source)), token=str(token))
    found = _legacy() or _oauth()
    if found is None:
        raise AuthError("there are no credentials for Kaggle on this machine", hint=HINT)
    return found


def _where(source: str) -> str:
    if source == "KAGGLE_API_TOKEN":
        given = os.environ.get(source, "")
        return f"the file that {source} names" if os.path.exists(given) else source
    return "~/.kaggle/access_token" if source == "access_token" else source


def _legacy() -> Credentials | None:
    user, key = os.environ.get("KAGGLE_USERNAME"), os.environ.get("KAGGLE_KEY")
    if user and key:
        where = "KAGGLE_USERNAME and KAGGLE_KEY"
        return Credentials(kind="legacy key", where=where, username=user, key=key)
    for folder in _folders():
        path = folder / "kaggle.json"
        told = _read(path)
        user, key = told.get("username"), told.get("key")
        if isinstance(user, str) and isinstance(key, str) and user and key:
            return Credentials(kind="legacy key", where=str(path), username=user, key=key)
    return None


def _folders() -> list[Path]:
    home = Path(os.path.expanduser("~"))
    named = os.environ.get("KAGGLE_CONFIG_DIR")
    if named:
        return [Path(named)]
    config = os.environ.get("XDG_CONFIG_HOME") or str(home / ".config")
    return [home / ".kaggle", Path(config) / "kaggle"]


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none. AuthError: there is one that cannot be read."""
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise AuthError(f"{path} cannot be read: {type(error).__name__}", hint=HINT) from error
    return told if isinstance(told, dict) else {}


def _oauth() -> Credentials | None:
    path = Path(os.path.expanduser("~/.kaggle/credentials.json"))
    told = _read(path)
    if not told.get("refresh_token"):
        return None
    try:
        expires = datetime.fromisoformat(str(told.get("access_token_expiration") or ""))
        if expires.tzinfo is None:
            expires = expires.replace(tzinfo=UTC)
        expires_at = expires.timestamp()
    except ValueError:
        expires_at = 0.0
    return Credentials(
        kind="OAuth sign-in",
        where=str(path),
        username=str(told.get("username") or ""),
        token=str(told.get("access_token") or ""),
        expires_at=expires_at if told.get("access_token") else 0.0,
    )

"""A notebook's own secret store, its way to hand out access tokens, and its way to give the machine back.

One class a kind of notebook. Nothing found here is printed, written into the notebook or handed to a job.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

#: the name under which a notebook's secret store keeps the cell's key, where the notebook itself is public
KEY_NAME = "FREEGPU_CELL_KEY"
#: an access token and the seconds that it is good for
Token = Tuple[str, float]


class VaultError(Exception):
    """A secret or a right is missing; the text says where a person puts it."""


class Vault:
    """Any notebook: secrets come from the environment."""

    where = "the environment of the notebook's kernel"

    def find(self, names: Iterable[str]) -> Dict[str, str]:
        """The secrets of these names; one that ends with "?" may be missing. VaultError."""
        found = {}
        for name in names:
            wanted = name.rstrip("?")
            value = os.environ.get(wanted) or self._get(wanted)
            if value:
                found[wanted] = value
            elif wanted == name:
                message = f"the secret {name} is not there: {self.advice(name)}"
                raise VaultError(message)
        return found

    def advice(self, name: str) -> str:
        """Where a person puts it."""
        return f"put {name} into {self.where}"

    def token(self, scope: str) -> Callable[[], Token]:
        """Hands out fresh access tokens of the person who runs the notebook. VaultError."""
        message = "this notebook has no way to ask for access to Google Drive; use the secret FREEGPU_DRIVE"
        raise VaultError(message)

    def release(self) -> None:
        """Give the machine back, where the platform lets a notebook do so."""

    def _get(self, name: str) -> Optional[str]:
        return None


class ColabVault(Vault):
    """Google Colab: Secrets (the key icon), google.colab.auth, runtime.unassign."""

    where = "Colab's Secrets (the key icon at the left), with notebook access on"

    def __init__(self) -> None:
        try:
            import google.colab  # noqa: F401
        except ImportError:
            message = (
                "this cell is for Google Colab; `freegpu cell jupyter` makes one for any notebook"
            )
            raise VaultError(message) from None

    def _get(self, name: str) -> Optional[str]:
        from google.colab import userdata

        try:
            value: Optional[str] = userdata.get(name)
        except Exception as error:  # its own classes: not found, no access, time-out without a page
            if type(error).__name__ == "SecretNotFoundError":
                return None
            message = f"Colab does not hand out the secret {name}: {self.advice(name)} ({type(error).__name__})"
            raise VaultError(message) from None
        return value

    def token(self, scope: str) -> Callable[[], Token]:
        from google.colab import auth

        try:
            auth.authenticate_user()
            import google.auth
            from google.auth.transport.requests import Request

            credentials: Any = google.auth.default(scopes=[scope])[0]
        except Exception as error:  # whatever the person or the page answered
            message = (
                f"Colab gave no access to Google Drive: {error}; run the cell again and allow it"
            )
            raise VaultError(message) from None

        def fresh() -> Token:
            try:
                credentials.refresh(Request())
            except Exception as error:
                message = f"Google gave no fresh access token: {error}"
                raise VaultError(message) from None
            expiry = credentials.expiry
            # naive UTC, as google-auth keeps it
            seconds = 3000.0 if expiry is None else (expiry - _utcnow()).total_seconds()
            return str(credentials.token), max(0.0, seconds)

        return fresh

    def release(self) -> None:
        from google.colab import runtime

        print("freegpu: giving the runtime back")
        runtime.unassign()


class KaggleVault(Vault):
    """Kaggle notebooks: Add-ons > Secrets."""

    where = "the notebook's Add-ons > Secrets, attached to this notebook"

    def _get(self, name: str) -> Optional[str]:
        try:
            from kaggle_secrets import UserSecretsClient
        except ImportError:
            return None
        try:
            value: Optional[str] = UserSecretsClient().get_secret(name)
        except Exception:  # its own classes, one for each thing that can be missing
            return None
        return value


def vault(platform: str) -> Vault:
    """The secret store of this kind of notebook. VaultError: the cell is not where it should be."""
    if platform == "colab":
        return ColabVault()
    return KaggleVault() if platform == "kaggle" else Vault()


def _utcnow() -> Any:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(time.time(), timezone.utc).replace(tzinfo=None)

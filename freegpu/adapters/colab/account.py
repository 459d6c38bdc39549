"""The account itself, asked by us with the sign-in that Google's program keeps: quota, runtimes, and giving them back.

The program shows neither quota nor outcomes, and dies of a list with a word that it does not know.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freegpu.adapters.colab.answers import Ccu, NotFoundError, body
from freegpu.adapters.colab.program import SIGN_IN, Program
from freegpu.adapters.hosts import held, write_private
from freegpu.errors import (
    AdapterError,
    AuthError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["Account", "forget_block"]

BACKEND = "https://colab.research.google.com/tun/m"
#: seconds that one request of ours may take
_REQUEST_S = 10.0


class Account:
    """One Google account; `folder` is where this platform keeps what it notes."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.who = program.who
        #: how far Google's clock is ahead of ours, seconds, by its last answer; None: it has not said
        self.skew_s: float | None = None
        self._client: httpx.Client | None = None

    def close(self) -> None:
        """Hang up; it connects again when it is asked something."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ccu(self) -> Ccu:
        return Ccu.read(self.ask("GET", f"{BACKEND}/ccu-info"))

    def refill(self) -> datetime | None:
        try:
            return self.ccu().refill
        except AdapterError:
            return None

    def assignments(self) -> dict[str, str]:
        """Accelerator by endpoint, of every runtime of the account; also words that the program would die of."""
        told = self.ask("GET", f"{BACKEND}/assignments").get("assignments") or []
        return {
            str(item["endpoint"]): str(item.get("accelerator", ""))
            for item in told
            if isinstance(item, dict) and item.get("endpoint")
        }

    def unassign(self, endpoint: str) -> None:
        """Give a runtime back; silent if it is gone."""
        url = f"{BACKEND}/unassign/{endpoint}"
        with contextlib.suppress(NotFoundError):
            proof = str(self.ask("GET", url).get("token", ""))
            self.ask("POST", url, {"X-Goog-Colab-Token": proof})

    def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """One request with the program's own sign-in. An empty answer is {}."""
        import httpx

        if self._client is None:
            self._client = httpx.Client(timeout=_REQUEST_S, verify=_trust())
        around = {
            "Authorization": f"Bearer {self.bearer()}",
            "Accept": "application/json",
            **(headers or {}),
        }
        try:
            reply = self._client.request(
                method, url, params=None if "?" in url else {"authuser": "0"}, headers=around
            )
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"Colab does not answer: {type(error).__name__}",
                hint="check the connection, and HTTPS_PROXY and REQUESTS_CA_BUNDLE where you use them",
                **self.who,
            ) from error
        with contextlib.suppress(TypeError, ValueError):  # no Date, or none that can be read
            date = parsedate_to_datetime(reply.headers.get("Date", ""))
            self.skew_s = date.timestamp() - time.time()
        if reply.status_code >= 400:
            raise self.error(
                reply.status_code, reply.headers, url.rpartition("/tun/m/")[2].partition("/")[0]
            )
        return body(reply.text)

    def error(self, status: int, headers: Mapping[str, str], what: str) -> AdapterError:
        if status in (401, 403):
            return AuthError(
                f"Colab does not accept the sign-in ({status})", hint=SIGN_IN, **self.who
            )
        if status == 404:
            return NotFoundError(f"Colab does not know that ({what})", **self.who)
        if status == 429:
            wait = str(headers.get("Retry-After", headers.get("retry-after", "")))
            return RateLimitedError(
                "Colab asks for fewer requests",
                retry_after_s=float(wait) if wait.isdigit() else None,
                **self.who,
            )
        if status >= 500:
            return UnreachableError(f"Colab has a problem ({status} to {what})", **self.who)
        return RejectedError(f"Colab answered {status} to {what}", **self.who)

    def bearer(self) -> str:
        """The program's access token; one that has ended is renewed by the program itself."""
        token, ends = self._signed_in()
        if ends is not None and ends - time.time() < 60:
            place = self.folder / "renew"
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            with held(place / "lock"):
                token, ends = self._signed_in()
                if ends is not None and ends - time.time() < 60:
                    self.program.run(place, ["usage"])
                    token, ends = self._signed_in()
            if ends is not None and ends <= time.time():
                raise AuthError("the sign-in has ended", hint=SIGN_IN, **self.who)
        return token

    def _signed_in(self) -> tuple[str, float | None]:
        """The access token and when it ends, epoch seconds. AuthError."""
        try:
            told = json.loads(self.program.token_path.read_bytes())
            token, ends = str(told["token"]), told.get("expiry")
            moment = datetime.fromisoformat(str(ends).replace("Z", "+00:00")) if ends else None
        except FileNotFoundError:
            raise AuthError(
                f"the colab program has no sign-in at {self.program.token_path}",
                hint=SIGN_IN,
                **self.who,
            ) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise AuthError(
                f"the sign-in at {self.program.token_path} cannot be read", hint=SIGN_IN, **self.who
            ) from None
        if moment is None:
            return token, None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return token, aware.timestamp()

    def block(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.folder / "blocked.json", json.dumps({"at": time.time()}).encode())

    def blocked(self) -> RejectedError:
        return RejectedError(
            "Colab has blocked this account",
            hint="freegpu asks Colab for nothing more; write to Google in a notebook (Help > Send feedback), and when it"
            " is lifted, `freegpu connect colab`",
            **self.who,
        )

    def refuse_blocked(self) -> None:
        if (self.folder / "blocked.json").exists():
            raise self.blocked()


def _trust() -> ssl.SSLContext | bool:
    """The authorities that the person's environment names for requests, which the program uses; else the usual ones."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if path := os.environ.get(name):
            with contextlib.suppress(OSError):
                return ssl.create_default_context(
                    cafile=path if os.path.isfile(path) else None,
                    capath=path if os.path.isdir(path) else None,
                )
    return True


def forget_block(home: Path, name: str) -> None:
    """Ask Colab again although it had blocked the account: the person says that it is lifted."""
    (home / "colab" / name / "blocked.json").unlink(missing_ok=True)

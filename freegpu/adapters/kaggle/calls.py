"""Calls to Kaggle through kagglesdk's own transport, with time limits, and every error as one of ours.

Answers are read as plain JSON: the library's types die of a word that they do not know, of null in a list's place and
of a page in HTML, drop the days of a duration and the zone of a time. Requests are its own types.
"""

from __future__ import annotations

import importlib
import ipaddress
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from freegpu.adapters.kaggle import account as accounts
from freegpu.clock import Clock
from freegpu.errors import (
    AuthError,
    ConfigError,
    MissingSDKError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)

__all__ = ["Calls", "DeniedError", "MissingError", "TroubledError", "check_endpoint", "download"]

_CONNECT_S = 5.0
_KERNELS = ("kernels.KernelsApiService", "kagglesdk.kernels.types.kernels_api_service")
_DATASETS = ("datasets.DatasetApiService", "kagglesdk.datasets.types.dataset_api_service")
#: method -> its service and the module of its types; kagglesdk 0.1.38, 2026-12-02
_METHODS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "SaveKernel",
            "GetKernelSessionStatus",
            "ListKernelSessionOutput",
            "DeleteKernel",
            "ListKernels",
            "GetAcceleratorQuotaStatistics",
        ),
        _KERNELS,
    ),
    **dict.fromkeys(
        ("CreateDataset", "GetDatasetStatus", "ListDatasetFiles", "DeleteDataset"), _DATASETS
    ),
    "StartBlobUpload": ("blobs.BlobApiService", "kagglesdk.blobs.types.blob_api_service"),
    "IntrospectToken": ("security.OAuthService", "kagglesdk.security.types.oauth_service"),
}
#: held while the library's table of addresses names ours
_ADDRESSES = threading.Lock()


class MissingError(RejectedError):
    """404: there is no such thing (any more)."""


class DeniedError(AuthError):
    """403: what is not there is often denied rather than missing; the account itself may be denied, too."""

    raw = "403"


class TroubledError(UnreachableError):
    """5xx, or an answer that makes no sense: Kaggle is there and has a problem."""

    raw = "5xx"


class Calls:
    """One account's way to Kaggle. Threads may share it."""

    def __init__(
        self, name: str, *, account: str, endpoint: str, clock: Clock, timeout_s: float
    ) -> None:
        self.name = name
        #: the user name that was connected; "": whoever signs in
        self.account = account
        self.endpoint = endpoint
        self.clock = clock
        self.timeout_s = timeout_s
        #: seconds that the platform's clock was ahead at the last answer; None: nothing came yet
        self.skew_s: float | None = None
        self._lock = threading.RLock()
        self._client: Any = None
        self._plain: Any = None
        self._credentials: accounts.Credentials | None = None
        self._user = ""

    # --- who ---------------------------------------------------------------------------------------------

    def credentials(self) -> accounts.Credentials:
        """Found anew if they are about to expire; OAuth is renewed by Kaggle's own library, in its own file. AuthError."""
        self._library()
        with self._lock:
            now = self.clock.time()
            if self._credentials is None or self._credentials.stale(now):
                self.forget()
                found = accounts.find()
                if found.kind == "OAuth sign-in" and found.stale(now):
                    self._renew()
                    found = accounts.find()
                self._credentials = found
            return self._credentials

    def _library(self) -> None:
        """MissingSDKError: Kaggle's client library is not there, or cannot be imported."""
        try:
            importlib.import_module("kagglesdk.kaggle_client")
        except ImportError as error:
            raise MissingSDKError(
                f"kagglesdk cannot be imported: {error}",
                hint="pip install 'kagglesdk>=0.1.38,<0.2'",
                **self._who(),
            ) from error

    def _renew(self) -> None:
        with _translated(self):
            from kagglesdk.kaggle_creds import KaggleCredentials

            kept = KaggleCredentials.load(self._make(token=None, key=None))
            if kept is not None:
                kept.refresh_access_token()

    def user(self) -> str:
        """The user name, asked for once. AuthError: nobody is signed in, or somebody else than was connected."""
        with self._lock:
            found = self.credentials()
            if self._user:
                return self._user
            user = found.username
            if found.token:
                told = self.ask("IntrospectToken", token=found.token)
                if not told.get("active"):
                    self._refuse_token(found)
                user = str(told.get("username") or user or self.account)
            if not user:
                raise AuthError(
                    "Kaggle does not say whose token this is", hint=accounts.HINT, **self._who()
                )
            if self.account and user.casefold() != self.account.casefold():
                raise AuthError(
                    f"the {found.kind} in {found.where} is {user}'s, and {self.account} was connected",
                    hint=f"sign in as {self.account}, or `freegpu connect kaggle` to use {user} from now on",
                    **self._who(),
                )
            self._user = user
            return user

    def forget(self) -> None:
        """Look credentials up again at the next call."""
        with self._lock:
            self.close()
            self._credentials, self._user = None, ""

    def close(self) -> None:
        with self._lock:
            for session in (self._client and self._client._session, self._plain):
                if session:
                    session.close()
            self._client = self._plain = None

    @property
    def told(self) -> str:
        """The user name, if it was asked for already."""
        return self._user

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, method: str, **fields: Any) -> dict[str, Any]:
        """The answer as it came. AdapterError."""
        service, types = _METHODS[method]
        http = self._http()
        with _translated(self, method):
            # {...} to the library's own request: a field that it does not know would be dropped, tests look at the wire
            kind = getattr(importlib.import_module(types), _request(method))
            told = http.call(service, method, kind.from_dict(fields), _Raw)
            if not isinstance(told, dict):
                raise TypeError("no JSON object")
            return told

    def _http(self) -> Any:
        with self._lock:
            found = self.credentials()
            if self._client is None:
                self._client = self._make(token=found.token, key=found).http_client()
            return self._client

    def _make(self, *, token: str | None, key: accounts.Credentials | None) -> Any:
        """A client with time limits, which kagglesdk has no setting for."""
        from kagglesdk import kaggle_env
        from kagglesdk.kaggle_client import KaggleClient

        Env = kaggle_env.KaggleEnv  # noqa: N806 - a class
        with _ADDRESSES:
            before = kaggle_env._env_to_endpoint[Env.LOCAL]
            try:
                if self.endpoint:
                    kaggle_env._env_to_endpoint[Env.LOCAL] = self.endpoint
                made = KaggleClient(
                    env=Env.LOCAL if self.endpoint else Env.PROD,
                    username=key.username if key and key.key else None,
                    password=key.key if key and key.key else None,
                    api_token=token or None,
                    user_agent="freegpu",
                    response_processor=self._heard,
                )
            finally:
                kaggle_env._env_to_endpoint[Env.LOCAL] = before
        http = made.http_client()
        http._init_session()
        _limit(http._session, self.timeout_s)
        return made

    def _heard(self, response: Any) -> None:
        try:
            date = parsedate_to_datetime(response.headers["Date"])
        except (KeyError, ValueError, TypeError):
            return
        self.skew_s = date.timestamp() - self.clock.time()

    # --- bytes: signed addresses, without the account's credentials ---------------------------------------

    def _session(self) -> Any:
        import requests

        with self._lock:
            if self._plain is None:
                self._plain = requests.Session()
                _limit(self._plain, self.timeout_s)
            return self._plain

    def put(self, url: str, data: Any, headers: Mapping[str, str]) -> Any:
        """PUT to a signed address; the answer, whatever its status. UnreachableError."""
        with _translated(self, "upload"):
            return self._session().put(
                self._signed(url), data=data, headers=dict(headers), auth=_nobody
            )

    @contextmanager
    def get(self, url: str) -> Iterator[Any]:
        """GET from a signed address; the answer, whatever its status, its body unread. UnreachableError."""
        with (
            _translated(self, "download"),
            self._session().get(self._signed(url), stream=True, auth=_nobody) as answer,
        ):
            yield answer

    def _signed(self, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme != "https" and not _loopback(parts.hostname or ""):
            raise UnreachableError(
                f"Kaggle names an address that is not safe to use: {parts.scheme}://{parts.hostname}",
                **self._who(),
            )
        return url

    # --- errors ------------------------------------------------------------------------------------------

    def _who(self) -> dict[str, str]:
        return {"adapter": self.name, "account": self.account}

    def _refuse_token(self, found: accounts.Credentials) -> NoReturn:
        self.forget()
        raise AuthError(
            f"Kaggle does not accept the {found.kind} in {found.where}",
            hint=accounts.HINT,
            **self._who(),
        )

    def refused(self, status: int, said: str, headers: Mapping[str, str], method: str) -> NoReturn:
        """The error that an answer with this status stands for."""
        text = " ".join(said.split())[:300]
        for secret in (self._credentials.token, self._credentials.key) if self._credentials else ():
            text = text.replace(secret, "***") if secret else text
        what = f"Kaggle answered {method} with {status}" + (f": {text}" if text else "")
        who = self._who()
        if status == 401:
            found = self._credentials
            if found is not None:
                self._refuse_token(found)
            raise AuthError(what, hint=accounts.HINT, **who)
        if status == 403:
            raise DeniedError(
                what,
                hint="the account may need to be verified by phone, or the token may not allow this",
                **who,
            )
        if status == 404:
            raise MissingError(what, **who)
        if status == 429:
            wait = _seconds(headers.get("Retry-After", ""), self.clock.time())
            raise RateLimitedError(what, retry_after_s=wait, **who)
        if status >= 500 or status == 408:
            raise TroubledError(what, hint="Kaggle has a problem; freegpu asks again later", **who)
        raise RejectedError(what, **who)


class _Raw:
    """In the place of a response type: the JSON as it came."""

    @classmethod
    def prepare_from(cls, response: Any) -> Any:
        return response.json() if response.text.strip() else {}


@contextmanager
def _translated(calls: Calls, method: str = "the sign-in") -> Iterator[None]:
    import requests

    who = {"adapter": calls.name, "account": calls.account}
    try:
        yield
    except requests.exceptions.HTTPError as error:
        answer = error.response
        if answer is None:
            raise UnreachableError(f"Kaggle did not answer {method}", **who) from error
        # an error may come with 200 and a code of its own, which the library takes for an HTTPError too
        told = _json(answer)
        code = told.get("code")
        status = answer.status_code if answer.status_code >= 400 else int(code or 500)
        calls.refused(status, str(told.get("message") or ""), answer.headers, method)
    except requests.exceptions.JSONDecodeError as error:
        raise TroubledError(
            f"Kaggle answered {method} with something that is no JSON",
            hint="it does that when it is overloaded; freegpu asks again later",
            **who,
        ) from error
    except (requests.exceptions.RequestException, OSError) as error:
        # its text may hold an address with a signature: the kind is enough
        kind = type(error).__name__
        raise UnreachableError(f"Kaggle did not answer {method}: {kind}", **who) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TroubledError(
            f"Kaggle's answer to {method} makes no sense: {type(error).__name__}", **who
        ) from error


def _json(answer: Any) -> dict[str, Any]:
    try:
        told = answer.json()
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _request(method: str) -> str:
    return f"{method}Request" if method == "IntrospectToken" else f"Api{method}Request"


def _limit(session: Any, timeout_s: float) -> None:
    """Give every request of this session a time limit: to connect, and between two bytes of the answer."""
    from requests.adapters import HTTPAdapter

    class Timed(HTTPAdapter):
        def send(self, *given: Any, **more: Any) -> Any:
            if more.get("timeout") is None:
                more["timeout"] = (min(_CONNECT_S, timeout_s), timeout_s)
            return super().send(*given, **more)

    for scheme in ("https://", "http://"):
        session.mount(scheme, Timed())


def _nobody(request: Any) -> Any:
    """Authentication of a signed address: none, also if a .netrc knows its host."""
    return request


def _seconds(told: str, now: float) -> float | None:
    """Retry-After, which is a number of seconds or a date."""
    if told.strip().isdigit():
        return float(told)
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - now)
    except (ValueError, TypeError):
        return None


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_endpoint(name: str, endpoint: str) -> str:
    """An address that credentials may be sent to. ConfigError: it is none."""
    parts = urlsplit(endpoint)
    if (
        not endpoint
        or parts.scheme == "https"
        or (parts.scheme == "http" and _loopback(parts.hostname or ""))
    ):
        return endpoint.rstrip("/")
    raise ConfigError(
        f"platform {name}: endpoint is {endpoint!r}, not an https address",
        hint="leave it out: it is for tests against a loopback server",
    )


def download(calls: Calls, url: str, into: Path, size: int) -> bool:
    """Fetch at most `size` bytes and one more into this file; False: it is not to be had there, or it broke off.

    UnreachableError: whoever keeps the file has a problem; that says nothing about the file.
    """
    import requests

    with calls.get(url) as answer:
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise TroubledError(f"a file of the output was answered with {answer.status_code}")
        if answer.status_code != 200:
            return False
        left = size + 1
        try:
            with into.open("wb") as file:
                for block in answer.iter_content(1 << 18):
                    file.write(block[:left])
                    left -= len(block)
                    if left <= 0:
                        break
        except requests.exceptions.RequestException:
            return False
    return True

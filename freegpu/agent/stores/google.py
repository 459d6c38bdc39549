"""Google's side of a Drive store: access tokens that are fresh, requests that are patient, errors as sentences.

A token comes from `access.token`, or is made from the secret FREEGPU_DRIVE (JSON: client_id, client_secret, refresh_token,
token_uri, scope) by the token endpoint (RFC 6749, 6). Ages are measured by the monotonic clock: the time of day may be
wrong by a day and nothing happens. Every request here may be repeated; see drive.py for why.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Container, ContextManager, Dict, Mapping, Optional, Tuple
from urllib.parse import urlencode, urlsplit

from freegpu.agent.clock import Clock
from freegpu.agent.stores.base import Access, ObjectMissing, StoreError, StoreFull
from freegpu.agent.stores.http import LATER, Body, Http, Refused, Reply, Sink

SECRET = "FREEGPU_DRIVE"  # noqa: S105 - the name of a secret
API = "https://www.googleapis.com"
#: a token is renewed when it has less than this left, seconds
_SPARE_S = 120.0
#: reasons of a 403 that mean "slower": developers.google.com/workspace/drive/api/guides/handle-errors
_SLOWER = frozenset(
    ("rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded", "backendError")
)
_FULL = {
    "storageQuotaExceeded": "the Google Drive is full: make room in it (and empty its trash), or buy some",
    "teamDriveFileLimitExceeded": "the shared drive holds as many files as it can",
    "activeItemCreationLimitExceeded": "the account holds as many files as Drive lets it",
    "numChildrenInNonRootLimitExceeded": "a folder in the Drive holds as many files as it can",
}
_NEVER = {
    "accessNotConfigured": "the Google Drive API is not enabled in the project of your OAuth client:"
    " enable it in Google's console",
    "SERVICE_DISABLED": "the Google Drive API is not enabled in the project of your OAuth client:"
    " enable it in Google's console",
    "insufficientPermissions": "the sign-in does not allow what is needed: run `freegpu connect drive`"
    " again and leave its box ticked",
    "insufficientFilePermissions": "a file of the store in Drive belongs to somebody else or to another app",
    "domainPolicy": "the administrator of this Google account does not allow apps to use Drive",
}


class SignInGone(StoreError):  # noqa: N818 - reads as what happened
    """Google does not take the sign-in any more; only a person can mend that."""

    transient = False


class Tokens:
    """Hands out access tokens; any thread may ask."""

    def __init__(self, access: Access, http: Http, clock: Clock) -> None:
        self._give = access.token
        self._secret = access.secrets.get(SECRET, "")
        self._http = http
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._until = float("-inf")

    def get(self) -> str:
        """A token that is good for another minute at least. SignInGone, StoreGone, StoreError."""
        with self._lock:
            if self._clock.monotonic() >= self._until:
                self._token, lasts = self._renewed()
                # a token that never has so much left is used for half its life
                self._until = self._clock.monotonic() + max(lasts - _SPARE_S, lasts / 2)
            return self._token

    def forget(self, token: str) -> None:
        """The server did not take this one."""
        with self._lock:
            if token == self._token:
                self._until = float("-inf")

    def _renewed(self) -> Tuple[str, float]:
        if self._give is not None:
            try:
                return self._give()
            except StoreError:
                raise
            except Exception as error:  # whoever hands tokens out raises what he likes
                message = f"no access token for Google Drive: {type(error).__name__}"
                raise StoreError(message) from error
        grant = parse_secret(self._secret)
        form = {
            "grant_type": "refresh_token",
            **{n: grant[n] for n in ("client_id", "client_secret", "refresh_token")},
        }
        answer = ask_token(self._http, grant["token_uri"], form)
        return answer["access_token"], float(answer.get("expires_in", 3600))


def parse_secret(text: str) -> Dict[str, str]:
    """The fields of the secret. SignInGone: there is none, or it is not what it should be."""
    if not text:
        message = (
            f"no sign-in for Google Drive: run `freegpu connect drive`"
            f" (in a notebook, add the secret {SECRET})"
        )
        raise SignInGone(message)
    try:
        found = json.loads(text)
        grant = {n: str(found[n]) for n in ("client_id", "client_secret", "refresh_token")}
        grant["scope"] = str(found.get("scope", ""))
        grant["token_uri"] = str(found.get("token_uri") or "https://oauth2.googleapis.com/token")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"the secret {SECRET} is not what `freegpu connect drive --show-secret` prints"
        raise SignInGone(message) from None
    if not is_safe(grant["token_uri"]):
        message = f"the secret {SECRET} names a token address that is not https"
        raise SignInGone(message)
    return grant


def is_safe(url: str) -> bool:
    """Whether credentials may be sent there: https, or this machine itself."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.scheme == "https" or is_loopback(url))
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Whether this is a plain address of this machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")


def ask_token(
    http: Http, url: str, form: Mapping[str, str], *, repeat: bool = True
) -> Dict[str, Any]:
    """One question to a token endpoint. SignInGone: it refuses; StoreGone: it is away."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    try:
        reply = http.request("POST", url, headers, urlencode(form).encode(), repeat=repeat)
        answer: Dict[str, Any] = json.loads(reply.body)
        if not isinstance(answer.get("access_token"), str):
            message = f"{urlsplit(url).hostname} answered without an access token"
            raise StoreError(message)
    except Refused as error:
        if error.transient:
            raise
        raise _token_refused(error.reply) from None
    except (ValueError, AttributeError):
        message = f"{urlsplit(url).hostname} answered what is no token"
        raise StoreError(message) from None
    return answer


def _token_refused(reply: Reply) -> SignInGone:
    try:
        code = str(json.loads(reply.body)["error"])
    except (ValueError, KeyError, TypeError):
        code = str(reply.status)
    if code == "invalid_grant":
        return SignInGone(
            "the sign-in to Google Drive was revoked or has expired: run `freegpu connect drive` again"
            ' (an app in "Testing" is signed out after 7 days)'
        )
    if code in ("invalid_client", "unauthorized_client", "deleted_client"):
        return SignInGone(
            "Google does not know the OAuth client any more: run `freegpu connect drive --client FILE`"
        )
    return SignInGone(
        f"Google refused the sign-in ({code[:60]}): run `freegpu connect drive` again"
    )


class Api:
    """Drive v3 for one account. `requests` counts what was sent, tries included."""

    def __init__(self, access: Access, endpoint: str, http: Http, clock: Clock) -> None:
        self.tokens = Tokens(access, http, clock)
        self._http = http
        self.endpoint = endpoint or API
        self.host = urlsplit(self.endpoint).netloc
        self.requests = 0

    def hurried(self, seconds: float) -> "ContextManager[None]":
        """See Http.hurried."""
        return self._http.hurried(seconds)

    def url(self, path: str) -> str:
        """A path under /drive/v3 (or /upload) as a whole URL."""
        return f"{self.endpoint}{'' if path.startswith('/upload') else '/drive/v3'}{path}"

    def ask(
        self,
        method: str,
        path: str,
        query: Optional[Mapping[str, str]] = None,
        *,
        headers: Optional[Mapping[str, str]] = None,
        body: Body = b"",
        ok: Container[int] = (200,),
        into: Optional[Sink] = None,
        repeat: bool = True,
    ) -> Reply:
        """One request, `path` under /drive/v3 or a whole URL of an upload. ObjectMissing: 404."""
        url = path
        if not path.startswith("http"):
            base = self.url(path)
            url = f"{base}?{urlencode(query)}" if query else base
        elif urlsplit(url)[:2] != urlsplit(self.endpoint)[:2] and not self._is_google(url):
            message = f"{self.host} sends an upload on to another host, which is not followed"
            raise StoreError(message)
        used = [""]

        def signed() -> Dict[str, str]:
            used[0] = self.tokens.get()
            self.requests += 1
            return {**(headers or {}), "Authorization": f"Bearer {used[0]}"}

        for last in (False, True):
            try:
                return self._http.request(
                    method, url, signed, body, ok=ok, into=into, repeat=repeat, again=is_slower
                )
            except Refused as error:
                if error.reply.status == 401 and not last:
                    self.tokens.forget(used[0])
                    continue
                raise explained(error) from None
        raise AssertionError

    def json(
        self, method: str, path: str, query: Mapping[str, str], data: Any = None
    ) -> Dict[str, Any]:
        """One request with JSON both ways."""
        body, headers = b"", {}
        if data is not None:
            body, headers = json.dumps(data).encode(), {"Content-Type": "application/json"}
        return self.read(self.ask(method, path, query, body=body, headers=headers))

    def read(self, reply: Reply) -> Dict[str, Any]:
        """The JSON of an answer. StoreError: it is none."""
        try:
            found = json.loads(reply.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            message = f"{self.host} answered what is no JSON"
            raise StoreError(message)
        return found

    def _is_google(self, url: str) -> bool:
        parts = urlsplit(url)
        return (
            self.endpoint == API
            and parts.scheme == "https"
            and (parts.hostname or "").endswith(".googleapis.com")
        )


def is_slower(reply: Reply) -> bool:
    """Whether a 403 means "later" (Drive answers 429 too, which is always so)."""
    return reply.status == 403 and reason_of(reply) in _SLOWER


def reason_of(reply: Reply) -> str:
    """Google's word for what is wrong; "" where there is none."""
    try:
        return str(json.loads(reply.body)["error"]["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        return ""


def explained(error: Refused) -> StoreError:
    """A refusal of Drive's as the error of a store."""
    status, reason = error.reply.status, reason_of(error.reply)
    if status in (404, 410):
        return ObjectMissing("Drive has no such file")
    if reason in _FULL:
        return StoreFull(_FULL[reason])
    if status == 401:
        return SignInGone(
            "Google does not take the sign-in any more: run `freegpu connect drive` again"
        )
    if reason in _NEVER:
        found = StoreError(_NEVER[reason])
        found.transient = False
        return found
    if status in LATER or reason in _SLOWER or reason in ("dailyLimitExceeded", "quotaExceeded"):
        return StoreError(f"Google Drive asks to wait ({reason or status})")
    found = StoreError(f"Google Drive refused ({status}{f', {reason}' if reason else ''})")
    found.transient = False
    return found


__all__ = [
    "API",
    "SECRET",
    "Api",
    "SignInGone",
    "Tokens",
    "ask_token",
    "explained",
    "is_loopback",
    "is_safe",
    "is_slower",
    "parse_secret",
    "reason_of",
]

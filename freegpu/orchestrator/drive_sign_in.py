"""Signing in to Google as a desktop app: a browser, a port of this machine, PKCE and state (RFC 8252, RFC 7636).

Asks and listens; keeps nothing. developers.google.com/identity/protocols/oauth2/native-app
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from freegpu.agent.stores.base import StoreError
from freegpu.agent.stores.google import SignInGone, ask_token
from freegpu.agent.stores.http import Http
from freegpu.errors import AuthError, UnreachableError
from freegpu.orchestrator.drive_access import SCOPES, Client

__all__ = ["sign_in"]

#: how long a person may take, seconds
PATIENCE_S = 600.0
_AGAIN = "run `freegpu connect drive` again"
_PAGE = """<!doctype html><meta charset="utf-8"><title>freegpu</title>
<p style="font-family: sans-serif; margin: 3em">{}</p>"""


def sign_in(
    client: Client,
    scope: str,
    show: Callable[[str, int], None],
    *,
    http: Http | None = None,
    patience_s: float = PATIENCE_S,
) -> dict[str, str]:
    """Have the person sign in; what FREEGPU_DRIVE holds, and auth_uri. `scope` is "drive.file" or "drive".

    `show` is given the address that the person must open, and the port that waits. AuthError: refused, not all
    that is needed was allowed, or nobody came. UnreachableError: Google does not answer.
    """
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
    challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    with _Waiting(state) as waiting:
        question = {
            "client_id": client.id,
            "redirect_uri": waiting.url,
            "response_type": "code",
            "scope": SCOPES[scope],
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": state,
            # without both Google gives no refresh token to who has signed in before
            "access_type": "offline",
            "prompt": "consent",
        }
        mark = "&" if urlsplit(client.auth_uri).query else "?"
        show(f"{client.auth_uri}{mark}{urlencode(question)}", waiting.port)
        answer = waiting.answer(patience_s)
    if "code" not in answer:
        reason = answer.get("error", "no code")
        if reason == "access_denied":
            raise AuthError("you did not allow the access to Drive", hint=f"{_AGAIN} and allow it")
        raise AuthError(f"Google did not let you in ({reason[:60]})", hint=_AGAIN)
    form = {
        "grant_type": "authorization_code",
        "code": answer["code"],
        "code_verifier": verifier,
        "redirect_uri": waiting.url,
        "client_id": client.id,
        "client_secret": client.secret,
    }
    try:
        # a code is good for one question
        token = ask_token(http or Http(), client.token_uri, form, repeat=False)
    except SignInGone as error:
        raise AuthError(f"the sign-in did not come about: {error}", hint=_AGAIN) from error
    except StoreError as error:
        raise UnreachableError(f"signed in, but no token came: {error}", hint=_AGAIN) from error
    granted = str(token.get("scope", ""))
    if SCOPES[scope] not in granted.split():
        raise AuthError(
            "the box for Google Drive was not ticked on Google's page, so freegpu may not store anything",
            hint=f"{_AGAIN} and tick it",
        )
    if not isinstance(token.get("refresh_token"), str):
        raise AuthError(
            "Google gave no lasting sign-in",
            hint="remove the app at myaccount.google.com/connections, then sign in again",
        )
    return {
        "client_id": client.id,
        "client_secret": client.secret,
        "refresh_token": token["refresh_token"],
        "token_uri": client.token_uri,
        "auth_uri": client.auth_uri,
        "scope": granted,
    }


class _Waiting:
    """A port of this machine that takes the one answer which bears our state."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._found: dict[str, str] = {}
        self._came = threading.Event()
        outer = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.take(self)

            def log_message(self, *_: Any) -> None:
                """Silent: the address holds the code."""

        self._server = HTTPServer(("127.0.0.1", 0), Page)
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/"

    def __enter__(self) -> _Waiting:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def take(self, request: BaseHTTPRequestHandler) -> None:
        """Any page of any site may send a browser here: what has not our state is not ours."""
        query = dict(parse_qsl(urlsplit(request.path).query))
        good = hmac.compare_digest(query.get("state", "").encode(), self._state.encode())
        if good and not self._came.is_set():
            self._found = query
            words = (
                "Signed in. You may close this page and go back to the terminal."
                if "code" in query
                else "Not signed in. Go back to the terminal."
            )
        else:
            words = "This is not the answer that freegpu waits for."
        body = _PAGE.format(words).encode()
        request.send_response(200 if good else 400)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(body)
        if good:
            self._came.set()

    def answer(self, patience_s: float) -> dict[str, str]:
        """What came back. AuthError: nothing did."""
        if not self._came.wait(patience_s):
            raise AuthError(
                f"nobody signed in within {patience_s / 60:.0f} minutes",
                hint=f"{_AGAIN}, and open the address on this machine",
            )
        return self._found

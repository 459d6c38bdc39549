"""Google's OAuth for installed apps: an authorization page, codes with PKCE (RFC 7636, 8252), tokens that age and die."""

from __future__ import annotations

import hashlib
import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from freegpu.testing.drive_server.model import Refusal, Who

#: what the scopes are called on the wire
SCOPE = "https://www.googleapis.com/auth/"


@dataclass
class Token:
    """An access token. `until`: seconds by the server's clock."""

    who: Who
    until: float
    refresh: str


class OAuth:
    """Clients and tokens of a pretended account. `lifetime_s`: of access tokens."""

    def __init__(self, url: Callable[[], str], clock: Callable[[], float]) -> None:
        self._url = url
        self._clock = clock
        self.lifetime_s = 3600.0
        #: what the person answers on the authorization page: "allow" or "deny"
        self.consent = "allow"
        #: scopes that the person unticks on it
        self.unticked: set[str] = set()
        self.clients: dict[str, str] = {}
        self.access: dict[str, Token] = {}
        self.refresh: dict[str, Who] = {}
        self._codes: dict[str, tuple[Who, str, str]] = {}

    def client(self, name: str) -> str:
        """Register a client of the kind "desktop app"; returns its secret."""
        return self.clients.setdefault(name, "GOCSPX-" + secrets.token_urlsafe(12))

    def client_file(self, name: str) -> str:
        """The JSON file that Google's console offers for download, with our endpoints."""
        return json.dumps(
            {
                "installed": {
                    "client_id": name,
                    "client_secret": self.client(name),
                    "project_id": "freegpu-test",
                    "auth_uri": f"{self._url()}/o/oauth2/auth",
                    "token_uri": f"{self._url()}/token",
                    "redirect_uris": ["http://localhost"],
                }
            }
        )

    def grant(self, client: str, scope: str = "drive.file") -> str:
        """What `freegpu connect drive` would have stored: the text of the secret FREEGPU_DRIVE."""
        refresh = self._new_refresh(Who(client, scope))
        return json.dumps(
            {
                "client_id": client,
                "client_secret": self.client(client),
                "refresh_token": refresh,
                "token_uri": f"{self._url()}/token",
                "scope": SCOPE + scope,
            }
        )

    def access_token(
        self, client: str, scope: str = "drive", lifetime_s: float | None = None
    ) -> str:
        """An access token without a refresh token, as google.colab.auth hands them out."""
        return self._new_access(Who(client, scope), "", lifetime_s)

    def revoke_all(self) -> None:
        """The person removes the app's access."""
        self.refresh.clear()
        self.access.clear()

    def expire_all(self) -> None:
        """Every access token is too old now."""
        for token in self.access.values():
            token.until = self._clock()

    def who(self, authorization: str) -> Who:
        """On whose behalf a request with this header comes. Refusal 401."""
        token = self.access.get(authorization.removeprefix("Bearer ").strip())
        if token is None or token.until <= self._clock():
            raise Refusal(401, "authError", "Request had invalid authentication credentials.")
        return token.who

    def page(self, query: Mapping[str, str]) -> str:
        """The address that the browser is sent to after the person has answered. Refusal: a page that says no."""
        back = urlsplit(query.get("redirect_uri", ""))
        if query.get("client_id") not in self.clients:
            raise Refusal(401, "invalid_client", "The OAuth client was not found.")
        if back.scheme != "http" or back.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise Refusal(400, "redirect_uri_mismatch", "redirect_uri is not of the loopback.")
        if query.get("response_type") != "code" or query.get("code_challenge_method") != "S256":
            raise Refusal(
                400, "invalid_request", "response_type=code and PKCE with S256 are needed."
            )
        answer = {"state": query["state"]} if "state" in query else {}
        wanted = [s.removeprefix(SCOPE) for s in query.get("scope", "").split()]
        granted = [s for s in wanted if s in ("drive", "drive.file") and s not in self.unticked]
        if self.consent != "allow":
            answer["error"] = "access_denied"
        else:
            code = "4/" + secrets.token_urlsafe(16)
            who = Who(query["client_id"], "drive" if "drive" in granted else (granted or [""])[0])
            self._codes[code] = (who, query.get("code_challenge", ""), query["redirect_uri"])
            answer |= {"code": code, "scope": " ".join(SCOPE + s for s in granted)}
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def token(self, form: Mapping[str, str]) -> dict[str, object]:
        """The token endpoint (RFC 6749, 5). Refusal with the reasons of that page."""
        client = form.get("client_id", "")
        if client not in self.clients or form.get("client_secret") != self.clients[client]:
            raise Refusal(401, "invalid_client", "The OAuth client was not found.")
        if form.get("grant_type") == "refresh_token":
            refresh = form.get("refresh_token", "")
            who = self.refresh.get(refresh)
            if who is None or who.client != client:
                raise Refusal(400, "invalid_grant", "Token has been expired or revoked.")
            return self._answer(who, self._new_access(who, refresh))
        if form.get("grant_type") != "authorization_code":
            raise Refusal(400, "unsupported_grant_type", "Invalid grant_type.")
        who, challenge, redirect = self._codes.pop(form.get("code", ""), (Who("", ""), "", ""))
        hashed = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        proof = urlsafe_b64encode(hashed).decode().rstrip("=")
        if who.client != client or proof != challenge or redirect != form.get("redirect_uri"):
            raise Refusal(400, "invalid_grant", "Bad Request")
        refresh = self._new_refresh(who)
        return self._answer(who, self._new_access(who, refresh)) | {"refresh_token": refresh}

    def _answer(self, who: Who, access: str) -> dict[str, object]:
        return {
            "access_token": access,
            "expires_in": int(self.lifetime_s),
            "token_type": "Bearer",
            "scope": SCOPE + who.scope if who.scope else "",
        }

    def _new_refresh(self, who: Who) -> str:
        refresh = "1//" + secrets.token_urlsafe(24)
        self.refresh[refresh] = who
        return refresh

    def _new_access(self, who: Who, refresh: str, lifetime_s: float | None = None) -> str:
        access = "ya29." + secrets.token_urlsafe(24)
        until = self._clock() + (self.lifetime_s if lifetime_s is None else lifetime_s)
        self.access[access] = Token(who, until, refresh)
        return access

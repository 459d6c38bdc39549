"""Requests to Lightning: each sent once, with a time limit, by httpx; and nothing is reported to anybody (docs/adr/0010).

Knows the wire and what a refusal means; decides nothing. Addresses that are signed, and headers, appear in no error.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from freegpu.adapters.lightning import words
from freegpu.clock import Clock, utc
from freegpu.errors import (
    AdapterError,
    AuthError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)

if TYPE_CHECKING:
    import httpx

#: pages of a list that are read: 5000 jobs, an account that never deletes its own
_PAGES = 50


class MissingError(RejectedError):
    """404: there is no such thing (any more)."""


class Calls:
    """One account's way to the platform."""

    def __init__(
        self, name: str, account: str, *, url: str, teamspace: str, timeout_s: float, clock: Clock
    ) -> None:
        self.name, self.account = name, account
        self.url = url.rstrip("/")
        self.teamspace = teamspace
        self.timeout_s = timeout_s
        #: by how much the platform's clock was ahead of ours when it last answered, seconds; None: it did not say
        self.skew_s: float | None = None
        self._clock = clock
        self._http: httpx.Client | None = None
        self._project = ""

    # --- the teamspace and what is in it ----------------------------------------------------------------

    def project(self) -> str:
        """The teamspace's id. RejectedError names what to choose from."""
        if self._project:
            return self._project
        rows = self.rows(self.ask("GET", "/v1/memberships"), "memberships")
        names = sorted(str(row.get("name")) for row in rows)
        wanted = self.teamspace.rpartition("/")[2]
        fitting = [row for row in rows if not wanted or wanted == row.get("name")]
        if len(fitting) > 1 and "/" in self.teamspace:
            owner = self.teamspace.partition("/")[0]
            fitting = [row for row in fitting if self._owner(row) == owner]
        if len(fitting) != 1:
            few = "there is none" if not fitting else "there are several"
            raise self.error(
                RejectedError,
                f"the teamspace {self.teamspace or 'is not named'}: {few} of {', '.join(names) or 'none'}",
                hint="`freegpu connect lightning --teamspace OWNER/NAME` chooses one",
            )
        self._project = str(fitting[0]["projectId"])
        return self._project

    def _owner(self, row: Mapping[str, Any]) -> str:
        user = self.ask("GET", "/v1/auth/user")
        known = {str(user.get("id")): str(user.get("username"))}
        for org in user.get("organizations") or ():
            known[str(org.get("id"))] = str(org.get("name"))
        return known.get(str(row.get("ownerId")), "")

    def in_project(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
        """A request below the teamspace's address."""
        return self.ask(method, f"/v1/projects/{self.project()}{path}", **rest)

    def machines(self) -> Iterator[words.Machine]:
        """What the platform's own clouds have, on demand: spot may cost more and goes without notice."""
        for cluster in self.rows(self.in_project("GET", "/clusters"), "clusters"):
            spec = cluster.get("spec") or {}
            provider = str(spec.get("driver") or "")
            if not provider or spec.get("clusterType") not in (None, "CLUSTER_TYPE_GLOBAL"):
                continue
            params = {"projectId": self.project(), "cloudProvider": provider}
            told = self.ask("GET", "/v1/core/accelerators", params=params)
            for row in self.rows(told, "accelerator"):
                # asked for a provider that it does not know, the platform answers with another one's machines
                if row.get("provider") in (None, provider):
                    machine = words.machine(row, str(cluster.get("id", "")))
                    if machine is not None:
                        yield machine

    def job(self, job: str) -> dict[str, Any] | None:
        """None: there is none."""
        try:
            return self.in_project("GET", f"/jobs/{job}")
        except MissingError:
            return None

    def jobs(self) -> Iterator[dict[str, Any]]:
        """All of the teamspace, page by page."""
        return self._pages("/jobs", "jobs", {"limit": "100", "standalone": "true"})

    def studios(self, name: str = "") -> Iterator[dict[str, Any]]:
        """All of the teamspace, or those of this name."""
        params = {"name": name} if name else {"limit": "100"}
        return self._pages("/cloudspaces", "cloudspaces", params)

    def logs(self, job: str) -> list[str]:
        """What it printed so far, whole: the platform's own filters find nothing once a job has ended."""
        found = self._pages("/page-logs", "entries", {"jobIds": job})
        return [str(row.get("message", "")) for row in found]

    def _pages(self, path: str, name: str, params: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        token = ""
        for _ in range(_PAGES):
            more = {"pageToken": token} if token else {}
            told = self.in_project("GET", path, params={**params, **more})
            yield from self.rows(told, name)
            token = str(told.get("nextPageToken") or "")
            if not token:
                return

    def stop_job(self, job: str) -> None:
        """Ask it to end; silent if it is gone."""
        try:
            self.in_project("PUT", f"/jobs/{job}", body={"state": "stop"})
        except MissingError:
            return

    def delete(self, path: str, params: Mapping[str, str] | None = None) -> None:
        """Silent if it is gone."""
        try:
            self.in_project("DELETE", path, params=params)
        except MissingError:
            return

    def delete_studio(self, studio: str) -> None:
        """UnreachableError: it is still there afterwards. A Studio that does not bear our name stays."""
        path = f"/cloudspaces/{studio}"
        try:
            if not words.is_ours(self.in_project("GET", path)):
                return
            self.delete(path)
            self.in_project("GET", path)
        except MissingError:
            return
        raise self.error(UnreachableError, f"the Studio {studio} is still there")

    def upload(self, studio: str, path: str, data: bytes) -> None:
        """A file into a Studio, through an address that the platform signs for it."""
        base = f"/artifacts/cloudspaces/{studio}/blobs"
        told = self.in_project("POST", base, body={"blobs": [{"path": path}]})
        result = (self.rows(told, "results") or [{}])[0]
        where = (self.rows(result, "urls") or [{}])[0]
        if not where.get("url"):
            raise self.error(UnreachableError, "the platform does not say where a file goes")
        self._send("PUT", str(where["url"]), content=data, headers=where.get("headers") or {})
        if result.get("complete_required"):
            self.in_project("POST", f"{base}/complete", body={"blobs": [{"path": path}]})

    # --- the wire ---------------------------------------------------------------------------------------

    def rows(self, told: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        """A list of an answer. An answer of another shape is no answer: an empty list would be believed."""
        rows = told.get(name)
        if rows is None and name in ("entries", "jobs", "cloudspaces"):
            return []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self.error(UnreachableError, f"the platform's answer has no {name}")
        return rows

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> dict[str, Any]:
        """The answer's JSON. AdapterError."""
        headers, _ = authorization()
        answer = self._send(
            method, self.url + quote(path), params=params, json=body, headers=headers
        )
        try:
            self.skew_s = (
                parsedate_to_datetime(answer.headers["Date"]) - utc(self._clock)
            ).total_seconds()
        except (KeyError, ValueError, TypeError):
            self.skew_s = None
        try:
            told = answer.json() if answer.content else {}
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise self.error(
                UnreachableError,
                f"{self.url} answered something that is not JSON",
                hint="a captive portal or a proxy may stand in between",
            )
        return told

    def _send(self, method: str, url: str, **rest: Any) -> httpx.Response:
        import httpx

        if self._http is None:
            self._http = httpx.Client(timeout=self.timeout_s)
        try:
            answer = self._http.request(method, url, **rest)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind = type(error).__name__
            raise self.error(UnreachableError, f"lightning did not answer ({kind})") from None
        if answer.status_code >= 300:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: httpx.Response) -> AdapterError:
        """What the platform meant: by its words first, since one status stands for many things."""
        status, text = answer.status_code, _words(answer)
        said = f"lightning said {status}: {text}"
        if status == 401:
            return self.error(
                AuthError,
                f"lightning does not accept {authorization()[1]}",
                hint="`lightning login` or set LIGHTNING_API_KEY and LIGHTNING_USER_ID anew",
            )
        if status == 429:
            return RateLimitedError(
                said,
                retry_after_s=words.number(answer.headers.get("Retry-After")),
                adapter=self.name,
                account=self.account,
            )
        if status >= 500 or status in (408, 425):
            return self.error(UnreachableError, said)
        if status == 404:
            return self.error(MissingError, said)
        if words.BROKE.search(text):
            return self.error(QuotaExhaustedError, said, hint="the account's credits are used up")
        if words.FULL.search(text):
            return self.error(NoCapacityError, said)
        hint = "the plan may not allow this machine" if status == 403 else ""
        return self.error(RejectedError, said, hint=hint)

    def error(self, kind: type[AdapterError], message: str, *, hint: str = "") -> AdapterError:
        return kind(message, hint=hint, adapter=self.name, account=self.account)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


def authorization() -> tuple[dict[str, str], str]:
    """The header, and in words where it is from: where Lightning's own tools keep it, in their order.

    AuthError: there is none.
    """
    env = os.environ
    token, key = env.get("LIGHTNING_AUTH_TOKEN", ""), env.get("LIGHTNING_API_KEY", "")
    user = env.get("LIGHTNING_USER_ID", "")
    where = "LIGHTNING_AUTH_TOKEN" if token else "LIGHTNING_API_KEY"
    if not token and not key:
        default = Path.home() / ".lightning" / "credentials.json"
        path = Path(env.get("LIGHTNING_CREDENTIAL_PATH") or default)
        where = str(path)
        try:
            kept = json.loads(path.read_bytes())
            token, key, user = (
                str(kept.get(name) or "") for name in ("auth_token", "api_key", "user_id")
            )
        except FileNotFoundError:
            token = ""
        except (OSError, ValueError, AttributeError):
            raise AuthError(
                f"the credentials in {path} cannot be read",
                hint="`lightning login` writes them anew",
            ) from None
    try:
        given = (token or key).encode("ascii").decode()
        pair = base64.b64encode(f"{user}:{key}".encode()).decode()
    except UnicodeError:
        raise AuthError(
            f"the credentials of {where} are not plain text", hint="copy the key again"
        ) from None
    if token or (key and not user):
        return {"Authorization": f"Bearer {given}"}, f"the credentials of {where}"
    if key:
        return {"Authorization": f"Basic {pair}"}, f"the credentials of {where}"
    raise AuthError(
        "no credentials for Lightning are to be found",
        hint="set LIGHTNING_API_KEY and LIGHTNING_USER_ID (lightning.ai, Global Settings, Keys)",
    )


def _words(answer: httpx.Response) -> str:
    """The platform's own text on one line, without what it might repeat of our credentials."""
    try:
        told = answer.json()
        text = str(told.get("message", "")) if isinstance(told, dict) else ""
    except ValueError:
        text = ""
    header, _ = authorization()
    hidden = header["Authorization"].partition(" ")[2]
    known = (hidden, *(os.environ.get(f"LIGHTNING_{n}", "") for n in ("AUTH_TOKEN", "API_KEY")))
    for secret in filter(None, known):
        text = text.replace(secret, "***")
    return " ".join(text.split())[:300] or "no reason"

"""Lightning AI by plain REST: a session is a Job from a Studio of its own, which carries the agent's files.

Requests are sent once, with a time limit, and nothing is reported to anybody (docs/adr/0010). What a session costs is
credits (1 credit = 1 USD); the pool `credits` counts seconds at one credit an hour, so that a machine of 0.55 credits
an hour has the rate 0.55. The shape of requests and answers: lightning-sdk 2026.10.13, looked at on 2026-12-02.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from freegpu import cards
from freegpu.adapters.base import (
    Capabilities,
    Collected,
    Finding,
    Launch,
    LogPage,
    Observation,
    Offer,
    PlatformState,
    QuotaReport,
    Request,
    SessionRef,
    Window,
    WindowKind,
)
from freegpu.adapters.hosts import held
from freegpu.clock import Clock, utc
from freegpu.errors import (
    AdapterError,
    AuthError,
    ConfigError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)
from freegpu.jobs.lifecycle import EndReason

if TYPE_CHECKING:
    import httpx

POOL = "credits"
#: the free machine and the cheapest card: what a free account was seen to get (reports of 2026-09-25)
MACHINES = ("T4", "CPU")
PREFIX = "freegpu-"
#: seconds between the request and the agent's hello: a snapshot and a machine; an estimate
START_DELAY_S = 180.0
_OPTIONS = (
    "account", "teamspace", "machines", "paid", "url", "least_minutes", "max_hours", "timeout_s",
)  # fmt: skip
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REF = re.compile(r"([A-Za-z0-9_-]{1,80})\.([A-Za-z0-9_-]{1,80})")
_MACHINE = re.compile(r"(.+?)(?:x(\d+))?")
#: raw states of a job (lightning_sdk/api/job_api.py, verified 2026-12-02); whatever else comes is UNKNOWN
_STATES = {
    **dict.fromkeys(("pending", "creating"), PlatformState.STARTING),
    # on their way to an end, but still there and still paid for
    **dict.fromkeys(
        ("running", "restarting", "stop", "stopping", "delete", "complete", "fail"),
        PlatformState.RUNNING,
    ),
    **dict.fromkeys(("stopped", "completed", "failed"), PlatformState.ENDED),
    "deleted": PlatformState.GONE,
}
_BROKE = re.compile(r"out.of.funds|insufficient.{0,20}(balance|credit|fund)|top up", re.I)
_FULL = re.compile(r"out.of.capacity|no capacity|capacity|no machines? (is )?available", re.I)
_BUSY = re.compile(r"too many|concurren", re.I)
#: the first word is how a session is told from another whose name begins alike: the platform suffixes taken names
_COMMAND = """: freegpu-session {key}
umask 077
cd "$HOME/freegpu/{key}"
chmod 600 *
python3 -c 'import json, os
given = json.load(open("launch.json"))
given["work"] = os.path.join(os.getcwd(), "work")
json.dump(given, open("profile.json", "w"))'
if [ -f access.json ]; then set -- --access="$PWD/access.json"; else set --; fi
exec timeout -s TERM -k 60 {limit} python3 agent.pyz profile.json "$@"
"""


class _MissingError(RejectedError):
    """404: there is no such thing (any more)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Machine:
    card: str
    count: int
    instance: str
    cluster: str
    price: float
    vram_gb: float
    memory_gb: float
    cpus: float
    disk_gb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Balance:
    """Credits that are left, by the source that names the most, and what each source said."""

    credits: float
    source: str
    said: Mapping[str, float]
    as_of: datetime


class LightningAdapter:
    """See the module. Options: `_OPTIONS`; docs/how-to/use-lightning.md."""

    one_account = "lightning"

    def __init__(
        self, name: str, *, home: Path, clock: Clock, options: Mapping[str, Any] | None = None
    ) -> None:
        given = dict(options or {})
        self.name = name
        self.home = home
        self.clock = clock
        self.teamspace = str(given.get("teamspace", ""))
        self.account = str(given.get("account") or self.teamspace or "lightning")
        self.machines = _machines(name, given.get("machines", MACHINES))
        self.paid_ceiling = _ceiling(name, given.get("paid", {}))
        self.least_s = 60.0 * _positive(name, "least_minutes", given.get("least_minutes", 15.0))
        self.longest_s = 3600.0 * _positive(name, "max_hours", given.get("max_hours", 12.0))
        self.timeout_s = _positive(name, "timeout_s", given.get("timeout_s", 15.0))
        url = given.get("url") or os.environ.get("LIGHTNING_CLOUD_URL") or "https://lightning.ai"
        self.url = str(url).rstrip("/")
        self._secrets: Callable[[], Mapping[str, str]] = dict
        self._http: httpx.Client | None = None
        self._project = ""

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml. ConfigError: an option that it does not know, or cannot use."""
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigError(
                f"platform {name}: unknown option {unknown[0]!r}",
                hint=f"known: {', '.join(_OPTIONS)}",
            )
        return cls(name, home=home, clock=clock, options=options)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            live_logs=True,
            reports_quota=True,
            max_concurrent=1,
            max_session_s=self.longest_s,
        )

    @property
    def windows(self) -> Mapping[str, Window]:
        # no figure: 15 a month was true until July 2026, 5 at the start was seen in September 2026
        return {
            POOL: Window(
                kind=WindowKind.PREPAID,
                source="the account's balance; reports on free credits contradict each other",
                verified_on="2026-12-02",
            )
        }

    # --- what could be had ------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        left = self._balance().credits + self.paid_ceiling
        return [
            Offer(
                platform=self.name,
                account=self.account,
                card=machine.card,
                count=machine.count,
                vram_gb=machine.vram_gb,
                memory_gb=machine.memory_gb,
                cpus=machine.cpus,
                disk_gb=machine.disk_gb,
                session_limit_s=self._limit_s(left, machine.price),
                start_delay_s=START_DELAY_S,
                pool=POOL,
                rate=machine.price,
            )
            for machine in self._offered()
            if left * 3600 >= machine.price * (START_DELAY_S + self.least_s)
        ]

    def _limit_s(self, left: float, price: float) -> float:
        """How long a session may last that this many credits must carry, in whole minutes: it never outlives them."""
        carried = math.inf if price <= 0 else left * 3600 / price - START_DELAY_S
        return max(60.0, math.floor(min(self.longest_s, carried) / 60) * 60.0)

    def _offered(self) -> list[_Machine]:
        """The cheapest machine of each shape that is allowed, on demand: spot may cost more and goes without notice."""
        found: dict[tuple[str, int], _Machine] = {}
        for machine in self._catalogue():
            shape = (machine.card, machine.count)
            if shape in self.machines and (
                shape not in found or machine.price < found[shape].price
            ):
                found[shape] = machine
        return [found[shape] for shape in self.machines if shape in found]

    def _catalogue(self) -> Iterator[_Machine]:
        project = self._project_id()
        clusters = self._list(self._call("GET", f"/v1/projects/{project}/clusters"), "clusters")
        for cluster in clusters:
            spec = cluster.get("spec") or {}
            provider = str(spec.get("driver") or "")
            if not provider or spec.get("clusterType") not in (None, "CLUSTER_TYPE_GLOBAL"):
                continue
            told = self._call(
                "GET",
                "/v1/core/accelerators",
                params={"projectId": project, "cloudProvider": provider},
            )
            for row in self._list(told, "accelerator"):
                # asked for a provider that it does not know, the platform answers with another one's machines
                if row.get("provider") in (None, provider):
                    machine = _machine(row, str(cluster.get("id", "")))
                    if machine is not None:
                        yield machine

    def quota(self) -> Sequence[QuotaReport] | None:
        """What is left, as a window of which nothing is used; the ledger adds what our own sessions used since."""
        balance = self._balance()
        limit = (balance.credits + self.paid_ceiling) * 3600
        return [
            QuotaReport(pool=POOL, used_s=0.0, limit_s=limit, resets_at=None, as_of=balance.as_of)
        ]

    def _balance(self) -> _Balance:
        """UnreachableError: no source answered. Each was reported wrong by somebody, always too low: the largest counts."""
        project = self._project_id()
        said: dict[str, float] = {}
        failed: AdapterError | None = None
        for source, path in (
            ("project", f"/v1/projects/{project}/billing/balance"),
            ("user", "/v1/users/billing/balance"),
            ("account", "/v1/billing/account-balance"),
            ("membership", "/v1/memberships"),
        ):
            try:
                told = self._call("GET", path)
            except AuthError:
                raise
            except AdapterError as error:
                failed = error
                continue
            if source == "membership":
                rows = self._list(told, "memberships")
                told = next((row for row in rows if row.get("projectId") == project), {})
            amount = _number(told.get("balance"))
            if amount is not None:
                said[source] = amount
        if not said:
            raise failed or self._error(UnreachableError, "the platform names no balance")
        source = max(said, key=lambda name: said[name])
        return _Balance(
            credits=max(0.0, said[source]), source=source, said=said, as_of=utc(self.clock)
        )

    # --- sessions ---------------------------------------------------------------------------------------

    def render(self, launch: Launch, /) -> Request:
        limit = int(launch.profile.limit_s or self.longest_s)
        return Request(
            key=launch.key,
            payload={
                "name": PREFIX + launch.key,
                "card": launch.offer.card,
                "count": launch.offer.count,
                "interruptible": False,
                "command": _COMMAND.format(key=launch.key, limit=limit),
                "profile": launch.profile.to_json(),
                "agent": launch.agent_path,
                "agent_sha256": launch.agent_sha256,
            },
        )

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        self._secrets = secrets

    def start(self, request: Request, /) -> SessionRef:
        if not _KEY.fullmatch(request.key):
            raise self._error(RejectedError, f"a session cannot be called {request.key!r}")
        folder = self.home / "lightning"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # names are not unique there: two processes that start one key at once are kept apart here
        with held(folder / f"{request.key}.lock"):
            return self.find(request.key) or self._start(request)

    def _start(self, request: Request) -> SessionRef:
        payload = request.payload
        machine = self._affordable(str(payload["card"]), int(payload["count"]))
        project = self._project_id()
        studio = self._studio(str(payload["name"]), machine.cluster)
        place = f"freegpu/{request.key}"
        try:
            agent = Path(payload["agent"]).read_bytes()
        except OSError as error:
            raise self._error(
                RejectedError, f"the agent cannot be read: {error.strerror}"
            ) from error
        files = {"agent.pyz": agent, "launch.json": json.dumps(payload["profile"]).encode()}
        secrets = dict(self._secrets())
        if secrets:
            files["access.json"] = json.dumps({"secrets": secrets}).encode()
        body = {
            "name": payload["name"],
            "spec": {
                "cloudspaceId": studio,
                "clusterId": machine.cluster,
                "command": payload["command"],
                "env": [],
                "image": "",
                "imageClusterCredentials": False,
                "imageSecretRef": "",
                "instanceName": machine.instance,
                # a second run from the same snapshot would be a second agent of one session
                "maxRunAttempts": 1,
                "pathMappings": [],
                "runId": "",
                "spot": False,
                "volumes": [],
            },
        }
        try:
            for name, data in files.items():
                self._upload(studio, f"{place}/{name}", data)
            job = self._call("POST", f"/v1/projects/{project}/jobs", body=body)
        except UnreachableError:
            raise  # it may have happened: find() will tell
        except AdapterError:
            self._delete_studio(studio)  # it holds what was entrusted, and nobody will ask for it
            raise
        return _ref(job, studio)

    def _affordable(self, card: str, count: int) -> _Machine:
        """The machine of this shape. NoCapacityError, QuotaExhaustedError: the credits do not carry it to a checkpoint."""
        machine = next((m for m in self._offered() if (m.card, m.count) == (card, count)), None)
        if machine is None:
            raise self._error(NoCapacityError, f"no {card} x{count} is offered now")
        balance = self._balance()
        needed = machine.price * (START_DELAY_S + self.least_s) / 3600
        if balance.credits + self.paid_ceiling < needed:
            raise self._error(
                QuotaExhaustedError,
                f"{balance.credits:.2f} credits are left ({balance.source} balance), and a first checkpoint"
                f" on {card} takes {needed:.2f}",
                hint="`freegpu connect lightning --paid-ceiling CREDITS --accept paid-use` allows more than is free",
            )
        return machine

    def _studio(self, name: str, cluster: str) -> str:
        """The Studio of this name, made if there is none; one that an interrupted start left is used."""
        project = self._project_id()
        told = self._call("GET", f"/v1/projects/{project}/cloudspaces", params={"name": name})
        for row in self._list(told, "cloudspaces"):
            if row.get("name") == name:
                return str(row["id"])
        body = {
            "clusterId": cluster,
            "name": name,
            "displayName": name,
            "disableSecrets": False,
            "sandbox": False,
            "seedFiles": [{"path": "main.py", "contents": "print('Hello, Lightning World!')\n"}],
        }
        made = self._call("POST", f"/v1/projects/{project}/cloudspaces", body=body)
        studio = str(made["id"])
        runs = {"clusterId": made.get("clusterId", cluster), "localSource": True}
        self._call("POST", f"/v1/projects/{project}/cloudspaces/{studio}/runs", body=runs)
        return studio

    def _upload(self, studio: str, path: str, data: bytes) -> None:
        base = f"/v1/projects/{self._project_id()}/artifacts/cloudspaces/{studio}/blobs"
        told = self._call("POST", base, body={"blobs": [{"path": path}]})
        result = self._list(told, "results")[0]
        where = self._list(result, "urls")[0]
        self._send("PUT", str(where["url"]), content=data, headers=where.get("headers") or {})
        if result.get("complete_required"):
            self._call("POST", f"{base}/complete", body={"blobs": [{"path": path}]})

    def find(self, key: str, /) -> SessionRef | None:
        """The oldest job of this key that lives, else the oldest; other living ones are stopped: both burn credits."""
        if not _KEY.fullmatch(key):
            return None
        word = f": freegpu-session {key}\n"
        ours = [
            job
            for job in self._jobs()
            if str(job.get("name", "")).startswith(PREFIX + key)
            and str((job.get("spec") or {}).get("command", "")).startswith(word)
            and _STATES.get(str(job.get("state"))) is not PlatformState.GONE
        ]
        if not ours:
            return None
        over = PlatformState.ENDED
        ours.sort(
            key=lambda job: (
                _STATES.get(str(job.get("state"))) is over,
                str(job.get("createdAt", "")),
                str(job.get("id", "")),
            )
        )
        for twin in ours[1:]:
            if _STATES.get(str(twin.get("state"))) is not over:
                self._stop_job(str(twin["id"]))
        return _ref(ours[0])

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        seen: dict[SessionRef, Observation] = {}
        known = {ref: match[1] for ref in refs if (match := _REF.fullmatch(ref))}
        listed = {str(job.get("id")): job for job in self._jobs()} if known else {}
        for ref in refs:
            job = listed.get(known.get(ref, ""))
            if job is None and ref in known:
                job = self._job(known[ref])  # lists lag behind: not to be listed is not to be gone
            gone = Observation(state=PlatformState.GONE, raw="no such job")
            seen[ref] = gone if job is None else _observation(job)
        return seen

    def _job(self, job: str) -> dict[str, Any] | None:
        try:
            return self._call("GET", f"/v1/projects/{self._project_id()}/jobs/{job}")
        except _MissingError:
            return None

    def _jobs(self) -> Iterator[dict[str, Any]]:
        token = ""
        for _ in range(50):  # 5000 jobs: an account that never deletes its own
            params = {"limit": "100", "standalone": "true"}
            told = self._call(
                "GET",
                f"/v1/projects/{self._project_id()}/jobs",
                params={**params, **({"pageToken": token} if token else {})},
            )
            yield from self._list(told, "jobs")
            token = str(told.get("nextPageToken") or "")
            if not token:
                return

    def stop(self, ref: SessionRef, /) -> None:
        match = _REF.fullmatch(ref)
        job = self._job(match[1]) if match else None
        if job is None or _STATES.get(str(job.get("state"))) in (
            PlatformState.ENDED, PlatformState.GONE,
        ):  # fmt: skip
            return
        self._stop_job(str(job["id"]))

    def _stop_job(self, job: str) -> None:
        try:
            self._call(
                "PUT", f"/v1/projects/{self._project_id()}/jobs/{job}", body={"state": "stop"}
            )
        except _MissingError:
            return

    def tidy(self, ref: SessionRef, /) -> None:
        """Delete the session's job and its Studio with the files in it. UnreachableError: one is still there."""
        match = _REF.fullmatch(ref)
        if match is None:
            return
        project, (job, studio) = self._project_id(), match.groups()
        told = self._job(job)
        if told is not None and _ours(told):
            self._delete(f"/v1/projects/{project}/jobs/{job}", {"cloudspaceId": studio})
        self._delete_studio(studio)
        left = self._job(job)
        if left is not None and _ours(left) and left.get("state") not in ("deleted", "delete"):
            raise self._error(UnreachableError, f"the job {left.get('name')} is still there")

    def _delete_studio(self, studio: str) -> None:
        """UnreachableError: it is still there afterwards. A Studio that does not bear our name stays."""
        path = f"/v1/projects/{self._project_id()}/cloudspaces/{studio}"
        try:
            if not _ours(self._call("GET", path)):
                return
            self._delete(path, {})
            self._call("GET", path)
        except _MissingError:
            return
        raise self._error(UnreachableError, f"the Studio {studio} is still there")

    def _delete(self, path: str, params: Mapping[str, str]) -> None:
        try:
            self._call("DELETE", path, params=params)
        except _MissingError:
            return

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        """The whole log is fetched and cut here: the platform's own filters find nothing once a job has ended."""
        start = int(cursor) if cursor and cursor.isdigit() else 0
        match = _REF.fullmatch(ref)
        if match is None:
            return LogPage(text="", cursor=str(start))
        try:
            lines = self._lines(match[1])
        except _MissingError:
            return LogPage(text="", cursor=str(start))
        return LogPage(
            text="".join(f"{line}\n" for line in lines[start:]), cursor=str(max(start, len(lines)))
        )

    def _lines(self, job: str) -> list[str]:
        lines: list[str] = []
        token = ""
        for _ in range(50):
            params = {"jobIds": job, **({"pageToken": token} if token else {})}
            path = f"/v1/projects/{self._project_id()}/page-logs"
            told = self._call("GET", path, params=params)
            lines += [str(row.get("message", "")) for row in self._list(told, "entries")]
            token = str(told.get("nextPageToken") or "")
            if not token:
                break
        return lines

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    # --- looking at itself ------------------------------------------------------------------------------

    def diagnose(self, store: str, /) -> Sequence[Finding]:
        found = [
            Finding(name="installed", ok=True, detail="nothing needs to be installed for Lightning")
        ]
        try:
            _authorization()
            user = self._call("GET", "/v1/auth/user")
            who = str(user.get("username") or user.get("id") or "somebody")
            found.append(Finding(name="credentials", ok=True, detail=f"accepted, as {who}"))
            self._project_id()
            found.append(
                Finding(name="teamspace", ok=True, detail=self.teamspace or "the only one")
            )
            balance = self._balance()
            said = ", ".join(f"{name} {amount:.2f}" for name, amount in balance.said.items())
            found.append(
                Finding(
                    name="balance",
                    ok=True,
                    detail=f"{balance.credits:.2f} credits by the {balance.source} balance, read at"
                    f" {balance.as_of:%H:%M:%S} UTC ({said}); it may lag by hours",
                )
            )
            found.append(self._clock_finding())
        except AdapterError as error:
            names = ("credentials", "teamspace", "balance", "clock")
            name = names[len(found) - 1]
            found.append(Finding(name=name, ok=False, detail=error.message, hint=error.hint))
        return found

    def _clock_finding(self) -> Finding:
        answer = self._send("GET", f"{self.url}/v1/auth/user", headers=_authorization())
        try:
            ahead = parsedate_to_datetime(answer.headers["Date"]) - utc(self.clock)
        except (KeyError, ValueError, TypeError):
            return Finding(name="clock", ok=None, detail="the platform does not tell its time")
        skew = ahead.total_seconds()
        if abs(skew) <= 60:
            return Finding(name="clock", ok=True, detail="agrees with the platform's")
        return Finding(
            name="clock",
            ok=False,
            detail=f"differs from the platform's by {abs(skew):.0f} s",
            hint="set this machine's clock by a time server",
        )

    # --- the wire ---------------------------------------------------------------------------------------

    def _project_id(self) -> str:
        """The teamspace's id. ConfigError is not for here: AdapterError names what to choose from."""
        if self._project:
            return self._project
        rows = self._list(self._call("GET", "/v1/memberships"), "memberships")
        names = sorted(str(row.get("name")) for row in rows)
        wanted = self.teamspace.rpartition("/")[2]
        fitting = [row for row in rows if not wanted or wanted == row.get("name")]
        if len(fitting) > 1 and "/" in self.teamspace:
            owner = self.teamspace.partition("/")[0]
            fitting = [row for row in fitting if self._owner(row) == owner]
        if len(fitting) != 1:
            few = "there is none" if not fitting else "there are several"
            raise self._error(
                RejectedError,
                f"the teamspace {self.teamspace or 'is not named'}: {few} of {', '.join(names) or 'none'}",
                hint="`freegpu connect lightning --teamspace OWNER/NAME` chooses one",
            )
        self._project = str(fitting[0]["projectId"])
        return self._project

    def _owner(self, row: Mapping[str, Any]) -> str:
        user = self._call("GET", "/v1/auth/user")
        known = {str(user.get("id")): str(user.get("username"))}
        for org in user.get("organizations") or ():
            known[str(org.get("id"))] = str(org.get("name"))
        return known.get(str(row.get("ownerId")), "")

    def _list(self, told: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        """A list of an answer. An answer of another shape is no answer: an empty list would be believed."""
        rows = told.get(name)
        if rows is None and name in ("entries", "jobs", "cloudspaces"):
            return []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._error(UnreachableError, f"the platform's answer has no {name}")
        return rows

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
    ) -> dict[str, Any]:
        answer = self._send(
            method, self.url + quote(path), params=params, json=body, headers=_authorization()
        )
        try:
            told = answer.json() if answer.content else {}
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise self._error(
                UnreachableError,
                f"{self.url} answered something that is not JSON",
                hint="a captive portal or a proxy may stand in between",
            )
        return told

    def _send(self, method: str, url: str, **rest: Any) -> httpx.Response:
        """One request, once. Addresses that are signed and headers appear in no error."""
        import httpx

        if self._http is None:
            self._http = httpx.Client(timeout=self.timeout_s)
        try:
            answer = self._http.request(method, url, **rest)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind = type(error).__name__
            raise self._error(UnreachableError, f"lightning did not answer ({kind})") from None
        if answer.status_code >= 300:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: httpx.Response) -> AdapterError:
        """What the platform meant: by its words first, since one status stands for many things."""
        status, text = answer.status_code, _words(answer)
        said = f"lightning said {status}: {text}"
        if status == 401:
            return self._error(
                AuthError,
                "lightning does not accept the credentials",
                hint="`lightning login` or set LIGHTNING_API_KEY and LIGHTNING_USER_ID anew",
            )
        if status == 429:
            return RateLimitedError(
                said,
                retry_after_s=_number(answer.headers.get("Retry-After")),
                adapter=self.name,
                account=self.account,
            )
        if status >= 500 or status in (408, 425):
            return self._error(UnreachableError, said)
        if status == 404:
            return self._error(_MissingError, said)
        if _BROKE.search(text):
            return self._error(QuotaExhaustedError, said, hint="the account's credits are used up")
        if _FULL.search(text) or _BUSY.search(text):
            return self._error(NoCapacityError, said)
        hint = "the plan may not allow this machine" if status == 403 else ""
        return self._error(RejectedError, said, hint=hint)

    def _error(self, kind: type[AdapterError], message: str, *, hint: str = "") -> AdapterError:
        return kind(message, hint=hint, adapter=self.name, account=self.account)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


def _authorization() -> dict[str, str]:
    """The header, from where Lightning's own tools keep it, in their order. AuthError: there is none."""
    env = os.environ
    token, key = env.get("LIGHTNING_AUTH_TOKEN", ""), env.get("LIGHTNING_API_KEY", "")
    user = env.get("LIGHTNING_USER_ID", "")
    if not token and not key:
        default = Path.home() / ".lightning" / "credentials.json"
        path = Path(env.get("LIGHTNING_CREDENTIAL_PATH") or default)
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
    if token:
        return {"Authorization": f"Bearer {token}"}
    if key and user:
        pair = base64.b64encode(f"{user}:{key}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    if key:
        return {"Authorization": f"Bearer {key}"}
    raise AuthError(
        "no credentials for Lightning are to be found",
        hint="set LIGHTNING_API_KEY and LIGHTNING_USER_ID (lightning.ai, Global Settings, Keys)",
    )


def _machine(row: Mapping[str, Any], cluster: str) -> _Machine | None:
    """A machine that could be started now; None for others and for cards of no table. Joined on family and count:
    slugs differ between the catalogue and the client."""
    closed = ("outOfCapacity", "isTierRestricted", "dwsOnly", "nonOndemand", "byocOnly")
    if any(row.get(name) for name in closed) or row.get("enabled") is False:
        return None
    has = row.get("resources") or {}
    count = int(_number(has.get("gpu")) or 0)
    known = cards.find(str(row.get("family") or "") if count else "CPU")
    price = _number(row.get("cost"))
    instance = str(row.get("slug") or row.get("instanceId") or "")
    if known is None or price is None or not instance:
        return None
    return _Machine(
        card=known.name,
        count=max(1, count),
        instance=instance,
        cluster=str(row.get("clusterId") or cluster),
        price=price,
        vram_gb=known.vram_gb,
        memory_gb=(_number(has.get("memoryMb")) or 0.0) / 1000,
        cpus=_number(has.get("cpu")) or 0.0,
        disk_gb=_number(has.get("storageGb")) or 0.0,
    )


def _observation(job: Mapping[str, Any]) -> Observation:
    raw = str(job.get("state") or "")
    detail = " ".join(str(job.get(name) or "") for name in ("message", "serverError")).strip()
    cost = _number(job.get("totalCost"))
    reason = ""
    if _BROKE.search(detail):
        reason = EndReason.QUOTA_EXHAUSTED
    elif job.get("interruptionNoticeReceived"):
        reason = EndReason.PREEMPTED
    if cost is not None:
        detail = f"{detail}; cost so far {cost:.3f} credits (provisional)".removeprefix("; ")
    return Observation(
        state=_STATES.get(raw, PlatformState.UNKNOWN), raw=raw, detail=detail, reason=reason
    )


def _ref(job: Mapping[str, Any], studio: str = "") -> SessionRef:
    return SessionRef(f"{job['id']}.{studio or (job.get('spec') or {}).get('cloudspaceId') or '-'}")


def _ours(thing: Mapping[str, Any]) -> bool:
    return str(thing.get("name", "")).startswith(PREFIX)


def _words(answer: httpx.Response) -> str:
    """The platform's own text on one line, without what it might repeat of our credentials."""
    try:
        told = answer.json()
        text = str(told.get("message", "")) if isinstance(told, dict) else ""
    except ValueError:
        text = ""
    for name in ("LIGHTNING_AUTH_TOKEN", "LIGHTNING_API_KEY"):
        if os.environ.get(name):
            text = text.replace(os.environ[name], "***")
    return " ".join(text.split())[:300] or "no reason"


def _number(value: Any) -> float | None:
    """A finite number, also one in a string; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _positive(name: str, option: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"platform {name}: {option} is {value!r}, not a number above 0")
    return float(value)


def _machines(name: str, given: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(
            f"platform {name}: machines is {given!r}, not a list of cards",
            hint='for example ["T4", "CPU"]',
        )
    shapes = []
    for word in given:
        match = _MACHINE.fullmatch(str(word))
        known = cards.find(match[1]) if match else None
        if match is None or known is None:
            raise ConfigError(f"platform {name}: no card is called {word!r}")
        shapes.append((known.name, int(match[2] or 1)))
    return tuple(dict.fromkeys(shapes))


def _ceiling(name: str, given: Any) -> float:
    """Credits beyond the balance that may be used; only by name and with a figure."""
    if not given:
        return 0.0
    if not isinstance(given, Mapping) or set(given) != {"allow", "ceiling"}:
        raise ConfigError(
            f"platform {name}: paid is not usable",
            hint='for example paid = {allow = "paid-use", ceiling = 5.0}',
        )
    if given["allow"] != "paid-use":
        raise ConfigError(
            f"platform {name}: paid use is allowed by the word paid-use, not {given['allow']!r}"
        )
    return _positive(name, "ceiling", given["ceiling"])

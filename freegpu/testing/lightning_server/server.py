"""Answers, state and money of the loopback Lightning; see the package."""

from __future__ import annotations

import base64
import math
import re
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from freegpu.testing.machines import Hardware
from freegpu.testing.platform_server import Heard, PlatformServer, Reply

__all__ = ["LightningServer"]

PROJECT, CLUSTER, USER = "prj-1", "lightning-public-prod", "usr-1"
OUT_OF_FUNDS = "USER_STOP_WORKLOAD_REASON_OUT_OF_FUNDS"
_ROUTES = [
    (method, re.compile(path), name)
    for method, path, name in (
        ("GET", r"/v1/auth/user", "user"),
        ("GET", r"/v1/memberships", "memberships"),
        ("GET", r"/v1/orgs", "orgs"),
        ("GET", r"/v1/projects/[^/]+", "project"),
        ("GET", r"/v1/projects/[^/]+/clusters", "clusters"),
        ("GET", r"/v1/core/clusters", "clusters"),
        ("GET", r"/v1/core/accelerators", "accelerators"),
        ("GET", r"/v1/projects/[^/]+/billing/balance", "project_balance"),
        ("GET", r"/v1/users/billing/balance", "user_balance"),
        ("GET", r"/v1/billing/account-balance", "account_balance"),
        ("GET", r"/v1/projects/[^/]+/cloudspaces", "list_studios"),
        ("POST", r"/v1/projects/[^/]+/cloudspaces", "create_studio"),
        ("GET", r"/v1/projects/[^/]+/cloudspaces/(?P<id>[^/]+)", "studio"),
        ("DELETE", r"/v1/projects/[^/]+/cloudspaces/(?P<id>[^/]+)", "delete_studio"),
        ("POST", r"/v1/projects/[^/]+/cloudspaces/(?P<id>[^/]+)/runs", "create_run"),
        ("POST", r"/v1/projects/[^/]+/artifacts/cloudspaces/(?P<id>[^/]+)/blobs", "blobs"),
        (
            "POST",
            r"/v1/projects/[^/]+/artifacts/cloudspaces/(?P<id>[^/]+)/blobs/complete",
            "complete",
        ),
        ("PUT", r"/storage/(?P<id>[^/]+)", "put_blob"),
        ("GET", r"/v1/projects/[^/]+/jobs", "list_jobs"),
        ("POST", r"/v1/projects/[^/]+/jobs", "create_job"),
        ("GET", r"/v1/projects/[^/]+/jobs/find", "find_job"),
        ("GET", r"/v1/projects/[^/]+/jobs/(?P<id>[^/]+)", "job"),
        ("PUT", r"/v1/projects/[^/]+/jobs/(?P<id>[^/]+)", "update_job"),
        ("DELETE", r"/v1/projects/[^/]+/jobs/(?P<id>[^/]+)", "delete_job"),
        ("GET", r"/v1/projects/[^/]+/page-logs", "logs"),
        ("POST", r"/v1/sdk-command-history", "command_history"),
    )
]
#: family, slug, cards, credits an hour, spot (dearer, as seen on 2026-09-25), closed to the free plan
_CATALOGUE = (
    ("CPU", "cpu-4", 0, 0.33, 0.0, False),
    ("T4", "lit-t4-1", 1, 0.55, 0.574, False),
    ("T4", "lit-t4-4", 4, 2.2, 2.3, False),
    ("L4", "lit-l4-1", 1, 1.68, 1.3, False),
    ("H100", "lit-h100-80gb-1", 1, 4.5, 0.0, True),
)


class LightningServer(PlatformServer):
    """Lightning AI on the loopback."""

    starts: ClassVar[frozenset[str]] = frozenset({"create_job"})

    def __init__(self, folder: Path, *, port: int = 0, balance: float = 5.0) -> None:
        super().__init__(folder, port=port)
        self.key = "key-of-lightning"
        self.credits = balance
        #: machines by slug that have run out
        self.full: set[str] = set()
        #: sources of the balance that lie, by operation
        self.wrong_balance: dict[str, float] = {}
        #: all that was ever used, of jobs that are deleted
        self.spent = 0.0
        #: a card pays when the credits are used up: so many are bought each time
        self.top_up = 0.0
        #: jobs that are there and that lists do not show yet, by id
        self.unlisted: set[str] = set()
        self.studios: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self._signed: dict[str, tuple[str, str]] = {}

    def operation(self, heard: Heard) -> str:
        return next(
            (n for m, path, n in _ROUTES if m == heard.method and path.fullmatch(heard.path)), ""
        )

    def error(self, status: int, message: str) -> Reply:
        codes = {400: 9, 401: 16, 403: 7, 404: 5, 429: 8, 501: 12}
        told = {"code": codes.get(status, 14), "message": message, "details": []}
        return Reply(status=status, json=told)

    def answer(self, heard: Heard) -> Reply:
        name = heard.operation
        route = next((path for _, path, n in _ROUTES if n == name), None)
        if route is None:
            return self.error(404, "Not Found")
        if name not in ("put_blob", "accelerators") and not self._known(heard):
            return self.error(401, "invalid credentials")
        found = next(
            match
            for m, path, _ in _ROUTES
            if m == heard.method and (match := path.fullmatch(heard.path))
        )
        id_ = found.groupdict().get("id", "")
        of_studio = name in ("studio", "delete_studio", "create_run", "blobs", "complete")
        if of_studio and id_ not in self.studios:
            return self.error(404, "cloudspace not found")
        if name in ("job", "update_job", "delete_job") and id_ not in self.jobs:
            return self.error(404, "job not found")
        reply: Reply = getattr(self, f"_{name}")(heard, id_)
        return reply

    def _known(self, heard: Heard) -> bool:
        given = heard.headers.get("authorization", "")
        pair = base64.b64encode(f"{USER}:{self.key}".encode()).decode()
        return given in (f"Basic {pair}", f"Bearer {self.key}")

    # --- who and what -----------------------------------------------------------------------------------

    def _user(self, heard: Heard, _: str) -> Reply:
        return Reply(json={"id": USER, "username": "ada", "organizations": []})

    def _memberships(self, heard: Heard, _: str) -> Reply:
        row = {
            "projectId": PROJECT, "name": "lab", "displayName": "lab", "userId": USER, "ownerId": USER,
            "ownerType": "OWNER_TYPE_USER", "freeCreditsEnabled": True,
            "balance": self.wrong_balance.get("memberships", self._left()),
        }  # fmt: skip
        return Reply(json={"memberships": [row]})

    def _orgs(self, heard: Heard, _: str) -> Reply:
        return Reply(json={"organizations": []})

    def _project(self, heard: Heard, _: str) -> Reply:
        told = {"id": PROJECT, "name": "lab", "displayName": "lab", "ownerId": USER}
        return Reply(json={**told, "ownerType": "OWNER_TYPE_USER"})

    def _clusters(self, heard: Heard, _: str) -> Reply:
        spec = {"clusterType": "CLUSTER_TYPE_GLOBAL", "driver": "AWS"}
        rows = [{"id": CLUSTER, "name": CLUSTER, "spec": spec}]
        return Reply(json={"clusters": rows})

    def _accelerators(self, heard: Heard, _: str) -> Reply:
        rows = [
            {
                "slug": slug, "slugMultiCloud": slug, "instanceId": slug, "family": family, "provider": "AWS",
                "clusterId": CLUSTER, "enabled": True, "cost": cost, "spotPrice": spot,
                "isTierRestricted": closed, "outOfCapacity": slug in self.full,
                "resources": {"gpu": gpu, "cpu": 4, "memoryMb": "16000", "storageGb": "100"},
            }
            for family, slug, gpu, cost, spot, closed in _CATALOGUE
        ]  # fmt: skip
        return Reply(json={"accelerator": rows})

    # --- money ------------------------------------------------------------------------------------------

    def _left(self) -> float:
        left = self.credits - self._running_up()
        while self.top_up and left <= 0:
            self.credits += self.top_up
            left += self.top_up
        return left

    def _running_up(self) -> float:
        return sum(self._cost(job) for job in self.jobs.values())

    def _cost(self, job: Mapping[str, Any]) -> float:
        record = self.machines.record(str(job["id"]))
        if not record:
            return 0.0
        seconds = float(record["ended"] or time.time()) - float(record["started"])
        return seconds * float(job["price"]) / 3600

    def _project_balance(self, heard: Heard, _: str) -> Reply:
        return self._told("project_balance", {"projectId": PROJECT, "transactions": []})

    def _user_balance(self, heard: Heard, _: str) -> Reply:
        return self._told("user_balance", {"totalSpent": self.spent + self._running_up()})

    def _account_balance(self, heard: Heard, _: str) -> Reply:
        return self._told("account_balance", {})

    def _told(self, source: str, more: Mapping[str, Any]) -> Reply:
        return Reply(json={"balance": self.wrong_balance.get(source, self._left()), **more})

    # --- Studios and their files ------------------------------------------------------------------------

    def _list_studios(self, heard: Heard, _: str) -> Reply:
        wanted = heard.query.get("name")
        rows = [row for row in self.studios.values() if wanted in (None, row["name"])]
        return Reply(json={"cloudspaces": rows})

    def _create_studio(self, heard: Heard, _: str) -> Reply:
        body, id_ = heard.json, f"cs-{secrets.token_hex(6)}"
        name = self._free(str(body["name"]), self.studios)
        studio = {
            "id": id_, "name": name, "projectId": PROJECT, "clusterId": body["clusterId"],
            "createdAt": self._moment(),
        }  # fmt: skip
        self.studios[id_] = studio
        self.files[id_] = {}
        return Reply(json=studio)

    def _moment(self) -> str:
        return datetime.fromtimestamp(self.now(), UTC).isoformat()

    def _free(self, name: str, taken: Mapping[str, Mapping[str, Any]]) -> str:
        """A taken name is suffixed in silence, as there."""
        names = {row["name"] for row in taken.values()}
        number, free = 2, name
        while free in names:
            free, number = f"{name}-{number}", number + 1
        return free

    def _studio(self, heard: Heard, id_: str) -> Reply:
        return Reply(json=self.studios[id_])

    def _delete_studio(self, heard: Heard, id_: str) -> Reply:
        del self.studios[id_], self.files[id_]
        return Reply(json={})

    def _create_run(self, heard: Heard, id_: str) -> Reply:
        return Reply(json={"id": f"run-{id_}"})

    def _blobs(self, heard: Heard, id_: str) -> Reply:
        results = []
        for blob in heard.json["blobs"]:
            token = secrets.token_hex(8)
            self._signed[token] = (id_, blob["path"])
            results.append(
                {"urls": [{"url": f"{self.url}/storage/{token}"}], "complete_required": True}
            )
        return Reply(json={"results": results})

    def _put_blob(self, heard: Heard, token: str) -> Reply:
        studio, path = self._signed.pop(token, ("", ""))
        if studio not in self.files:
            return self.error(403, "the signature does not match")
        self.files[studio][path] = heard.body
        return Reply()

    def _complete(self, heard: Heard, id_: str) -> Reply:
        return Reply(json={"results": [{}]})

    # --- jobs -------------------------------------------------------------------------------------------

    def _create_job(self, heard: Heard, _: str) -> Reply:
        if self.fault("refuse_quota", "create_job"):
            return self.error(
                400, "insufficient balance to start the cloud space, top up and try again"
            )
        if self.fault("refuse_sessions", "create_job"):
            return self.error(400, "too many concurrent machines")
        if self.fault("refuse_capacity", "create_job"):
            return self.error(400, "the machine is out of capacity")
        body = heard.json
        spec = body["spec"]
        row = next((row for row in _CATALOGUE if row[1] == spec["instanceName"]), None)
        if row is None or spec["cloudspaceId"] not in self.studios:
            return self.error(404, "no such machine or cloudspace")
        if row[0] == "L4":
            return self.error(403, "this machine is not available on your plan")
        left = self._left()
        if left <= 0:
            return self.error(
                400, "insufficient balance to start the cloud space, top up and try again"
            )
        id_ = f"job-{secrets.token_hex(6)}"
        created = self._moment()
        job = {
            "id": id_, "name": self._free(str(body["name"]), self.jobs), "projectId": PROJECT,
            "spec": spec, "createdAt": created, "startedAt": created, "price": row[3], "stop": 0.0,
        }  # fmt: skip
        job["funds_s"] = math.inf if self.top_up else left * 3600 / row[3]
        self.jobs[id_] = job
        wrong = self.fault("wrong_card", "create_job")
        name = wrong or {"T4": "Tesla T4"}.get(row[0], f"NVIDIA {row[0]}")
        self.machines.start(
            id_,
            ["/bin/bash", "-e", "-c", spec["command"]],
            files={f"home/{p}": data for p, data in self.files[spec["cloudspaceId"]].items()},
            cards=Hardware(name=name, count=row[2]) if row[2] else None,
            limit_s=None if self.top_up else job["funds_s"],
            reason=OUT_OF_FUNDS,
            cwd="home",
        )
        return Reply(json=self._shown(job))

    def _shown(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The job as the platform tells it."""
        id_ = str(job["id"])
        record = self.machines.record(id_)
        code = self.machines.exit_code(id_)
        message = ""
        if code is None and not self.machines.alive(id_) and not job["stop"] and record:
            # by the money and not by the watcher's note, which comes a moment after the kill
            lasted = float(record["ended"] or time.time()) - float(record["started"])
            message = OUT_OF_FUNDS if lasted >= float(job["funds_s"]) else "the machine is gone"
        if job["stop"] and time.monotonic() - job["stop"] > 5 and self.machines.alive(id_):
            # what was just being started when the word came did not hear it
            self.jobs[id_]["stop"] = time.monotonic()
            self.machines.ask_to_end(id_)
        if self.machines.alive(id_):
            state = "stopping" if job["stop"] else "running"
        elif job["stop"] or message == OUT_OF_FUNDS:
            state = "stopped"
        else:
            state = "completed" if code == 0 else "failed"
            message = "" if code == 0 else message or f"exit code {code}"
        if self.fault("lies_running", "job"):
            state = "running"
        state = str(self.fault("unknown_word", "job") or state)
        hidden = ("price", "stop", "funds_s")
        told = {name: value for name, value in job.items() if name not in hidden}
        ended = record.get("ended") if not self.machines.alive(id_) else None
        if ended is not None:
            told["stoppedAt"] = datetime.fromtimestamp(float(ended), UTC).isoformat()
        return {**told, "state": state, "message": message, "totalCost": self._cost(job)}

    def _list_jobs(self, heard: Heard, _: str) -> Reply:
        rows = [self._shown(job) for id_, job in self.jobs.items() if id_ not in self.unlisted]
        return Reply(json={"jobs": rows})

    def _find_job(self, heard: Heard, _: str) -> Reply:
        return self.error(501, "Method Not Allowed")

    def _job(self, heard: Heard, id_: str) -> Reply:
        return Reply(json=self._shown(self.jobs[id_]))

    def _update_job(self, heard: Heard, id_: str) -> Reply:
        if heard.json.get("state") == "stop":
            self.jobs[id_]["stop"] = time.monotonic()
            self.machines.ask_to_end(id_)
        return Reply(json=self._shown(self.jobs[id_]))

    def _delete_job(self, heard: Heard, id_: str) -> Reply:
        self.machines.kill(id_)
        cost = self._cost(self.jobs.pop(id_))
        self.credits -= cost
        self.spent += cost
        return Reply(json={})

    def _logs(self, heard: Heard, _: str) -> Reply:
        data = self.machines.output(heard.query.get("jobIds", "-"))
        if (size := self.fault("truncate_output", "logs")) is not None:
            data = data[: int(size)]
        lines = data.decode("utf-8", "replace").splitlines()
        entries = [{"message": line, "line": str(index)} for index, line in enumerate(lines)]
        return Reply(json={"entries": entries, "nextPageToken": "", "followUrl": ""})

    def _command_history(self, heard: Heard, _: str) -> Reply:
        return Reply(json={})

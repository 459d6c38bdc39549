"""Answers, kernels and quota of the loopback Kaggle; see the package."""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from freegpu.testing.kaggle_server.datasets import Datasets
from freegpu.testing.machines import Hardware
from freegpu.testing.platform_server import Heard, PlatformServer, Reply

__all__ = ["KaggleServer", "Kernel"]

USER = "ada"
_CALL = re.compile(r"/api/v1/([A-Za-z]+\.[A-Za-z]+)/([A-Za-z]+)")
_CARDS = {
    "NvidiaTeslaT4": Hardware(name="Tesla T4", count=2),
    "TpuV5E8": None,
    "": None,
}
#: asked for, and what comes without a word (kaggle 2.2.5, `_RETIRED_ACCELERATORS`)
_SILENTLY = {
    "NvidiaTeslaP100": "NvidiaTeslaT4",
    "TpuV38": "TpuV5E8",
    "Tpu1VmV38": "TpuV5E8",
    "TpuV232": "",
    "TpuV2256": "",
}
_SERVICES = {
    "kernels.KernelsApiService",
    "datasets.DatasetApiService",
    "blobs.BlobApiService",
    "security.OAuthService",
    "users.AccountService",
}
_OPEN = ("upload", "output", "GenerateAccessToken", "IntrospectToken")


@dataclass(kw_only=True, slots=True)
class Kernel:
    """A kernel with its one session."""

    id: int
    slug: str
    #: the machine that runs it
    machine: str
    #: what was given, not what was asked for
    shape: str
    saved: Mapping[str, Any]
    started: float = field(default_factory=time.time)


class KaggleServer(PlatformServer):
    """Kaggle on the loopback."""

    starts: ClassVar[frozenset[str]] = frozenset({"SaveKernel"})

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        gpu_hours: float = 30.0,
        tpu_hours: float = 20.0,
        cap: int = 2,
        limit_s: float = 12 * 3600.0,
    ) -> None:
        super().__init__(folder, port=port)
        self.user = USER
        self.token, self.key = "KGAT_token-of-kaggle", "key-of-kaggle"
        self.refresh, self.renewed = "refresh-of-kaggle", "KGAT_renewed-of-kaggle"
        self.allowed = {"gpu": gpu_hours * 3600, "tpu": tpu_hours * 3600}
        self.spent = {"gpu": 0.0, "tpu": 0.0}
        self.cap, self.limit_s = cap, limit_s
        self.kernels: dict[str, Kernel] = {}
        self.data = Datasets(self.url)
        #: rows of a page of output
        self.page = 200
        #: how long a kernel is said to be queued, seconds
        self.queue_s = 0.0
        #: operations answered by a page in HTML with 200, or by this JSON
        self.html: set[str] = set()
        self.instead: dict[str, Any] = {}
        #: appended to the slug: a title that Kaggle makes something else of
        self.drift = ""
        #: dataset sources that are said not to be found
        self.invalid = False
        #: shapes that are given in another one's place, beside those that Kaggle is known to replace
        self.silently: dict[str, str] = dict(_SILENTLY)
        #: files of the output that no session wrote
        self.planted: dict[str, bytes] = {}
        #: the kernel is said to be there still after it was deleted
        self.ghosts = False
        #: slugs of deleted kernels that the list still shows
        self.shown_still: list[str] = []
        #: signed addresses of files work so many times; None: always
        self.uses: int | None = None
        self._signed: dict[str, tuple[str, str, int]] = {}
        self._ids = 0

    def operation(self, heard: Heard) -> str:
        match = _CALL.fullmatch(heard.path)
        if match and heard.method == "POST" and match[1] in _SERVICES:
            return match[2]
        first = heard.path.split("/")[1]
        wanted = {"upload": "PUT", "output": "GET"}.get(first)
        return first if heard.method == wanted else ""

    def answer(self, heard: Heard) -> Reply:
        name = heard.operation
        if name in self.html:
            page = b"<!DOCTYPE html><title>Kaggle</title>One moment, please"
            return Reply(body=page, headers={"Content-Type": "text/html"})
        if name in self.instead:
            told = json.dumps(self.instead[name]).encode()
            return Reply(body=told, headers={"Content-Type": "application/json"})
        answers = getattr(self, f"_on_{name}", None)
        if not name or answers is None:
            return self.error(404, "Not Found")
        if name not in _OPEN and not self._known(heard):
            return self.error(401, "Unauthenticated")
        told = heard.json if name not in ("upload", "output") else {}
        owner = told.get("userName") or told.get("ownerSlug")
        if owner not in (None, self.user):
            return self.error(403, "Permission was denied")
        reply: Reply = answers(heard, told)
        return reply

    def _known(self, heard: Heard) -> bool:
        given = heard.headers.get("authorization", "")
        pair = base64.b64encode(f"{self.user}:{self.key}".encode()).decode()
        return given in (f"Basic {pair}", f"Bearer {self.token}", f"Bearer {self.renewed}")

    # --- who --------------------------------------------------------------------------------------------

    def _on_IntrospectToken(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        if told.get("token") not in (self.token, self.renewed):
            return Reply(json={})
        return Reply(json={"active": True, "username": self.user, "scope": "resources.admin:*"})

    def _on_GenerateAccessToken(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        if told.get("refreshToken") != self.refresh:
            return self.error(401, "Unauthenticated")
        return Reply(json={"token": self.renewed, "expiresIn": 43200, "userName": self.user})

    # --- quota ------------------------------------------------------------------------------------------

    def pool(self, kernel: Kernel) -> str:
        """Which quota this kernel draws on."""
        return {"NvidiaTeslaT4": "gpu", "TpuV5E8": "tpu"}.get(kernel.shape, "")

    def used(self, pool: str) -> float:
        """Seconds that were used, by wall clock and not by card."""
        return self.spent[pool] + sum(
            self._lasted(kernel) for kernel in self.kernels.values() if self.pool(kernel) == pool
        )

    def _lasted(self, kernel: Kernel) -> float:
        record = self.machines.record(kernel.machine)
        return float((record.get("ended") or time.time()) - record["started"]) if record else 0.0

    def running(self, pool: str) -> list[Kernel]:
        """Those whose machine is up."""
        return [
            kernel
            for kernel in self.kernels.values()
            if self.pool(kernel) == pool and self.machines.alive(kernel.machine)
        ]

    def _on_GetAcceleratorQuotaStatistics(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        now = datetime.fromtimestamp(self.now(), UTC)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        saturday = midnight + timedelta(days=(5 - now.weekday()) % 7 or 7)
        answer: dict[str, Any] = {"quotaRefreshTime": saturday.strftime("%Y-%m-%dT%H:%M:%SZ")}
        for pool, allowed in self.allowed.items():
            answer[f"{pool}Quota"] = {
                "timeUsed": _duration(self.used(pool)),
                "timeReserved": _duration(3600.0 * len(self.running(pool))),
                "totalTimeAllowed": _duration(allowed),
                "minimumTimeAllowed": _duration(allowed),
                "hasEverRun": True,
            }
        return Reply(json=answer)

    # --- kernels ----------------------------------------------------------------------------------------

    def _on_SaveKernel(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        # the slug comes from the title, whatever the slug says
        slug = re.sub(r"[^a-z0-9]+", "-", str(told.get("newTitle", "")).lower()).strip("-")
        slug += self.drift
        if len(slug) < 5:
            return Reply(json={"error": "The title is too short"})
        asked = str(told.get("machineShape") or "")
        if not asked and told.get("enableGpu", False):
            asked = "NvidiaTeslaP100"
        shape = self.silently.get(asked, asked)
        if asked == "TpuV5E8" and told.get("dockerImage"):
            shape = ""  # an image pin beats the shape: a processor comes
        if refusal := self._refusal(shape, told):
            return Reply(json={"error": refusal})
        owned = [str(ref) for ref in told.get("datasetDataSources") or []]
        lacking = [ref for ref in owned if self.invalid or not self.data.ready(ref)]
        self._ids += 1
        version = 1 + sum(1 for kernel in self.kernels.values() if kernel.slug == slug)
        machine = f"{slug[:40]}-{self._ids}"
        kernel = Kernel(id=self._ids, slug=slug, machine=machine, shape=shape, saved=dict(told))
        # a push to a slug that is there leaves the earlier session running, and hides it
        before = self.kernels.pop(slug, None)
        if before is not None:
            self.kernels[f"{slug}#{before.id}"] = before
        self.kernels[slug] = kernel
        self._run(kernel, [ref for ref in owned if ref not in lacking])
        return Reply(
            json={
                "ref": f"/code/{self.user}/{slug}",
                "url": f"{self.url}/code/{self.user}/{slug}",
                "versionNumber": version,
                "kernelId": kernel.id,
                **({"invalidDatasetSources": lacking} if lacking else {}),
            }
        )

    def _refusal(self, shape: str, told: Mapping[str, Any]) -> str:
        if shape not in _CARDS:
            return f"The machine shape {shape} is not available"
        if not told.get("text"):
            return "The notebook is empty"
        pool = {"NvidiaTeslaT4": "gpu", "TpuV5E8": "tpu"}.get(shape, "")
        full = pool == "gpu" and len(self.running("gpu")) >= self.cap
        if full or self.fault("refuse_sessions", "SaveKernel"):
            return f"Maximum batch GPU session count of {self.cap} reached."
        spent = bool(pool) and self.used(pool) >= self.allowed[pool]
        if spent or self.fault("refuse_quota", "SaveKernel"):
            return f"You have used your weekly {pool.upper() or 'GPU'} quota."
        if self.fault("refuse_capacity", "SaveKernel"):
            return "No accelerators are available at the moment."
        return ""

    def _run(self, kernel: Kernel, refs: list[str]) -> None:
        cards = _CARDS[kernel.shape]
        if wrong := self.fault("wrong_card", "SaveKernel"):
            cards = Hardware(name=str(wrong), count=cards.count if cards else 1)
        files = {"src/script.py": str(kernel.saved["text"]).encode()}
        for ref in refs:
            for name, data in self.data.known[ref].files.items():
                files[f"input/{ref.partition('/')[2]}/{name}"] = data
        place = self.machines.place(kernel.machine)
        (place / "scratch").mkdir(parents=True)
        around = {"TMPDIR": str(place / "scratch"), "KAGGLE_KERNEL_RUN_TYPE": "Batch"}
        if kernel.shape == "TpuV5E8":
            around["TPU_WORKER_ID"] = "0"
        self.machines.start(
            kernel.machine,
            ["python3", "../src/script.py"],
            files=files,
            cards=cards,
            limit_s=self.limit_s,
            cwd="working",
            env=around,
        )

    def _asked(self, told: Mapping[str, Any]) -> Kernel | None:
        """The kernel that is meant. A label that is none of its versions finds nothing."""
        kernel = self.kernels.get(str(told.get("kernelSlug", "")))
        label = told.get("versionLabel")
        return kernel if label in (None, "v1") else None

    def _on_GetKernelSessionStatus(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        kernel = self._asked(told)
        if kernel is None:
            return self.error(404, "The notebook was not found")
        word, message = self._status(kernel)
        if self.fault("lies_running", heard.operation):
            word, message = "RUNNING", ""
        word = str(self.fault("unknown_word", heard.operation) or word)
        answer = {"status": word, "failureMessage": message}
        return Reply(json={k: v for k, v in answer.items() if v and v != "QUEUED"})

    def _status(self, kernel: Kernel) -> tuple[str, str]:
        if time.time() - kernel.started < self.queue_s:
            return "QUEUED", ""
        if self.machines.alive(kernel.machine):
            return "RUNNING", ""
        code = self.machines.exit_code(kernel.machine)
        if code is None and self._lasted(kernel) >= self.limit_s:
            return "ERROR", "Your notebook exceeded the maximum execution time and timed out"
        if code is None:
            return "ERROR", "The session ended unexpectedly"
        return ("COMPLETE", "") if code == 0 else ("ERROR", f"Process exited with code {code}")

    def _on_ListKernels(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        """The user's own, the one that ran last first; a deleted one may still be among them."""
        kernels = sorted(self.kernels.values(), key=lambda kernel: -kernel.started)
        rows = [
            {
                "id": kernel.id,
                "ref": f"{self.user}/{kernel.slug}",
                "slug": kernel.slug,
                "title": str(kernel.saved.get("newTitle", "")),
                "author": self.user,
                "lastRunTime": _stamp(kernel.started + self.now() - time.time()),
                "enableGpu": self.pool(kernel) == "gpu",
                "enableTpu": self.pool(kernel) == "tpu",
                "isPrivate": kernel.saved.get("isPrivate") is True,
                **({"machineShape": kernel.shape} if kernel.shape else {}),
            }
            for kernel in kernels
        ] + [{"ref": f"{self.user}/{slug}", "slug": slug} for slug in self.shown_still]
        size = int(told.get("pageSize") or 20)
        start = size * (int(told.get("page") or 1) - 1)
        return Reply(json={"kernels": rows[start : start + size]})

    def _on_DeleteKernel(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        kernel = self.kernels.get(str(told.get("kernelSlug", "")))
        if kernel is None:
            return self.error(404, "The notebook was not found")
        self.machines.kill(kernel.machine)
        if pool := self.pool(kernel):
            self.spent[pool] += self._lasted(kernel)
        if not self.ghosts:
            del self.kernels[kernel.slug]
        return Reply(json={})

    # --- output -----------------------------------------------------------------------------------------

    def outputs(self, kernel: Kernel) -> dict[str, Path]:
        """What is published: everything below /kaggle/working, and only once the session is over."""
        if self.machines.alive(kernel.machine):
            return {}
        root = self.machines.place(kernel.machine) / "working"
        found = {path.relative_to(root).as_posix(): path for path in root.rglob("*")}
        return {name: path for name, path in sorted(found.items()) if path.is_file()}

    def _on_ListKernelSessionOutput(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        kernel = self._asked(told)
        if kernel is None:
            return self.error(404, "The notebook was not found")
        names = [*self.outputs(kernel), *self.planted]
        start = int(told.get("pageToken") or 0)
        end = start + min(self.page, int(told.get("pageSize") or 20))
        rows = []
        for name in names[start:end]:
            token = secrets.token_hex(8)
            self._signed[token] = (kernel.slug, name, 0)
            rows.append({"url": f"{self.url}/output/{token}", "fileName": name})
        answer: dict[str, Any] = {"files": rows, "log": self._log(kernel)}
        if end < len(names):
            answer["nextPageToken"] = str(end)
        return Reply(json=answer)

    def _log(self, kernel: Kernel) -> str:
        """A JSON array as a string; records end where they like, and not at the ends of lines."""
        if self.machines.alive(kernel.machine):
            return ""
        text = self.machines.output(kernel.machine).decode("utf-8", "replace")
        parts = [text[at : at + 50] for at in range(0, len(text), 50)]
        rows = [{"stream_name": "stdout", "time": i, "data": part} for i, part in enumerate(parts)]
        return json.dumps(rows)

    def _on_output(self, heard: Heard, told: Mapping[str, Any]) -> Reply:
        token = heard.path.rpartition("/")[2]
        slug, name, used = self._signed.get(token, ("", "", 0))
        kernel = self.kernels.get(slug)
        path = self.outputs(kernel).get(name) if kernel else None
        if (path is None and name not in self.planted) or (
            self.uses is not None and used >= self.uses
        ):
            # an error page with 200 was saved as the file by older clients
            page = b"<!DOCTYPE html><title>Expired</title>"
            return Reply(body=page, headers={"Content-Type": "text/html"})
        self._signed[token] = (slug, name, used + 1)
        data = path.read_bytes() if path is not None else self.planted[name]
        cut = self.fault("truncate_output", "output")
        return Reply(body=data, cut_after=None if cut is None else max(1, int(cut)))

    # --- datasets ---------------------------------------------------------------------------------------

    def _on_upload(self, heard: Heard, told: Mapping[str, Any]) -> Reply:
        return self.data.put(heard)

    def _on_StartBlobUpload(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        return self.data.start_upload(told)

    def _on_CreateDataset(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        return self.data.create(told, self.user)

    def _on_GetDatasetStatus(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        return self.data.tell_status(_ref(told)) or self.error(403, "Permission was denied")

    def _on_ListDatasetFiles(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        found = self.data.files(_ref(told), told.get("datasetVersionNumber"))
        return found or self.error(404, "The dataset was not found")

    def _on_DeleteDataset(self, heard: Heard, told: Mapping[str, Any]) -> Reply:  # noqa: N802
        if self.data.known.pop(_ref(told), None) is None:
            return self.error(404, "The dataset was not found")
        return Reply(json={})


def _ref(told: Mapping[str, Any]) -> str:
    return f"{told.get('ownerSlug')}/{told.get('datasetSlug')}"


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _duration(seconds: float) -> str:
    return f"{seconds:.3f}s".replace(".000s", "s")

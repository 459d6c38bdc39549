"""Datasets and uploads of the loopback Kaggle: blobs come by signed addresses, and a dataset is READY after a while."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from freegpu.testing.platform_server import Heard, Reply

__all__ = ["Datasets"]

#: unpacked there, so that the file itself is not in the dataset
_ARCHIVE = re.compile(r".*\.(zip|tar|tgz|tar\.gz|7z)", re.I)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(kw_only=True, slots=True)
class Upload:
    """A blob on its way."""

    name: str
    size: int
    data: bytearray = field(default_factory=bytearray)

    @property
    def whole(self) -> bool:
        return len(self.data) == self.size


@dataclass(kw_only=True, slots=True)
class Dataset:
    """One version of a dataset; versions replace the whole set of files, and ours have one."""

    files: Mapping[str, bytes]
    private: bool
    #: READY from this moment on, epoch seconds
    ready_at: float


class Datasets:
    """State and answers; what goes wrong is set in the attributes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.uploads: dict[str, Upload] = {}
        self.known: dict[str, Dataset] = {}
        #: how long a new dataset is being processed, seconds
        self.pending_s = 0.0
        #: the creation "succeeds" and there is nothing: over the private total
        self.lose = False
        #: a status that is told instead of READY
        self.status = ""
        #: uploads are answered with 503 after so many bytes, one entry a try
        self.breaks: list[int] = []
        #: an upload's address is not known any more at the first question for it
        self.forgetful = False

    def ready(self, ref: str) -> bool:
        found = self.known.get(ref)
        return found is not None and time.time() >= found.ready_at and not self.status

    def start_upload(self, told: Mapping[str, Any]) -> Reply:
        token = secrets.token_hex(12)
        self.uploads[token] = Upload(name=str(told["name"]), size=int(told.get("contentLength", 0)))
        return Reply(json={"token": token, "createUrl": f"{self.url}/upload/{token}"})

    def put(self, heard: Heard) -> Reply:
        upload = self.uploads.get(heard.path.rpartition("/")[2])
        if upload is None or "authorization" in heard.headers:
            return Reply(status=404 if upload is None else 400)
        given = heard.headers.get("content-range", "")
        if given.startswith("bytes */"):
            if self.forgetful:
                return Reply(status=404)
            if upload.whole:
                return Reply(status=200)
            last = len(upload.data) - 1
            return Reply(status=308, headers={"Range": f"bytes=0-{last}"} if last >= 0 else {})
        match = _RANGE.fullmatch(given)
        if match and int(match[1]) != len(upload.data):
            return Reply(status=400)
        if not match:
            upload.data.clear()
        if self.breaks:
            upload.data += heard.body[: self.breaks.pop(0)]
            return Reply(status=503)
        upload.data += heard.body
        return Reply(status=200 if upload.whole else 400)

    def create(self, told: Mapping[str, Any], owner: str) -> Reply:
        slug, title = str(told.get("slug", "")), str(told.get("title", ""))
        if not (6 <= len(slug) <= 50 and 6 <= len(title) <= 50):
            return Reply(json={"status": "error", "error": "The slug or title is not 6 to 50 long"})
        ref = f"{owner}/{slug}"
        if ref in self.known:
            return Reply(json={"status": "error", "error": "This dataset exists already"})
        files = {}
        for entry in told.get("files") or []:
            upload = self.uploads.get(str(entry.get("token")))
            if upload is None or not upload.whole:
                return Reply(json={"status": "error", "error": "An upload is not complete"})
            name = f"{upload.name}.d/x" if _ARCHIVE.fullmatch(upload.name) else upload.name
            files[name] = bytes(upload.data)
        if not self.lose:
            ready = time.time() + self.pending_s
            private = told.get("isPrivate") is True
            self.known[ref] = Dataset(files=files, private=private, ready_at=ready)
        return Reply(json={"ref": f"/{ref}", "url": f"{self.url}/{ref}", "status": "Ok"})

    def tell_status(self, ref: str) -> Reply | None:
        found = self.known.get(ref)
        if found is None:
            return None
        if self.status:
            return Reply(json={"status": self.status})
        # the first word is the default, which answers leave out
        return Reply(json={"status": "READY"} if time.time() >= found.ready_at else {})

    def files(self, ref: str, version: Any) -> Reply | None:
        found = self.known.get(ref)
        if found is None or version not in (None, 1):
            return None
        rows = [
            {"ref": name, "name": name, "totalBytes": len(data)}
            for name, data in sorted(found.files.items())
        ]
        return Reply(json={"datasetFiles": rows})

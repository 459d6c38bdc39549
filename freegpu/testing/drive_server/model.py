"""The files of a pretended account: ids, twins, trash, revisions, changes, and how late listings notice.

Knows nothing of HTTP. Contents lie as files in a folder; with `folder` given everything is there again after a restart.
Not safe for threads by itself: the server holds one lock around each call.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = "application/vnd.google-apps.folder"
#: the longest property: key and value together, bytes of UTF-8
MAX_PROPERTY = 124
#: public properties of a file
MAX_PROPERTIES = 30
#: "My Drive"; its real id looks like any other, and `root` is another name for it
ROOT = "0AROOTROOTROOTROOTUk9PVA"


class Refusal(Exception):  # noqa: N818 - reads as what happened
    """An error answer of Google's: status, reason, sentence."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        #: seconds for a Retry-After header
        self.retry_after: float | None = None


@dataclass
class File:
    """One file or folder. Times are seconds since 1970, by the server's clock."""

    id: str
    name: str
    mime: str
    #: the OAuth client that made it
    client: str
    created: float
    modified: float
    parents: list[str] = field(default_factory=list)
    #: a person or client put it in the trash itself
    trashed: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    #: client -> its private properties
    private: dict[str, dict[str, str]] = field(default_factory=dict)
    size: int = 0
    md5: str = ""
    sha256: str = ""
    revision: str = ""
    revisions: int = 0
    version: int = 1
    #: in the trash, itself or with a folder above it; set when it is indexed
    buried: bool = False


@dataclass(frozen=True)
class Who:
    """On whose behalf a call is made."""

    client: str
    scope: str

    def sees(self, file: File) -> bool:
        """`drive.file` shows only what the same client made."""
        return self.scope == "drive" or file.client == self.client


class Drive:
    """See the module. `quota` is in bytes, trash included; None: without limit."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        quota: int | None = None,
        email: str = "someone@example.org",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.quota = quota
        self.email = email
        self.clock = clock
        self._temporary = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="drive-"))
        (self.folder / "content").mkdir(parents=True, exist_ok=True)
        self.files: dict[str, File] = {}
        self.given: set[str] = set()
        self.used_ids: set[str] = set()
        #: (number, time, file id): the changes feed
        self.changes: list[tuple[int, float, str]] = []
        #: what listings know, and what they have not heard of yet
        self.index: dict[str, File] = {}
        self._unheard: list[tuple[float, str, File | None]] = []
        self._restore()

    def close(self) -> None:
        """Forget everything that is not kept in a folder of the caller's."""
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- reading ----------------------------------------------------------------------------------------

    def find(self, file_id: str, who: Who) -> File:
        """By id, always fresh. Refusal 404: not there, or not for this client to see."""
        file = self.files.get(file_id)
        if file is None or not who.sees(file):
            raise Refusal(404, "notFound", f"File not found: {file_id}.")
        return file

    def listed(self, who: Who, lag_s: float = 0.0) -> Iterator[File]:
        """What a listing knows that hears of everything `lag_s` seconds late."""
        heard = self.clock() - lag_s
        while self._unheard and self._unheard[0][0] <= heard:
            _, file_id, snapshot = self._unheard.pop(0)
            if snapshot is None:
                self.index.pop(file_id, None)
            else:
                self.index[file_id] = snapshot
        return (file for file in self.index.values() if who.sees(file))

    def content(self, file: File) -> Path:
        """Where the bytes of its newest revision lie."""
        return self.folder / "content" / file.revision

    def used(self) -> int:
        """Bytes that count against the quota; the trash does."""
        return sum(file.size for file in self.files.values())

    def resource(self, file: File, who: Who) -> dict[str, Any]:
        """The file as the API shows it to this client; values that Google sends as text are text."""
        shown: dict[str, Any] = {
            "kind": "drive#file",
            "id": file.id,
            "name": file.name,
            "mimeType": file.mime,
            "parents": list(file.parents),
            "trashed": self._buried(file),
            "explicitlyTrashed": file.trashed,
            "starred": False,
            "createdTime": _text(file.created),
            "modifiedTime": _text(file.modified),
            "version": str(file.version),
            "ownedByMe": True,
            "isAppAuthorized": file.client == who.client,
        }
        if file.properties:
            shown["properties"] = dict(file.properties)
        if file.private.get(who.client):
            shown["appProperties"] = dict(file.private[who.client])
        if file.mime != FOLDER:
            shown |= {
                "size": str(file.size),
                "md5Checksum": file.md5,
                "sha256Checksum": file.sha256,
                "headRevisionId": file.revision,
            }
        return shown

    # --- writing ----------------------------------------------------------------------------------------

    def new_ids(self, count: int) -> list[str]:
        """Ids that a later create may use."""
        made = ["1" + secrets.token_urlsafe(24) for _ in range(count)]
        self.given.update(made)
        return made

    def check_new(self, metadata: Mapping[str, Any], who: Who) -> None:
        """Refusal: a create with this metadata could not be done."""
        given = metadata.get("id")
        if given is not None and given in self.used_ids:
            raise Refusal(409, "fileIdInUse", "A file already exists with the provided ID.")
        if given is not None and given not in self.given:
            raise Refusal(400, "invalid", "The provided file ID is not usable.")
        for parent in metadata.get("parents") or ():
            if parent not in ("root", ROOT):
                self.find(parent, who)
        _check_properties(metadata)

    def create(self, metadata: Mapping[str, Any], content: Path | None, who: Who) -> File:
        """A new file, also if another has the same name."""
        self.check_new(metadata, who)
        now = self.clock()
        file = File(
            id=metadata.get("id") or self.new_ids(1)[0],
            name=str(metadata.get("name") or "Untitled"),
            mime=str(metadata.get("mimeType") or "application/octet-stream"),
            client=who.client,
            created=now,
            modified=now,
            parents=[ROOT if p == "root" else p for p in metadata.get("parents") or ["root"]],
        )
        if file.mime != FOLDER:
            self._set_content(file, content)
        self._describe(file, metadata, who)
        self.used_ids.add(file.id)
        self.files[file.id] = file
        self._changed(file)
        return file

    def update(
        self,
        file: File,
        metadata: Mapping[str, Any],
        content: Path | None,
        who: Who,
        *,
        add: str = "",
        remove: str = "",
    ) -> File:
        """Other metadata, another content, another place."""
        _check_properties(metadata)
        if "parents" in metadata or "id" in metadata:
            raise Refusal(
                403,
                "fieldNotWritable",
                "The resource body includes fields which are not directly writable.",
            )
        if content is not None:
            self._set_content(file, content)
        file.modified = self.clock()
        self._describe(file, metadata, who)
        gone = set(remove.split(",")) if remove else set()
        if add:
            # since 2020 a file has one parent
            file.parents = [ROOT if p == "root" else p for p in add.split(",")]
        elif gone:
            file.parents = [p for p in file.parents if p not in gone]
        file.version += 1
        self._changed(file)
        return file

    def delete(self, file: File) -> None:
        """For good, past the trash, with everything below it."""
        for below in [f for f in self.files.values() if file.id in f.parents]:
            self.delete(below)
        self.files.pop(file.id, None)
        if file.revision:
            self.content(file).unlink(missing_ok=True)
        self._log(file.id, None)
        self._save()

    # --- inside -----------------------------------------------------------------------------------------

    def _describe(self, file: File, metadata: Mapping[str, Any], who: Who) -> None:
        file.name = str(metadata.get("name", file.name))
        file.trashed = bool(metadata.get("trashed", file.trashed))
        private = file.private.setdefault(who.client, {})
        for wanted, kept in (("properties", file.properties), ("appProperties", private)):
            for key, value in (metadata.get(wanted) or {}).items():
                if value is None:
                    kept.pop(key, None)
                else:
                    kept[key] = str(value)
        if len(file.properties) > MAX_PROPERTIES:
            raise Refusal(403, "propertyLimitExceeded", "Too many properties.")
        if "modifiedTime" in metadata:
            file.modified = datetime.fromisoformat(str(metadata["modifiedTime"])).timestamp()

    def _set_content(self, file: File, content: Path | None) -> None:
        size = content.stat().st_size if content else 0
        if self.quota is not None and self.used() - file.size + size > self.quota:
            raise Refusal(
                403, "storageQuotaExceeded", "The user's Drive storage quota has been exceeded."
            )
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        old = self.content(file) if file.revision else None
        file.revision = "0B" + secrets.token_urlsafe(20)
        target = self.content(file)
        with target.open("wb") as copy:
            if content:
                with content.open("rb") as reader:
                    while block := reader.read(1 << 20):
                        md5.update(block)
                        sha256.update(block)
                        copy.write(block)
        if old:
            old.unlink(missing_ok=True)
        file.size, file.md5, file.sha256 = size, md5.hexdigest(), sha256.hexdigest()
        file.revisions += 1

    def _buried(self, file: File) -> bool:
        seen = set()
        todo = [file]
        while todo:
            here = todo.pop()
            if here.trashed:
                return True
            seen.add(here.id)
            todo += [self.files[p] for p in here.parents if p in self.files and p not in seen]
        return False

    def _changed(self, file: File) -> None:
        file.buried = self._buried(file)
        self._log(
            file.id, replace(file, parents=list(file.parents), properties=dict(file.properties))
        )
        if file.mime == FOLDER:
            for below in [f for f in self.files.values() if file.id in f.parents]:
                if below.buried != self._buried(below):
                    self._changed(below)
        self._save()

    def _log(self, file_id: str, snapshot: File | None) -> None:
        now = self.clock()
        self.changes.append((len(self.changes) + 1, now, file_id))
        self._unheard.append((now, file_id, snapshot))

    def _save(self) -> None:
        if self._temporary:
            return
        state = {
            "files": [asdict(file) for file in self.files.values()],
            "used": sorted(self.used_ids),
            "given": sorted(self.given),
            "changes": self.changes,
        }
        hidden = self.folder / ".state.json"
        hidden.write_text(json.dumps(state), encoding="utf-8")
        hidden.replace(self.folder / "state.json")

    def _restore(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
            self.files = {entry["id"]: File(**entry) for entry in state["files"]}
            self.used_ids, self.given = set(state["used"]), set(state["given"])
            self.changes = [(number, at, file_id) for number, at, file_id in state["changes"]]
            self.index = {file.id: replace(file) for file in self.files.values()}


def _text(seconds: float) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _check_properties(metadata: Mapping[str, Any]) -> None:
    for wanted in ("properties", "appProperties"):
        for key, value in (metadata.get(wanted) or {}).items():
            if value is not None and len(f"{key}{value}".encode()) > MAX_PROPERTY:
                raise Refusal(
                    403, "propertyKeyValueTooLong", f"{key}: more than {MAX_PROPERTY} bytes."
                )

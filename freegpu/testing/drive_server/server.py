"""A Drive on a port of the loopback: its state, its listings, and the switches for everything that goes wrong there.

Each request is one operation with a name (see exchange.py); faults are switched by it, and `requests` lists what came.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from freegpu.testing.drive_server.exchange import Exchange, Upload
from freegpu.testing.drive_server.model import ROOT, Drive, File, Refusal, Who
from freegpu.testing.drive_server.oauth import OAuth
from freegpu.testing.drive_server.query import parse


@dataclass
class Fault:
    """What happens to the next `times` requests of an operation (or of any, where it is empty)."""

    operation: str = ""
    times: int = 1
    #: 0: the connection is closed without an answer
    status: int = 0
    reason: str = ""
    #: the request is carried out before it fails
    accepted: bool = False
    retry_after_s: float | None = None
    #: bytes of the body after which the connection is cut, whichever way the body goes
    cut_after: int | None = None


class DriveServer:
    """See the package. Use it as a context; `url` is its address."""

    def __init__(self, drive: Drive | None = None, *, port: int = 0) -> None:
        self.drive = drive or Drive()
        self.lock = threading.RLock()
        #: seconds by which listings and the changes feed are late; inf: until it is set to something else
        self.listing_lag_s = 0.0
        self.changes_lag_s = 0.0
        self.faults: list[Fault] = []
        #: the operations that were asked for, in order
        self.requests: list[str] = []
        self.uploads: dict[str, Upload] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="drive-uploads-")
        self._http = ThreadingHTTPServer(("127.0.0.1", port), Exchange)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self._http.drive_server = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.oauth = OAuth(lambda: self.url, lambda: self.drive.clock())
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)
        self._folder.cleanup()
        self.drive.close()

    # --- faults -----------------------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        status: int,
        reason: str = "backendError",
        *,
        times: int = 1,
        accepted: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        """Refuse the next requests, after carrying them out if `accepted`."""
        fault = Fault(operation, times, status, reason, accepted, retry_after_s)
        self.faults.append(fault)

    def lose_answer(self, operation: str, *, times: int = 1) -> None:
        """Carry the next requests out and close the connection without a word."""
        self.faults.append(Fault(operation, times, accepted=True))

    def cut(self, operation: str, after: int, *, times: int = 1) -> None:
        """Cut the connection after so many bytes of the body: an upload's or a download's."""
        self.faults.append(Fault(operation, times, cut_after=after))

    def count(self) -> Counter[str]:
        """Requests by operation since `requests` was cleared."""
        with self.lock:
            return Counter(self.requests)

    # --- a person in the web page -----------------------------------------------------------------------

    def named(self, name: str) -> list[File]:
        """Files of this name that are not in the trash, oldest first."""
        with self.lock:
            found = [f for f in self.drive.files.values() if f.name == name and not f.buried]
            return sorted(found, key=lambda file: (file.created, file.id))

    def person(
        self, file: File, *, delete: bool = False, move_to: str = "", **metadata: Any
    ) -> None:
        """Rename (name=), trash or restore (trashed=), move or delete a file behind everybody's back."""
        me = Who("web", "drive")
        with self.lock:
            if delete:
                self.drive.delete(file)
            else:
                self.drive.update(file, metadata, None, me, add=move_to)

    def person_makes(self, name: str, content: bytes = b"", **metadata: Any) -> File:
        """A file or folder that a person uploads or makes in the web page."""
        with self.lock, tempfile.NamedTemporaryFile(dir=self._folder.name) as file:
            file.write(content)
            file.flush()
            made = {"name": name, **metadata}
            return self.drive.create(made, Path(file.name), Who("web", "drive"))

    # --- operations -------------------------------------------------------------------------------------

    def list_files(self, params: Mapping[str, str], who: Who) -> dict[str, Any]:
        try:
            test = parse(params["q"]) if params.get("q") else lambda seen: True
            limit = int(params.get("pageSize", "100"))
            start = int(params.get("pageToken", "0"))
        except ValueError as error:
            raise Refusal(400, "invalid", f"Invalid Value: {error}") from error
        if not 1 <= limit <= 1000:
            raise Refusal(400, "invalid", "pageSize is from 1 to 1000.")
        seen = []
        for file in self.drive.listed(who, self.listing_lag_s):
            shown = self.drive.resource(file, who) | {"trashed": file.buried}
            # `root` is a name for the id of My Drive
            asked = shown | {
                "parents": [*shown["parents"], *(["root"] if ROOT in shown["parents"] else [])]
            }
            if test(asked):
                seen.append(shown)
        for part in reversed((params.get("orderBy") or "").split(",")):
            name, _, down = part.strip().partition(" ")
            if name == "folder":
                seen.sort(key=lambda f: not f["mimeType"].endswith(".folder"))
            elif name in ("name", "createdTime", "modifiedTime"):
                seen.sort(key=lambda f, name=name: f[name], reverse=down == "desc")  # type: ignore[misc]
            elif name:
                raise Refusal(400, "invalid", f"Invalid Value: orderBy {name}")
        answer = {
            "kind": "drive#fileList",
            "incompleteSearch": False,
            "files": seen[start : start + limit],
        }
        if start + limit < len(seen):
            answer["nextPageToken"] = str(start + limit)
        return answer

    def list_changes(self, params: Mapping[str, str], who: Who) -> dict[str, Any]:
        try:
            start, limit = int(params.get("pageToken", "")), int(params.get("pageSize", "100"))
        except ValueError as error:
            raise Refusal(400, "invalid", "Invalid Value: pageToken") from error
        known = [c for c in self._known_changes() if c[0] >= start]
        latest = {file_id: number for number, _, file_id in known}
        page = known[:limit]
        shown = []
        for number, _, file_id in page:
            file = self.drive.files.get(file_id)
            if latest[file_id] != number or (file is not None and not who.sees(file)):
                continue
            change = {
                "kind": "drive#change",
                "changeType": "file",
                "fileId": file_id,
                "removed": file is None,
            }
            shown.append(
                change if file is None else change | {"file": self.drive.resource(file, who)}
            )
        after = page[-1][0] + 1 if page else start
        answer: dict[str, Any] = {"kind": "drive#changeList", "changes": shown}
        answer["newStartPageToken" if len(known) <= limit else "nextPageToken"] = str(after)
        return answer

    def start_token(self) -> str:
        known = self._known_changes()
        return str(known[-1][0] + 1 if known else 1)

    def _known_changes(self) -> list[tuple[int, float, str]]:
        heard = self.drive.clock() - self.changes_lag_s
        return [change for change in self.drive.changes if change[1] <= heard]

    def about(self) -> dict[str, Any]:
        used = str(self.drive.used())
        quota = {"usage": used, "usageInDrive": used, "usageInDriveTrash": "0"}
        if self.drive.quota is not None:
            quota["limit"] = str(self.drive.quota)
        user = {
            "kind": "drive#user",
            "displayName": "Someone",
            "emailAddress": self.drive.email,
            "me": True,
        }
        return {
            "kind": "drive#about",
            "user": user,
            "storageQuota": quota,
            "maxUploadSize": "5242880000000",
        }

    def new_path(self) -> Path:
        return Path(self._folder.name) / secrets.token_hex(8)

    def take_fault(self, operation: str) -> Fault | None:
        with self.lock:
            self.requests.append(operation)
            for fault in self.faults:
                if fault.operation in ("", operation):
                    fault.times -= 1
                    if fault.times <= 0:
                        self.faults.remove(fault)
                    return fault
        return None

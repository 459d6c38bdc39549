"""What a session left on Kaggle, brought home: its manifest first, then the files that it names, each one verified.

A run that was killed leaves the last manifest that it wrote while it worked; without one, only what proves itself is
taken: blobs that are named by their digest, and messages that are whole (their signatures are checked elsewhere).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from freegpu.adapters.base import Collected
from freegpu.adapters.kaggle.calls import Calls, MissingError, download
from freegpu.agent.wire import check_relative
from freegpu.errors import UnreachableError

__all__ = ["collect", "log"]

STORE, MANIFEST = "freegpu-store/", "freegpu-output.json"
_PAGE = 200
#: more pages than any session fills
_PAGES = 2000
_MOST = 64 << 20
#: so many files that nobody answers for are an outage
_OUTAGE = 3
_BLOB = re.compile(r"attempts/[a-z0-9-]{1,63}/blobs/([0-9a-f]{64})")
_MESSAGE = re.compile(
    r"(sessions/[a-z0-9-]{1,63}/(hello|agent-beat|outbox/\d+)|jobs/[a-z0-9-]{1,63}/checkpoints/[\d-]+"
    r"|attempts/[a-z0-9-]{1,63}/outputs)\.json|attempts/[a-z0-9-]{1,63}/log/\d+\.txt"
)


class _Listing:
    """The files of a run and their addresses, which expire: asked for anew when one does not work."""

    def __init__(self, calls: Calls, where: dict[str, Any]) -> None:
        self._calls, self._where = calls, where
        self.urls = self._ask()

    def _ask(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for page in _pages(self._calls, self._where):
            for row in page.get("files") or []:
                if isinstance(row, dict) and row.get("fileName") and row.get("url"):
                    found[str(row["fileName"]).replace("\\", "/")] = str(row["url"])
        return found

    def fetch(self, name: str, into: Path, size: int, digest: str = "") -> bool:
        """Bring one file, as it should be where that is known; False: it does not come. UnreachableError: ask later."""
        for last in (False, False, True):
            url = self.urls.get(name)
            if url is None:
                return False
            try:
                if download(self._calls, url, into, size) and (
                    not digest or _is(into, size, digest)
                ):
                    return True
            except UnreachableError:
                if last:
                    raise
            if not last:
                self.urls = self._ask()  # addresses expire, and a page that says so comes with 200
        return False


def _pages(calls: Calls, where: dict[str, Any]) -> Iterator[dict[str, Any]]:
    token, seen = "", set()
    for _ in range(_PAGES):
        fields = {**where, "pageSize": _PAGE, **({"pageToken": token} if token else {})}
        page = calls.ask("ListKernelSessionOutput", **fields)
        yield page
        token = str(page.get("nextPageToken") or "")
        if not token or token in seen:
            return
        seen.add(token)


def collect(calls: Calls, where: dict[str, Any], slug: str, into: Path) -> Collected:
    """Bring the tree home. What lies there whole already is not fetched again. AdapterError."""
    into.mkdir(parents=True, exist_ok=True)
    hidden = into / f".coming-{os.getpid()}"
    try:
        try:
            listing = _Listing(calls, where)
        except MissingError:
            return Collected(files=0, whole=False)
        manifest = _manifest(listing, slug, hidden)
        if manifest is None:
            return Collected(files=_rescue(listing, into, hidden), whole=False)
        files, whole, away = 0, bool(manifest["final"]), list[UnreachableError]()
        for key, (size, digest) in manifest["files"].items():
            target = into / key
            if _is(target, size, digest):
                files += 1
                continue
            try:
                came = listing.fetch(STORE + key, hidden, size, digest)
            except UnreachableError as error:
                away.append(error)
                if len(away) >= _OUTAGE:
                    break
                continue
            if came:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(hidden, target)
                files += 1
            else:
                whole = False
        if away:
            raise away[0]  # not withheld: what is here already is not fetched again the next time
        if not manifest["final"]:
            # killed after the manifest was written: what is newer may prove itself
            files += _rescue(listing, into, hidden)
        return Collected(files=files, whole=whole)
    finally:
        with suppress(FileNotFoundError):
            hidden.unlink()


def _manifest(listing: _Listing, slug: str, hidden: Path) -> dict[str, Any] | None:
    """What the run says that it left; None: nothing that makes sense, or of another session."""
    if not listing.fetch(MANIFEST, hidden, _MOST):
        return None
    try:
        told = json.loads(hidden.read_bytes())
        if told["freegpu_output"] != 1 or told["kernel"] != slug:
            return None
        files = {}
        for key, (size, digest) in told["files"].items():
            check_relative(key)
            if not isinstance(size, int) or size < 0 or not re.fullmatch(r"[0-9a-f]{64}", digest):
                return None
            files[key] = (size, digest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return {"final": told.get("final") is True, "files": files}


def _is(path: Path, size: int, digest: str) -> bool:
    try:
        if path.is_symlink() or path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def _rescue(listing: _Listing, into: Path, hidden: Path) -> int:
    """Bring what proves itself; how many files."""
    files = 0
    for name in sorted(listing.urls):
        key = name.removeprefix(STORE)
        blob = _BLOB.fullmatch(key)
        if key == name or not (blob or _MESSAGE.fullmatch(key)) or (into / key).exists():
            continue
        if not listing.fetch(name, hidden, 1 << 50 if blob else _MOST):
            continue
        if blob and not _is(hidden, hidden.stat().st_size, blob[1]):
            continue
        if key.endswith(".json") and not _is_json(hidden):
            continue
        target = into / key
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(hidden, target)
        files += 1
    return files


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def log(calls: Calls, where: dict[str, Any]) -> str:
    """What the run printed, "" while Kaggle shows nothing. AdapterError."""
    try:
        told = calls.ask("ListKernelSessionOutput", **where, pageSize=1).get("log") or ""
    except MissingError:
        return ""
    if not isinstance(told, str):
        return ""
    try:
        rows = json.loads(told)
        return "".join(str(row.get("data") or "") for row in rows)
    except (ValueError, TypeError, AttributeError):
        return told  # a log that is text is a log all the same

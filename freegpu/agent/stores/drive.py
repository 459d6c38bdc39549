"""A folder in Google Drive as the store, by the API (Drive v3). See docs/adr/0006 for why it is done so.

`drive:FOLDER` is a folder in My Drive (default `freegpu`); only writing the store's marker makes it. If several bear the name,
the oldest counts. An object is a file, found by its properties: one query lists a mailbox, one request reads or replaces an
object whose file id is known, however far listings lag behind. `drive:FOLDER?endpoint=http://127.0.0.1:PORT` is for
tests against a server on this machine; no other host is accepted.

No request makes a twin: a file is created under an id that was given out before (409 the second time). What the server
computed over the content it has (sha256Checksum) is compared with what was to be sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Tuple
from urllib.parse import parse_qsl, unquote

from freegpu.agent.clock import Clock, SystemClock
from freegpu.agent.stores.base import (
    Access,
    ObjectMissing,
    Properties,
    Source,
    Stat,
    StoreError,
    StoreGone,
    check_key,
)
from freegpu.agent.stores.drive_folders import Folders
from freegpu.agent.stores.drive_layout import (
    FIELDS,
    Resource,
    folder_query,
    key_query,
    properties_of,
    sorted_out,
)
from freegpu.agent.stores.drive_upload import Taken, Uploads, hash_of, md5_of
from freegpu.agent.stores.google import Api, is_loopback
from freegpu.agent.stores.http import Http

DEFAULT = "freegpu"
#: polling a Drive more often is no use: its listings lag by seconds
_POLL_S = 5.0
#: for so long a file id is trusted without asking whether a twin counts more by now, seconds
_TRUST_S = 60.0
#: read in one piece when an object is fetched
_PIECE = 32 << 20
_RESTARTS = 4


class DriveStore:
    """See the module. ValueError: the URL cannot be meant. Nothing is asked before the first call.

    `root_seen_s`: a store's folder that was seen so many seconds ago is taken to be there still.
    """

    def __init__(
        self,
        rest: str,
        access: Optional[Access] = None,
        *,
        http: Optional[Http] = None,
        clock: Optional[Clock] = None,
        root_seen_s: float = 30.0,
    ) -> None:
        self.folder, endpoint = place(rest)
        self._access = access or Access()
        self._clock = clock or SystemClock()
        http = http or Http(clock=self._clock, bandwidth=self._access.bandwidth)
        self.api = Api(self._access, endpoint, http, self._clock)
        self._uploads = Uploads(self.api, self._clock)
        self._folders = Folders(self.api, self.folder, self._clock, root_seen_s)
        #: key -> ids of files that bear the same key and do not count
        self.twins: Dict[str, List[str]] = {}
        self._known: Dict[str, Tuple[str, float]] = {}
        self._pending: Dict[str, str] = {}

    @property
    def requests(self) -> int:
        """How many requests were sent to Drive, tries included; those for tokens are not."""
        return self.api.requests

    @property
    def root_twins(self) -> int:
        """How many other folders bear the store's name; the oldest is the one that counts."""
        return self._folders.twins

    @property
    def properties(self) -> Properties:
        # two who look and see nothing both create; only who knows the id is refused. The rest is Drive's word.
        return Properties(
            cas=False,
            ordered=False,
            lists_lag=True,
            max_object=None,
            min_poll=_POLL_S,
            server_digest=True,
        )

    def account(self) -> Tuple[str, Optional[int], Optional[int]]:
        """The account's address, bytes left and bytes in all; None: without limit, or not told."""
        about = self.api.json("GET", "/about", {"fields": "user(emailAddress),storageQuota"})
        quota = about.get("storageQuota") or {}
        total = int(quota["limit"]) if "limit" in quota else None
        free = None if total is None else max(0, total - int(quota.get("usage", 0)))
        return str((about.get("user") or {}).get("emailAddress", "")), free, total

    def space(self) -> Tuple[Optional[int], Optional[int]]:
        """Bytes left and bytes in all, of the whole account; None: not told."""
        _, free, total = self.account()
        return free, total

    def look(self) -> int:
        """Look for the store's folder, making nothing; how many besides it bear its name."""
        with contextlib.suppress(StoreGone):
            self._folders.need()
        return self._folders.twins

    # --- reading ----------------------------------------------------------------------------------------

    def address(self, key: str) -> str:
        """The URL at which whoever has access reads this object, by its file's id. ObjectMissing, StoreError."""
        found = self._file(check_key(key))
        if found is None:
            raise _missing(key)
        return self.api.url(f"/files/{found['id']}?alt=media")

    def hurried(self, seconds: float) -> "ContextManager[None]":
        """A block in which somebody waits: a server that does not answer is given up after so many seconds."""
        return self.api.hurried(seconds)

    def list(self, prefix: str, after: str = "") -> List[str]:
        folder = check_key(prefix) if prefix else ""
        chosen = self._look(folder_query(self._folders.need(), folder))
        return sorted(key for key in chosen if key > after)

    def get(self, key: str, start: int = 0, end: Optional[int] = None) -> bytes:
        check_key(key)
        if end is not None and end <= start:
            if self.stat(key) is None:
                raise _missing(key)
            return b""
        last = "" if end is None else str(end - 1)
        headers = {"Range": f"bytes={start}-{last}"} if start or last else {}
        for file_id in self._places(key):
            with contextlib.suppress(ObjectMissing):
                reply = self.api.ask(
                    "GET",
                    f"/files/{file_id}",
                    {"alt": "media"},
                    headers=headers,
                    ok=(200, 206, 416),
                )
                if reply.status == 416:
                    return b""
                return reply.body[start:end] if headers and reply.status == 200 else reply.body
        raise _missing(key)

    def fetch(self, key: str, into: "os.PathLike[str]") -> Tuple[int, str]:
        check_key(key)
        for _ in range(_RESTARTS):
            file = self._file(key)
            if file is None:
                raise _missing(key)
            size, digest = int(file.get("size", 0)), hashlib.sha256()
            with contextlib.suppress(ObjectMissing), open(into, "wb+") as target:
                for at in range(0, size, _PIECE):
                    target.seek(at)
                    end = min(at + _PIECE, size)
                    headers = {"Range": f"bytes={at}-{end - 1}"}
                    query = {"alt": "media"}
                    path = f"/files/{file['id']}"
                    self.api.ask(
                        "GET", path, query, headers=headers, ok=(200, 206, 416), into=target
                    )
                    if target.tell() < end:
                        break  # it was replaced by something shorter
                    target.truncate(end)
                    target.seek(at)
                    for block in iter(lambda: target.read(1 << 20), b""):
                        digest.update(block)
                    self._tell(key, end, size)
                found = digest.hexdigest()
                whole = os.fstat(target.fileno()).st_size == size
                if whole and found == file.get("sha256Checksum", found):
                    return size, found
        message = f"{key} did not come out of Drive as it lies there, in {_RESTARTS} tries"
        raise StoreError(message)

    def stat(self, key: str, digest: bool = False) -> Optional[Stat]:
        file = self._file(check_key(key))
        if file is None:
            return None
        size = int(file.get("size", 0))
        if not digest:
            return Stat(size)
        return Stat(size, file.get("sha256Checksum") or hashlib.sha256(self.get(key)).hexdigest())

    # --- writing ----------------------------------------------------------------------------------------

    def put(self, key: str, source: Source) -> None:
        self._folders.need_for(check_key(key))
        size, sha256 = hash_of(source)
        found = self._known.get(key)
        file_id = found[0] if found else self._locate(key)
        if file_id:
            metadata = {"properties": {"fg-sha256": sha256}, "trashed": False}
            with contextlib.suppress(ObjectMissing):
                self._send(key, file_id, metadata, source, size, sha256, create=False)
                return
            # somebody deleted it for good
            self._known.pop(key, None)
            file_id = self._locate(key)
            if file_id:
                self._send(key, file_id, metadata, source, size, sha256, create=False)
                return
        self._create(key, source, size, sha256, new=False)

    def put_new(self, key: str, source: Source) -> bool:
        self._folders.need_for(check_key(key))
        size, sha256 = hash_of(source)
        there = self._file(key)
        if there is not None:
            # ours, if an earlier call made it and never heard so
            return self._pending.pop(f"{key}\n{sha256}", "") == str(there["id"])
        return self._create(key, source, size, sha256, new=True)

    def delete(self, key: str) -> None:
        check_key(key)
        root = self._folders.need()
        if key not in self._known:
            self._look(key_query(root, key))
        else:
            self._folders.check_now_and_then()
        found = self._known.pop(key, None)
        for file_id in [*([found[0]] if found else []), *self.twins.pop(key, [])]:
            with contextlib.suppress(ObjectMissing):
                self.api.ask("DELETE", f"/files/{file_id}", ok=(200, 204))

    def _create(self, key: str, source: Source, size: int, sha256: str, *, new: bool) -> bool:
        """A file for a key that has none. True: the one that stands there now is ours."""
        name = f"{key}\n{sha256}"
        for _ in range(_RESTARTS):
            # the id is kept until it is known what became of it: sent again it makes no twin
            file_id = self._pending.get(name) or self._folders.new_id()
            self._pending[name] = file_id
            metadata = {
                "name": key,
                "mimeType": "application/octet-stream",
                "parents": [self._folders.of(key)],
                "properties": properties_of(self._folders.root, key, sha256, new=new),
            }
            try:
                self._send(key, file_id, metadata, source, size, sha256, create=True)
            except Taken:
                # by us, and the answer was lost; or by us, and it was deleted since
                there = self._by_id(file_id)
                if there is None or there.get("sha256Checksum", sha256) != sha256:
                    self._pending.pop(name, None)
                    continue
                self._known[key] = (file_id, self._clock.monotonic())
            except ObjectMissing:
                # the folder was deleted since we saw it
                self._folders.forget()
                self._folders.check()
                continue
            self._pending.pop(name, None)
            return True
        message = f"{key} could not be created in Drive, in {_RESTARTS} tries"
        raise StoreError(message)

    def _send(
        self,
        key: str,
        file_id: str,
        metadata: Dict[str, Any],
        source: Source,
        size: int,
        sha256: str,
        *,
        create: bool,
    ) -> None:
        """Write the content, and believe only what the server says that it has."""
        file = self._uploads.send(
            file_id,
            metadata,
            source,
            size,
            sha256,
            lambda done, total: self._tell(key, done, total),
            create=create,
        )
        if "size" not in file:
            file = self.api.json("GET", f"/files/{file_id}", {"fields": FIELDS})
        told = file.get("sha256Checksum")
        same = told == sha256 if told else file.get("md5Checksum") == md5_of(source)
        if int(file.get("size", -1)) != size or not same:
            self._known.pop(key, None)
            if create:
                self._pending.pop(f"{key}\n{sha256}", None)
                with contextlib.suppress(ObjectMissing):
                    self.api.ask("DELETE", f"/files/{file_id}", ok=(200, 204))
            message = f"{key} arrived in Drive as other bytes than were sent"
            raise StoreError(message)
        if file.get("trashed"):
            self._out_of_trash(key, file_id)
        self._known[key] = (file_id, self._clock.monotonic())

    def _out_of_trash(self, key: str, file_id: str) -> None:
        """A person threw away the store's folder, or one in it. StoreGone: the former."""
        self._folders.check()
        self._folders.forget()
        self.api.json(
            "PATCH",
            f"/files/{file_id}",
            {"addParents": self._folders.of(key), "fields": "id"},
            {"trashed": False},
        )

    # --- finding ----------------------------------------------------------------------------------------

    def _places(self, key: str) -> Iterator[str]:
        """Ids under which a key may be read: the one we know, then what a query finds if that was of no use."""
        now = self._clock.monotonic()
        known, since = self._known.get(key, ("", 0.0))
        if known and now - since < _TRUST_S:
            self._folders.check_now_and_then()
            yield known
            self._known.pop(key, None)
        else:
            known = ""
        found = self._locate(key)
        # a late listing may name once more what is gone
        if found and found != known:
            yield found

    def _file(self, key: str) -> Optional[Resource]:
        """The file that holds a key, as it is now; None: there is none to be seen."""
        for file_id in self._places(key):
            file = self._by_id(file_id)
            if file is not None:
                return file
        return None

    def _by_id(self, file_id: str) -> Optional[Resource]:
        """Always fresh. None: deleted, or thrown away."""
        try:
            file = self.api.json("GET", f"/files/{file_id}", {"fields": FIELDS})
        except ObjectMissing:
            return None
        if file.get("trashed"):
            self._folders.check()
            return None
        return file

    def _locate(self, key: str) -> str:
        """The id of a key's file by a query; "": none to be seen."""
        self._look(key_query(self._folders.need(), key))
        found = self._known.get(key)
        return found[0] if found else ""

    def _look(self, query: str) -> Dict[str, Resource]:
        """The files that count among those which a query finds; remembers their ids."""
        files = self._folders.query(query)
        now = self._clock.monotonic()
        self._folders.seen(files)
        chosen, twins = sorted_out(files)
        for key, file in chosen.items():
            self._known[key] = (file["id"], now)
            if key in twins:
                self.twins[key] = twins[key]
            else:
                self.twins.pop(key, None)
        return chosen

    def _tell(self, key: str, done: int, total: int) -> None:
        if self._access.progress:
            self._access.progress(key, done, total)


def place(rest: str) -> Tuple[str, str]:
    """Folder and endpoint of `FOLDER?endpoint=...`, what stands behind `drive:`. ValueError."""
    text, _, query = rest.partition("?")
    name = unquote(text).strip() or DEFAULT
    options = dict(parse_qsl(query, keep_blank_values=True))
    endpoint = options.pop("endpoint", "").rstrip("/")
    if "/" in name or not name.isprintable():
        message = f"a Drive store is one folder in My Drive, with a name without /: not {name!r}"
        raise ValueError(message)
    if options:
        message = f"a Drive store has no option {sorted(options)[0]!r}"
        raise ValueError(message)
    if endpoint and not is_loopback(endpoint):
        message = f"endpoint is for tests on this machine (http://127.0.0.1:PORT), not {endpoint!r}"
        raise ValueError(message)
    return name, endpoint


def _missing(key: str) -> ObjectMissing:
    return ObjectMissing(f"{key} is not in the store")

"""The store's own folder in a Drive and those in it: found, made once, missed when a person throws them away."""

from __future__ import annotations

import json
import threading
from typing import Dict, List

from freegpu.agent.clock import Clock
from freegpu.agent.stores.base import ObjectMissing, StoreError, StoreGone
from freegpu.agent.stores.drive_layout import (
    FIELDS,
    FOLDER,
    Resource,
    oldest,
    quoted,
    root_properties,
)
from freegpu.agent.stores.google import Api

MARKER = "freegpu.json"
_IDS = 50


class Folders:
    """`name` in My Drive. `seen_s`: seen so many seconds ago, it is taken to be there still."""

    def __init__(self, api: Api, name: str, clock: Clock, seen_s: float) -> None:
        self.name = name
        self.seen_s = seen_s
        #: the folder's id; once known it stays the same, whatever else bears the name later
        self.root = ""
        #: other folders of the store's name, which do not count
        self.twins = 0
        self._api = api
        self._clock = clock
        self._seen = float("-inf")
        self._inner: Dict[str, str] = {}
        self._ids: List[str] = []
        self._lock = threading.Lock()

    def need(self) -> str:
        """The id of the store's folder. StoreGone: there is none."""
        if not self.root and not self._find():
            raise self._gone()
        return self.root

    def need_for(self, key: str) -> None:
        """Before a write: the folder is there, or is made for the marker. StoreGone."""
        if not self.root and not self._find():
            if key != MARKER:
                raise self._gone()
            made = self._make(self.name, "root")
            # what a second look finds counts: somebody may have made one just now
            self._find()
            self.root = self.root or made
            self._mark()
        self.check_now_and_then()

    def seen(self, files: List[Resource]) -> None:
        """Every query asks for the folder too: it is there, or it is looked for. StoreGone."""
        if any(file["id"] == self.root for file in files):
            self._seen = self._clock.monotonic()
        else:
            self.check()

    def check_now_and_then(self) -> None:
        """StoreGone if the folder has not been seen lately and is not there."""
        if self._clock.monotonic() - self._seen >= self.seen_s:
            self.check()

    def check(self) -> None:
        """StoreGone if the folder was deleted or thrown away."""
        try:
            file = self._api.json("GET", f"/files/{self.root}", {"fields": "trashed"})
        except ObjectMissing:
            raise self._gone() from None
        if file.get("trashed"):
            raise self._gone()
        self._seen = self._clock.monotonic()

    def of(self, key: str) -> str:
        """The folder that a person finds a key's file in; nothing is looked for by it."""
        name, slash, _ = key.partition("/")
        if not slash:
            return self.root
        if name not in self._inner:
            # whoever makes a second one of that name does no harm
            query = f"'{self.root}' in parents and mimeType = '{FOLDER}' and trashed = false"
            for file in sorted(self.query(query), key=lambda f: (f["createdTime"], f["id"])):
                self._inner.setdefault(str(file["name"]), str(file["id"]))
            if name not in self._inner:
                self._inner[name] = self._make(name, self.root)
        return self._inner[name]

    def forget(self) -> None:
        """The folders in it may have gone."""
        self._inner.clear()

    def query(self, query: str) -> List[Resource]:
        """All files that a query finds, page by page."""
        asked = {
            "q": query,
            "pageSize": "1000",
            "spaces": "drive",
            "fields": f"nextPageToken,files({FIELDS})",
        }
        found: List[Resource] = []
        while True:
            page = self._api.json("GET", "/files", asked)
            found += page.get("files", [])
            token = page.get("nextPageToken")
            if not token:
                return found
            if token == asked.get("pageToken"):
                message = "Google Drive does not go on with a listing"
                raise StoreError(message)
            asked["pageToken"] = token

    def new_id(self) -> str:
        """An id that one create may use."""
        with self._lock:
            if not self._ids:
                query = {"count": str(_IDS), "space": "drive"}
                self._ids = list(self._api.json("GET", "/files/generateIds", query)["ids"])
            return self._ids.pop()

    def _find(self) -> bool:
        files = self.query(
            f"name = {quoted(self.name)} and mimeType = '{FOLDER}' and 'root' in parents and trashed = false"
        )
        # Drive may take another spelling for the same name
        same = [file for file in files if file.get("name") == self.name]
        first = oldest(same)
        if first is None:
            return False
        self.twins = len(same) - 1
        self.root = str(first["id"])
        self._seen = self._clock.monotonic()
        if not root_properties(self.root).items() <= (first.get("properties") or {}).items():
            self._mark()
        return True

    def _mark(self) -> None:
        marks = {"properties": root_properties(self.root)}
        self._api.json("PATCH", f"/files/{self.root}", {"fields": "id"}, marks)
        self._seen = self._clock.monotonic()

    def _make(self, name: str, parent: str) -> str:
        folder = {"id": self.new_id(), "name": name, "mimeType": FOLDER, "parents": [parent]}
        self._api.ask(
            "POST",
            "/files",
            {"fields": "id"},
            headers={"Content-Type": "application/json"},
            body=json.dumps(folder).encode(),
            ok=(200, 409),  # 409: by a try whose answer was lost
        )
        return str(folder["id"])

    def _gone(self) -> StoreGone:
        self._seen = float("-inf")
        return StoreGone(
            f"the folder {self.name} is not in Google Drive"
            + (" any more: restore it from the trash there" if self.root else " of this sign-in")
        )

"""How keys lie in a Drive: which properties a file bears, how it is found by them, which of several twins counts.

Pure. A file is found by its public `properties`, never by its name or folder: a person may rename and move it. They
are public because an app's private ones (appProperties) are not seen by another OAuth client, and the notebook may
use another one. A property holds 124 bytes with its name, so that what is searched for is hashed; a Drive lists at
most 30 of them.
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from freegpu.agent.stores.base import StoreError, is_key

FOLDER = "application/vnd.google-apps.folder"
#: what is asked about a file
FIELDS = "id,name,size,sha256Checksum,md5Checksum,createdTime,modifiedTime,trashed,properties"
_MOST_PROPERTIES = 30
_PATH = 100

Resource = Mapping[str, Any]


def mark(root: str, path: str) -> str:
    """What stands for a key or folder of the store whose folder in the Drive has the id `root`."""
    return hashlib.sha256(f"{root}\n{path}".encode()).hexdigest()[:40]


def properties_of(root: str, key: str, sha256: str, *, new: bool) -> Dict[str, str]:
    """The properties of the file that holds `key`."""
    parts = key.split("/")
    found = {"fg-key": mark(root, key), "fg-sha256": sha256}
    for depth in range(len(parts)):
        found[f"fg-in-{depth}"] = mark(root, "/".join(parts[:depth]))
    for number, at in enumerate(range(0, len(key), _PATH)):
        found[f"fg-path-{number}"] = key[at : at + _PATH]
    if new:
        found["fg-new"] = "1"
    if len(found) > _MOST_PROPERTIES:
        error = StoreError(f"{key[:60]}... is too deep or too long for a Drive")
        error.transient = False
        raise error
    return found


def root_properties(root: str) -> Dict[str, str]:
    """The properties of the store's own folder."""
    return {"fg-key": mark(root, "")}


def key_of(file: Resource) -> str:
    """The key that a file holds; "" for one that is nobody's object."""
    properties = file.get("properties") or {}
    key = ""
    for number in range(_MOST_PROPERTIES):
        part = properties.get(f"fg-path-{number}")
        if part is None:
            break
        key += str(part)
    return key if is_key(key) else ""


def key_query(root: str, key: str) -> str:
    """Files that hold this key, and the store's folder, so that "nothing" is told from "gone"."""
    return _query(root, "fg-key", mark(root, key))


def folder_query(root: str, prefix: str) -> str:
    """Files whose key lies below this folder, at any depth, and the store's folder."""
    depth = len(prefix.split("/")) if prefix else 0
    return _query(root, f"fg-in-{depth}", mark(root, prefix))


def _query(root: str, name: str, value: str) -> str:
    return f"trashed = false and ({_has(name, value)} or {_has('fg-key', mark(root, ''))})"


def _has(name: str, value: str) -> str:
    return f"properties has {{ key='{name}' and value='{value}' }}"


def quoted(text: str) -> str:
    """A text as the query language wants it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def oldest(files: Iterable[Resource]) -> Optional[Resource]:
    """By the server's clock, then by id: the same one for everybody."""
    return min(files, key=lambda file: (file.get("createdTime", ""), file["id"]), default=None)


def sorted_out(files: Iterable[Resource]) -> Tuple[Dict[str, Resource], Dict[str, List[str]]]:
    """The file that counts for each key, and the ids of its twins.

    Of twins those that are whole (the content is what their writer meant) go before the others. Then of what is
    written once the oldest, of what is replaced the newest: for everybody the same.
    """
    groups: Dict[str, List[Resource]] = {}
    for file in files:
        key = key_of(file)
        if key:
            groups.setdefault(key, []).append(file)
    chosen: Dict[str, Resource] = {}
    twins: Dict[str, List[str]] = {}
    for key, group in groups.items():
        best = group[0]
        if len(group) > 1:
            able = [file for file in group if _is_whole(file)] or group
            once = any(file["properties"].get("fg-new") for file in able)
            ranked = sorted(
                able,
                key=lambda f: (f.get("createdTime" if once else "modifiedTime", ""), f["id"]),
            )
            best = ranked[0] if once else ranked[-1]
            twins[key] = [file["id"] for file in group if file is not best]
        chosen[key] = best
    return chosen, twins


def _is_whole(file: Resource) -> bool:
    told = file.get("sha256Checksum")
    return told is None or told == file["properties"].get("fg-sha256")

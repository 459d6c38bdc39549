"""What a session is given beside its source: a private dataset of its own, made once, waited for and verified.

Kaggle unpacks what looks like an archive, so nothing here does: a folder travels as one line with a length, a list of
names, sizes and digests, and the bytes. A dataset "created" may not be there (over the private total the call
succeeds all the same), so it is believed only when it is READY and lists what was sent, at version 1.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from freegpu.adapters.kaggle.calls import Calls, DeniedError, MissingError
from freegpu.errors import RejectedError, UnreachableError

__all__ = ["bring", "pack", "take_away"]

HEAD = b"freegpu-tree 1 "
#: how long a dataset of no size may take to become READY; each MB gives it a second more
PATIENCE_S = 240.0
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
#: an upload that breaks off is taken up again so many times
_ROUNDS = 5
_BAD = ("FAILED", "DELETED")


def pack(tree: Path, into: Path) -> None:
    """Write a folder as one file. RejectedError: there is no such folder."""
    files = list(_files(tree))
    if not files:
        raise RejectedError(f"there is nothing to send in {tree}")
    rows = [[key, path.stat().st_size, _digest(path)] for key, path in files]
    listed = json.dumps(rows, separators=(",", ":")).encode()
    with into.open("wb") as out:
        out.write(HEAD + b"%d\n" % len(listed) + listed)
        for _, path in files:
            with path.open("rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    out.write(block)


def _files(tree: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(tree).as_posix(), path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bring(calls: Calls, owner: str, slug: str, title: str, files: Mapping[str, Path]) -> None:
    """Have this private dataset with these files, READY. Made by an earlier try, it is used. AdapterError."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if _status(calls, owner, slug) is None:
        tokens = [{"token": _upload(calls, name, path)} for name, path in sorted(files.items())]
        told = calls.ask(
            "CreateDataset",
            ownerSlug=owner,
            slug=slug,
            title=title,
            licenseName="other",
            isPrivate=True,
            files=tokens,
        )
        error = str(told.get("error") or "")
        if error or str(told.get("status") or "Ok").casefold() != "ok":
            raise RejectedError(
                f"Kaggle did not make the dataset {slug}: {error or told.get('status')}",
                hint="see how much room your private datasets have left",
                adapter=calls.name,
                account=owner,
            )
    _wait(calls, owner, slug, sizes)


def _status(calls: Calls, owner: str, slug: str) -> str | None:
    """The dataset's status; None: there is no such dataset."""
    try:
        told = calls.ask("GetDatasetStatus", ownerSlug=owner, datasetSlug=slug)
    except (MissingError, DeniedError):
        return None
    # the default is left out of an answer
    return str(told.get("status") or "NOT_YET_PERSISTED").upper()


def _wait(calls: Calls, owner: str, slug: str, sizes: Mapping[str, int]) -> None:
    clock = calls.clock
    end = clock.monotonic() + PATIENCE_S + sum(sizes.values()) / 1e6
    seen: str | None = None
    for pause in _then_last(_PAUSES_S):
        seen = _status(calls, owner, slug)
        if seen in _BAD:
            take_away(calls, owner, slug)
            break
        if seen == "READY" and _holds(_listed(calls, owner, slug), sizes):
            return
        if clock.monotonic() >= end:
            break
        clock.sleep(pause)
    hint = "see how much room your private datasets have left: over the limit Kaggle says nothing"
    word = "is not there" if seen is None else f"is {seen}"
    raise RejectedError(
        f"the dataset {slug} {word} and does not hold what was sent",
        hint=hint,
        adapter=calls.name,
        account=owner,
    )


def _holds(listed: Mapping[str, int], sent: Mapping[str, int]) -> bool:
    """Whether these files are those; a listing that tells no sizes is taken by its names."""
    return listed.keys() == sent.keys() and all(
        size in (0, sent[name]) for name, size in listed.items()
    )


def _then_last(pauses: tuple[float, ...]) -> Iterator[float]:
    yield from pauses
    while True:
        yield pauses[-1]


def _listed(calls: Calls, owner: str, slug: str) -> dict[str, int]:
    """The files of version 1 by name, with their sizes."""
    found: dict[str, int] = {}
    token: str | None = None
    for _ in range(20):
        told = calls.ask(
            "ListDatasetFiles",
            ownerSlug=owner,
            datasetSlug=slug,
            datasetVersionNumber=1,
            pageToken=token,
        )
        for row in told.get("datasetFiles") or []:
            if isinstance(row, dict):
                found[str(row.get("name"))] = int(row.get("totalBytes") or 0)
        token = told.get("nextPageToken") or None
        if not token:
            break
    return found


def _upload(calls: Calls, name: str, path: Path) -> str:
    """Send one file; returns the token that stands for it. UnreachableError: it did not arrive."""
    size = path.stat().st_size
    begun = calls.ask(
        "StartBlobUpload",
        type="DATASET",
        name=name,
        contentLength=size,
        lastModifiedEpochSeconds=int(time.time()),
        contentType="application/octet-stream",
    )
    token, url = str(begun.get("token") or ""), str(begun.get("createUrl") or "")
    at, missing = 0, "the upload broke off"
    for _ in range(_ROUNDS):
        try:
            answer = _send(calls, url, path, at, size)
        except UnreachableError as error:
            missing = error.message
        else:
            if answer.status_code in (200, 201):
                return token
            missing = f"the upload was answered with {answer.status_code}"
            if answer.status_code not in (308, 408, 429, 500, 502, 503, 504):
                break
        calls.clock.sleep(0.2)
        with suppress(UnreachableError):
            asked = calls.put(url, b"", {"Content-Length": "0", "Content-Range": f"bytes */{size}"})
            if asked.status_code in (200, 201):
                return token
            if asked.status_code == 404:
                break  # the upload has expired: begun anew by whoever tries again
            kept = asked.headers.get("Range", "")
            at = int(kept.rpartition("-")[2]) + 1 if kept.rpartition("-")[2].isdigit() else 0
    raise UnreachableError(
        f"{name} did not arrive at Kaggle: {missing}", adapter=calls.name, account=calls.account
    )


def _send(calls: Calls, url: str, path: Path, at: int, size: int) -> Any:
    headers = {"Content-Length": str(size - at)}
    if at:
        headers["Content-Range"] = f"bytes {at}-{size - 1}/{size}"
    with path.open("rb") as file:
        file.seek(at)
        return calls.put(url, _Rest(file, size - at), headers)


class _Rest:
    """The rest of a file, with its length, so that it is sent as it is read and never chunked."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.len = file, size

    def __len__(self) -> int:
        return self.len

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


def take_away(calls: Calls, owner: str, slug: str) -> None:
    """Delete this dataset; silent if it is gone. AdapterError."""
    try:
        told = calls.ask("DeleteDataset", ownerSlug=owner, datasetSlug=slug)
    except (MissingError, DeniedError):
        return
    if error := str(told.get("error") or ""):
        if "not found" in error.casefold():
            return
        raise RejectedError(
            f"Kaggle did not delete the dataset {owner}/{slug}: {error}",
            hint="delete it on its page",
            adapter=calls.name,
            account=owner,
        )

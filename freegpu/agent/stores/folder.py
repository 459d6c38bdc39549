"""A folder as the store: a local disk, NFS, a mounted or synced Drive.

An object is written under a hidden name, synced and renamed. On a real disk that is an atomic publish; on
a mount that syncs behind our back it is only polite, so nobody relies on it (docs/protocol.md).
The root is never created here: when a mount dies its folder may be empty or missing, and writing then
would fill the machine's own disk with files nobody else can see.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from freegpu.agent.stores.base import (
    Access,
    ObjectMissing,
    Properties,
    Source,
    Stat,
    StoreError,
    StoreFull,
    StoreGone,
    check_key,
    is_key,
)

MARKER = "freegpu.json"
_CHUNK = 1 << 20
_HIDDEN = ".freegpu-"


class FolderStore:
    """See the module. `root` must exist and hold the store's marker once the store was made."""

    def __init__(
        self, root: "os.PathLike[str]", access: Optional[Access] = None, *, sync: bool = True
    ) -> None:
        # whoever may read the folder may use it: a folder needs nothing of `access`
        self.root = Path(root)
        self.sync = sync
        self._made = set()  # type: set[Path]

    @property
    def properties(self) -> Properties:
        return Properties(cas=True, ordered=True, lists_lag=False, max_object=None, min_poll=0.05)

    def list(self, prefix: str, after: str = "") -> List[str]:
        folder = self.root / check_key(prefix) if prefix else self.root
        keys: List[str] = []
        with _translated(self.root):
            for where, folders, files in os.walk(folder, onerror=_unless_missing):
                folders[:] = [name for name in folders if not name.startswith(".")]
                base = Path(where).relative_to(self.root).as_posix()
                keys.extend(
                    name if base == "." else f"{base}/{name}"
                    for name in files
                    if not name.startswith(".")
                )
            self._require_root()
        # what people and sync clients leave here ("x (1).json", "desktop.ini ~") is nobody's object
        return sorted(key for key in keys if key > after and is_key(key))

    def get(self, key: str, start: int = 0, end: Optional[int] = None) -> bytes:
        with _translated(self.root, key), open(self.root / check_key(key), "rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(max(0, end - start))

    def fetch(self, key: str, into: "os.PathLike[str]") -> Tuple[int, str]:
        digest, size = hashlib.sha256(), 0
        with _translated(self.root, key):
            source = open(self.root / check_key(key), "rb")  # noqa: SIM115 - closed below
        # a local disk that is full is no fault of the store's: that is an OSError
        with source, open(into, "wb") as target:
            while True:
                with _translated(self.root, key):
                    chunk = source.read(_CHUNK)
                if not chunk:
                    break
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
        return size, digest.hexdigest()

    def put(self, key: str, source: Source) -> None:
        with _translated(self.root), self._written(key, source) as hidden:
            os.replace(hidden, self.root / key)
            self._sync_folder((self.root / key).parent)

    def put_new(self, key: str, source: Source) -> bool:
        with _translated(self.root), self._written(key, source) as hidden:
            try:
                os.link(hidden, self.root / key)
            except FileExistsError:
                return False
            except OSError as error:
                # exFAT, some FUSE mounts and Android have no hard links: fall back to the look before the leap.
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                if (self.root / key).exists():
                    return False
                os.replace(hidden, self.root / key)
            self._sync_folder((self.root / key).parent)
            return True

    def delete(self, key: str) -> None:
        try:
            with _translated(self.root, key):
                os.unlink(self.root / check_key(key))
        except ObjectMissing:
            return

    def stat(self, key: str, digest: bool = False) -> Optional[Stat]:
        path = self.root / check_key(key)
        try:
            with _translated(self.root, key):
                if not digest:
                    return Stat(path.stat().st_size)
                hasher, size = hashlib.sha256(), 0
                with open(path, "rb") as file:
                    for chunk in iter(lambda: file.read(_CHUNK), b""):
                        hasher.update(chunk)
                        size += len(chunk)
                return Stat(size, hasher.hexdigest())
        except ObjectMissing:
            return None

    def _require_root(self) -> None:
        if not (self.root / MARKER).is_file():
            message = f"the store {self.root} is not there (no {MARKER} in it)"
            raise StoreGone(message)

    @contextlib.contextmanager
    def _written(self, key: str, source: Source) -> Iterator[Path]:
        """A synced hidden file with the object's bytes, gone when the block ends."""
        target = self.root / check_key(key)
        if key != MARKER:
            self._require_root()
        if target.parent not in self._made:
            self._make_folder(target.parent)
            self._made.add(target.parent)
        hidden = target.parent / f"{_HIDDEN}{secrets.token_hex(6)}"
        try:
            try:
                self._write(hidden, source)
            except FileNotFoundError:
                # somebody removed the folder since we made it (gc, or a person tidying up)
                self._make_folder(target.parent)
                self._write(hidden, source)
            yield hidden
        finally:
            with contextlib.suppress(OSError):
                os.unlink(hidden)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder of the store, but never the root: FileNotFoundError if that is gone."""
        here = self.root
        for part in folder.relative_to(self.root).parts:
            here = here / part
            here.mkdir(exist_ok=True)

    def _write(self, path: Path, source: Source) -> None:
        with open(path, "wb") as file:
            if isinstance(source, bytes):
                file.write(source)
            else:
                with open(source, "rb") as reader:
                    for chunk in iter(lambda: reader.read(_CHUNK), b""):
                        file.write(chunk)
            file.flush()
            if self.sync:
                os.fsync(file.fileno())

    def _sync_folder(self, folder: Path) -> None:
        """Make a rename durable; some mounts refuse to sync a folder, and then nobody can."""
        if not self.sync:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _unless_missing(error: OSError) -> None:
    """A folder that vanishes while it is listed has no keys; any other trouble is no empty folder."""
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


@contextlib.contextmanager
def _translated(root: Path, key: str = "") -> Iterator[None]:
    """Operating-system errors as store errors, with the sentence a person needs."""
    try:
        yield
    except FileNotFoundError as error:
        # a mount that has died leaves an empty folder: then nothing is missing, everything is away
        if key and root.is_dir() and (key == MARKER or (root / MARKER).is_file()):
            message = f"{key} is not in the store"
            raise ObjectMissing(message) from error
        message = f"the store {root} is not there"
        raise StoreGone(message) from error
    except NotADirectoryError as error:
        message = f"{key or root} is not in the store: a file stands where a folder should be"
        raise (ObjectMissing if key else StoreError)(message) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            message = f"the store {root} is full"
            raise StoreFull(message) from error
        if error.errno in (errno.ENOTCONN, errno.ESTALE, errno.ENODEV, errno.EIO):
            message = f"the store {root} does not answer ({error.strerror})"
            raise StoreGone(message) from error
        message = f"the store {root} failed: {error.strerror or error}"
        raise StoreError(message) from error

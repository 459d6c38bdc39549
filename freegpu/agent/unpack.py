"""Opening a code bundle without letting it out of its folder.

The bundle's digest is in a signed ticket, so it is the one that was packed; this is the second lock. Names
with .. or a leading /, hard links, devices, sparse files, links that lead out and archives larger than was
said are refused. tarfile's own filters came after Python 3.9, so nothing here relies on them.

Files come first and links last: nothing is ever written through a link that the archive itself has made.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from pathlib import Path
from typing import Any, List, Optional, Tuple

#: bytes that an archive may hold, and things
MAX_BYTES = 4 << 30
MAX_MEMBERS = 1_000_000
_CHUNK = 1 << 20
#: tarfile reads names and extended headers in one piece: none of ours is longer
_MAX_READ = 8 << 20


class UnpackError(Exception):
    """This archive is damaged, or is not one that freegpu packed."""


class _Bounded:
    """The decompressed archive; refuses to be read in pieces that would fill the memory."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self.file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_READ:
            message = "the archive has an absurdly long header"
            raise UnpackError(message)
        try:
            return self.file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            message = f"the archive is damaged: {error}"
            raise UnpackError(message) from error

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return self.file.seek(offset, whence)
        except (OSError, EOFError, zlib.error) as error:
            message = f"the archive is damaged: {error}"
            raise UnpackError(message) from error

    def tell(self) -> int:
        return self.file.tell()


def unpack(
    archive: "os.PathLike[str]",
    into: "os.PathLike[str]",
    *,
    limit: int = MAX_BYTES,
    members: int = MAX_MEMBERS,
) -> int:
    """Lay the files of a .tar.gz into a folder, made if missing; returns their bytes.

    UnpackError: damaged, hostile, or more than `limit` bytes or `members` things; what was laid out until
    then stays, and the caller removes the folder. OSError: this disk is full or not writable.
    """
    root = Path(os.path.realpath(into))
    root.mkdir(parents=True, exist_ok=True)
    links: List[Tuple[str, str]] = []
    total = count = 0
    with open(archive, "rb") as raw, gzip.GzipFile(fileobj=raw) as packed:
        source: Any = _Bounded(packed)
        with _tar(source) as tar:
            while True:
                member = _next(tar)
                if member is None:
                    break
                tar.members = []  # type: ignore[attr-defined]  # it would remember a million of them
                count += 1
                total += max(0, member.size) if member.isreg() else 0
                if total > limit or count > members:
                    message = f"the archive holds more than {limit} bytes or {members} files"
                    raise UnpackError(message)
                name = _safe(member.name)
                if member.isdir():
                    _folder(root, name)
                elif member.issym():
                    links.append((name, member.linkname))
                elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse():
                    _file(root, name, tar, member)
                else:
                    message = f"{name!r} is neither a file, a folder nor a link"
                    raise UnpackError(message)
        # to the end, so that gzip checks its own sum also behind tar's last block
        rest = 0
        while data := source.read(_CHUNK):
            rest += len(data)
            if rest > _CHUNK:
                message = "the archive goes on behind its end"
                raise UnpackError(message)
    _lay_links(root, links)
    return total


def _tar(source: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=source, mode="r:", encoding="utf-8", errors="surrogateescape")
    except tarfile.TarError as error:
        message = f"not a tar archive: {error}"
        raise UnpackError(message) from error


def _next(tar: tarfile.TarFile) -> Optional[tarfile.TarInfo]:
    try:
        return tar.next()
    except (tarfile.TarError, ValueError, OverflowError) as error:
        message = f"the archive is damaged: {error}"
        raise UnpackError(message) from error


def _safe(name: str) -> str:
    """The name without empty and `.` parts; UnpackError if it is absolute or goes up."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts or "\0" in name:
        message = f"the name {name!r} leads out of the folder"
        raise UnpackError(message)
    return "/".join(parts)


def _folder(root: Path, name: str) -> Path:
    path = root / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        message = f"{name!r} is a folder and a file"
        raise UnpackError(message) from error
    return path


def _file(root: Path, name: str, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    above, _, _last = name.rpartition("/")
    if above:
        _folder(root, above)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    mode = 0o755 if member.mode & 0o100 else 0o644
    try:
        descriptor = os.open(root / name, flags, mode)
    except FileExistsError as error:
        message = f"{name!r} is there already"
        raise UnpackError(message) from error
    with os.fdopen(descriptor, "wb") as target:
        reader = tar.extractfile(member)
        left = member.size
        while left:
            try:
                data = reader.read(min(_CHUNK, left)) if reader else b""
            except tarfile.TarError as error:
                message = f"the archive is damaged: {error}"
                raise UnpackError(message) from error
            if not data:
                message = f"the archive ends in the middle of {name!r}"
                raise UnpackError(message)
            target.write(data)
            left -= len(data)
        os.fchmod(target.fileno(), mode)


def _lay_links(root: Path, links: List[Tuple[str, str]]) -> None:
    """Make the links, then follow each: one that leads out through others is found only when all are there."""
    for name, target in links:
        above = name.rpartition("/")[0]
        if above:
            _folder(root, above)  # while there is no link yet that a folder could be made through
        if os.path.isabs(target) or not target or "\0" in target:
            _refuse_link(name)
    made: List[Path] = []
    for name, target in links:
        try:
            os.symlink(target, root / name)
        except FileExistsError as error:
            message = f"{name!r} is there already"
            raise UnpackError(message) from error
        made.append(root / name)
    for path in made:
        end = os.path.realpath(path)
        if end != str(root) and not end.startswith(f"{root}{os.sep}"):
            for one in made:
                os.unlink(one)
            _refuse_link(str(path.relative_to(root)))


def _refuse_link(name: str) -> None:
    message = f"the link {name!r} leads out of the folder"
    raise UnpackError(message)

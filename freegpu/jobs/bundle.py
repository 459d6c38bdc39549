"""The working folder as one archive: what goes in, what stays out and why, always the same bytes.

`plan` only looks (stat, never read), so that it is quick on a folder of any size and refuses one that is too
large before anything is packed. `write` packs a plan: sorted names, one time stamp, owner nobody, mode 755 or
644, so that the same files make the same archive. Links inside the working folder stay links and are never
followed. Does not know the store; freegpu/agent/unpack.py opens what is packed here.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import stat
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from freegpu.errors import WorkdirError
from freegpu.jobs.units import size_text

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["ALWAYS_OUT", "DEFAULT_LIMIT", "Bundle", "Entry", "Plan", "Skipped", "plan", "write"]

#: bytes before compression
DEFAULT_LIMIT = 10**9
#: never packed, in whatever folder they lie
ALWAYS_OUT = frozenset({".git", "__pycache__", ".venv", ".ipynb_checkpoints"})
IGNORE_FILES = (".gitignore", ".freegpuignore")
#: 2000-01-01: zip and with it pip's wheels know no time before 1980
_MTIME = 946684800
#: code packs well at once; data hardly packs at any level
_LEVEL = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One thing to pack. `name` is relative, with / between its parts; undecodable bytes are surrogates."""

    name: str
    kind: str  #: "file", "link" or "folder" (only folders in which nothing else is packed)
    source: str
    size: int = 0
    executable: bool = False
    #: where a link points
    target: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """Something that was not asked to be left out and yet stays out."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.name)} is left out: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What an archive will hold."""

    entries: tuple[Entry, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    #: files and folders that ignore files and ALWAYS_OUT keep out
    ignored: int = 0
    #: bytes before compression
    size: int = 0

    @property
    def files(self) -> int:
        return sum(entry.kind == "file" for entry in self.entries)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """An archive that was written."""

    path: Path
    sha256: str
    #: bytes of the archive
    size: int
    files: int


def shown(name: str) -> str:
    """A file name for a message: as it is, or escaped where it would garble the line."""
    return name if name.isprintable() and name == name.strip() else ascii(name)


def plan(
    workdir: str | os.PathLike[str],
    file_mounts: Mapping[str, str] | None = None,
    *,
    limit: int = DEFAULT_LIMIT,
    leave_out: Mapping[str, str] | None = None,
) -> Plan:
    """What to pack of a working folder ("" for none) and of further files and folders.

    `leave_out` maps absolute paths (the store, the checkpoint folder) to the reason why they stay out; each
    that is met is told in `skipped`. WorkdirError: missing, unreadable, more than `limit` bytes, or a mount
    whose target cannot be a file or folder there.
    """
    out = {os.path.realpath(path): reason for path, reason in (leave_out or {}).items()}
    packing = _Packing(out)
    if os.fspath(workdir):
        root = os.path.realpath(workdir)
        if not os.path.isdir(root):
            raise WorkdirError(
                f"the working folder {shown(os.fspath(workdir))} does not exist",
                hint="make it, or correct `workdir`",
            )
        packing.walk(root, "", ignores=IGNORE_FILES)
    for target, source in sorted((file_mounts or {}).items()):
        packing.mount(target, os.path.realpath(source))
    entries = packing.settled()
    size = sum(entry.size for entry in entries)
    if size > limit:
        _too_large(entries, size, limit)
    return Plan(entries=entries, skipped=tuple(packing.skipped), ignored=packing.ignored, size=size)


def _too_large(entries: tuple[Entry, ...], size: int, limit: int) -> None:
    largest = sorted(entries, key=lambda entry: (-entry.size, entry.name))[:5]
    names = ", ".join(f"{shown(entry.name)} ({size_text(entry.size)})" for entry in largest)
    raise WorkdirError(
        f"the working folder holds {size_text(size)}, more than {size_text(limit)}; largest: {names}",
        hint="name what the job does not need in .freegpuignore (one pattern a line, as in .gitignore)",
    )


@dataclass(slots=True)
class _Rules:
    """The ignore files of one folder, with the folder's own name as prefix."""

    prefix: str
    spec: GitIgnoreSpec


@dataclass(slots=True)
class _Packing:
    """Gathers entries by name."""

    out: Mapping[str, str]
    entries: dict[str, Entry] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    ignored: int = 0

    def mount(self, target: str, source: str) -> None:
        """A file or folder that the user named: a .gitignore does not apply, the data often is in one."""
        try:
            mode = os.stat(source).st_mode
        except OSError as error:
            raise _unreadable(source, error) from error
        if stat.S_ISDIR(mode):
            self.walk(source, target, ignores=(".freegpuignore",))
        else:
            self._take(source, target, os.path.dirname(source))

    def settled(self) -> tuple[Entry, ...]:
        """The entries, sorted. A mount may replace a file, never turn a file into a folder or back."""
        above = {
            name[:at] for name in self.entries for at, letter in enumerate(name) if letter == "/"
        }
        for name in sorted(above & self.entries.keys()):
            entry = self.entries.pop(name)
            if entry.kind != "folder":
                message = f"file_mounts: {shown(name)} is a {entry.kind} and a folder at once"
                raise WorkdirError(message, hint="give the mount another target")
        return tuple(sorted(self.entries.values(), key=lambda entry: os.fsencode(entry.name)))

    def walk(self, root: str, prefix: str, *, ignores: tuple[str, ...]) -> None:
        """Everything under `root`, as `prefix`/...; ignored folders are not entered."""
        ahead: list[tuple[str, str, tuple[_Rules, ...]]] = [(root, prefix, ())]
        while ahead:
            folder, name, rules = ahead.pop()
            try:
                with os.scandir(folder) as listing:
                    found = sorted(listing, key=lambda one: os.fsencode(one.name))
            except OSError as error:
                raise _unreadable(folder, error) from error
            rules = _with_rules(folder, name, rules, ignores, {one.name for one in found})
            taken = 0
            for one in found:
                inner = f"{name}/{one.name}" if name else one.name
                is_folder = one.is_dir(follow_symlinks=False)
                if one.name in ALWAYS_OUT or one.name.endswith(".pyc"):
                    self.ignored += 1
                elif reason := self.out.get(one.path):
                    self.skipped.append(Skipped(name=inner, reason=reason))
                elif _ignored(inner, is_folder, rules):
                    self.ignored += 1
                elif is_folder:
                    ahead.append((one.path, inner, rules))
                    taken += 1
                else:
                    taken += self._take(one.path, inner, root)
            if name and not taken and name not in self.entries:
                self.entries[name] = Entry(name=name, kind="folder", source=folder)

    def _take(self, path: str, name: str, root: str) -> bool:
        """One file, link or oddity; whether it goes in."""
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            self.skipped.append(Skipped(name=name, reason="it vanished while freegpu looked"))
            return False
        except OSError as error:
            raise _unreadable(path, error) from error
        entry: Entry | None = None
        if stat.S_ISREG(info.st_mode):
            if not os.access(path, os.R_OK, effective_ids=_EFFECTIVE):
                raise _unreadable(path, None)
            executable = bool(info.st_mode & stat.S_IXUSR)
            entry = Entry(
                name=name, kind="file", source=path, size=info.st_size, executable=executable
            )
        elif stat.S_ISLNK(info.st_mode):
            if target := _link_inside(path, root):
                entry = Entry(name=name, kind="link", source=path, target=target)
            else:
                reason = f"a link to {shown(os.readlink(path))}, outside the folder"
                self.skipped.append(Skipped(name=name, reason=reason))
        else:
            self.skipped.append(Skipped(name=name, reason=f"a {_kind(info.st_mode)}, not a file"))
        if entry is None:
            return False
        self.entries[name] = entry
        return True


_EFFECTIVE = os.access in os.supports_effective_ids


def _unreadable(path: str, error: OSError | None) -> WorkdirError:
    reason = error.strerror if error and error.strerror else "permission denied"
    hint = "make it readable, or name it in .freegpuignore"
    return WorkdirError(f"{shown(path)} cannot be read: {reason}", hint=hint)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISSOCK, "socket"), (stat.S_ISFIFO, "named pipe"))
    return next((word for test, word in kinds if test(mode)), "device")


def _link_inside(path: str, root: str) -> str:
    """The link's target, relative, if it stays inside `root` both as written and as followed; else ""."""
    target = os.readlink(path)
    home = os.path.dirname(path)
    if os.path.isabs(target):
        # right on this machine alone: the same place, said so that it is right elsewhere
        target = os.path.relpath(target, home)
    for end in (os.path.normpath(os.path.join(home, target)), os.path.realpath(path)):
        if os.path.commonpath([root, end]) != root:
            return ""
    return target


def _with_rules(
    folder: str,
    name: str,
    rules: tuple[_Rules, ...],
    ignores: tuple[str, ...],
    there: set[str],
) -> tuple[_Rules, ...]:
    """The rules that hold in a folder: those above it, then its own ignore files, later ones stronger."""
    for file in ignores:
        if file not in there:
            continue
        from pathspec import GitIgnoreSpec

        path = os.path.join(folder, file)
        try:
            lines = Path(path).read_text("utf-8", "surrogateescape").splitlines()
            rules = (*rules, _Rules(prefix=name, spec=GitIgnoreSpec.from_lines(lines)))
        except OSError as error:
            raise _unreadable(path, error) from error
        except ValueError as error:
            raise WorkdirError(
                f"{shown(path)} holds a pattern that is none: {error}", hint="take it out"
            ) from error
    return rules


def _ignored(name: str, is_folder: bool, rules: tuple[_Rules, ...]) -> bool:
    """Whether an ignore file says so; the deepest one that says anything decides."""
    for rule in reversed(rules):
        below = name[len(rule.prefix) + 1 :] if rule.prefix else name
        said = rule.spec.check_file(f"{below}/" if is_folder else below).include
        if said is not None:
            return said
    return False


class _Hashing:
    """A file that knows the digest and size of what went into it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def write(plan: Plan, target: Path) -> Bundle:
    """Pack a plan into `target` (a .tar.gz), which appears whole or not at all.

    A file that grew since it was planned is packed up to its planned length. WorkdirError: a file vanished,
    shrank, became something else or cannot be read, or there is no room for the archive.
    """
    hidden = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with hidden.open("wb") as file:
            hashing = _Hashing(file)
            with (
                gzip.GzipFile("", "wb", _LEVEL, hashing, mtime=0) as packed,
                tarfile.open(
                    fileobj=packed,
                    mode="w",
                    format=tarfile.GNU_FORMAT,
                    encoding="utf-8",
                    errors="surrogateescape",
                ) as tar,
            ):
                for entry in plan.entries:
                    _add(tar, entry)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
    except OSError as error:
        raise WorkdirError(
            f"the archive {target} cannot be written: {error.strerror or error}",
            hint="free some space there, or choose another FREEGPU_HOME",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink()
    return Bundle(
        path=target, sha256=hashing.digest.hexdigest(), size=hashing.size, files=plan.files
    )


def _add(tar: tarfile.TarFile, entry: Entry) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mtime = _MTIME
    info.mode = 0o755 if entry.executable or entry.kind == "folder" else 0o644
    if entry.kind == "folder":
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif entry.kind == "link":
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
        tar.addfile(info)
    else:
        info.size = entry.size
        with _opened(entry) as source:
            tar.addfile(info, _Exact(source, entry))


def _opened(entry: Entry) -> IO[bytes]:
    """The file as planned: never through a link, never blocking on a pipe that took its place."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        descriptor = os.open(entry.source, flags)
    except PermissionError as error:
        raise _unreadable(entry.source, error) from error
    except OSError as error:
        raise _changed(entry, "is gone or has become something else") from error
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode) or info.st_size < entry.size:
        os.close(descriptor)
        raise _changed(entry, "has shrunk or become something else")
    return os.fdopen(descriptor, "rb")


def _changed(entry: Entry, what: str) -> WorkdirError:
    return WorkdirError(
        f"{shown(entry.name)} {what} while it was packed",
        hint="submit again when nothing writes there",
    )


class _Exact:
    """A reader that gives a file's planned length, or says that the file changed."""

    def __init__(self, source: IO[bytes], entry: Entry) -> None:
        self.source = source
        self.entry = entry

    def read(self, size: int = -1) -> bytes:
        try:
            data = self.source.read(size)
        except OSError as error:
            raise _unreadable(self.entry.source, error) from error
        if len(data) < size:
            raise _changed(self.entry, "has shrunk")
        return data

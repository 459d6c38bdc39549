"""The folder that is this freegpu: its key, its orchestrator lock, the secrets of its jobs.

Nothing here knows about jobs' states or platforms; it is files with the right modes, written so that a crash
leaves either the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from freegpu.agent.wire import check_name
from freegpu.errors import ConfigError

#: the addresses of notices; most homes have none
NOTIFY_FILE = "notify.toml"
_MEND = "mend the permissions of its folder, and move away what stands in its place"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who is the orchestrator now, for people."""

    pid: int
    command: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}, since {self.since})"


def make_home(home: Path) -> None:
    """Create the folder, readable by its owner only. ConfigError if that cannot be."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise ConfigError(
            f"the freegpu home {home} cannot be written ({error.strerror or error})",
            hint="choose another folder with FREEGPU_HOME, or mend its permissions or free some space",
        ) from error


def home_key(home: Path) -> bytes:
    """The 32 random bytes that this home's session keys are derived from; made on first use, mode 0600."""
    path = home / "key"
    try:
        if not path.exists():
            _publish(path, secrets.token_bytes(32), replace=False)
        key = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the key of this home, {path}, cannot be read or made ({error.strerror or error})",
            hint="mend the permissions of the file and its folder",
        ) from error
    if len(key) != 32:
        raise ConfigError(
            f"the key of this home, {path}, has {len(key)} bytes instead of 32",
            hint="restore it from a backup; if there is none and nothing runs, delete it and a new one is made",
        )
    return key


def save_secrets(home: Path, values: Mapping[str, str]) -> str:
    """Keep secret values for the attempts of one submission, outside ledger and store (mode 0600).

    Returns the reference that goes into the job spec. ConfigError: they cannot be written.
    """
    folder = home / "secrets"
    ref = secrets.token_hex(8)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _publish(folder / f"{ref}.json", json.dumps(dict(values)).encode())
    except OSError as error:
        raise ConfigError(
            f"the secrets cannot be kept in {folder} ({error.strerror or error})", hint=_MEND
        ) from error
    return ref


def load_secrets(home: Path, ref: str) -> dict[str, str]:
    """The values behind a reference; none for "". ConfigError if the file was removed."""
    if not ref:
        return {}
    path = home / "secrets" / f"{check_name(ref)}.json"
    try:
        values: dict[str, str] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the secrets of this job are not in {path} any more",
            hint="cancel the job and submit it again, so that they are read anew",
        ) from error
    return values


def secret_refs(home: Path) -> tuple[str, ...]:
    """All references that are kept."""
    return tuple(sorted(path.stem for path in (home / "secrets").glob("*.json")))


def forget_secrets(home: Path, ref: str) -> None:
    """Remove the values behind a reference; silent if there are none."""
    with contextlib.suppress(FileNotFoundError):
        (home / "secrets" / f"{check_name(ref)}.json").unlink()


@contextlib.contextmanager
def orchestrator_lock(home: Path, *, command: str, since: str) -> Iterator[Holder | None]:
    """Hold the right to tick this home; yields who holds it if it is not us.

    The lock is the kernel's (flock), so it is gone when its holder is, however it died; the text in the file
    only names the holder.
    """
    path = home / "orchestrator.lock"
    descriptor = _open_lock(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _read_holder(path)
            return
        text = json.dumps({"pid": os.getpid(), "command": command, "since": since}).encode()
        with contextlib.suppress(OSError):  # the disk may be full: the lock is held all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text, 0)
        try:
            yield None
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def submission_lock(home: Path, *, alone: bool) -> Iterator[None]:
    """Many submissions at once, or one collection of garbage alone.

    A bundle lies in the store a moment before the ledger knows its job; gc must not look in between.
    """
    descriptor = _open_lock(home / "submit.lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """One process at a time inside; others wait. ConfigError: the file cannot be opened."""
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be opened ({error.strerror or error})", hint=_MEND
        ) from error


def current_holder(home: Path) -> Holder | None:
    """Who is the orchestrator now; None: nobody."""
    try:
        descriptor = os.open(home / "orchestrator.lock", os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(home / "orchestrator.lock")
    finally:
        os.close(descriptor)
    return None


def _read_holder(path: Path) -> Holder:
    try:
        data = json.loads(path.read_bytes())
        return Holder(pid=int(data["pid"]), command=str(data["command"]), since=str(data["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        # it has locked the file but not yet written its name
        return Holder(pid=0, command="starting", since="now")


def write_private(path: Path, data: bytes) -> None:
    """Replace a file that only its owner can read; it is there whole or as it was. OSError."""
    _publish(path, data)


def _publish(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write a private file so that it is there whole or not at all; without `replace` the first one stays."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(name, path)
        else:
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)

"""A folder of a machine that is reached by ssh: `sftp://user@host:port/abs/path`. Orchestrator only.

Keys come from ssh-agent and ~/.ssh, names and jumps from ~/.ssh/config, host keys from known_hosts and from
nowhere else. An agent on that machine sees the same tree as a folder. The rules are FolderStore's: written
hidden, synced, renamed; the root is never made here.

OpenSSH's server refuses SSH_FXP_RENAME onto a name that exists (it links, then unlinks: sftp-server.c,
process_rename), which is the create-if-absent used here; other servers replace, so cas is left to the probe.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import posixpath
import random
import re
import secrets
import shlex
import stat as modes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from freegpu.adapters.stores import ssh
from freegpu.adapters.stores.sftp_pipe import LARGE, SMALL, Pipe, limits
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

if TYPE_CHECKING:
    import paramiko

__all__ = ["SftpStore"]

MARKER = "freegpu.json"
_HIDDEN = ".freegpu-"
#: SFTP channels on the one connection; OpenSSH allows ten sessions (MaxSessions), digests take one more each
_CHANNELS = 4
#: seconds before each new try after the connection broke
_DELAYS = (0.0, 0.5, 2.0, 5.0)
#: no new try after this many seconds: whoever calls has a better idea what to do meanwhile
_TRYING_S = 20.0
#: seconds a server may take to answer the trial of its sha256sum
_TRIAL_S = 15.0
#: bytes a second that a server reads and hashes at the very least; past that the object is read from here
_SLOWEST_HASH = 5_000_000
_EMPTY = hashlib.sha256(b"").hexdigest()

T = TypeVar("T")


class SftpStore:
    """See the module. Safe to be used by several threads."""

    def __init__(
        self,
        rest: str,
        access: Access | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`rest` is the URL behind "sftp:". ValueError: it cannot be meant. Connects on use."""
        self.target, self.root = _parse(rest)
        self._access = access or Access()
        self._sleep = sleep
        self._line = ssh.Line(self.target)
        self._idle: list[tuple[Any, paramiko.SFTPClient]] = []
        self._lock = threading.Lock()
        self._channels = threading.BoundedSemaphore(_CHANNELS)
        self._made: set[str] = set()
        self._hasher: str | None = None
        self._syncs = True
        self._limits: tuple[int, int] | None = None

    @property
    def properties(self) -> Properties:
        # what nobody has probed is not believed
        return self._access.known or Properties(
            cas=False, ordered=False, lists_lag=True, max_object=None, min_poll=1.0
        )

    @property
    def digests_by_server(self) -> bool:
        """Whether the server runs sha256sum for us; it is tried when a digest is first asked for."""
        return bool(self._hasher)

    def close(self) -> None:
        """Hang up; the next call dials again."""
        with self._lock:
            self._idle.clear()
        self._line.close()

    # --- the protocol -----------------------------------------------------------------------------------

    def list(self, prefix: str, after: str = "") -> list[str]:
        folder = self._path(check_key(prefix)) if prefix else self.root

        def walk(client: paramiko.SFTPClient) -> list[str]:
            keys: list[str] = []
            folders = [folder]
            while folders:
                where = folders.pop()
                base = "" if where == self.root else where[len(self.root) :].strip("/") + "/"
                for entry in self._entries(client, where):
                    mode = entry.st_mode or 0
                    if entry.filename.startswith("."):
                        continue
                    if modes.S_ISDIR(mode):
                        folders.append(posixpath.join(where, entry.filename))
                    elif modes.S_ISREG(mode):
                        keys.append(base + entry.filename)
            self._require_root(client)
            return keys

        # what people and sync clients leave here is nobody's object
        return sorted(key for key in self._do(walk) if key > after and is_key(key))

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        path = self._path(check_key(key))

        def read(client: paramiko.SFTPClient) -> bytes:
            with client.open(path, "rb") as file:
                size = file.stat().st_size or 0
                last = size if end is None else min(end, size)
                parts: list[bytes] = []
                if last > start:
                    self._pipe(client, last - start).read(file, start, last - start, parts.append)
                return b"".join(parts)

        return self._do(read, key)

    def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
        path = self._path(check_key(key))

        def read(client: paramiko.SFTPClient) -> tuple[int, str]:
            with client.open(path, "rb") as file, open(into, "wb") as target:
                return self._read_all(file, key, target.write)

        return self._do(read, key)

    def put(self, key: str, source: Source) -> None:
        path = self._path(check_key(key))
        with self._written(key, source) as hidden:
            again = False

            def publish(client: paramiko.SFTPClient) -> None:
                nonlocal again
                try:
                    _replace(client, hidden, path)
                except FileNotFoundError:
                    # the answer to the first try was lost, not the rename
                    if not again:
                        raise
                finally:
                    again = True

            self._do(publish)

    def put_new(self, key: str, source: Source) -> bool:
        path = self._path(check_key(key))
        if self.stat(key) is not None:
            self._do(self._require_root)
            return False
        with self._written(key, source) as hidden:
            again = False

            def publish(client: paramiko.SFTPClient) -> bool:
                nonlocal again
                try:
                    client.rename(hidden, path)
                except FileNotFoundError:
                    # the answer to the first try was lost, not the rename: it was ours that won
                    if not again:
                        raise
                except OSError:
                    if _size(client, path) is None:
                        raise
                    return False
                finally:
                    again = True
                return True

            return self._do(publish)

    def delete(self, key: str) -> None:
        path = self._path(check_key(key))
        with contextlib.suppress(ObjectMissing):
            self._do(lambda client: client.remove(path), key)

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        path = self._path(check_key(key))

        def look(client: paramiko.SFTPClient) -> Stat:
            attributes = client.stat(path)
            if modes.S_ISDIR(attributes.st_mode or 0):
                raise FileNotFoundError(errno.ENOENT, "a folder is no object", path)
            size = attributes.st_size or 0
            if not digest:
                return Stat(size)
            told = self._server_digest(path, size)
            if told:
                return Stat(size, told)
            with client.open(path, "rb") as file:
                return Stat(*self._read_all(file, key))

        try:
            return self._do(look, key)
        except ObjectMissing:
            return None

    def space(self) -> tuple[int | None, int | None]:
        """(bytes free, bytes in all) where the store lies; None where the server does not tell."""
        return self._do(lambda client: _statvfs(client, self.root))

    # --- writing ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _written(self, key: str, source: Source) -> Iterator[str]:
        """A synced hidden file with the object's bytes, gone when the block ends."""
        folder = posixpath.dirname(self._path(key))
        hidden = f"{folder}/{_HIDDEN}{secrets.token_hex(6)}"

        def write(client: paramiko.SFTPClient) -> None:
            if key != MARKER:
                self._require_root(client)
            if folder not in self._made:
                self._make_folder(client, folder)
                self._made.add(folder)
            try:
                self._write(client, hidden, key, source)
            except FileNotFoundError:
                # somebody removed the folder since we made it
                self._make_folder(client, folder)
                self._write(client, hidden, key, source)

        try:
            self._do(write)
            yield hidden
        finally:
            with contextlib.suppress(StoreError):
                self._do(lambda client: client.remove(hidden), MARKER)

    def _make_folder(self, client: paramiko.SFTPClient, folder: str) -> None:
        """Make a folder of the store, but never the root."""
        here = self.root
        for part in folder[len(self.root) :].strip("/").split("/"):
            here = posixpath.join(here, part) if part else here
            if here != self.root:
                try:
                    client.mkdir(here)
                except FileNotFoundError:
                    raise
                except OSError:
                    # it is there already, or a file is in the way: then nothing can be written into it
                    if not modes.S_ISDIR(client.stat(here).st_mode or 0):
                        raise

    def _write(self, client: paramiko.SFTPClient, path: str, key: str, source: Source) -> None:
        size = len(source) if isinstance(source, bytes) else os.stat(source).st_size
        began = time.monotonic()

        def told(done: int) -> None:
            self._tell(key, done, size)
            if self._access.bandwidth:
                ahead = done / self._access.bandwidth - (time.monotonic() - began)
                if ahead > 0.01:
                    self._sleep(ahead)

        with client.open(path, "wb") as file:
            # its answers are read here, and with them "disk full"
            self._pipe(client, size).write(file, _blocks(source), told)
            if self._syncs:
                self._syncs = _fsync(client, file)
        found = client.stat(path).st_size
        if found != size:
            raise OSError(f"{found} bytes arrived instead of {size}")

    def _tell(self, key: str, done: int, size: int) -> None:
        if self._access.progress is not None and size > SMALL:
            self._access.progress(key, done, size)

    # --- reading ----------------------------------------------------------------------------------------

    def _read_all(
        self,
        file: paramiko.SFTPFile,
        key: str,
        take: Callable[[bytes], object] = lambda block: None,
    ) -> tuple[int, str]:
        digest, size = hashlib.sha256(), 0
        total = file.stat().st_size or 0

        def part(block: bytes) -> None:
            nonlocal size
            digest.update(block)
            size += len(block)
            take(block)
            self._tell(key, size, total)

        if total:
            self._pipe(file.sftp, total).read(file, 0, total, part)
        return size, digest.hexdigest()

    def _pipe(self, client: paramiko.SFTPClient, size: int) -> Pipe:
        """The way for this many bytes; whether the server takes more than every server is asked once."""
        if size <= SMALL:
            return Pipe(client)
        if self._limits is None:
            self._limits = limits(client)
        return Pipe(client, self._limits)

    def _entries(
        self, client: paramiko.SFTPClient, folder: str
    ) -> Sequence[paramiko.SFTPAttributes]:
        try:
            return client.listdir_attr(folder)
        except FileNotFoundError:
            return []  # it was removed while we looked, or never made

    def _server_digest(self, path: str, size: int) -> str | None:
        """The SHA-256 by a program of the server; None: it lets us run none, or cannot find the file so."""
        if self._hasher is None:
            self._hasher = ""
            for program in ("sha256sum", "shasum -a 256"):
                code, text = self._line.run(f"printf '' | {program}", timeout=_TRIAL_S)
                if code == 0 and text.split()[:1] == [_EMPTY]:
                    self._hasher = program
                    break
        if not self._hasher:
            return None
        # it says nothing until it is done, and a line that has died says nothing for ever
        patience = _TRIAL_S + size / _SLOWEST_HASH
        code, text = self._line.run(f"{self._hasher} < {shlex.quote(path)}", timeout=patience)
        word = text.split()[0] if code == 0 and text.split() else ""
        # a server that shows us a tree of its own (chroot) has another file there, or none
        return word if re.fullmatch(r"[0-9a-f]{64}", word) else None

    # --- calls ------------------------------------------------------------------------------------------

    def _do(self, call: Callable[[paramiko.SFTPClient], T], key: str = "") -> T:
        """Make a call over a channel; a broken connection is dialled anew, and the call made again."""
        last: Exception | None = None
        began = time.monotonic()
        for delay in _DELAYS:
            if delay:
                if time.monotonic() - began > _TRYING_S:
                    break
                self._sleep(delay * random.uniform(0.75, 1.25))  # noqa: S311 - spread, not secrecy
            try:
                with self._channel() as client:
                    try:
                        return call(client)
                    except OSError as error:
                        if ssh.broke(error):
                            raise
                        raise self._translated(client, error, key) from error
            except StoreError:
                raise
            except Exception as error:
                if not ssh.broke(error):
                    raise
                last = error
                self._line.close()
        message = f"the store {self} does not answer ({_words(last)})"
        raise StoreGone(message) from last

    @contextlib.contextmanager
    def _channel(self) -> Iterator[paramiko.SFTPClient]:
        with self._channels:
            transport = self._line.transport()
            with self._lock:
                usable = [pair for pair in self._idle if pair[0] is transport]
                client = usable.pop()[1] if usable else None
                self._idle = usable
            if client is None:
                client = self._line.sftp()
            # after a failure in the middle of a file the channel is not used again
            intact = False
            try:
                yield client
                intact = True
            except (ObjectMissing, StoreGone):
                intact = True
                raise
            finally:
                if intact:
                    with self._lock:
                        self._idle.append((transport, client))
                else:
                    with contextlib.suppress(Exception):
                        client.close()

    def _require_root(self, client: paramiko.SFTPClient) -> None:
        if _size(client, posixpath.join(self.root, MARKER)) is None:
            message = f"the store {self} is not there (no {MARKER} in it)"
            raise StoreGone(message)

    def _translated(self, client: paramiko.SFTPClient, error: OSError, key: str) -> StoreError:
        """The error as a store error, with the sentence that a person needs."""
        if isinstance(error, FileNotFoundError):
            there = _size(client, self.root) is not None
            if key and there and (key == MARKER or self._has_marker(client)):
                return ObjectMissing(f"{key} is not in the store")
            return StoreGone(f"the store {self} is not there")
        if error.errno == errno.EACCES:
            return StoreError(f"the store {self} may not be written or read: permission denied")
        # the server's own word for a full disk is "Failure"
        with contextlib.suppress(OSError):
            free, _ = _statvfs(client, self.root)
            if free is not None and free < 1 << 20:
                return StoreFull(f"the store {self} is full")
        return StoreError(f"the store {self} failed: {_words(error)}")

    def _has_marker(self, client: paramiko.SFTPClient) -> bool:
        return _size(client, posixpath.join(self.root, MARKER)) is not None

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def __str__(self) -> str:
        return f"sftp://{self.target}{self.root}"


def _parse(rest: str) -> tuple[ssh.Target, str]:
    """(who and where, absolute path). ValueError with the sentence that a person needs."""
    example = "sftp://me@lab.example.com/data/freegpu"
    parts = urlsplit(f"sftp:{rest}")
    if parts.password is not None:
        raise ValueError("an sftp URL holds no password: use a key (ssh-keygen, ssh-copy-id)")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port of an sftp URL is a number up to 65535") from None
    if not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"an sftp URL looks like {example}")
    path = posixpath.normpath(unquote(parts.path) or "/")
    if path in ("/", "//") or "\0" in path:
        raise ValueError(f"an sftp URL names an absolute folder of the host, like {example}")
    # the host as it was written: aliases of ~/.ssh/config may have capitals
    host = parts.netloc.rpartition("@")[2]
    host = host[1 : host.index("]")] if host.startswith("[") else host.partition(":")[0]
    return ssh.Target(host=host, port=port, user=unquote(parts.username or "")), path


def _blocks(source: Source) -> Iterator[bytes]:
    if isinstance(source, bytes):
        for at in range(0, len(source), LARGE):
            yield source[at : at + LARGE]
        return
    with Path(source).open("rb") as file:
        while block := file.read(LARGE):
            yield block


def _size(client: paramiko.SFTPClient, path: str) -> int | None:
    try:
        return client.stat(path).st_size or 0
    except FileNotFoundError:
        return None


def _words(error: Exception | None) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split())[:200] or type(error).__name__


def _replace(client: paramiko.SFTPClient, source: str, target: str) -> None:
    """Rename over what is there; in one step where the server can."""
    try:
        client.posix_rename(source, target)
    except OSError as error:
        if "unsupported" not in str(error).lower():
            raise
        with contextlib.suppress(FileNotFoundError):
            client.remove(target)
        client.rename(source, target)


# paramiko speaks SFTP's core; these are OpenSSH's extensions (its file PROTOCOL, section 4)


def _fsync(client: Any, file: Any) -> bool:
    """Have the server sync the file; False: it does not know how."""
    import paramiko

    try:
        client._request(paramiko.sftp.CMD_EXTENDED, "fsync@openssh.com", file.handle)
    except OSError as error:
        if "unsupported" in str(error).lower():
            return False
        raise
    return True


def _statvfs(client: Any, path: str) -> tuple[int | None, int | None]:
    """(bytes free for us, bytes in all); (None, None): the server does not tell."""
    import paramiko

    try:
        _, answer = client._request(paramiko.sftp.CMD_EXTENDED, "statvfs@openssh.com", path)
    except OSError as error:
        if "unsupported" in str(error).lower():
            return None, None
        raise
    figures = [answer.get_int64() for _ in range(11)]
    block, blocks, available = figures[1], figures[2], figures[4]
    return block * available, block * blocks

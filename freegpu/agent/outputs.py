"""What a job leaves behind as its result, found and put into the store when it has ended.

Decides which files are results: all of the output folder, and what the ticket's globs name in the working
folder. Does not know whether the job succeeded. A glob is relative to the working folder, has `*`, `?`,
`[...]` within a name and `**` for any number of folders; a folder that it names means everything below.
One that leaves the working folder names nothing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from fnmatch import translate
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Optional, Pattern, Set, Tuple

from freegpu.agent import wire
from freegpu.agent.clock import Clock, SystemClock
from freegpu.agent.snapshot import Item
from freegpu.agent.stores.base import Store
from freegpu.agent.transfer import Known, upload

#: a link that leads nowhere or in a circle, or a file that is gone since it was listed
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_MAGIC = re.compile(r"[*?\[]")


def collect_outputs(
    store: Store,
    ticket: wire.Run,
    workdir: Path,
    output_dir: Path,
    known: Known,
    *,
    clock: Optional[Clock] = None,
    bandwidth: Optional[float] = None,
    should_stop: Optional[Callable[[], bool]] = None,
) -> Optional[Tuple[str, str]]:
    """Put the results and then their manifest; its (key, SHA-256). None: there are no files.

    Call it when nobody writes any more. `known`: parts that need not be sent again. After a StoreError call
    it again: `known` has what was put by then. OSError (a file cannot be read), Stopped.
    """
    clock = clock or SystemClock()
    items = find_outputs(ticket.outputs, workdir, output_dir)
    if not items:
        return None
    files = upload(
        store,
        ticket.attempt,
        items,
        known,
        clock=clock,
        bandwidth=bandwidth,
        should_stop=should_stop,
    )
    manifest = wire.Manifest(ticket.job, ticket.attempt, ticket.epoch, 0, None, clock.time(), files)
    key, data = wire.outputs_key(ticket.attempt), manifest.to_bytes()
    if not store.put_new(key, data):
        # an earlier try wrote it, and the answer was lost: if it is whole it stays, for it may have been read
        there = store.get(key)
        if _files(there) == files:
            data = there
        else:
            store.put(key, data)
    return key, wire.sha256(data)


def _files(data: bytes) -> Optional[Tuple[wire.File, ...]]:
    try:
        return wire.Manifest.from_bytes(data, wire.sha256(data)).files
    except wire.Unreadable:
        return None


def find_outputs(globs: Iterable[str], workdir: Path, output_dir: Path) -> Tuple[Item, ...]:
    """The files to bring home, sorted by path; the output folder wins where two have the same path."""
    root, own = os.path.realpath(workdir), os.path.realpath(output_dir)
    found: Dict[str, Item] = {}
    for pattern in globs:
        start, rest = _split(pattern)
        if start is None:
            continue
        for path, source, info in _walk(root, start, skip=own):
            if not rest or _matches(path[len(start) :].strip("/").split("/"), rest):
                found[path] = _item(path, source, info)
    for path, source, info in _walk(own, "", inside=(own, root)):
        found[path] = _item(path, source, info)
    return tuple(found[path] for path in sorted(found))


def _item(path: str, source: str, info: os.stat_result) -> Item:
    return Item(path, Path(source), info.st_size, info.st_mtime_ns, stat.S_IMODE(info.st_mode))


def _split(pattern: str) -> Tuple[Optional[str], List[Optional[Pattern[str]]]]:
    """The folder to start from, and what must match below it; None stands for `**`."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if pattern.startswith("/") or ".." in parts:
        return None, []
    plain = 0
    while plain < len(parts) and not _MAGIC.search(parts[plain]):
        plain += 1
    rest = [None if part == "**" else re.compile(translate(part)) for part in parts[plain:]]
    return "/".join(parts[:plain]), rest


def _matches(parts: List[str], pattern: List[Optional[Pattern[str]]]) -> bool:
    """Whether the pattern matches this path or a folder that it lies in."""
    reached = {0}
    for part in parts:
        if len(pattern) in reached:
            return True
        following: Set[int] = set()
        for at in reached:
            while at < len(pattern) and pattern[at] is None:
                following.add(at)  # `**` takes this part too,
                at += 1  # or has had enough
            if at == len(pattern):
                return True
            wanted = pattern[at]
            if wanted is not None and wanted.match(part):
                following.add(at + 1)
        reached = following
    return len(pattern) in reached or any(
        all(wanted is None for wanted in pattern[at:]) for at in reached
    )


def _walk(
    root: str, start: str, *, skip: str = "", inside: Tuple[str, ...] = ()
) -> Iterable[Tuple[str, str, os.stat_result]]:
    """Every file at or below `start`: path from `root`, where it is, what it is. Links only within `inside`."""
    inside = inside or (root,)
    pending = [(start, os.path.join(root, start) if start else root, frozenset([skip]))]
    while pending:
        path, source, above = pending.pop()
        real = os.path.realpath(source)
        if real in above or not any((real + os.sep).startswith(base + os.sep) for base in inside):
            continue
        try:
            info = os.stat(real)
            if stat.S_ISREG(info.st_mode):
                yield path, real, info
            elif stat.S_ISDIR(info.st_mode):
                for name in os.listdir(real):
                    below = f"{path}/{name}" if path else name
                    pending.append((below, os.path.join(real, name), above | {real}))
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise

"""The checkpoint folder as it was at one moment, taken while the job goes on writing.

What a framework writes once and never again is linked, which costs no room and no time, and survives its
being deleted; what may be overwritten in place is copied. A link whose file is written to all the same
is noticed (Item.mark), and from then on that file is copied.

Decides when the folder is consistent, and never waits: `take` looks, and copies only if what it sees has
settled; otherwise the caller comes again. What belongs together is not known from outside, so files that
are written one after the other count as one state until nothing has moved for the settle time. Two cases
need less: a folder with one file only, whose format proves it whole; and folders whose framework writes a
certain file last. Not seen: writes through a memory map, until the kernel stamps the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

from freegpu.agent.clock import Clock
from freegpu.agent.validate import complete

_TEMPORARY = ("*.tmp", ".tmp*", "*.tmp-*", "*~", ".~*", "*.part", "*.incomplete")
_ORBAX_TEMPORARY = "*.orbax-checkpoint-tmp*"
#: append-only by nature: any beginning of them is a valid one, so they neither delay nor cause a snapshot
_JOURNALS = ("events.out.tfevents.*", "*.log")
#: Transformers keeps this in a folder while it saves on SIGTERM
_UNFINISHED = "checkpoint-is-incomplete.txt"
_NUMBERED = re.compile(r"checkpoint-\d+")
#: orbax has one of these in the folder of a step; the second where it cannot rename, and then last of all
_STEP_FILES = ("_CHECKPOINT_METADATA", "commit_success.txt")
_STEP = re.compile(r"(?:.*[-_])?\d+")
_NUMBER = re.compile(r"\d+")
#: a folder or file with the number of a step in its name is written once
_ONCE = re.compile(r"(?:.*/)?(?:[^/]*\d/.*|[^/]*(?:step|epoch|iter|checkpoint|ckpt)[-_=]?\d[^/]*)")
#: what Transformers and Accelerate write last into checkpoint-N
_LAST = ("trainer_state.json", "random_states_*.pkl")
_TRAINER = (
    *("config.json", "adapter_config.json", "training_args.bin", "optimizer.pt", "optimizer.bin"),
    *("scheduler.pt", "scheduler.bin", "rng_state*.pth", "model*.safetensors"),
    *("adapter_model.*", "pytorch_model*.bin"),
)
#: a look this much earlier must have seen the same file: the kernel's time stamps are some milliseconds coarse
_TICK_S = 0.1
_ROUNDING_S = 1e-6
#: formats that are whole after each flush, long before the last write
_WHOLE_MIDWAY = (".h5", ".hdf5")

#: free space below which files that only we hold are given up: the least, a quarter of the snapshot, the most
_LEAST_FREE, _MOST_FREE = 64 << 20, 1 << 30

EMPTY, UNCHANGED, SETTLING, TORN, TAKEN = "empty", "unchanged", "settling", "torn", "taken"

#: size, mtime_ns, inode
_Mark = Tuple[int, int, int]
_Found = Dict[str, os.stat_result]


@dataclass(frozen=True)
class Item:
    """A file to be stored: what it is called, and where its bytes are."""

    path: str
    source: Path
    size: int
    mtime_ns: int
    mode: int
    #: a link, not a copy, of a file that looked like this: its bytes count only while it still does
    mark: Optional[_Mark] = None


@dataclass(frozen=True)
class Snapshot:
    """One state of the checkpoint folder, lying in `folder`."""

    folder: Path
    items: Tuple[Item, ...]
    #: monotonic time at which the job had last changed it
    changed_at: float

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)


class NoRoom(OSError):  # noqa: N818 - reads as what happened
    """The disk has too little room to keep a snapshot beside the job's own files."""


@dataclass
class _Unit:
    """Files that are judged together: the folder's own, or those of one checkpoint-N."""

    names: FrozenSet[str]
    names_since: float
    marks: FrozenSet[Tuple[str, _Mark]]
    since: float


@dataclass
class Seen:
    """What earlier looks found; one for each folder that is watched."""

    #: what the last look came to: EMPTY, UNCHANGED, SETTLING, TORN or TAKEN
    state: str = EMPTY
    #: seconds until another look can find more; 0 when nothing is waited for
    wait_s: float = 0.0
    #: monotonic time of the last change seen; None before the first look
    changed_at: Optional[float] = None
    #: path -> (size, mtime_ns) of the last snapshot
    taken: Dict[str, Tuple[int, int]] = field(default_factory=dict)
    _units: Dict[str, _Unit] = field(default_factory=dict)
    _verdicts: Dict[str, Tuple[_Mark, Optional[bool]]] = field(default_factory=dict)
    _looked_at: Optional[float] = None
    _ended_at: Optional[float] = None
    #: what the files of the last snapshot looked like; and those that were overwritten in place, numbers aside
    _last: Dict[str, _Mark] = field(default_factory=dict)
    _rewritten: Set[str] = field(default_factory=set)
    #: orbax's folders of steps; and where each one has to say that it is whole
    _steps: Set[str] = field(default_factory=set)
    _saying: Set[str] = field(default_factory=set)
    #: numbered folders that have lost files
    _shrunk: Set[str] = field(default_factory=set)

    def proved(self, path: str) -> bool:
        """Whether the last look found this file whole by its format."""
        return path in self._verdicts and self._verdicts[path][1] is True


def temporary(name: str) -> bool:
    """Whether a file or folder of this name is still being written."""
    return any(fnmatch(name, pattern) for pattern in (*_TEMPORARY, _ORBAX_TEMPORARY))


def journal(path: str) -> bool:
    """Whether this is a log: its growing is no new checkpoint."""
    name = path.rpartition("/")[2]
    return any(fnmatch(name, pattern) for pattern in _JOURNALS)


def take(
    source: Path,
    stage: Path,
    *,
    clock: Clock,
    settle_s: float = 2.0,
    seen: Seen,
    pids: Iterable[int] = (),
    ended: bool = False,
    clean: bool = True,
) -> Optional[Snapshot]:
    """What is in `source`, in the new folder `stage`; None if there is nothing new, or it is not stable now.

    `seen` tells which, and when to come again. `pids`: processes whose open files are left alone (Linux).
    `ended`: nobody writes any more, so nothing has to settle; unless not `clean`: a process that was
    killed or crashed may have left half a state, and then only what had settled before, or what its
    format proves whole, is taken. OSError if it cannot be written; nothing is left behind then. NoRoom if
    copies would leave no room for the job's own next save.
    """
    now = clock.monotonic()
    root = os.path.realpath(source)
    seen.wait_s = 0.0
    try:
        found = _scan(root)
        core = {path: info for path, info in found.items() if not journal(path)}
        chosen = _choose(root, core, seen, clock, settle_s, pids, ended=ended, clean=clean)
    except (FileNotFoundError, NotADirectoryError):
        # a file or folder went while we looked at it: a rotation at work
        seen.state, seen.wait_s = (TORN, settle_s) if os.path.isdir(root) else (EMPTY, 0.0)
        return None
    if not chosen:
        return None
    units = {_unit(path, seen) for path in chosen}
    journals = [
        p for p in found if p not in core and (_unit(p, seen) in units or not _unit(p, seen))
    ]
    for path, mark in chosen.items():
        if path in seen._last and seen._last[path][2] == mark[2] and seen._last[path] != mark:
            seen._rewritten.add(_steady(path))
    # when nobody writes any more, everything may be linked
    copied = {p for p in chosen if not (ended or _written_once(p, chosen[p], seen))}
    if not _room(stage, sum(core[p].st_size for p in copied), spare=not ended):
        # better a link that may prove void than nothing
        copied = {path for path in copied if _steady(path) in seen._rewritten}
        _check_room(stage, sum(core[p].st_size for p in copied), spare=not ended)
    kept = False
    try:
        items = _stage(root, stage, {p: found[p] for p in (*chosen, *journals)}, copied)
        again = {p: _mark(i) for p, i in _scan(root).items() if _unit(p, seen) in units}
        kept = {p: m for p, m in again.items() if not journal(p)} == chosen and all(
            complete(item.source, deep=True) for item in items if seen.proved(item.path)
        )
    except (FileNotFoundError, NotADirectoryError):
        kept = False
    finally:
        if not kept:
            shutil.rmtree(stage, ignore_errors=True)
    if not kept:
        seen.state, seen.wait_s = TORN, settle_s
        return None
    seen.state = TAKEN
    seen.taken = {path: mark[:2] for path, mark in chosen.items()}
    seen._last = chosen
    return Snapshot(stage, items, now if seen.changed_at is None else seen.changed_at)


def look(source: Path, *, clock: Clock, seen: Seen) -> None:
    """See what is there without taking it, so that the settle time runs. OSError if it cannot be read."""
    root = os.path.realpath(source)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        core = {path: info for path, info in _scan(root).items() if not journal(path)}
        _remember(root, seen, _group(core, seen), core, clock, ended=False)


def _scan(root: str) -> _Found:
    """Every file below, by its path, but temporary ones. Links are followed where they stay inside."""
    found: _Found = {}
    pending: List[Tuple[str, str, bool]] = [("", root, False)]
    while pending:
        prefix, folder, linked = pending.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if temporary(entry.name):
                    continue
                target, link = entry.path, entry.is_symlink()
                if link:
                    target = os.path.realpath(entry.path)
                    if linked or not target.startswith(root + os.sep) or not os.path.exists(target):
                        continue
                info = os.stat(target, follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    # a link to a folder that holds it would never end
                    if not (link and (folder + os.sep).startswith(target + os.sep)):
                        pending.append((f"{prefix}{entry.name}/", target, linked or link))
                elif stat.S_ISREG(info.st_mode):
                    found[prefix + entry.name] = info
    return found


def _choose(
    root: str,
    core: _Found,
    seen: Seen,
    clock: Clock,
    settle_s: float,
    pids: Iterable[int],
    *,
    ended: bool,
    clean: bool,
) -> Dict[str, _Mark]:
    """The files to take now, with their marks; empty if none, and then `seen.state` says why."""
    now = clock.monotonic()
    units = _group(core, seen)
    _remember(root, seen, units, core, clock, ended=ended)
    if ended and seen._ended_at is None:
        seen._ended_at = now
    judged_at = seen._ended_at if ended and seen._ended_at is not None else now
    unfinished = _unfinished(units, seen)
    unfinished |= _going(units, unfinished, seen)
    chosen: Dict[str, _Mark] = {}
    for name, marks in units.items():
        if name not in unfinished:
            chosen.update(marks)
    if not chosen:
        seen.state = TORN if unfinished else EMPTY
        return {}
    if {path: mark[:2] for path, mark in chosen.items()} == seen.taken:
        seen.state = UNCHANGED
        return {}

    busy = _written(pids, root)
    newest = _newest(name for name in units if name not in unfinished)
    for name in [name for name in units if name not in unfinished]:
        marks, known = units[name], seen._units[name]
        quiet = judged_at - known.since + _ROUNDING_S
        settled = quiet >= settle_s or (ended and clean)
        named = judged_at - known.names_since + _ROUNDING_S >= settle_s or (ended and clean)
        alone = named and len(chosen) == 1 and _proves_itself(next(iter(marks)))
        ready = False
        if not (busy and busy.intersection(os.path.realpath(Path(root, path)) for path in marks)):
            if settled or (ended and name in newest):
                ready = all(_verdict(seen, root, p, m) is not False for p, m in marks.items())
            elif alone and (ended or quiet >= _TICK_S):
                ready = all(_verdict(seen, root, p, m) for p, m in marks.items())
        if ready:
            continue
        left = min(settle_s, _TICK_S if alone else settle_s) - quiet
        seen.wait_s = max(seen.wait_s, left if left > 0 else settle_s)
        seen.state = TORN if settled else SETTLING
        if not name:
            return {}
        unfinished.add(name)
        for path in marks:
            del chosen[path]
    if unfinished and not any(_unit(path, seen) for path in chosen):
        # without any of its numbered folders, what is left is not a checkpoint
        seen.state, seen.wait_s = SETTLING, seen.wait_s or settle_s
        return {}
    new = {path: mark[:2] for path, mark in chosen.items()}
    if new == seen.taken or (unfinished and new.items() <= seen.taken.items()):
        # a folder that is being deleted or rewritten is missing, and nothing has come instead
        seen.state = UNCHANGED
        return {}
    return chosen


def _group(core: _Found, seen: Seen) -> Dict[str, Dict[str, _Mark]]:
    for path in core:
        folder, _, name = path.rpartition("/")
        if name in _STEP_FILES and _STEP.fullmatch(folder.rpartition("/")[2]):
            seen._steps.add(folder)
    units: Dict[str, Dict[str, _Mark]] = {}
    for path, info in core.items():
        units.setdefault(_unit(path, seen), {})[path] = _mark(info)
    return units


def _unit(path: str, seen: Seen) -> str:
    """The numbered folder of one step that a file belongs to; "" for all others."""
    parts = path.split("/")[:-1]
    for index, part in enumerate(parts):
        folder = "/".join(parts[: index + 1])
        if _NUMBERED.fullmatch(part) or folder in seen._steps:
            return folder
    return ""


def _place(unit: str) -> str:
    return unit.rstrip("0123456789")


def _newest(units: Iterable[str]) -> Set[str]:
    """The folder of the highest number in each place. A killed rotation may have left half of an older one."""
    highest: Dict[str, str] = {}
    for unit in filter(None, units):
        place = _place(unit)
        highest[place] = max(highest.get(place, "0"), unit[len(place) :], key=int)
    return {place + number for place, number in highest.items()}


def _unfinished(units: Dict[str, Dict[str, _Mark]], seen: Seen) -> Set[str]:
    """The units that say of themselves that they are not ready."""
    names = {unit: {p[len(unit) :].lstrip("/") for p in marks} for unit, marks in units.items()}
    last = {unit for unit in units if unit and _any(names[unit], _LAST)}
    # in somebody's own checkpoint-5 there may never be a last file: only a Trainer's folder has to have one
    trainers = {unit for unit in units if unit and (last or _any(names[unit], _TRAINER))}
    marked = {unit for unit in units if any(n.endswith(_UNFINISHED) for n in names[unit])}
    committed = {unit for unit in units if unit and _STEP_FILES[1] in names[unit]}
    seen._saying.update(map(_place, committed))
    silent = {u for u in seen._steps.intersection(units) - committed if _place(u) in seen._saying}
    return (trainers - last - seen._steps) | marked | silent


def _going(units: Dict[str, Dict[str, _Mark]], unfinished: Set[str], seen: Seen) -> Set[str]:
    """Older numbered folders that lack what they had, or what the newest one has: a rotation deletes them.

    It may have been killed half way, and then nothing moves any more.
    """
    whole = [unit for unit in units if unit and unit not in unfinished]
    newest = {_place(unit): unit for unit in _newest(whole)}
    going = set()
    for unit in whole:
        first = newest[_place(unit)]
        names, those = ({p[len(u) :] for p in units[u]} for u in (unit, first))
        if unit != first and (unit in seen._shrunk or names < those):
            going.add(unit)
    return going


def _any(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def _remember(
    root: str,
    seen: Seen,
    units: Dict[str, Dict[str, _Mark]],
    core: _Found,
    clock: Clock,
    *,
    ended: bool,
) -> None:
    now = clock.monotonic()
    # the wall clock may jump: what it says of a file's age is believed within the time since the last look
    most = now if seen._looked_at is None else now - seen._looked_at
    looked: Dict[str, _Unit] = {}
    for name, marks in units.items():
        since = now
        if ended:
            # no look may have fallen between the last save and the end: then the kernel's stamp has to do,
            # the one that no copying tool can set
            folders = {os.path.dirname(os.path.join(root, path)) for path in marks}
            stamps = [max(core[p].st_ctime, core[p].st_mtime) for p in marks]
            since -= _age(clock, stamps + [os.stat(folder).st_mtime for folder in folders], most)
        fresh = _Unit(frozenset(marks), since, frozenset(marks.items()), since)
        old = seen._units.get(name)
        if old and old.names == fresh.names:
            fresh.names_since = old.names_since
        elif old and old.names > fresh.names:
            seen._shrunk.add(name)
        elif old:
            seen._shrunk.discard(name)
        if old and old.marks == fresh.marks:
            fresh.since = old.since
        looked[name] = fresh
    before = {name: unit.marks for name, unit in seen._units.items()}
    if core and {name: unit.marks for name, unit in looked.items()} != before:
        seen.changed_at = now - _age(clock, (info.st_mtime for info in core.values()), most)
    seen._units, seen._looked_at = looked, now
    seen._verdicts = {p: v for p, v in seen._verdicts.items() if p in core}


def _age(clock: Clock, stamps: Iterable[float], most: float) -> float:
    return min(max(0.0, clock.time() - max(stamps)), most)


def _verdict(seen: Seen, root: str, path: str, mark: _Mark) -> Optional[bool]:
    known = seen._verdicts.get(path)
    if not known or known[0] != mark:
        known = seen._verdicts[path] = (mark, complete(Path(root, path)))
    return known[1]


def _proves_itself(path: str) -> bool:
    return os.path.splitext(path)[1].lower() not in _WHOLE_MIDWAY


def _mark(info: os.stat_result) -> _Mark:
    return (info.st_size, info.st_mtime_ns, info.st_ino)


def _written(pids: Iterable[int], root: str) -> Set[str]:
    """Files below `root` that one of these processes has open for writing; Linux only, as far as it lets us look."""
    busy: Set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError, ValueError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith(root + os.sep) and _writable(f"/proc/{pid}/fdinfo/{name}"):
                        busy.add(target)
    return busy


def _writable(fdinfo: str) -> bool:
    with open(fdinfo, encoding="ascii") as file:
        for line in file:
            if line.startswith("flags:"):
                return bool(int(line.split()[1], 8) & (os.O_WRONLY | os.O_RDWR))
    return False


def _steady(path: str) -> str:
    """The path whatever the number of its step."""
    return _NUMBER.sub("0", path)


def _written_once(path: str, mark: _Mark, seen: Seen) -> bool:
    """By its name, or because it was replaced by another file before."""
    if _steady(path) in seen._rewritten:
        return False
    return bool(_ONCE.fullmatch(path)) or (path in seen._last and seen._last[path][2] != mark[2])


def _room(stage: Path, size: int, *, spare: bool) -> bool:
    stage.parent.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(stage.parent).free >= size * (2 if spare else 1)


def _check_room(stage: Path, size: int, *, spare: bool) -> None:
    if not _room(stage, size, spare=spare):
        free = shutil.disk_usage(stage.parent).free
        detail = f"a copy of {size / 1e6:.0f} MB"
        detail += ", and as much for the job's next save," if spare else ""
        raise NoRoom(
            errno.ENOSPC, f"{detail} needs more than the {free / 1e6:.0f} MB that are free"
        )


def check_room(taken: Snapshot) -> None:
    """NoRoom if the disk runs full while this snapshot holds files that the job has deleted."""
    free = shutil.disk_usage(taken.folder).free
    if free < max(_LEAST_FREE, min(_MOST_FREE, taken.size // 4)):
        held = sum(i.size for i in taken.items if i.mark and os.stat(i.source).st_nlink == 1)
        if held:
            detail = f"{held / 1e6:.0f} MB of a checkpoint that is still being sent were given up,"
            detail += f" for only {free / 1e6:.0f} MB are free"
            raise NoRoom(errno.ENOSPC, detail)


def _stage(root: str, stage: Path, files: _Found, copied: Set[str]) -> Tuple[Item, ...]:
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    items = []
    for path, info in sorted(files.items()):
        source, target = os.path.join(root, path), stage / path
        target.parent.mkdir(parents=True, exist_ok=True)
        mark = None
        if journal(path):
            _copy_beginning(source, target, info.st_size)
        elif path not in copied and _link(source, target):
            mark = _mark(info)
        else:
            shutil.copyfile(source, target)
        size = target.stat().st_size
        items.append(Item(path, target, size, info.st_mtime_ns, stat.S_IMODE(info.st_mode), mark))
    return tuple(items)


def _link(source: str, target: Path) -> bool:
    """False: another file system, or one without links."""
    try:
        # the file that a symbolic link leads to, not the link
        os.link(os.path.realpath(source), target)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _copy_beginning(source: str, target: Path, size: int) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while size > 0:
            chunk = reader.read(min(size, 1 << 20))
            if not chunk:
                return
            size -= len(chunk)
            writer.write(chunk)

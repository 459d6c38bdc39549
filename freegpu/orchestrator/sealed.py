"""Sessions that cannot open the store: what goes in with their launch, and what of their output is taken home.

Their agent works on a folder laid out like the store, so it and the protocol know nothing of this. `pack` lays such a
folder out from the store before the launch; `unpack` takes what came back into the store, and only what this session
may write: everything in it is then read, verified and judged as if the agent had written it there itself.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from freegpu.agent import stores, wire
from freegpu.agent.stores.base import ObjectMissing, Store
from freegpu.errors import ObjectMissingError
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import read_manifest
from freegpu.orchestrator.model import Attempt, Session

__all__ = ["IDLE_S", "Unpacked", "coming", "forget", "going", "pack", "unpack"]

#: how long such an agent stays when its tickets are done: no further one can come, seconds
IDLE_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Unpacked:
    """What was taken into the store."""

    files: int
    size: int
    #: files that this session has no business to write, by name; they were left
    refused: tuple[str, ...]


def going(home: Path, session: str) -> Path:
    """Where the tree of a launch lies until it is on its way."""
    return home / "sessions" / wire.check_name(session) / "going"


def coming(home: Path, session: str) -> Path:
    """Where the output of a session is brought."""
    return home / "sessions" / wire.check_name(session) / "coming"


def forget(home: Path, session: str) -> None:
    """Remove both folders; what mattered lies in the store."""
    for folder in (going(home, session), coming(home, session)):
        shutil.rmtree(folder, ignore_errors=True)


def pack(store: Store, ledger: Ledger, session: Session, home_id: str, into: Path) -> Path:
    """Lay out what this session needs: its tickets, its jobs' code, and the checkpoints that they begin from.

    ObjectMissingError: something of that is not in the store. StoreError: the store cannot be read.
    """
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(mode=0o700, parents=True)
    (into / "freegpu.json").write_bytes(wire.canonical({"format": stores.FORMAT, "home": home_id}))
    for key in _keys(store, ledger, session):
        target = into / key
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            store.fetch(key, target)
        except ObjectMissing as error:
            raise ObjectMissingError(
                f"{key} is not in the store, and a session on {session.platform} needs it",
                hint="run `freegpu doctor`",
            ) from error
    return into


def _keys(store: Store, ledger: Ledger, session: Session) -> Iterator[str]:
    for seq in range(1, session.inbox_next):
        yield wire.inbox_key(session.id, seq)
    for attempt in ledger.attempts(session=session.id, open_only=True):
        job = ledger.job(attempt.job)
        if job.bundle:
            yield wire.input_key(job.bundle)
        base = job.checkpoint if attempt.base_epoch else None
        if base is None:
            continue
        manifest = read_manifest(store, base.key, base.sha256)
        if manifest is None:
            raise ObjectMissingError(
                f"the checkpoint {base.key} of {job.name} ({job.id}) is not in the store",
                hint="run `freegpu doctor`",
            )
        yield base.key
        yield from dict.fromkeys(part.key for part in manifest.blobs())


def unpack(came: Path, store: Store, session: Session, attempts: Sequence[Attempt]) -> Unpacked:
    """Take into the store what this session wrote. StoreError: the store cannot be written.

    Nothing is overwritten but the heartbeat: what lies there already was taken before, or is somebody else's.
    """
    allowed = re.compile("|".join(_mine(session, attempts)))
    files, size, refused = 0, 0, []
    for path, key in _files(came):
        if not allowed.fullmatch(key):
            refused.append(key)
            continue
        if key == wire.agent_beat_key(session.id):
            store.put(key, path.read_bytes())
        else:
            store.put_new(key, path)
        files, size = files + 1, size + path.stat().st_size
    return Unpacked(files=files, size=size, refused=tuple(sorted(refused)))


def _mine(session: Session, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Patterns of the keys that the agent of this session writes."""
    yield re.escape(wire.hello_key(session.id))
    yield re.escape(wire.agent_beat_key(session.id))
    yield re.escape(wire.outbox_key(session.id, 1)).replace("000001", r"\d{6,9}")
    for attempt in attempts:
        yield rf"attempts/{re.escape(attempt.id)}/(log/\d{{6,9}}\.txt|blobs/[0-9a-f]{{64}}|outputs\.json)"
        yield rf"jobs/{re.escape(attempt.job)}/checkpoints/{attempt.epoch:06d}-\d{{6,9}}\.json"


def _files(came: Path) -> Iterator[tuple[Path, str]]:
    """(file, key), manifests after blobs; links and whatever else is no plain file are passed over."""
    found = []
    for folder, folders, names in os.walk(came, followlinks=False):
        folders.sort()
        for name in names:
            path = Path(folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            found.append((path, path.relative_to(came).as_posix()))
    # as an agent would: first what is named, then what names it, and its events last
    order = {"attempts": 0, "jobs": 1, "sessions": 2}
    return iter(
        sorted(
            found, key=lambda f: (order.get(f[1].partition("/")[0], 3), "/blobs/" not in f[1], f[1])
        )
    )

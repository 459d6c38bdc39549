"""When a checkpoint of the running job is put into the store, and which of them stay there.

Decides the moment of each commit, the order of its writes (parts, manifest, event), how to go on after a
failure, and which of its own generations may go. Does not know whether anybody has verified them: that is
told by `acknowledge`. What lies in the store is known from this object's own memory, never from a listing.
Nothing here waits but for the store and the disk; `step` says when to call it again.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional, Set, Tuple

from freegpu.agent import snapshot as snapshots
from freegpu.agent import wire
from freegpu.agent.clock import Clock
from freegpu.agent.retention import surplus
from freegpu.agent.snapshot import Seen, Snapshot
from freegpu.agent.stores.base import Store, StoreError, StoreFull
from freegpu.agent.transfer import Known, Stopped, known_parts, thin_blobs, upload

_SETTLE_S = 2.0
_LEAST_SETTLE_S = 0.2
#: look for a change this often when one is due, seconds
_LOOK_S = 1.0
#: note the job's progress this often, seconds
_NOTE_S = 5.0
_MOST_BACKOFF_S = 30.0
_DISK_PAUSE_S = 30.0
#: look this often whether the disk runs full while a snapshot holds files, seconds
_GUARD_S = 0.25
#: looks in a row that found the folder moving, and seconds, until a person is told: a large save takes its time
_UNSTABLE_AFTER = (10, 30.0)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class _Pending:
    """A snapshot that is not yet in the store."""

    snapshot: Snapshot
    step: Optional[int]
    #: seconds that taking it took
    staging_s: float
    #: set when all its parts are put, right before it is put itself: it may be in the store then
    manifest: Optional[wire.Manifest] = None
    #: bytes that were put for it
    sent: int = 0


def _no_pids() -> Iterable[int]:
    return ()


def _blobs(known: Known) -> Dict[str, int]:
    """The blobs that these pieces lie in, and their sizes."""
    return {part.key: part.size for part in known.values()}


class Checkpointer:
    """Commits the checkpoints of one attempt. `step` and `final` may be called from a thread of their own."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ticket: wire.Run,
        folder: Path,
        stage: Path,
        base: Optional[wire.Manifest],
        post: Callable[[Dict[str, Any]], None],
        progress_step: Callable[[], Optional[int]],
        bandwidth: Optional[float] = None,
        pids: Callable[[], Iterable[int]] = _no_pids,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ticket = ticket
        self._folder = folder
        self._stage = stage
        self._base = base
        self._post = post
        self._progress_step = progress_step
        self._bandwidth = bandwidth
        self._pids = pids
        self._lock = threading.Lock()
        self._abandoned = False
        #: two saves in a hurry may lie closer together than the usual settle time
        self._settle_s = max(_LEAST_SETTLE_S, min(_SETTLE_S, ticket.checkpoint_every_s / 4))
        self._seen = Seen()
        if base is not None:
            self._seen.taken = {
                file.path: (file.size, file.mtime_ns)
                for file in base.files
                if not snapshots.journal(file.path)
            }
        self._notes: Deque[Tuple[float, int]] = deque(maxlen=4096)
        self._moving, self._moving_since = 0, 0.0
        self._disk_full = False
        self._progressed = False
        self._told: Set[str] = set()
        self._due = clock.monotonic()
        self._look_at = self._due
        self._retry_at = self._due
        self._backoff_s = 0.0
        self._pending: Optional[_Pending] = None
        self._counter = 0
        #: generations whose manifests are in the store, or may be
        self._there: Dict[int, wire.Manifest] = {}
        self._committed: List[int] = []
        self._acknowledged = 0
        #: the newest generation of which the store itself told the right digests, and the blobs that it told of
        self._stored, self._told_of = 0, set()  # type: int, Set[str]
        self._generation = 0
        self._last: Optional[Tuple[int, float]] = None
        self._upload_s = 0.0
        #: pieces of our own that are in the store, with their blobs, and foreign ones that somebody keeps for us
        self._own: Known = {}
        self._blobs: Set[str] = set()
        self._foreign: Known = {} if base is None else known_parts([base])
        #: blobs of which so little is needed that they are not referred to any more
        self._thin: Set[str] = set() if base is None else thin_blobs(base)
        self._garbage: List[str] = []
        shutil.rmtree(stage, ignore_errors=True)

    # --- what others ask ------------------------------------------------------------------------------

    @property
    def last_generation(self) -> int:
        """The newest generation in the store; 0: none yet."""
        return self._committed[-1] if self._committed else 0

    @property
    def last_size(self) -> int:
        """Bytes of the newest generation; 0: none yet."""
        return self._last[0] if self._last else 0

    @property
    def last_committed_age(self) -> Optional[float]:
        """Seconds since the job last changed what the newest generation holds; None: none yet."""
        return self._clock.monotonic() - self._last[1] if self._last else None

    @property
    def upload_seconds(self) -> float:
        """How long a commit takes, copy and upload, by the last ones; 0 before the first."""
        return self._upload_s

    @property
    def unconfirmed(self) -> int:
        """Checkpoints that nobody has verified, neither another reader nor the store's own digest."""
        verified = max(self._acknowledged, self._stored)
        ahead = sum(1 for generation in self._committed if generation > verified)
        return ahead + (self._pending is not None)

    @property
    def known(self) -> Known:
        """Pieces that need not be put again: for the outputs."""
        return {**self._foreign, **self._own}

    def acknowledge(self, generation: int) -> None:
        """The orchestrator has verified the checkpoints up to this generation. Never waits."""
        if self._acknowledged < generation <= self.last_generation:
            self._acknowledged = generation

    def abandon(self) -> None:
        """Nobody wants more of this attempt: the upload at work stops at its next part. Never waits."""
        self._abandoned = True

    # --- the machine ----------------------------------------------------------------------------------

    def step(self) -> float:
        """Do what is due; the seconds until something may be due again. Raises nothing of the store's or the disk's."""
        with self._lock:
            now = self._clock.monotonic()
            self._note(now)
            if self._abandoned:
                return _MOST_BACKOFF_S
            self._spare_disk()
            if now >= self._look_at and self._may_replace():
                self._look(now)
            if self._pending and self._clock.monotonic() >= self._retry_at:
                self._send()
            if not self._pending and self._clock.monotonic() >= self._retry_at:
                self._tidy()
            return self._wait()

    def final(self, *, clean: bool = True) -> bool:
        """The job has ended: commit what is complete now. One try; call it again after False.

        `clean`: it ended by itself and said that it saved. Otherwise a file may have been left half written,
        and only what had settled before its end, or is whole by its format, is taken; a notice tells of what
        is not. True: all that can ever be saved is in the store.
        """
        with self._lock:
            self._note(self._clock.monotonic())
            if not self._abandoned:
                self._take(ended=True, clean=clean)
            if self._pending and not self._abandoned:
                self._send()
            return not self._pending and not self._disk_full

    def _note(self, now: float) -> None:
        """What was reported when, to tell later which step a file belongs to that was saved in between."""
        step = self._progress_step()
        if step is not None and (not self._notes or self._notes[-1][1] != step):
            self._notes.append((now, step))

    def _step_at(self, moment: float) -> Optional[int]:
        found = None
        for noted, step in self._notes:
            if noted > moment:
                break
            found = step
        return found

    def _may_replace(self) -> bool:
        """The newest snapshot takes the place of an unsent one, unless that one is getting through."""
        return self._pending is None or not self._progressed

    def _wait(self) -> float:
        now = self._clock.monotonic()
        until = self._look_at
        if self._pending:
            until = self._retry_at
        elif self._garbage:
            until = min(until, self._retry_at)
        return min(_NOTE_S, max(0.0, until - now))

    # --- taking ---------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        if now < self._due:
            # the settle time runs before the due moment, not after it
            snapshots.look(self._folder, seen=self._seen, clock=self._clock)
            self._look_at = self._due
            return
        self._take(ended=False, clean=True)
        after = self._clock.monotonic()
        if self._seen.state == snapshots.TAKEN:
            self._due = now + self._ticket.checkpoint_every_s
            self._look_at = max(after, self._due - self._settle_s)
        elif self._disk_full:
            self._look_at = after + _DISK_PAUSE_S
        else:
            # a folder of very many files is looked at more rarely
            self._look_at = after + max(self._seen.wait_s or _LOOK_S, 50 * (after - now))

    def _take(self, *, ended: bool, clean: bool) -> None:
        began = self._clock.monotonic()
        self._counter += 1
        self._disk_full = False
        try:
            taken = snapshots.take(
                self._folder,
                self._stage / str(self._counter),
                clock=self._clock,
                settle_s=self._settle_s,
                seen=self._seen,
                pids=() if ended else self._pids(),
                ended=ended,
                clean=clean,
            )
        except OSError as error:
            self._disk_full = True
            self._seen.state = snapshots.TORN
            code = "disk_full" if error.errno in _DISK_FULL else "checkpoint_unreadable"
            self._no_room(error, code)
            return
        self._told -= {"disk_full", "checkpoint_unreadable", "checkpoint_no_room"}
        if taken is None:
            moving = self._seen.state in (snapshots.SETTLING, snapshots.TORN)
            self._moving = self._moving + 1 if moving else 0
            if self._moving <= 1:
                self._moving_since = began
            if moving and ended:
                self._tell(
                    "checkpoint_unstable", f"{self._ticket.checkpoint_path} was left half written"
                )
            elif (
                self._moving >= _UNSTABLE_AFTER[0]
                and began >= self._moving_since + _UNSTABLE_AFTER[1]
            ):
                what = "has not stood still, or is incomplete"
                detail = f"{self._ticket.checkpoint_path} {what}, in {self._moving} looks"
                self._tell("checkpoint_unstable", detail)
            return
        self._moving = 0
        self._told.discard("checkpoint_unstable")
        self._forget_pending()
        self._progressed = False
        self._pending = _Pending(
            snapshot=taken,
            step=self._step_at(taken.changed_at),
            staging_s=self._clock.monotonic() - began,
        )

    def _no_room(self, error: OSError, code: str) -> None:
        code = "checkpoint_no_room" if isinstance(error, snapshots.NoRoom) else code
        self._tell(code, f"the checkpoint could not be taken: {error.strerror or error}")

    def _spare_disk(self) -> None:
        """What waits for the store may hold what the job has deleted."""
        try:
            if self._pending:
                snapshots.check_room(self._pending.snapshot)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """The snapshot is void, or not to be had: take what is there now."""
        if isinstance(error, snapshots.NoRoom):
            self._no_room(error, "")
        self._forget_pending()
        self._seen.taken = {}
        self._back_off()

    def _forget_pending(self) -> None:
        if self._pending:
            if self._pending.manifest:
                # its manifest may be in the store: the number is used up, and it goes with the others
                self._generation = self._pending.manifest.generation
                self._there[self._generation] = self._pending.manifest
            shutil.rmtree(self._pending.snapshot.folder, ignore_errors=True)
        self._pending = None

    # --- sending --------------------------------------------------------------------------------------

    def _send(self) -> None:
        pending = self._pending
        if pending is None:
            return
        began, before = self._clock.monotonic(), len(self._own)
        try:
            manifest = pending.manifest or self._upload(pending)
            pending.manifest = manifest
            manifest = self._publish(pending, manifest)
        except Stopped:
            return
        except StoreError as error:
            if isinstance(error, StoreFull):
                self._tell("store_full", str(error))
            self._progressed = len(self._own) > before
            self._back_off()
            return
        except OSError as error:
            # the staging folder was tidied away, or what is linked there was written to, or the disk runs full
            self._give_up(error)
            return
        self._settle(pending, manifest, began)

    def _upload(self, pending: _Pending) -> wire.Manifest:
        known = self._reusable()
        before = _blobs(known)
        try:
            files = upload(
                self._store,
                self._ticket.attempt,
                pending.snapshot.items,
                known,
                clock=self._clock,
                bandwidth=self._bandwidth,
                should_stop=lambda: self._abandoned,
                guard=self._guard(pending.snapshot),
                lasting=self.known,
            )
        finally:
            mine = wire.attempt_blob_key(self._ticket.attempt, "")
            own = {piece: part for piece, part in known.items() if part.key.startswith(mine)}
            self._own.update(own)
            needed = _blobs(own)
            self._blobs.update(needed)
            pending.sent += sum(size for key, size in needed.items() if key not in before)
            # what was to be deleted and is needed again stays
            self._garbage = [key for key in self._garbage if key not in needed]
        return self._manifest(self._generation + 1, pending.step, files)

    def _guard(self, taken: Snapshot) -> Callable[[], None]:
        """Called for each piece: looks at the disk now and then."""
        looked = [self._clock.monotonic()]

        def look() -> None:
            now = self._clock.monotonic()
            if now >= looked[0] + _GUARD_S:
                looked[0] = now
                snapshots.check_room(taken)

        return look

    def _manifest(
        self, generation: int, step: Optional[int], files: Tuple[wire.File, ...]
    ) -> wire.Manifest:
        ticket, created = self._ticket, self._clock.time()
        return wire.Manifest(
            ticket.job, ticket.attempt, ticket.epoch, generation, step, created, files
        )

    def _reusable(self) -> Known:
        """The pieces that a new manifest may refer to: our own, and the foreign ones that must be kept for us.

        Those are the base's until the first acknowledgement, and then the acknowledged manifest's: the
        orchestrator may delete whatever else the base had.
        """
        if self._acknowledged:
            manifest = self._there.get(self._acknowledged)
            parts = known_parts([manifest] if manifest else [])
            self._foreign = {sha: part for sha, part in parts.items() if sha not in self._own}
        return {sha: part for sha, part in self.known.items() if part.key not in self._thin}

    def _publish(self, pending: _Pending, manifest: wire.Manifest) -> wire.Manifest:
        while True:
            data, key = manifest.to_bytes(), self._key(manifest.generation)
            if self._store.put_new(key, data) or self._store.get(key) == data:
                return manifest  # equal: an earlier try wrote it, and the answer was lost
            # something else bears this number, and is not touched
            self._generation = manifest.generation
            manifest = self._manifest(self._generation + 1, pending.step, manifest.files)
            pending.manifest = manifest

    def _settle(self, pending: _Pending, manifest: wire.Manifest, began: float) -> None:
        now = self._clock.monotonic()
        generation = manifest.generation
        self._generation = generation
        self._there[generation] = manifest
        self._committed.append(generation)
        self._last = (manifest.size, pending.snapshot.changed_at)
        self._thin = thin_blobs(manifest)
        took = pending.staging_s + now - began
        # the estimate rises at once and falls slowly: a deadline depends on it
        self._upload_s = max(took, (self._upload_s + took) / 2)
        self._backoff_s, self._retry_at = 0.0, now
        self._told.discard("store_full")
        self._pending = None
        shutil.rmtree(pending.snapshot.folder, ignore_errors=True)
        self._event(
            wire.CHECKPOINT,
            key=self._key(generation),
            sha256=wire.sha256(manifest.to_bytes()),
            generation=generation,
            step=manifest.step,
            size=manifest.size,
            age_s=round(now - pending.snapshot.changed_at, 3),
            sent=pending.sent,
            stored=self._read_back(manifest),
        )

    def _read_back(self, manifest: wire.Manifest) -> bool:
        """Whether the store itself told the right digest of all that was put, where it is one that can."""
        if not self._store.properties.server_digest:
            return False
        data = manifest.to_bytes()
        whole = wire.Part(self._key(manifest.generation), wire.sha256(data), len(data))
        named = {part.key: part for part in (whole, *manifest.blobs())}
        try:
            for key, part in named.items():
                if key not in self._told_of:
                    told = self._store.stat(key, digest=True)
                    if told is None or (told.size, told.sha256) != (part.size, part.sha256):
                        return False
        except StoreError:
            return False
        self._told_of = set(named)
        self._stored = manifest.generation
        return True

    def _back_off(self) -> None:
        self._backoff_s = min(_MOST_BACKOFF_S, max(1.0, 2 * self._backoff_s))
        self._retry_at = self._clock.monotonic() + self._backoff_s

    def _key(self, generation: int) -> str:
        return wire.checkpoint_key(self._ticket.job, self._ticket.epoch, generation)

    # --- deleting -------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Delete our own generations that may go: manifests first, then the parts that no other one names."""
        gone = surplus(
            self._there, self._committed, acknowledged=self._acknowledged, keep=self._ticket.keep
        )
        for generation in gone:
            del self._there[generation]
            self._garbage.append(self._key(generation))
        if gone:
            named = {part.key for left in self._there.values() for part in left.blobs()}
            self._own = {piece: p for piece, p in self._own.items() if p.key in named}
            self._garbage += sorted(self._blobs - named)
            self._blobs &= named
        while self._garbage:
            try:
                self._store.delete(self._garbage[0])
            except StoreError:
                self._back_off()
                return
            self._garbage.pop(0)

    # --- telling --------------------------------------------------------------------------------------

    def _tell(self, code: str, detail: str) -> None:
        """A notice, once an episode."""
        if code not in self._told:
            self._told.add(code)
            self._event(wire.NOTICE, code=code, detail=detail)

    def _event(self, kind: str, **body: Any) -> None:
        ticket = self._ticket
        names = {"job": ticket.job, "attempt": ticket.attempt, "epoch": ticket.epoch}
        self._post({"kind": kind, **names, **body})

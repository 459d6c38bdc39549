"""The store's side of one attempt: code and base in; checkpoints and outputs out.

Runs in its own thread, so that a slow store holds up neither the job nor the heartbeat. Decides how long it
tries and when it gives up. Does not know processes or deadlines: the attempt tells it when to finish, and by
when.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from freegpu.agent import transfer, wire
from freegpu.agent.checkpoint import Checkpointer
from freegpu.agent.clock import Clock
from freegpu.agent.outputs import collect_outputs
from freegpu.agent.stores.base import Store, StoreError
from freegpu.agent.transfer import Known, Stopped
from freegpu.agent.unpack import UnpackError, unpack

#: give up on a bundle or a base that is not whole after this many seconds
PATIENCE_S = 600.0
_BACKOFF_S = (0.5, 30.0)
#: a last checkpoint that cannot be taken although the store answers is given up after this many seconds
_FINAL_S = 60.0
#: how often a running attempt is looked at when nothing calls
_LOOK_S = 1.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

FETCHING, RESTORING, READY, SAVING, DONE = "fetching", "restoring", "ready", "saving", "done"


class Cargo:
    """`step` may be called by one thread only; the rest by any."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ticket: wire.Run,
        root: Path,
        *,
        source: Path,
        outputs: Path,
        stage: Path,
        checkpoints: Path,
        post: Callable[[str, Dict[str, Any]], object],
        notice: Callable[[str, str], None],
        progress_step: Callable[[], Optional[int]],
        bandwidth: Optional[float],
        pids: Callable[[], List[int]],
        changed: Callable[[], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._ticket = ticket
        self._root = root
        self._source = source
        self._output_folder = outputs
        self._stage = stage
        self._folder = checkpoints
        self._post = post
        self._notice = notice
        self._progress_step = progress_step
        self._bandwidth = bandwidth
        self._pids = pids
        self._changed = changed
        self._base: Optional[wire.Manifest] = None
        self._keeper: Optional[Checkpointer] = None
        self._watching = False
        self._finishing = False
        self._save = self._results_first = self._clean = False
        self._known: Known = {}
        self._deadline: Optional[float] = None
        self._saved = self._collected = False
        self._lost = ""
        self._confirmed = 0
        self._abandoned = self._clearing = False
        self._since: Optional[float] = None
        self._backoff = 0.0
        #: fetching, restoring, ready, saving or done
        self.phase = FETCHING
        #: why the attempt cannot begin; "" as long as it may
        self.refusal = ""
        #: what could not be brought home at the end; "" if nothing
        self.trouble = ""
        #: key and digest of the outputs' manifest, once it is in the store
        self.outputs: Optional[Dict[str, str]] = None

    # --- what the attempt asks -------------------------------------------------------------------------

    @property
    def base_step(self) -> Optional[int]:
        """The step of the checkpoint that was restored."""
        return self._base.step if self._base else None

    @property
    def unconfirmed(self) -> int:
        """Checkpoints that nobody else has verified yet."""
        return self._keeper.unconfirmed if self._keeper else 0

    @property
    def checkpoint(self) -> Dict[str, Any]:
        """For people: the newest generation in the store, how old its content is, and which one is confirmed."""
        keeper = self._keeper
        age = keeper.last_committed_age if keeper else None
        return {
            "generation": keeper.last_generation if keeper else 0,
            "age_s": None if age is None else round(age, 1),
            "confirmed": self._confirmed,
        }

    @property
    def upload_seconds(self) -> float:
        """How long the last checkpoint took to upload."""
        return self._keeper.upload_seconds if self._keeper else 0.0

    @property
    def results_missing(self) -> bool:
        """What the command left as its result is wanted, and not all of it is in the store."""
        return self._save and not self._collected

    def watch(self) -> None:
        """The command runs: look for checkpoints from now on."""
        self._watching = True

    def acknowledge(self, generation: int) -> None:
        """Checkpoints up to this generation are verified by another reader."""
        self._confirmed = max(self._confirmed, generation)

    def finish(
        self, *, save: bool, results_first: bool, clean: bool, deadline: Optional[float]
    ) -> None:
        """The command has ended: bring home what it left, until this monotonic time at the latest.

        save: False for what nobody wants any more. results_first: the outputs are the result. clean: the
        command said that it had saved.
        """
        self._save, self._results_first, self._clean = save, results_first, clean
        self._deadline = deadline
        self._finishing = True

    def abandon(self) -> None:
        """Nothing is wanted of this attempt."""
        self._abandoned = True
        if self._keeper:
            self._keeper.abandon()

    def clear(self) -> None:
        """The attempt is over: remove its folder, unless something in it never reached the store."""
        self._clearing = True

    # --- the machine -----------------------------------------------------------------------------------

    def step(self) -> Optional[float]:
        """Do one thing; the seconds until the next, None when nothing is left to do."""
        try:
            return self._step()
        except OSError as error:
            return self._failed_locally(error)

    def _step(self) -> Optional[float]:
        if self._clearing:
            if not self.trouble:
                shutil.rmtree(self._root, ignore_errors=True)
            return None
        if self._abandoned:
            self._enter(DONE)
        if self.phase == DONE or self.refusal:
            return _LOOK_S
        if self.phase == FETCHING:
            return self._try(self._fetch, "the code bundle")
        if self.phase == RESTORING:
            return self._try(self._restore, "the checkpoint to start from")
        if self._finishing:
            self._enter(SAVING)
            return self._finish()
        return self._keep()

    def _enter(self, phase: str) -> None:
        if self.phase != phase:
            self.phase, self._since, self._backoff = phase, None, 0.0
            self._changed()

    # --- in ----------------------------------------------------------------------------------------------

    def _try(self, what: Callable[[], None], name: str) -> float:
        """Once more until it works, or patience is over."""
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        try:
            what()
        except (StoreError, wire.Unreadable, Stopped) as error:
            if self._clock.monotonic() - self._since >= PATIENCE_S:
                self._refuse(f"{name} is not whole after {PATIENCE_S:.0f} s: {error}")
            return self._wait_longer()
        return 0.0

    def _wait_longer(self) -> float:
        self._backoff = min(_BACKOFF_S[1], max(_BACKOFF_S[0], self._backoff * 2))
        if self._deadline is None:
            return self._backoff
        return max(0.01, min(self._backoff, self._deadline - self._clock.monotonic()))

    def _refuse(self, detail: str) -> None:
        self.refusal = detail
        self._changed()

    def _fetch(self) -> None:
        digest = self._ticket.bundle
        self._source.mkdir(parents=True, exist_ok=True)
        if digest:
            archive = self._root / "bundle.tar.gz"
            _, found = self._store.fetch(wire.input_key(digest), archive)
            if found != digest:
                message = "it is torn, or still on its way"
                raise wire.Unreadable(message)
            try:
                unpack(archive, self._source)
            except UnpackError as error:
                self._refuse(f"the code bundle cannot be unpacked: {error}")
                return
            archive.unlink()
        self._enter(RESTORING)

    def _restore(self) -> None:
        base = self._ticket.base
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        if base is not None:
            manifest = transfer.read_manifest(self._store, base)
            transfer.download(
                self._store, manifest, self._folder, should_stop=lambda: self._abandoned
            )
            self._base = manifest
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keeper = Checkpointer(
            self._store,
            self._clock,
            self._ticket,
            self._folder,
            self._stage,
            self._base,
            self._event,
            self._progress_step,
            bandwidth=self._bandwidth,
            pids=self._pids,
        )
        self._enter(READY)

    def _event(self, body: Dict[str, Any]) -> None:
        self._post(body["kind"], {name: value for name, value in body.items() if name != "kind"})

    # --- out ---------------------------------------------------------------------------------------------

    def _keep(self) -> float:
        keeper = self._keeper
        if keeper is None:
            return _LOOK_S
        keeper.acknowledge(self._confirmed)
        if not self._watching:
            return _LOOK_S
        ahead = keeper.unconfirmed
        wait = keeper.step()
        if keeper.unconfirmed != ahead:
            self._changed()
        return min(wait, _LOOK_S)

    def _finish(self) -> float:
        """One try at what is missing, the more important first."""
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if self._too_late():
            return self._done(self.missing("the session's time was up"))
        steps = [self._save_checkpoint, self._save_outputs]
        try:
            for step in reversed(steps) if self._results_first else steps:
                if not step():
                    return self._wait_longer()
        except Stopped:
            return 0.0
        except (StoreError, wire.Unreadable):
            return self._wait_longer()
        return self._done(self._lost)

    def _save_checkpoint(self) -> bool:
        keeper = self._keeper
        if self._saved or not self._save or keeper is None:
            return True
        keeper.acknowledge(self._confirmed)
        self._saved = keeper.final(clean=self._clean)
        if not self._saved and self._hopeless():
            self._saved = True
            self._lost = "the last checkpoint could not be read whole"
        return self._saved

    def _hopeless(self) -> bool:
        """It is not the store that is away: there is something in the folder that cannot be saved."""
        waited = self._clock.monotonic() - (self._since or 0.0)
        if waited < _FINAL_S:
            return False
        try:
            return self._store.stat("freegpu.json") is not None
        except StoreError:
            return False

    def _save_outputs(self) -> bool:
        if self._collected or not self._save or self._keeper is None:
            return True
        self._known = self._known or dict(self._keeper.known)
        found = collect_outputs(
            self._store,
            self._ticket,
            self._source,
            self._output_folder,
            self._known,
            clock=self._clock,
            bandwidth=self._bandwidth,
            should_stop=self._too_late,
        )
        self.outputs = {"key": found[0], "sha256": found[1]} if found else None
        self._collected = True
        return True

    def _too_late(self) -> bool:
        late = self._deadline is not None and self._clock.monotonic() >= self._deadline
        return late or self._abandoned

    def missing(self, why: str) -> str:
        """What did not get home, for people."""
        if not self._save:
            return ""
        lacking = [] if self._saved else ["the last checkpoint"]
        lacking += [] if self._collected else ["the outputs"]
        return f"{' and '.join(lacking)} did not reach the store: {why}" if lacking else ""

    def _done(self, trouble: str) -> float:
        self.trouble = trouble
        self._enter(DONE)
        return _LOOK_S

    def _failed_locally(self, error: OSError) -> float:
        """The session's own disk: full, or the job removed what we need."""
        if error.errno in _NO_ROOM:
            self._notice("disk_full", str(error))
        if self.phase in (FETCHING, RESTORING):
            self._refuse(f"the session's disk does not take the job's files: {error}")
        elif self.phase == SAVING:
            return self._done(self.missing(str(error)))
        return self._wait_longer()

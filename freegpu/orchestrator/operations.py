"""What a user can ask for, one method each: the only door between the command line and the rest.

A Workspace is one home: its settings, ledger, store and platforms, each opened when it is first needed.
Methods return values of `views` and raise FreeGPUError; they print nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from freegpu.adapters import attended, registry, wrappers
from freegpu.agent import wire
from freegpu.agent.stores.base import Store, StoreError
from freegpu.clock import Clock, SystemClock, utc
from freegpu.config import Settings
from freegpu.errors import (
    ForeignStoreError,
    InvalidTransitionError,
    LedgerBusyError,
    NotReadyError,
    SharedStoreError,
)
from freegpu.jobs.lifecycle import AttemptEvent, AttemptState, EndReason, JobState, SessionState
from freegpu.jobs.model import JobSpec
from freegpu.orchestrator import agent_archive, asking, cells, invitations, reports, speeds
from freegpu.orchestrator.act import Identity
from freegpu.orchestrator.away import AwayStore
from freegpu.orchestrator.home import (
    NOTIFY_FILE,
    Holder,
    current_holder,
    home_key,
    make_home,
    orchestrator_lock,
    save_secrets,
    submission_lock,
)
from freegpu.orchestrator.invitations import Invitation
from freegpu.orchestrator.lanes import Lanes
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Goal, Job, NewJob, Snapshot, Waiting
from freegpu.orchestrator.reconcile import Reconciler
from freegpu.orchestrator.shared import entrust, hang_up, open_shared
from freegpu.orchestrator.views import (
    BundleInfo,
    CellMade,
    Check,
    DryRun,
    Garbage,
    Generations,
    Initialised,
    JobDetail,
    JobView,
    LogChunk,
    Pulled,
    PulledMatrix,
    Status,
    StoreReport,
    Submitted,
    Ticked,
    Why,
)
from freegpu.orchestrator.whereabouts import Whereabouts, this_machine

if TYPE_CHECKING:
    from freegpu.jobs.bundle import Plan
    from freegpu.jobs.spec import Loaded
    from freegpu.orchestrator.card_views import Cards
    from freegpu.orchestrator.connection import Connected, PlatformConnected
    from freegpu.orchestrator.foresight import Ahead
    from freegpu.orchestrator.foresight import Plan as Foreseen
    from freegpu.orchestrator.matrix_results import Results
    from freegpu.orchestrator.model import Balance
    from freegpu.orchestrator.notify import Notifier
    from freegpu.orchestrator.record import Decision
    from freegpu.orchestrator.retrospect import Report

# `status` is typed all day and needs neither YAML nor archives: what only some commands need is imported by them.

#: ended jobs that `status` still shows
RECENT = 10
#: seconds between looks while following or waiting
LOOK_S = 0.5
#: seconds for which a store that could not be opened is not tried again by those who only look
AWAY_S = 20.0
#: an upload that began so many seconds ago and is not complete has lost its writer
UNFINISHED_S = 2 * 86400.0
#: how long a command waits for another command's tick to end before it goes on without
PATIENCE_S = 10.0


class Workspace:
    """One home, opened. Use as a context manager."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self._stack = contextlib.ExitStack()
        #: when the store could last not be opened, and why
        self._away: tuple[float, SharedStoreError] | None = None
        #: told (bytes done, bytes in all) while a large object is on its way
        self._moved: Callable[[int, int], None] = _unseen

    @classmethod
    def open(cls, settings: Settings, *, clock: Clock | None = None) -> Workspace:
        """Open (and on first use make) the home. ConfigError, LedgerError: it cannot be used."""
        make_home(settings.home)
        return cls(settings, clock or SystemClock())

    def close(self) -> None:
        """Close whatever was opened; twice is fine."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- parts, opened on use ---------------------------------------------------------------------------

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of this home."""
        ledger = Ledger.open(self.settings.db, clock=self.clock)
        self._stack.callback(ledger.close)
        return ledger

    @cached_property
    def home_id(self) -> str:
        """The name of this home in stores that it uses."""
        return self.ledger.meta("home") or self.ledger.set_meta(
            "home", f"h-{secrets.token_hex(6)}", if_absent=True
        )

    @cached_property
    def store(self) -> Store:
        """The shared store, checked to be ours."""
        try:
            store = open_shared(
                self.settings,
                self.ledger,
                self.home_id,
                progress=lambda key, done, total: self._moved(done, total),
            )
        except SharedStoreError as error:
            self._away = (self.clock.monotonic(), error)
            raise
        self._stack.callback(hang_up, store)
        return store

    @cached_property
    def adapters(self) -> dict[str, wrappers.Patient]:
        """One adapter a configured platform."""
        found: dict[str, wrappers.Patient] = {}
        registry.refuse_second_accounts(self.settings.platforms)
        for name, platform in self.settings.platforms.items():
            adapter = registry.create(
                name, platform.adapter, platform.options, home=self.settings.home, clock=self.clock
            )
            entrust(adapter, self.settings, self.ledger, name)
            found[name] = wrappers.wrap(adapter, clock=self.clock)
            self._stack.callback(adapter.close)
        self._admit_notebooks(found)
        return found

    def _admit_notebooks(self, found: dict[str, wrappers.Patient]) -> None:
        """Platforms that a cell was made for need no configuration; `up` may have begun before the cell was made."""
        for name in cells.known(self.ledger):
            if name not in found and name in attended.kinds():
                kind = attended.AttendedAdapter.from_options(
                    name, {}, home=self.settings.home, clock=self.clock
                )
                found[name] = wrappers.wrap(kind, clock=self.clock)

    @cached_property
    def identity(self) -> Identity:
        """Who we are, and the agent that we send out (laid into the store)."""
        identity = self._identity()
        with _store_errors():
            self.store.put_new(wire.agent_key(identity.agent_sha256), identity.agent_path)
        return identity

    def _identity(self) -> Identity:
        path, digest = agent_archive.build(self.settings.home / "cache")
        return Identity(
            home=self.settings.home,
            home_id=self.home_id,
            key=home_key(self.settings.home),
            agent_path=path,
            agent_sha256=digest,
        )

    @cached_property
    def reconciler(self) -> Reconciler:
        """What ticks."""
        return self._reconciler(self.store, self.identity)

    def _reconciler(self, store: Store, identity: Identity) -> Reconciler:
        return Reconciler(
            ledger=self.ledger,
            store=store,
            adapters=self.adapters,
            identity=identity,
            settings=self.settings,
            now=lambda: utc(self.clock),
            lanes=self.lanes,
        )

    @cached_property
    def lanes(self) -> Lanes:
        """Where platforms are asked beside each other."""
        lanes = Lanes()
        self._stack.callback(lanes.close)
        return lanes

    def _looking(self, problems: list[str]) -> Reconciler:
        """What looks: the reconciler, or while the store is away one that has the ledger and the platforms alone.

        That the store is away is added to `problems`.
        """
        away = None if "reconciler" in vars(self) else self._why_away()
        if away is None:
            return self.reconciler
        problems.append(str(away))
        return self._reconciler(AwayStore(str(away)), self._identity())

    def _why_away(self) -> SharedStoreError | None:
        """Why the store cannot be used now; None: it can. ForeignStoreError: it is somebody else's, which is no absence."""
        # a command that has just tried does not wait for a dead server twice
        if self._away is None or self.clock.monotonic() - self._away[0] >= AWAY_S:
            try:
                _ = self.identity
            except SharedStoreError as error:
                self._away = (self.clock.monotonic(), error)
            else:
                return None
        if isinstance(self._away[1], ForeignStoreError):
            raise self._away[1]
        return self._away[1]

    @cached_property
    def notifier(self) -> Notifier:
        """Tells people elsewhere what happened, beside the ticks."""
        from freegpu.orchestrator.notify import Notifier

        return Notifier(self.settings.home, self.settings.db, self.clock)

    def tell(self, *, finish: bool = False) -> None:
        """Send what the ticks of this process brought: in the background, or waiting some seconds for it."""
        if "notifier" in vars(self):  # else no tick had anybody to tell
            if finish:
                self.notifier.finish()
            else:
                self.notifier.start()

    def balances(self) -> list[Balance]:
        """Every pool of quota as the ledger has it now; asks no platform."""
        sessions = self.ledger.sessions(open_only=True)
        return [
            balance
            for name, adapter in self.adapters.items()
            for balance in self.reconciler.balances(name, adapter, sessions)
        ]

    @cached_property
    def whereabouts(self) -> Whereabouts:
        """Whether this is the machine where this home is at work."""
        return Whereabouts(
            home=self.settings.home,
            ledger=self.ledger,
            store=self.store,
            key=self.identity.key,
            now=lambda: utc(self.clock),
            machine=this_machine(self.settings.home),
        )

    # --- the tick ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def orchestrating(self, command: str) -> Iterator[Holder | None]:
        """Hold the orchestrator lock; yields who holds it if it is not us."""
        since = utc(self.clock).isoformat(timespec="seconds")
        with orchestrator_lock(self.settings.home, command=command, since=since) as holder:
            yield holder

    def tick_held(self) -> Ticked:
        """One tick by somebody who holds the lock. LedgerError: this home goes on elsewhere."""
        self.whereabouts.check()
        self._admit_notebooks(self.adapters)
        report = self.reconciler.tick()
        if (self.settings.home / NOTIFY_FILE).exists():
            from freegpu.orchestrator import notices

            clicks = [
                notices.attended(one.platform, one.url, one.sentence, worth=one.worth)
                for one in self._invitations(report.left, utc(self.clock))
                if one.pays
            ]
            self.notifier.note(self.balances, clicks)
        return Ticked(did=True, actions=report.actions, errors=report.problems)

    def _tick_to_the_end(self) -> Ticked:
        """One tick of a command that ends after it: what was begun and must not be cut off is waited for."""
        ticked = self.tick_held()
        while self.reconciler.lanes.busy:
            self.reconciler.lanes.finish()
            more = self.tick_held()
            ticked = Ticked(
                did=True,
                actions=(*ticked.actions, *more.actions),
                errors=tuple(dict.fromkeys((*ticked.errors, *more.errors))),
            )
        return ticked

    def tick(self, *, block: bool = False, command: str = "freegpu tick") -> Ticked:
        """One tick, unless somebody else is the orchestrator.

        `block`: if it is another command in the middle of its tick, wait for it; never for a daemon.
        """
        deadline = time.monotonic() + (PATIENCE_S if block else 0.0)
        while True:
            with self.orchestrating(command) as holder:
                if holder is None:
                    return self._tick_to_the_end()
            if "up" in holder.command.split() or time.monotonic() >= deadline:
                return Ticked(did=False, holder=str(holder))
            self.clock.sleep(0.05)

    def tick_if_needed(self) -> Ticked:
        """What every command does first: move things on if there is open work and nobody else does it."""
        holder = current_holder(self.settings.home)
        if holder is not None:
            return Ticked(did=False, holder=str(holder))
        counts = self.ledger.job_counts()
        if not counts.get(JobState.PENDING) and not self.ledger.sessions(open_only=True):
            return Ticked(did=False)
        return self.tick()

    # --- notebooks -------------------------------------------------------------------------------------------

    def cell(self, platform: str, *, store: str | None = None, fresh: bool = False) -> CellMade:
        """The agent cell for a platform. ConfigError: a cell cannot be made for it, or not with this store.

        `store`: its address as the notebook sees it; `fresh`: the platform's earlier cell stops working.
        """
        facts = cells.facts_of(platform, self.settings)
        configured = self.settings.platforms.get(platform)
        named = configured.store if configured is not None else ""
        seen = cells.seen_store(store or named or None, self.settings, facts)
        cell = cells.make(
            self.ledger,
            self.home_id,
            platform,
            seen,
            self.identity.agent_sha256,
            fresh=fresh,
        )
        body = cells.contents(
            cell, facts, self.store, self.settings, self.home_id, self.identity.key
        )
        return cells.view(cell, facts, body, self.identity.key)

    # --- asking for work --------------------------------------------------------------------------------

    def init(self, *, here: bool = False) -> Initialised:
        """Make the home ready: ledger, key, store, platforms. `here`: from now on it goes on at this machine."""
        created = not (self.settings.home / "key").exists()
        home_key(self.settings.home)
        _ = self.store
        if here:
            with _store_errors():
                self.whereabouts.go_on_here()
        return Initialised(
            home=str(self.settings.home),
            store=self.settings.store,
            db=self.settings.db,
            platforms=tuple(self.adapters),
            created=created,
        )

    def connect_store(
        self, url: str, *, force: bool = False, say: Callable[[str], None] = lambda step: None
    ) -> Connected:
        """Use this store from now on: check it, mark it, measure it, write it into freegpu.toml."""
        from freegpu.orchestrator import connection

        return connection.connect_store(self, url, force=force, say=say)

    def connect_platform(
        self,
        name: str,
        adapter: str,
        options: Mapping[str, Any],
        *,
        store: str | None = None,
        accept: Collection[str] = (),
    ) -> PlatformConnected:
        """Use this platform from now on: look at everything that it needs, then write it into freegpu.toml."""
        from freegpu.orchestrator import connection

        return connection.connect_platform(self, name, adapter, options, store=store, accept=accept)

    def doctor_store(self, say: Callable[[str], None] = lambda step: None) -> StoreReport:
        """Measure the store that is used, and say what that means for checkpoints."""
        from freegpu.orchestrator import checkup

        return checkup.store_report(self, say)

    def submit(
        self,
        path: str | Path,
        *,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str],
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> Submitted:
        """Read a job spec, pack its working folder, and put its jobs into the ledger. Does not tick.

        JobSpecError, WorkdirError, ForeignStoreError: nothing was submitted.
        """
        loaded = self._load(path, overrides, environ)
        # a store that is away comes back, and jobs may wait for it; one that is somebody else's does not become ours
        self._why_away()
        first = loaded.specs[0]
        with submission_lock(self.settings.home, alone=False):
            info, notices = self._pack(first, on_progress)
            ref = save_secrets(self.settings.home, loaded.secrets) if loaded.secrets else ""
            new = [
                NewJob(spec=replace(spec, secrets_ref=ref), bundle=info.sha256 if info else "")
                for spec in loaded.specs
            ]
            jobs = self.ledger.add_jobs(new, why="submitted")
        late = _too_late(first, utc(self.clock))
        return Submitted(jobs=tuple(jobs), notices=(*loaded.notices, *late, *notices), bundle=info)

    def _load(
        self, path: str | Path, overrides: Sequence[str], environ: Mapping[str, str]
    ) -> Loaded:
        from freegpu.jobs import spec as job_spec

        return job_spec.load(
            path,
            overrides=overrides,
            environ=environ,
            platforms=tuple(self.adapters),
        )

    def _plan(self, spec: JobSpec) -> Plan | None:
        from freegpu.jobs import bundle

        if not spec.workdir and not spec.file_mounts:
            return None
        return bundle.plan(
            spec.workdir,
            spec.file_mounts,
            limit=int(self.settings.workdir_limit_gb * 1e9),
            leave_out={
                str(self.settings.home): "the freegpu home itself",
                # a run by hand may have left one there, and a fresh job would resume from it
                str(Path(spec.workdir) / spec.checkpoint.path): "the checkpoint folder",
            },
        )

    def _pack(
        self, spec: JobSpec, on_progress: Callable[[str, int, int], None] | None
    ) -> tuple[BundleInfo | None, tuple[str, ...]]:
        plan = self._plan(spec)
        if plan is None:
            return None, ()
        from freegpu.jobs import bundle

        with tempfile.TemporaryDirectory(dir=self.settings.home, prefix=".bundle-") as folder:
            packed = bundle.write(plan, Path(folder) / "bundle.tar.gz")
            if on_progress is not None:
                on_progress("upload", 0, packed.size)
                self._moved = partial(on_progress, "upload")
            try:
                with _store_errors():
                    fresh = self.store.put_new(
                        wire.input_key(packed.sha256), Path(folder) / "bundle.tar.gz"
                    )
            finally:
                self._moved = _unseen
            if on_progress is not None:
                on_progress("upload", packed.size, packed.size)
        info = BundleInfo(
            sha256=packed.sha256, size=packed.size, files=packed.files, reused=not fresh
        )
        return info, tuple(map(str, plan.skipped))

    def dry_run(
        self, path: str | Path, *, overrides: Sequence[str] = (), environ: Mapping[str, str]
    ) -> DryRun:
        """What submit would do, and where the jobs would go; changes nothing. Errors as of `submit`."""
        from freegpu.orchestrator import drafts

        loaded = self._load(path, overrides, environ)
        plan = self._plan(loaded.specs[0])
        looking = self.reconciler
        snapshot, now = looking.snapshot(always=True), utc(self.clock)
        new = self._new(looking, loaded.specs, snapshot, now)
        needed = drafts.afters(self.ledger, loaded.specs, [job.id for job in new])
        held = [
            f"it begins when {' and '.join(spec.after)} {'have' if len(spec.after) > 1 else 'has'} succeeded;"
            " below stands where it would go now"
            for spec, job in zip(loaded.specs, new, strict=True)
            if needed[job.id]
        ]
        queue = replace(snapshot, waiting=(*snapshot.waiting, *new))
        decisions, actions = asking.foreseen(
            self.ledger, queue, frozenset(job.id for job in new), now
        )
        mine = [a for a in actions if any(placed.job in decisions for placed in a.placed)]
        requests: dict[str, Mapping[str, Any]] = {}
        for request in looking.rehearse(mine):
            requests.setdefault(*request)
        entries = plan.entries if plan else ()
        largest = sorted(((e.name, e.size) for e in entries), key=lambda e: (-e[1], e[0]))[:5]
        return DryRun(
            specs=loaded.specs,
            notices=(
                *loaded.notices,
                *dict.fromkeys(held),
                *_too_late(loaded.specs[0], now),
                *(map(str, plan.skipped) if plan else ()),
            ),
            files=plan.files if plan else 0,
            size=plan.size if plan else 0,
            largest=tuple(largest),
            decisions=tuple((job.name, decisions[job.id]) for job in new),
            requests=tuple(requests.items()),
        )

    def _new(
        self, looking: Reconciler, specs: Sequence[JobSpec], snapshot: Snapshot, now: datetime
    ) -> tuple[Waiting, ...]:
        """Jobs that are not submitted, at the end of the queue, with what is known of their namesakes."""
        after = max((job.seq for job in snapshot.waiting), default=0) + 1
        new = tuple(_as_waiting(spec, after + index, now=now) for index, spec in enumerate(specs))
        kin = {job.id: speeds.kin(spec.to_json(), "") for job, spec in zip(new, specs, strict=True)}
        return looking.with_learned_lengths(new, kin)

    def plan(
        self,
        paths: Sequence[str | Path],
        *,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str],
        goal: Goal | None = None,
        runs: int | None = None,
        on_run: Callable[[int, int], None] | None = None,
    ) -> Foreseen:
        """What would become of these jobs if they were submitted now; changes nothing. Errors as of `submit`.

        `runs`: how often the queue is run forward; None: as often as a queue of this length allows. `on_run` is told how
        many runs are done, of how many.
        """
        from freegpu.orchestrator import drafts, foresight

        specs = [spec for path in paths for spec in self._load(path, overrides, environ).specs]
        now = utc(self.clock)
        snapshot, _ = self._ahead(goal)
        after = max((job.seq for job in snapshot.waiting), default=0) + 1
        alone = [_as_waiting(spec, after + index, now=now) for index, spec in enumerate(specs)]
        new = drafts.waiting(self.ledger, specs, alone)
        named = drafts.matrices(zip((job.id for job in new), specs, strict=True))
        return foresight.plan(snapshot, new, now, runs=runs, groups=named, on_run=on_run)

    def simulate(
        self,
        weeks: int,
        *,
        goal: Goal | None = None,
        runs: int | None = None,
        on_run: Callable[[int, int], None] | None = None,
    ) -> Ahead:
        """The queue and the quotas run forward; changes nothing. `on_run` as of `plan`."""
        from freegpu.orchestrator import foresight

        snapshot, queued = self._ahead(goal)
        return foresight.ahead(
            snapshot, utc(self.clock), weeks, runs=runs, groups=queued, on_run=on_run
        )

    def _ahead(self, goal: Goal | None) -> tuple[Snapshot, dict[str, list[str]]]:
        """The whole queue, also what may not begin yet, and the matrices in it."""
        from freegpu.orchestrator import drafts, standing

        looking = self._looking([])
        snapshot = looking.snapshot(always=True)
        there = {job.id for job in snapshot.waiting} | {each.job.id for each in snapshot.running}
        active = self.ledger.jobs(states=[JobState.ACTIVE])
        rest = [self.ledger.as_waiting(job.id) for job in active if job.id not in there]
        held = [job for job in self.ledger.held(utc(self.clock)) if job.id not in there]
        more = looking.with_learned_lengths((*rest, *held))
        snapshot = replace(snapshot, waiting=(*snapshot.waiting, *more))
        now, open_ = utc(self.clock), self.ledger.sessions(open_only=True)
        known = {job.id for job in snapshot.waiting} | {each.job.id for each in snapshot.running}
        stands = [
            replace(each, jobs=tuple(job for job in each.jobs if job[1] in known))
            for each in standing.standing(self.ledger, open_, now)
        ]
        snapshot = replace(
            snapshot, standing=tuple(stands), start_s=standing.job_start(self.ledger)
        )
        ids = [*(job.id for job in snapshot.waiting), *(each.job.id for each in snapshot.running)]
        queued = drafts.matrices((id, spec) for id, _, spec in self.ledger.specs(ids))
        return (replace(snapshot, goal=goal) if goal else snapshot), queued

    def cancel(self, jobs: Sequence[str]) -> tuple[JobView, ...]:
        """Cancel jobs; running attempts are asked to stop by the next tick.

        The name of a matrix means its cells that are still open. Every id is resolved before the first is cancelled.
        InvalidTransitionError: one has ended already, or all cells of a matrix have.
        """
        found: dict[str, Job] = {}
        for text in jobs:
            named = self._to_cancel(text)
            if not named:
                raise InvalidTransitionError(
                    f"every job of {text.strip()} is over; there is nothing to cancel",
                    hint=f"`freegpu results {text.strip()}` shows what became of them",
                )
            for job in named:
                if job.state.final:
                    raise InvalidTransitionError(
                        f"{job.name} ({job.id}) is over ({job.state}); there is nothing to cancel",
                        hint="`freegpu jobs` shows what is still open",
                    )
            found |= {job.id: job for job in named}
        self.ledger.cancel_jobs(list(found), at=utc(self.clock))
        return self._views(found)

    def _to_cancel(self, text: str) -> list[Job]:
        """The job that is meant, or the cells of a matrix that are open, of all its submissions."""
        cells = self.ledger.cells(text.strip())
        if not cells:
            return [self.ledger.resolve(text)]
        return [job for job in cells if not job.state.final]

    def _views(self, ids: Collection[str]) -> tuple[JobView, ...]:
        """The jobs as they stand now."""
        return reports.job_views(self.ledger, self.ledger.jobs_of(ids))

    def lost_by_cancelling(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """What a person should know before: sentences about those of these jobs that run where nothing reaches them."""
        ids = {job.id for text in jobs for job in self._to_cancel(text)}
        sentences = []
        for job in sorted(ids):
            for attempt in self.ledger.attempts(job=job, open_only=True):
                session = self.ledger.session(attempt.session)
                if not session.offer.sealed or session.state is SessionState.PLANNED:
                    continue
                where = f"{attempt.id} runs on {attempt.platform} in a sealed session"
                beside = self.ledger.attempts(session=session.id, open_only=True)
                if all(
                    other.job in ids or other.state is AttemptState.STOPPING for other in beside
                ):
                    sentences.append(
                        f"{where}, which is ended there now: what it did since it began is deleted with it"
                    )
                else:
                    sentences.append(
                        f"{where} beside other jobs: it goes on until the session ends, and its result is not used"
                    )
        return tuple(sentences)

    def retry(self, job: str, *, from_scratch: bool = False) -> tuple[JobView, ...]:
        """Try a failed or cancelled job again, from its newest checkpoint unless `from_scratch`.

        The name of a matrix means those of its cells that have failed or were cancelled. InvalidTransitionError: there
        is none.
        """
        meant = self.ledger.meant(job)
        found = [one for one in meant if one.state in (JobState.FAILED, JobState.CANCELLED)]
        if not found:
            what = (
                f"{meant[0].name} ({meant[0].id}) is {meant[0].state}"
                if len(meant) == 1
                else f"no job of {job.strip()} has failed or was cancelled"
            )
            raise InvalidTransitionError(
                f"{what}; only failed and cancelled jobs are retried",
                hint="submit it again for a fresh run",
            )
        ids = [one.id for one in found]
        self.ledger.retry_jobs(ids, from_scratch=from_scratch)
        return self._views(ids)

    def interrupt(self, job: str) -> JobView:
        """Rehearse a preemption: the running attempt is asked to save and stop, and the job goes on elsewhere."""
        found = self.ledger.resolve(job)
        if found.state.final:
            raise InvalidTransitionError(
                f"{found.name} ({found.id}) is over ({found.state}); there is nothing to interrupt",
                hint="`freegpu jobs` shows what is still open",
            )
        open_attempts = self.ledger.attempts(job=found.id, open_only=True)
        if found.state is not JobState.ACTIVE or not open_attempts:
            raise NotReadyError(
                f"{found.name} ({found.id}) is {found.state}; only a running job can be interrupted",
                hint=f"`freegpu show {found.id}` tells where it stands",
            )
        if self.ledger.session(open_attempts[-1].session).offer.sealed:
            raise NotReadyError(
                f"{found.name} ({found.id}) runs on {open_attempts[-1].platform} in a session that nothing reaches"
                " until it ends; ending it now would lose its work",
                hint="wait, or cancel it",
            )
        if open_attempts[-1].state is not AttemptState.STOPPING:
            self.ledger.attempt_event(
                open_attempts[-1].id, AttemptEvent.STOP, stop_reason=EndReason.PREEMPTED
            )
        return self._view(self.ledger.job(found.id))

    # --- looking ----------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Platforms with quota, open sessions, open jobs and the last few that ended."""
        now = utc(self.clock)
        sessions = self.ledger.sessions(open_only=True)
        problems: list[str] = []
        looking = self._looking(problems)
        places = looking.places(sessions, problems)
        jobs = self.ledger.jobs(states=[JobState.PENDING, JobState.ACTIVE])
        ended = self.ledger.jobs(
            states=[s for s in JobState if s.final], limit=RECENT, newest_first=True
        )
        waits = any(job.state is JobState.PENDING for job in jobs)
        attended = any(place.capabilities.attended for place in places)
        snapshot = looking.snapshot(places=places) if waits or attended else Snapshot()
        reasons = asking.job_reasons(self.ledger, jobs, snapshot, now)
        started = asking.session_reasons(self.ledger, sessions)
        return Status(
            platforms=reports.platform_views(places, self.adapters, problems),
            sessions=reports.session_views(self.ledger, sessions, now, started),
            jobs=reports.job_views(self.ledger, [*jobs, *reversed(ended)], reasons),
            counts={str(state): count for state, count in self.ledger.job_counts().items()},
            orchestrator=str(current_holder(self.settings.home) or ""),
            problems=tuple(problems),
            invitations=self._invitations(snapshot, now) if attended else (),
        )

    def _invitations(self, snapshot: Snapshot, now: datetime) -> tuple[Invitation, ...]:
        urls = {
            name: adapter.inner.facts.url
            for name, adapter in self.adapters.items()
            if isinstance(adapter.inner, attended.AttendedAdapter)
        }
        return invitations.invitations(snapshot, now, urls)

    def jobs(
        self, states: Collection[JobState] | None = None, limit: int | None = None
    ) -> tuple[JobView, ...]:
        """Jobs, oldest first; with `limit` the newest ones."""
        found = self.ledger.jobs(states=states, limit=limit, newest_first=limit is not None)
        return reports.job_views(self.ledger, found[::-1] if limit is not None else found)

    def show(self, job: str) -> JobDetail:
        """Everything about one job."""
        found = self.ledger.resolve(job)
        return JobDetail(
            job=self._view(found),
            spec=found.spec,
            attempts=tuple(self.ledger.attempts(job=found.id)),
            checkpoints=tuple(self.ledger.checkpoints(found.id)),
            events=tuple(self.ledger.events(job=found.id)),
        )

    def cards(self, name: str | None, workload: str) -> Cards:
        """Cards with their speeds for a class of work; `name`: everything about one that the table finds."""
        from freegpu.orchestrator import card_views

        return card_views.look(self.ledger, name, workload)

    def results(self, name: str, *, everything: bool = False) -> Results:
        """What the cells of a matrix came to."""
        from freegpu.orchestrator import matrix_results

        now = utc(self.clock)
        return matrix_results.collect(self.ledger, name.strip(), now, everything=everything)

    def report(self, weeks: int) -> Report:
        """What the last weeks brought, as far as the ledger holds it."""
        from freegpu.orchestrator import retrospect

        now = utc(self.clock)
        windows = {name: adapter.windows for name, adapter in self.adapters.items()}
        at_once = {n: adapter.capabilities.max_concurrent for n, adapter in self.adapters.items()}
        since = now - timedelta(weeks=weeks)
        return retrospect.look_back(self.ledger, windows, since, now, at_once)

    def why(self, job: str, *, now: bool = False) -> Why:
        """Why a job is where it is: the record of the decision that placed it, and for one that waits what holds now.

        `now`: what holds now for a job that runs or has ended, too.
        """
        found, moment = self.ledger.resolve(job), utc(self.clock)
        pending = found.state is JobState.PENDING
        kept = asking.placed(self.ledger, [found.id]).get(found.id)
        present: Decision | None = None
        clicks: tuple[Invitation, ...] = ()
        click = None
        if pending or now:
            looking = self._looking([])
            snapshot = looking.snapshot(always=True)
            snapshot = asking.with_job(looking, self.ledger, snapshot, found)
            present = asking.foreseen(self.ledger, snapshot, (found.id,), moment)[0][found.id]
            mine = tuple(waiting for waiting in snapshot.waiting if waiting.id == found.id)
            if pending:
                clicks = self._invitations(replace(snapshot, waiting=mine), moment)
                click = invitations.for_job(mine[0], clicks)
        gave = asking.gave_way(self.ledger, found.id) if pending else None
        return Why(
            job=self._view(found),
            sentence=reports.sentence(self.ledger, found, present, moment, click),
            attempt=kept.attempt if kept else "",
            placed=kept.decision if kept else None,
            gave_way=f"{gave.attempt} gave up its slot: {gave.message}" if gave else "",
            now=present,
            invitations=clicks,
        )

    def log_chunks(
        self, job: str, *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[LogChunk]:
        """A job's output; with `follow` over all hops until it is over, ticking if nobody else does."""
        found = self.ledger.resolve(job)
        if attempt is not None and not 1 <= attempt <= max(1, found.attempts):
            raise NotReadyError(
                f"{found.name} ({found.id}) has {found.attempts} attempts; there is no attempt {attempt}",
                hint=f"`freegpu show {found.id}` lists them",
            )
        from freegpu.orchestrator import results

        return results.log_chunks(
            self.ledger,
            self.store,
            found.id,
            number=attempt,
            follow=follow,
            pause=self._pause,
        )

    def _pause(self) -> None:
        self.clock.sleep(LOOK_S)
        with contextlib.suppress(LedgerBusyError):
            self.tick_if_needed()

    def wait(
        self, jobs: Sequence[str], *, on_change: Callable[[JobView], None] | None = None
    ) -> tuple[JobView, ...]:
        """Wait until all these jobs are over, ticking if nobody else does.

        NotReadyError: one of them comes after a job that has failed or was cancelled, so it would wait for ever.
        """
        ids = [self.ledger.resolve(job).id for job in jobs]
        last: dict[str, str] = {}
        while True:
            self.tick_if_needed()
            found = [self.ledger.job(job) for job in ids]
            for job in found:
                if last.get(job.id) != f"{job.state} {job.why}":
                    last[job.id] = f"{job.state} {job.why}"
                    if on_change is not None:
                        on_change(self._view(job))
            if all(job.state.final for job in found):
                return reports.job_views(self.ledger, found)
            self._refuse_endless(found)
            self.clock.sleep(LOOK_S)

    def _refuse_endless(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            for other in self.ledger.unmet(job.id) if job.state is JobState.PENDING else ():
                if other.state in (JobState.FAILED, JobState.CANCELLED):
                    became = "was cancelled" if other.state is JobState.CANCELLED else "has failed"
                    raise NotReadyError(
                        f"{job.name} ({job.id}) waits for {other.name} ({other.id}), which {became}",
                        hint=f"`freegpu retry {other.id}` lets both go on",
                    )

    # --- bringing and cleaning --------------------------------------------------------------------------

    def pull(self, job: str, into: Path, *, force: bool = False) -> Pulled:
        """Bring a job's outputs into a folder, verified. NotReadyError: there are none yet."""
        found = self.ledger.resolve(job)
        from freegpu.orchestrator import results

        attempt, key, digest, partial = results.choose_outputs(
            found, self.ledger.attempts(job=found.id)
        )
        files, size = results.bring(self.store, key, digest, into, force=force)
        return Pulled(
            job=self._view(found),
            attempt=attempt,
            files=files,
            size=size,
            into=into,
            partial=partial,
        )

    def pull_matrix(
        self, name: str, into: Path | None, *, force: bool = False
    ) -> PulledMatrix | None:
        """Bring the outputs of all cells of a matrix, a folder each; None: no matrix has this name. NotReadyError."""
        from freegpu.orchestrator import matrix_pull

        return matrix_pull.pull(self.ledger, lambda: self.store, name.strip(), into, force=force)

    def checkpoints(self, job: str) -> Generations:
        """Every checkpoint of a job that the ledger or the store knows of. SharedStoreError."""
        found = self.ledger.resolve(job)
        from freegpu.orchestrator import results

        listed = results.generations(self.ledger, self.store, found.id)
        return Generations(job=self._view(found), checkpoints=listed)

    def pull_checkpoint(
        self, job: str, into: Path | None, *, which: str = "latest", force: bool = False
    ) -> Pulled:
        """Bring a confirmed checkpoint's files into a folder of their own, verified. NotReadyError: there is none."""
        found = self.ledger.resolve(job)
        from freegpu.orchestrator import results

        chosen = results.choose_checkpoint(found, self.ledger.checkpoints(found.id), which)
        name = f"{chosen.epoch}-{chosen.generation}"
        into = into or Path(f"{found.id}-checkpoint-{name}")
        files, size = results.bring_checkpoint(self.store, chosen, into, force=force)
        return Pulled(
            job=self._view(found),
            attempt=chosen.attempt,
            files=files,
            size=size,
            into=into,
            partial=False,
            checkpoint=name,
        )

    def gc(self, *, dry_run: bool, keep_days: float = 7.0) -> Garbage:
        """Delete what nothing refers to. LedgerBusyError: an orchestrator is at work; stop it first."""
        with self.orchestrating("freegpu gc") as holder:
            if holder is not None and not dry_run:
                raise LedgerBusyError(
                    f"{holder} is the orchestrator of this home; gc must be alone",
                    hint="stop it, or try again in a moment",
                )
            with submission_lock(self.settings.home, alone=True), _store_errors():
                return self._gc(dry_run=dry_run, keep_days=keep_days)

    def _gc(self, *, dry_run: bool, keep_days: float) -> Garbage:
        from freegpu.orchestrator.collect import Collector, remove_tree, tree_size

        collector = Collector(
            ledger=self.ledger,
            store=self.store,
            home=self.settings.home,
            now=utc(self.clock),
            keep_days=keep_days,
            agents=frozenset(
                [
                    self.identity.agent_sha256,
                    *(cell.agent_sha256 for cell in cells.known(self.ledger).values()),
                ]
            ),
        )
        everything = len(self.store.list(""))
        deleted = []
        planned = collector.plan()
        if not dry_run:
            # first the ledger forgets them: a checkpoint that it knows must be there
            collector.finish()
        for key, why in planned:
            stat = self.store.stat(key)
            if stat is None:
                continue
            if not dry_run:
                self.store.delete(key)
            deleted.append((key, stat.size, why))
        sweep = getattr(self.store, "sweep", None)
        if sweep is not None and not dry_run and (swept := sweep(UNFINISHED_S)):
            deleted.append((f"{swept} unfinished uploads", 0, "begun long ago and never completed"))
        for folder, why in list(collector.local_leftovers()):
            size = tree_size(folder)
            if not dry_run:
                remove_tree(folder)
            deleted.append((str(folder), size, why))
        return Garbage(
            deleted=tuple(deleted),
            freed=sum(size for _, size, _ in deleted),
            kept=everything - len(planned),
            dry_run=dry_run,
        )

    def doctor(self, platform: str | None = None) -> tuple[Check, ...]:
        """What is installed, reachable and configured, and what to do about the rest. Never raises for a finding."""
        from freegpu.orchestrator import checkup

        return checkup.run(self, platform)

    def _view(self, job: Job) -> JobView:
        return reports.job_views(self.ledger, [job])[0]


def _as_waiting(spec: JobSpec, seq: int, *, now: datetime) -> Waiting:
    """A job that is not submitted, as if it waited."""
    return Waiting(
        id=f"new-{seq}",
        seq=seq,
        name=spec.name,
        needs=spec.needs,
        estimate=spec.estimate,
        priority=spec.priority,
        deadline=spec.deadline,
        created_at=now,
        grace_s=spec.checkpoint.grace_s,
    )


def _too_late(spec: JobSpec, now: datetime) -> tuple[str, ...]:
    """A deadline that has passed hurries nobody any more, and is mostly a slip of the year or the zone."""
    if spec.deadline is None or spec.deadline > now:
        return ()
    return (f"freegpu.deadline {spec.deadline.isoformat()} has passed already",)


def _unseen(done: int, total: int) -> None:
    """Nobody watches."""


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """The store's exceptions as ours."""
    try:
        yield
    except StoreError as error:
        raise SharedStoreError(str(error), hint="run `freegpu doctor`") from error

"""The ledger: what freegpu knows and has decided, durable before anything else happens.

Decides: that every change is one short guarded transaction with its line in the audit. Reads go to
`reader`, over the plain DB-API; writes to `ledger_jobs`, `ledger_sessions` and `ledger_attempts`, which
import SQLModel and are loaded at the first write. Times are aware UTC; a naive one is a ValueError.

Any method may raise LedgerError (unreadable, read-only, full), LedgerBusyError (another process holds it for
too long) or LedgerCorruptError; a method that fails has changed nothing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from freegpu.adapters.base import Offer
from freegpu.clock import Clock
from freegpu.errors import FreeGPUError
from freegpu.jobs.lifecycle import AttemptEvent, EndReason, SessionEvent
from freegpu.jobs.retry import Verdict
from freegpu.orchestrator import migrations
from freegpu.orchestrator.database import check_file, named, note_opened, parse, refuse_absent
from freegpu.orchestrator.model import (
    Attempt,
    Checkpoint,
    EntryKind,
    Job,
    NewJob,
    Session,
)
from freegpu.orchestrator.reader import Reader

if TYPE_CHECKING:
    from freegpu.orchestrator.database import Target
    from freegpu.orchestrator.writing import Writer, Writing


class Ledger(Reader):
    """One open ledger, for reading and writing; may be used from several threads."""

    def __init__(self, target: Target, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(target)
        self._clock = clock
        self._rng = rng
        self._writer: Writer | None = None

    @classmethod
    def open(
        cls, url: str, *, clock: Clock, create: bool = True, rng: random.Random | None = None
    ) -> Ledger:
        """Open the ledger at a path, sqlite:/// or postgresql:// URL, and bring its schema up to date.

        With `create` an absent or empty one is made, and one that cannot be written is refused at once;
        without, a read-only one may be read. ConfigError: no such kind of URL. SchemaVersionError: a newer
        freegpu wrote it. LedgerCorruptError: damaged, or something else. LedgerError: all the rest.
        """
        target = parse(url)
        ledger = cls(target, clock=clock, rng=rng or random.SystemRandom())
        try:
            there = check_file(target.path, create=create) if target.path else True
            version = ledger.version() if there else 0
            if version == 0 and not create:
                refuse_absent(target.shown)
            if version < migrations.VERSION:
                ledger.close()
                migrations.migrate(target)
                if target.path:
                    note_opened(target.path)
        except FreeGPUError:
            ledger.close()
            raise
        except Exception as error:
            ledger.close()
            raise named(error, target) from error
        return ledger

    def close(self) -> None:
        """Let go of the database; closing twice is fine."""
        super().close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shown(self) -> str:
        """Where it lies, without passwords."""
        return self._target.shown

    # --- writes: jobs -------------------------------------------------------------------------------

    def set_meta(self, key: str, value: str, *, if_absent: bool = False) -> str:
        """Set a fact; the value that holds now. With `if_absent` the first one to set it wins."""
        from freegpu.orchestrator.tables import MetaRow

        with self._write() as w:
            found = w.session.get(MetaRow, key)
            if found is not None and (if_absent or found.value == value):
                return str(found.value)
            w.session.merge(MetaRow(key=key, value=value))
            w.record("meta.set", key)
        return value

    def swap_meta(self, key: str, expected: str | None, value: str) -> bool:
        """Set a fact if it still is `expected` (None: not set); whether it was. Leaves no line in the audit."""
        from freegpu.orchestrator.tables import MetaRow

        with self._write() as w:
            found = w.session.get(MetaRow, key)
            if (None if found is None else found.value) != expected:
                return False
            w.session.merge(MetaRow(key=key, value=value))
        return True

    def bind_account(self, platform: str, account: str) -> None:
        """Use the platform with this account from now on. LedgerError while the one before it is in use."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            ledger_sessions.rebind(w, platform, account)

    def add_jobs(self, new: Sequence[NewJob], *, why: str) -> list[Job]:
        """Submit all of them or none.

        `after` names become ids: every job of that name in this batch, else that id, else what was submitted last of
        that name, a job or all cells of a matrix. JobNotFoundError: there is none; JobSpecError: they wait in a circle.
        """
        from freegpu.orchestrator import ledger_jobs

        with self._write() as w:
            ids = ledger_jobs.add(w, new, why=why)
        wanted = set(ids)
        found = self.jobs(limit=len(ids), newest_first=True)
        by_id = {job.id: job for job in found if job.id in wanted}
        return [by_id.get(job_id) or self.job(job_id) for job_id in ids]

    def bump_epoch(self, job_id: str) -> int:
        """A new epoch of the job, durable on return: for tickets that fence without an attempt."""
        from freegpu.orchestrator import ledger_jobs

        with self._write() as w:
            return ledger_jobs.bump_epoch(w, job_id)

    def cancel_job(self, job_id: str, *, at: datetime) -> Job:
        """CANCELLED, its open attempts STOPPING. Twice is fine; InvalidTransitionError if it has ended."""
        self.cancel_jobs([job_id], at=at)
        return self.job(job_id)

    def cancel_jobs(self, ids: Sequence[str], *, at: datetime) -> None:
        """The same for several, all of them or none."""
        from freegpu.orchestrator import ledger_jobs

        with self._write() as w:
            for job_id in ids:
                ledger_jobs.cancel(w, job_id, at=at)

    def retry_job(self, job_id: str, *, from_scratch: bool) -> Job:
        """FAILED or CANCELLED -> PENDING, counts reset. InvalidTransitionError in any other state."""
        self.retry_jobs([job_id], from_scratch=from_scratch)
        return self.job(job_id)

    def retry_jobs(self, ids: Sequence[str], *, from_scratch: bool) -> None:
        """The same for several, all of them or none."""
        from freegpu.orchestrator import ledger_jobs

        with self._write() as w:
            for job_id in ids:
                ledger_jobs.retry(w, job_id, from_scratch=from_scratch)

    def avoid(self, job_id: str, platform: str, why: str, until: datetime) -> None:
        """Keep the job away from the platform until then."""
        from freegpu.orchestrator import ledger_jobs

        with self._write() as w:
            ledger_jobs.avoid(w, job_id, platform, why, until)

    def note_speed(
        self,
        *,
        job: str,
        card: str,
        workload: str,
        steps_per_s: float,
        at: datetime,
        span_s: float = 0.0,
    ) -> None:
        """Remember how fast the job went on that card; `span_s`: over how many seconds that was seen, 0: not known."""
        from freegpu.orchestrator import ledger_jobs

        with self._write() as w:
            ledger_jobs.note_speed(
                w,
                job=job,
                card=card,
                workload=workload,
                steps_per_s=steps_per_s,
                at=at,
                span_s=span_s,
            )

    def record(
        self,
        action: str,
        message: str,
        *,
        job: str = "",
        attempt: str = "",
        session: str = "",
        platform: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a line to the audit."""
        with self._write() as w:
            w.record(
                action,
                message,
                job=job,
                attempt=attempt,
                session=session,
                platform=platform,
                data=data,
            )

    # --- writes: sessions and quota -----------------------------------------------------------------

    def plan_session(
        self,
        *,
        platform: str,
        account: str,
        offer: Offer,
        limit_s: float | None,
        reserve_s: float,
        jobs: Sequence[tuple[str, int]],
        why: str,
        id: str | None = None,
        decisions: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> tuple[Session, list[Attempt]]:
        """A PLANNED session with its reserve, and an attempt with a new epoch for each (job, slot).

        `id`: of a session that has named itself; otherwise it gets a new one. `decisions`: job -> what was seen when it
        was placed, for the audit.

        StaleEpochError: one of the jobs is not pending any more; then nothing is planned. LedgerError: the
        platform is in use with another account.
        """
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            session_id, attempts = ledger_sessions.plan(
                w,
                platform=platform,
                account=account,
                offer=offer,
                limit_s=limit_s,
                reserve_s=reserve_s,
                jobs=jobs,
                why=why,
                id=id,
                decisions=decisions,
            )
        return self.session(session_id), [self.attempt(attempt) for attempt in attempts]

    def session_event(self, id: str, event: SessionEvent, **fields: Any) -> Session:
        """Move the session by the table and set fields. InvalidTransitionError, StaleEpochError."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            ledger_sessions.event(w, id, event, **fields)
        return self.session(id)

    def note_session(self, id: str, **fields: Any) -> None:
        """Set fields without a change of state, and without an audit line."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            ledger_sessions.note(w, id, **fields)

    def next_inbox(self, session_id: str) -> int:
        """The next inbox number of the session, from 1; durable on return, given out once."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            return ledger_sessions.next_inbox(w, session_id)

    def end_session(self, id: str, *, reason: str, charged_s: float, at: datetime) -> bool:
        """ENDED, reserve released, charged_s (seconds of session) x rate charged; False if it had ended."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            return ledger_sessions.end(w, id, reason=reason, charged_s=charged_s, at=at)

    def add_entry(
        self,
        *,
        kind: EntryKind,
        platform: str,
        account: str,
        pool: str,
        amount_s: float,
        session: str = "",
        note: str = "",
        at: datetime | None = None,
    ) -> int:
        """Append one ledger entry; its id."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            return ledger_sessions.add_entry(
                w,
                kind=kind,
                platform=platform,
                account=account,
                pool=pool,
                amount_s=amount_s,
                session=session,
                note=note,
                at=at,
            )

    def add_reading(
        self,
        platform: str,
        account: str,
        pool: str,
        used_s: float,
        limit_s: float | None,
        resets_at: datetime | None,
        as_of: datetime,
    ) -> None:
        """Keep what the platform says about a pool; the same figures again only move `as_of`."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            ledger_sessions.add_reading(
                w, platform, account, pool, used_s, limit_s, resets_at, as_of
            )

    def block(self, platform: str, until: datetime, why: str) -> None:
        """Leave the platform alone until then."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            ledger_sessions.block(w, platform, until, why)

    def unblock(self, platform: str) -> None:
        """The platform may be used again; silent if it could be anyway."""
        from freegpu.orchestrator import ledger_sessions

        with self._write() as w:
            ledger_sessions.unblock(w, platform)

    # --- writes: attempts ---------------------------------------------------------------------------

    def allocate(
        self,
        session_id: str,
        job_id: str,
        slot: int,
        *,
        why: str,
        decision: Mapping[str, Any] | None = None,
    ) -> Attempt:
        """An attempt of a pending job in a slot of an open session. StaleEpochError: too late for either.

        `decision`: what was seen when it was placed, for the audit.
        """
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            attempt = ledger_attempts.allocate(
                w, session_id, job_id, slot, why=why, decision=decision
            )
        return self.attempt(attempt)

    def attempt_event(self, id: str, event: AttemptEvent, **fields: Any) -> Attempt:
        """Move the attempt by the table and set fields. InvalidTransitionError, StaleEpochError."""
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            ledger_attempts.event(w, id, event, **fields)
        return self.attempt(id)

    def note_attempt(self, id: str, **fields: Any) -> None:
        """Set fields without a change of state; the newest attempt's progress is copied to its job."""
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            ledger_attempts.note(w, id, **fields)

    def end_attempt(
        self,
        id: str,
        *,
        reason: EndReason,
        detail: str,
        exit_code: int | None,
        run_s: float,
        lost_s: float,
        outputs: tuple[str, str] | None,
        brought_checkpoint: bool,
        verdict: Verdict | None,
        not_before: datetime | None,
        at: datetime,
    ) -> bool:
        """ENDED and fenced; the verdict counts for the job if this is its newest attempt and it is active.

        `outputs` is the manifest's (key, SHA-256); run_s and lost_s are seconds. False if it had ended.
        """
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            return ledger_attempts.end(
                w,
                id,
                reason=reason,
                detail=detail,
                exit_code=exit_code,
                run_s=run_s,
                lost_s=lost_s,
                outputs=outputs,
                brought_checkpoint=brought_checkpoint,
                verdict=verdict,
                not_before=not_before,
                at=at,
            )

    def accept_result(
        self, job_id: str, attempt_id: str, outputs: tuple[str, str], *, at: datetime
    ) -> bool:
        """SUCCEEDED with this result; False if the job has one, or may not succeed any more."""
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            return ledger_attempts.accept_result(w, job_id, attempt_id, outputs, at=at)

    def confirm_checkpoint(self, cp: Checkpoint, job_id: str, *, saved_at: datetime) -> bool:
        """Make it the job's current one; False if its attempt is fenced or it is not newer."""
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            return ledger_attempts.confirm_checkpoint(w, cp, job_id, saved_at=saved_at)

    def drop_checkpoints(self, job_id: str, keys: Collection[str]) -> None:
        """Forget collected checkpoints; never the job's current one."""
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            ledger_attempts.drop_checkpoints(w, job_id, keys)

    def forget_checkpoint(self, job_id: str, key: str, *, why: str) -> None:
        """Its files are gone: the next older confirmed one becomes the current one, or none."""
        from freegpu.orchestrator import ledger_attempts

        with self._write() as w:
            ledger_attempts.forget_checkpoint(w, job_id, key, why=why)

    @contextmanager
    def _write(self) -> Iterator[Writing]:
        if self._writer is None:
            from freegpu.orchestrator.writing import Writer

            self._writer = Writer(self._target, clock=self._clock, rng=self._rng)
        with self._writer.begin() as writing:
            yield writing

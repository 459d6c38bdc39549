"""What an agent's word does to the ledger: one event in, guarded commits out.

Applied strictly in the order of the outbox. An event that rests on blobs we cannot see yet is held back, and
with it all later ones of its session, until they appear or our patience ends: a checkpoint must be judged
before the end of its attempt is, or a resume would miss the newest work. Knows no platform.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from freegpu.agent import wire
from freegpu.agent.stores.base import Store
from freegpu.clock import from_timestamp
from freegpu.errors import InvalidTransitionError, JobNotFoundError
from freegpu.jobs import retry
from freegpu.jobs.lifecycle import AttemptEvent, AttemptState, EndReason, JobState
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import missing_blob, read_manifest
from freegpu.orchestrator.model import (
    ORCHESTRATOR,
    STORE,
    Attempt,
    Checkpoint,
    Job,
    Progress,
    Session,
)

log = logging.getLogger(__name__)

#: how long an event may wait for blobs that it names, seconds; afterwards it is judged as it stands
HOLD_S = 60.0
#: an attempt that was cut before, seconds, tells no speed
_SOONEST_S = 5.0
#: a command that was done sooner counts as this long, seconds: no place turns jobs over faster
_QUICKEST_S = 1.0
#: the exit code that means "saved, resume me"
SAVED = 75
#: a place that refused a job is not asked again for this job for so long
AVOID_S = 120.0


@dataclass(slots=True)
class EventDesk:
    """Applies events. `held` remembers since when a session's next event waits."""

    ledger: Ledger
    store: Store
    now: Callable[[], datetime]
    held: dict[str, datetime] = field(default_factory=dict)

    def apply(self, session: Session, event: Mapping[str, Any], *, last_call: bool) -> bool:
        """True: handled, go on with the next one. False: it waits for the store.

        `last_call`: the session is over and nothing more can appear, so do not wait.
        """
        kind = event.get("kind")
        done = True
        try:
            if kind == wire.NOTICE:
                self._notice(session, event)
            elif kind in (wire.STARTED, wire.CHECKPOINT, wire.ENDED, wire.REFUSED):
                attempt = self._attempt(session, event)
                done = self._apply(kind, session, attempt, event, last_call=last_call)
            else:
                self.ledger.record("event_unknown", f"unknown event {kind!r}", session=session.id)
        except (JobNotFoundError, InvalidTransitionError, KeyError, TypeError, ValueError) as error:
            # signed by our own agent and yet not understood: a newer agent, or a bug. Never stop the tick for it.
            log.warning("event dropped: %s", error, extra={"action": "event_dropped"})
            self.ledger.record("event_dropped", f"{kind}: {error}", session=session.id)
        if done:
            self.held.pop(session.id, None)
        return done

    def _attempt(self, session: Session, event: Mapping[str, Any]) -> Attempt:
        attempt = self.ledger.attempt(str(event.get("attempt", "")))
        if attempt.session != session.id:
            raise JobNotFoundError(f"attempt {attempt.id} is not of this session")
        return attempt

    def _apply(
        self,
        kind: str,
        session: Session,
        attempt: Attempt,
        event: Mapping[str, Any],
        *,
        last_call: bool,
    ) -> bool:
        if kind == wire.STARTED:
            if attempt.state is not AttemptState.ENDED:
                self.ledger.attempt_event(
                    attempt.id,
                    AttemptEvent.START,
                    started_at=attempt.started_at or self._moment(session, event),
                )
            return True
        if kind == wire.REFUSED:
            self._refused(session, attempt, str(event.get("detail", "")))
            return True
        if kind == wire.CHECKPOINT:
            return (
                self._checkpoint(session, attempt, event)
                or last_call
                or self._patience_over(session)
            )
        return self._ended(
            session, attempt, event, impatient=last_call or self._patience_over(session)
        )

    def _moment(self, session: Session, event: Mapping[str, Any]) -> datetime:
        """When it happened, for people: the agent's clock where that is possible at all, else now.

        Without a daemon an event may be read hours later. Nothing is decided by this time.
        """
        try:
            told = from_timestamp(float(event["time"]))
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            return self.now()
        return told if session.created_at <= told <= self.now() else self.now()

    def _patience_over(self, session: Session) -> bool:
        since = self.held.setdefault(session.id, self.now())
        return self.now() - since > timedelta(seconds=HOLD_S)

    def _notice(self, session: Session, event: Mapping[str, Any]) -> None:
        """Kept with the attempt that it names; else with all that run there: `show JOB` must tell it."""
        about = [(str(event.get("attempt", "")), str(event.get("job", "")))]
        if not about[0][1]:
            running = self.ledger.attempts(session=session.id, open_only=True)
            about = [(attempt.id, attempt.job) for attempt in running] or about
        for attempt, job in about:
            self.ledger.record(
                f"agent_{event.get('code', 'notice')}",
                str(event.get("detail", "")),
                session=session.id,
                attempt=attempt,
                job=job,
                platform=session.platform,
            )

    def _verified(self, attempt: Attempt) -> frozenset[str]:
        """The blobs of the checkpoint that its job would resume from now; they have been read once."""
        current = self.ledger.job(attempt.job).checkpoint
        if current is None or self.store.properties.server_digest:
            return frozenset()
        manifest = read_manifest(self.store, current.key, current.sha256)
        return frozenset(part.key for part in manifest.blobs()) if manifest else frozenset()

    def _checkpoint(self, session: Session, attempt: Attempt, event: Mapping[str, Any]) -> bool:
        """Confirm it, if every blob is there. True: nothing is left to do about it."""
        if attempt.fenced:
            self.ledger.record(
                "checkpoint_refused",
                f"generation {event['generation']} came after the attempt's fence",
                attempt=attempt.id,
                job=attempt.job,
            )
            return True
        manifest = read_manifest(self.store, str(event["key"]), str(event["sha256"]))
        if manifest is None or missing_blob(self.store, manifest, self._verified(attempt)):
            return False
        if (manifest.job, manifest.attempt, manifest.epoch) != (
            attempt.job,
            attempt.id,
            attempt.epoch,
        ):
            raise ValueError(f"the manifest {event['key']} speaks of another attempt")
        now = self.now()
        self.ledger.confirm_checkpoint(
            Checkpoint(
                key=str(event["key"]),
                sha256=str(event["sha256"]),
                attempt=attempt.id,
                epoch=manifest.epoch,
                generation=manifest.generation,
                step=manifest.step,
                size=manifest.size,
                confirmed_at=now,
                sent=_number(event.get("sent")),
                confirmed_by=STORE if self.store.properties.server_digest else ORCHESTRATOR,
            ),
            attempt.job,
            saved_at=self._moment(session, event)
            - timedelta(seconds=max(0.0, float(event.get("age_s") or 0.0))),
        )
        return True

    def _ended(
        self, session: Session, attempt: Attempt, event: Mapping[str, Any], *, impatient: bool
    ) -> bool:
        reason = _reason(event.get("reason"))
        outputs = _outputs(event.get("outputs"))
        whole = outputs is None or self._whole(outputs)
        if not whole and not impatient:
            return False
        detail = str(event.get("detail") or "")[:4000]
        if not whole:
            outputs = None
            if reason is EndReason.COMPLETED:
                reason, detail = EndReason.LOST, "its results never reached the store whole"
        if reason is EndReason.PREEMPTED and attempt.stop_reason is EndReason.WRONG_CARD:
            reason = EndReason.WRONG_CARD  # the agent knows only that it was asked to stop
        self.note_progress(attempt, event.get("progress"))
        if reason is EndReason.COMPLETED:
            at = self._moment(session, event)
            self.ledger.accept_result(attempt.job, attempt.id, outputs or ("", ""), at=at)
        self.end_attempt(
            attempt,
            reason=reason,
            detail=detail,
            exit_code=_number(event.get("exit_code")),
            run_s=float(event.get("seconds") or 0.0),
            died_at=self._moment(session, event),
            outputs=outputs,
        )
        return True

    def _whole(self, outputs: tuple[str, str]) -> bool:
        manifest = read_manifest(self.store, *outputs)
        return manifest is not None and missing_blob(self.store, manifest) is None

    def _refused(self, session: Session, attempt: Attempt, detail: str) -> None:
        job = self.ledger.job(attempt.job)
        base = job.checkpoint
        if base is not None and (base.epoch, base.generation) == (
            attempt.base_epoch,
            attempt.base_generation,
        ):
            manifest = read_manifest(self.store, base.key, base.sha256)
            if manifest is None or missing_blob(self.store, manifest) is not None:
                self.ledger.forget_checkpoint(
                    job.id, base.key, why=f"it is gone from the store ({detail})"
                )
        self.ledger.avoid(job.id, session.platform, detail, self.now() + timedelta(seconds=AVOID_S))
        self.end_attempt(attempt, reason=EndReason.LAUNCH_FAILED, detail=detail, died_at=self.now())

    def note_progress(self, attempt: Attempt, reported: Any) -> None:
        """Keep what a job said about its progress, if it makes sense."""
        progress = progress_of(reported, self.now())
        if progress is not None:
            self.ledger.note_attempt(attempt.id, progress=progress)

    def end_attempt(
        self,
        attempt: Attempt,
        *,
        reason: EndReason,
        detail: str,
        died_at: datetime,
        exit_code: int | None = None,
        run_s: float = 0.0,
        outputs: tuple[str, str] | None = None,
    ) -> None:
        """End it once, with all that follows for its job."""
        attempt = self.ledger.attempt(attempt.id)
        if attempt.state is AttemptState.ENDED:
            return
        job = self.ledger.job(attempt.job)
        verdict: retry.Verdict | None = retry.decide(
            job.spec.retry,
            reason,
            failures=job.failures,
            preemptions=job.preemptions,
            begun=attempt.started_at is not None,
        )
        if job.state is not JobState.ACTIVE or attempt.number != job.attempts:
            verdict = None  # it has no say in its job any more
        saved = attempt.saved_at
        lost_s = 0.0
        # with 75 a job says that it saved, and its agent reports the end after that was uploaded
        safe = reason in (EndReason.COMPLETED, EndReason.CANCELLED) or exit_code == SAVED
        if attempt.started_at is not None and not safe:
            since = max(saved or attempt.started_at, attempt.started_at)
            lost_s = max(0.0, (died_at - since).total_seconds())
        self._learn_speed(job, attempt, run_s, whole=reason is EndReason.COMPLETED)
        self.ledger.end_attempt(
            attempt.id,
            reason=reason,
            detail=detail,
            exit_code=exit_code,
            run_s=run_s or _ran(attempt, died_at),
            lost_s=lost_s,
            outputs=outputs,
            brought_checkpoint=saved is not None,
            verdict=verdict,
            not_before=self._not_before(attempt, reason, job, died_at),
            at=died_at,
        )

    def _not_before(
        self, attempt: Attempt, reason: EndReason, job: Job, died_at: datetime
    ) -> datetime | None:
        """Back off where trying at once would only spin: quick failures, and `75` without any progress."""
        if attempt.saved_at is not None and reason is not EndReason.COMMAND_FAILED:
            return None
        if (
            reason in (EndReason.COMMAND_FAILED, EndReason.RESUME_REQUESTED)
            and _ran(attempt, died_at) < 60
        ):
            spins = job.failures + (job.preemptions if reason is EndReason.RESUME_REQUESTED else 0)
            return self.now() + timedelta(seconds=min(300.0, 2.0 ** min(spins, 9)))
        return None

    def _learn_speed(self, job: Job, attempt: Attempt, run_s: float, *, whole: bool) -> None:
        """Steps a second on this card, when the attempt ran long enough to tell.

        `whole`: it came to its end. However short that was, it is what jobs of its kind take; the first seconds of one that
        was cut are imports and compilation, and tell nothing.
        """
        step, start = attempt.progress.step, 0.0
        if step is None or run_s <= 0 or (run_s < _SOONEST_S and not whole):
            return
        run_s = max(run_s, _QUICKEST_S)
        if attempt.base_epoch:
            bases = {(c.epoch, c.generation): c for c in self.ledger.checkpoints(job.id)}
            base = bases.get((attempt.base_epoch, attempt.base_generation))
            if base is None or base.step is None:
                return
            start = base.step
        if step > start:
            self.ledger.note_speed(
                job=job.id,
                card=attempt.card,
                workload=job.spec.needs.workload,
                steps_per_s=(step - start) / run_s,
                at=self.now(),
                span_s=run_s,
            )


def progress_of(reported: Any, at: datetime) -> Progress | None:
    """A job's report as a value; None if it says nothing usable."""
    if not isinstance(reported, dict) or not reported:
        return None
    step, total = _real(reported.get("step")), _real(reported.get("total"))
    rate = _real(reported.get("rate"))
    remaining = None
    if step is not None and total is not None and rate and rate > 0:
        remaining = max(0.0, (total - step) / rate)
    return Progress(step=step, total=total, remaining_s=remaining, at=at, values=reported)


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e18 else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ran(attempt: Attempt, until: datetime) -> float:
    return max(0.0, (until - attempt.started_at).total_seconds()) if attempt.started_at else 0.0


def _reason(word: Any) -> EndReason:
    try:
        return EndReason(str(word))
    except ValueError:
        raise ValueError(f"unknown end reason {word!r}") from None


def _outputs(value: Any) -> tuple[str, str] | None:
    return (str(value["key"]), str(value["sha256"])) if isinstance(value, dict) else None

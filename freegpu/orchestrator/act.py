"""The second half of a tick: tickets, heartbeats, new sessions.

The order is always the same: the ledger first, then the side effect, then the ledger again. So whatever dies
in between, the next tick finds in the ledger what was meant, and finishes or closes it.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from freegpu import cards
from freegpu.adapters.base import Adapter, Launch, Request
from freegpu.agent import wire
from freegpu.agent.stores.base import Store, StoreError
from freegpu.config import Settings
from freegpu.errors import (
    AdapterError,
    AttendedError,
    AuthError,
    NoCapacityError,
    ObjectMissingError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    StaleEpochError,
    UnreachableError,
)
from freegpu.jobs.lifecycle import (
    AttemptEvent,
    AttemptState,
    EndReason,
    JobState,
    SessionEvent,
    SessionState,
)
from freegpu.jobs.model import Checkpointing
from freegpu.orchestrator import record, sealed
from freegpu.orchestrator.events import EventDesk
from freegpu.orchestrator.home import load_secrets
from freegpu.orchestrator.lanes import Lanes, Late, starting
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import Mailbox
from freegpu.orchestrator.model import Action, Assign, Attempt, Move, Session, StartSession
from freegpu.orchestrator.pace import pace
from freegpu.orchestrator.record import GIVES_WAY, MAKES_ROOM, Decision
from freegpu.orchestrator.spots import span_text

log = logging.getLogger(__name__)

#: seconds between commits when neither the user nor a measurement says otherwise
CHECKPOINT_EVERY_S = 600.0
#: how long a platform is left alone after it said no, seconds
PAUSE_S: Mapping[type[AdapterError], float] = {
    NoCapacityError: 120.0,
    QuotaExhaustedError: 3600.0,
    RateLimitedError: 60.0,
    AuthError: 3600.0,
    RejectedError: 600.0,
    AttendedError: 3600.0,
    UnreachableError: 30.0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who this home is, and the agent that it sends out."""

    home: Path
    home_id: str
    key: bytes
    agent_path: Path
    agent_sha256: str


@dataclass(slots=True)
class Actor:
    """Carries out what was decided."""

    ledger: Ledger
    store: Store
    adapters: Mapping[str, Adapter]
    mailbox: Callable[[str], Mailbox]
    desk: EventDesk
    identity: Identity
    settings: Settings
    now: Callable[[], datetime]
    #: session -> what our last heartbeat to it said, and when
    answered: dict[str, tuple[Any, datetime]] = field(default_factory=dict)
    lanes: Lanes = field(default_factory=Lanes)
    #: job -> what the decision saw for it
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    # --- what was decided -------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        """Carry out one action. A stale decision (somebody was quicker) is dropped, not an error."""
        try:
            if isinstance(action, StartSession):
                self._start(action)
            elif isinstance(action, Move):
                self._move(action)
            else:
                self._assign(action)
        except StaleEpochError as error:
            self.problems.append(f"decision dropped: {error.message}")

    def _assign(self, action: Assign) -> None:
        attempt = self.ledger.allocate(
            action.session,
            action.assignment.job,
            action.assignment.slot,
            why=action.why,
            decision=self._seen(action).get(action.assignment.job),
        )
        self._post_run(self.ledger.session(action.session), attempt)
        self.done.append(f"{attempt.id} goes to session {action.session}: {action.why}")

    def _seen(self, action: Action) -> dict[str, dict[str, Any]]:
        """What was seen for the jobs that this places, as their audit lines keep it."""
        jobs = [assignment.job for assignment in action.placed]
        return {job: record.to_json(self.decisions[job]) for job in jobs if job in self.decisions}

    def _move(self, action: Move) -> None:
        """The job that runs there saves and stops; when its slot is free, a later tick gives it away."""
        for attempt in self.ledger.attempts(session=action.session, open_only=True):
            if attempt.job == action.victim and attempt.state is not AttemptState.STOPPING:
                self.ledger.attempt_event(
                    attempt.id, AttemptEvent.STOP, stop_reason=EndReason.PREEMPTED
                )
                newcomer = action.assignment.job
                for what, job in ((GIVES_WAY, action.victim), (MAKES_ROOM, newcomer)):
                    self.ledger.record(
                        what,
                        action.why,
                        job=job,
                        attempt=attempt.id,
                        session=action.session,
                        platform=attempt.platform,
                        data={"decision": self._seen(action).get(newcomer, {})},
                    )
                self.done.append(f"{attempt.id} gives up its slot: {action.why}")

    def _start(self, action: StartSession) -> None:
        offer = action.offer
        adapter = self.adapters[offer.platform]
        session, attempts = self.ledger.plan_session(
            platform=offer.platform,
            account=offer.account,
            offer=offer,
            limit_s=_least(offer.session_limit_s, action.lasts_s),
            reserve_s=action.reserve_s,
            jobs=[(a.job, a.slot) for a in action.assignments],
            why=action.why,
            decisions=self._seen(action),
        )
        for attempt in attempts:
            self._post_run(session, attempt)
        launch = self._launch(session.id, action)
        if offer.sealed:
            try:
                launch = self._sealed(session, launch)
            except (ObjectMissingError, StoreError) as error:
                # nothing was asked of the platform yet: what the session needs cannot be had, so it is not started
                told = UnreachableError(str(error), adapter=offer.platform)
                self._launch_failed(session, told)
                self.problems.append(str(error))
                return
        request = adapter.render(launch)
        what = starting(session.id)
        self.lanes.call(offer.platform, what, partial(adapter.start, request), vital=True)
        names = ", ".join(a.id for a in attempts)
        self._take(session, f"for {names}: {action.why}", wait_s=self.lanes.patience_s)

    def _sealed(self, session: Session, launch: Launch) -> Launch:
        """The launch of a session that cannot reach the store, with all that it needs laid out here."""
        tree = sealed.pack(
            self.store,
            self.ledger,
            self.ledger.session(session.id),
            self.identity.home_id,
            sealed.going(self.identity.home, session.id),
        )
        profile = replace(launch.profile, idle_s=sealed.IDLE_S, known=None)
        return replace(launch, tree=str(tree), profile=profile)

    def settle(self) -> None:
        """Take the answers of starts that outlasted the tick which began them."""
        for session in self.ledger.sessions(open_only=True):
            if session.state is SessionState.PLANNED and self.lanes.under_way(
                session.platform, starting(session.id)
            ):
                self._take(session, "after a while", wait_s=0.0)

    def _take(self, session: Session, why: str, *, wait_s: float) -> None:
        """What became of a start, if it is known by then; else a later tick asks again."""
        platform = session.platform
        try:
            ref = self.lanes.take(platform, starting(session.id), wait_s=wait_s)
        except Late:
            if wait_s:
                self.done.append(f"session {session.id} is being started on {platform} {why}")
        except UnreachableError as error:
            # it may have been accepted: the next tick asks find() and adopts or closes the session
            self._pause(platform, error)
        except AdapterError as error:
            self._pause(platform, error)
            self._launch_failed(session, error)
        else:
            self.ledger.session_event(
                session.id, SessionEvent.ACCEPTED, ref=str(ref), started_at=self.now()
            )
            self.done.append(f"session {session.id} starts on {platform} {why}")
        if session.offer.sealed and not self.lanes.under_way(platform, starting(session.id)):
            shutil.rmtree(sealed.going(self.identity.home, session.id), ignore_errors=True)

    def _launch_failed(self, session: Session, error: AdapterError) -> None:
        for attempt in self.ledger.attempts(session=session.id, open_only=True):
            self.desk.end_attempt(
                attempt, reason=EndReason.LAUNCH_FAILED, detail=error.message, died_at=self.now()
            )
        # a refusal for want of quota tells how large the quota is: `learned` looks for it
        spent = isinstance(error, QuotaExhaustedError)
        reason = EndReason.QUOTA_EXHAUSTED if spent else EndReason.LAUNCH_FAILED
        self.ledger.end_session(
            session.id, reason=f"{reason}: {error.message}", charged_s=0.0, at=self.now()
        )

    def _pause(self, platform: str, error: AdapterError) -> None:
        seconds = next((s for kind, s in PAUSE_S.items() if isinstance(error, kind)), 60.0)
        until = self.now() + timedelta(seconds=seconds)
        if isinstance(error, RateLimitedError) and error.retry_after_s is not None:
            until = self.now() + timedelta(seconds=error.retry_after_s)
        if isinstance(error, QuotaExhaustedError) and error.resets_at is not None:
            until = error.resets_at
        self.ledger.block(platform, until, error.message)
        self.problems.append(f"{platform}: {error.message}")

    # --- tickets ----------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Write the tickets that the ledger says should exist: new stops, and what a crash left unwritten."""
        for session in self.ledger.sessions(open_only=True):
            if session.state is SessionState.PLANNED:
                continue
            attempts = self.ledger.attempts(session=session.id)
            self._repair_gap(session, attempts)
            for attempt in attempts:
                if attempt.state is AttemptState.ENDED:
                    self._fence_zombie(session, attempt)
                    continue
                attempt = self._stop_if_pointless(attempt)
                if attempt.state is AttemptState.ALLOCATED and not attempt.ticket_seq:
                    self._post_run(session, attempt)
                elif attempt.state is AttemptState.STOPPING and not attempt.stop_seq:
                    self._post_stop(session, attempt)

    def _stop_if_pointless(self, attempt: Attempt) -> Attempt:
        """An attempt whose job is over or has a newer attempt only wastes its card."""
        if attempt.state is AttemptState.STOPPING:
            return attempt
        job = self.ledger.job(attempt.job)
        if job.state is JobState.ACTIVE and attempt.number == job.attempts:
            return attempt
        reason = EndReason.CANCELLED if job.state is JobState.CANCELLED else EndReason.SUPERSEDED
        return self.ledger.attempt_event(attempt.id, AttemptEvent.STOP, stop_reason=reason)

    def _fence_zombie(self, session: Session, attempt: Attempt) -> None:
        """We gave this attempt up, but its session may still be alive and run it: tell it, once."""
        alive = {str(slot.get("attempt")) for slot in session.beat.get("slots") or ()}
        if attempt.id in alive and not attempt.stop_seq and session.silent_polls == 0:
            self._post_stop(session, attempt)

    def _post_run(self, session: Session, attempt: Attempt) -> None:
        seq = self.ledger.next_inbox(session.id)
        self.ledger.note_attempt(attempt.id, ticket_seq=seq)
        self.mailbox(session.id).post(seq, self._run_ticket(session, attempt))

    def _post_stop(self, session: Session, attempt: Attempt) -> None:
        ticket = self._stop_ticket(attempt, bump=True)
        seq = self.ledger.next_inbox(session.id)
        self.ledger.note_attempt(attempt.id, stop_seq=seq)
        self.mailbox(session.id).post(seq, ticket)
        self.done.append(f"{attempt.id} is asked to stop ({attempt.stop_reason or 'fenced'})")

    def _stop_ticket(self, attempt: Attempt, *, bump: bool) -> dict[str, Any]:
        if attempt.stop_reason is EndReason.CANCELLED:
            return wire.cancel_ticket(attempt.job, attempt.epoch)
        job = self.ledger.job(attempt.job)
        # strictly higher, and durable before the ticket is: an agent obeys nothing else
        epoch = job.epoch if job.epoch > attempt.epoch else 0
        if not epoch:
            epoch = self.ledger.bump_epoch(attempt.job) if bump else attempt.epoch + 1
        return wire.stop_ticket(
            attempt.job, epoch, str(attempt.stop_reason or EndReason.SUPERSEDED)
        )

    def _run_ticket(self, session: Session, attempt: Attempt) -> dict[str, Any]:
        job = self.ledger.job(attempt.job)
        spec, key = job.spec, self.session_key(session.id)
        values = load_secrets(self.identity.home, spec.secrets_ref)
        base = job.checkpoint if attempt.base_epoch else None
        return wire.Run(
            job=job.id,
            attempt=attempt.id,
            number=attempt.number,
            epoch=attempt.epoch,
            slot=attempt.slot,
            name=job.name,
            run=spec.run,
            setup=spec.setup,
            envs=dict(spec.envs),
            secrets=wire.seal(key, secrets.token_bytes(16), values) if values else "",
            bundle=job.bundle,
            base=wire.Base(
                key=base.key, sha256=base.sha256, epoch=base.epoch, generation=base.generation
            )
            if base
            else None,
            checkpoint_path=spec.checkpoint.path,
            checkpoint_every_s=checkpoint_every(spec.checkpoint),
            keep=spec.checkpoint.keep,
            grace_s=spec.checkpoint.grace_s,
            window=spec.checkpoint.window,
            outputs=spec.outputs,
        ).to_json()

    def _repair_gap(self, session: Session, attempts: list[Attempt]) -> None:
        """A seq that was taken but never written would block the inbox for ever: write it now."""
        handled = int(session.beat.get("inbox_seq") or 0)
        mailbox = self.mailbox(session.id)
        for seq in range(handled + 1, session.inbox_next):
            if mailbox.posted(seq):
                continue
            owner = next((a for a in attempts if seq in (a.ticket_seq, a.stop_seq)), None)
            if owner is None or (owner.state is AttemptState.ENDED and owner.ticket_seq == seq):
                mailbox.post(seq, {"kind": "nothing"})
            elif owner.ticket_seq == seq:
                mailbox.post(seq, self._run_ticket(session, owner))
            else:
                mailbox.post(seq, self._stop_ticket(owner, bump=False))

    # --- sessions ---------------------------------------------------------------------------------------

    def release_idle(self, waiting: bool) -> None:
        """Quota runs while a session idles: one that has nothing to do and draws on a pool is ended.

        `waiting`: some job could still use it, so it is kept.
        """
        for session in self.ledger.sessions(open_only=True):
            if session.state is not SessionState.LIVE or not session.pool or waiting:
                continue
            if session.beat.get("state") != "idle" or session.silent_polls:
                continue
            if self.ledger.attempts(session=session.id, open_only=True):
                continue
            self._ask_end(session, "nothing to do", wire.drain_ticket())
            self.done.append(
                f"session {session.id} on {session.platform} has nothing to do and ends"
            )

    def save_before_spent(self, spent_in: Mapping[tuple[str, str], float]) -> None:
        """End sessions whose quota is nearly spent, so that their jobs save; the platform would kill them.

        `spent_in`: (platform, pool) -> seconds until then, by what runs now.
        """
        for session in self.ledger.sessions(open_only=True):
            left_s = spent_in.get((session.platform, session.pool))
            # no ticket reaches a sealed session
            if left_s is None or session.state is not SessionState.LIVE or session.offer.sealed:
                continue
            known_s = session.beat.get("left_s")
            if isinstance(known_s, int | float) and known_s <= left_s:
                continue  # it ends by itself
            attempts = self.ledger.attempts(session=session.id, open_only=True)
            grace_s = max(
                (self.ledger.job(a.job).spec.checkpoint.grace_s for a in attempts), default=0.0
            )
            rhythm = pace(self.settings, self.store.properties)
            # until the next look, until the ticket is read, to save, and to send what was saved
            needed_s = self.settings.tick_s + rhythm.poll_s + grace_s + self.settings.margin_s
            # 0: it lives beyond what we believe there is, so we know nothing of its end
            if not attempts or not 0 < left_s <= needed_s:
                continue
            why = f"its quota is spent in {span_text(left_s)}: its jobs save and go on elsewhere"
            self._ask_end(session, why, wire.bye_ticket())
            self.done.append(f"session {session.id} on {session.platform} ends: {why}")

    def _ask_end(self, session: Session, why: str, ticket: dict[str, Any]) -> None:
        """Write down that a session is to end, then tell it."""
        seq = self.ledger.next_inbox(session.id)
        self.ledger.session_event(session.id, SessionEvent.ASK_END, reason=why)
        self.mailbox(session.id).post(seq, ticket)

    def answer(self) -> None:
        """Our heartbeat to every session that listens, with what we have handled and confirmed."""
        waiting: int | None = None
        # the same words again are only a sign of life: behind an API they may come rarely
        again_s = 4 * pace(self.settings, self.store.properties).rest_s
        for session in self.ledger.sessions(open_only=True):
            if session.state not in (SessionState.LIVE, SessionState.ENDING):
                continue
            if waiting is None:
                waiting = self.ledger.job_counts().get(JobState.PENDING, 0)
            confirmed = {}
            for attempt in self.ledger.attempts(session=session.id, open_only=True):
                checkpoint = self.ledger.job(attempt.job).checkpoint
                if checkpoint is not None and checkpoint.attempt == attempt.id:
                    confirmed[attempt.id] = checkpoint.generation
            word = (session.outbox_seen, confirmed, waiting)
            last = self.answered.get(session.id)
            if (
                last is not None
                and last[0] == word
                and 0 <= (self.now() - last[1]).total_seconds() < again_s
            ):
                continue
            self.answered[session.id] = (word, self.now())
            counter = session.our_counter + 1
            self.ledger.note_session(session.id, our_counter=counter)
            self.mailbox(session.id).answer(counter, session.outbox_seen, confirmed, waiting)

    def session_key(self, session: str) -> bytes:
        """The key that signs this session's messages."""
        return wire.session_key(self.identity.key, session)

    def request(self, action: StartSession) -> Request:
        """What would be sent to the platform; the session's id is a placeholder."""
        launch = self._launch("s-rehearsal", action)
        hidden = replace(launch.profile, key="0" * 64)
        return self.adapters[action.offer.platform].render(replace(launch, profile=hidden))

    def _launch(self, session: str, action: StartSession) -> Launch:
        offer = action.offer
        devices = offer.devices or tuple(str(index) for index in range(offer.count))
        slots = tuple(
            wire.Slot(
                index=index,
                card=offer.card,
                gpus=() if offer.card == "CPU" else (devices[index],),
                vram_gb=offer.vram_gb,
                precision=cards.precision(offer.card),
            )
            for index in range(offer.count)
        )
        work = self.identity.home / "sessions" / session / "work"
        rhythm = pace(self.settings, self.store.properties)
        profile = wire.Profile(
            session=session,
            home=self.identity.home_id,
            platform=offer.platform,
            key=self.session_key(session).hex(),
            store=self.settings.store_for(offer.platform),
            work=str(work),
            slots=slots,
            limit_s=_limit(action),
            idle_s=rhythm.idle_s,
            poll_s=rhythm.poll_s,
            beat_s=rhythm.beat_s,
            margin_s=_margin(action, self.settings.margin_s),
            bandwidth=self.settings.bandwidth,
            known=asdict(self.store.properties)
            if self.settings.store_for(offer.platform) == self.settings.store
            else None,
        )
        return Launch(
            key=session,
            offer=offer,
            profile=profile,
            agent_path=str(self.identity.agent_path),
            agent_sha256=self.identity.agent_sha256,
            agent_key=wire.agent_key(self.identity.agent_sha256),
        )


def _least(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _limit(action: StartSession) -> float | None:
    """When the agent must be done, seconds of its own time: before the quota is spent, of which the start took some.

    A session that a platform ends for its quota is killed like a lost one: with sessions of an hour and a half, as a
    quota that trickles back gives them, each threw away some thirteen minutes.
    """
    limit_s, lasts_s = action.offer.session_limit_s, action.lasts_s
    if lasts_s is not None and (limit_s is None or lasts_s < limit_s):
        lasts_s = max(lasts_s - action.offer.start_delay_s, lasts_s / 2)
    return _least(limit_s, lasts_s)


def _margin(action: StartSession, margin_s: float) -> float:
    """What the agent keeps back for its last upload; less where quota is just enough for a job, which it would refuse."""
    limit_s = _limit(action)
    if limit_s is None or limit_s == action.offer.session_limit_s:
        return margin_s
    return min(margin_s, max(0.0, limit_s - action.least_s))


def checkpoint_every(checkpoint: Checkpointing) -> float:
    """Seconds between commits: the user's word, or ten minutes."""
    return checkpoint.every_s if checkpoint.every_s is not None else CHECKPOINT_EVERY_S

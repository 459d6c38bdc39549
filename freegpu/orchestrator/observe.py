"""The first half of a tick: what the platforms and the agents say, written into the ledger.

Nothing is concluded from a word we do not know, from a clock of somebody else, or from one silent poll.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from freegpu import cards
from freegpu.adapters.base import Adapter, Observation, PlatformState, SessionRef
from freegpu.agent.stores.base import StoreError
from freegpu.errors import AdapterError
from freegpu.jobs.lifecycle import (
    AttemptEvent,
    AttemptState,
    EndReason,
    SessionEvent,
    SessionState,
)
from freegpu.jobs.model import Needs
from freegpu.orchestrator import builds, gpu_use, sealed, tidying
from freegpu.orchestrator.events import AVOID_S, EventDesk
from freegpu.orchestrator.lanes import Lanes, Late, starting
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import Mailbox
from freegpu.orchestrator.model import Attempt, Session

log = logging.getLogger(__name__)

#: a session that was accepted must say hello within its start delay times this, plus START_S
START_FACTOR, START_S = 3.0, 120.0
#: while the platform itself says "running", silence needs this many times more polls to mean anything
TRUST = 5
#: the output of a sealed session that could not be brought home for so long after its time is given up, seconds
GIVE_UP_S = 86400.0


@dataclass(slots=True)
class Observer:
    """Reads the world once. `silent_polls`: how many unmoved polls are silence; `poll_gap_s`: the least
    time between two polls that both count."""

    ledger: Ledger
    adapters: Mapping[str, Adapter]
    mailbox: Callable[[str], Mailbox]
    desk: EventDesk
    now: Callable[[], datetime]
    silent_polls: int
    poll_gap_s: float
    #: a session where nothing runs is asked no more often than this, seconds
    rest_s: float = 0.0
    lanes: Lanes = field(default_factory=Lanes)
    #: where the output of sealed sessions is brought
    home: Path = Path()

    def run(self) -> list[str]:
        """Observe every open session; returns problems, as sentences."""
        problems: list[str] = []
        by_platform: dict[str, list[Session]] = defaultdict(list)
        for session in self.ledger.sessions(open_only=True):
            by_platform[session.platform].append(session)
        words = self._ask(by_platform, problems)
        for sessions in by_platform.values():
            for session in sessions:
                # An agent may be up before its platform has answered the start (Colab's program then still runs):
                # heard now, its session would be live under a name that nobody knows, and nobody could end it.
                if not session.state.open or self._being_started(session):
                    continue
                word = words.get(SessionRef(session.ref)) if session.ref else None
                if self._rests(session, word):
                    continue
                try:
                    self._one(session, word)
                except (StoreError, AdapterError) as error:
                    # not our agent's silence: we cannot hear, so nobody is judged
                    problems.append(str(error))
        problems += tidying.settle(self.adapters, self.lanes)
        problems += tidying.sweep(self.ledger, self.adapters, self.lanes, self.now())
        return list(dict.fromkeys(problems))

    def _ask(
        self, by_platform: dict[str, list[Session]], problems: list[str]
    ) -> dict[SessionRef, Observation]:
        """What the platforms say of these sessions, all of them asked at once; sessions a crash left are adopted first."""
        asked: dict[str, Callable[[], Mapping[SessionRef, Observation]]] = {}
        for platform, sessions in by_platform.items():
            adapter = self.adapters.get(platform)
            if adapter is None:
                problems.append(
                    f"platform {platform} is not configured any more; its sessions are watched by heartbeat only"
                )
            elif not adapter.capabilities.attended:
                for index, session in enumerate(sessions):
                    try:
                        sessions[index] = self._adopt(adapter, session)
                    except AdapterError as error:
                        problems.append(f"{platform}: {error.message}")
                refs = [SessionRef(s.ref) for s in sessions if s.ref and s.state.open]
                if refs:
                    asked[platform] = partial(adapter.observe, refs)
        words: dict[SessionRef, Observation] = {}
        for platform, answer in self.lanes.ask_all("observe", asked).items():
            try:
                words.update(answer())
            except AdapterError as error:
                problems.append(f"{platform}: {error.message}")
        return words

    def _adopt(self, adapter: Adapter, session: Session) -> Session:
        """A session without the platform's name for it is what a crash in the middle of a start leaves behind: find it or close it."""
        if session.ref or self._being_started(session):
            return session  # in the second case by this very process; the actor takes the answer
        ref = self.lanes.ask(
            session.platform, f"find {session.key}", partial(adapter.find, session.key)
        )
        if session.state is not SessionState.PLANNED:
            # its agent was heard while the platform could not be asked: with a name it can be ended
            if ref is not None:
                self.ledger.note_session(session.id, ref=ref)
            return self.ledger.session(session.id)
        if ref is not None:
            return self.ledger.session_event(
                session.id, SessionEvent.ACCEPTED, ref=ref, started_at=session.created_at
            )
        self.finish(session, EndReason.LAUNCH_FAILED, "it was never started", charged_s=0.0)
        return self.ledger.session(session.id)

    def _being_started(self, session: Session) -> bool:
        return self.lanes.under_way(session.platform, starting(session.id))

    def _rests(self, session: Session, word: Observation | None) -> bool:
        """Nothing is expected of it, and it was looked at a moment ago: each look is a request to its store."""
        if session.state is not SessionState.LIVE or session.polled_at is None or not self.rest_s:
            return False
        if session.beat.get("state") != "idle" or (
            word is not None and word.state is not PlatformState.RUNNING
        ):
            return False
        if not 0 <= (self.now() - session.polled_at).total_seconds() < self.rest_s:
            return False
        return not self.ledger.attempts(session=session.id, open_only=True)

    def _one(self, session: Session, observation: Observation | None) -> None:
        over = observation is not None and observation.state in (
            PlatformState.ENDED,
            PlatformState.GONE,
        )
        if observation is not None and observation.raw != session.raw_state:
            self.ledger.note_session(session.id, raw_state=observation.raw)
        if observation is not None and observation.state is PlatformState.UNKNOWN:
            session = self.ledger.session_event(
                session.id, SessionEvent.UNKNOWN_WORD, raw_state=observation.raw
            )
        if session.offer.sealed:
            self._one_sealed(session, observation, over=over)
            return
        session, beat = self._listen(session, observation)
        if beat is None or over or not self._at_rest(session, beat):
            session = self._read_events(session, last_call=over)
        if beat is not None and beat.get("state") == "ended" and self._all_read(session, beat):
            self.finish(session, EndReason.LOST, "its agent has ended", charged_s=_uptime(beat))
        elif over and observation is not None:
            self._over(session, observation)
        elif self._silent(session, observation):
            self.fence(session, "its agent has been silent")
        elif self._never_came(session):
            self.fence(session, "its agent never said hello", reason=EndReason.LAUNCH_FAILED)

    # --- sealed sessions ----------------------------------------------------------------------------------

    def _one_sealed(self, session: Session, observation: Observation | None, *, over: bool) -> None:
        """Nothing is heard of it until it is over; then its output comes home and is read at once."""
        if observation is not None and observation.state is PlatformState.ENDED:
            home = self._brought(session)
            if home is None:
                return
            attempts = self.ledger.attempts(session=session.id)
            taken = sealed.unpack(home, self.desk.store, session, attempts)
            if taken.refused:
                self.ledger.record(
                    "output_refused",
                    f"{len(taken.refused)} files that this session has no business to write: {taken.refused[0]}",
                    session=session.id,
                    platform=session.platform,
                )
            session, beat = self._listen(session, observation)
            session = self._read_events(session, last_call=True)
            if beat is not None and beat.get("state") == "ended":
                self.finish(session, EndReason.LOST, "its agent has ended", charged_s=_uptime(beat))
            else:
                self._over(session, observation)
            sealed.forget(self.home, session.id)
        elif over and observation is not None:
            self._over(session, observation)
            sealed.forget(self.home, session.id)
        elif self._unwanted(session):
            # no ticket reaches it: only ending it stops its jobs
            self.fence(session, "its jobs were cancelled", reason=EndReason.CANCELLED)
        elif self._overdue(session):
            self.fence(session, "its time is over, whatever the platform says")

    def _brought(self, session: Session) -> Path | None:
        """The folder with what it left, all of it here; None: it is still coming. An output that is gone is empty."""
        adapter = self.adapters[session.platform]
        into = sealed.coming(self.home, session.id)
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        what = f"collect {session.id}"
        self.lanes.call(
            session.platform,
            what,
            partial(adapter.collect, SessionRef(session.ref), into),
            vital=True,
        )
        try:
            came = self.lanes.take(session.platform, what, wait_s=self.lanes.patience_s)
        except Late:
            return None
        except AdapterError as error:
            if error.transient and not self._given_up(session):
                raise
            self._told(session, "output_gone", error.message)
            return into
        if not came.whole:
            self._told(session, "output_truncated", "the platform withheld some of its output")
        return into

    def _told(self, session: Session, action: str, detail: str) -> None:
        for attempt in self.ledger.attempts(session=session.id, open_only=True):
            self.ledger.record(
                action,
                detail,
                session=session.id,
                attempt=attempt.id,
                job=attempt.job,
                platform=session.platform,
            )

    def _unwanted(self, session: Session) -> bool:
        """Whether every attempt there is asked to stop."""
        attempts = self.ledger.attempts(session=session.id, open_only=True)
        return bool(attempts) and all(a.state is AttemptState.STOPPING for a in attempts)

    def _overdue(self, session: Session) -> bool:
        since = session.started_at or session.created_at
        if session.state is SessionState.PLANNED or session.limit_s is None:
            return False
        allowed = session.limit_s + START_S + START_FACTOR * session.offer.start_delay_s
        return self.now() - since > timedelta(seconds=allowed)

    def _given_up(self, session: Session) -> bool:
        """Whether its output could not be had for so long that nobody waits for it any more."""
        since = session.started_at or session.created_at
        return self.now() - since > timedelta(seconds=(session.limit_s or 0.0) + GIVE_UP_S)

    # --- the mailbox -----------------------------------------------------------------------------------

    def _listen(
        self, session: Session, observation: Observation | None
    ) -> tuple[Session, Mapping[str, Any] | None]:
        """Hello and heartbeat. A counter that moved is life; everything else is one more silent poll."""
        mailbox, now = self.mailbox(session.id), self.now()
        if session.live_at is None:
            hello = mailbox.hello()
            if hello is not None:
                session = self.ledger.session_event(
                    session.id,
                    SessionEvent.HELLO,
                    live_at=now,
                    started_at=session.started_at or now,
                    card_seen=card_seen(hello, observation, session.card),
                )
                archs = self._keep_archs(session, hello)
                self._check_card(session, archs)
        beat = mailbox.beat()
        counter = beat.get("counter") if beat else None
        if beat is not None and isinstance(counter, int) and counter > session.beat_counter:
            seen = gpu_use.added(session.beat, beat, session.offer)
            self.ledger.note_session(
                session.id, beat=seen, beat_counter=counter, silent_polls=0, polled_at=now
            )
            self._note_progress(session, beat)
        elif session.polled_at is None or self._counts(session.polled_at, now):
            self.ledger.note_session(
                session.id, silent_polls=session.silent_polls + 1, polled_at=now
            )
        return self.ledger.session(session.id), beat

    def _keep_archs(self, session: Session, hello: Mapping[str, Any]) -> tuple[str, ...]:
        """Remember what the PyTorch of this platform was built for: the next job need not find it out again."""
        archs = builds.told(hello)
        if archs:
            key, card = builds.key(session.platform), session.card_seen or session.card
            line = builds.noted(self.ledger.meta(key), card, archs, self.now())
            self.ledger.set_meta(key, line)
        return archs

    def _check_card(self, session: Session, archs: Sequence[str] = ()) -> None:
        """Platforms substitute cards silently, and give ones that their PyTorch does not know any more: a job that
        cannot use what came is taken off at once."""
        if session.card_seen != session.card:
            self.ledger.record(
                "card_differs",
                f"{session.card} was asked for, {session.card_seen} came",
                session=session.id,
                platform=session.platform,
            )
        for attempt in self.ledger.attempts(session=session.id, open_only=True):
            needs = self.ledger.job(attempt.job).spec.needs
            why = unsuitable(needs, session.card_seen, archs)
            if why and attempt.state is not AttemptState.STOPPING:
                self.ledger.avoid(
                    attempt.job, session.platform, why, self.now() + timedelta(seconds=AVOID_S)
                )
                self.ledger.attempt_event(
                    attempt.id, AttemptEvent.STOP, stop_reason=EndReason.WRONG_CARD
                )

    def _counts(self, polled_at: datetime, now: datetime) -> bool:
        """Whether enough time passed since the last poll that counted; a clock set back counts as enough."""
        gap = (now - polled_at).total_seconds()
        return gap >= self.poll_gap_s or gap < 0

    def _note_progress(self, session: Session, beat: Mapping[str, Any]) -> None:
        attempts = {a.id: a for a in self.ledger.attempts(session=session.id, open_only=True)}
        for slot in beat.get("slots") or ():
            attempt = attempts.get(str(slot.get("attempt") or ""))
            if attempt is not None and slot.get("progress"):
                self.desk.note_progress(attempt, slot["progress"])

    def _read_events(self, session: Session, *, last_call: bool) -> Session:
        for event in self.mailbox(session.id).events(session.outbox_seen):
            if not self.desk.apply(session, event, last_call=last_call):
                break
            self.ledger.note_session(session.id, outbox_seen=event["seq"])
        return self.ledger.session(session.id)

    def _at_rest(self, session: Session, beat: Mapping[str, Any]) -> bool:
        """An idle agent's heartbeat tells how many events there are; none is missing."""
        return bool(self.rest_s) and beat.get("state") == "idle" and self._all_read(session, beat)

    def _all_read(self, session: Session, beat: Mapping[str, Any]) -> bool:
        return session.outbox_seen >= int(beat.get("outbox_seq") or 0)

    # --- judgements ------------------------------------------------------------------------------------

    def _patience(self, session: Session) -> int:
        jobs = [
            self.ledger.job(a.job) for a in self.ledger.attempts(session=session.id, open_only=True)
        ]
        return max((job.patience for job in jobs), default=1)

    def _silent(self, session: Session, observation: Observation | None) -> bool:
        if session.live_at is None or session.silent_polls < self.silent_polls:
            return False
        sure = observation is not None and observation.state is PlatformState.RUNNING
        return session.silent_polls >= self.silent_polls * self._patience(session) * (
            TRUST if sure else 1
        )

    def _never_came(self, session: Session) -> bool:
        if session.live_at is not None or session.state is SessionState.PLANNED:
            return False
        since = session.started_at or session.created_at
        allowed = START_S + START_FACTOR * session.offer.start_delay_s
        return self.now() - since > timedelta(seconds=allowed)

    def _over(self, session: Session, observation: Observation) -> None:
        reason, detail = EndReason.LOST, observation.detail or "the platform says it has ended"
        if session.live_at is None:
            reason = EndReason.LAUNCH_FAILED
            detail = observation.detail or "it ended before its agent said hello"
        if observation.reason:
            reason = EndReason(observation.reason)
        if reason is EndReason.WRONG_CARD:
            # a platform that substitutes does so again: without this the job would go straight back
            for attempt in self.ledger.attempts(session=session.id, open_only=True):
                until = self.now() + timedelta(seconds=AVOID_S)
                self.ledger.avoid(attempt.job, session.platform, detail, until)
        charged = observation.used_s if observation.used_s is not None else self._elapsed(session)
        self.finish(session, reason, detail, charged_s=charged)

    def _elapsed(self, session: Session) -> float:
        if session.started_at is None:
            return 0.0
        elapsed = max(0.0, (self.now() - session.started_at).total_seconds())
        return elapsed if session.limit_s is None else min(elapsed, session.limit_s)

    def fence(self, session: Session, detail: str, reason: EndReason = EndReason.LOST) -> None:
        """We do not believe in it any more. Its attempts end now; the platform is asked to end it too."""
        self._end_attempts(session, reason, detail)
        adapter = self.adapters.get(session.platform)
        if adapter is None or not adapter.capabilities.stop or not session.ref:
            self.finish(session, reason, detail, charged_s=self._elapsed(session))
            return
        if session.state is not SessionState.ENDING:
            self.ledger.session_event(session.id, SessionEvent.ASK_END, reason=detail)
        try:
            stop = partial(adapter.stop, SessionRef(session.ref))
            self.lanes.ask(session.platform, f"stop {session.ref}", stop)
        except AdapterError as error:
            log.warning("stop %s: %s", session.id, error, extra={"action": "stop_failed"})

    def finish(self, session: Session, reason: EndReason, detail: str, *, charged_s: float) -> None:
        """The session is over: end what it still held, release its reserve, charge it; once."""
        self._end_attempts(session, reason, detail)
        tidying.note(self.ledger, self.ledger.session(session.id), self.adapters)
        self.ledger.end_session(
            session.id, reason=f"{reason}: {detail}", charged_s=charged_s, at=self.now()
        )

    def _end_attempts(self, session: Session, reason: EndReason, detail: str) -> None:
        session = self.ledger.session(session.id)
        for attempt in self.ledger.attempts(session=session.id, open_only=True):
            died_at = self._last_life(session, attempt)
            why = attempt.stop_reason if attempt.stop_reason is EndReason.CANCELLED else reason
            self.desk.end_attempt(attempt, reason=why, detail=detail, died_at=died_at)

    def _last_life(self, session: Session, attempt: Attempt) -> datetime:
        """When the attempt was last known to live: its session's last heartbeat that we saw."""
        uptime = _uptime(session.beat)
        if session.live_at is None or session.started_at is None or not uptime:
            return attempt.started_at or attempt.created_at
        return min(self.now(), session.started_at + timedelta(seconds=uptime))


def card_seen(hello: Mapping[str, Any], observation: Observation | None, asked: str) -> str:
    """The card that came: what the agent found, else what the platform says, else what was asked for.

    An agent that was to have a card and found none has a CPU, unless the platform itself names a card.
    """
    for slot in hello.get("slots") or ():
        if slot.get("matches"):
            continue
        seen = str(slot.get("seen") or "")
        known = cards.find(seen) if seen else None
        if seen:
            return known.name if known else seen
        return (observation.card if observation is not None else "") or "CPU"
    return (observation.card if observation is not None else "") or asked


def unsuitable(needs: Needs, card: str, archs: Sequence[str] = ()) -> str:
    """Why a job with these needs cannot use this card; "" if it can."""
    names = [a.card for a in needs.accelerators]
    if names and not any(cards.fulfils(card, name) for name in names):
        return f"{card} came instead of {' or '.join(names)}"
    if card == "CPU":
        return "" if needs.allows_cpu else "no card came, and the job needs one"
    facts = cards.find(card)
    if needs.vram_gb and facts is not None and facts.vram_gb < needs.vram_gb:
        return f"{card} came with {facts.vram_gb:g} GB; the job needs {needs.vram_gb:g} GB"
    fault = needs.refuses(card, archs)
    return f"{card} came: {fault}" if fault else ""


def _uptime(beat: Mapping[str, Any]) -> float:
    value = beat.get("uptime_s")
    return max(0.0, float(value)) if isinstance(value, int | float) else 0.0

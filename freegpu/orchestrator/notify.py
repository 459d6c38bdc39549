"""Telling people elsewhere: the claim on each notice, and when it is sent. See `notices` and `addresses`.

Each notice is claimed in the ledger before it is sent, so that of several processes one sends it. A process
that dies between claim and sending loses the one notice that it had claimed. What an address does not take is
tried again, a few times. Nothing here delays or breaks a tick: `Notifier` works in a thread of its own, with
a time limit, and its failures are one warning line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from freegpu.clock import Clock, utc
from freegpu.errors import FreeGPUError
from freegpu.orchestrator import notices
from freegpu.orchestrator.addresses import FILE_NAME, Address, read, send
from freegpu.orchestrator.notices import Attended, JobFacts, Notice, Queued, State

if TYPE_CHECKING:
    from freegpu.orchestrator.ledger import Ledger
    from freegpu.orchestrator.model import Balance

__all__ = ["META", "Notifier", "begin", "pump"]

log = logging.getLogger(__name__)

#: the fact in the ledger that holds what is remembered
META = "notify"
#: how long one round of sending may take, seconds; what is left comes next time
LIMIT_S = 30.0
#: how long a command that has shown its output waits for the round to end, seconds
FINISH_S = 10.0
#: audit lines that one round looks at
_LINES = 500
#: so many lines that tell nothing may lie behind the cursor before it is moved for their sake alone
_IDLE = 2000


# --- what is new, and who tells it -----------------------------------------------------------------------


def begin(ledger: Ledger) -> None:
    """From now on: what happened before the first address was added is not told."""
    before = ledger.meta(META)
    state = _state(before) or State()
    ledger.swap_meta(META, before, replace(state, cursor=ledger.last_event(), queue=()).to_json())


def pump(
    home: Path,
    ledger: Ledger,
    now: Callable[[], datetime],
    *,
    until: float,
    balances: Sequence[Balance] = (),
    wanted: Sequence[Attended] = (),
    sender: Callable[[Address, Notice], str] = send,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """One round: note what is new, then send what is due, claimed one by one; how many arrived everywhere.

    `until`: on the monotonic clock; no sending is begun after it. `balances`, `wanted`: quotas and invitations
    as they are now. ConfigError, LedgerError.
    """
    addresses = {address.digest: address for address in read(home)}
    if not addresses:
        return 0
    for _ in range(3):
        if _note(ledger, now(), addresses, balances, wanted):
            break
    sent = 0
    while monotonic() < until and (entry := _claim(ledger, now(), addresses)) is not None:
        failed = []
        for digest in entry.to:
            address = addresses[digest]
            reason = sender(address, entry.notice) if monotonic() < until else "no time was left"
            if reason:
                failed.append((digest, reason))
        sent += not failed
        if failed:
            _give_back(ledger, now(), entry, failed, addresses)
    return sent


def _note(
    ledger: Ledger,
    now: datetime,
    addresses: dict[str, Address],
    balances: Sequence[Balance],
    wanted: Sequence[Attended],
) -> bool:
    """Put what is new into the queue. False: another process changed it meanwhile; look again."""
    before = ledger.meta(META)
    state = _state(before)
    if state is None:
        state = State(cursor=ledger.last_event())
    last = ledger.last_event()
    events = ledger.events(actions=notices.ACTIONS, after_id=state.cursor, limit=_LINES)
    facts = {job: _facts(ledger, job) for job in {e.job for e in events if e.job}}
    new = notices.from_events(events, facts)
    back, windows = notices.resets(state.windows, balances, now)
    invited, remembered = notices.invitations(state.invited, wanted, now)
    cursor = state.cursor
    if events:
        cursor = events[-1].id
    elif last - cursor > _IDLE:
        cursor = last
    wants = {digest: address.on for digest, address in addresses.items()}
    queue = notices.queued(state, [*new, *back, *invited], wants)
    queue = tuple(entry for entry in (_known(entry, addresses) for entry in queue) if entry.to)
    after = State(cursor=cursor, queue=queue, invited=remembered, windows=windows).to_json()
    return after == before or ledger.swap_meta(META, before, after)


def _known(entry: Queued, addresses: dict[str, Address]) -> Queued:
    """Without addresses that were removed."""
    return replace(entry, to=tuple(digest for digest in entry.to if digest in addresses))


def _claim(ledger: Ledger, now: datetime, addresses: dict[str, Address]) -> Queued | None:
    """Take the next notice that is due off the queue; None: there is none."""
    while True:
        before = ledger.meta(META)
        state = _state(before)
        due = [
            entry
            for entry in (state.queue if state else ())
            if (entry.after is None or entry.after <= now) and set(entry.to) <= set(addresses)
        ]
        if state is None or not due:
            return None
        queue = tuple(entry for entry in state.queue if entry is not due[0])
        if ledger.swap_meta(META, before, replace(state, queue=queue).to_json()):
            return due[0]


def _give_back(
    ledger: Ledger,
    now: datetime,
    entry: Queued,
    failed: Sequence[tuple[str, str]],
    addresses: dict[str, Address],
) -> None:
    """For another try, at the addresses that it did not reach; or give it up."""
    again = notices.put_off(entry, [digest for digest, _ in failed], now)
    for digest, reason in failed:
        then = "it is given up" if again is None else "it is tried again"
        log.warning(
            "could not notify %s that %s (%s); %s",
            addresses[digest].shown,
            entry.notice.title,
            reason,
            then,
        )
    while again is not None:
        before = ledger.meta(META)
        state = _state(before) or State()
        queue = (*state.queue, again)
        if ledger.swap_meta(META, before, replace(state, queue=queue).to_json()):
            return


def _state(text: str | None) -> State | None:
    if text is None:
        return None
    try:
        return State.from_json(text)
    except ValueError:
        log.warning("what was remembered of notices is unreadable; they begin anew")
        return None


def _facts(ledger: Ledger, job_id: str) -> JobFacts:
    try:
        job = ledger.job(job_id)
    except FreeGPUError:
        return JobFacts(name=job_id)
    took = (job.ended_at - job.created_at).total_seconds() if job.ended_at else None
    return JobFacts(
        name=job.name,
        why=job.why,
        attempts=job.attempts,
        lost_s=job.lost_s,
        took_s=None if took is None else max(0.0, took),
        has_checkpoint=job.checkpoint is not None,
    )


# --- beside the ticks ------------------------------------------------------------------------------------


class Notifier:
    """Sends beside a process that ticks: `note` after every tick, `finish` at the end of the process.

    The first tick only marks that there may be news: a command that ticks once sends after its output, in
    `finish`. From the second tick on (`logs -f`) it sends in the background; `up` calls `start` at once.
    """

    def __init__(self, home: Path, db: str, clock: Clock) -> None:
        self._home = home
        self._db = db
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._ticks = 0
        self._news: tuple[Sequence[Balance], Sequence[Attended]] | None = None

    def note(
        self, balances: Callable[[], Sequence[Balance]], wanted: Sequence[Attended] = ()
    ) -> None:
        """A tick has ended. Returns within milliseconds, raises nothing.

        `balances` is asked only if somebody wants to be told; `wanted` are the invitations that stand now.
        """
        if not (self._home / FILE_NAME).exists():
            return
        try:
            self._news = (tuple(balances()), tuple(wanted))
        except FreeGPUError as error:
            log.warning("no notices about quotas: %s", error)
            self._news = ((), tuple(wanted))
        self._ticks += 1
        if self._ticks > 1:
            self.start()

    def start(self) -> None:
        """Send in the background, if there may be news and no round is under way. Raises nothing."""
        if self._news is None or (self._thread is not None and self._thread.is_alive()):
            return
        news, self._news = self._news, None
        self._thread = threading.Thread(
            target=self._round, args=news, name="freegpu-notify", daemon=True
        )
        self._thread.start()

    def finish(self, timeout_s: float = FINISH_S) -> bool:
        """Send what is new, and wait so long for it; whether it is done. Raises nothing."""
        until = time.monotonic() + timeout_s
        for _ in range(2):  # the round under way, then one for what came since
            if self._thread is not None:
                self._thread.join(max(0.0, until - time.monotonic()))
            self.start()
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        return self._thread is None or not self._thread.is_alive()

    def _round(self, balances: Sequence[Balance], wanted: Sequence[Attended]) -> None:
        try:
            from freegpu.orchestrator.ledger import Ledger

            with Ledger.open(self._db, clock=self._clock) as ledger:
                pump(
                    self._home,
                    ledger,
                    lambda: utc(self._clock),
                    until=time.monotonic() + LIMIT_S,
                    balances=balances,
                    wanted=wanted,
                )
        except FreeGPUError as error:
            log.warning("no notices could be sent: %s", error)
        except Exception:
            # whatever a service's plugin does, the orchestrator goes on
            log.exception("no notices could be sent", extra={"action": "notify_failed"})

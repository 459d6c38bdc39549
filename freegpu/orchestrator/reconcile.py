"""One tick: observe, decide, act. The only place where the three meet.

Work happens outside transactions and every commit is guarded, so a tick may die anywhere and the next one goes
on. Whoever ticks holds the home's orchestrator lock (`operations` and `daemon` see to that).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from freegpu.adapters.base import Adapter, Offer, QuotaReport, Window, WindowKind
from freegpu.agent.stores.base import Store, StoreError
from freegpu.agent.wire import session_key
from freegpu.config import Settings
from freegpu.errors import AdapterError
from freegpu.jobs.lifecycle import SessionState
from freegpu.orchestrator import (
    builds,
    cells,
    history,
    learned,
    placement,
    quota,
    reckoning,
    shared,
    spending,
    standing,
)
from freegpu.orchestrator.act import Actor, Identity
from freegpu.orchestrator.events import EventDesk
from freegpu.orchestrator.lanes import Lanes
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import Mailbox
from freegpu.orchestrator.model import (
    Action,
    Balance,
    EntryKind,
    Figures,
    FreeSlot,
    Place,
    Running,
    Session,
    Snapshot,
    StartSession,
    Waiting,
)
from freegpu.orchestrator.observe import Observer
from freegpu.orchestrator.pace import pace
from freegpu.orchestrator.speeds import Kin
from freegpu.orchestrator.witness import Witness

#: a live quota reading is asked for again after this long, seconds
READING_S = 60.0
#: what a platform offered is written down again after so long, seconds
KNOWN_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TickReport:
    """What one tick did, and what it could not do, as sentences."""

    actions: tuple[str, ...]
    problems: tuple[str, ...]
    #: what decided, with the jobs that still wait after it
    left: Snapshot = field(default_factory=Snapshot)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What a platform answered."""

    offers: tuple[Offer, ...]
    quota: tuple[QuotaReport, ...] = ()
    #: the offers came, the quota did not
    error: AdapterError | None = None


class Reconciler:
    """Everything a tick needs, put together once."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        store: Store,
        adapters: Mapping[str, Adapter],
        identity: Identity,
        settings: Settings,
        now: Callable[[], datetime],
        lanes: Lanes | None = None,
    ) -> None:
        self.ledger = ledger
        self.store = store
        self.adapters = adapters
        self.identity = identity
        self.settings = settings
        self.now = now
        self.desk = EventDesk(ledger, store, now)
        #: platforms are asked beside each other; a start or an upload may outlast a tick
        self.lanes = lanes or Lanes()
        self._welcomed: datetime | None = None
        #: whose progress tells about which job
        self._families: dict[str, Kin] = {}
        #: session -> what our last heartbeat to it said, and when
        self._answered: dict[str, tuple[Any, datetime]] = {}

    def mailbox(self, session: str) -> Mailbox:
        """The orchestrator's end of a session's mailbox."""
        return Mailbox(self.store, session, session_key(self.identity.key, session))

    def tick(self) -> TickReport:
        """Observe, decide, act, once. Raises only LedgerError: everything else is a problem it reports."""
        observer = self._observer()
        actor = self._actor()
        problems: list[str] = []
        try:
            problems += self._welcome()
        except StoreError as error:
            problems.append(str(error))
        problems += observer.run()
        left = Snapshot()
        try:
            actor.settle()
            actor.catch_up()
            snapshot = self.snapshot(problems)
            witness = Witness()
            actions = placement.decide(snapshot, self.now(), witness)
            actor.decisions = witness.decisions
            placed = {assignment.job for action in actions for assignment in action.placed}
            left = replace(
                snapshot, waiting=tuple(j for j in snapshot.waiting if j.id not in placed)
            )
            for action in actions:
                actor.act(action)
            actor.release_idle(waiting=bool(snapshot.waiting))
            actor.save_before_spent(self._spent_in())
            actor.answer()
        except StoreError as error:
            problems.append(str(error))
        return TickReport(
            actions=tuple(actor.done),
            problems=tuple(dict.fromkeys(problems + actor.problems)),
            left=left,
        )

    def end_session(self, session: Session, why: str) -> None:
        """Give up on a session now: its attempts end, and its platform is asked to end it; later ticks see to the rest."""
        self._observer().fence(session, why)

    def _welcome(self) -> list[str]:
        """Take in sessions that people have begun, as often as the store may be asked."""
        now, rest_s = self.now(), pace(self.settings, self.store.properties).rest_s
        if self._welcomed is not None and 0 <= (now - self._welcomed).total_seconds() < rest_s:
            return []
        self._welcomed = now
        return cells.adopt(self.ledger, self.store, self.identity.key, self.adapters, now)

    def rehearse(self, actions: Sequence[Action]) -> list[tuple[str, Mapping[str, Any]]]:
        """(platform, the exact request) for each session that these actions would start; nothing is started."""
        actor = self._actor()
        return [
            (action.offer.platform, actor.request(action).payload)
            for action in actions
            if isinstance(action, StartSession)
        ]

    def _observer(self) -> Observer:
        rhythm = pace(self.settings, self.store.properties)
        return Observer(
            ledger=self.ledger,
            adapters=self.adapters,
            mailbox=self.mailbox,
            desk=self.desk,
            now=self.now,
            silent_polls=self.settings.silent_polls,
            poll_gap_s=rhythm.gap_s,
            rest_s=rhythm.rest_s,
            lanes=self.lanes,
            home=self.identity.home,
        )

    def _actor(self) -> Actor:
        return Actor(
            ledger=self.ledger,
            store=self.store,
            adapters=self.adapters,
            mailbox=self.mailbox,
            desk=self.desk,
            identity=self.identity,
            settings=self.settings,
            now=self.now,
            answered=self._answered,
            lanes=self.lanes,
        )

    # --- what decisions are made on ---------------------------------------------------------------------

    def snapshot(
        self,
        problems: list[str] | None = None,
        *,
        always: bool = False,
        places: Sequence[Place] | None = None,
    ) -> Snapshot:
        """Jobs that wait, slots that are free, places that could be had. Asks platforms only if a job waits.

        `always` asks them anyway (for `why`); failures are added to `problems`. `places`: they have been asked.
        """
        waiting = self.ledger.waiting(self.now())
        if not waiting and not always:
            return Snapshot()
        waiting = self.with_learned_lengths(waiting)
        sessions = self.ledger.sessions(open_only=True)
        return Snapshot(
            waiting=waiting,
            free_slots=self._free_slots(sessions),
            places=tuple(
                self.places(sessions, problems if problems is not None else [])
                if places is None
                else places
            ),
            running=self._running(sessions),
            lately=standing.asked_lately(self.ledger, self.now()),
            came=standing.came_lately(self.ledger, self.now()),
            goal=self.settings.goal,
        )

    def _running(self, sessions: list[Session]) -> tuple[Running, ...]:
        found = standing.running(self.ledger, sessions, self.now())
        jobs = {job.id: job for job in self.with_learned_lengths(tuple(one.job for one in found))}
        return tuple(replace(one, job=jobs[one.job.id]) for one in found)

    def with_learned_lengths(
        self, waiting: tuple[Waiting, ...], new: Mapping[str, Kin] | None = None
    ) -> tuple[Waiting, ...]:
        """A job that has run, or whose kin has, knows better than its estimate how long the rest takes.

        `new`: the kin of jobs that the ledger does not have.
        """
        book, families = history.book(self.ledger, self._families)
        if book is None:
            return waiting
        return tuple(
            book.told(job, families.get(job.id) or (new or {}).get(job.id)) for job in waiting
        )

    def _free_slots(self, sessions: list[Session]) -> tuple[FreeSlot, ...]:
        """Slots of sessions that are alive now and take work; a silent session gets none."""
        free = []
        for session in sessions:
            if (
                session.state is not SessionState.LIVE
                or session.silent_polls
                or session.offer.sealed
            ):
                continue  # also a sealed one: no ticket reaches it any more
            if session.beat.get("state") not in ("idle", "running"):
                continue
            taken = {a.slot for a in self.ledger.attempts(session=session.id, open_only=True)}
            offer = session.offer
            if session.card_seen and session.card_seen != offer.card:
                offer = replace(offer, card=session.card_seen)
            left = session.beat.get("left_s")
            free += [
                FreeSlot(
                    session=session.id,
                    slot=slot,
                    offer=offer,
                    left_s=float(left) if isinstance(left, int | float) else None,
                )
                for slot in range(session.count)
                if slot not in taken
            ]
        return tuple(free)

    def places(self, sessions: list[Session], problems: list[str]) -> list[Place]:
        """Every configured platform as it is now, all of them asked at once.

        One that does not answer in time is a place that is closed for now, with what was last known of it.
        """
        blocked = self.ledger.places()
        looks = {name: self._look(name, adapter) for name, adapter in self.adapters.items()}
        answers = self.lanes.ask_all("look", looks)
        found = []
        for name, adapter in sorted(self.adapters.items()):
            block = blocked.get(name)
            until, why = (block.until, block.why) if block is not None else (None, "")
            unseen, as_of = shared.unseen(self.settings, adapter), None
            try:
                seen = answers[name]()
                offers = seen.offers
                self._keep(name, adapter, seen)
                if seen.error is not None:
                    raise seen.error
            except AdapterError as error:
                problems.append(f"{name}: {error.message}")
                until, why = self.now() + timedelta(seconds=30), error.message
                offers, as_of = standing.last_offers(self.ledger, name)
            closed = until is not None and until > self.now()
            lost, lived = 0.0, math.inf  # nobody takes one's own machine away
            if not adapter.capabilities.here:
                lost, lived = standing.losses(self.ledger, name, adapter.account, self.now())
            found.append(
                Place(
                    platform=name,
                    account=adapter.account,
                    capabilities=adapter.capabilities,
                    offers=() if unseen else _marked(offers, adapter.capabilities.sealed),
                    open_sessions=sum(s.platform == name for s in sessions),
                    balances=tuple(self.balances(name, adapter, sessions)),
                    learned=self.learned(name, adapter),
                    losses=lost,
                    exposure_s=lived,
                    archs=self._archs(name, adapter),
                    blocked_until=until if closed else None,
                    blocked_why=unseen or (why if closed else ""),
                    as_of=as_of,
                )
            )
        return found

    def _look(self, name: str, adapter: Adapter) -> Callable[[], _Seen]:
        """How to ask a platform for its offers and, where a reading is due, its quota; touches no ledger."""
        due = self._reading_due(name, adapter)

        def look() -> _Seen:
            offers = tuple(adapter.offers())
            try:
                return _Seen(offers=offers, quota=tuple(adapter.quota() or ()) if due else ())
            except AdapterError as error:
                return _Seen(offers=offers, error=error)

        return look

    def _keep(self, name: str, adapter: Adapter, seen: _Seen) -> None:
        """Remember what a platform said: readings in the ledger, offers for the days when it does not answer."""
        for report in seen.quota:
            self._correct(name, adapter, report)
            self.ledger.add_reading(
                name,
                adapter.account,
                report.pool,
                used_s=report.used_s,
                limit_s=report.limit_s,
                resets_at=report.resets_at,
                as_of=report.as_of,
            )
        if adapter.capabilities.here or adapter.capabilities.attended:
            return  # asking costs nothing and does not fail
        told = [asdict(offer) for offer in seen.offers]
        before = json.loads(self.ledger.meta(standing.offers_key(name)) or "{}")
        at = datetime.fromisoformat(before["as_of"]) if before else None
        if before.get("offers") != json.loads(json.dumps(told)) or (
            at is None or abs((self.now() - at).total_seconds()) > KNOWN_S
        ):
            line = {"as_of": self.now().isoformat(), "offers": told}
            self.ledger.set_meta(standing.offers_key(name), json.dumps(line))

    def _correct(self, name: str, adapter: Adapter, report: QuotaReport) -> None:
        window = adapter.windows.get(report.pool)
        if window is None:
            return
        login = {"platform": name, "account": adapter.account, "pool": report.pool}
        entries = self.ledger.entries(**login, since=report.as_of - _reach(window))
        there = [
            session
            for session in self.ledger.sessions(open_only=True, platform=name)
            if session.pool == report.pool
        ]
        found = reckoning.correction(window, entries, there, report)
        if found is not None:
            self.ledger.add_entry(
                kind=EntryKind.ADJUST,
                amount_s=found.amount_s,
                note=found.note,
                at=report.as_of,
                **login,
            )

    def learned(self, name: str, adapter: Adapter) -> dict[str, Figures]:
        """What past sessions showed of each pool whose limit the platform does not publish."""
        pools = {pool: w for pool, w in adapter.windows.items() if learned.unpublished(w)}
        if not pools:
            return {}
        past = self.ledger.sessions(
            open_only=False, platform=name, account=adapter.account, limit=4 * learned.MOST
        )
        return {
            pool: learned.learn([s for s in past if s.pool == pool], window, self.now())
            for pool, window in pools.items()
        }

    def _archs(self, name: str, adapter: Adapter) -> dict[str, tuple[str, ...]]:
        """What the PyTorch there was built for. Whoever meters its cards runs one image on all of them."""
        metered = any(w.kind is not WindowKind.NONE for w in adapter.windows.values())
        return builds.known(self.ledger.meta(builds.key(name)), self.now(), one_image=metered)

    def _reading_due(self, name: str, adapter: Adapter) -> bool:
        if not adapter.capabilities.reports_quota:
            return False
        newest = [r.as_of for r in self.ledger.readings(platform=name)]
        patience = timedelta(seconds=min(READING_S, 4 * self.settings.tick_s))
        return not newest or self.now() - max(newest) >= patience

    def _spent_in(self) -> dict[tuple[str, str], float]:
        """(platform, pool) -> seconds until what runs there has spent it; only pools that will be."""
        found = {}
        sessions = [s for s in self.ledger.sessions(open_only=True) if s.pool and s.started_at]
        for name, pool in sorted({(s.platform, s.pool) for s in sessions}):
            adapter = self.adapters.get(name)
            window = None if adapter is None else adapter.windows.get(pool)
            if adapter is None or window is None or window.kind is WindowKind.NONE:
                continue
            login = {"platform": name, "account": adapter.account, "pool": pool}
            readings = {r.pool: r for r in self.ledger.readings(platform=name)}
            left_s = spending.spent_in(
                window,
                self.ledger.entries(**login, since=self.now() - _reach(window)),
                readings.get(pool),
                [s for s in sessions if (s.platform, s.pool) == (name, pool)],
                self.now(),
            )
            if left_s is not None:
                found[name, pool] = left_s
        return found

    def balances(self, name: str, adapter: Adapter, sessions: list[Session]) -> list[Balance]:
        """What is left of each pool of a platform."""
        readings = {r.pool: r for r in self.ledger.readings(platform=name)}
        found = []
        for pool, window in sorted(adapter.windows.items()):
            if window.kind is WindowKind.NONE:
                continue
            entries = self.ledger.entries(
                platform=name,
                account=adapter.account,
                pool=pool,
                since=self.now() - _reach(window),
            )
            balance = quota.balance(
                window,
                entries,
                readings.get(pool),
                [s for s in sessions if s.platform == name and s.pool == pool],
                self.now(),
                platform=name,
                account=adapter.account,
                pool=pool,
            )
            found.append(reckoning.aged(balance, entries, self.now()))
        return found


def _marked(offers: Sequence[Offer], sealed: bool) -> tuple[Offer, ...]:
    """The offers, with whether their sessions will be sealed: a session stays what it was when it began."""
    return tuple(replace(offer, sealed=sealed) for offer in offers)


def _reach(window: Window) -> timedelta:
    """How far back entries can still matter. A prepaid balance remembers everything."""
    if window.kind is WindowKind.PREPAID:
        return timedelta(days=36500)
    return timedelta(days=40) + timedelta(seconds=2 * window.period_s)

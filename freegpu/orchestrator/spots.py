"""Where a job could go, and which of these fit it at all. Pure.

Which platforms a job may use is told here, with the sentence; which machines do, in `machines`. Values that make no sense
(a negative limit, not a number) are read as harmlessly as possible, so that a decision never fails. How long a job would take
at a spot is computed in `expectation`; which one is chosen, in `placement`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache

from freegpu import cards
from freegpu.adapters.base import Offer, WindowKind
from freegpu.jobs.model import Needs, Remembers
from freegpu.orchestrator.machines import Shape, either, misfit, shape_of
from freegpu.orchestrator.model import Balance, FreeSlot, Learned, Place, Waiting

__all__ = [
    "Ask",
    "Budget",
    "Kind",
    "Login",
    "Shape",
    "Spot",
    "SpotKind",
    "blocked",
    "length",
    "misfit",
    "seconds_until",
    "shape_of",
    "span_text",
    "unfit",
]

#: a job that says nothing about its length is taken as this long on a T4
UNKNOWN_LENGTH_S = 3600.0
#: a session must leave room for this much work besides start and grace: half the grace, and at least this
LEAST_WORK_S = 2.0
#: a platform and the login on it
Login = tuple[str, str]

#: what a checkpoint costs a job that has not shown it yet, seconds of its slot
SAVE_S = 30.0
#: credits that never come back count as if a month brought them, seconds
NEVER_S = 30.4 * 86400.0
#: sessions of a platform that we know nothing of are lost about twice a day: one loss in so long, seconds
PRIOR_LOSS_S = 12 * 3600.0
#: whoever loses more than one session in ten minutes is not told apart, per second
MOST_LOST = 1 / 600
#: checkpoints are not closer together than this, seconds
CLOSEST_S = 360.0
#: longer than any computation; keeps the arithmetic finite
_AGE_S = 1e10
_DAY_S = 86400.0
#: windows whose length the calendar gives
_PERIODS = {WindowKind.FIXED_WEEKLY: 7 * _DAY_S, WindowKind.MONTHLY: 30.4 * _DAY_S}
#: quotas are spoken of in hours: below this a span is not put into days
_DAYS_FROM_S = 72 * 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind(Remembers):
    """What decides whether a place fits. Jobs of one kind are judged once."""

    needs: Needs
    grace_s: float
    avoid: tuple[tuple[str, str], ...]

    def __hash__(self) -> int:
        try:
            return self.memo  # type: ignore[no-any-return]
        except AttributeError:
            self.remember(hash((self.needs, self.grace_s, self.avoid)))
            return hash((self.needs, self.grace_s, self.avoid))

    @classmethod
    def of(cls, job: Waiting) -> Kind:
        return _kind(
            job.needs,
            _finite(job.grace_s),
            tuple(sorted(job.avoid.items())) if job.avoid else (),
        )

    @property
    def least_s(self) -> float:
        """What a session must hold after its start to be worth it: some work, then the grace."""
        return least_s(self.grace_s)

    @property
    def narrow(self) -> bool:
        """Whether some platforms are out of the question."""
        return bool(self.needs.platforms or self.avoid)

    def allows(self, platform: str) -> bool:
        """Whether it may go there at all."""
        allowed = self.needs.platforms
        if allowed and platform not in allowed:
            return False
        return not self.avoid or all(name != platform for name, _ in self.avoid)

    def refused(self, platform: str) -> str:
        """Why this platform is out of the question, "" if it is not."""
        if self.allows(platform):
            return ""
        allowed = self.needs.platforms
        if allowed and platform not in allowed:
            return f"the job allows only {either(allowed)}"
        why = dict(self.avoid)[platform]
        return f"avoided for now: {why}" if why else "avoided for now"


@lru_cache(maxsize=65536)
def _kind(needs: Needs, grace_s: float, avoid: tuple[tuple[str, str], ...]) -> Kind:
    """One object for each kind: looking it up need not compare all that it holds."""
    return Kind(needs=needs, grace_s=grace_s, avoid=avoid)


def least_s(grace_s: float) -> float:
    """What a session must hold after its start for a job with this grace; grows with it."""
    return grace_s + max(LEAST_WORK_S, grace_s / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A kind of job with its length."""

    kind: Kind
    #: seconds that remain on a T4
    work_s: float
    #: whether the length is an assumption
    assumed: bool
    #: what a checkpoint costs it, seconds
    save_s: float = SAVE_S
    #: card -> speed relative to a T4 where it was seen to run; elsewhere the card table counts
    speeds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Waiting) -> Ask:
        """Learned from its own progress, else estimated, else assumed."""
        try:
            known: Ask = job.memo
        except AttributeError:
            work, assumed = length(job)
            save = SAVE_S if job.save_s is None else _finite(job.save_s)
            kind = Kind.of(job)
            known = cls(kind=kind, work_s=work, assumed=assumed, save_s=save, speeds=job.speeds)
            # a job that waits is asked about again and again, and does not change
            job.remember(known)
        return known

    def speed(self, card: str) -> float:
        """Of this job on a card, relative to a T4."""
        seen = self.speeds.get(card, 0.0)
        return seen if seen > 0 else cards.speed(card, self.kind.needs.workload)


def length(job: Waiting) -> tuple[float, bool]:
    """(T4 seconds that remain, whether that is an assumption)."""
    if job.remaining_t4_s is not None and not math.isnan(job.remaining_t4_s):
        return _finite(job.remaining_t4_s), False
    share = min(1.0, _amount(job.remaining, 1.0))
    if job.estimate is None:
        return UNKNOWN_LENGTH_S * share, True
    whole = job.estimate.seconds * cards.speed(job.estimate.card, job.needs.workload)
    return _finite(whole * share), False


@dataclass(kw_only=True, slots=True, eq=False)
class Budget:
    """A pool of quota while one decision reserves from it, in session seconds at rate 1."""

    left_s: float = math.inf
    limit_s: float = math.inf
    #: seconds until it is full again, and from then on; None: it does not come back
    refill_in_s: float | None = None
    period_s: float | None = None
    #: the most that sessions at once can use of it, quota seconds a second
    burn: float = math.inf
    #: it comes back bit by bit
    trickles: bool = False

    @classmethod
    def of(cls, balance: Balance, now: datetime, burn: float = math.inf) -> Budget:
        window = balance.window
        if window.kind in (WindowKind.NONE, WindowKind.PER_SESSION) or balance.left_s is None:
            return cls()
        period = _PERIODS.get(window.kind)
        if window.kind in (WindowKind.ROLLING, WindowKind.FROM_FIRST_USE):
            period = min(_AGE_S, _amount(window.period_s, 7 * _DAY_S))
        refill_in = None if balance.resets_at is None else seconds_until(balance.resets_at, now)
        return cls(
            left_s=_amount(balance.left_s, 0.0),
            limit_s=_amount(balance.limit_s, math.inf),
            refill_in_s=period if refill_in is None else max(0.0, refill_in),
            period_s=period,
            burn=burn,
            trickles=window.kind is WindowKind.ROLLING,
        )


class SpotKind(IntEnum):
    """Where a job could go; what is there already comes first."""

    LIVE = 0  #: a free slot of a live session
    PLANNED = 1  #: a further slot of a session that this very decision starts
    NEW = 2  #: a session that would have to be started


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What an offer says, where it makes sense."""

    shape: Shape
    login: Login
    rate: float
    limit_s: float
    delay_s: float

    @classmethod
    def of(cls, offer: Offer) -> _Facts:
        try:
            known: _Facts = offer.memo
        except AttributeError:
            known = cls(
                shape=shape_of(offer),
                login=(offer.platform, offer.account),
                rate=min(_AGE_S, _amount(offer.rate, 1.0)),
                limit_s=_amount(offer.session_limit_s, math.inf),
                delay_s=_finite(offer.start_delay_s),
            )
            offer.remember(known)
        return known


@dataclass(kw_only=True, slots=True, eq=False)
class Spot:
    """One place that a job could go to, as long as it is not gone."""

    kind: SpotKind
    offer: Offer
    budget: Budget
    #: which jobs it fits, and whose it is
    shape: Shape
    login: Login
    #: of its shape among those of one decision
    number: int = -1
    #: quota seconds a second of session, and the longest session, seconds
    rate: float
    limit_s: float
    delay_s: float
    #: why nobody may start a session here now, "" if one may
    closed: str = ""
    attended: bool = False
    session: str = ""
    slot: int = 0
    #: seconds that a live session has left
    left_s: float = math.inf
    #: how long a session probably lasts, as past ones showed, seconds: forbids nothing; and in words
    soft_s: float = math.inf
    soft_text: str = ""
    #: quota that this decision has reserved for a planned session
    reserved_s: float = 0.0
    #: how long other slots keep a live session open anyway, seconds
    kept_open_s: float = 0.0
    #: sessions there are lost so often, per second
    loss_rate: float = 0.0
    #: slots that are still free (planned), sessions that may still be started (new)
    free: float = 1
    gone: bool = False
    #: place in the order of names; breaks ties
    rank: int = 0
    #: how long a session may last by the quota, and how long the first one lasts from now, seconds: see `measure`
    quota_s: float = math.inf
    room_s: float = math.inf
    #: the quota lasts for less than a session, and more of it will come
    poor: bool = False
    #: what of the quota a job may take, by its claim, as far as somebody asked since the last look
    allowances: dict[tuple[Collection[Login], bool], float] = field(default_factory=dict)

    def measure(self) -> None:
        """Note how long sessions may be now; to be called again when quota was taken."""
        self.allowances = {}
        if self.rate > 0:
            self.quota_s = (self.budget.left_s + self.reserved_s) / self.rate
        new = self.kind is not SpotKind.LIVE
        self.room_s = min(self.limit_s, self.quota_s) if new else self.left_s
        self.poor = (
            self.kind is SpotKind.NEW
            and self.quota_s < self.limit_s
            and self.budget.refill_in_s is not None
        )

    @classmethod
    def of_slot(cls, slot: FreeSlot, place: Place | None, budget: Budget) -> Spot:
        spot = cls._of(SpotKind.LIVE, slot.offer, place, budget)
        spot.session, spot.slot = slot.session, slot.slot
        spot.left_s = _amount(slot.left_s, math.inf)
        spot.measure()
        return spot

    @classmethod
    def of_offer(cls, place: Place, offer: Offer, budget: Budget, now: datetime) -> Spot:
        spot = cls._of(SpotKind.NEW, offer, place, budget)
        spot.closed, spot.attended = blocked(place, now), place.capabilities.attended
        spot.free = math.inf if offer.available is None else max(0, offer.available)
        spot.measure()
        return spot

    @classmethod
    def of_planned(cls, new: Spot) -> Spot:
        """The slots of a session that is about to be started."""
        return replace(new, kind=SpotKind.PLANNED, free=new.offer.count)

    @classmethod
    def _of(cls, kind: SpotKind, offer: Offer, place: Place | None, budget: Budget) -> Spot:
        longest, loss_rate = math.inf, 0.0
        archs: tuple[str, ...] = ()
        seen: Learned | None = None
        if place is not None:
            longest = _amount(place.capabilities.max_session_s, math.inf)
            loss_rate = _loss_rate(place)
            if place.learned and (figures := place.learned.get(offer.pool)) is not None:
                seen = figures.session
            if place.archs:
                archs = place.archs.get(offer.card, place.archs.get("", ()))
        usual = None if seen is None else seen.median_s
        facts = _Facts.of(offer)
        return cls(
            kind=kind,
            offer=offer,
            budget=budget,
            shape=shape_of(offer, archs) if archs else facts.shape,
            login=facts.login,
            rate=facts.rate,
            limit_s=min(longest, facts.limit_s),
            delay_s=facts.delay_s,
            soft_s=math.inf if usual is None else _amount(usual, math.inf),
            loss_rate=loss_rate,
            soft_text="" if seen is None or usual is None else seen.text,
        )

    @property
    def lasts_s(self) -> float | None:
        """How long a session that starts now may last: the platform's limit, or until its quota is spent; None: for ever."""
        budget = self.budget
        comes_s = math.inf if budget.refill_in_s is None or budget.trickles else budget.refill_in_s
        # what is full again before it is spent ends no session
        lasts = self.limit_s if comes_s < self.quota_s else min(self.limit_s, self.quota_s)
        return None if lasts == math.inf else lasts

    @property
    def name(self) -> str:
        many = f" x{self.offer.count}" if self.offer.count > 1 else ""
        label = f"{self.offer.platform} {self.offer.card}{many}"
        live = self.kind is SpotKind.LIVE
        return f"{label}, slot {self.slot} of session {self.session}" if live else label

    def reserve(self, ask: Ask) -> float:
        """Quota seconds to set aside for a session with this job; the whole session if its length is a guess."""
        if not self.offer.pool:
            return 0.0
        longest = min(self.limit_s, self.quota_s)
        run = self.delay_s + ask.work_s / self.speed(ask) + ask.kind.grace_s
        guess = ask.assumed and longest < math.inf
        return self.rate * (longest if guess else min(longest, run))

    def speed(self, ask: Ask) -> float:
        """Relative to a T4."""
        return ask.speed(self.offer.card)

    def useful(self, ask: Ask) -> float:
        """The share of a session that is progress: the rest are saves, work done twice and new starts (Young 1974, Daly 2006)."""
        rate, save = self.loss_rate, ask.save_s
        if rate <= 0:
            return 1.0
        every = max(CLOSEST_S, math.sqrt(2 * save / rate))
        return 1 / (1 + save / every + rate * (every / 2 + self.delay_s))


def _loss_rate(place: Place) -> float:
    """Losses per second of session: what was seen, and one loss in half a day that we would expect unseen."""
    exposure = _amount(place.exposure_s, math.inf)
    if exposure == math.inf:
        return 0.0
    return min(MOST_LOST, (1 + _amount(place.losses, 0.0)) / (PRIOR_LOSS_S + exposure))


def unfit(kind: Kind, shape: Shape) -> tuple[str, int]:
    """Why the job cannot run on such a machine ("" if it can), and the place of the card in its list."""
    return misfit(kind.needs, shape)


def blocked(place: Place, now: datetime) -> str:
    """Why no session is started on this platform for the moment, "" if one may be."""
    if place.blocked_until is None or (left := seconds_until(place.blocked_until, now)) <= 0:
        return ""
    return f"left alone for {span_text(left)}" + (
        f": {place.blocked_why}" if place.blocked_why else ""
    )


def seconds_until(moment: datetime, now: datetime) -> float:
    """From now to then; a time without a zone is read as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if now.tzinfo is None:
        now = now.replace(tzinfo=UTC)
    return (moment - now).total_seconds()


def span_text(seconds: float) -> str:
    """A span as people say it, to two units: `45 s`, `5 h 10 min`, `30 h`, `3 d 4 h`."""
    if seconds >= 1000 * _DAY_S:
        return "more than 1000 d"
    step = 1 if seconds < 600 else 60 if seconds < _DAYS_FROM_S else 3600
    rest = step * round(seconds / step)
    parts = []
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for unit, size in units if rest >= _DAYS_FROM_S else units[1:]:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def _amount(value: float | None, default: float) -> float:
    """A length that is not negative; what is missing or not a number becomes the default."""
    if value is None or math.isnan(value):
        return default
    return value if value > 0.0 else 0.0


def _finite(value: float) -> float:
    if 0.0 < value < _AGE_S:
        return value
    return min(_AGE_S, _amount(value, 0.0))

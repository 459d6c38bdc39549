"""What the last weeks brought: hours used and expired, work gained and lost, how busy the cards were. Reads only.

Only what the ledger holds is told; what it does not hold is said to be unknown. Gained hours are counted in
hours of a T4, by the card table. Quota expires only since the ledger knows of its platform: what ended before was not
freegpu's to use, and of a window that had begun before, no more counts than sessions could have used since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from freegpu import cards
from freegpu.adapters.base import Window, WindowKind
from freegpu.jobs.lifecycle import AttemptState
from freegpu.orchestrator import gpu_use, hindsight, quota, remedies, standing
from freegpu.orchestrator.hindsight import INTERRUPTIONS, Saving
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Attempt, Entry, EntryKind, Reading, Session
from freegpu.orchestrator.spots import span_text

__all__ = ["JobUse", "PoolUse", "Report", "expired", "look_back"]

#: below this mean use a card waits for data, above so many looks
IDLE_PERCENT, LOOKS = 50.0, 10
_STEP = timedelta(seconds=1)
#: a platform tells its reset to the second or so
_NEAR = timedelta(hours=1)
#: a window that ended in the period may have been read so long before it
_LONGEST = timedelta(days=31)


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolUse:
    """One pool of a platform ("" for what draws on none); seconds."""

    platform: str
    pool: str
    sessions: int
    #: how long sessions were open
    open_s: float
    #: quota that was charged
    charged_s: float
    #: quota of windows that ended unused; None: not known
    expired_s: float | None
    #: live (the platform's own word) or ledger (freegpu's own count); "" where nothing is known
    expired_by: str
    #: how long commands ran, and what that was worth on a T4
    ran_s: float
    t4_s: float
    #: of it, what was lost to interruptions
    lost_s: float
    interruptions: int


@dataclass(frozen=True, slots=True)
class Known:
    """Since when a platform was there to be used, and how fast its quota could have been."""

    since: datetime
    #: the most quota seconds a second, by all sessions that may be open at once
    burn: float = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A window of a quota that ended."""

    at: datetime
    #: what was left of it, seconds
    spare_s: float
    #: live or ledger: who says so
    by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JobUse:
    """How busy a job kept its card."""

    job: str
    name: str
    platform: str
    card: str
    looks: int
    percent: float
    #: CPUs beside the card; 0: not known
    cpus: float
    #: what could be done about it; "" where it is busy, or too little was seen
    hint: str
    #: how long its commands ran where they were looked at, and of that how long the card waited: (1 - use) x hours
    ran_s: float = 0.0
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """From `since` to `until`."""

    since: datetime
    until: datetime
    pools: tuple[PoolUse, ...]
    t4_s: float
    lost_s: float
    jobs: tuple[JobUse, ...]
    #: what cannot be told, and why
    unknown: tuple[str, ...]
    #: what would have saved more, the most first
    savings: tuple[Saving, ...] = ()
    #: how long cards waited in all, of the jobs that were looked at
    wait_s: float = 0.0


def look_back(
    ledger: Ledger,
    windows: Mapping[str, Mapping[str, Window]],
    since: datetime,
    until: datetime,
    at_once: Mapping[str, int] | None = None,
) -> Report:
    """`windows`: platform -> pool -> its quota window, of the platforms that are configured.

    `at_once`: platform -> how many sessions may be open at once; 1 where it is left out.
    """
    sessions = {s.id: s for s in ledger.sessions(open_only=False)}
    within = [a for a in ledger.attempts() if _overlap(a.started_at, a.ended_at, since, until) > 0]
    specs = {id: spec for id, _, spec in ledger.specs({a.job for a in within})}
    entries, readings = ledger.entries(), ledger.reading_history(since - _LONGEST)
    seen = ledger.first_seen()
    keys = {(s.platform, s.pool) for s in sessions.values() if _open(s, since, until) > 0}
    keys |= {(name, pool) for name, pools in windows.items() for pool in pools}
    pools, unknown, spares = [], [], []
    for platform, pool in sorted(keys):
        window = windows.get(platform, {}).get(pool)
        its = [s for s in sessions.values() if (s.platform, s.pool) == (platform, pool)]
        mine = [e for e in entries if (e.platform, e.pool) == (platform, pool)]
        told = [r for r in readings if (r.platform, r.pool) == (platform, pool)]
        # what the ledger never heard of was not there to be used
        first = seen.get(platform, until)
        burn = _burn(ledger, platform, pool, its, (at_once or {}).get(platform, 1))
        known = Known(first, burn)
        ended = windows_ended(window, mine, told, since, until, known) if window else None
        spare, by = _sum(ended)
        name = f"{platform}{f' {pool}' * bool(pool)}"
        if window is not None and window.kind is not WindowKind.NONE and ended is None:
            unknown.append(f"{name}: {_why(window)}")
        elif window is not None and windows_ended(window, mine, told, since, first):
            what = f"what expired before {remedies.moment(first)}, when freegpu first knew of it"
            never = "what expired, for freegpu has not asked there yet"
            unknown.append(f"{name}: {what if platform in seen else never}")
        spares += [hindsight.Spare(platform, pool, one.at, one.spare_s) for one in ended or ()]
        attempts = [a for a in within if a.session in {s.id for s in its}]
        line = PoolUse(
            platform=platform,
            pool=pool,
            sessions=sum(_open(s, since, until) > 0 for s in its),
            open_s=sum(_open(s, since, until) for s in its),
            charged_s=sum(
                e.amount_s for e in mine if e.kind is EntryKind.CHARGE and since <= e.at < until
            ),
            expired_s=spare,
            expired_by=by,
            ran_s=0.0,
            t4_s=0.0,
            lost_s=0.0,
            interruptions=0,
        )
        for attempt in attempts:
            workload = specs[attempt.job].needs.workload if attempt.job in specs else "general"
            line = _with(line, attempt, cards.speed(attempt.card, workload), since, until)
        if line.sessions or line.charged_s or line.expired_s:
            pools.append(line)
    jobs = _busy(within, sessions, {id: spec.name for id, spec in specs.items()}, since, until)
    silent = sorted({a.platform for a in within if a.card != "CPU" and not _told(a, sessions)})
    if silent:
        unknown.append(
            f"how busy the cards of {', '.join(silent)} were: not reported for all attempts"
        )
    savings = (*hindsight.look(ledger, spares, since, until), *_idle(jobs))
    savings = tuple(sorted(savings, key=lambda one: -one.amount_s))
    return Report(
        since=since,
        until=until,
        pools=tuple(pools),
        t4_s=sum(line.t4_s for line in pools),
        lost_s=sum(line.lost_s for line in pools),
        jobs=jobs,
        unknown=(*unknown, *hindsight.unknown(savings)),
        savings=savings,
        wait_s=sum(each.wait_s for each in jobs),
    )


def expired(
    window: Window,
    entries: Sequence[Entry],
    readings: Sequence[Reading],
    since: datetime,
    until: datetime,
    known: Known | None = None,
) -> tuple[float | None, str]:
    """Seconds that ended unused with weekly or monthly windows in the period, and who says so.

    (None, ""): the window has no fixed end, or its limit is not known.
    """
    return _sum(windows_ended(window, entries, readings, since, until, known))


def _sum(ended: Sequence[Ended] | None) -> tuple[float | None, str]:
    if ended is None:
        return None, ""
    by = "" if not ended else "ledger" if any(one.by == "ledger" for one in ended) else "live"
    return sum(one.spare_s for one in ended), by


def windows_ended(
    window: Window,
    entries: Sequence[Entry],
    readings: Sequence[Reading],
    since: datetime,
    until: datetime,
    known: Known | None = None,
) -> list[Ended] | None:
    """The weekly or monthly windows that ended in the period. None: there is no fixed end, or the limit is not known.

    The last reading before a reset is the platform's own word; without one it is freegpu's count, which does not
    know what was used beside it. `known`: windows that ended before are left out, and of one that had begun before only
    what could have been used since is spare: of 30 h that end in an hour, one session can use one. None: it was always there.
    """
    if window.kind not in (WindowKind.FIXED_WEEKLY, WindowKind.MONTHLY):
        return None
    rhythm = max((r for r in readings if r.resets_at), key=lambda r: r.as_of, default=None)
    found, at = [], since if known is None else max(since, known.since)
    while (reset := quota.next_reset(window, rhythm, at)) <= until:
        end = reset - _STEP
        told = [r for r in readings if r.resets_at is not None and abs(r.resets_at - reset) < _NEAR]
        last = max(told, key=lambda r: r.as_of, default=None)
        before = [entry for entry in entries if entry.at <= end]
        left = quota.balance(window, before, last, [], end).left_s
        if left is None:
            return None
        if known is not None:
            left = min(left, known.burn * (reset - known.since).total_seconds())
        found.append(Ended(reset, left, "ledger" if last is None else "live"))
        at = reset + _STEP
    if window.limit_s is None and all(r.limit_s is None for r in readings):
        return None
    return found


def _burn(
    ledger: Ledger, platform: str, pool: str, sessions: Sequence[Session], at_once: int
) -> float:
    """The most quota seconds a second, by what was offered last and what sessions there were of."""
    offers = [*standing.last_offers(ledger, platform)[0], *(s.offer for s in sessions)]
    return at_once * max((offer.rate for offer in offers if offer.pool == pool), default=1.0)


def _why(window: Window) -> str:
    if window.limit_s is None:
        return "what expired is not known, for nobody publishes the limit"
    return "nothing expires at a fixed moment there"


def _with(
    line: PoolUse, attempt: Attempt, speed: float, since: datetime, until: datetime
) -> PoolUse:
    """The line with what this attempt did in the period."""
    ended, ran = attempt.ended_at, _ran(attempt, since, until)
    here = attempt.state is AttemptState.ENDED and ended is not None and since <= ended < until
    lost = attempt.lost_s if here else 0.0
    broken = here and attempt.reason in INTERRUPTIONS
    return replace(
        line,
        ran_s=line.ran_s + ran,
        t4_s=line.t4_s + max(0.0, ran - lost) * speed,
        lost_s=line.lost_s + lost,
        interruptions=line.interruptions + broken,
    )


def _busy(
    attempts: Sequence[Attempt],
    sessions: Mapping[str, Session],
    names: Mapping[str, str],
    since: datetime,
    until: datetime,
) -> tuple[JobUse, ...]:
    """The jobs whose cards were looked at, the idlest first."""
    found: dict[tuple[str, str, str], tuple[int, float, float, float]] = {}
    for attempt in attempts:
        told = _told(attempt, sessions)
        if told is None:
            continue
        looks, percent = told
        key = (attempt.job, attempt.platform, attempt.card)
        before, total, _, ran = found.get(key, (0, 0.0, 0.0, 0.0))
        cpus, ran = sessions[attempt.session].offer.cpus, ran + _ran(attempt, since, until)
        found[key] = (before + looks, total + looks * percent, cpus, ran)
    lines = [
        JobUse(
            job=job,
            name=names.get(job, ""),
            platform=platform,
            card=card,
            looks=looks,
            percent=total / looks,
            cpus=cpus,
            hint=_hint(looks, total / looks, cpus),
            ran_s=ran,
            wait_s=ran * max(0.0, 1 - total / looks / 100),
        )
        for (job, platform, card), (looks, total, cpus, ran) in found.items()
    ]
    return tuple(sorted(lines, key=lambda line: (line.percent, line.job, line.platform)))


def _idle(jobs: Sequence[JobUse]) -> Iterator[Saving]:
    """Jobs whose cards waited: an upper bound, for part of it is the job's own arithmetic beside the card."""
    for each in jobs:
        if not each.hint:
            continue
        cpus = max(1, int(each.cpus))
        loader = (
            f"the {each.cpus:g} CPUs there want `num_workers={cpus}`"
            if each.cpus
            else "how many CPUs there are is not known"
        )
        yield Saving(
            kind=hindsight.DATA,
            amount_s=each.wait_s,
            platform=each.platform,
            jobs=(each.job,),
            sentence=(
                f"{each.name} kept its {each.platform} {each.card} {each.percent:.0f} % busy: up to"
                f" {span_text(each.wait_s)} of {span_text(each.ran_s)} it waited, mostly for data; {loader}"
            ),
        )


def _ran(attempt: Attempt, since: datetime, until: datetime) -> float:
    """Seconds that its command ran in the period."""
    ended = attempt.ended_at
    ran = _overlap(attempt.started_at, ended, since, until)
    if ended is None or attempt.started_at is None or not attempt.run_s:
        return ran
    whole = (ended - attempt.started_at).total_seconds()
    return attempt.run_s * min(1.0, ran / whole) if whole > 0 else 0.0


def _hint(looks: int, percent: float, cpus: float) -> str:
    if percent >= IDLE_PERCENT or looks < LOOKS:
        return ""
    beside = f" ({cpus:g} CPUs there: num_workers={max(1, int(cpus))})" if cpus else ""
    return f"the card waits, mostly for data{beside}; a larger batch may help too"


def _told(attempt: Attempt, sessions: Mapping[str, Session]) -> tuple[int, float] | None:
    session = sessions.get(attempt.session)
    return gpu_use.mean(session.beat, attempt.id) if session is not None else None


def _open(session: Session, since: datetime, until: datetime) -> float:
    return _overlap(session.live_at, session.ended_at, since, until)


def _overlap(
    begin: datetime | None, end: datetime | None, since: datetime, until: datetime
) -> float:
    """Seconds that a span lies within the period; it may not have ended, or never begun."""
    if begin is None:
        return 0.0
    return max(0.0, (min(end or until, until) - max(begin, since)).total_seconds())

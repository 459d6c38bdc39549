"""A decision remembers what it worked out before. That changes nothing that is decided, and keeps long queues and forecasts quick.

No test here looks at a clock: they count how often something is worked out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator import expectation, fitting, placement, quota, reserve, spots
from freegpu.orchestrator.forecast import Job, Platform, Pool, World, run
from freegpu.orchestrator.forecast.purse import Purse
from freegpu.orchestrator.model import (
    Action,
    Balance,
    FigureSource,
    FreeSlot,
    Place,
    Running,
    Snapshot,
    Waiting,
)
from tests.unit.test_placement import NOW, any_snapshot

HOUR = 3600.0
BEGIN = datetime(2026, 11, 30, 7, tzinfo=UTC)


def forget() -> None:
    for known in (fitting._fitting, fitting._found, spots.misfit, spots._kind):
        known.cache_clear()


def anew(snapshot: Snapshot) -> Snapshot:
    """The same, with nothing worked out of its parts: values forget when they are copied."""

    def job(one: Waiting) -> Waiting:
        return replace(one, needs=replace(one.needs))

    def offer(one: Offer) -> Offer:
        return replace(one)

    def place(one: Place) -> Place:
        return replace(one, offers=tuple(map(offer, one.offers)))

    def slot(one: FreeSlot) -> FreeSlot:
        return replace(one, offer=offer(one.offer))

    def lane(one: Running) -> Running:
        return replace(one, job=job(one.job), offer=offer(one.offer))

    return replace(
        snapshot,
        waiting=tuple(map(job, snapshot.waiting)),
        free_slots=tuple(map(slot, snapshot.free_slots)),
        places=tuple(map(place, snapshot.places)),
        running=tuple(map(lane, snapshot.running)),
        lately=tuple(replace(needs) for needs in snapshot.lately),
    )


def afresh(snapshot: Snapshot, now: datetime) -> list[Action]:
    """The decision of a process that has just begun."""
    forget()
    return placement.decide(anew(snapshot), now)


def test_what_is_remembered_changes_no_decision() -> None:
    """Hundreds of snapshots one after another, at two moments each, decide as in a new process; so do their explanations."""
    given = [any_snapshot(random.Random(seed)) for seed in range(300)]
    later = NOW + timedelta(hours=7)
    new = [(repr(afresh(one, NOW)), repr(afresh(one, later))) for one in given]
    told = [repr([placement.explain(job, anew(one), NOW) for job in one.waiting]) for one in given]
    forget()
    for _ in range(2):
        for one, (first, second), words in zip(given, new, told, strict=True):
            assert repr(placement.decide(one, NOW)) == first
            assert repr(placement.decide(one, later)) == second
            assert repr([placement.explain(job, one, NOW) for job in one.waiting]) == words


PLATFORMS = (
    Platform(
        name="weekly",
        capabilities=Capabilities(max_concurrent=2),
        offers=(
            Offer(platform="weekly", account="me", card="T4", count=2, vram_gb=16, pool="gpu"),
            Offer(platform="weekly", account="me", card="P100", vram_gb=16, pool="gpu"),
        ),
        pools=(Pool(name="gpu", window=Window(kind=WindowKind.FIXED_WEEKLY, limit_s=20 * HOUR)),),
        loss_per_h=0.05,
    ),
    Platform(
        name="rolling",
        capabilities=Capabilities(max_session_s=4 * HOUR),
        offers=(
            Offer(
                platform="rolling",
                account="me",
                card="L4",
                vram_gb=24,
                session_limit_s=4 * HOUR,
                start_delay_s=120,
                pool="gpu",
            ),
        ),
        pools=(
            Pool(
                name="gpu",
                window=Window(kind=WindowKind.ROLLING, limit_s=6 * HOUR, period_s=24 * HOUR),
            ),
        ),
        grant=0.7,
        queue_s=300.0,
    ),
    Platform(
        name="credits",
        offers=(Offer(platform="credits", account="me", card="A100", vram_gb=40, pool="c"),),
        pools=(Pool(name="c", window=Window(kind=WindowKind.PREPAID, limit_s=10 * HOUR)),),
    ),
    Platform(
        name="home",
        offers=(Offer(platform="home", account="me", card="RTX2060", vram_gb=6),),
        exposure_s=math.inf,
    ),
)


def world(seed: int, jobs: int = 25) -> World:
    """Four kinds of quota, and jobs of all lengths that come over three days."""
    luck = random.Random(seed)
    return World(
        platforms=PLATFORMS,
        jobs=tuple(
            Job(
                id=f"j{at}",
                needs=Needs(
                    vram_gb=luck.choice((4, 8, 20)), workload=luck.choice(("general", "infer-fp16"))
                ),
                work_s=luck.uniform(0.2, 12) * HOUR,
                estimate=luck.choice((None, Estimate(seconds=luck.uniform(0.2, 12) * HOUR))),
                priority=luck.choice((-10, 0, 0, 10)),
                arrives=BEGIN + timedelta(hours=luck.choice((0.0, luck.uniform(0, 72)))),
                deadline=luck.choice((None, BEGIN + timedelta(hours=luck.uniform(1, 200)))),
            )
            for at in range(jobs)
        ),
        begin=BEGIN,
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_forecast_is_the_same_whether_decisions_remember_or_not(seed: int) -> None:
    """Thousands of decisions in a row: each is the one that a new process would make, and so is all that comes of it."""
    assert run(world(seed), seed) == run(world(seed), seed, afresh)


@pytest.mark.parametrize("seed", range(4))
def test_a_pool_s_balance_is_what_its_lines_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a forecast keeps of a pool between two changes is never older than the last of them."""
    kept, asked = Purse.balance, 0

    def balance(purse: Purse, now: datetime) -> Balance:
        nonlocal asked
        asked += 1
        found = kept(purse, now)
        plain = quota.balance(
            purse.window,
            purse.entries,
            purse.pool.reading,
            list(purse.open.values()),
            now,
            platform=purse.platform,
            account=purse.account,
            pool=purse.pool.name,
        )
        assert found == replace(plain, age_s=found.age_s)
        return found

    monkeypatch.setattr(Purse, "balance", balance)
    run(world(seed), seed)
    assert asked > 100


class Counted:
    """How often a function is called."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner, self.calls = inner, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.inner(*args)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, str], Counted]]:
    def put(module: Any, name: str) -> Counted:
        found = Counted(getattr(module, name))
        monkeypatch.setattr(module, name, found)
        return found

    forget()
    yield put
    forget()


def queue(count: int, kinds: Sequence[Needs]) -> tuple[Waiting, ...]:
    return tuple(
        Waiting(
            id=f"j{at}",
            seq=at,
            name=f"job {at}",
            needs=replace(kinds[at % len(kinds)]),
            estimate=Estimate(seconds=600.0 + at),
            priority=0,
            deadline=None,
            created_at=NOW,
        )
        for at in range(count)
    )


def places(count: int) -> tuple[Place, ...]:
    """One session each, of two cards and two sizes of memory."""
    return tuple(
        Place(
            platform=f"p{at}",
            account="me",
            capabilities=Capabilities(),
            offers=(
                Offer(
                    platform=f"p{at}",
                    account="me",
                    card=("T4", "P100")[at % 2],
                    vram_gb=16,
                    memory_gb=8.0 + at % 4,
                ),
            ),
            open_sessions=0,
            balances=(),
        )
        for at in range(count)
    )


def test_needs_are_judged_once_however_many_jobs_have_them(
    counted: Callable[[Any, str], Counted],
) -> None:
    """Three needs and two cards: the same few looks for thirty jobs and for three thousand, and none at the next tick."""
    kinds = [Needs(vram_gb=8), Needs(vram_gb=80), Needs(vram_gb=8, memory_gb=10)]
    looks = counted(fitting, "card_fault")
    rooms = counted(fitting, "lack")
    for count in (30, 3000):
        forget()
        looks.calls = rooms.calls = 0
        placement.decide(Snapshot(waiting=queue(count, kinds), places=places(20)), NOW)
        assert 0 < looks.calls <= 2 * len(kinds)
        assert 0 < rooms.calls <= 4 * len(kinds)
    looks.calls = 0
    placement.decide(Snapshot(waiting=queue(3000, kinds), places=places(20)), NOW)
    assert looks.calls == 0


def test_the_search_ends_when_nothing_is_left(counted: Callable[[Any, str], Counted]) -> None:
    """Twenty places, three thousand jobs that fit them: what a place would mean is worked out for those that get one."""
    walks = counted(expectation, "_walk")
    snapshot = Snapshot(waiting=queue(3000, [Needs(vram_gb=8)]), places=places(20))
    assert len(placement.decide(snapshot, NOW)) == 20
    assert walks.calls <= 20 * 20


def contested(left_h: float, resets_h: float) -> tuple[Place, Place]:
    """A T4 with two sessions and so much quota left of 30 h a week, and a P100 that somebody has."""
    window = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=30 * HOUR)
    left = Balance(
        platform="p0",
        account="me",
        pool="gpu",
        window=window,
        limit_s=30 * HOUR,
        used_s=(30 - left_h) * HOUR,
        reserved_s=0.0,
        resets_at=NOW + timedelta(hours=resets_h),
        source=FigureSource.LEDGER,
    )
    place, other = places(2)
    place = replace(
        place,
        balances=(left,),
        offers=(replace(place.offers[0], pool="gpu"),),
        capabilities=Capabilities(max_concurrent=2),
    )
    return place, replace(other, open_sessions=1)


#: what only a T4 will do for
ONLY_THERE = Needs(accelerators=(Accelerator(card="T4"),))


def test_what_one_job_takes_is_no_longer_there_for_the_next() -> None:
    """12 h left a day before the reset, of which 30 / 7 are kept: the first job's 6 h are free, the second's are not."""
    first, second = (
        replace(job, estimate=Estimate(seconds=6 * HOUR)) for job in queue(2, [Needs(vram_gb=8)])
    )
    snapshot = Snapshot(
        waiting=(first, second), places=contested(12, 24), lately=(ONLY_THERE,), came=1
    )
    (action,) = placement.decide(snapshot, NOW)
    assert [put.job for put in action.placed] == ["j0"]


def test_the_demand_of_now_counts_and_not_that_of_the_last_look() -> None:
    """The same places, with and without a need that has no other home; one after the other, in both orders."""
    (job,) = queue(1, [Needs(vram_gb=8)])
    long = replace(job, estimate=Estimate(seconds=20 * HOUR))
    free = Snapshot(waiting=(long,), places=contested(10, 144), lately=(Needs(vram_gb=4),), came=1)
    kept = replace(free, lately=(ONLY_THERE,))
    for snapshot, actions in ((free, 1), (kept, 0), (free, 1), (kept, 0)):
        assert len(placement.decide(snapshot, NOW)) == actions


def test_a_long_job_that_finds_no_slot_bars_none_to_a_shorter_one() -> None:
    """Two hours of the session are left: too little for one of 3 h that has waited for weeks and chooses first, enough for 1 h."""
    old, young = queue(2, [Needs(vram_gb=8)])
    old = replace(old, estimate=Estimate(seconds=3 * HOUR), created_at=NOW - timedelta(days=20))
    young = replace(young, estimate=Estimate(seconds=HOUR))
    (runs,) = queue(1, [Needs(vram_gb=8)])
    (place,) = places(1)
    lane = Running(
        job=replace(runs, id="r", estimate=Estimate(seconds=12 * HOUR)),
        session="s",
        slot=0,
        offer=place.offers[0],
        held_s=HOUR,
        left_s=2 * HOUR,
    )
    (move,) = placement.decide(Snapshot(waiting=(old, young), running=(lane,)), NOW)
    assert [put.job for put in move.placed] == [young.id]


def test_no_sentence_is_made_that_nobody_reads(counted: Callable[[Any, str], Counted]) -> None:
    """A job that is kept out costs no words; who asks for the reason gets them."""
    (job,) = queue(1, [Needs(vram_gb=8)])
    long = replace(job, estimate=Estimate(seconds=20 * HOUR))
    snapshot = Snapshot(waiting=(long,), places=contested(10, 144), lately=(ONLY_THERE,), came=1)
    words = counted(reserve, "span_text")
    assert placement.decide(snapshot, NOW) == []
    assert words.calls == 0
    score = next(s for s in placement.explain(long, snapshot, NOW) if s.platform == "p0")
    assert "kept for" in score.why
    assert words.calls > 0


def test_a_job_that_waits_is_worked_out_once(counted: Callable[[Any, str], Counted]) -> None:
    """In a forecast the same jobs wait through hundreds of decisions."""
    lengths = counted(spots, "length")
    seen: list[int] = []

    def policy(snapshot: Snapshot, now: datetime) -> list[Action]:
        seen.append(len(snapshot.waiting))
        return placement.decide(snapshot, now)

    result = run(world(1), 1, policy)
    waits = len(result.outcomes) + sum(len(one.stays) for one in result.outcomes.values())
    assert sum(seen) > 3 * waits
    assert lengths.calls <= waits


def test_the_demand_of_the_last_days_is_put_together_when_it_changes() -> None:
    """The same tuple as long as no job came and none was too long ago."""
    given = world(2)
    jobs = [replace(job, needs=Needs(vram_gb=4 + at / 100)) for at, job in enumerate(given.jobs)]
    given = replace(given, jobs=tuple(jobs))
    seen: list[tuple[Needs, ...]] = []

    def policy(snapshot: Snapshot, now: datetime) -> list[Action]:
        seen.append(snapshot.lately)
        late = {
            job.needs
            for job in given.jobs
            if job.arrives is not None
            and timedelta(0) <= now - job.arrives <= timedelta(seconds=reserve.ASKED_S)
        }
        assert set(snapshot.lately) == late
        came = [job.arrives for job in given.jobs if job.arrives is not None]
        recent = timedelta(seconds=reserve.COMING_S)
        assert snapshot.came == sum(timedelta(0) <= now - at <= recent for at in came)
        return placement.decide(snapshot, now)

    run(given, 2, policy)
    assert len({id(one) for one in seen}) <= len(given.jobs)

"""Seven free offers and a queue of jobs, drawn from a seed; what is true differs from what is believed.

Platforms: an own RTX 2060 over SSH; Colab (T4, 12 h a session, about 35 h a rolling week, a loss in ten hours, three of
four grants); Kaggle (P100 or T4 x2, two sessions of 12 h, 30 h a week); its TPU (20 h a week); Lightning (T4, L4 or
L40S, 4 h a session, 22 credits a month); an M4000 notebook (6 h, every second grant). The figures are round ones for
comparing policies, not facts about the platforms.

Jobs: eight classes of work, 0.2 to 50 h on a T4 (log-normal), 30 % there at once and the rest over ten days, 30 % with
a deadline; load 1 is 76 jobs. True speeds are off the card table by e^(0.2 z), estimates by e^(0.5 z).
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from freegpu import cards
from freegpu.adapters.base import Capabilities, Offer, Window, WindowKind
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator.forecast import Job, Platform, Pool, World, used_evenly
from freegpu.orchestrator.model import Goal

HOUR, DAY = 3600.0, 86400.0
#: jobs at load 1
JOBS = 76
#: jobs arrive over so long
ARRIVALS_S = 10 * DAY
#: believed losses come from so many hours that were seen before
SEEN_H = 72.0
#: GB of a card: (share of the jobs, least, most)
MEMORY = ((0.36, 5, 6), (0.10, 7, 8), (0.47, 9, 15), (0.05, 17, 24), (0.02, 25, 39))
#: share of the jobs that also run on a TPU
XLA = 0.15


def world(
    seed: int,
    load: float,
    *,
    goal: Goal = "jct",
    estimates_off: float = 0.0,
    losses: float = 1.0,
) -> World:
    """A queue of this load. `estimates_off` 4: lengths are wrong by up to 4 times either way; `losses` 2: twice as many
    sessions are lost as believed."""
    luck = random.Random(f"placement:{seed}")
    # the week is met at any phase; the month ends while jobs still arrive, or some days later
    begin = datetime(2026, 11, 14, tzinfo=UTC) + timedelta(hours=luck.randrange(10 * 24))
    given = _platforms(begin, losses)
    names = sorted({offer.card for platform in given for offer in platform.offers})
    pace = {
        (kind, card): 1.0 if card == "T4" else math.exp(0.2 * luck.gauss(0, 1))
        for kind in cards.WORKLOADS
        for card in names
    }
    jobs = tuple(
        _job(index, random.Random(f"placement:{seed}:{index}"), begin, pace, estimates_off)
        for index in range(round(JOBS * load))
    )
    return World(platforms=given, jobs=jobs, begin=begin, goal=goal)


def _job(
    index: int,
    luck: random.Random,
    begin: datetime,
    pace: dict[tuple[str, str], float],
    estimates_off: float,
) -> Job:
    kind = luck.choice(cards.WORKLOADS[1:])
    hours = min(50.0, max(0.2, math.exp(luck.gauss(math.log(4.0), 1.25))))
    error = math.exp(0.5 * luck.gauss(0, 1))
    wild = luck.uniform(-1, 1)
    if estimates_off:
        error = estimates_off**wild
    late = 0.0 if luck.random() < 0.3 else luck.uniform(0, ARRIVALS_S)
    arrives = begin + timedelta(seconds=round(late))
    share = luck.random()
    memory = 5.0
    for part, least, most in MEMORY:
        memory = float(luck.randint(least, most))
        share -= part
        if share < 0:
            break
    wanted: tuple[Accelerator, ...] = ()
    if luck.random() < XLA and memory <= 15:
        known = ("T4", "P100", "L4", "L40S", "RTX2060", "tpu-v5e-1")
        wanted = tuple(Accelerator(card=card) for card in known)
    deadline = None
    if luck.random() < 0.3:
        room = hours * luck.uniform(1.5, 3.0) + luck.uniform(4, 36)
        deadline = arrives + timedelta(hours=room)
    return Job(
        id=f"j{index:03}",
        needs=Needs(accelerators=wanted, vram_gb=memory, workload=kind),
        work_s=hours * HOUR,
        pace={card: factor for (name, card), factor in pace.items() if name == kind},
        estimate=Estimate(seconds=hours * HOUR * error),
        priority=luck.choice((-10, 0, 0, 0, 0, 10)),
        deadline=deadline,
        arrives=arrives,
        save_s=luck.choice((10.0, 30.0, 60.0)),
        restart_s=60.0,
    )


def _platforms(begin: datetime, losses: float) -> tuple[Platform, ...]:
    home = Platform(
        name="home",
        capabilities=Capabilities(max_concurrent=1),
        offers=(_offer("home", "RTX2060", 20.0, None),),
        exposure_s=math.inf,
    )
    colab = _platform(
        "colab",
        (_offer("colab", "T4", 180.0, 12 * HOUR, pool="gpu"),),
        (Window(kind=WindowKind.ROLLING, limit_s=35 * HOUR, period_s=7 * DAY),),
        loss_per_h=0.1,
        grant=0.75,
        queue_s=60.0,
    )
    kaggle = _platform(
        "kaggle",
        (
            _offer("kaggle", "P100", 240.0, 12 * HOUR, pool="gpu"),
            _offer("kaggle", "T4", 240.0, 12 * HOUR, pool="gpu", count=2),
        ),
        (Window(kind=WindowKind.FIXED_WEEKLY, limit_s=30 * HOUR, reset_offset_s=5 * DAY),),
        most=2,
        loss_per_h=0.01,
        queue_s=120.0,
    )
    # the same account; apart, since it has sessions and hours of its own
    tpu = _platform(
        "kaggle-tpu",
        (_offer("kaggle-tpu", "tpu-v5e-1", 300.0, 9 * HOUR, pool="tpu"),),
        (Window(kind=WindowKind.FIXED_WEEKLY, limit_s=20 * HOUR, reset_offset_s=5 * DAY),),
        loss_per_h=0.01,
        queue_s=900.0,
    )
    lightning = _platform(
        "lightning",
        tuple(
            _offer("lightning", card, 150.0, 4 * HOUR, pool="credits", rate=rate)
            for card, rate in (("T4", 0.55), ("L4", 0.6), ("L40S", 1.6))
        ),
        (Window(kind=WindowKind.MONTHLY, limit_s=22 * HOUR),),
        loss_per_h=0.01,
    )
    m4000 = _platform(
        "m4000",
        (_offer("m4000", "M4000", 300.0, 6 * HOUR),),
        (),
        loss_per_h=0.02,
        grant=0.5,
        refusal=2 * HOUR,
    )
    given = (home, colab, kaggle, tpu, lightning, m4000)
    return tuple(
        replace(
            platform,
            loss_per_h=platform.loss_per_h * losses,
            losses=platform.loss_per_h * SEEN_H,
            exposure_s=SEEN_H * HOUR if platform.loss_per_h else platform.exposure_s,
            pools=tuple(used_evenly(platform.name, "me", pool, begin) for pool in platform.pools),
        )
        for platform in given
    )


def _platform(
    name: str,
    offers: tuple[Offer, ...],
    windows: tuple[Window, ...],
    *,
    most: int = 1,
    loss_per_h: float = 0.0,
    grant: float = 1.0,
    refusal: float = HOUR,
    queue_s: float = 0.0,
) -> Platform:
    longest = max(offer.session_limit_s or math.inf for offer in offers)
    return Platform(
        name=name,
        capabilities=Capabilities(max_session_s=longest, max_concurrent=most),
        offers=offers,
        pools=tuple(Pool(name=offers[0].pool, window=window) for window in windows),
        loss_per_h=loss_per_h,
        grant=grant,
        refusal_s=refusal,
        queue_s=queue_s,
    )


def _offer(
    platform: str,
    card: str,
    delay_s: float,
    limit_s: float | None,
    *,
    pool: str = "",
    count: int = 1,
    rate: float = 1.0,
) -> Offer:
    facts = cards.find(card)
    return Offer(
        platform=platform,
        account="me",
        card=card,
        count=count,
        vram_gb=facts.vram_gb if facts else 0.0,
        session_limit_s=limit_s,
        start_delay_s=delay_s,
        pool=pool,
        rate=rate,
    )

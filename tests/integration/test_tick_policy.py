"""Ticks and the policy: a slot that passes on, a reading that disagrees, what is remembered of losses and of demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from freegpu.adapters.base import QuotaReport, Window, WindowKind
from freegpu.agent import wire
from freegpu.agent.limits import Limits
from freegpu.jobs.lifecycle import AttemptState, EndReason, JobState
from freegpu.jobs.model import Estimate, Needs
from freegpu.orchestrator import standing
from freegpu.orchestrator.model import EntryKind
from tests.integration.test_tick import Platform, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


def test_a_slot_passes_to_a_much_shorter_job_and_nothing_of_the_long_one_is_lost(
    world: World,
) -> None:
    """Asked to save and stop, it counts as preempted and waits again; the short one gets the slot."""
    world.platform.capabilities = replace(world.platform.capabilities, max_concurrent=1)
    long = world.submit("long", estimate=Estimate(seconds=40 * 3600.0))
    attempt = world.up(long)
    short = world.submit("short", estimate=Estimate(seconds=300.0))
    world.beat(attempt.session)
    world.tick(600.0)
    assert world.attempt(long).state is AttemptState.RUNNING, "it has just begun"
    for _ in range(3):
        world.beat(attempt.session, left_s=1600.0)
        report = world.tick(500.0)
    stopping = world.attempt(long)
    assert (stopping.state, stopping.stop_reason) == (AttemptState.STOPPING, EndReason.PREEMPTED)
    assert any("short needs the slot for 5 min" in action for action in report.actions)
    world.says(attempt, wire.ENDED, reason="preempted", exit_code=None, seconds=9.0, outputs=None)
    world.beat(attempt.session, "idle", left_s=1500.0)
    world.tick(5.0)
    assert world.job(long).state is JobState.PENDING
    taken = world.attempt(short)
    assert (taken.session, taken.slot) == (attempt.session, 0)


class Counting(Platform):
    """Its own meter says five hours."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = replace(self.capabilities, reports_quota=True)

    def quota(self) -> Sequence[QuotaReport] | None:
        now = self.world.reconciler.now()
        return [
            QuotaReport(
                pool="gpu",
                used_s=5 * 3600.0,
                limit_s=36000.0,
                resets_at=now + timedelta(days=3),
                as_of=now,
            )
        ]


def test_a_reading_that_disagrees_is_entered_once_with_both_figures(world: World) -> None:
    """Whoever looks into the ledger sees what the platform said and what we had."""
    counting = Counting()
    counting.world = world
    world.adapters["pretend"] = counting
    for _ in range(3):
        world.submit("waits", needs=Needs(vram_gb=500))
        world.tick(120.0)
    entries = world.ledger.entries(platform="pretend", account="me", pool="gpu")
    assert [(e.amount_s, e.note) for e in entries if e.kind is EntryKind.ADJUST] == [
        (5 * 3600.0, "the platform says 5 h used, the ledger had 0 s")
    ]


def test_what_was_lost_and_what_was_asked_for_is_remembered(world: World) -> None:
    """One session lost after an hour, one that ended well, for four weeks; what jobs needed, each once, for one."""
    lost = world.up(world.submit("a", needs=Needs(vram_gb=12)))
    world.clock.now += 3600
    world.reconciler._observer().finish(
        world.session(lost), EndReason.LOST, "killed", charged_s=3600.0
    )
    well = world.up(world.submit("b", needs=Needs(vram_gb=12)))
    world.clock.now += 1800
    world.reconciler._observer().finish(
        world.session(well), EndReason.SESSION_EXPIRED, "its time was over", charged_s=1800.0
    )
    now = world.reconciler.now()
    count, lived = standing.losses(world.ledger, "pretend", "me", now)
    assert count == 1
    assert lived == pytest.approx(5400, abs=10)
    for days, counts, asked, came in (
        (0, True, True, 2),
        (2, True, True, 2),
        (4, True, True, 0),
        (6, True, True, 0),
        (8, True, False, 0),
        (29, False, False, 0),
    ):
        later = now + timedelta(days=days)
        assert standing.came_lately(world.ledger, later) == came
        assert bool(standing.losses(world.ledger, "pretend", "me", later)[0]) is counts
        assert (Needs(vram_gb=12) in standing.asked_lately(world.ledger, later)) is asked


def test_how_long_a_job_takes_to_start_is_told_by_those_that_got_a_slot_of_a_live_session(
    world: World,
) -> None:
    """From the slot to the word that it runs; the wait for a session that starts is not part of it, and two say nothing."""
    world.platform.capabilities = replace(world.platform.capabilities, max_concurrent=1)
    attempt = world.up(world.submit("first"))
    for number, (takes, told) in enumerate(((4.0, None), (2.0, None), (9.0, 4.0)), start=1):
        world.says(
            attempt, wire.ENDED, reason="preempted", exit_code=None, seconds=9.0, outputs=None
        )
        world.ledger.cancel_job(attempt.job, at=world.reconciler.now())
        job = world.submit(f"next-{number}")
        world.beat(attempt.session, "idle")
        world.tick(30.0)
        attempt = world.attempt(job)
        world.beat(attempt.session)
        world.says(attempt, wire.STARTED, resumed=False)
        world.tick(takes)
        assert standing.job_start(world.ledger) == (None if told is None else pytest.approx(told))
    (session,) = world.ledger.sessions(open_only=True)
    (stands,) = standing.standing(world.ledger, [session], world.reconciler.now())
    assert stands.going == frozenset({attempt.job})


@pytest.mark.parametrize(
    ("quota_s", "work_s", "limit_s", "margin_s"),
    [
        # the platform's own limit of an hour comes first
        (7200.0, 1800.0, 3600.0, 20.0),
        # the start takes 10 s of the quota
        (1800.0, 3600.0, 1790.0, 20.0),
        # just enough for a start, 120 s of grace and 60 s of work: nothing can be kept back
        (195.0, 60.0, 185.0, 5.0),
        (190.0, 60.0, 180.0, 0.0),
    ],
)
def test_a_session_is_told_when_its_quota_ends_and_has_room_for_the_job_all_the_same(
    world: World, quota_s: float, work_s: float, limit_s: float, margin_s: float
) -> None:
    """What the agent gets, and whether by its own rule it would begin the job for which the session was started."""
    world.platform.windows["gpu"] = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=quota_s)
    job = world.submit("a", estimate=Estimate(seconds=work_s))
    world.tick()
    attempt = world.attempt(job)
    profile = world.platform.started[world.session(attempt).key].payload["profile"]
    assert (profile["limit_s"], profile["margin_s"]) == (limit_s, margin_s)
    assert world.session(attempt).limit_s == min(3600.0, quota_s)
    assert Limits(0.0, profile["limit_s"], profile["margin_s"]).room(0.0, 120.0)

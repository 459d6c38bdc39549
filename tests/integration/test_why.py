"""Asking why, over a real ledger and real ticks: the record of each decision, and what the whole queue would decide now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Window, WindowKind
from freegpu.adapters.wrappers import wrap
from freegpu.agent import wire
from freegpu.errors import JobNotFoundError
from freegpu.jobs.lifecycle import JobState
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator.model import EntryKind, Score
from freegpu.orchestrator.operations import Workspace
from freegpu.orchestrator.record import Decision, Outcome
from freegpu.orchestrator.views import JobView
from tests.integration.test_tick import Platform, World

HOUR = 3600.0


class Asked:
    """A home with two platforms, and the very Workspace that the command line asks."""

    def __init__(self, tmp_path: Path) -> None:
        self.world = World(tmp_path)
        self.add(self.world.platform)
        self.add(Platform("spark", "L4"))
        self.workspace = Workspace(self.world.settings, self.world.clock)
        vars(self.workspace).update(
            ledger=self.world.ledger,
            reconciler=self.world.reconciler,
            adapters=self.world.adapters,
        )

    def add(self, platform: Platform) -> None:
        platform.capabilities = replace(platform.capabilities, max_concurrent=1)
        self.world.adapters[platform.name] = wrap(platform, clock=self.world.clock)

    def submit(self, name: str, hours: float | None = None, **fields: Any) -> str:
        estimate = Estimate(seconds=hours * HOUR) if hours else None
        return self.world.submit(name, estimate=estimate, **fields).id

    def status(self) -> dict[str, JobView]:
        return {view.name: view for view in self.workspace.status().jobs}


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    made = Asked(tmp_path)
    yield made
    made.world.ledger.close()


def at(decision: Decision | None, platform: str) -> Score:
    """The line of this platform."""
    assert decision is not None
    return next(score for score in decision.scores if score.platform == platform)


def test_the_record_of_the_decision_that_placed_a_job_outlives_what_it_saw(asked: Asked) -> None:
    """Figures as they were: start, finish, quota before and after, the next best, and the filter of the rest."""
    small = Platform("small", "T4")
    small.windows["gpu"] = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=60.0)
    asked.add(small)
    job = asked.submit("train", 0.5)
    then = asked.world.reconciler.now()
    asked.world.tick()
    asked.world.clock.now += 5 * HOUR
    found = asked.workspace.why(job)
    assert found.now is None, "a job that is placed is told by its record"
    assert (found.attempt, found.placed and found.placed.at) == (f"{job}-1", then)
    assert found.placed is not None
    best, second, *rest = found.placed.scores
    assert (best.platform, best.card, best.chosen, best.start_s) == ("spark", "L4", True, 10.0)
    assert best.before_s == 36000.0
    (entry,) = [e for e in asked.world.ledger.entries() if e.kind == "reserve"]
    assert best.after_s == pytest.approx(36000.0 - entry.amount_s), "what the ledger set aside"
    assert (second.platform, second.feasible, second.chosen) == ("pretend", True, False)
    assert best.finish_s is not None
    assert second.finish_s is not None
    assert best.finish_s < second.finish_s
    (refused,) = rest
    assert refused.platform == "small"
    assert "1 min of 1 min quota left" in refused.fault
    view = asked.status()["train"]
    assert view.reason.startswith("20 min expected; next best pretend T4 30 min; quota 10 h -> ")
    (session,) = asked.workspace.status().sessions
    assert session.reason.startswith("for train: 20 min expected")
    # the audit line is small, and what `show --json` prints
    line = asked.world.ledger.newest_events("attempt.allocated", [job])[job]
    assert len(json.dumps(line.data)) < 2500


def test_a_waiting_job_is_told_what_the_whole_queue_decides_not_what_it_would_get_alone(
    asked: Asked,
) -> None:
    """Alone it would get the L4; two shorter jobs choose before it, and each place names who takes it and what helps."""
    asked.submit("one", 0.5)
    asked.submit("two", 0.6)
    job = asked.submit("long", 9)
    found = asked.workspace.why(job)
    assert found.placed is None
    assert found.now is not None
    assert (found.now.outcome, found.now.ahead, found.now.waiting) == (Outcome.WAITS, 2, 3)
    assert found.now.before == ("one", "two")
    spark, pretend = at(found.now, "spark"), at(found.now, "pretend")
    assert "one, which chooses first (30 min to go on a T4)" in spark.fault
    assert "two, which chooses first" in pretend.fault
    wanted = int(pretend.change.partition("priority: ")[2].partition("`")[0])
    assert not any(score.feasible for score in found.now.scores)
    # what it says is true: with that priority it is placed, with one less it is not
    for priority, outcome in ((wanted, Outcome.PLACED), (wanted - 1, Outcome.WAITS)):
        other = asked.submit("other", 9, priority=priority)
        told = asked.workspace.why(other).now
        assert told is not None
        assert told.outcome is outcome, priority
        asked.workspace.cancel([other])
    asked.world.tick()
    after = asked.workspace.why(job).now
    assert "one is allocated there" in at(after, "spark").fault
    assert asked.status()["long"].reason.startswith(
        "pretend: 1 of 1 session open: two is allocated"
    )


@pytest.mark.parametrize(
    ("needs", "change"),
    [
        (Needs(vram_gb=40), "`vram: 16+` would let it in"),
        (Needs(platforms=("spark",)), "pretend in `platforms` would let it in"),
        (Needs(accelerators=(Accelerator(card="A100"),)), "`accelerators` with T4 would let it in"),
        (Needs(precision="bf16"), "`precision: any` would let it in"),
        (
            Needs(vram_gb=40, accelerators=(Accelerator(card="A100"),)),
            "`vram: 16+` and `accelerators` with T4 would let it in",
        ),
        (
            Needs(accelerators=(Accelerator(card="T4", count=2),)),
            "`accelerators` with T4 would let it in",
        ),
    ],
)
def test_what_would_change_it_is_the_line_of_the_spec(
    asked: Asked, needs: Needs, change: str
) -> None:
    """The fewest lines, tried on the very filter that refused."""
    del asked.world.adapters["spark"]
    score = at(asked.workspace.why(asked.submit("picky", 1, needs=needs)).now, "pretend")
    assert not score.feasible
    assert score.change == change


@pytest.mark.parametrize(
    ("limit", "change"),
    [
        (10 * HOUR, "quota comes back Mon 7 Dec 00:00 UTC"),
        (60.0, "the whole of that quota is too little for it"),
    ],
)
def test_a_quota_that_is_spent_says_when_it_comes_back(
    asked: Asked, limit: float, change: str
) -> None:
    """Weeks begin on Mondays; it is a Wednesday, and a minute is left. Where a minute is all, Monday brings no more."""
    del asked.world.adapters["spark"]
    asked.world.platform.windows["gpu"] = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=limit)
    asked.world.ledger.add_entry(
        platform="pretend",
        account="me",
        pool="gpu",
        kind=EntryKind.CHARGE,
        amount_s=limit - 60.0,
        note="",
        at=asked.world.reconciler.now(),
    )
    score = at(asked.workspace.why(asked.submit("train", 1)).now, "pretend")
    assert score.change == change
    assert score.before_s == 60.0


@pytest.mark.parametrize("quota", [3000.0, 10 * HOUR])
def test_quota_that_is_kept_says_for_whom_and_when_it_opens(asked: Asked, quota: float) -> None:
    """An even share is kept for the job that fits nowhere else; a long one gets it later by itself.

    Then what is kept has shrunk enough, or the quota could not be burned any more before it expires.
    """
    del asked.world.adapters["spark"]
    pretend = asked.world.platform
    pretend.capabilities = replace(pretend.capabilities, max_session_s=None)
    pretend.windows["gpu"] = Window(kind=WindowKind.FIXED_WEEKLY, limit_s=quota)
    offers = pretend.offers
    pretend.offers = lambda: [  # type: ignore[method-assign]
        replace(offer, session_limit_s=None) for offer in offers()
    ]
    third = Platform("third", "K80")
    third.offers = lambda: [  # type: ignore[method-assign]
        replace(offer, vram_gb=12.0, pool="") for offer in Platform("third", "K80").offers()
    ]
    asked.add(third)
    asked.submit("only", 9, needs=Needs(vram_gb=16, platforms=("third",)))
    needs = Needs(vram_gb=8)
    job = asked.submit("long", 9, needs=replace(needs, platforms=("pretend", "third")))
    score = at(asked.workspace.why(job).now, "pretend")
    assert "are kept for jobs that fit nowhere else" in score.fault
    assert "`platforms: [pretend]` would let it in" in score.change
    assert "`deadline`" not in score.change, "no deadline gets what is kept for such"
    alone = asked.submit("alone", 9, needs=replace(needs, platforms=("pretend",)))
    assert at(asked.workspace.why(alone).now, "pretend").feasible
    asked.workspace.cancel([alone])
    opens = score.change.rpartition("else it opens ")[2]
    then = datetime.strptime(f"2026 {opens}", "%Y %a %d %b %H:%M UTC").replace(tzinfo=UTC)
    for minutes, feasible in ((-30, False), (1, True)):
        asked.world.clock.now = (then + timedelta(minutes=minutes)).timestamp()
        assert at(asked.workspace.why(job).now, "pretend").feasible is feasible, minutes


def test_a_click_is_what_an_attended_platform_needs(asked: Asked) -> None:
    """And the sentence says so."""
    attended = Platform("notebook", "T4")
    asked.add(attended)
    attended.capabilities = replace(attended.capabilities, attended=True)
    for name in ("pretend", "spark"):
        del asked.world.adapters[name]
    score = at(asked.workspace.why(asked.submit("train", 1)).now, "notebook")
    assert score.change == "one click: freegpu cell notebook"


def test_a_running_job_is_told_with_what_was_learned_of_it_when_asked_for_now(asked: Asked) -> None:
    """Its estimate said 40 h; its own progress says 1,000 steps at 0.2 a second, and none is saved yet."""
    del asked.world.adapters["spark"]
    job = asked.submit("train", 40)
    attempt = asked.world.up(asked.world.ledger.job(job))
    progress = {"step": 400, "total": 1000, "rate": 0.2}
    asked.world.beat(
        attempt.session,
        slots=[{"slot": 0, "attempt": attempt.id, "phase": "running", "progress": progress}],
    )
    asked.world.tick(100.0)
    found = asked.workspace.why(job, now=True)
    assert found.placed is not None
    assert found.now is not None
    assert found.placed.work_s == 40 * HOUR
    assert found.now.work_s == pytest.approx(5000.0), "1,000 steps at 0.2 a second, none is saved"
    assert "train" in found.sentence


def test_both_sides_of_a_slot_that_passes_on_are_told(asked: Asked) -> None:
    """The short one hears who makes room; the long one, which waits again, to whom it gave its slot."""
    world = asked.world
    del world.adapters["spark"]
    long = asked.submit("long", 40)
    attempt = world.up(world.ledger.job(long))
    world.clock.now += 2000
    world.beat(attempt.session, left_s=1600.0)
    short = asked.submit("short", 0.1)
    told = asked.workspace.why(short)
    assert told.now is not None
    assert (told.now.outcome, told.now.gives_way) == (Outcome.PASSED, "long")
    assert told.sentence == "long saves and stops to make room for short"
    world.tick()
    world.says(attempt, wire.ENDED, reason="preempted", exit_code=None, seconds=9.0, outputs=None)
    world.beat(attempt.session, "idle", left_s=1500.0)
    world.tick(5.0)
    assert world.ledger.job(long).state is JobState.PENDING
    gave = asked.workspace.why(long).gave_way
    assert gave.startswith(f"{attempt.id} gave up its slot: short needs the slot for 6 min")
    kept = asked.workspace.why(short).placed
    assert kept is not None
    assert kept.chosen is not None
    assert kept.chosen.where == attempt.session


def test_a_deadline_in_danger_is_the_rule_that_is_told(asked: Asked) -> None:
    """It chose before a shorter job, and its record says why."""
    del asked.world.adapters["spark"]
    asked.submit("short", 0.2)
    soon = asked.world.reconciler.now() + timedelta(hours=1)
    job = asked.submit("late", 0.8, deadline=soon)
    asked.world.tick()
    kept = asked.workspace.why(job).placed
    assert kept is not None
    assert kept.ahead == 0
    assert "its deadline is in danger" in kept.rules[0]


def test_a_ledger_without_records_still_answers(asked: Asked) -> None:
    """An older freegpu placed the job: it is said, and nothing is made up."""
    job = asked.submit("train", 1)
    given = asked.world.platform.offers()[0]
    asked.world.ledger.plan_session(
        platform="pretend",
        account="me",
        offer=given,
        limit_s=None,
        reserve_s=0.0,
        jobs=[(job, 0)],
        why="by an older freegpu",
    )
    found = asked.workspace.why(job)
    assert (found.placed, found.now) == (None, None)
    assert found.job.attempt == f"{job}-1"
    assert asked.status()["train"].reason == ""


def test_a_dry_run_is_decided_in_the_whole_queue_with_what_namesakes_showed(
    asked: Asked, tmp_path: Path
) -> None:
    """A namesake ran 1,000 steps at 10 a second; the new job says nothing of its length, and one waits before it."""
    del asked.world.adapters["spark"]
    world = asked.world
    vars(asked.workspace)["identity"] = world.reconciler.identity
    path = tmp_path / "job.yaml"
    path.write_text("name: train\nrun: 'true'\n", encoding="utf-8")
    attempt = world.up(world.ledger.job(asked.submit("train")))
    progress = {"step": 400, "total": 1000, "rate": 10.0}
    world.beat(
        attempt.session,
        slots=[{"slot": 0, "attempt": attempt.id, "phase": "running", "progress": progress}],
    )
    world.tick(100.0)
    asked.submit("before", 0.01)
    found = asked.workspace.dry_run(path, environ={})
    ((name, decision),) = found.decisions
    assert name == "train"
    assert decision.work_s == pytest.approx(100.0)
    assert not decision.assumed
    assert decision.before == ("before",)
    assert "train runs there" in at(decision, "pretend").fault
    assert found.requests == ()


@pytest.mark.parametrize(
    ("due_h", "says"),
    [
        (10, "its deadline in 10 h will be missed: the soonest finish is expected in 11 d"),
        (400, ""),
        (-1, "its deadline has passed and counts no longer"),
    ],
)
def test_a_deadline_that_no_place_meets_is_told(asked: Asked, due_h: float, says: str) -> None:
    """Before it runs and in the record; the L4 is half as fast again, and ten hours a week are theirs."""
    due = asked.world.reconciler.now() + timedelta(hours=due_h)
    job = asked.submit("late", 40, deadline=due)

    def told(decision: Decision | None) -> str:
        assert decision is not None
        return next(
            (rule for rule in decision.rules if "deadline in" in rule or "passed" in rule), ""
        )

    before = told(asked.workspace.why(job).now)
    assert before.startswith(says)
    assert bool(before) is bool(says)
    asked.world.tick()
    assert told(asked.workspace.why(job).placed) == before


def test_a_dry_run_knows_what_a_job_comes_after_and_refuses_what_submit_refuses(
    asked: Asked, tmp_path: Path
) -> None:
    """A name that nobody has is an error; a job that has not succeeded is waited for."""
    vars(asked.workspace)["identity"] = asked.world.reconciler.identity
    path = tmp_path / "job.yaml"

    def notices(*after: str) -> tuple[str, ...]:
        path.write_text(f"name: next\nrun: 'true'\nfreegpu: {{after: {list(after)}}}\n")
        return asked.workspace.dry_run(path, environ={}).notices

    with pytest.raises(JobNotFoundError, match="'next' waits for 'nope'"):
        notices("nope")
    asked.submit("first", 1)
    asked.submit("second", 1)
    [said] = notices("first", "second")
    assert said.startswith("it begins when first and second have succeeded")


@pytest.mark.parametrize("has", [25.276, 15.4999996, 64.0])
@pytest.mark.parametrize("what", ["memory_gb", "disk_gb", "cpus"])
def test_the_amount_that_would_let_it_in_does_let_it_in(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, has: float, what: str
) -> None:
    """Whatever odd amount a machine has: what `why` tells to write is never more than is there."""
    words = {"memory_gb": "memory", "disk_gb": "disk_size", "cpus": "cpus"}
    del asked.world.adapters["spark"]
    platform = asked.world.platform
    had: dict[str, Any] = {what: has}
    offers = [replace(offer, **had) for offer in platform.offers()]
    monkeypatch.setattr(platform, "offers", lambda: offers)
    asks: dict[str, Any] = {what: 100.0}
    score = at(asked.workspace.why(asked.submit("much", 1, needs=Needs(**asks))).now, "pretend")
    written = score.change.partition(f"{words[what]}: ")[2].partition("`")[0].rstrip("+")
    asks[what] = float(written)
    assert has - 0.1 < asks[what] <= has
    assert at(
        asked.workspace.why(asked.submit("less", 1, needs=Needs(**asks))).now, "pretend"
    ).feasible


def test_when_a_place_comes_free_those_who_choose_before_are_told(asked: Asked) -> None:
    """It is theirs first: how many, and the priority that would change it; that priority is tried."""
    del asked.world.adapters["spark"]
    asked.world.up(asked.world.ledger.job(asked.submit("runs", 2)))
    asked.submit("next", 1)
    job = asked.submit("last", 1)
    change = at(asked.workspace.why(job).now, "pretend").change
    assert change.startswith("a place comes free in about ")
    assert "; 1 job that fits there chooses before it; `priority: 1` would let it" in change
    other = asked.submit("other", 1, priority=1)
    now = asked.workspace.why(other).now
    assert now is not None
    assert now.ahead == 0
    assert "before it" not in at(now, "pretend").change


def test_a_job_that_has_its_place_is_not_told_that_it_is_taken(asked: Asked) -> None:
    """What would be decided of two alike: each has a place of its own, and no line that speaks of the other there."""
    for name in ("one", "two"):
        asked.submit(name, 1)
    for name in ("one", "two"):
        now = asked.workspace.why(name).now
        assert now is not None
        assert now.chosen is not None
        lines = [(score.platform, score.card) for score in now.scores]
        assert lines.count((now.chosen.platform, now.chosen.card)) == 1

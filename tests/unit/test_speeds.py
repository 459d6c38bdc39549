"""What progress tells about the rest: measured where it was seen, carried elsewhere, surer with every look."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

import pytest

from freegpu import cards
from freegpu.jobs.lifecycle import AttemptState
from freegpu.jobs.model import Estimate, JobSpec, Needs
from freegpu.orchestrator import history
from freegpu.orchestrator.model import Attempt, Progress, Waiting
from freegpu.orchestrator.speeds import Book, Kin, Pace, Rate, kin, learn

NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
SEEDS = range(40)
CARDS = ("T4", "P100", "L4", "A100", "RTX3060", "Banana 9000")
SWEEP = Kin(family=("bundle", "train"), namesakes=("sweep", "train"))
EDITED = Kin(family=("other bundle", "train"), namesakes=("sweep", "train"))
STRANGER = Kin(family=("x",), namesakes=("y",))


def rate(job: str, card: str, steps_per_s: float, minutes: float = 0.0) -> Rate:
    return Rate(job=job, card=card, steps_per_s=steps_per_s, at=NOW + timedelta(minutes=minutes))


def waiting(**changes: Any) -> Waiting:
    fields: dict[str, Any] = {
        "id": "j",
        "seq": 1,
        "name": "j",
        "needs": Needs(workload="train-amp-cnn"),
        "estimate": Estimate(seconds=3600.0),
        "priority": 0,
        "deadline": None,
        "created_at": NOW,
    }
    return Waiting(**(fields | changes))


def pace(*rates: Rate, job: str = "j", of: Kin | None = None, **more: Any) -> Pace:
    found = learn(rates, {r.job: SWEEP for r in rates} | more.pop("kin", {}), **more).pace(
        job, of, "train-amp-cnn"
    )
    assert found is not None
    return found


def on(found: Pace, card: str) -> tuple[float, float, int]:
    told = found.on(card)
    assert told is not None
    return told.steps_per_s, told.sigma, told.seen


def some(rng: random.Random, job: str, count: int) -> list[Rate]:
    return [
        rate(job, rng.choice(CARDS), math.exp(rng.uniform(-5, 5)), rng.uniform(0, 1e4))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_that_was_measured_counts_there_and_is_carried_by_the_model(seed: int) -> None:
    """On its own card the very figure; elsewhere times the table's ratio, and less sure."""
    rng = random.Random(seed)
    there, figure = rng.choice(CARDS), math.exp(rng.uniform(-5, 5))
    found = pace(rate("j", there, figure))
    assert on(found, there)[0] == pytest.approx(figure)
    for card in CARDS:
        ratio = cards.speed(card, "train-amp-cnn") / cards.speed(there, "train-amp-cnn")
        told, sigma, seen = on(found, card)
        assert told == pytest.approx(figure * ratio)
        if card != there:
            assert seen == 0
            assert sigma > on(found, there)[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_in_which_observations_are_read_does_not_matter(seed: int) -> None:
    """The ledger may tell them in any order: when they were made is what counts."""
    rng = random.Random(seed)
    rates = some(rng, "j", 30) + some(rng, "k", 20)
    mixed = rng.sample(rates, len(rates))
    for card in CARDS:
        assert pace(*rates, of=SWEEP).on(card) == pace(*mixed, of=SWEEP).on(card)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_throttled_card_moves_the_median_little(seed: int) -> None:
    """Among three or more, one observation however wrong leaves the answer between the others."""
    rng = random.Random(seed)
    good = [rng.uniform(9, 11) for _ in range(rng.randint(2, 12))]
    bad = [*good, rng.choice((0.001, 1000.0))]
    found = pace(*(rate("j", "T4", each, at) for at, each in enumerate(bad)))
    assert min(good) <= on(found, "T4")[0] <= max(good)


def test_the_last_rates_count_not_all_of_them() -> None:
    """A job that was made faster is believed after a few looks."""
    rates = [rate("j", "T4", 1.0, at) for at in range(50)]
    rates += [rate("j", "T4", 5.0, 100 + at) for at in range(4)]
    assert on(pace(*rates), "T4")[0] == pytest.approx(5.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_uncertainty_shrinks_with_every_look_and_never_vanishes(seed: int) -> None:
    """Both where it was seen and where it is carried to; the next session may always differ."""
    rng = random.Random(seed)
    rates = [rate("j", "T4", math.exp(rng.gauss(0, 0.2)), at) for at in range(8)]
    for card in ("T4", "L4"):
        sigmas = [on(pace(*rates[:n]), card)[1] for n in range(1, 9)]
        assert sigmas == sorted(sigmas, reverse=True)
        assert sigmas[0] > sigmas[6] > 0.04


def test_a_card_in_no_table_makes_unsure() -> None:
    """Half a T4 is a guess."""
    found = pace(rate("j", "T4", 1.0))
    assert on(found, "Banana 9000")[1] > 2 * on(found, "L4")[1]


def test_own_progress_goes_before_the_familys_and_that_before_namesakes() -> None:
    """And each is less sure than the one before."""
    rates = [rate("j", "T4", 1.0), rate("sister", "T4", 2.0), rate("before", "T4", 4.0)]
    book = learn(rates, {"j": SWEEP, "sister": SWEEP, "before": EDITED})

    def told(job: str, of: Kin) -> tuple[float, float, int]:
        found = book.pace(job, of, "train-amp-cnn")
        assert found is not None
        return on(found, "T4")

    own, family = told("j", SWEEP), told("new", SWEEP)
    namesake = told("new", replace(EDITED, family=("a third bundle", "train")))
    assert own[0] == pytest.approx(1.0)
    assert family[0] == pytest.approx(math.sqrt(2))
    assert namesake[0] == pytest.approx(2.0)
    assert own[1] < family[1] < namesake[1]
    assert book.pace("new", STRANGER, "train-amp-cnn") is None
    assert book.pace("new", None, "train-amp-cnn") is None


def test_a_ratio_that_the_family_showed_replaces_the_tables() -> None:
    """Its input pipeline makes an L4 no faster than a T4 for this job, whatever its matrix rate."""
    rates = [rate("sister", "T4", 10.0), rate("sister", "L4", 10.0), rate("j", "T4", 3.0)]
    found = pace(*rates, of=SWEEP)
    assert on(found, "L4")[0] == pytest.approx(3.0)
    assert on(found, "A100")[0] == pytest.approx(3.0 * cards.speed("A100", "train-amp-cnn"))
    strangers = learn(rates, {"sister": STRANGER, "j": SWEEP}).pace("j", SWEEP, "train-amp-cnn")
    assert strangers is not None
    assert on(strangers, "L4")[0] == pytest.approx(3.0 * cards.speed("L4", "train-amp-cnn"))
    told = learn(rates, dict.fromkeys(("sister", "j"), SWEEP)).told(waiting(), SWEEP)
    assert told.speeds == {"L4": pytest.approx(1.0)}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_left_follows_from_steps_and_rate(seed: int) -> None:
    """Twice as fast is half as long; half the steps done is half as long; on the card that was seen it is exact."""
    rng = random.Random(seed)
    figure, total = math.exp(rng.uniform(-3, 3)), rng.uniform(10, 1e6)
    there = rng.choice(CARDS[:-1])

    def left(job: Waiting, factor: float = 1.0) -> Waiting:
        return learn([rate("j", there, figure * factor)], {}, {"j": total}).told(job, None)

    told = left(waiting())
    assert told.remaining_t4_s is not None
    speed = told.speeds.get(there, cards.speed(there, "train-amp-cnn"))
    assert told.remaining_t4_s / speed == pytest.approx(total / figure)
    assert left(waiting(), 2.0).remaining_t4_s == pytest.approx(told.remaining_t4_s / 2)
    assert left(waiting(remaining=0.5)).remaining_t4_s == pytest.approx(told.remaining_t4_s / 2)
    assert told.sigma is not None
    assert 0 < told.sigma < 1


def test_nothing_known_leaves_the_estimate() -> None:
    """No progress, no total: the job is as it was, or only its speeds are known."""
    assert learn([], {}).told(waiting(), SWEEP) == waiting()
    told = learn([rate("j", "T4", 1.0), rate("j", "L4", 3.0, 1)], {}).told(waiting(), None)
    assert told.remaining_t4_s is None
    assert told.speeds == {"L4": pytest.approx(3.0)}


def test_a_cell_that_never_ran_learns_from_its_sisters() -> None:
    """Rate and number of steps, less sure than its own would be; its own total goes before theirs."""
    rates = [rate("a", "T4", 2.0), rate("b", "T4", 2.0)]
    of = {"a": SWEEP, "b": SWEEP}
    told = learn(rates, of, {"a": 1000.0, "b": 1000.0}).told(waiting(), SWEEP)
    assert told.remaining_t4_s == pytest.approx(500.0)
    own = learn(rates, of, {"a": 1000.0, "b": 1000.0, "j": 4000.0}).told(waiting(), SWEEP)
    assert own.remaining_t4_s == pytest.approx(2000.0)
    seen = learn([rate("j", "T4", 2.0)], {}, {"j": 1000.0}).told(waiting(), None)
    assert seen.sigma is not None
    assert told.sigma is not None
    assert seen.sigma < told.sigma


@pytest.mark.parametrize("figure", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_figures_that_make_no_sense_are_left_out(figure: float) -> None:
    """A job's print cannot break a decision."""
    book = learn([rate("j", "T4", figure)], {"j": SWEEP}, {"j": figure})
    assert book.told(waiting(), SWEEP) == waiting()


@pytest.mark.parametrize("seed", range(5))
def test_the_truth_lies_within_the_uncertainty(seed: int) -> None:
    """Simulated: noisy looks at cards whose true speeds are off the table as those of measured cards are."""
    rng = random.Random(seed)
    within = []
    for _ in range(300):
        off = {card: rng.gauss(0, 0.2) for card in CARDS[:5]}
        true = {card: cards.speed(card, "train-amp-cnn") * math.exp(off[card]) for card in off}
        there, target = rng.sample(sorted(off), 2)
        looks = rng.randint(1, 6)
        found = pace(
            *(
                rate("j", there, true[there] * math.exp(rng.gauss(0, 0.2)), at)
                for at in range(looks)
            )
        )
        told, sigma, _ = on(found, target)
        within.append(abs(math.log(told / true[target])) / sigma)
    assert 0.5 < median(within) / 0.6745 < 1.3


# --- who is kin ------------------------------------------------------------------------------------------


def spec(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"name": "sweep-lr1", "run": "python train.py", "cell": {"LR": "1"}}
    return JobSpec(**(given | changes)).to_json()


def test_cells_of_a_matrix_are_family_and_edited_code_makes_namesakes() -> None:
    """Another command is neither, though it is packed from the same folder."""
    one, other = kin(spec(), "b"), kin(spec(name="sweep-lr2", cell={"LR": "2"}), "b")
    assert one == other
    edited = kin(spec(), "c")
    assert edited.family != one.family
    assert edited.namesakes == one.namesakes
    second = kin(spec(run="python eval.py"), "b")
    assert second.family != one.family
    assert second.namesakes != one.namesakes
    numbered = kin(spec(name="sweep-07"), "c")
    assert numbered.namesakes == one.namesakes


# --- an attempt that still runs --------------------------------------------------------------------------


def attempt(progress: Progress, **changes: Any) -> Attempt:
    fields: dict[str, Any] = dict.fromkeys(Attempt.__dataclass_fields__)
    fields |= {
        "id": "j-1",
        "job": "j",
        "state": AttemptState.RUNNING,
        "card": "T4",
        "started_at": NOW,
        "base_epoch": 0,
        "progress": progress,
    }
    return Attempt(**(fields | changes))


def test_a_running_attempt_is_one_more_observation() -> None:
    """By the rate it prints, else by its steps since it began from scratch; not in its first minute."""
    later = NOW + timedelta(seconds=100)
    steps = Progress(step=50.0, at=later)
    seen = Rate(job="j", card="T4", steps_per_s=0.5, at=later, span_s=100.0)
    assert history.running(attempt(steps)) == seen
    printed = replace(steps, values={"rate": 2.0})
    found = history.running(attempt(printed, base_epoch=1))
    assert found is not None
    assert found.steps_per_s == 2.0
    assert history.running(attempt(steps, base_epoch=1)) is None
    assert history.running(attempt(replace(steps, at=NOW + timedelta(seconds=59)))) is None
    assert history.running(attempt(Progress(at=later))) is None
    assert history.running(attempt(steps, started_at=None)) is None


def short(job: str, card: str, steps_per_s: float, span_s: float, minutes: float = 0.0) -> Rate:
    return replace(rate(job, card, steps_per_s, minutes), span_s=span_s)


def test_many_runs_of_seconds_tell_what_a_cell_takes_one_says_little() -> None:
    """Each is off by its start-up; the sum over cells is sure enough to be believed, and never surer than long runs."""
    sigmas = []
    for count in (1, 3, 7):
        found = pace(
            *[short(f"c{n}", "T4", 2.0, 3.0, n) for n in range(count)], of=SWEEP, job="new"
        )
        speed, sigma, seen = on(found, "T4")
        assert speed == pytest.approx(2.0)
        assert seen == count
        sigmas.append(sigma)
    assert sigmas[0] > 1.0
    assert sigmas == sorted(sigmas, reverse=True)
    assert 0.3 < sigmas[-1] < 0.5
    half_a_minute = pace(*[short(f"c{n}", "T4", 2.0, 30.0) for n in range(7)], of=SWEEP, job="new")
    long = pace(*[short(f"c{n}", "T4", 2.0, 90.0) for n in range(7)], of=SWEEP, job="new")
    assert on(long, "T4")[1] < on(half_a_minute, "T4")[1] < sigmas[-1]


def test_a_run_of_seconds_does_not_speak_against_a_long_one() -> None:
    """Neither newer ones of kin on that card, nor the job's own first seconds; what two cards did in seconds is no ratio."""
    rates = [
        replace(rate("long", "T4", 10.0), span_s=600.0),
        *[short(f"c{n}", "T4", 1.0, 5.0, 1 + n) for n in range(9)],
        short("j", "T4", 0.5, 10.0, 20),
        short("j", "A100", 0.5, 10.0, 20),
    ]
    found = pace(*rates, of=SWEEP)
    assert on(found, "T4")[0] == pytest.approx(10.0)
    assert on(found, "T4")[2] == 1
    assert found.ratios == {}


def test_a_lone_job_that_ran_for_seconds_is_believed_with_doubt() -> None:
    """It is the only one of its family: a wide guess, not none, and not as if it were known."""
    book = learn([short("j", "T4", 2.0, 5.0)], {"j": SWEEP}, {"j": 1000.0})
    told = book.told(waiting(), SWEEP)
    assert told.remaining_t4_s == pytest.approx(500.0)
    assert told.sigma is not None
    assert told.sigma > 1.0


def test_a_book_of_ten_thousand_cells_is_quick() -> None:
    """Kin are looked up once, so each further cell costs a few microseconds."""
    import time

    book: Book = learn([rate("a", "T4", 2.0)], {"a": SWEEP}, {"a": 100.0})
    began = time.perf_counter()
    for seq in range(10_000):
        book.told(waiting(id=f"c{seq}"), SWEEP)
    assert time.perf_counter() - began < 1.0

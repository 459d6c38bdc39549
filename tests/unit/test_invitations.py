"""What one click of a person would buy: which jobs, for how long, how much sooner, and whether it pays to ask."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from freegpu.adapters.base import Capabilities, Offer
from freegpu.jobs.model import Accelerator, Estimate, Needs
from freegpu.orchestrator.invitations import MOST_JOBS, Invitation, for_job, invitations
from freegpu.orchestrator.model import Place, Snapshot, Waiting

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
HOUR = 3600.0
URLS = {"colab": "https://colab.example.org"}


def job(name: str = "a", seq: int = 1, hours: float | None = 1.0, **fields: Any) -> Waiting:
    base: dict[str, Any] = {
        "id": name,
        "seq": seq,
        "name": name,
        "needs": Needs(),
        "estimate": None if hours is None else Estimate(seconds=hours * HOUR),
        "priority": 0,
        "deadline": None,
        "created_at": NOW,
    }
    return Waiting(**(base | fields))


def offer(platform: str, card: str = "T4", **fields: Any) -> Offer:
    base: dict[str, Any] = {"vram_gb": 15.0, "session_limit_s": 12 * HOUR}
    return Offer(platform=platform, account="me", card=card, **(base | fields))


def place(platform: str, *offers: Offer, attended: bool = True, **fields: Any) -> Place:
    base: dict[str, Any] = {
        "platform": platform,
        "account": "me",
        "capabilities": Capabilities(attended=attended, max_concurrent=1),
        "offers": offers,
        "open_sessions": 0,
        "balances": (),
    }
    return Place(**(base | fields))


COLAB = place("colab", offer("colab"))
KAGGLE = place("kaggle", offer("kaggle", count=2))
JUPYTER = place("jupyter")
CPU = place("local", offer("local", "CPU", vram_gb=0.0, session_limit_s=None), attended=False)


def asked(waiting: list[Waiting], *places: Place) -> tuple[Invitation, ...]:
    return invitations(Snapshot(waiting=tuple(waiting), places=places), NOW, URLS)


def only(waiting: list[Waiting], *places: Place) -> Invitation:
    (found,) = asked(waiting, *places)
    return found


def test_one_session_takes_several_jobs_one_after_another() -> None:
    """Their times add up in its one slot, and the sentence names the first and counts the rest."""
    found = only([job("a", 1, 1), job("b", 2, 2), job("c", 3, 3)], COLAB)
    assert (found.platform, found.url, found.card) == ("colab", URLS["colab"], "T4")
    assert found.jobs == found.names == ("a", "b", "c")
    assert found.finish_s == pytest.approx(6 * HOUR, rel=0.1)
    assert "it starts a and 2 more" in found.sentence
    assert "freegpu cell colab" in found.sentence
    assert URLS["colab"] in found.sentence


def test_two_cards_are_two_slots() -> None:
    """T4 x2: three equal jobs take two rounds, not three."""
    found = only([job(name, seq) for seq, name in enumerate("abc")], KAGGLE)
    assert (found.card, len(found.jobs)) == ("T4 x2", 3)
    assert found.finish_s == pytest.approx(2 * HOUR, rel=0.1)


def test_what_does_not_fit_into_the_session_is_not_promised() -> None:
    """Once every slot is booked up to the session's limit, later jobs are not its jobs."""
    short = place("colab", offer("colab", session_limit_s=4 * HOUR))
    found = only([job(str(n), n, 2.5) for n in range(6)], short)
    assert found.jobs == ("0", "1")


def test_the_most_urgent_job_comes_first() -> None:
    """By priority, then by age, whatever the order of the snapshot."""
    found = only([job("late", 2), job("urgent", 3, priority=5), job("early", 1)], COLAB)
    assert found.jobs == ("urgent", "early", "late")


def test_a_job_without_another_place_makes_a_click_pay() -> None:
    """Nobody else can start it: that is said, and it is worth a message."""
    found = only([job(needs=Needs(accelerators=(Accelerator(card="T4"),)))], COLAB, CPU)
    assert (found.pays, found.gain_s) == (True, None)
    assert "no other place can take it now" in found.sentence


def test_the_gain_is_the_time_by_which_the_first_job_ends_sooner() -> None:
    """A T4 against a processor: many hours, so it pays; said as a span."""
    found = only([job()], COLAB, CPU)
    assert found.gain_s is not None
    assert found.gain_s > 5 * HOUR
    assert found.pays
    assert "a ends " in found.sentence
    assert "sooner" in found.sentence


def test_a_click_that_gains_little_is_shown_but_not_asked_for() -> None:
    """The same card elsewhere, started without a person: no message for that."""
    other = place("cluster", offer("cluster"), attended=False)
    found = only([job()], COLAB, other)
    assert not found.pays
    assert "sooner" not in found.sentence


def test_length_not_known_promises_nothing() -> None:
    """No finish, no gain, one job a slot; and no message if it has another place."""
    found = only([job("a", 1, None), job("b", 2, None), job("c", 3, None)], KAGGLE, CPU)
    assert found.finish_s is None
    assert found.gain_s is None
    assert len(found.jobs) == 2
    assert not found.pays
    assert "done in" not in found.sentence


def test_a_notebook_of_which_nobody_knows_the_card() -> None:
    """For jobs that have no other place: worth a line, and a message only if a job names the platform."""
    big = job("big", needs=Needs(vram_gb=80))
    found = only([big, job("small", 2)], JUPYTER, CPU)
    assert (found.jobs, found.card, found.url, found.pays) == (("big",), "", "", False)
    assert found.sentence.startswith("run the cell (`freegpu cell jupyter`)")
    assert "if the machine fits" in found.sentence
    named = job("named", needs=Needs(platforms=("jupyter",)))
    assert only([named], JUPYTER, CPU).pays
    assert asked([job("other", needs=Needs(platforms=("kaggle",)))], JUPYTER) == ()
    assert asked([job("small")], JUPYTER, CPU) == ()


@pytest.mark.parametrize("where", [COLAB, JUPYTER], ids=["colab", "jupyter"])
def test_no_invitation_to_a_place_that_is_open_or_blocked(where: Place) -> None:
    """Somebody has clicked already, or the place has just said no; when the block is over it counts again."""
    waiting = [job(needs=Needs(platforms=(where.platform,)))]
    assert len(asked(waiting, where)) == 1
    assert asked(waiting, replace(where, open_sessions=1)) == ()
    shut = replace(where, blocked_until=NOW + timedelta(minutes=5), blocked_why="it said no")
    assert asked(waiting, shut) == ()
    assert len(asked(waiting, replace(shut, blocked_until=NOW - timedelta(minutes=5)))) == 1


def test_nothing_waits_and_nothing_is_attended_means_no_invitation() -> None:
    """Silence is the usual answer."""
    assert asked([], COLAB, KAGGLE) == ()
    assert asked([job()], CPU) == ()
    assert asked([job(needs=Needs(vram_gb=40))], COLAB) == ()


def test_the_best_comes_first_and_a_job_finds_its_own() -> None:
    """What pays before what does not, more jobs before fewer; for_job picks the best that takes the job."""
    l4 = job("wants-l4", 2, needs=Needs(accelerators=(Accelerator(card="L4"),)))
    pro = place("pro", offer("pro", "L4", vram_gb=24.0))
    found = asked([job("any", 1), l4], COLAB, pro)
    assert [one.platform for one in found] == ["pro", "colab"]
    mine = for_job(l4, found)
    assert mine is not None
    assert mine.platform == "pro"
    assert for_job(job("else"), found) is None


def test_only_so_many_jobs_are_looked_at() -> None:
    """A queue of ten thousand does not slow a tick down."""
    endless = place("colab", offer("colab", session_limit_s=None))
    found = only([job(str(n), n, 0.01) for n in range(10 * MOST_JOBS)], endless)
    assert len(found.jobs) == MOST_JOBS


def test_it_is_total_and_deterministic() -> None:
    """Any snapshot gives an answer, twice the same, whatever order its parts come in; each holds together."""
    rng = random.Random(11)
    cards = ("T4", "L4", "A100", "CPU", "no such card")
    for _ in range(150):
        waiting = [
            job(
                f"j{n}",
                n,
                rng.choice([None, 0.0, 0.001, 1.0, 500.0]),
                priority=rng.randint(-100, 100),
                remaining=rng.choice([0.0, 0.5, 1.0]),
                needs=rng.choice([Needs(), Needs(vram_gb=20), Needs(platforms=("p1", "p2"))]),
                deadline=rng.choice([None, NOW - timedelta(days=1), NOW + timedelta(hours=2)]),
            )
            for n in range(rng.randint(0, 6))
        ]
        places = [
            place(
                f"p{n}",
                *(
                    offer(
                        f"p{n}",
                        rng.choice(cards),
                        count=rng.choice([1, 2, 8]),
                        vram_gb=rng.choice([0.0, 15.0, 80.0]),
                        session_limit_s=rng.choice([None, 0.0, 1.0, HOUR, 1e9]),
                    )
                    for _ in range(rng.randint(0, 2))
                ),
                attended=rng.random() < 0.7,
                open_sessions=rng.choice([0, 0, 1]),
            )
            for n in range(rng.randint(0, 4))
        ]
        found = asked(waiting, *places)
        assert found == asked(waiting, *places)
        assert found == asked(waiting[::-1], *places[::-1])
        for one in found:
            assert len(set(one.jobs)) == len(one.jobs) == len(one.names) > 0
            assert one.finish_s is None or 0 <= one.finish_s < float("inf")
            assert one.worth == one.worth
            assert "inf" not in one.sentence
            assert "nan" not in one.sentence

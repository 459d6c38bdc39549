"""What stands under a running cell: every fact of the view, in words and as HTML, and nothing made up."""

from __future__ import annotations

import re
from typing import Any

import pytest

from freegpu.agent.show import Show, share, span


def view(**changes: Any) -> dict[str, Any]:
    slot = {
        "attempt": "k3-1",
        "job": "k3",
        "name": "mnist",
        "number": 1,
        "phase": "running",
        "progress": {"step": 120, "total": 400, "loss": 0.3125, "rate": 2.0},
        "checkpoint": {"generation": 4, "confirmed": 4, "age_s": 30},
    }
    return {
        "uptime_s": 60.0,
        "left_s": 39600.0,
        "cards": ["T4"],
        "gpu": [{"util": 97, "mem_used_mb": 9216, "mem_total_mb": 15360}],
        "slots": [slot],
        "queued": 1,
        "waiting": 2,
        "away_s": None,
    } | changes


def slot(**changes: Any) -> list[dict[str, Any]]:
    return [view()["slots"][0] | changes]


def lines(**changes: Any) -> list[str]:
    return Show("Google Colab", 43200).lines(view(**changes))


def test_a_picture_has_card_time_use_job_progress_checkpoint_and_queue() -> None:
    """Everything that a person wants to know who looks at the notebook now."""
    assert lines() == [
        "freegpu on Google Colab: T4 · session 60 s · 11 h 00 min left · GPU 97 %, 9.0 of 15.0 GB",
        "mnist (attempt 1) running step 120 of 400 [#######.................] 30 % loss 0.3125",
        "  saved: checkpoint 4, its content 30 s old, confirmed",
        "queue: 3 more jobs wait",
    ]


def test_the_time_left_of_a_job_is_reckoned_from_steps_seen_here() -> None:
    """None at first, and none while nothing moves; then by its pace since it was first seen."""
    show = Show("Jupyter", None)

    def at(step: int, uptime: float) -> str:
        return show.lines(view(uptime_s=uptime, slots=slot(progress={"step": step, "total": 400})))[
            1
        ]

    assert "left" not in at(100, 60)
    assert "left" not in at(110, 62), "two seconds are no measure"
    assert at(150, 70).endswith("about 50 s left")
    assert at(400, 160).endswith("100 % about 0 s left")
    other = view(uptime_s=200.0, slots=slot(attempt="k3-2", progress={"step": 1, "total": 2}))
    assert "left" not in show.lines(other)[1], "another attempt has a pace of its own"


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ({}, "nothing saved yet"),
        (None, "nothing saved yet"),
        ({"generation": 0, "confirmed": 3}, "saved: checkpoint 3, confirmed"),
        (
            {"generation": 4, "confirmed": 3},
            "saved: checkpoint 4, not confirmed yet (confirmed: 3)",
        ),
        (
            {"generation": 1, "confirmed": 0},
            "saved: checkpoint 1, not confirmed yet (confirmed: none)",
        ),
        (
            {"generation": 2, "confirmed": 2, "age_s": 4000},
            "saved: checkpoint 2, its content 66 min old, confirmed",
        ),
    ],
)
def test_confirmed_is_said_only_of_what_is(checkpoint: Any, words: str) -> None:
    """A person who closes the notebook relies on this line."""
    assert lines(slots=slot(checkpoint=checkpoint))[2] == f"  {words}"


@pytest.mark.parametrize(
    ("queued", "waiting", "words"),
    [
        (0, 0, "queue: empty"),
        (0, 1, "queue: 1 more job waits"),
        (2, 0, "queue: 2 more jobs wait"),
        (0, None, "queue: nobody hands out work yet (`freegpu up` on your machine does)"),
    ],
)
def test_the_queue_line_tells_an_empty_queue_from_no_word(
    queued: int, waiting: int | None, words: str
) -> None:
    """Nobody's word is not an empty queue: then the person's own machine is asleep."""
    assert lines(queued=queued, waiting=waiting)[-1] == words


def test_a_store_that_is_away_is_told_and_so_is_idleness() -> None:
    """Ten seconds are no absence."""
    assert lines(slots=[])[1] == "no job runs here now"
    assert lines(away_s=9.0) == lines()
    assert lines(away_s=300.0)[-1] == (
        "the store has not answered for 5 min; the job goes on meanwhile"
    )


def test_several_cards_and_jobs_are_all_there() -> None:
    """T4 x2: one line of cards, two jobs."""
    two = [*slot(), *slot(attempt="q8-1", name="bert", progress=None)]
    found = lines(cards=["T4", "T4"], slots=two, gpu=[])
    assert found[0].startswith("freegpu on Google Colab: 2 x T4 · ")
    assert [line for line in found if "attempt" in line][1] == "bert (attempt 1) running"


def test_a_job_cannot_write_into_the_page() -> None:
    """Names come from a spec and are text, also where a browser reads them."""
    evil = slot(name='<img src=x onerror="alert(1)">', phase="<b>")
    page = Show("<i>", None).html(view(slots=evil, cards=["<u>"]))
    assert not re.search(r"<(img|i|u)\b", page)
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in page


def test_the_page_has_a_bar_and_the_same_facts() -> None:
    """HTML says what the text says, once, with a real progress bar."""
    page = Show("Google Colab", None).html(view(away_s=60.0))
    assert '<progress max="1" value="0.3000"></progress>' in page
    text = re.sub(r"<[^>]+>", "\n", page)
    for fact in ("mnist (attempt 1)", "confirmed", "queue: 3 more", "has not answered", "97 %"):
        assert text.count(fact) == 1
    idle = Show("Google Colab", None).html(view(slots=slot(name="no job of mine")))
    assert idle.count("no job of mine") == 1


@pytest.mark.parametrize(
    "progress",
    [
        None,
        {},
        {"step": 5},
        {"total": 5},
        {"step": 5, "total": 0},
        {"step": 5, "total": -1},
        {"step": float("nan"), "total": 5},
        {"step": float("inf"), "total": 5},
        {"step": 9, "total": 5},
        {"step": -9, "total": 5},
        {"step": 1e300, "total": 1e-300},
        {"step": 10**400, "total": 10**401},
        {"loss": float("nan")},
        {"step": 1.5, "total": 3.0, "note": "text", "flag": True},
    ],
)
def test_any_progress_is_shown_or_left_out_and_never_breaks_the_picture(progress: Any) -> None:
    """Jobs print what they like."""
    done = share(progress)
    assert done is None or 0.0 <= done <= 1.0
    show = Show("Jupyter", None)
    for uptime in (0.0, 100.0):
        picture = view(uptime_s=uptime, slots=slot(progress=progress))
        assert len(show.lines(picture)) == 4
        assert "mnist" in show.html(picture)


def test_an_empty_view_is_a_picture_too() -> None:
    """The first moment, before the agent knows anything."""
    assert Show("Jupyter", None).lines({})[1:] == [
        "no job runs here now",
        lines(waiting=None, queued=0)[-1],
    ]
    assert "freegpu on Jupyter" in Show("Jupyter", None).html({})


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h 00 min"),
        (11100, "3 h 05 min"),
    ],
)
def test_a_span_is_said_as_people_do(seconds: float, words: str) -> None:
    """Seconds, minutes, hours; never negative."""
    assert span(seconds) == words


def test_what_went_wrong_lately_stands_under_the_cell() -> None:
    """A full Drive, for one: otherwise a person only sees that nothing is confirmed any more."""
    view = {"cards": ["T4"], "uptime_s": 5.0, "slots": [], "notice": "the Google Drive is <full>"}
    show = Show("Google Colab", None)
    assert "note: the Google Drive is <full>" in show.lines(view)
    assert "note: the Google Drive is &lt;full&gt;" in show.html(view)

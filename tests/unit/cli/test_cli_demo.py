"""`demo`: how its story is told; the story itself is tried elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freegpu.testing import demo
from freegpu.testing.demo import DemoResult, Frame, Moment

MOMENTS = (
    Moment(at=0.1, kind="submitted", text="job digits (k3) is submitted"),
    Moment(at=9.5, kind="killed", text="steady takes its machine away"),
)


def result(folder: Path, *, identical: bool = True) -> DemoResult:
    return DemoResult(
        folder=str(folder),
        seconds=48.0,
        timeline=MOMENTS,
        attempts=(
            {
                "number": 1,
                "platform": "swift",
                "card": "A100",
                "reason": "session_expired",
                "run_s": 8.0,
                "lost_s": 0.0,
                "from_checkpoint": "",
            },
        ),
        hops=2,
        accuracy=0.9417,
        lost_s=1.2,
        identical=identical,
        outputs={"model.json": "ab" * 32},
        undisturbed_s=30.0,
        size=40_000_000,
    )


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch, fake: Any) -> dict[str, Any]:
    """Replaces the demo's run; `identical` is what it finds, `folder` and `seed` what it was given."""
    told: dict[str, Any] = {"identical": True}

    def run(folder: Path, *, seed: int, report: Callable[[Frame], None]) -> DemoResult:
        told.update(folder=folder, seed=seed, was_there=folder.is_dir())
        for count in (1, 1, 2):
            report(Frame(at=float(count), status=fake.status(), moments=MOMENTS[:count]))
        return result(folder, identical=told["identical"])

    monkeypatch.setattr(demo, "run", run)
    return told


def test_the_story_is_told_as_it_happens_and_once_more_as_a_timeline(
    shell: Callable[..., Any], story: dict[str, Any]
) -> None:
    """On stderr each moment once; on stdout the timeline and the figures."""
    answer = shell("demo", "--seed", "7")
    assert answer.code == 0
    assert answer.err.count("takes its machine away") == 1
    assert "   9.5 s  steady takes its machine away" in answer.out
    assert "94.17% on held-out data" in answer.out
    assert "byte for byte the undisturbed run's" in answer.out
    assert story["seed"] == 7


def test_without_keep_nothing_stays(shell: Callable[..., Any], story: dict[str, Any]) -> None:
    """The folder is made for the demo and removed after it, and no answer names it."""
    document = shell("demo", "--json").envelope
    assert story["was_there"]
    assert not story["folder"].exists()
    assert document["data"]["folder"] is None
    assert document["data"]["accuracy"] == 0.9417


def test_with_keep_the_folder_stays_and_is_named(
    shell: Callable[..., Any], story: dict[str, Any], tmp_path: Path
) -> None:
    """It is made if it is not there."""
    keep = tmp_path / "new" / "demo"
    document = shell("demo", "--keep", str(keep), "--json").envelope
    assert story["folder"] == keep
    assert keep.is_dir()
    assert document["data"]["folder"] == str(keep)


def test_a_result_that_differs_is_a_failure(
    shell: Callable[..., Any], story: dict[str, Any]
) -> None:
    """The promise was not kept: exit code 1, and it says so."""
    story["identical"] = False
    answer = shell("demo")
    assert answer.code == 1
    assert "NOT the undisturbed run's" in answer.out
    assert "error: the result differs" in answer.err
    assert shell("demo", "--json").envelope["errors"][0]["code"] == "demo"


def test_on_a_terminal_the_platforms_are_drawn_live(
    shell: Callable[..., Any], story: dict[str, Any]
) -> None:
    """Quota, jobs and the moments so far, in place."""
    answer = shell("demo", terminal=True)
    assert "freegpu demo" in answer.out
    assert "kaggle" in answer.out
    assert answer.err.count("takes its machine away") == 0

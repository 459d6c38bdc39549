"""What the PyTorch of a platform was built for, from an agent's hello to the decision's Place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from freegpu.jobs.model import Accelerator, Needs
from freegpu.orchestrator import builds
from freegpu.orchestrator.observe import unsuitable

NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
NEW = ("sm_75", "sm_80", "sm_86", "sm_90")


def test_a_report_is_kept_by_card_and_stands_for_the_platforms_image() -> None:
    """One session on a T4 tells that a P100 of the same image is of no use; own machines speak each for itself."""
    line = builds.noted(None, "T4", NEW, NOW - timedelta(days=2))
    assert builds.known(line, NOW, one_image=True) == {"T4": NEW, "": NEW}
    assert builds.known(line, NOW, one_image=False) == {"T4": NEW}
    line = builds.noted(line, "P100", ("sm_60",), NOW)
    assert builds.known(line, NOW, one_image=True) == {
        "T4": NEW,
        "P100": ("sm_60",),
        "": ("sm_60",),
    }


def test_an_old_report_counts_no_more_and_no_report_says_nothing() -> None:
    """Images change: after a month a card is tried again."""
    line = builds.noted(None, "T4", NEW, NOW - timedelta(days=31))
    assert builds.known(line, NOW, one_image=True) == {}
    assert builds.known(None, NOW, one_image=True) == {}


@pytest.mark.parametrize(
    "hello", [{}, {"torch": None}, {"torch": {"arch_list": "sm_75"}}, {"torch": []}]
)
def test_a_hello_without_pytorch_tells_nothing(hello: dict[str, object]) -> None:
    """Nor does one in words we do not know."""
    assert builds.told(hello) == ()
    assert builds.told({"torch": {"arch_list": ["sm_75"]}}) == ("sm_75",)


def test_a_card_that_came_is_judged_by_what_the_job_can_do_with_it() -> None:
    """No kernels, no bf16: off it. A job that names the card, or needs none, stays."""
    some = Needs(vram_gb=8.0)
    assert "no kernels for it (sm_60)" in unsuitable(some, "P100", NEW)
    assert unsuitable(some, "T4", NEW) == ""
    assert "bf16" in unsuitable(Needs(vram_gb=8.0, precision="bf16"), "T4")
    assert unsuitable(Needs(vram_gb=8.0, precision="bf16"), "L4", NEW) == ""
    assert unsuitable(Needs(accelerators=(Accelerator(card="P100"),)), "P100", NEW) == ""
    assert unsuitable(Needs(), "P100", NEW) == ""

"""How often both ends of a mailbox look: as the settings say, but never more than the store can bear."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from freegpu import config
from freegpu.agent.stores.base import Properties
from freegpu.config import Settings
from freegpu.orchestrator.pace import pace


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(config.load({}, home=tmp_path), poll_s=1.0, beat_s=2.0, idle_s=60.0)


def store(min_poll: float) -> Properties:
    return Properties(cas=False, ordered=False, lists_lag=True, max_object=None, min_poll=min_poll)


def test_a_folder_is_asked_as_often_as_the_settings_say(settings: Settings) -> None:
    """Nothing is slowed down where nothing is counted."""
    found = pace(settings, store(0.05))
    assert (found.poll_s, found.beat_s, found.idle_s) == (1.0, 2.0, 60.0)


def test_a_store_that_counts_requests_is_asked_more_rarely(settings: Settings) -> None:
    """Looks at its least distance, heartbeats at three of them, and time enough for a ticket to come."""
    found = pace(settings, store(5.0))
    assert (found.poll_s, found.beat_s, found.idle_s) == (5.0, 15.0, 300.0)


def test_settings_that_are_slower_still_win(settings: Settings) -> None:
    """A person who wants fewer requests gets them."""
    slow = replace(settings, poll_s=30.0, beat_s=60.0, idle_s=3600.0)
    found = pace(slow, store(5.0))
    assert (found.poll_s, found.beat_s, found.idle_s) == (30.0, 60.0, 3600.0)


@pytest.mark.parametrize("least", [0.0, 0.5, 1.0, 2.0, 10.0, 60.0])
def test_silence_is_judged_by_the_same_measure(settings: Settings, least: float) -> None:
    """Two looks count as two only if a heartbeat had the time to move between them; and a look comes at
    least as often as a heartbeat, or beats would be missed."""
    found = pace(settings, store(least))
    assert found.gap_s == 2 * found.beat_s
    assert found.poll_s >= least
    assert found.beat_s >= found.poll_s
    assert found.idle_s >= 10 * found.poll_s

"""Platforms are asked beside each other; nothing is asked twice, and nothing vital is cut off."""

from __future__ import annotations

import threading
import time

import pytest

from freegpu.errors import AuthError
from freegpu.orchestrator.lanes import Lanes, Late


def test_a_platform_that_hangs_holds_up_nobody() -> None:
    """The others' answers are there when the patience ends; the hanging one is Late, and its call goes on."""
    lanes, gate = Lanes(patience_s=0.2), threading.Event()
    begun = time.monotonic()
    answers = lanes.ask_all("look", {"hangs": lambda: gate.wait(30), "quick": lambda: "here"})
    assert answers["quick"]() == "here"
    with pytest.raises(Late) as told:
        answers["hangs"]()
    assert time.monotonic() - begun < 5
    assert told.value.transient
    gate.set()
    assert lanes.ask("hangs", "look", lambda: False, wait_s=10) is True, "the first call's answer"


def test_a_call_that_is_on_its_way_is_joined_and_not_made_again() -> None:
    """Three ticks that ask a slow platform make one request."""
    lanes, gate, calls = Lanes(patience_s=0.05), threading.Event(), []

    def slow() -> str:
        calls.append(1)
        gate.wait(30)
        return "at last"

    for _ in range(3):
        with pytest.raises(Late):
            lanes.ask("slow", "look", slow)
    gate.set()
    assert lanes.ask("slow", "look", slow, wait_s=10) == "at last"
    assert calls == [1]
    assert lanes.ask("slow", "look", slow, wait_s=10) == "at last"
    assert calls == [1, 1], "a result that was taken is asked for anew"


def test_an_upload_of_minutes_keeps_nobody_from_looking() -> None:
    """A vital call has a lane of its own; `finish` waits for it and for nothing else."""
    lanes, gate, hung = Lanes(patience_s=5), threading.Event(), threading.Event()
    lanes.call("one", "start s-1", lambda: gate.wait(30), vital=True)
    assert lanes.ask("one", "look", lambda: "seen") == "seen"
    lanes.call("two", "look", lambda: hung.wait(30))
    assert lanes.busy
    assert lanes.under_way("one", "start s-1")
    threading.Timer(0.1, gate.set).start()
    lanes.finish()
    assert lanes.under_way("one", "start s-1"), "its result is still to be taken"
    assert lanes.take("one", "start s-1") is True
    lanes.finish()  # nothing is left to wait for: it returns at once, though "two" hangs
    hung.set()


def test_what_went_wrong_is_raised_where_the_answer_is_taken() -> None:
    """Once: the next call is a new one."""
    lanes = Lanes()

    def refused() -> str:
        raise AuthError("the key is wrong")

    with pytest.raises(AuthError, match="the key is wrong"):
        lanes.ask("one", "look", refused)
    assert lanes.ask("one", "look", lambda: "well") == "well"
    lanes.close()


def test_what_nobody_takes_is_waited_for_once() -> None:
    """A command ticks until nothing is under way: a result without an owner must not keep it for ever."""
    lanes = Lanes(patience_s=0.1)
    lanes.call("one", "start x", lambda: None, vital=True)
    before = lanes.busy
    lanes.finish()
    assert (before, lanes.busy) == (True, False)
    assert lanes.take("one", "start x") is None

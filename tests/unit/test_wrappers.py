"""Patience around an adapter: what is tried again, how often, and what never happens twice."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import (
    Capabilities,
    Collected,
    Launch,
    LogPage,
    Observation,
    Offer,
    PlatformState,
    QuotaReport,
    Request,
    SessionRef,
    Window,
)
from freegpu.adapters.wrappers import LONGEST_S, PAUSES_S, Patient, wrap
from freegpu.errors import (
    AdapterError,
    AuthError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)
from freegpu.testing.clock import ManualClock

REF = SessionRef("s-1")
REQUEST = Request(key="s-1")
CALLS: Mapping[str, Callable[[Patient], object]] = {
    "offers": lambda patient: patient.offers(),
    "quota": lambda patient: patient.quota(),
    "find": lambda patient: patient.find("s-1"),
    "observe": lambda patient: patient.observe([REF]),
    "stop": lambda patient: patient.stop(REF),
    "logs": lambda patient: patient.logs(REF),
    "collect": lambda patient: patient.collect(REF, Path("home")),
}


class Script:
    """An adapter that fails as told: each call takes the next item of its list, an error or an answer."""

    name, account = "scripted", "somebody"
    capabilities = Capabilities()
    windows: Mapping[str, Window] = {}

    def __init__(self, **answers: Sequence[object]) -> None:
        self.answers: dict[str, Iterator[object]] = {k: iter(v) for k, v in answers.items()}
        self.calls: list[str] = []

    def _next(self, call: str) -> Any:
        self.calls.append(call)
        answer = next(self.answers.get(call, iter(())), None)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def offers(self) -> Sequence[Offer]:
        return self._next("offers") or []

    def quota(self) -> Sequence[QuotaReport] | None:
        self._next("quota")
        return None

    def render(self, launch: Launch, /) -> Request:
        return REQUEST

    def start(self, request: Request, /) -> SessionRef:
        return self._next("start") or REF

    def find(self, key: str, /) -> SessionRef | None:
        found: SessionRef | None = self._next("find")
        return found

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        self._next("observe")
        return {ref: Observation(state=PlatformState.RUNNING) for ref in refs}

    def stop(self, ref: SessionRef, /) -> None:
        self._next("stop")

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        self._next("logs")
        return LogPage(text="")

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        self._next("collect")
        return Collected(files=0, whole=True)

    def close(self) -> None:
        self._next("close")


def patient(**answers: Sequence[object]) -> tuple[Patient, Script, ManualClock]:
    clock, script = ManualClock(), Script(**answers)
    return wrap(script, clock=clock), script, clock


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_may_be_repeated_is_tried_again_after_a_passing_error(call: str) -> None:
    """Two timeouts in a row cost two pauses, and the caller sees the third answer."""
    wrapped, script, clock = patient(**{call: [UnreachableError("1"), UnreachableError("2")]})
    CALLS[call](wrapped)
    assert script.calls == [call] * 3
    assert clock.slept == list(PAUSES_S)


@pytest.mark.parametrize("call", CALLS)
def test_patience_is_bounded(call: str) -> None:
    """A platform that never answers is left to the next tick: the last error comes out."""
    errors = [UnreachableError(str(number)) for number in range(9)]
    wrapped, script, _ = patient(**{call: errors})
    with pytest.raises(UnreachableError, match=r"^2$"):
        CALLS[call](wrapped)
    assert len(script.calls) == len(PAUSES_S) + 1


@pytest.mark.parametrize(
    "error",
    [AuthError("a"), RejectedError("r"), QuotaExhaustedError("q"), NoCapacityError("c")],
    ids=lambda error: type(error).__name__,
)
def test_an_answer_is_not_asked_for_again(error: AdapterError) -> None:
    """No card free is an answer too, though a passing one: placement decides what follows."""
    wrapped, script, clock = patient(offers=[error])
    with pytest.raises(type(error)):
        wrapped.offers()
    assert (script.calls, clock.slept) == (["offers"], [])


def test_a_start_whose_answer_was_lost_is_found_and_not_repeated() -> None:
    """502 after accepting: find() has it, so start() is called once."""
    wrapped, script, _ = patient(start=[UnreachableError("502")], find=[REF])
    assert wrapped.start(REQUEST) == REF
    assert script.calls == ["start", "find"]


def test_a_start_is_repeated_once_the_platform_says_that_there_is_no_such_session() -> None:
    """502 before accepting: find() says None, and only then is it started again."""
    wrapped, script, _ = patient(start=[UnreachableError("502")], find=[None])
    assert wrapped.start(REQUEST) == REF
    assert script.calls == ["start", "find", "start"]


def test_a_start_is_not_repeated_while_nobody_can_say_whether_it_happened() -> None:
    """find() does not answer either: start() stays called once, and the error says unreachable."""
    wrapped, script, _ = patient(
        start=[UnreachableError("502")], find=[UnreachableError("x"), UnreachableError("y")]
    )
    with pytest.raises(UnreachableError):
        wrapped.start(REQUEST)
    assert script.calls == ["start", "find", "find"]


def test_a_platform_that_names_a_short_wait_gets_exactly_that() -> None:
    """Retry-After above our own pause wins."""
    wrapped, script, clock = patient(offers=[RateLimitedError("429", retry_after_s=4.0)])
    wrapped.offers()
    assert clock.slept == [4.0]
    assert script.calls == ["offers"] * 2


def test_a_platform_that_asks_for_long_quiet_is_not_called_until_then() -> None:
    """The error goes up at once, and until the moment it named no call of any kind reaches the platform."""
    quiet = LONGEST_S + 50
    wrapped, script, clock = patient(offers=[RateLimitedError("429", retry_after_s=quiet)])
    with pytest.raises(RateLimitedError):
        wrapped.offers()
    clock.advance(quiet - 20)
    with pytest.raises(RateLimitedError) as caught:
        wrapped.observe([REF])
    assert caught.value.retry_after_s == pytest.approx(20)
    assert (script.calls, clock.slept) == (["offers"], [])
    clock.advance(20)
    wrapped.observe([REF])
    assert script.calls == ["offers", "observe"]


def test_a_mistake_in_an_adapter_stops_neither_the_tick_nor_hides_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A KeyError becomes one AdapterError sentence; the traceback is in the log; it is not tried again."""
    wrapped, script, _ = patient(observe=[KeyError("status")])
    with pytest.raises(AdapterError, match=r"failed in observe\(\): KeyError: 'status'") as caught:
        wrapped.observe([REF])
    assert caught.value.adapter == "scripted"
    assert script.calls == ["observe"]
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.exc_info is not None


def test_a_start_that_broke_after_accepting_counts_as_perhaps_accepted() -> None:
    """A mistake in reading the answer leaves it to find(): Unreachable, never a refusal for good."""
    wrapped, script, _ = patient(start=[TypeError("no field id")])
    with pytest.raises(UnreachableError):
        wrapped.start(REQUEST)
    assert script.calls == ["start"]


def test_each_failure_is_logged_for_machines(caplog: pytest.LogCaptureFixture) -> None:
    """action, platform and call are fields of the record, not only words in it."""
    caplog.set_level(logging.INFO)
    wrapped, _, _ = patient(stop=[UnreachableError("x")])
    wrapped.stop(REF)
    (record,) = caplog.records
    assert record.__dict__["action"] == "adapter_error"
    assert (record.__dict__["platform"], record.__dict__["call"]) == ("scripted", "stop")


def test_facts_and_rendering_pass_through_untouched() -> None:
    """Nothing around an adapter changes what it is."""
    wrapped, script, _ = patient()
    assert (wrapped.name, wrapped.account) == ("scripted", "somebody")
    assert wrapped.capabilities is script.capabilities
    assert wrapped.windows is script.windows
    assert wrapped.inner is script
    wrapped.close()
    assert script.calls == ["close"]

"""What a loopback platform promises: limits that hold by themselves, quota, faults on demand, nobody left alive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Observation, PlatformState, Request, SessionRef, WindowKind
from freegpu.adapters.hosts import held
from freegpu.clock import SystemClock
from freegpu.errors import (
    AdapterError,
    AuthError,
    ConfigError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    UnreachableError,
)
from freegpu.testing import watcher
from freegpu.testing.clock import ManualClock
from freegpu.testing.loopback import FAULTS, LoopbackAdapter

Make = Callable[..., LoopbackAdapter]

#: a session with a child in its own group and one that left its parents; it tells their pids
TREE = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
orphan = subprocess.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True).stdout
print(os.getpid(), child.pid, orphan.strip(), flush=True)
time.sleep(60)
"""
STAY = "import time; time.sleep(60)"
WEEK = {"kind": "fixed_weekly", "limit_s": 3600}


def request(key: str, script: str = STAY) -> Request:
    profile = {"slots": [{"index": 0, "card": "T4"}]}
    argv = [sys.executable, "-I", "-c", script]
    return Request(key=key, payload={"argv": argv, "profile": profile})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def make(home: Path) -> Iterator[Make]:
    """Builds platforms of one home, as separate commands would; takes their sessions away at the end."""
    made: list[LoopbackAdapter] = []

    def build(name: str = "blue", **options: Any) -> LoopbackAdapter:
        clock = options.pop("clock", SystemClock())
        adapter = LoopbackAdapter.from_options(name, options, home=home, clock=clock)
        made.append(adapter)
        return adapter

    yield build
    for adapter in made:
        adapter.set_faults(**dict.fromkeys(FAULTS))
        for key in adapter.host.keys():  # noqa: SIM118 - a method of ours, not a dict
            adapter.kill(SessionRef(key))
        adapter.close()


def until(what: Callable[[], Any], seconds: float = 15.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def look(platform: LoopbackAdapter, ref: SessionRef) -> Observation:
    return platform.observe([ref])[ref]


def ended(platform: LoopbackAdapter, ref: SessionRef) -> Observation:
    """The observation with which it is over."""

    def over() -> Observation | None:
        seen = look(platform, ref)
        return seen if seen.state is PlatformState.ENDED else None

    found: Observation = until(over)
    return found


def tree(platform: LoopbackAdapter, ref: SessionRef) -> list[int]:
    """The pids that TREE tells."""
    return [int(word) for word in until(lambda: platform.logs(ref).text).split()]


def runs(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return state.strip()[:1] not in ("", "Z")


def watchers(home: Path) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, text=True)
    rows = (line.split(None, 1) for line in listed.stdout.splitlines())
    return [int(pid) for pid, args in rows if "watcher.watch" in args and str(home) in args]


@pytest.mark.slow
def test_a_session_over_its_limit_is_taken_away_whole_though_nobody_asks(make: Make) -> None:
    """Its watcher kills the agent, jobs in their own groups and orphans; the reason is session_expired."""
    blue = make(session_limit_s=5)  # time to build the tree on a busy machine
    ref = blue.start(request("s-1", TREE))
    pids = tree(blue, ref)
    assert len(pids) == 3
    assert set(blue.processes(ref)) >= set(pids)
    until(lambda: not any(runs(pid) for pid in pids))
    seen = ended(blue, ref)
    assert seen.reason == "session_expired"
    assert seen.used_s == pytest.approx(5, abs=3)
    until(lambda: not blue.processes(ref))


def test_a_session_that_uses_up_the_quota_is_ended_and_the_next_one_refused(make: Make) -> None:
    """The platform counts by itself, for every command alike, and says when the quota comes back."""
    window = {"kind": "from_first_use", "limit_s": 1.0, "period_s": 3600}
    ref = make(window=window).start(request("s-1"))
    blue = make(window=window)
    assert ended(blue, ref).reason == "quota_exhausted"
    (report,) = blue.quota() or ()
    assert report.limit_s == 1.0
    assert report.used_s >= 1.0
    with pytest.raises(QuotaExhaustedError) as refused:
        blue.start(request("s-2"))
    assert refused.value.resets_at == report.resets_at
    assert blue.find("s-2") is None


def test_racing_commands_get_no_more_sessions_than_the_platform_allows(make: Make) -> None:
    """Four commands ask for the last place at once: one gets it, three hear NoCapacity."""
    together = threading.Barrier(4)

    def ask(number: int) -> str:
        mine = make(max_concurrent=1)
        together.wait()
        try:
            return str(mine.start(request(f"s-{number}")))
        except NoCapacityError:
            return "refused"

    with ThreadPoolExecutor(4) as pool:
        answers = sorted(pool.map(ask, range(4)))
    assert answers[:3] == ["refused"] * 3
    blue = make(max_concurrent=1)
    assert sum(blue.find(f"s-{number}") is not None for number in range(4)) == 1
    assert blue.kill(SessionRef(answers[3]))
    assert blue.start(request("s-9")) == "s-9"


def test_a_machine_taken_away_leaves_nobody_and_is_known_at_once(make: Make) -> None:
    """kill() returns whom it hit; the platform says ENDED, and does not say why."""
    blue = make(window=WEEK)
    ref = blue.start(request("s-1", TREE))
    pids = tree(blue, ref)
    assert set(blue.kill(ref)) >= set(pids)
    until(lambda: not any(runs(pid) for pid in pids), 5)
    seen = look(blue, ref)
    assert (seen.state, seen.reason) == (PlatformState.ENDED, "")
    assert blue.kill(ref) == []


@pytest.mark.slow
def test_a_killed_watcher_is_replaced_by_the_next_look_and_the_limit_holds(
    make: Make, home: Path
) -> None:
    """The limit counts from the session's start, not from the new watcher's."""
    blue = make(session_limit_s=3)
    ref = blue.start(request("s-1"))
    began = time.monotonic()
    (first,) = until(lambda: watchers(home))
    os.kill(first, signal.SIGKILL)
    until(lambda: not watcher.watched(blue.host, "s-1"))
    assert look(blue, ref).state is PlatformState.RUNNING
    assert watcher.watched(blue.host, "s-1")
    assert ended(blue, ref).reason == "session_expired"
    assert time.monotonic() - began < 9


def test_a_command_killed_before_it_posts_the_watcher_leaves_a_session_with_a_limit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks next posts it."""

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(watcher, "post", dies)
        with pytest.raises(KeyboardInterrupt):
            make(session_limit_s=1).start(request("s-1"))
    blue = make(session_limit_s=1)
    ref = blue.find("s-1")
    assert ref is not None
    assert ended(blue, ref).reason == "session_expired"


def test_a_start_that_died_after_its_record_holds_no_place_for_ever(make: Make, home: Path) -> None:
    """Recorded, never begun, and nobody is starting anything: it has ended, and its place is free."""
    blue = make(window=WEEK)
    left_behind(home)
    assert look(blue, SessionRef("s-1")).state is PlatformState.ENDED
    assert blue.start(request("s-2")) == "s-2"


def test_a_look_in_the_middle_of_a_start_ends_nothing(make: Make, home: Path) -> None:
    """While somebody holds the platform's lock, a record without a process is one that is about to begin."""
    blue = make(window=WEEK)
    left_behind(home)
    with held(blue.folder / "lock"):
        assert look(blue, SessionRef("s-1")).state is PlatformState.RUNNING
    assert look(blue, SessionRef("s-1")).state is PlatformState.ENDED


def left_behind(home: Path) -> None:
    """What a start leaves that is killed between the record and the process."""
    record = {
        "platform": "blue",
        "card": "T4",
        "started": time.time(),
        "limit_s": None,
        "limit_reason": "session_expired",
        "ended": None,
        "reason": "",
    }
    (home / "loopback" / "blue").mkdir(parents=True, exist_ok=True)
    (home / "loopback" / "blue" / "lock").touch()
    (home / "sessions" / "s-1").mkdir(parents=True)
    (home / "sessions" / "s-1" / "platform.json").write_text(json.dumps(record))


def test_a_slow_platform_says_starting_and_a_stop_reaches_it_then(make: Make) -> None:
    """start_delay_s passes before the agent's first instruction; nobody sleeps on after a stop."""
    blue = make(start_delay_s=60)
    ref = blue.start(request("s-1"))
    assert look(blue, ref).state is PlatformState.STARTING
    blue.stop(ref)
    ended(blue, ref)
    until(lambda: not blue.processes(ref))


def test_platforms_of_one_home_know_only_their_own_sessions(make: Make) -> None:
    """Another platform's session is unknown here: not found, GONE, and it takes no place and no quota."""
    blue, red = make("blue", window=WEEK), make("red", window=WEEK)
    ref = blue.start(request("s-1"))
    assert red.find("s-1") is None
    assert look(red, ref).state is PlatformState.GONE
    assert red.kill(ref) == []
    assert red.start(request("s-2")) == "s-2"
    assert look(blue, ref).state is PlatformState.RUNNING


def test_taking_a_machine_away_spares_a_session_of_the_same_name_in_another_home(
    make: Make, tmp_path: Path
) -> None:
    """Two homes on one machine, both with a session s-1: only one of them is hit."""
    blue = make()
    other = LoopbackAdapter("blue", home=tmp_path / "other", clock=SystemClock())
    ref = blue.start(request("s-1"))
    other.start(request("s-1"))
    try:
        blue.kill(ref)
        assert look(other, ref).state is PlatformState.RUNNING
        assert len(other.processes(ref)) == 1
    finally:
        other.kill(ref)
        other.close()


# --- faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "value", "kind"),
    [
        ("refuse_capacity", True, NoCapacityError),
        ("refuse_quota", True, QuotaExhaustedError),
        ("refuse_login", True, AuthError),
        ("throttle_s", 7, RateLimitedError),
        ("unreachable", True, UnreachableError),
    ],
)
def test_a_refusal_starts_nothing_and_ends_when_it_is_switched_off(
    make: Make, fault: str, value: Any, kind: type[AdapterError]
) -> None:
    """Each fault is the error that a real platform's would be; the switch works across commands."""
    make(window=WEEK).set_faults(**{fault: value})
    blue = make(window=WEEK)
    with pytest.raises(kind) as refused:
        blue.start(request("s-1"))
    assert refused.value.adapter == "blue"
    if isinstance(refused.value, RateLimitedError):
        assert refused.value.retry_after_s == 7
    make(window=WEEK).set_faults(**{fault: False})
    assert blue.find("s-1") is None
    assert blue.start(request("s-1")) == "s-1"


def test_accepting_and_then_failing_leaves_one_session_to_be_found(make: Make) -> None:
    """502 after accepting, twice: find() has it, and there is one process."""
    blue = make()
    blue.set_faults(accept_then_5xx=True)
    for _ in range(2):
        with pytest.raises(UnreachableError, match="502"):
            blue.start(request("s-1"))
    assert blue.find("s-1") == "s-1"
    assert len(blue.processes(SessionRef("s-1"))) == 1


def test_lies_and_unknown_words_about_a_session_are_told_as_asked(make: Make) -> None:
    """RUNNING though it has ended; a word nobody knows becomes UNKNOWN with the raw word kept."""
    blue = make()
    ref = blue.start(request("s-1"))
    blue.kill(ref)
    blue.set_faults(lies_running=True)
    assert look(blue, ref).state is PlatformState.RUNNING
    blue.set_faults(lies_running=False, unknown_word="HYPERSTATE")
    seen = look(blue, ref)
    assert (seen.state, seen.raw) == (PlatformState.UNKNOWN, "HYPERSTATE")
    blue.set_faults(unknown_word=None)
    assert look(blue, ref).state is PlatformState.ENDED


def test_another_card_comes_silently(make: Make, home: Path) -> None:
    """The agent is told the card that came, the platform admits it when asked, the offer still says T4."""
    blue = make(card="T4")
    blue.set_faults(wrong_card="K80")
    ref = blue.start(request("s-1"))
    profile = json.loads((home / "sessions" / "s-1" / "profile.json").read_text())
    assert [slot["card"] for slot in profile["slots"]] == ["K80"]
    assert look(blue, ref).card == "K80"
    assert blue.offers()[0].card == "T4"


def test_a_slow_answer_takes_the_clocks_time(make: Make) -> None:
    """slow_s is slept on the clock that was passed in."""
    clock = ManualClock()
    blue = make(clock=clock)
    blue.set_faults(slow_s=4)
    blue.offers()
    assert clock.slept == [4.0]


def test_a_faults_file_that_somebody_is_just_writing_switches_nothing(make: Make) -> None:
    """Half a JSON text is no fault, and no error either."""
    blue = make()
    blue.set_faults(refuse_login=True)
    (blue.folder / "faults.json").write_text('{"refuse_lo')
    assert blue.offers()


def test_a_fault_that_does_not_exist_is_refused(make: Make) -> None:
    """A test with a misspelt fault would prove nothing."""
    with pytest.raises(ConfigError, match="refuse_capacty"):
        make().set_faults(refuse_capacty=True)


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"crad": "T4"}, "unknown option 'crad'"),
        ({"card": "T5000"}, "no card is called 'T5000'"),
        ({"count": 0}, "count is 0"),
        ({"count": "x"}, "count is 'x'"),
        ({"count": 1.5}, "count is 1.5"),
        ({"max_concurrent": True}, "max_concurrent is True"),
        ({"session_limit_s": -5}, "session_limit_s is -5"),
        ({"start_delay_s": float("inf")}, "start_delay_s is inf"),
        ({"vram_gb": "16"}, "vram_gb is '16'"),
        ({"window": {"limit_s": 3}}, "the kind of its window is None"),
        ({"window": {"kind": "weekly"}}, "the kind of its window is 'weekly'"),
        ({"window": {"kind": "rolling", "limit_s": "3 h"}}, "its window's limit_s is '3 h'"),
        ({"window": {"kind": "fixed_weekly", "limits": 3}}, "knows no 'limits'"),
    ],
)
def test_options_that_mean_nothing_are_refused_in_one_sentence(
    make: Make, options: dict[str, Any], said: str
) -> None:
    """Each names the platform and what was found."""
    with pytest.raises(ConfigError, match=f"platform blue: .*{said}"):
        make(**options)


def test_a_platform_may_keep_its_quota_to_itself(make: Make) -> None:
    """reports_quota = false: quota() is None, and the window is declared all the same."""
    blue = make(window=WEEK, reports_quota=False)
    assert blue.quota() is None
    assert not blue.capabilities.reports_quota
    assert blue.windows["gpu"].kind is WindowKind.FIXED_WEEKLY

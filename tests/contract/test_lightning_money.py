"""Credits of Lightning: what the platform says, what our own meter says, and the ceiling that holds for a month."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import PlatformState
from freegpu.adapters.lightning import LightningAdapter
from freegpu.adapters.lightning.meter import Figure, Meter, Month, Notes, Run
from freegpu.clock import SystemClock
from freegpu.errors import QuotaExhaustedError, RejectedError, UnreachableError
from freegpu.orchestrator import quota
from freegpu.orchestrator.model import Reading
from freegpu.testing.clock import ManualClock
from freegpu.testing.lightning_server import LightningServer
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import until
from tests.contract.lightning import server

__all__ = ["server"]

PAID = {"allow": "paid-use", "ceiling": 2.0}
#: credits an hour of the T4 on the loopback, and what 18 minutes of it take
T4, LEAST = 0.55, 0.55 * 0.3


class Later:
    """The clock of this machine, moved on at will; satisfies Clock."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._clock = SystemClock()

    def time(self) -> float:
        return self._clock.time() + self.ahead

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds


@pytest.fixture
def clock() -> Later:
    return Later()


@pytest.fixture
def paying(server: LightningServer, tmp_path: Path, clock: Later) -> Iterator[Stage]:
    """A user who allows 2 credits a month beyond a balance of nothing, and whose card fills it up each time."""
    server.credits, server.top_up = 0.0, 10.0
    # the sources are asked before anything is bought: the balance is 0 then
    server.wrong_balance = dict.fromkeys(
        ("project_balance", "user_balance", "account_balance", "memberships"), 0.0
    )

    def make(home: Path) -> LightningAdapter:
        options = {"timeout_s": 2.0, "machines": ["T4"], "paid": PAID}
        return LightningAdapter.from_options("lightning", options, home=home, clock=clock)

    stage = Stage(tmp_path / "paying", make)
    yield stage
    stage.close()


def lasted(server: LightningServer, job: str, seconds: float) -> None:
    """Let a job have begun so long before it ended, for the platform and its bill."""
    path = server.machines.place(job) / "platform.json"
    record = json.loads(path.read_bytes())
    record["started"] = record["ended"] - seconds
    path.write_text(json.dumps(record))


def one_session(stage: Stage, server: LightningServer, clock: Later, key: str, hours: float) -> int:
    """Start, let it run for so long, end it, see it ended, tidy it away; the time limit that it was given."""
    ref = stage.adapter.start(stage.adapter.render(stage.launch(key)))
    job = ref.partition(".")[0]
    command = server.jobs[job]["spec"]["command"]
    limit = int(command.split("-k 60 ")[1].split()[0])
    clock.ahead += min(hours * 3600, limit)
    server.machines.kill(job)
    lasted(server, job, min(hours * 3600, limit))
    until(lambda: stage.state(ref) in (PlatformState.ENDED, PlatformState.GONE))
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    return limit


def test_repeated_starts_never_go_over_the_month_s_ceiling(
    paying: Stage, server: LightningServer, clock: Later
) -> None:
    """The card fills the balance up after each session; the ceiling is for the month and not for each start."""
    server.wrong_balance = {}
    server.top_up = 0.0
    paying.adapter.quota()  # the month begins with nothing
    server.top_up = 10.0
    starts, limits = 0, []
    while True:
        try:
            limits.append(one_session(paying, server, clock, f"s-{starts}", 1.0))
        except QuotaExhaustedError as error:
            assert "of what this month may use, 2.00" in error.message  # noqa: PT017 - the loop's end
            break
        except IndexError:  # nothing is offered any more
            break
        starts += 1
        assert starts < 10
    assert starts == 4
    assert limits == sorted(limits, reverse=True)
    assert 2.0 - LEAST < server.spent <= 2.0
    assert paying.adapter.offers() == []
    (report,) = paying.adapter.quota() or ()
    assert report.limit_s == pytest.approx(2.0 * 3600)
    assert report.used_s == pytest.approx(server.spent * 3600, rel=0.05)


def test_the_ceiling_holds_when_the_platform_shows_nothing_of_what_was_used(
    paying: Stage, server: LightningServer, clock: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its figures may lag by hours: then our own meter says what was used."""
    monkeypatch.setattr(server, "_running_up", lambda: 0.0)
    monkeypatch.setattr(server, "_cost", lambda job: 0.0)
    hours, starts = 0.0, 0
    while paying.adapter.offers() and starts < 10:
        hours += min(one_session(paying, server, clock, f"s-{starts}", 1.0) / 3600, 1.0)
        starts += 1
    assert server.spent == 0.0
    assert 2.0 - LEAST - T4 * 0.05 * starts < hours * T4 <= 2.0


def test_a_session_that_may_still_run_is_counted_with_all_that_it_may_use(
    paying: Stage, server: LightningServer
) -> None:
    """Also one whose start was never answered: it may have begun."""
    request = paying.adapter.render(paying.launch("s-1"))
    server.set_faults(accept_then_cut={"value": True, "times": 1})
    with pytest.raises(UnreachableError):
        paying.adapter.start(request)
    assert paying.adapter.offers() == []
    ref = paying.adapter.start(request)
    paying.remember(ref)
    assert paying.adapter.offers() == []
    with pytest.raises(QuotaExhaustedError, match="of what this month may use"):
        paying.adapter.start(
            type(request)(key="s-2", payload={**request.payload, "name": "freegpu-s-2"})
        )
    assert {studio["name"] for studio in server.studios.values()} == {"freegpu-s-1"}


def test_paid_use_is_counted_by_the_whole_account(paying: Stage, server: LightningServer) -> None:
    """Another home, or the user by hand, used 1.9 credits this month: 0.1 are left of the ceiling, no T4 starts."""
    paying.adapter.quota()
    server.spent = 1.9
    assert paying.adapter.offers() == []


def test_a_new_month_has_the_ceiling_anew(
    paying: Stage, server: LightningServer, clock: Later
) -> None:
    """By the calendar, in UTC; not by asking again, nor by connecting again."""
    paying.adapter.quota()
    server.spent = 2.0
    again = paying.make(paying.home)
    assert not again.offers()
    again.close()
    clock.ahead += 32 * 86400
    assert paying.adapter.offers()


def test_a_refused_start_uses_nothing_up(paying: Stage, server: LightningServer) -> None:
    """The platform said no: the ceiling is as it was."""
    (before,) = paying.adapter.offers()
    server.set_faults(refuse_quota={"value": True, "times": 1})
    with pytest.raises(QuotaExhaustedError):
        paying.adapter.start(paying.adapter.render(paying.launch("s-1")))
    (after,) = paying.adapter.offers()
    assert after.session_limit_s == before.session_limit_s


def test_a_start_gets_no_more_time_than_is_left_when_it_happens(
    server: LightningServer, tmp_path: Path
) -> None:
    """Planned with 5 credits, started with 1: the agent and the command leave that much earlier."""
    adapter = LightningAdapter.from_options("lightning", {}, home=tmp_path, clock=SystemClock())
    stage = Stage(tmp_path / "stage", lambda _: adapter)
    request = stage.adapter.render(stage.launch("s-1"))
    server.credits = 1.0
    stage.start_request(request)
    (job,) = server.jobs.values()
    limit = int(job["spec"]["command"].split("-k 60 ")[1].split()[0])
    assert 0.9 < T4 * (limit + 180) / 3600 <= 1.0
    (files,) = server.files.values()
    assert json.loads(files["freegpu/s-1/launch.json"])["limit_s"] == limit
    stage.close()


def test_a_balance_that_stands_still_is_not_believed(
    server: LightningServer, tmp_path: Path, clock: Later
) -> None:
    """A new account read 5.0 for hours while credits were used (2026-09-06): our own meter is taken off."""
    server.wrong_balance = {"user_balance": 5.0}

    def make(home: Path) -> LightningAdapter:
        return LightningAdapter.from_options("lightning", {}, home=home, clock=clock)

    stage = Stage(tmp_path / "still", make)
    stage.adapter.quota()
    one_session(stage, server, clock, "s-1", 4.0)
    (report,) = stage.adapter.quota() or ()
    left = (report.limit_s or 0.0) - report.used_s
    assert left == pytest.approx((5.0 - 4 * T4) * 3600, rel=0.02)
    stage.close()


def test_what_status_shows_as_left_is_right_beside_a_platform_that_lags(
    server: LightningServer, tmp_path: Path, clock: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger adds only what came after a reading, so a reading brings our own meter with it."""
    monkeypatch.setattr(server, "_running_up", lambda: 0.0)

    def make(home: Path) -> LightningAdapter:
        return LightningAdapter.from_options("lightning", {}, home=home, clock=clock)

    stage = Stage(tmp_path / "lag", make)
    stage.adapter.quota()
    ref = stage.start("s-1")
    clock.ahead += 2 * 3600
    (report,) = stage.adapter.quota() or ()
    now = datetime.fromtimestamp(clock.time(), UTC)
    reading = Reading(
        platform="lightning", account="lightning", pool=report.pool, used_s=report.used_s,
        limit_s=report.limit_s, resets_at=None, as_of=report.as_of,
    )  # fmt: skip
    told = quota.balance(stage.adapter.windows["credits"], [], reading, [], now)
    assert told.source == "live"
    assert told.limit_s == pytest.approx(5 * 3600)
    assert told.left_s == pytest.approx((5 - 2 * T4) * 3600, rel=0.01)
    assert stage.state(ref) is PlatformState.RUNNING
    stage.close()


def test_a_meter_that_cannot_be_read_starts_nothing(
    server: LightningServer, tmp_path: Path
) -> None:
    """What was used is not known then; a person decides."""
    stage = Stage(
        tmp_path / "torn",
        lambda home: LightningAdapter.from_options("lightning", {}, home=home, clock=SystemClock()),
    )
    request = stage.adapter.render(stage.launch("s-1"))
    stage.adapter.quota()
    (stage.home / "lightning" / "meter.json").write_text("{")
    for call in (stage.adapter.offers, stage.adapter.quota, lambda: stage.adapter.start(request)):
        with pytest.raises(RejectedError, match="the meter in"):
            call()
    assert not server.studios
    findings: Any = stage.adapter.diagnose("")  # type: ignore[attr-defined]
    assert [f.name for f in findings if f.ok is False] == ["balance"]
    stage.close()


def test_the_meter_is_private_and_forgets_what_is_long_over(tmp_path: Path) -> None:
    """Two months count at most; the file grows no further."""
    clock = ManualClock()
    meter = Meter(tmp_path, clock)
    with meter.open() as notes:
        notes.runs["old"] = Run(price=1.0, lasts_s=60.0, begun=clock.time() - 80 * 86400)
        notes.runs["new"] = Run(price=1.0, lasts_s=60.0, begun=clock.time())
    assert set(meter.read().runs) == {"new"}
    assert meter.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("run", "since", "used"),
    [
        (Run(price=2.0, lasts_s=7200, begun=0.0), 0.0, 2.0),
        (Run(price=2.0, lasts_s=1800, begun=0.0), 0.0, 1.0),
        (Run(price=2.0, lasts_s=7200, begun=0.0, ended=900.0), 0.0, 0.5),
        (Run(price=2.0, lasts_s=7200, begun=0.0, ended=900.0, cost=0.6), 0.0, 0.6),
        (Run(price=2.0, lasts_s=7200, begun=0.0, ended=900.0, cost=0.0), 450.0, 0.25),
        (Run(price=2.0, lasts_s=7200, begun=0.0), 5000.0, 0.0),
    ],
)  # fmt: skip
def test_what_a_session_used(run: Run, since: float, used: float) -> None:
    """Price by time, never beyond its limit; the platform's own figure where it is more: it reads 0.0 for a minute."""
    assert run.used(since, 3600.0) == pytest.approx(used)


def test_a_figure_keeps_its_age_while_it_stands_still() -> None:
    """And a clock that was set back makes nothing older than it is."""
    notes = Notes()
    notes.see({"user": 5.0}, 100.0)
    notes.see({"user": 5.0}, 200.0)
    assert notes.figures["user"] == Figure(credits=5.0, since=100.0)
    notes.see({"user": 4.9}, 300.0)
    assert notes.figures["user"] == Figure(credits=4.9, since=300.0)
    notes.see({"user": 4.9}, 50.0)
    assert notes.figures["user"].since == 50.0
    month = Month(name="2026-12", at=0.0, credits=0.0, spent=1.0)
    assert notes.gone(month, 3.0, 300.0) == 2.0
    assert notes.settle("s-none", 1.0, None, 2.0) is False
    notes.runs["s-1"] = Run(price=1.0, lasts_s=7200, begun=3600.0)
    assert notes.settle("s-1", 0.0, None, 7200.0)
    assert notes.used_since(0.0, 9000.0) == 1.0

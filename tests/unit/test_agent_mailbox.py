"""The agent's side of the mailbox: in order, signed, patient, and never louder than needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freegpu.agent import wire
from freegpu.agent.mailbox import Mailbox
from freegpu.agent.outbox import Outbox
from freegpu.agent.stores.base import Properties
from tests.unit.agent_parts import CPU, HOME, KEY, SESSION, ManualClock, Unsteady


class Bench:
    """A mailbox whose tickets are collected and whose status is what the test says."""

    def __init__(
        self, folder: Path, store_class: type[Unsteady] = Unsteady, **profile: Any
    ) -> None:
        self.clock = ManualClock()
        self.store = store_class(folder / "store")
        self.outbox = Outbox(SESSION, KEY, self.clock)
        self.delivered: list[tuple[int, str]] = []
        self.confirmed: list[dict[str, int]] = []
        self.status: dict[str, Any] = {"state": "idle", "slots": [], "gpu": [], "inbox_seq": 0}
        defaults: dict[str, Any] = {
            "session": SESSION,
            "home": HOME,
            "platform": "tests",
            "key": KEY.hex(),
            "store": "unused",
            "work": "unused",
            "slots": (CPU,),
        }
        self.mailbox = Mailbox(
            self.store,
            self.clock,
            wire.Profile(**{**defaults, **profile}),
            self.outbox,
            deliver=lambda seq, ticket: self.delivered.append((seq, ticket["kind"])),
            status=lambda: dict(self.status),
            confirmed=lambda generations: self.confirmed.append(dict(generations)),
        )

    def pass_time(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while True:
            wait = self.mailbox.step()
            if wait is None or self.clock.now + wait > end:
                self.clock.now = end
                return
            self.clock.now += wait

    def ticket(self, seq: int, ticket: dict[str, Any] | None = None) -> bytes:
        return wire.pack_ticket(SESSION, seq, ticket or wire.drain_ticket(), KEY)

    def lay(self, seq: int, data: bytes | None = None) -> None:
        self.store.inner.put(wire.inbox_key(SESSION, seq), data or self.ticket(seq))

    def answer(self, counter: int, ack: int, confirmed: dict[str, int] | None = None) -> None:
        body = {"counter": counter, "outbox_ack": ack, "confirmed": confirmed or {}}
        data = wire.pack({**body, "session": SESSION}, KEY)
        self.store.inner.put(wire.orchestrator_beat_key(SESSION), data)

    def beat(self) -> dict[str, Any]:
        return wire.unpack(self.store.inner.get(wire.agent_beat_key(SESSION)), KEY)

    def writes(self, key: str) -> int:
        return self.store.puts.count(key)

    def notices(self) -> list[str]:
        keys = self.store.inner.list(wire.outbox_prefix(SESSION))
        events = [wire.unpack(self.store.inner.get(key), KEY) for key in keys]
        return [event["code"] for event in events if event["kind"] == "notice"]


def test_tickets_are_delivered_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """A later one waits for a missing earlier one, and each is delivered once."""
    bench = Bench(tmp_path)
    bench.lay(2)
    bench.lay(3)
    bench.pass_time(10)
    assert bench.delivered == []
    bench.lay(1)
    bench.pass_time(2)
    assert bench.delivered == [(1, "drain"), (2, "drain"), (3, "drain")]
    bench.pass_time(60)
    assert len(bench.delivered) == 3


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_torn_ticket_is_tried_again(tmp_path: Path, length: int) -> None:
    """Empty, half, or one byte short."""
    bench = Bench(tmp_path)
    whole = bench.ticket(1)
    bench.store.inner.put(wire.inbox_key(SESSION, 1), whole[:length])
    bench.pass_time(5)
    assert bench.delivered == []
    bench.lay(1)
    bench.pass_time(2)
    assert bench.delivered == [(1, "drain")]


@pytest.mark.parametrize(
    "forged",
    [
        wire.pack_ticket(SESSION, 1, wire.bye_ticket(), b"another key"),
        wire.pack_ticket(SESSION, 2, wire.bye_ticket(), KEY),
        wire.pack_ticket("session-2", 1, wire.bye_ticket(), KEY),
        wire.pack({"kind": "bye"}, KEY),
        wire.pack({"kind": "ended", "session": SESSION, "seq": 1}, KEY),
        wire.pack({"kind": None, "session": SESSION, "seq": 1}, KEY),
        b'{"kind": "bye", "seq": 1}',
        b"[]",
        b"\xff\xfe",
    ],
)
def test_what_is_not_this_ticket_is_not_obeyed(tmp_path: Path, forged: bytes) -> None:
    """Another key, another number, another session, our own event copied back, no signature."""
    bench = Bench(tmp_path)
    bench.lay(1, forged)
    bench.pass_time(30)
    assert bench.delivered == []


def test_a_gap_is_told_once(tmp_path: Path) -> None:
    """A person should know that a ticket got lost; nobody guesses what it said."""
    bench = Bench(tmp_path)
    bench.lay(2)
    bench.pass_time(30)
    assert bench.notices() == []
    bench.pass_time(300)
    assert bench.notices() == ["inbox_gap"]


def test_looks_become_rarer_in_silence_and_frequent_after_a_ticket(tmp_path: Path) -> None:
    """Up to four times the interval."""
    bench = Bench(tmp_path, poll_s=1.0, beat_s=1000.0)
    key = wire.inbox_key(SESSION, 1)

    def looks(seconds: float) -> int:
        before = bench.store.reads.count(key)
        bench.pass_time(seconds)
        return bench.store.reads.count(key) - before

    assert 18 <= looks(20) <= 21
    bench.pass_time(300)
    assert 4 <= looks(20) <= 6
    bench.lay(1)
    bench.pass_time(5)
    key = wire.inbox_key(SESSION, 2)
    assert 18 <= looks(20) <= 21


def test_the_heartbeat_counts_on_its_interval_and_at_once_when_something_changed(
    tmp_path: Path,
) -> None:
    """Silence is a counter that does not move; a new phase should not wait for it."""
    bench = Bench(tmp_path, poll_s=0.1, beat_s=10.0)
    bench.pass_time(100)
    assert 10 <= bench.beat()["counter"] <= 12
    before = bench.beat()["counter"]
    slot = {"slot": 0, "attempt": "a-1", "phase": "running", "progress": None}
    bench.status = {**bench.status, "state": "running", "slots": [slot]}
    bench.pass_time(0.2)
    assert bench.beat()["counter"] == before + 1
    assert bench.beat()["session"] == SESSION
    bench.status["slots"] = [{**slot, "progress": {"step": 1}}]
    bench.pass_time(1)
    assert bench.beat()["counter"] == before + 1, "progress waits for the next heartbeat"


def test_an_event_is_written_again_only_if_the_orchestrator_lives_and_lacks_it(
    tmp_path: Path,
) -> None:
    """30 s, and a counter that moved: a sleeping orchestrator is no reason to write."""
    bench = Bench(tmp_path)
    bench.outbox.post("notice", {"code": "x", "detail": ""})
    key = wire.outbox_key(SESSION, 1)
    bench.pass_time(300)
    assert bench.writes(key) == 1, "nobody is there to read it"
    first = bench.store.inner.get(key)
    for counter in range(1, 5):
        bench.answer(counter, 0)
        bench.pass_time(5)
    assert bench.writes(key) == 2
    assert bench.store.inner.get(key) == first
    bench.answer(6, 1)
    bench.pass_time(5)
    for counter in range(7, 30):
        bench.answer(counter, 1)
        bench.pass_time(5)
    assert bench.writes(key) == 2


def test_confirmed_generations_are_handed_on_also_by_an_orchestrator_that_began_anew(
    tmp_path: Path,
) -> None:
    """A lost ledger begins its counter at 1; what is confirmed stays confirmed."""
    bench = Bench(tmp_path)
    bench.answer(50, 0, {"a-1": 3})
    bench.pass_time(5)
    bench.answer(1, 0, {"a-1": 4})
    bench.pass_time(5)
    assert bench.confirmed == [{"a-1": 3}, {"a-1": 4}]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"counter": 1},
        {"counter": "x", "outbox_ack": 0, "confirmed": {}},
        {"counter": 1, "outbox_ack": 0, "confirmed": []},
        {"counter": 1, "outbox_ack": 0, "confirmed": {"a": None}},
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_no_heartbeat(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    """Of a newer version perhaps; the mailbox goes on."""
    bench = Bench(tmp_path)
    bench.store.inner.put(wire.orchestrator_beat_key(SESSION), wire.pack(body, KEY))
    bench.pass_time(10)
    assert bench.confirmed == []
    assert bench.beat()["counter"] > 3


def test_events_wait_for_a_store_that_is_away_and_come_in_order(tmp_path: Path) -> None:
    """With a notice for an absence that is worth one."""
    bench = Bench(tmp_path)
    bench.pass_time(5)
    bench.store.away = True
    for number in range(5):
        bench.outbox.post("notice", {"code": f"n{number}", "detail": ""})
        bench.pass_time(20)
    bench.store.away = False
    bench.pass_time(30)
    assert [code for code in bench.notices() if code.startswith("n")] == [
        "n0",
        "n1",
        "n2",
        "n3",
        "n4",
    ]
    assert {"store_away", "store_back"} < set(bench.notices())
    assert bench.outbox.unsent() == 0


def test_a_short_absence_is_not_worth_a_notice(tmp_path: Path) -> None:
    """Every mount hiccups."""
    bench = Bench(tmp_path)
    bench.pass_time(5)
    bench.store.away = True
    bench.pass_time(3)
    bench.store.away = False
    bench.pass_time(30)
    assert bench.notices() == []


def test_a_full_store_does_not_keep_tickets_from_coming_through(tmp_path: Path) -> None:
    """A cancel must work when nothing can be written any more."""
    bench = Bench(tmp_path)
    bench.pass_time(2)
    bench.store.full = True
    bench.outbox.post("notice", {"code": "x", "detail": ""})
    bench.pass_time(2)
    bench.lay(1, bench.ticket(1, wire.cancel_ticket("job-1", 1)))
    bench.pass_time(20)
    assert bench.delivered == [(1, "cancel")]


def test_the_last_step_writes_what_is_left_and_a_last_heartbeat(tmp_path: Path) -> None:
    """And reads no more tickets: there is nobody to handle them."""
    bench = Bench(tmp_path)
    bench.mailbox.say_hello({"agent": "1"})
    bench.pass_time(5)
    assert wire.unpack(bench.store.inner.get(wire.hello_key(SESSION)), KEY)["agent"] == "1"
    bench.outbox.post("notice", {"code": "last", "detail": ""})
    bench.status["state"] = "ended"
    bench.lay(1)
    bench.mailbox.finish()
    bench.pass_time(0)
    assert bench.mailbox.done
    assert bench.notices() == ["last"]
    assert bench.beat()["state"] == "ended"
    assert bench.delivered == []


class _Metered(Unsteady):
    """A store behind an API: every call is a request that somebody counts."""

    @property
    def properties(self) -> Properties:
        return replace(self.inner.properties, min_poll=5.0)

    def list(self, prefix: str, after: str = "") -> list[str]:
        self.reads.append(f"{prefix}/")
        return super().list(prefix, after)


def test_an_idle_agent_asks_a_store_behind_an_api_at_most_once_in_15_s(tmp_path: Path) -> None:
    """Over an hour without work, its reads; its own heartbeat is one write in 15 s. Work is still found in time."""
    bench = Bench(tmp_path, poll_s=5.0, beat_s=15.0, store_class=_Metered)
    bench.answer(1, 0)
    bench.pass_time(300)
    bench.store.reads.clear()
    bench.store.puts.clear()
    bench.pass_time(3600)
    assert len(bench.store.reads) <= 3600 / 15
    assert len(bench.store.puts) <= 3600 / 15 + 1
    bench.lay(1)
    bench.pass_time(25)
    assert bench.delivered == [(1, "drain")]


def test_an_agent_that_waits_for_the_orchestrator_s_word_looks_at_every_heartbeat(
    tmp_path: Path,
) -> None:
    """With an event that nobody has acknowledged yet."""
    bench = Bench(tmp_path, poll_s=5.0, beat_s=15.0, store_class=_Metered)
    bench.answer(1, 0)
    bench.pass_time(300)
    bench.outbox.post(wire.NOTICE, {"code": "any", "detail": ""})
    bench.pass_time(60)
    bench.store.reads.clear()
    bench.pass_time(600)
    looks = bench.store.reads.count(wire.orchestrator_beat_key(SESSION))
    assert 38 <= looks <= 42

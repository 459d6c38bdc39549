"""An agent in one process on a manual clock: real parts, a folder store with faults, commands that are scripted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from freegpu.agent import wire
from freegpu.agent.lanes import Step
from freegpu.agent.loop import Agent
from freegpu.agent.stores.base import Properties, Source, Stat, StoreFull, StoreGone
from freegpu.agent.stores.folder import FolderStore

HOME = "home-of-the-tests"
SESSION = "session-1"
KEY = wire.session_key(b"k" * 32, SESSION)
CPU = wire.Slot(index=0, card="CPU")


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Unsteady:
    """A folder store that can be away, or full, and remembers every put."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.inner = FolderStore(root, sync=False)
        self.away = self.full = False
        self.puts: list[str] = []
        self.reads: list[str] = []
        self.inner.put("freegpu.json", json.dumps({"format": 1, "home": HOME}).encode())

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def _check(self) -> None:
        if self.away:
            raise StoreGone("the store is not there")

    def _check_room(self) -> None:
        self._check()
        if self.full:
            raise StoreFull("the store is full")

    def list(self, prefix: str, after: str = "") -> list[str]:
        self._check()
        return self.inner.list(prefix, after)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self._check()
        self.reads.append(key)
        return self.inner.get(key, start, end)

    def fetch(self, key: str, into: os.PathLike[str]) -> tuple[int, str]:
        self._check()
        return self.inner.fetch(key, into)

    def put(self, key: str, source: Source) -> None:
        self._check_room()
        self.puts.append(key)
        self.inner.put(key, source)

    def put_new(self, key: str, source: Source) -> bool:
        self._check_room()
        self.puts.append(key)
        return self.inner.put_new(key, source)

    def delete(self, key: str) -> None:
        self._check()
        self.inner.delete(key)

    def stat(self, key: str, digest: bool = False) -> Stat | None:
        self._check()
        return self.inner.stat(key, digest)


class Command:
    """A command that ends when the test says so. Without `ignores`, SIGTERM ends it with `on_term`."""

    def __init__(self, spool: Path, env: Mapping[str, str], text: str) -> None:
        self.spool = spool
        self.env = env
        self.text = text
        self.code: int | None = None
        self.on_term: int | None = 143
        self.signals: list[int] = []
        self.lingers = False
        self.released = False

    def says(self, data: bytes) -> None:
        with open(self.spool, "ab") as file:
            file.write(data)

    def poll(self) -> int | None:
        return self.code

    def alive(self) -> bool:
        return self.code is None or self.lingers

    def signal(self, number: int) -> None:
        self.signals.append(int(number))
        if number == signal.SIGKILL:
            self.code, self.lingers = self.code if self.code is not None else -9, False
        elif number == signal.SIGTERM and self.code is None:
            self.code = self.on_term

    def pids(self) -> list[int]:
        return []

    def release(self) -> None:
        self.released = True


class Bench:
    """The whole agent, stepped by hand."""

    def __init__(self, folder: Path, **profile: Any) -> None:
        self.clock = ManualClock()
        self.store = Unsteady(folder / "store")
        self.commands: list[Command] = []
        self.lanes: dict[str, tuple[Step, list[float | None]]] = {}
        self.tickets = 0
        defaults: dict[str, Any] = {
            "session": SESSION,
            "home": HOME,
            "platform": "tests",
            "key": KEY.hex(),
            "store": "folder:unused",
            "work": str(folder / "work"),
            "slots": (CPU,),
            "idle_s": 600.0,
        }
        self.profile = wire.Profile(**{**defaults, **profile})
        Path(self.profile.work).mkdir(parents=True)
        self.agent = Agent(
            self.profile, self.store, self.clock, spawn=self._spawn, start=self._start
        )
        self.agent.open(lambda: {"agent": "0"}, sample_gpu=False)
        self.over = False

    def _spawn(self, name: str, step: Step) -> Callable[[], None]:
        due: list[float | None] = [self.clock.now]
        self.lanes[name] = (step, due)

        def wake() -> None:
            if due[0] is not None:
                due[0] = self.clock.now

        return wake

    def _start(
        self, script: Path, folder: Path, env: Mapping[str, str], spool: Path, *, strict: bool
    ) -> Command:
        assert folder.is_dir()
        command = Command(spool, env, script.read_text())
        self.commands.append(command)
        return command

    def pass_time(self, seconds: float, grain: float = 0.1) -> None:
        """Step everything that is due, again and again, until this much time has passed."""
        end = self.clock.now + seconds
        while True:
            self.turn()
            if self.clock.now >= end - 1e-9:
                return
            self.clock.now = min(end, self.clock.now + grain)

    def turn(self) -> None:
        """Every part once or more, without time passing."""
        for _ in range(6):
            if not self.over:
                self.over = self.agent.control.step() is None
            for step, due in list(self.lanes.values()):
                if due[0] is not None and due[0] <= self.clock.now:
                    wait = step()
                    due[0] = None if wait is None else self.clock.now + wait

    # --- the orchestrator's side ---------------------------------------------------------------------

    def ticket(self, **fields: Any) -> wire.Run:
        defaults: dict[str, Any] = {
            "job": "job-1",
            "number": 1,
            "epoch": 1,
            "slot": 0,
            "name": "a job",
            "run": "train",
            "grace_s": 10.0,
            "checkpoint_every_s": 60.0,
        }
        merged = {**defaults, **fields}
        merged.setdefault("attempt", f"{merged['job']}-{merged['epoch']}")
        return wire.Run(**merged)

    def send(self, ticket: dict[str, Any]) -> None:
        self.tickets += 1
        data = wire.pack_ticket(SESSION, self.tickets, ticket, KEY)
        self.store.inner.put(wire.inbox_key(SESSION, self.tickets), data)

    def run(self, **fields: Any) -> Command:
        """Send a run ticket and wait until its command is started."""
        before = len(self.commands)
        self.send(self.ticket(**fields).to_json())
        self.pass_time(self.profile.poll_s * 4 + 2)
        assert len(self.commands) == before + 1
        return self.commands[-1]

    def answer(self, counter: int, ack: int, confirmed: dict[str, int] | None = None) -> None:
        body = {"counter": counter, "outbox_ack": ack, "confirmed": confirmed or {}}
        data = wire.pack({**body, "session": SESSION}, KEY)
        self.store.inner.put(wire.orchestrator_beat_key(SESSION), data)

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        keys = self.store.inner.list(wire.outbox_prefix(SESSION))
        events = [wire.unpack(self.store.inner.get(key), KEY) for key in keys]
        return [event for event in events if kind in ("", event["kind"])]

    @property
    def ended(self) -> dict[str, Any]:
        (event,) = self.events("ended")
        return event

    def beat(self) -> dict[str, Any]:
        return wire.unpack(self.store.inner.get(wire.agent_beat_key(SESSION)), KEY)

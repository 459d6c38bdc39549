"""All parts of an agent, put together.

`Agent` builds them around a store, a clock, a way to start processes and a way to run steps; `run` is what the
`.pyz` does with the machine's own. It decides nothing about jobs: control and attempts do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Tuple

from freegpu.agent import gpu, process, wire
from freegpu.agent.clock import Clock
from freegpu.agent.control import Control
from freegpu.agent.disk import DiskWatch
from freegpu.agent.lanes import Bell, Lane, Step, say
from freegpu.agent.limits import Limits
from freegpu.agent.mailbox import Mailbox
from freegpu.agent.outbox import Outbox
from freegpu.agent.stores import Store

if TYPE_CHECKING:
    from freegpu.agent.attempt import Attempt

#: runs a part's step again and again beside the others; returns the way to wake it
Spawn = Callable[[str, Step], Callable[[], None]]

#: seconds for the last events and the last heartbeat when the session has no known end
_FAREWELL_S = 30.0
_DISK_EVERY_S = 5.0
_VIEW_EVERY_S = 1.0
#: a notice stands in the notebook for so long, seconds
_TOLD_S = 120.0
#: what a person sees in the notebook, and how the session ended; in the work folder
VIEW, EXIT = "view.json", "exit.json"


class Agent:
    """Wires the parts; `control.step` and the spawned steps do the rest."""

    def __init__(
        self,
        profile: wire.Profile,
        store: Store,
        clock: Clock,
        *,
        spawn: Spawn,
        start: process.Start = process.start,
        ring: Callable[[], None] = lambda: None,
        started: Optional[float] = None,
    ) -> None:
        """`started`: the clock's monotonic seconds at which the session's limit began to run; now if None."""
        self._profile = profile
        self._store = store
        self._clock = clock
        self._spawn = spawn
        self._start = start
        self._ring = ring
        self._key = bytes.fromhex(profile.key)
        self._work = Path(profile.work)
        self._wake_mailbox: Callable[[], None] = lambda: None
        #: the newest notice, and when it was posted
        self._told: Optional[Tuple[float, str]] = None
        self._sampler = gpu.Sampler()
        started = clock.monotonic() if started is None else started
        self.limits = Limits(started, profile.limit_s, profile.margin_s)
        self.outbox = Outbox(profile.session, self._key, clock)
        self.control = Control(
            profile,
            clock,
            self.limits,
            begin=self._begin,
            post=self.post,
            gpu_use=lambda: self._sampler.latest,
            changed=self._changed,
        )
        self.mailbox = Mailbox(
            store,
            clock,
            profile,
            self.outbox,
            deliver=self.control.deliver,
            status=self.control.status,
            confirmed=self.control.confirmed,
        )
        self._disk = DiskWatch(self._work, self._notice)

    def open(self, facts: Callable[[], Mapping[str, Any]], *, sample_gpu: bool) -> None:
        """Start everything that runs beside the control thread."""
        self._wake_mailbox = self._spawn("mailbox", self.mailbox.step)

        def preflight() -> None:
            self.mailbox.say_hello(facts())
            self._wake_mailbox()

        def watch_disk() -> float:
            self._disk.look()
            return _DISK_EVERY_S

        self._spawn("preflight", preflight)
        self._spawn("disk", watch_disk)
        if sample_gpu:
            self._spawn("gpu", self._sampler.step)
        if self._profile.view:
            self._spawn("view", self._show)

    def _show(self) -> float:
        write_json(self._work / VIEW, self.view())
        return _VIEW_EVERY_S

    def view(self) -> Dict[str, Any]:
        """What a person wants to know who looks at the notebook now."""
        return {
            **self.control.view(),
            "session": self._profile.session,
            "uptime_s": round(self._clock.monotonic() - self.limits.start, 1),
            "waiting": self.mailbox.waiting,
            "away_s": self.mailbox.away_s,
            "notice": self._told[1]
            if self._told and self._clock.monotonic() - self._told[0] < _TOLD_S
            else "",
        }

    def close(self) -> None:
        """Ask for the last heartbeat; the mailbox is done when `mailbox.done` says so."""
        self.control.abort()
        self._disk.close()
        self.mailbox.finish()
        self._wake_mailbox()

    def post(self, kind: str, body: Dict[str, Any]) -> int:
        """Queue an event and have it written soon."""
        if kind == wire.NOTICE:
            self._told = (self._clock.monotonic(), str(body.get("detail", "")))
        seq = self.outbox.post(kind, body)
        self._wake_mailbox()
        return seq

    def fault(self, name: str, error: BaseException) -> None:
        """A part met with something it was not made for."""
        self._notice("agent_fault", f"{name}: {type(error).__name__}: {error}"[:500])

    def _notice(self, code: str, detail: str, **names: Any) -> None:
        self.post(wire.NOTICE, {**names, "code": code, "detail": detail})

    def _changed(self) -> None:
        self._wake_mailbox()
        self._ring()

    def _begin(self, ticket: wire.Run, slot: wire.Slot) -> Attempt:
        """See control.Begin."""
        # half of the agent's code: its heartbeat should not wait for it at the start
        from freegpu.agent.attempt import Attempt
        from freegpu.agent.cargo import Cargo
        from freegpu.agent.logs import LogShipper
        from freegpu.agent.place import Place

        secrets = wire.unseal(self._key, ticket.secrets) if ticket.secrets else {}
        names = {"job": ticket.job, "attempt": ticket.attempt, "epoch": ticket.epoch}
        place = Place(self._work / "attempts" / ticket.attempt)

        def notice(code: str, detail: str) -> None:
            self._notice(code, detail, **names)

        def post(kind: str, body: Dict[str, Any]) -> int:
            return self.post(kind, {**names, **body})

        place.source.mkdir(parents=True, exist_ok=True)
        logs = LogShipper(
            self._store,
            self._clock,
            ticket.attempt,
            place.spool,
            notice,
            secrets=tuple(secrets.values()),
        )
        cargo = Cargo(
            self._store,
            self._clock,
            ticket,
            place.root,
            source=place.source,
            outputs=place.outputs,
            stage=place.stage,
            checkpoints=place.checkpoints(ticket.checkpoint_path),
            post=post,
            notice=notice,
            progress_step=lambda: logs.step_number,
            bandwidth=self._profile.bandwidth,
            pids=lambda: process.marked(f"{process.MARK}={place.mark}".encode()),
            changed=self._ring,
        )

        def ship() -> Optional[float]:
            wait = logs.step()
            if wait is None:
                self._ring()
            return wait

        return Attempt(
            ticket,
            slot,
            place,
            clock=self._clock,
            limits=self.limits,
            cargo=cargo,
            logs=logs,
            start=self._start,
            secrets=secrets,
            post=self.post,
            wake_cargo=self._spawn(f"cargo {ticket.attempt}", cargo.step),
            ship_logs=lambda: self._spawn(f"logs {ticket.attempt}", ship),
        )


def run(profile: wire.Profile, store: Store, clock: Clock, started: float) -> Dict[str, Any]:
    """An agent's whole life on this machine; returns what exit.json says."""
    from freegpu.agent import preflight

    bell = Bell()
    lanes: List[Lane] = []

    def spawn(name: str, step: Step) -> Callable[[], None]:
        lane = Lane(name, step, lambda who, error: agent.fault(who, error))
        lanes.append(lane.start())
        return lane.wake

    agent = Agent(profile, store, clock, spawn=spawn, ring=bell.ring, started=started)
    control = agent.control

    def terminate(number: int, frame: object) -> None:
        control.terminate()

    signal.set_wakeup_fd(bell.write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, terminate)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)

    agent.open(
        lambda: preflight.facts(profile), sample_gpu=any(slot.gpus for slot in profile.slots)
    )
    try:
        wait = control.step()
        while wait is not None:
            bell.wait(wait)
            wait = control.step()
    finally:
        agent.close()
        if profile.view:
            write_json(Path(profile.work) / VIEW, agent.view())
        end = control.deadline
        left = _FAREWELL_S if end is None else min(_FAREWELL_S, end - clock.monotonic())
        lanes[0].join(max(1.0, left))
    return {
        "format": wire.FORMAT,
        "session": profile.session,
        "end": control.end,
        "attempts": [{"attempt": name, "outcome": outcome} for name, outcome in control.history],
        "unsent_events": agent.outbox.unsent(),
        "uptime_s": round(clock.monotonic() - agent.limits.start, 1),
    }


def write_json(path: Path, body: Mapping[str, Any]) -> None:
    """For whoever started the agent: readers see the old file or the new one."""
    hidden = path.with_name(f".{path.name}")
    try:
        hidden.write_text(json.dumps(body, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(hidden, path)
    except OSError as error:
        say(f"{path.name} could not be written: {error}")
        with contextlib.suppress(OSError):
            hidden.unlink()

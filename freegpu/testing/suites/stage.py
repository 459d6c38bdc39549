# ruff: noqa: S101 - a suite is made of asserts
"""Where an adapter is tried: a home, a store beside it, and sessions that are ended when the test is over.

Most tests put a *stand-in* in the agent's place, a few lines that note their start and wait, so that starts can be
counted and processes killed. Knows nothing of what is asserted; see `adapter`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from freegpu import cards
from freegpu.adapters.base import Adapter, Launch, Offer, PlatformState, Request, SessionRef
from freegpu.agent import wire
from freegpu.agent.stores.base import ObjectMissing
from freegpu.agent.stores.folder import FolderStore

HOME_ID = "h-suite"
HOME_KEY = bytes(range(100, 132))

OVER = (PlatformState.ENDED, PlatformState.GONE)


_STAND_IN = """
import json, os, signal, sys, time
stage = {stage!r}
with open(sys.argv[1]) as file:
    session = json.load(file)["session"]
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
with open(os.path.join(stage, "pids", session), "ab", 0) as file:
    file.write(b"%d\\n" % os.getpid())
print("the stand-in is up", flush=True)
leave = os.path.join(stage, "leave")
for _ in range(1200):
    if os.path.exists(leave):
        break
    time.sleep(0.1)
"""


class Stage:
    """One home, one store beside it and the adapter under test; ends what it started."""

    def __init__(
        self, folder: Path, make: Callable[[Path], Adapter], *, patience_s: float = 15.0
    ) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (self.home / "key").write_bytes(HOME_KEY)
        (folder / "store").mkdir()
        self.store = FolderStore(folder / "store", sync=False)
        self.store.put("freegpu.json", wire.canonical({"format": 1, "home": HOME_ID}))
        self.make = make
        self.patience_s = patience_s
        self.adapter = make(self.home)
        self._started: list[SessionRef] = []
        self.stand_in = folder / "stand-in.py"
        (folder / "pids").mkdir()
        # a platform copies it to a machine of its own: it says where it is seen from
        self.stand_in.write_text(_STAND_IN.format(stage=str(folder.absolute())))

    def launch(self, key: str, *, agent: Path | None = None) -> Launch:
        """A launch of the first offer, as the orchestrator would make it; `agent` defaults to the stand-in."""
        offer = self.adapter.offers()[0]
        sealed = self.adapter.capabilities.sealed
        agent = agent or self.stand_in
        profile = wire.Profile(
            session=key,
            home=HOME_ID,
            platform=offer.platform,
            key=wire.session_key(HOME_KEY, key).hex(),
            store=f"folder:{self.folder / 'store'}",
            work=str(self.work(key)),
            slots=_slots(offer),
            limit_s=offer.session_limit_s,
            poll_s=0.1,
            beat_s=0.2,
            margin_s=1.0,
            idle_s=1.0 if sealed else 60.0,
        )
        digest = wire.sha256(agent.read_bytes())
        return Launch(
            key=key,
            offer=offer,
            profile=profile,
            agent_path=str(agent),
            agent_sha256=digest,
            agent_key=wire.agent_key(digest),
            tree=str(self._tree(key)) if sealed else "",
        )

    def _tree(self, key: str) -> Path:
        """What goes in with a sealed launch: the store's mark, and nothing to do."""
        tree = self.folder / "trees" / key
        tree.mkdir(parents=True, exist_ok=True)
        (tree / "freegpu.json").write_bytes(wire.canonical({"format": 1, "home": HOME_ID}))
        return tree

    def start(self, key: str, *, agent: Path | None = None) -> SessionRef:
        """Start a session and remember to end it."""
        return self.start_request(self.adapter.render(self.launch(key, agent=agent)))

    def start_request(self, request: Request) -> SessionRef:
        """The same for a request that was rendered before."""
        ref = self.adapter.start(request)
        self.remember(ref)
        return ref

    def remember(self, ref: SessionRef) -> None:
        """End this session when the test is over."""
        self._started.append(ref)

    def state(self, ref: SessionRef, adapter: Adapter | None = None) -> PlatformState:
        """What the platform says about this session now."""
        return (adapter or self.adapter).observe([ref])[ref].state

    def work(self, key: str) -> Path:
        """The working folder of a session's agent."""
        return self.home / "sessions" / key / "work"

    def pids(self, key: str) -> list[int]:
        """The stand-ins that were ever started for this key."""
        try:
            return [int(pid) for pid in (self.folder / "pids" / key).read_text().split()]
        except FileNotFoundError:
            return []

    def hello(self, key: str, home: Path | None = None) -> dict[str, Any] | None:
        """The real agent's first word, in the store or in what came `home`; None: not yet."""
        try:
            store = FolderStore(home, sync=False) if home is not None else self.store
            data = store.get(wire.hello_key(key))
            return wire.unpack(data, wire.session_key(HOME_KEY, key))
        except (ObjectMissing, wire.Unreadable):
            return None

    def close(self) -> None:
        """End every session and wait until it is over; stand-ins that stay leave by themselves."""
        try:
            for ref in self._started:
                self.adapter.stop(ref)
            for ref in self._started:
                until(partial(self._over, ref), seconds=self.patience_s, why=f"{ref} does not end")
        finally:
            (self.folder / "leave").touch()
            self.adapter.close()

    def _over(self, ref: SessionRef) -> bool:
        return self.state(ref) in OVER


def until(what: Callable[[], Any], *, seconds: float = 15.0, why: str = "") -> Any:
    """The first truthy answer; AssertionError if there is none in time."""
    end = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < end, why or f"it did not happen within {seconds:g} s"
        time.sleep(0.02)
    return answer


def _slots(offer: Offer) -> tuple[wire.Slot, ...]:
    devices = offer.devices or tuple(str(index) for index in range(offer.count))
    return tuple(
        wire.Slot(
            index=index,
            card=offer.card,
            gpus=(devices[index],) if offer.vram_gb else (),
            vram_gb=offer.vram_gb,
            precision=cards.precision(offer.card),
        )
        for index in range(offer.count)
    )

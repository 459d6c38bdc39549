"""A thrown-away home for one job on one platform, with a store that the platform can really see; see `doctor --live`.

The job knows nothing of the user's ledger: it has its own, in a folder that goes away. What the platform must reach lies in
the user's own store, below a fresh name, and is removed with it. Adapters are made for the user's home, since known hosts
and a platform's refusals ("this account is denied") belong to the account, not to the rehearsal.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from freegpu.adapters import registry, wrappers
from freegpu.adapters.base import Unsettled
from freegpu.agent import stores, wire
from freegpu.agent.stores.base import StoreError
from freegpu.clock import SystemClock
from freegpu.errors import ConfigError, FreeGPUError
from freegpu.jobs.lifecycle import SessionEvent, SessionState
from freegpu.orchestrator import shared, tidying
from freegpu.orchestrator.home import make_home
from freegpu.orchestrator.operations import Workspace

if TYPE_CHECKING:
    from freegpu.orchestrator.model import Session

__all__ = ["Rehearsal", "below"]

#: how long the agent stays when its job is over, seconds
IDLE_S = 2.0
#: an agent that was told to leave has so long to do so by itself before its platform is asked to end it, seconds
LEAVE_S = 20.0
#: what a platform is given in all to let go of a session and its leftovers, seconds
CLEAN_S = 120.0
PAUSE_S = 0.5


def below(url: str, word: str) -> str:
    """The store's URL with a folder of this name below it. ConfigError: such a store has no folders."""
    if url.startswith("drive:"):
        raise ConfigError(
            "a Drive store is one folder and has no room for a rehearsal beside your jobs",
            hint="submit a small job instead",
        )
    path, mark, query = url.partition("?") if url.startswith("s3:") else (url, "", "")
    return f"{path.rstrip('/')}/{word}{mark}{query}"


class Rehearsal(Workspace):
    """A Workspace in `folder` with the one platform `name` of `user`. `word` names it, on the platform's side too."""

    def __init__(self, user: Workspace, name: str, folder: Path, word: str) -> None:
        self.user, self.platform, self.word = user, name, word
        mine = user.settings.platforms[name]
        capabilities = user.adapters[name].capabilities
        #: whether it lies in the user's store; else it needs none, or a folder here does
        self.shares = not (capabilities.here or capabilities.sealed)
        store, seen = f"folder:{folder / 'home' / 'store'}", ""
        if self.shares:
            store = below(user.settings.store, word)
            seen = below(mine.store, word) if mine.store else ""
        self.adapter_home = folder / "home" if capabilities.here else user.settings.home
        settings = dataclasses.replace(
            user.settings,
            home=folder / "home",
            store=store,
            db=str(folder / "home" / "state.db"),
            platforms={name: dataclasses.replace(mine, store=seen)},
            idle_s=IDLE_S,
            sources={},
        )
        make_home(settings.home)
        super().__init__(settings, SystemClock())

    @cached_property
    def adapters(self) -> dict[str, wrappers.Patient]:
        """The platform alone."""
        mine = self.settings.platforms[self.platform]
        adapter = registry.create(
            self.platform, mine.adapter, mine.options, home=self.adapter_home, clock=self.clock
        )
        shared.entrust(adapter, self.settings, self.ledger, self.platform)
        self._stack.callback(adapter.close)
        return {self.platform: wrappers.wrap(adapter, clock=self.clock)}

    def unseen(self) -> str:
        """Why sessions there could not open the store; "" if they can, as far as its URL tells."""
        return (
            shared.unseen(self.user.settings, self.adapters[self.platform]) if self.shares else ""
        )

    def lay_out(self) -> None:
        """Make its place in the user's store. StoreError, SharedStoreError: that cannot be written."""
        if self.shares:
            marker = {"format": stores.FORMAT, "home": self.home_id}
            self.user.store.put_new(f"{self.word}/{shared.MARKER}", wire.canonical(marker))

    def sessions(self) -> list[Session]:
        """The sessions that are not over."""
        return self.ledger.sessions(open_only=True)

    def release(self, say: Callable[[str], None]) -> list[str]:
        """End every session and remove what it leaves, on the platform and in the store; what stayed, as sentences."""
        remains = self._end_sessions(say)
        if self.shares:
            remains += self._clear_store()
        return remains

    def _end_sessions(self, say: Callable[[str], None]) -> list[str]:
        begun, trouble, told = self.clock.monotonic(), "", False
        for job in self.ledger.jobs():
            if not job.state.final:
                self.cancel([job.id])
        while True:
            try:
                trouble = "; ".join(self.tick(block=True, command="freegpu doctor --live").errors)
            except (FreeGPUError, OSError) as error:
                trouble = str(error)
            open_ones, left = self.sessions(), tidying.left(self.ledger)
            unsettled = self._unsettled()
            if not open_ones and not left and not unsettled:
                return []
            waited = self.clock.monotonic() - begun
            if waited > CLEAN_S:
                because = f" ({trouble})" if trouble else ""
                return [
                    *(
                        f"session {one.ref or one.id} may still run on {self.platform}{because}"
                        for one in open_ones
                    ),
                    *(f"what session {name} left on {self.platform}{because}" for name in left),
                    *([f"a start that {self.platform} never answered{because}"] * unsettled),
                ]
            if not told:
                say(f"waiting for {self.platform} to let go of the session")
                told = True
            for session in open_ones:
                self._push(session, hard=waited > LEAVE_S)
            self.clock.sleep(PAUSE_S)

    def _unsettled(self) -> bool:
        """Whether a start was given up there and what came of it is not yet given back."""
        inner = self.adapters[self.platform].inner
        return isinstance(inner, Unsettled) and bool(inner.unsettled())

    def _push(self, session: Session, *, hard: bool) -> None:
        """Ask an agent that listens to leave; the platform to end what does not."""
        if session.state is SessionState.PLANNED:
            return  # a tick adopts or closes it
        with suppress(FreeGPUError, StoreError, OSError):
            if hard or session.live_at is None:
                self.reconciler.end_session(session, "the rehearsal is over")
            elif session.state is SessionState.LIVE:
                seq = self.ledger.next_inbox(session.id)
                self.ledger.session_event(session.id, SessionEvent.ASK_END, reason="rehearsed")
                self.reconciler.mailbox(session.id).post(seq, wire.drain_ticket())

    def _clear_store(self) -> list[str]:
        """Remove all of it from the user's store; an agent that leaves late may write once more, so it is looked at twice."""
        try:
            for _ in range(2):
                for key in self.user.store.list(self.word):
                    self.user.store.delete(key)
        except (StoreError, FreeGPUError, OSError) as error:
            return [f"{self.word}/ is still in your store: {error}"]
        folder = shared.folder_of(self.user.settings.store)
        if folder is not None and re.fullmatch(r"live-[0-9a-f]+", self.word):
            shutil.rmtree(folder / self.word, ignore_errors=True)
            if (folder / self.word).exists():
                return [f"{folder / self.word} could not be removed"]
        return []

"""A platform on this machine with limits, quota and faults as you declare them; its sessions are real agents.

For the demo, for tests through the command line, and for writing adapters against. In freegpu.toml:

    [platforms.blue]
    adapter = "freegpu.testing.loopback:LoopbackAdapter"
    card = "T4"
    session_limit_s = 600
    window = {kind = "fixed_weekly", limit_s = 3600}

What the platform knows lies in the sessions' folders, so any process may ask. `faults.json` in its
folder switches faults while it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from freegpu import cards
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
    WindowKind,
)
from freegpu.adapters.hosts import ProcessHost, descendants
from freegpu.clock import Clock, from_timestamp, utc
from freegpu.errors import (
    AuthError,
    ConfigError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    UnreachableError,
)
from freegpu.orchestrator import quota
from freegpu.orchestrator.model import Entry, EntryKind
from freegpu.testing import watcher

#: switches of faults.json, and what they do
FAULTS: Mapping[str, str] = {
    "refuse_capacity": "start: no such card is free",
    "refuse_quota": "start: the quota is used up",
    "refuse_login": "every call: the credentials are wrong",
    "throttle_s": "start: too many requests, try again after so many seconds",
    "unreachable": "every call: no answer",
    "accept_then_5xx": "start: the session starts, and the answer is an error",
    "unknown_word": "observe: a word that nobody knows",
    "lies_running": "observe: RUNNING, also when it has ended",
    "wrong_card": "start: this card comes instead of the one asked for",
}
_POOL = "gpu"


class LoopbackAdapter:
    """See the module."""

    def __init__(
        self,
        name: str,
        *,
        home: Path,
        clock: Clock,
        card: str = "T4",
        count: int = 1,
        vram_gb: float | None = None,
        session_limit_s: float | None = None,
        start_delay_s: float = 0.0,
        max_concurrent: int = 1,
        reports_quota: bool = True,
        attended: bool = False,
        account: str = "loopback",
        window: Mapping[str, Any] | None = None,
    ) -> None:
        known = cards.find(card)
        if known is None:
            raise ConfigError(f"platform {name}: no card is called {card!r}")
        self.name = name
        self.account = account
        self.card = known.name
        self.count = count
        self.vram_gb = known.vram_gb if vram_gb is None else float(vram_gb)
        self.session_limit_s = session_limit_s
        self.start_delay_s = start_delay_s
        self.clock = clock
        self.window = _window(name, window)
        self.host = ProcessHost(home / "sessions")
        self.folder = home / "loopback" / name
        self.capabilities = Capabilities(
            attended=attended,
            reports_quota=reports_quota and self.window is not None,
            max_session_s=session_limit_s,
            max_concurrent=max_concurrent,
        )

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml; the options are the constructor's."""
        return cls(name, home=home, clock=clock, **options)

    @property
    def windows(self) -> Mapping[str, Window]:
        if self.window is None:
            return {"": Window(kind=WindowKind.NONE, source="declared")}
        return {_POOL: self.window}

    # --- the port ---------------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        self._fault()
        return [
            Offer(
                platform=self.name,
                account=self.account,
                card=self.card,
                count=self.count,
                vram_gb=self.vram_gb,
                session_limit_s=self.session_limit_s,
                start_delay_s=self.start_delay_s,
                pool=_POOL if self.window is not None else "",
            )
        ]

    def quota(self) -> Sequence[QuotaReport] | None:
        if self.window is None or not self.capabilities.reports_quota:
            return None
        self._fault()
        now = utc(self.clock)
        balance = quota.balance(self.window, self._entries(now), None, [], now)
        return [
            QuotaReport(
                pool=_POOL,
                used_s=balance.used_s,
                limit_s=balance.limit_s,
                resets_at=balance.resets_at,
                as_of=now,
            )
        ]

    def render(self, launch: Launch, /) -> Request:
        place = self.host.place(launch.key)
        argv = [sys.executable, "-I", launch.agent_path, str(place / "profile.json")]
        if self.start_delay_s:
            argv = ["/bin/sh", "-c", f'sleep {self.start_delay_s:g}; exec "$@"', "start", *argv]
        return Request(key=launch.key, payload={"argv": argv, "profile": launch.profile.to_json()})

    def start(self, request: Request, /) -> SessionRef:
        faults = self._fault()
        ref = SessionRef(request.key)
        if self.host.started(request.key):
            return ref
        left = self._admit(faults)
        limit, reason = self._end(left)
        profile = dict(request.payload["profile"])
        card = faults.get("wrong_card")
        if card:
            profile["slots"] = [{**slot, "card": card} for slot in profile["slots"]]
        record = {
            "platform": self.name,
            "card": card or self.card,
            "started": self.clock.time(),
            "ended": None,
            "reason": "",
        }
        files = {
            "profile.json": json.dumps(profile).encode(),
            "platform.json": json.dumps(record).encode(),
        }
        self.host.start(request.key, request.payload["argv"], files)
        self._watch(request.key, limit, reason)
        if faults.get("accept_then_5xx"):
            raise UnreachableError("502 Bad Gateway", adapter=self.name, account=self.account)
        return ref

    def find(self, key: str, /) -> SessionRef | None:
        self._fault()
        return SessionRef(key) if self._record(key) is not None else None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        faults = self._fault()
        return {ref: self._observe(ref, faults) for ref in refs}

    def stop(self, ref: SessionRef, /) -> None:
        self._fault()
        self.host.terminate(ref)

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        self._fault()
        text, after = self.host.log(ref, cursor)
        return LogPage(text=text, cursor=after)

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def close(self) -> None:
        self.host.close()

    # --- what only tests and the demo do ----------------------------------------------------------------

    def set_faults(self, **faults: Any) -> None:
        """Switch faults; False or None switches one off. Known to every process that uses this platform."""
        unknown = sorted(set(faults) - set(FAULTS))
        if unknown:
            raise ConfigError(f"no fault is called {unknown[0]!r}", hint=", ".join(FAULTS))
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = {k: v for k, v in {**self._faults(), **faults}.items() if v}
        hidden = self.folder / f".faults-{os.getpid()}"
        hidden.write_text(json.dumps(kept))
        os.replace(hidden, self.folder / "faults.json")

    def processes(self, ref: SessionRef) -> list[int]:
        """The session's process and everything that it started."""
        pid = self.host.pid(ref)
        return descendants(pid) if pid is not None and self.host.alive(ref) else []

    def kill(self, ref: SessionRef) -> list[int]:
        """Take the machine away without notice; returns whom it hit."""
        victims = watcher.take_away(self.host, ref)
        watcher.note_end(self.host.place(ref) / "platform.json", "")
        return victims

    # --- inside -----------------------------------------------------------------------------------------

    def _faults(self) -> dict[str, Any]:
        try:
            faults: dict[str, Any] = json.loads((self.folder / "faults.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return faults

    def _fault(self) -> dict[str, Any]:
        """The faults that are on; raises those that hit every call."""
        faults = self._faults()
        who = {"adapter": self.name, "account": self.account}
        if faults.get("unreachable"):
            raise UnreachableError("no answer", **who)
        if faults.get("refuse_login"):
            raise AuthError(
                "the credentials are wrong", hint="there is nothing to mend here", **who
            )
        return faults

    def _admit(self, faults: Mapping[str, Any]) -> float | None:
        """Whether another session may start; returns the quota that is left, in seconds."""
        who = {"adapter": self.name, "account": self.account}
        if faults.get("throttle_s"):
            wait = float(faults["throttle_s"])
            raise RateLimitedError("429 Too Many Requests", retry_after_s=wait, **who)
        running = [
            k for k, r in self._records().items() if r["ended"] is None and self.host.alive(k)
        ]
        if faults.get("refuse_capacity") or len(running) >= self.capabilities.max_concurrent:
            raise NoCapacityError(f"no {self.card} is free", **who)
        if self.window is None:
            return None
        now = utc(self.clock)
        balance = quota.balance(self.window, self._entries(now), None, [], now)
        left = balance.left_s
        if faults.get("refuse_quota") or (left is not None and left <= 0):
            raise QuotaExhaustedError("the quota is used up", resets_at=balance.resets_at, **who)
        return left

    def _end(self, left: float | None) -> tuple[float, str]:
        """After how many seconds the platform ends a session, and what it calls that."""
        limit = self.session_limit_s if self.session_limit_s is not None else float("inf")
        if left is not None and left < limit:
            return left, "quota_exhausted"
        return limit, "session_expired"

    def _watch(self, key: str, limit_s: float, reason: str) -> None:
        package = Path(__file__).resolve().parents[2]
        program = (
            f"import sys; sys.path.insert(0, {str(package)!r}); "
            "from freegpu.testing import watcher; from pathlib import Path; "
            "watcher.watch(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])"
        )
        child = subprocess.Popen(
            [
                *(sys.executable, "-c", program),
                *(str(self.host.folder), key, str(limit_s + self.start_delay_s), reason),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.host.adopt(child)

    def _records(self) -> dict[str, dict[str, Any]]:
        found = {}
        for place in self.host.folder.glob("*/platform.json"):
            record = self._record(place.parent.name)
            if record is not None:
                found[place.parent.name] = record
        return found

    def _record(self, key: str) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads(
                (self.host.place(key) / "platform.json").read_bytes()
            )
        except (OSError, ValueError):
            return None
        return record if record["platform"] == self.name else None

    def _entries(self, now: datetime) -> list[Entry]:
        """What was used, as the ledger would write it: one charge a session."""
        entries = []
        for number, (key, record) in enumerate(sorted(self._records().items()), 1):
            started = from_timestamp(record["started"])
            ended = from_timestamp(record["ended"]) if record["ended"] else now
            used = max(timedelta(), ended - started).total_seconds()
            entries.append(
                Entry(
                    id=number,
                    at=ended,
                    kind=EntryKind.CHARGE,
                    platform=self.name,
                    account=self.account,
                    pool=_POOL,
                    session=key,
                    amount_s=used,
                    note="",
                )
            )
        return entries

    def _observe(self, ref: SessionRef, faults: Mapping[str, Any]) -> Observation:
        record = self._record(ref) if ref.replace("-", "").isalnum() else None
        if record is None:
            return Observation(state=PlatformState.GONE, raw="404")
        if faults.get("unknown_word"):
            return Observation(state=PlatformState.UNKNOWN, raw=str(faults["unknown_word"]))
        alive = self.host.alive(ref)
        if alive or faults.get("lies_running"):
            used = self.clock.time() - record["started"]
            return Observation(
                state=PlatformState.RUNNING, raw="RUNNING", card=record["card"], used_s=used
            )
        record = self._settled(ref) or record
        used = (record["ended"] or self.clock.time()) - record["started"]
        return Observation(
            state=PlatformState.ENDED,
            raw="ENDED",
            card=record["card"],
            reason=record["reason"],
            used_s=max(0.0, used),
            detail="its time was up" if record["reason"] else "its process is gone",
        )

    def _settled(self, ref: SessionRef) -> dict[str, Any] | None:
        """The record once the watcher has written the end; it follows within a look or two."""
        for _ in range(10):
            record = self._record(ref)
            if record is None or record["ended"] is not None:
                return record
            time.sleep(watcher.LOOK_S)
        watcher.note_end(self.host.place(ref) / "platform.json", "")
        return self._record(ref)


def _window(name: str, declared: Mapping[str, Any] | None) -> Window | None:
    if declared is None:
        return None
    known = {field.name for field in fields(Window)}
    unknown = sorted(set(declared) - known)
    if unknown:
        raise ConfigError(
            f"platform {name}: its window knows no {unknown[0]!r}", hint=", ".join(sorted(known))
        )
    return Window(**{"source": "declared", **declared, "kind": WindowKind(declared["kind"])})

"""A platform on this machine with limits, quota and faults as you declare them; its sessions are real agents.

For the demo, for tests through the command line, and for writing adapters against. In freegpu.toml:

    [platforms.blue]
    adapter = "freegpu.testing.loopback:LoopbackAdapter"
    card = "T4"
    session_limit_s = 600
    window = {kind = "fixed_weekly", limit_s = 3600}

What the platform knows lies in the sessions' folders, so any process may ask, and a watcher beside each session
ends it when no command runs. `faults.json` in the platform's folder switches faults while it runs. Sessions
that overlap each get the quota that was left when they began: two of them may use a little more than there was.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
import os
import sys
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
from freegpu.adapters.hosts import ProcessHost, held, is_held
from freegpu.clock import Clock, from_timestamp, utc
from freegpu.errors import (
    AuthError,
    ConfigError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
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
    "slow_s": "every call: the answer takes so many seconds",
}
_POOL = "gpu"
#: what a slow platform does before the agent starts; the process stays the same, so that a stop reaches it
_DELAY = "import os, sys, time; time.sleep(float(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"


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
        for option, value, least in (
            ("count", count, 1),
            ("max_concurrent", max_concurrent, 1),
            ("vram_gb", vram_gb, 0),
            ("session_limit_s", session_limit_s, 0),
            ("start_delay_s", start_delay_s, 0),
        ):
            _refuse_odd(name, option, value, least)
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
            live_logs=True,
            reports_quota=reports_quota and self.window is not None,
            max_session_s=session_limit_s,
            max_concurrent=max_concurrent,
            here=True,
        )

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml; the options are the constructor's. ConfigError: an unknown one."""
        known = set(inspect.signature(cls).parameters) - {"name", "home", "clock"}
        for option in sorted(set(options) - known):
            near = difflib.get_close_matches(option, known, 1)
            raise ConfigError(
                f"platform {name}: unknown option {option!r}",
                hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}",
            )
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
            argv = [sys.executable, "-I", "-c", _DELAY, str(self.start_delay_s), *argv]
        return Request(key=launch.key, payload={"argv": argv, "profile": launch.profile.to_json()})

    def start(self, request: Request, /) -> SessionRef:
        faults = self._fault()
        ref = SessionRef(request.key)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(self.folder / "lock"):  # admission and start are one step for this platform
            if self._record(request.key) is None:
                self._begin(request, faults)
        if faults.get("accept_then_5xx"):
            raise UnreachableError("502 Bad Gateway", adapter=self.name, account=self.account)
        return ref

    def _begin(self, request: Request, faults: Mapping[str, Any]) -> None:
        limit, reason = self._end(self._admit(faults))
        profile = dict(request.payload["profile"])
        card = faults.get("wrong_card")
        if card:
            profile["slots"] = [{**slot, "card": card} for slot in profile["slots"]]
        record: dict[str, Any] = {
            "platform": self.name,
            "card": card or self.card,
            "started": self.clock.time(),
            "limit_s": limit,
            "limit_reason": reason,
            "ended": None,
            "reason": "",
        }
        files = {
            "profile.json": json.dumps(profile).encode(),
            "platform.json": json.dumps(record).encode(),
        }
        try:
            mark = {watcher.MARK: str(self.host.place(request.key))}
            self.host.start(request.key, request.payload["argv"], files, env=mark)
            watcher.post(self.host, request.key, limit, reason)
        except OSError as error:
            self.host.place(request.key).joinpath("platform.json").unlink(missing_ok=True)
            raise RejectedError(
                f"a session cannot be started: {error.strerror or error}",
                adapter=self.name,
                account=self.account,
            ) from error

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
        return watcher.processes(self.host, ref) if self._record(ref) is not None else []

    def kill(self, ref: SessionRef) -> list[int]:
        """Take the machine away without notice; returns whom it hit."""
        if self._record(ref) is None:
            return []
        victims = watcher.take_away(self.host, ref)
        watcher.note_end(self.host, ref, "")
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
        if faults.get("slow_s"):
            self.clock.sleep(float(faults["slow_s"]))
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
        running = [key for key, record in self._records().items() if record["ended"] is None]
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

    def _end(self, left: float | None) -> tuple[float | None, str]:
        """After how many seconds the platform ends a session (None: never), and what it calls that."""
        limit = self.session_limit_s
        if left is not None and (limit is None or left < limit):
            return left, "quota_exhausted"
        return None if limit is None else limit + self.start_delay_s, "session_expired"

    def _records(self) -> dict[str, dict[str, Any]]:
        keys = self.host.keys()
        return {key: record for key in keys if (record := self._record(key)) is not None}

    def _record(self, key: str) -> dict[str, Any] | None:
        """What the platform knows of a session; None: it is none of its own."""
        record = self._read(key)
        if record is None or record["ended"] is not None or watcher.watched(self.host, key):
            return record
        # its watcher died, or was never posted because the command that started it was killed
        begun = self.host.started(key)
        if self.host.alive(key):
            limit = record["limit_s"]
            left = None if limit is None else record["started"] + limit - self.clock.time()
            watcher.post(self.host, key, left, record["limit_reason"])
        elif begun or self._never_began(key):
            watcher.note_end(self.host, key, "")
        return self._read(key)

    def _never_began(self, key: str) -> bool:
        """Whether it was recorded by a start that died right then: nobody starts anything, and it did not."""
        return not is_held(self.folder / "lock") and not self.host.started(key)

    def _read(self, key: str) -> dict[str, Any] | None:
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
        record = self._record(ref)
        if record is None:
            return Observation(state=PlatformState.GONE, raw="404")
        if faults.get("unknown_word"):
            return Observation(state=PlatformState.UNKNOWN, raw=str(faults["unknown_word"]))
        ended = record["ended"]
        used = (ended or self.clock.time()) - record["started"]
        facts: dict[str, Any] = {"card": record["card"], "used_s": max(0.0, used)}
        # until its watcher has written the end, the platform has not noticed it
        if ended is None or faults.get("lies_running"):
            if used < self.start_delay_s:
                return Observation(state=PlatformState.STARTING, raw="QUEUED", **facts)
            return Observation(state=PlatformState.RUNNING, raw="RUNNING", **facts)
        detail = "its time was up" if record["reason"] else "its process is gone"
        return Observation(
            state=PlatformState.ENDED, raw="ENDED", reason=record["reason"], detail=detail, **facts
        )


def _refuse_odd(name: str, option: str, value: object, least: int) -> None:
    """ConfigError: not a number, or too small; `least` is whole where the option counts something, from 1."""
    kind, words = (int, "whole number") if least else ((int, float), "number of seconds or GB")
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:
        raise ConfigError(
            f"platform {name}: {option} is {value!r}", hint=f"it takes a {words}, at least {least}"
        )


def _window(name: str, declared: Mapping[str, Any] | None) -> Window | None:
    if declared is None:
        return None
    known = {field.name for field in fields(Window)}
    unknown = sorted(set(declared) - known)
    if unknown:
        raise ConfigError(
            f"platform {name}: its window knows no {unknown[0]!r}", hint=", ".join(sorted(known))
        )
    kinds = [kind.value for kind in WindowKind]
    if declared.get("kind") not in kinds:
        raise ConfigError(
            f"platform {name}: the kind of its window is {declared.get('kind')!r}",
            hint=f"known: {', '.join(kinds)}",
        )
    for option in ("limit_s", "period_s", "reset_offset_s"):
        _refuse_odd(name, f"its window's {option}", declared.get(option), 0)
    return Window(**{"source": "declared", **declared, "kind": WindowKind(declared["kind"])})

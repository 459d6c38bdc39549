"""Platforms on which a person starts the session: a notebook is opened there, and the agent cell run in it.

Nothing is called here: what the platform offers is data with a source (attended.json), and how a session goes
is known from its agent's heartbeat alone.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from freegpu.adapters.options import refuse_unknown
from freegpu.clock import Clock
from freegpu.errors import AttendedError, ConfigError

__all__ = ["AttendedAdapter", "Facts", "facts", "kinds", "known"]

#: a pool of its own: what a cell used is charged by its session
POOL = "gpu"
_OPTIONS = ("kind", "account", "card", "count", "vram_gb", "session_limit_h")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of one kind of notebook, and since when."""

    kind: str
    #: how people call it
    title: str
    #: where a person opens a notebook; "": wherever theirs is
    url: str
    offers: tuple[Mapping[str, Any], ...]
    #: seconds that a session may last; None: no limit, or none published
    session_limit_s: float | None
    window: Window
    #: whoever finds the notebook can read it
    public: bool
    #: the cell gives the machine back when the queue is empty
    release: bool
    #: what a person is told when the cell starts
    notes: tuple[str, ...]


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("attended.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def kinds() -> tuple[str, ...]:
    """The kinds of notebooks that a cell can be made for."""
    return tuple(_table())


def facts(kind: str) -> Facts:
    """What is known of this kind. KeyError: nothing."""
    entry = _table()[kind]
    window = dict(entry["window"])
    return Facts(
        kind=kind,
        title=entry["title"],
        url=entry["url"],
        offers=tuple(entry["offers"]),
        session_limit_s=entry["session_limit_s"],
        window=Window(
            **{**window, "kind": WindowKind(window["kind"])},
            source=entry["source"],
            verified_on=entry["verified_on"],
        ),
        public=entry["public"],
        release=entry["release"],
        notes=tuple(entry["notes"]),
    )


def known(name: str, options: Mapping[str, Any]) -> Facts:
    """The facts of a configured platform, with what its options say better. ConfigError."""
    kind = str(options.get("kind", name))
    if kind not in _table():
        raise ConfigError(
            f"platform {name}: {kind!r} is no kind of notebook",
            hint=f"set `kind` to one of {', '.join(_table())}",
        )
    return _overridden(facts(kind), name, options)


class AttendedAdapter:
    """See the module. Options override the table: a person knows better what their account gets."""

    def __init__(self, name: str, facts: Facts, *, account: str = "yours") -> None:
        self.name = name
        self.facts = facts
        self.account = account

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml; `kind` defaults to the platform's name. ConfigError."""
        refuse_unknown(name, options, _OPTIONS)
        return cls(name, known(name, options), account=_account(name, options))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            attended=True,
            stop=False,
            max_session_s=self.facts.session_limit_s,
            max_concurrent=1 if self.facts.offers else 100,
        )

    @property
    def windows(self) -> Mapping[str, Window]:
        return {POOL if self.facts.offers else "": self.facts.window}

    def offers(self) -> Sequence[Offer]:
        return [
            Offer(
                platform=self.name,
                account=self.account,
                session_limit_s=self.facts.session_limit_s,
                pool=POOL,
                **offer,
            )
            for offer in self.facts.offers
        ]

    def quota(self) -> Sequence[QuotaReport] | None:
        return None

    def render(self, launch: Launch, /) -> Request:
        return Request(key=launch.key, payload={"open": self.facts.url, "run": self._cell})

    def start(self, request: Request, /) -> SessionRef:
        """AttendedError, always: only a person can."""
        raise AttendedError(
            f"{self.name}: a person must start the session",
            hint=f"`{self._cell}` makes the cell to run there",
            adapter=self.name,
            account=self.account,
        )

    def find(self, key: str, /) -> SessionRef | None:
        return None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        return {ref: Observation(state=PlatformState.UNKNOWN) for ref in refs}

    def stop(self, ref: SessionRef, /) -> None:
        """Nothing to call: the agent leaves when its mailbox says so."""

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        return LogPage(text="", cursor=cursor)

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def close(self) -> None:
        """Nothing is open."""

    @property
    def _cell(self) -> str:
        return f"freegpu cell {self.name}"


def _overridden(known: Facts, name: str, options: Mapping[str, Any]) -> Facts:
    limit = options.get("session_limit_h")
    if limit is not None:
        known = replace(known, session_limit_s=_positive(name, "session_limit_h", limit) * 3600)
    given = {key: options[key] for key in ("card", "count", "vram_gb") if key in options}
    if not given:
        return known
    if "count" in given:
        _positive(name, "count", given["count"])
        if not isinstance(given["count"], int):
            raise ConfigError(f"platform {name}: count is {given['count']!r}, not a whole number")
    if "vram_gb" in given:
        given["vram_gb"] = _positive(name, "vram_gb", given["vram_gb"])
    if "card" in given:
        given["card"] = _card(name, given["card"])
    first = dict(known.offers[0]) if known.offers else {"card": "CPU", "start_delay_s": 60}
    if "card" in given and given["card"] != first["card"]:
        facts_of_card = cards.find(given["card"])
        first["vram_gb"] = facts_of_card.vram_gb if facts_of_card else 0.0
    return replace(known, offers=({**first, **given},))


def _positive(name: str, option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise ConfigError(f"platform {name}: {option} is {value!r}, not a number above 0")
    return float(value)


def _card(name: str, card: object) -> str:
    found = cards.find(card) if isinstance(card, str) else None
    if found is None:
        near = difflib.get_close_matches(str(card).upper(), cards.names(), 1)
        raise ConfigError(
            f"platform {name}: card is {card!r}, which no card is called",
            hint=f"did you mean {near[0]}?" if near else "for example T4, L4 or A100",
        )
    return found.name


def _account(name: str, options: Mapping[str, Any]) -> str:
    account = options.get("account", "yours")
    if not isinstance(account, str) or not account.strip():
        raise ConfigError(f"platform {name}: account is {account!r}, not the name of a login")
    return account

"""Agent cells: which ones were made, and the sessions that people begin with them.

A cell is made once a platform and store, and may be run any number of times: each run names its own session,
signed with the cell's key, and announces it in the store. Here it is found and taken into the ledger. Only cells
that the ledger knows count, so a cell that leaked is made worthless by making a new one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import freegpu
from freegpu import cards
from freegpu.adapters import attended
from freegpu.adapters.attended import Facts
from freegpu.adapters.base import Adapter, Offer
from freegpu.agent import wire
from freegpu.agent.stores.base import ObjectMissing, Store
from freegpu.agent.vault import KEY_NAME
from freegpu.config import Settings, without_password
from freegpu.errors import ConfigError, LedgerError
from freegpu.jobs.lifecycle import SessionEvent
from freegpu.orchestrator import cell_text
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.pace import pace
from freegpu.orchestrator.views import CellMade

#: what the agent can open by itself
NOTEBOOK_STORES = ("folder", "s3")
_META = "cells"
#: more slots than any machine has cards: what says more is not believed
_MOST_SLOTS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A cell that was made."""

    id: str
    platform: str
    #: the store's address as the notebook sees it
    store: str
    #: counts up each time that the platform's cell is made worthless
    serial: int
    #: the agent that it fetches
    agent_sha256: str


def known(ledger: Ledger) -> dict[str, Cell]:
    """The cells that count, by platform."""
    told = json.loads(ledger.meta(_META) or "{}")
    return {platform: Cell(**entry) for platform, entry in told.items()}


def make(
    ledger: Ledger, home_id: str, platform: str, store: str, agent_sha256: str, *, fresh: bool
) -> Cell:
    """The platform's cell: the same one each time, unless `fresh` makes the one before it worthless."""
    cells = known(ledger)
    before = cells.get(platform)
    serial = (before.serial if before else 0) + (1 if fresh and before else 0)
    name = wire.sha256(wire.canonical([home_id, platform, serial]))[:10]
    cell = Cell(id=name, platform=platform, store=store, serial=serial, agent_sha256=agent_sha256)
    if cell != before:
        cells[platform] = cell
        told = {name: asdict(entry) for name, entry in cells.items()}
        ledger.set_meta(_META, json.dumps(told, sort_keys=True))
    return cell


def contents(
    cell: Cell, facts: Facts, store: Store, settings: Settings, home_id: str, home_key: bytes
) -> dict[str, Any]:
    """What the cell tells the agent, as freegpu.agent.notebook.run takes it.

    The key is left out where whoever finds the notebook can read it: there it comes from the platform's own
    secret store.
    """
    rhythm = pace(settings, store.properties)
    needs = _needs(cell.store)
    return {
        **_address(cell),
        "platform": facts.kind,
        "title": facts.title,
        "home": home_id,
        "cell": cell.id,
        "key": "" if facts.public else wire.cell_key(home_key, cell.id).hex(),
        "store": cell.store,
        "agent": wire.agent_key(cell.agent_sha256),
        "sha256": cell.agent_sha256,
        "limit_s": facts.session_limit_s,
        "idle_s": rhythm.idle_s,
        "poll_s": rhythm.poll_s,
        "beat_s": rhythm.beat_s,
        "margin_s": settings.margin_s,
        "secrets": [*needs, *([KEY_NAME] if facts.public else [])],
        "scope": "",
        "release": facts.release,
        "notes": list(facts.notes),
    }


def _address(cell: Cell) -> dict[str, str]:
    """Where the cell itself fetches the agent, as far as the store's address does not say so."""
    scheme, _, rest = cell.store.partition(":")
    if scheme != "s3":
        return {}
    from freegpu.agent.stores.s3_place import place

    bucket, prefix, endpoint, region = place(rest)
    key = wire.agent_key(cell.agent_sha256)
    return {"url": f"{endpoint}/{bucket}/{prefix}{key}", "region": region}


def _needs(store: str) -> list[str]:
    """Names of the secrets that opening the store takes; "?": it can do without."""
    scheme = store.partition(":")[0]
    if scheme == "s3":
        return ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    return []


def facts_of(platform: str, settings: Settings) -> Facts:
    """What is known of the notebooks there. ConfigError: nothing is, or it needs no cell."""
    configured = settings.platforms.get(platform)
    if configured is not None and configured.adapter != "attended":
        raise ConfigError(
            f"{platform} ({configured.adapter}) starts its sessions by itself and needs no cell",
            hint=f"cells are for {', '.join(attended.kinds())}",
        )
    if configured is None and platform not in attended.kinds():
        near = difflib.get_close_matches(platform.casefold(), attended.kinds(), 1)
        raise ConfigError(
            f"there is no cell for {platform!r}",
            hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(attended.kinds())}",
        )
    options = configured.options if configured is not None else {}
    return attended.known(platform, options)


def view(cell: Cell, facts: Facts, body: Mapping[str, Any], home_key: bytes) -> CellMade:
    """The cell as text and as a notebook, with what a person must do beside."""
    return CellMade(
        platform=cell.platform,
        title=facts.title,
        url=facts.url,
        id=cell.id,
        store=cell.store,
        text=cell_text.text(body, version=freegpu.__version__),
        notebook=cell_text.notebook(body, version=freegpu.__version__),
        secrets=tuple(name.rstrip("?") for name in body["secrets"] if not name.endswith("?")),
        key="" if body["key"] else wire.cell_key(home_key, cell.id).hex(),
    )


def seen_store(given: str | None, settings: Settings, facts: Facts) -> str:
    """The store's address as the notebook sees it. ConfigError: it cannot see that one."""
    store = given or settings.store
    scheme, colon, _ = store.partition(":")
    if not colon or scheme not in NOTEBOOK_STORES:
        store, scheme = (
            (f"folder:{store}", "folder") if not colon or "/" in scheme else (store, scheme)
        )
    if scheme not in NOTEBOOK_STORES:
        raise ConfigError(
            f"a notebook cannot reach the store {without_password(store)}",
            hint="say with --store how the notebook sees it, e.g. --store folder:/mnt/freegpu",
        )
    if scheme == "folder" and given is None and facts.url:
        raise ConfigError(
            f"the store {store} is a folder of this machine, which {facts.title} cannot see",
            hint="use a store that both reach (docs/how-to/choose-a-store.md), or say with --store how the"
            " notebook sees this one, e.g. --store folder:/content/drive/MyDrive/freegpu",
        )
    return store


def adopt(
    ledger: Ledger, store: Store, home_key: bytes, adapters: Mapping[str, Adapter], now: datetime
) -> list[str]:
    """Take sessions that have announced themselves into the ledger; problems, as sentences. StoreError."""
    problems: list[str] = []
    for cell in known(ledger).values():
        keys = store.list(wire.cell_prefix(cell.id))
        seen = {s.id: s for s in ledger.sessions(open_only=False)} if keys else {}
        for key in keys:
            session = key.rsplit("/", 1)[1].removesuffix(".json")
            if session in seen:
                if not seen[session].state.open:
                    store.delete(key)
                continue
            if wire.cell_of(session) != cell.id:
                continue
            body = _read(store, key, home_key, session)
            adapter = adapters.get(cell.platform)
            if body is None or adapter is None:
                continue
            try:
                _take_in(ledger, adapter, session, body, now)
            except LedgerError as error:
                problems.append(f"{cell.platform}: {error.message}")
    return problems


def _read(store: Store, key: str, home_key: bytes, session: str) -> dict[str, Any] | None:
    """The announcement, if it is whole and signed; anybody may write into the folder."""
    try:
        body = wire.unpack(store.get(key), wire.session_key(home_key, session))
    except (ObjectMissing, wire.Unreadable):
        return None
    slots = body.get("slots")
    whole = body.get("session") == session and isinstance(slots, list)
    return body if whole and 0 < len(slots or ()) <= _MOST_SLOTS else None


def _take_in(
    ledger: Ledger, adapter: Adapter, session: str, body: Mapping[str, Any], now: datetime
) -> None:
    offer = offer_of(adapter, body)
    ledger.plan_session(
        platform=adapter.name,
        account=adapter.account,
        offer=offer,
        limit_s=offer.session_limit_s,
        reserve_s=0.0,
        jobs=[],
        why=f"somebody ran the agent cell on {adapter.name}",
        id=session,
    )
    ledger.session_event(session, SessionEvent.ACCEPTED, ref=session, started_at=now)


def offer_of(adapter: Adapter, body: Mapping[str, Any]) -> Offer:
    """What came, as an offer: the cards that the notebook has, not those that the table promises."""
    slots = [(str(card), float(vram)) for card, vram, _ in body["slots"]]
    card, vram = slots[0]
    found = cards.find(card)
    name = found.name if found else card
    count = sum(1 for other, _ in slots if other == card)
    like = next((offer for offer in adapter.offers() if cards.fulfils(name, offer.card)), None)
    limit = body.get("limit_s")
    return Offer(
        platform=adapter.name,
        account=adapter.account,
        card=name,
        count=count,
        vram_gb=vram,
        memory_gb=like.memory_gb if like else 0.0,
        cpus=like.cpus if like else 0.0,
        disk_gb=like.disk_gb if like else 0.0,
        session_limit_s=float(limit) if isinstance(limit, int | float) else None,
        pool=next(iter(adapter.windows), ""),
    )

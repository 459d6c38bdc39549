"""Agent cells: which ones were made, and the sessions that people begin with them.

A cell is made once a platform and store, and may be run any number of times: each run names its own session,
signed with the cell's key, and announces it in the store. Here it is found and taken into the ledger. Only cells
that the ledger knows count, so a cell that leaked is made worthless by making a new one.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import freegpu
from freegpu import cards
from freegpu.adapters import attended, registry
from freegpu.adapters.attended import Facts
from freegpu.adapters.base import Adapter, Offer
from freegpu.agent import wire
from freegpu.agent.stores.base import ObjectMissing, Store
from freegpu.agent.vault import KEY_NAME
from freegpu.config import Settings, without_password
from freegpu.errors import ConfigError, LedgerError
from freegpu.jobs.lifecycle import SessionEvent, SessionState
from freegpu.orchestrator import cell_text
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.mailbox import Mailbox
from freegpu.orchestrator.pace import pace
from freegpu.orchestrator.views import CellMade

#: what the agent can open by itself
NOTEBOOK_STORES = ("folder", "s3", "drive")
#: sees and changes everything in a Drive: developers.google.com/workspace/drive/api/guides/api-specific-auth
FULL_DRIVE = "https://www.googleapis.com/auth/drive"
_META = "cells"
#: more slots than any machine has cards: what says more is not believed
_MOST_SLOTS = 64
#: bytes of an announcement that are read: anybody may lay something larger there
_MOST_BYTES = 65536


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
    needs, scope = _rights(cell.store, facts, settings)
    key = wire.cell_key(home_key, cell.id)
    return {
        **_address(cell, store),
        "name": cell.platform,
        "platform": facts.kind,
        "title": facts.title,
        "home": home_id,
        "cell": cell.id,
        "key": "" if facts.public else key.hex(),
        # tells a wrong key from the right one, and nothing about it
        "key_check": wire.sha256(key)[:12],
        "store": cell.store,
        "agent": wire.agent_key(cell.agent_sha256),
        "sha256": cell.agent_sha256,
        "limit_s": facts.session_limit_s,
        "idle_s": rhythm.idle_s,
        "poll_s": rhythm.poll_s,
        "beat_s": rhythm.beat_s,
        "margin_s": settings.margin_s,
        "bandwidth": settings.bandwidth,
        # what is known of this store; of the same files seen another way nothing is
        "known": asdict(store.properties) if cell.store == settings.store else None,
        "secrets": [*needs, *([KEY_NAME] if facts.public else [])],
        "scope": scope,
        "release": facts.release,
        "notes": list(facts.notes),
    }


def _address(cell: Cell, store: Store) -> dict[str, str]:
    """Where the cell itself fetches the agent, as far as the store's address does not say so. StoreError."""
    scheme, _, rest = cell.store.partition(":")
    key = wire.agent_key(cell.agent_sha256)
    if scheme == "s3":
        from freegpu.agent.stores.s3_place import place

        bucket, prefix, endpoint, region = place(rest)
        return {"url": f"{endpoint}/{bucket}/{prefix}{key}", "region": region}
    if scheme == "drive":
        from freegpu.agent.stores.drive import DriveStore

        if isinstance(store, DriveStore):
            return {"url": store.address(key)}
    return {}


def _rights(store: str, facts: Facts, settings: Settings) -> tuple[list[str], str]:
    """What opening the store takes in a notebook: names of secrets, and the scope to ask the person for.

    An app with the scope drive.file sees only what the same OAuth client has made, so a notebook's own access is
    of use only where our side has full access (docs/adr/0006); elsewhere both sides use the one client.
    """
    scheme = store.partition(":")[0]
    if scheme == "s3":
        return ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"], ""
    if scheme == "drive":
        from freegpu.orchestrator import drive_access

        grant = drive_access.access_for(settings).secrets.get("FREEGPU_DRIVE", "{}")
        granted = str(json.loads(grant).get("scope", "")).split()
        return (
            ([], FULL_DRIVE)
            if facts.kind == "colab" and FULL_DRIVE in granted
            else (["FREEGPU_DRIVE"], "")
        )
    return [], ""


def facts_of(platform: str, settings: Settings) -> Facts:
    """What is known of the notebooks there. ConfigError: nothing is, or it needs no cell."""
    configured = settings.platforms.get(platform)
    if configured is not None and registry.resolve(configured.adapter) != "attended":
        raise ConfigError(
            f"{platform} ({configured.adapter}) starts its sessions by itself and needs no cell",
            hint=f"cells are for {', '.join(attended.kinds())}",
        )
    if configured is None and platform in registry.known():
        for name, other in settings.platforms.items():
            # a notebook of the same account would use the quota up that freegpu plans with
            if registry.resolve(other.adapter) == platform:
                raise ConfigError(
                    f"{name} ({platform}) starts its sessions by itself and needs no cell",
                    hint=f"take [platforms.{name}] out of freegpu.toml to go back to cells",
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
    if scheme == "drive" and store != settings.store:
        raise ConfigError(
            f"{store} is not the store in use ({without_password(settings.store)})",
            hint="connect it first: freegpu connect drive --use",
        )
    return store


def adopt(
    ledger: Ledger, store: Store, home_key: bytes, adapters: Mapping[str, Adapter], now: datetime
) -> list[str]:
    """Take sessions that have announced themselves into the ledger; problems, as sentences. StoreError."""
    problems: list[str] = []
    cells = known(ledger)
    if not cells:
        return problems  # nobody uses notebooks here: a tick asks nothing more for them
    for cell in cells.values():
        keys = store.list(wire.cell_prefix(cell.id))
        seen = {s.id: s for s in ledger.sessions(open_only=False)} if keys else {}
        for key in keys:
            session = key.rsplit("/", 1)[1].removesuffix(".json")
            if session in seen:
                if not seen[session].state.open:
                    store.delete(key)
                elif seen[session].state is SessionState.PLANNED:
                    # we died between the two steps of taking it in
                    _accept(ledger, session, now)
                continue
            adapter = adapters.get(cell.platform)
            if adapter is None or not _is_announcement(key, cell, session):
                continue
            body = _read(store, key, home_key, session)
            if body is None:
                continue
            try:
                _take_in(ledger, adapter, session, body, now)
            except LedgerError as error:
                problems.append(f"{cell.platform}: {error.message}")
    _dismiss(ledger, store, home_key, {cell.id for cell in cells.values()})
    return problems


def _is_announcement(key: str, cell: Cell, session: str) -> bool:
    """Whether this key is one that a session of this cell announces itself under."""
    try:
        return wire.cell_of(session) == cell.id and wire.announcement_key(cell.id, session) == key
    except ValueError:
        return False


def _dismiss(ledger: Ledger, store: Store, home_key: bytes, valid: set[str]) -> None:
    """Sessions of a cell that was made worthless finish what they have, and get nothing more."""
    for session in ledger.sessions(open_only=True):
        cell = wire.cell_of(session.id)
        if not cell or cell in valid or session.state is not SessionState.LIVE:
            continue
        seq = ledger.next_inbox(session.id)
        ledger.session_event(session.id, SessionEvent.ASK_END, reason="a new cell was made")
        mailbox = Mailbox(store, session.id, wire.session_key(home_key, session.id))
        mailbox.post(seq, wire.drain_ticket())


def _read(store: Store, key: str, home_key: bytes, session: str) -> dict[str, Any] | None:
    """The announcement, if it is whole, signed and sensible; anybody may write into the folder."""
    try:
        data = store.get(key, 0, _MOST_BYTES)
        body = wire.unpack(data, wire.session_key(home_key, session))
    except (ObjectMissing, wire.Unreadable):
        return None
    return body if body.get("session") == session and _sensible(body) else None


def _sensible(body: Mapping[str, Any]) -> bool:
    slots, limit = body.get("slots"), body.get("limit_s")
    return (
        isinstance(slots, list)
        and 0 < len(slots) <= _MOST_SLOTS
        and all(isinstance(slot, list) and len(slot) == 3 for slot in slots)
        and all(isinstance(card, str) and card for card, _, _ in slots)
        and all(_number(vram) and 0 <= vram < 1e6 for _, vram, _ in slots)
        and (limit is None or (_number(limit) and 0 < limit < 1e9))
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
    _accept(ledger, session, now)


def _accept(ledger: Ledger, session: str, now: datetime) -> None:
    ledger.session_event(session, SessionEvent.ACCEPTED, ref=session, started_at=now)


def offer_of(adapter: Adapter, body: Mapping[str, Any]) -> Offer:
    """What came, as an offer: the cards that the notebook has, not those that the table promises."""
    (card, vram, _), *others = body["slots"]
    found = cards.find(card)
    name = found.name if found else card
    # an offer is of one card, and slots are counted from 0: another card ends it
    count = 1 + len(list(itertools.takewhile(lambda other: other[0] == card, others)))
    like = next((offer for offer in adapter.offers() if cards.fulfils(name, offer.card)), None)
    limit = body.get("limit_s")
    return Offer(
        platform=adapter.name,
        account=adapter.account,
        card=name,
        count=count,
        vram_gb=float(vram),
        memory_gb=like.memory_gb if like else 0.0,
        cpus=like.cpus if like else 0.0,
        disk_gb=like.disk_gb if like else 0.0,
        session_limit_s=None if limit is None else float(limit),
        pool=next(iter(adapter.windows), ""),
    )

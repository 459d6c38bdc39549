"""Agent cells: the same one until a new one is asked for, and only true announcements become sessions."""

from __future__ import annotations

import ast
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest

from freegpu import config
from freegpu.adapters import attended
from freegpu.adapters.attended import AttendedAdapter
from freegpu.adapters.base import Adapter
from freegpu.agent import wire
from freegpu.agent.stores.folder import FolderStore
from freegpu.errors import ConfigError
from freegpu.jobs.lifecycle import SessionEvent, SessionState
from freegpu.orchestrator import cell_text, cells
from freegpu.orchestrator.cells import Cell
from freegpu.orchestrator.ledger import Ledger
from freegpu.testing.clock import ManualClock

KEY = bytes(range(32))
BEGIN = datetime(2026, 12, 2, 12, tzinfo=UTC)
AGENT = "ab" * 32
GOLDEN = Path(__file__).parents[1] / "golden" / "cells"


class World:
    """A ledger, a store, and notebooks that announce themselves in it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        (folder / "store").mkdir()
        self.root = folder / "store"
        self.store = FolderStore(self.root, sync=False)
        self.store.put("freegpu.json", b'{"format": 1, "home": "h-test"}')
        self.clock = ManualClock(BEGIN.timestamp())
        self.ledger = Ledger.open(
            str(self.home / "state.db"), clock=self.clock, rng=random.Random(7)
        )
        self.adapters: dict[str, Adapter] = {
            kind: AttendedAdapter.from_options(kind, {}, home=self.home, clock=self.clock)
            for kind in attended.kinds()
        }

    def make(self, platform: str = "colab", *, fresh: bool = False, agent: str = AGENT) -> Cell:
        return cells.make(self.ledger, "h-test", platform, "folder:/s", agent, fresh=fresh)

    def announce(
        self,
        cell: Cell,
        nonce: str = "1",
        *,
        key: bytes | None = None,
        name: str | None = None,
        **fields: Any,
    ) -> str:
        """What freegpu.agent.notebook writes; `key`: signed by somebody else, `name`: under another name."""
        session = wire.guest_session(cell.id, nonce)
        body: dict[str, Any] = {
            "session": session,
            "platform": cell.platform,
            "slots": [["Tesla T4", 15.0, "fp16"]],
            "limit_s": 43200,
            "agent": "1",
        }
        signed = wire.guest_key(wire.cell_key(KEY, cell.id), session) if key is None else key
        where = name or wire.announcement_key(cell.id, session)
        self.store.put(where, wire.pack(body | fields, signed))
        return session

    def adopt(self) -> list[str]:
        """One look; the ids of all open sessions."""
        assert cells.adopt(self.ledger, self.store, KEY, self.adapters, BEGIN) == []
        return [session.id for session in self.ledger.sessions(open_only=True)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.ledger.close()


# --- cells ---------------------------------------------------------------------------------------------------


def test_the_cell_is_the_same_each_time(world: World) -> None:
    """Also after an upgrade and with another store: a cell that somebody saved goes on working."""
    first = world.make()
    assert world.make() == first
    newer = world.make(agent="cd" * 32)
    assert newer == replace(first, agent_sha256="cd" * 32)
    assert world.make("kaggle").id != first.id
    assert set(cells.known(world.ledger)) == {"colab", "kaggle"}


def test_a_new_cell_makes_the_earlier_one_worthless(world: World) -> None:
    """Its id and key differ, and what announces itself with the old one is not even looked at."""
    old, kept = world.make(), world.make("kaggle")
    new = world.make(fresh=True)
    assert new.id != old.id
    assert wire.cell_key(KEY, new.id) != wire.cell_key(KEY, old.id)
    assert world.make() == new
    assert world.make(fresh=True).id not in (old.id, new.id)
    assert world.make("kaggle") == kept
    world.announce(old)
    world.announce(new)
    assert world.adopt() == []
    right = world.announce(world.make())
    assert world.adopt() == [right]


def test_sessions_of_a_cell_that_leaked_get_nothing_more(world: World) -> None:
    """They are asked to drain, once; sessions that we started ourselves are left alone."""
    old = world.make()
    session = world.announce(old)
    world.adopt()
    world.ledger.session_event(session, SessionEvent.HELLO, live_at=BEGIN)
    assert world.adopt() == [session]
    assert world.ledger.session(session).state is SessionState.LIVE
    world.make(fresh=True)
    for _ in range(3):
        world.adopt()
    assert world.ledger.session(session).state is SessionState.ENDING
    assert world.store.list(wire.inbox_prefix(session)) == [wire.inbox_key(session, 1)]
    ticket = wire.unpack(
        world.store.get(wire.inbox_key(session, 1)), wire.session_key(KEY, session)
    )
    assert ticket["kind"] == wire.DRAIN


def test_fresh_without_an_earlier_cell_is_the_first_one(world: World) -> None:
    """Nothing to make worthless."""
    assert world.make(fresh=True) == world.make()


# --- announcements -------------------------------------------------------------------------------------------


def test_an_announced_session_is_taken_in_once(world: World) -> None:
    """With the cards that came, on the platform of its cell, as one that starts; and the audit says why."""
    session = world.announce(world.make())
    assert world.adopt() == world.adopt() == [session]
    found = world.ledger.session(session)
    assert (found.platform, found.card, found.count) == ("colab", "T4", 1)
    assert (found.state, found.ref, found.started_at) == (SessionState.STARTING, session, BEGIN)
    assert found.limit_s == 43200.0
    assert found.reserved_s == 0.0


def test_two_runs_of_one_cell_are_two_sessions(world: World) -> None:
    """Two tabs, two machines: each has its own mailbox and its own key."""
    cell = world.make()
    one, other = world.announce(cell, "1"), world.announce(cell, "2")
    assert sorted(world.adopt()) == [one, other]
    assert wire.session_key(KEY, one) != wire.session_key(KEY, other)


def test_a_crash_between_planning_and_accepting_is_mended(world: World) -> None:
    """A session that stays planned would be waited for for ever."""
    session = world.announce(world.make())
    offer = cells.offer_of(world.adapters["colab"], {"slots": [["T4", 15.0, "fp16"]], "limit_s": 1})
    world.ledger.plan_session(
        platform="colab",
        account="yours",
        offer=offer,
        limit_s=None,
        reserve_s=0.0,
        jobs=[],
        why="somebody ran the cell",
        id=session,
    )
    assert world.adopt() == [session]
    assert world.ledger.session(session).state is SessionState.STARTING


def test_the_announcement_of_a_session_that_has_ended_is_deleted(world: World) -> None:
    """And the session does not come back by it."""
    session = world.announce(world.make())
    world.adopt()
    world.ledger.end_session(session, reason="lost: gone", charged_s=60.0, at=BEGIN)
    assert world.adopt() == []
    assert world.store.list("cells") == []
    world.announce(world.make())  # a mount shows it once more
    assert world.adopt() == []


def test_forged_announcements_count_for_nothing(world: World) -> None:
    """Signed by a stranger, by the home's other cell, by another session's key, or not at all."""
    cell, other = world.make(), world.make("kaggle")
    session = wire.guest_session(cell.id, "1")
    for key in (
        bytes(32),
        KEY,
        wire.cell_key(KEY, cell.id),
        wire.guest_key(wire.cell_key(KEY, other.id), session),
        wire.guest_key(wire.cell_key(KEY, cell.id), wire.guest_session(cell.id, "2")),
    ):
        world.announce(cell, key=key)
        assert world.adopt() == []
    world.store.put(wire.announcement_key(cell.id, session), b'{"session": "n-1", "slots": [1]}')
    assert world.adopt() == []


def test_a_copied_announcement_counts_for_nothing(world: World) -> None:
    """Under another session's name, under another cell, deeper in a folder: one signature, one place."""
    cell, other = world.make(), world.make("kaggle")
    true = world.announce(cell)
    data = world.store.get(wire.announcement_key(cell.id, true))
    false = wire.guest_session(cell.id, "2")
    for name in (
        f"cells/{cell.id}/{false}.json",
        f"cells/{other.id}/{true}.json",
        f"cells/{cell.id}/deeper/{false}.json",
        f"cells/{cell.id}/{true}",
        f"cells/{cell.id}/s-planned1.json",
        f"cells/{cell.id}/n-.json",
        f"cells/{cell.id}/n-{cell.id}-{'x' * 80}.json",
        f"cells/{cell.id}/n-{cell.id}-UPPER.json",
    ):
        world.store.put(name, data)
    assert world.adopt() == [true]


def test_whoever_has_the_cell_cannot_break_the_tick(world: World) -> None:
    """Rightly signed and senseless: numbers that are none, a million slots, names that are no ids."""
    cell = world.make()
    odd: list[Mapping[str, Any]] = [
        {"slots": []},
        {"slots": None},
        {"slots": {"0": 1}},
        {"slots": [["T4"]]},
        {"slots": ["T4 "]},
        {"slots": [["T4", "15", "fp16"]]},
        {"slots": [["T4", True, "fp16"]]},
        {"slots": [["T4", -1, "fp16"]]},
        {"slots": [["T4", 10**400, "fp16"]]},
        {"slots": [[None, 15.0, "fp16"]]},
        {"slots": [["", 15.0, "fp16"]]},
        {"slots": [["T4", 15.0, "fp16"]] * 65},
        {"slots": [["T4", 15.0, "fp16"]] * 10**6},
        {"slots": [["T" * 10**6, 15.0, "fp16"]]},
        {"limit_s": -5},
        {"limit_s": "long"},
        {"limit_s": True},
        {"limit_s": 10**400},
        {"session": "n-another-1"},
        {"format": 99},
    ]
    for number, fields in enumerate(odd):
        world.announce(cell, f"odd{number}", **fields)
    for name in ("UPPER", "x" * 80, "a.b", "a_b"):
        session = f"n-{cell.id}-{name}"
        key = wire.guest_key(wire.cell_key(KEY, cell.id), session)
        body = {"session": session, "slots": [["T4", 15.0, "fp16"]], "limit_s": None}
        world.store.put(f"cells/{cell.id}/{session}.json", wire.pack(body, key))
    right = world.announce(cell, "right")
    assert world.adopt() == [right]


def test_a_torn_announcement_is_waited_for(world: World) -> None:
    """Half of it, nothing of it, then the whole: taken in when it is whole, whatever the store showed before."""
    session = world.announce(world.make())
    path = world.root / wire.announcement_key(world.make().id, session)
    whole = path.read_bytes()
    for part in (b"", whole[:1], whole[: len(whole) // 2], whole[:-1], whole + b"x"):
        path.write_bytes(part)
        assert world.adopt() == []
    path.write_bytes(whole)
    assert world.adopt() == [session]


def test_a_platform_that_is_not_configured_any_more_takes_nothing_in(world: World) -> None:
    """Its cell is remembered; the tick goes on."""
    world.announce(world.make())
    world.adapters.clear()
    assert world.adopt() == []


# --- what came -----------------------------------------------------------------------------------------------


def offered(world: World, *slots: list[Any], limit: float | None = None) -> tuple[Any, ...]:
    offer = cells.offer_of(world.adapters["colab"], {"slots": list(slots), "limit_s": limit})
    return offer.card, offer.count, offer.vram_gb


@pytest.mark.parametrize(
    ("driver", "card"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("CPU", "CPU"),
        ("Frobnicator 9000", "Frobnicator 9000"),
    ],
)
def test_an_offer_names_the_card_as_the_table_does(world: World, driver: str, card: str) -> None:
    """The driver's name in, the table's name out; an unknown card keeps its own."""
    assert offered(world, [driver, 12.5, "fp16"]) == (card, 1, 12.5)


def test_an_offer_counts_equal_cards_from_the_first_slot_on(world: World) -> None:
    """A slot's number must be that of a card of this kind: what is mixed is cut at the first other one."""
    t4, l4 = ["Tesla T4", 15.0, "fp16"], ["NVIDIA L4", 22.5, "bf16"]
    assert offered(world, t4, t4) == ("T4", 2, 15.0)
    assert offered(world, t4, l4, t4) == ("T4", 1, 15.0)


def test_an_offer_keeps_what_the_table_knows_of_the_machine(world: World) -> None:
    """Memory and processors of the kind's own card; nothing is made up for another one. The pool is charged."""
    adapter = world.adapters["colab"]
    t4 = cells.offer_of(adapter, {"slots": [["T4", 15.0, "fp16"]], "limit_s": 7200})
    assert (t4.memory_gb, t4.cpus, t4.session_limit_s, t4.pool) == (12.7, 2, 7200.0, "gpu")
    l4 = cells.offer_of(adapter, {"slots": [["L4", 22.5, "bf16"]], "limit_s": None})
    assert (l4.memory_gb, l4.session_limit_s) == (0.0, None)
    own = cells.offer_of(world.adapters["jupyter"], {"slots": [["T4", 15.0, ""]], "limit_s": None})
    assert own.pool == ""


# --- the text ------------------------------------------------------------------------------------------------


def body(platform: str, store: str, world: World) -> tuple[Cell, dict[str, Any]]:
    cell = Cell(id="0123456789", platform=platform, store=store, serial=0, agent_sha256=AGENT)
    settings = config.load({}, home=world.home)
    facts = attended.facts(platform)
    return cell, cells.contents(cell, facts, world.store, settings, "h-golden", KEY)


@pytest.mark.parametrize(
    ("name", "platform", "store"),
    [
        ("jupyter-folder", "jupyter", "folder:/data/freegpu"),
        ("colab-mounted", "colab", "folder:/content/drive/MyDrive/freegpu"),
        ("paperspace-folder", "paperspace", "folder:/storage/freegpu"),
        ("kaggle-s3", "kaggle", "s3://box/free?endpoint=https://s3.example.org&region=auto"),
        ("colab-s3", "colab", "s3://box/free?endpoint=https://s3.example.org&region=auto"),
        ("colab-drive", "colab", "drive:freegpu"),
        ("saturn-drive", "saturn", "drive:freegpu"),
    ],
)
def test_the_text_of_a_cell_is_the_golden_one(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, platform: str, store: str
) -> None:
    """What a person reads before running it. UPDATE_GOLDEN=1 writes it anew; read the difference."""
    grant = {
        "client_id": "app",
        "client_secret": "GOCSPX-canary",
        "refresh_token": "1//canary",
        "token_uri": "https://oauth2.googleapis.com/token",
        "scope": cells.FULL_DRIVE,
    }
    monkeypatch.setenv("FREEGPU_DRIVE", json.dumps(grant))
    cell, told = body(platform, store, world)
    if store.startswith("drive:"):  # the file's address is asked of the real Drive
        told["url"] = "https://www.googleapis.com/drive/v3/files/ID?alt=media"
    text = cell_text.text(told, version="0.0.0")
    compile(text, name, "exec", flags=ast.PyCF_ONLY_AST)
    ast.parse(text, feature_version=(3, 9))
    path = GOLDEN / f"{name}.py.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    public = platform == "paperspace"
    assert (wire.cell_key(KEY, cell.id).hex() in text) is not public
    assert KEY.hex() not in text
    assert "canary" not in text


@pytest.mark.parametrize("kind", attended.kinds())
def test_every_kind_has_a_valid_notebook(world: World, kind: str) -> None:
    """nbformat takes it; the cell in it is the text; Colab is asked for a GPU and to keep no outputs."""
    _, told = body(kind, "folder:/data/freegpu", world)
    made = cell_text.notebook(told, version="0.0.0")
    nbformat.validate(nbformat.from_dict(json.loads(json.dumps(made))))  # type: ignore[no-untyped-call]
    about, agent = made["cells"]
    assert agent["source"] + "\n" == cell_text.text(told, version="0.0.0")
    assert all(note in about["source"] for note in attended.facts(kind).notes)
    assert (made["metadata"].get("accelerator") == "GPU") is (kind == "colab")
    if kind == "colab":
        assert made["metadata"]["colab"]["private_outputs"] is True


@pytest.mark.parametrize(
    "store",
    [
        "folder:/it's '''odd'''",
        'folder:/"quoted"',
        "folder:/back\\slash\\",
        "folder:/家/{x}",
        "folder:/a\nb",
    ],
    ids=ascii,
)
def test_an_odd_store_cannot_break_out_of_the_text(world: World, store: str) -> None:
    """Whatever the address holds, the cell is data and the data is equal."""
    _, told = body("jupyter", store, world)
    tree = ast.parse(cell_text.text(told, version="0.0.0"))
    loads = next(
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "json.loads"
        if isinstance(node.args[0], ast.Constant)
    )
    assert json.loads(str(loads)) == told


# --- which store, which platform -------------------------------------------------------------------------------


def settings(world: World, text: str = "") -> config.Settings:
    (world.home / "freegpu.toml").write_text(text)
    return config.load({}, home=world.home)


def test_a_cell_waits_no_longer_for_work_than_the_settings_say(world: World) -> None:
    """The rhythm of the cell is that of the settings, fitted to the store."""
    _, told = body("jupyter", "folder:/s", world)
    usual = settings(world)
    assert (told["idle_s"], told["poll_s"], told["beat_s"], told["margin_s"]) == (
        usual.idle_s,
        usual.poll_s,
        usual.beat_s,
        usual.margin_s,
    )
    assert told["key_check"] == wire.sha256(wire.cell_key(KEY, "0123456789"))[:12]


@pytest.mark.parametrize(
    ("given", "configured", "seen"),
    [
        ("folder:/mnt/x", "folder:/s", "folder:/mnt/x"),
        ("/mnt/x", "folder:/s", "folder:/mnt/x"),
        ("/mnt/a:b", "folder:/s", "folder:/mnt/a:b"),
        (None, "folder:/s", "folder:/s"),
        (None, "/s", "folder:/s"),
        (None, "s3://box?endpoint=https://h", "s3://box?endpoint=https://h"),
    ],
)
def test_the_store_is_as_the_notebook_sees_it(
    world: World, given: str | None, configured: str, seen: str
) -> None:
    """--store goes before the setting; a bare path is a folder."""
    with_store = replace(settings(world), store=configured)
    assert cells.seen_store(given, with_store, attended.facts("jupyter")) == seen


def test_a_folder_of_this_machine_is_none_of_colab(world: World) -> None:
    """Unless the person says where the notebook has it."""
    here = replace(settings(world), store="folder:/s")
    with pytest.raises(ConfigError, match="which Google Colab cannot see"):
        cells.seen_store(None, here, attended.facts("colab"))
    mounted = "folder:/content/drive/MyDrive/freegpu"
    assert cells.seen_store(mounted, here, attended.facts("colab")) == mounted


@pytest.mark.parametrize("store", ["rclone:box:freegpu", "sftp://me:secret@host/p", "ftp://x"])
def test_a_store_that_an_agent_cannot_open_is_refused_without_its_password(
    world: World, store: str
) -> None:
    """One sentence, and nothing secret in it."""
    with pytest.raises(ConfigError, match="a notebook cannot reach the store") as caught:
        cells.seen_store(None, replace(settings(world), store=store), attended.facts("colab"))
    assert "secret" not in caught.value.message


def test_a_platform_is_one_that_needs_a_cell(world: World) -> None:
    """Unknown kinds with the nearest name, platforms that start by themselves; own ones by their kind."""
    with pytest.raises(ConfigError, match="there is no cell for 'colob'") as caught:
        cells.facts_of("colob", settings(world))
    assert caught.value.hint == "did you mean colab?"
    with pytest.raises(ConfigError, match="starts its sessions by itself"):
        cells.facts_of("local", settings(world))
    lab = '[platforms.lab]\nadapter = "attended"\nkind = "jupyter"\ncard = "Tesla V100"\n'
    found = cells.facts_of("lab", settings(world, lab))
    assert (found.kind, found.offers[0]["card"]) == ("jupyter", "V100")

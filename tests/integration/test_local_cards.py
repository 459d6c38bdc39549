"""This machine as a platform: what it finds by nvidia-smi, and what it says about sessions that ended."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Launch, Observation, PlatformState, Request, SessionRef
from freegpu.adapters.local import LocalAdapter
from freegpu.agent.wire import Profile, Slot
from freegpu.clock import SystemClock

Machine = Callable[..., LocalAdapter]

#: what nvidia-smi prints: index, name, memory in MiB, uuid, driver
T4 = "{i}, Tesla T4, 15360, GPU-{i}, 535.104.05"
A100 = "{i}, NVIDIA A100-SXM4-40GB, 40960, GPU-{i}, 535.104.05"
STAY = "import time; time.sleep(60)"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """This machine with the cards that a script in nvidia-smi's place tells; sessions end with the test."""
    made: list[LocalAdapter] = []

    def build(*cards: str, script: str | None = None) -> LocalAdapter:
        answer = "\n".join(card.format(i=index) for index, card in enumerate(cards))
        program = tmp_path / "a driver's folder" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(script or f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        program.chmod(0o755)
        options = {"nvidia_smi": str(program)}
        adapter = LocalAdapter.from_options(
            "local", options, home=tmp_path / "home", clock=SystemClock()
        )
        made.append(adapter)
        return adapter

    yield build
    for adapter in made:
        for key in adapter.host.keys():  # noqa: SIM118 - a method of ours, not a dict
            adapter.stop(SessionRef(key))
        adapter.close()


def until(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found


def session(key: str, script: str = STAY, gpus: tuple[str, ...] = ()) -> Request:
    profile = {"platform": "local", "slots": [{"index": 0, "gpus": list(gpus)}]}
    return Request(
        key=key, payload={"argv": [sys.executable, "-I", "-c", script], "profile": profile}
    )


def ended(machine: LocalAdapter, key: str) -> Observation:
    ref = SessionRef(key)
    until(lambda: machine.observe([ref])[ref].state is PlatformState.ENDED)
    return machine.observe([ref])[ref]


def test_cards_of_one_model_are_one_session_with_a_slot_each(machine: Machine) -> None:
    """Two T4: one offer, count 2, the size on the box, the devices' ids."""
    (offer,) = machine(T4, T4).offers()
    assert (offer.platform, offer.card, offer.count, offer.vram_gb) == ("local", "T4", 2, 15)
    assert offer.devices == ("0", "1")
    assert offer.session_limit_s is None
    assert offer.pool == ""


def test_each_model_is_a_session_of_its_own(machine: Machine) -> None:
    """T4, A100, T4: two offers, the T4s' devices are 0 and 2, and two sessions may be open."""
    local = machine(T4, A100, T4)
    offers = {offer.card: offer for offer in local.offers()}
    assert {card: offer.devices for card, offer in offers.items()} == {
        "T4": ("0", "2"),
        "A100": ("1",),
    }
    assert offers["A100"].vram_gb == 40
    assert local.capabilities.max_concurrent == 2


def test_of_several_models_the_one_in_use_is_not_to_be_had_twice(machine: Machine) -> None:
    """The number of open sessions does not tell which model is taken: `available` does."""
    local = machine(T4, A100)
    assert [offer.available for offer in local.offers()] == [1, 1]
    local.start(session("s-1", gpus=("1",)))
    assert {offer.card: offer.available for offer in local.offers()} == {"T4": 1, "A100": 0}
    local.stop(SessionRef("s-1"))
    ended(local, "s-1")
    assert [offer.available for offer in local.offers()] == [1, 1]


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\nexit 9\n",
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not talk to the driver'\n",
        "#!/bin/sh\n",
        "this is no program",
    ],
    ids=["fails", "talks", "silent", "not a program"],
)
def test_without_a_card_that_answers_there_is_one_slot_on_the_processor(
    machine: Machine, script: str
) -> None:
    """A broken driver is no card; memory, processors and disk are this machine's."""
    local = machine(script=script)
    (offer,) = local.offers()
    assert (offer.card, offer.count, offer.vram_gb, offer.devices) == ("CPU", 1, 0, ())
    assert offer.cpus == os.cpu_count()
    assert 0.2 < offer.memory_gb < 50_000
    assert local.capabilities.max_concurrent == 1


def test_a_card_that_no_table_knows_keeps_the_drivers_name(machine: Machine) -> None:
    """Better an odd name than a wrong one."""
    (offer,) = machine("0, NVIDIA H900 Ultra, 98304, GPU-0, 600.1").offers()
    assert (offer.card, offer.vram_gb) == ("NVIDIA H900 Ultra", 96)


def test_a_driver_that_does_not_tell_the_memory_is_helped_by_the_card_table(
    machine: Machine,
) -> None:
    """[N/A] would otherwise be a card with 0 GB, on which nothing fits."""
    (offer,) = machine("0, Tesla T4, [N/A], GPU-0, 535").offers()
    assert (offer.card, offer.vram_gb) == ("T4", 16)


def test_a_home_that_is_not_there_yet_stops_no_offer(machine: Machine, tmp_path: Path) -> None:
    """Asked before anything was written (`doctor`, --dry-run): free space is not known, that is all."""
    assert not (tmp_path / "home").exists()
    assert machine(T4).offers()[0].disk_gb == 0


def test_the_request_starts_the_agent_with_this_python_and_nothing_of_the_users(
    machine: Machine, tmp_path: Path
) -> None:
    """-I keeps the user's PYTHONPATH and site out of the agent; the profile goes as a file, not as an argument."""
    local = machine(T4)
    profile = Profile(
        session="s-1",
        home="h",
        platform="local",
        key="ab" * 32,
        store="folder:/x",
        work="/w",
        slots=(Slot(index=0, card="T4", gpus=("0",)),),
    )
    launch = Launch(
        key="s-1",
        offer=local.offers()[0],
        profile=profile,
        agent_path="/a b/agent.pyz",
        agent_sha256="0",
        agent_key="agent/x",
    )
    request = local.render(launch)
    assert request == local.render(launch)
    place = tmp_path / "home" / "sessions" / "s-1"
    assert request.payload["argv"] == [
        *(sys.executable, "-I", "/a b/agent.pyz", str(place / "profile.json"))
    ]
    assert request.payload["profile"] == profile.to_json()
    assert not place.exists()


@pytest.mark.parametrize(("end", "reason"), [("limit", "session_expired"), ("idle", "")])
def test_the_agents_own_word_about_its_end_is_passed_on(
    machine: Machine, tmp_path: Path, end: str, reason: str
) -> None:
    """exit.json says how it ended; its time being up is session_expired, the rest has no name."""
    record = json.dumps({"end": end})
    script = f"import os; os.mkdir('work'); open('work/exit.json', 'w').write({record!r})"
    local = machine()
    local.start(session("s-1", script))
    seen = ended(local, "s-1")
    assert (seen.raw, seen.reason) == ("exited", reason)
    assert end in seen.detail


def test_an_agent_that_died_without_a_word_is_explained_by_its_last_line(machine: Machine) -> None:
    """What stands in agent.log is what a person needs; without any, it was killed."""
    local = machine()
    local.start(
        session("s-1", "print('one', flush=True); raise SystemExit('the store cannot be reached')")
    )
    assert ended(local, "s-1").detail == "the store cannot be reached"
    local.start(session("s-2"))
    local.stop(SessionRef("s-2"))
    assert ended(local, "s-2").detail == "its process was killed"

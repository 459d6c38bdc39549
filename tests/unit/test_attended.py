"""Platforms where a person starts the session: their facts, their options, and the shipped suite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from freegpu import cards
from freegpu.adapters import attended, registry
from freegpu.adapters.attended import AttendedAdapter
from freegpu.adapters.base import Request, SessionRef, WindowKind
from freegpu.clock import SystemClock
from freegpu.errors import AttendedError, ConfigError
from freegpu.testing.suites import PaperSuite, Stage

TABLE = json.loads(resources.files("freegpu.adapters").joinpath("attended.json").read_text("utf-8"))


def made(tmp_path: Path, name: str, options: Mapping[str, Any]) -> AttendedAdapter:
    return AttendedAdapter.from_options(name, options, home=tmp_path, clock=SystemClock())


class TestColab(PaperSuite):
    """As it comes from the table."""

    name = "colab"
    adapter = "attended"

    def test_only_a_person_can_start_it(self, stage: Stage) -> None:
        """start() says so with the command that makes the cell; nothing is found, nothing breaks."""
        with pytest.raises(AttendedError, match="a person must start the session") as caught:
            stage.adapter.start(Request(key="s-1"))
        assert "freegpu cell colab" in (caught.value.hint or "")
        assert stage.adapter.logs(SessionRef("n-1"), cursor="7").cursor == "7"
        known = stage.adapter.capabilities
        assert (known.attended, known.stop, known.max_concurrent) == (True, False, 1)


class TestOwnNotebook(PaperSuite):
    """A Jupyter of one's own, with the card that one's options name."""

    name = "lab"
    adapter = "attended"

    def options(self, folder: Path) -> Mapping[str, Any]:
        return {"kind": "jupyter", "card": "Tesla V100", "count": 2, "session_limit_h": 8}

    def test_the_options_say_what_it_is(self, stage: Stage) -> None:
        """The card by the table's name with its memory, how many, and how long."""
        (offer,) = stage.adapter.offers()
        assert (offer.card, offer.count, offer.vram_gb) == ("V100", 2, 16.0)
        assert offer.session_limit_s == 8 * 3600


@pytest.mark.parametrize("kind", attended.kinds())
def test_every_fact_has_a_source_and_a_date(kind: str) -> None:
    """A figure that nobody can trace is a rumour, and one without a date cannot grow old."""
    entry = TABLE[kind]
    assert set(entry) == set(TABLE["colab"]), "every kind says the same things"
    assert len(entry["source"]) > 10
    assert date.fromisoformat(entry["verified_on"]) <= datetime.now(UTC).date()
    found = attended.facts(kind)
    assert found.window.source == entry["source"]
    assert found.window.verified_on == entry["verified_on"]
    assert found.url.startswith("https://") or kind == "jupyter"
    assert found.session_limit_s is None or found.session_limit_s > 600
    if found.window.kind in (WindowKind.ROLLING, WindowKind.FROM_FIRST_USE):
        assert found.window.period_s > 0
    for offer in found.offers:
        card = cards.find(offer["card"])
        assert card is not None
        assert card.name == offer["card"]
    assert all(len(note) < 140 for note in found.notes), "a line of a notebook"


def test_where_notebooks_are_public_the_facts_say_so() -> None:
    """A key in a public notebook would be everybody's."""
    assert [kind for kind in attended.kinds() if attended.facts(kind).public] == ["paperspace"]


def test_only_a_runtime_that_a_notebook_can_give_back_is_given_back() -> None:
    """google.colab.runtime.unassign is the only such call that is known."""
    assert [kind for kind in attended.kinds() if attended.facts(kind).release] == ["colab"]


def test_colab_is_quoted_before_it_starts() -> None:
    """The person who runs the cell reads what the FAQ says of such use."""
    text = " ".join(attended.facts("colab").notes)
    for part in ("distributed computing workers", "ended at any time", "for Google to say"):
        assert part in text


def test_every_kind_can_be_configured_by_its_name_alone(tmp_path: Path) -> None:
    """`[platforms.saturn]` with adapter = "attended" and nothing else."""
    for kind in attended.kinds():
        adapter = registry.create(kind, "attended", {}, home=tmp_path, clock=SystemClock())
        assert (adapter.name, adapter.account) == (kind, "yours")
        assert [o.card for o in adapter.offers()] == [o["card"] for o in TABLE[kind]["offers"]]


def test_an_override_replaces_only_what_it_names(tmp_path: Path) -> None:
    """Colab Pro with an L4: other card, other memory, same machine otherwise."""
    (offer,) = made(tmp_path, "colab", {"card": "l4", "account": "me@example.org"}).offers()
    assert (offer.card, offer.vram_gb, offer.memory_gb, offer.account) == (
        "L4",
        24.0,
        12.7,
        "me@example.org",
    )
    (offer,) = made(tmp_path, "colab", {"card": "T4"}).offers()
    assert offer.vram_gb == 15.0, "the card of the table keeps the table's memory"
    (offer,) = made(tmp_path, "colab", {"session_limit_h": 24}).offers()
    assert offer.session_limit_s == 86400
    (offer,) = made(tmp_path, "colab", {"vram_gb": 16}).offers()
    assert (offer.card, offer.vram_gb) == ("T4", 16.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crad": "T4"}, "platform lab: unknown option 'crad'"),
        ({"kind": "colob"}, "platform lab: 'colob' is no kind of notebook"),
        ({"kind": 7}, "platform lab: '7' is no kind of notebook"),
        ({"card": "T44"}, "platform lab: card is 'T44', which no card is called"),
        ({"card": 4}, "platform lab: card is 4, which no card is called"),
        ({"card": ""}, "platform lab: card is '', which no card is called"),
        ({"count": 0}, "platform lab: count is 0, not a number above 0"),
        ({"count": 1.5}, "platform lab: count is 1.5, not a whole number"),
        ({"count": True}, "platform lab: count is True, not a number above 0"),
        ({"vram_gb": "16"}, "platform lab: vram_gb is '16', not a number above 0"),
        ({"vram_gb": float("nan")}, "platform lab: vram_gb is nan, not a number above 0"),
        ({"session_limit_h": -1}, "platform lab: session_limit_h is -1, not a number above 0"),
        ({"session_limit_h": 1e99}, "platform lab: session_limit_h is 1e+99, not a number above 0"),
        ({"account": " "}, "platform lab: account is ' ', not the name of a login"),
        ({"account": 5}, "platform lab: account is 5, not the name of a login"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    tmp_path: Path, options: Mapping[str, Any], message: str
) -> None:
    """With the platform's name, the option and what was found."""
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, "lab", {"kind": "jupyter", **options})
    assert caught.value.message == message

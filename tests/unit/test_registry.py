"""Adapters by name: found, built with their options, or refused in one sentence."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from freegpu.adapters import registry
from freegpu.adapters.local import LocalAdapter
from freegpu.clock import Clock, SystemClock
from freegpu.errors import ConfigError, UnknownAdapterError


class Mine:
    """An adapter as somebody outside of freegpu would write it."""

    def __init__(self, name: str, zone: str) -> None:
        self.name, self.zone = name, zone

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        return cls(name, **options)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Installed adapters by name; a value that is an exception is raised when it is loaded."""
    found: dict[str, Any] = {"local": LocalAdapter}

    def load(thing: Any) -> Any:
        if isinstance(thing, Exception):
            raise thing
        return thing

    def entries(*, group: str) -> list[Any]:
        assert group == "freegpu.adapters"
        return [
            SimpleNamespace(name=name, load=lambda thing=thing: load(thing))
            for name, thing in found.items()
        ]

    monkeypatch.setattr(registry, "entry_points", entries)
    return found


def create(adapter: str, **options: Any) -> Any:
    return registry.create("blue", adapter, options, home=Path("/nowhere"), clock=SystemClock())


def test_an_installed_adapter_is_found_by_its_name(installed: dict[str, Any]) -> None:
    """The class behind the entry point is built with the platform's name and options."""
    installed["mine"] = Mine
    made = create("mine", zone="north")
    assert (made.name, made.zone) == ("blue", "north")
    assert registry.known() == ("local", "mine")


def test_local_is_installed_with_freegpu() -> None:
    """The entry point in pyproject.toml leads to the class."""
    entries = importlib.metadata.entry_points(group=registry.GROUP)
    assert [e.load() for e in entries if e.name == "local"] == [LocalAdapter]


def test_a_class_is_found_by_module_and_name() -> None:
    """What is only importable needs no entry point."""
    made = create("freegpu.testing.loopback:LoopbackAdapter", card="L4")
    assert made.offers()[0].card == "L4"


def test_a_misspelt_name_is_answered_with_the_nearest_one(installed: dict[str, Any]) -> None:
    """The sentence says which platform, the hint what was perhaps meant and what there is."""
    with pytest.raises(UnknownAdapterError, match="platform blue: there is no adapter 'Locl'") as e:
        create("Locl")
    assert e.value.hint.startswith("did you mean local?")


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("no.such.module:Adapter", "No module named"),
        ("freegpu.errors:NoSuchThing", "NoSuchThing"),
        ("freegpu.errors:", "cannot be loaded"),
        (":Adapter", "cannot be loaded"),
        ("freegpu.errors:__all__", "is not an adapter"),
        ("", "there is no adapter ''"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(adapter: str, said: str) -> None:
    """Never a traceback of the import system."""
    with pytest.raises(UnknownAdapterError, match=said):
        create(adapter)


def test_an_adapter_whose_import_breaks_is_named(installed: dict[str, Any]) -> None:
    """A third party's module may raise anything when it is imported."""
    installed["broken"] = RuntimeError("needs libfoo")
    with pytest.raises(UnknownAdapterError, match="broken cannot be loaded: needs libfoo"):
        create("broken")


def test_options_that_do_not_fit_name_the_table_to_mend(installed: dict[str, Any]) -> None:
    """An unknown, a missing and an impossible option are ConfigErrors of this platform."""
    installed["mine"] = Mine
    for options in ({"zoen": "north"}, {}):
        with pytest.raises(ConfigError, match="platform blue: its options are not usable") as e:
            create("mine", **options)
        assert "[platforms.blue]" in e.value.hint


@pytest.mark.parametrize("options", [{"cards": ["T4"]}, {"nvidia_smi": 3}, {"nvidia_smi": ""}])
def test_local_takes_no_cards_that_are_not_there(options: dict[str, Any]) -> None:
    """Its one option is which nvidia-smi to ask; nobody can invent cards."""
    with pytest.raises(ConfigError, match="platform blue"):
        create("local", **options)

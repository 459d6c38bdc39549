"""The reference pages say what the code does: commands, options, exit codes, settings."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

from freegpu import config, errors
from freegpu.cli import app as application
from freegpu.cli.lazy import COMMANDS, LazyGroup

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def command(name: str) -> click.Command:
    """The command that is typed so, also inside a group: "connect store"."""
    found: click.Command = application.app
    for word in name.split():
        assert isinstance(found, LazyGroup)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None
        found = inner
    return found


def lines() -> dict[str, str]:
    """Every command, those inside groups too, with the line that the overview shows for it."""
    found = {name: entry[2] for name, entry in COMMANDS.items()}
    for name in COMMANDS:
        inner = command(name)
        if isinstance(inner, LazyGroup):
            found |= {f"{name} {word}": entry[2] for word, entry in inner.entries.items()}
    return found


LINES = lines()


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(LINES))
def test_every_command_has_help_with_an_example(name: str) -> None:
    """The example calls the command it stands under."""
    context = click.Context(command(name), info_name=f"freegpu {name}")
    help_text = command(name).get_help(context)
    example = help_text.partition("Example:")[2]
    assert f"freegpu {name}" in example


@pytest.mark.parametrize("name", list(LINES))
def test_the_line_in_the_overview_is_the_first_of_the_commands_own_help(name: str) -> None:
    """The overview is written out so that it needs no import; it must not fall behind."""
    first = (command(name).help or "").partition("\n\n")[0].replace("\n", " ")
    assert LINES[name] == first


@pytest.mark.parametrize("name", list(LINES))
def test_every_option_is_explained_and_every_command_takes_json(name: str) -> None:
    """No option without a sentence."""
    options = [p for p in command(name).params if isinstance(p, click.Option)]
    assert {"--json", "--debug"} <= {o for p in options for o in p.opts}
    assert all(option.help for option in options)


@pytest.mark.parametrize("name", list(LINES))
def test_the_reference_describes_every_command_and_option(name: str) -> None:
    """cli.md has a section for each command, with each of its options and arguments."""
    sections = re.split(r"^## ", page("cli.md"), flags=re.MULTILINE)
    section = next((s for s in sections if s.startswith(f"freegpu {name}\n")), "")
    assert section, f"cli.md has no section for {name}"
    for param in command(name).params:
        if isinstance(param, click.Option):
            for option in param.opts:
                if option not in ("--json", "--debug"):
                    assert f"`{option}" in section, f"cli.md does not tell {option} of {name}"
        else:
            assert (
                param.make_metavar(click.Context(command(name))).strip("[]").strip(".") in section
            )


def test_the_reference_describes_no_command_that_is_not_there() -> None:
    """What was removed is removed from the page."""
    assert set(re.findall(r"^## freegpu ([a-z ]+)", page("cli.md"), re.MULTILINE)) == set(LINES)


def classes() -> dict[str, type[errors.FreeGPUError]]:
    return {
        name: found
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, errors.FreeGPUError)
    }


def test_errors_exports_every_class_sorted() -> None:
    """`__all__` is complete and in order."""
    assert list(errors.__all__) == sorted(classes())


def test_every_class_of_error_has_its_own_exit_code_and_name() -> None:
    """A script can tell them apart; none collides with the codes that belong to no class."""
    codes = [found.exit_code for found in classes().values()]
    others = [application.USAGE, application.INTERRUPTED, application.BROKEN_PIPE]
    assert len(set(codes) | set(others)) == len(codes) + len(others)
    assert len({found.code for found in classes().values()}) == len(codes)
    assert all(0 < code < 126 for code in codes)


def test_the_exit_codes_page_is_the_table_of_the_code() -> None:
    """Every class with its code and its name in the envelope, and no other."""
    listed = {
        int(code): name
        for code, name in re.findall(
            r"^\| (\d+) \| `([a-z_]*)`", page("exit-codes.md"), re.MULTILINE
        )
    }
    expected = {found.exit_code: found.code for found in classes().values()}
    expected |= {2: "usage", 130: "interrupted"}
    assert listed == expected
    assert f"| {application.BROKEN_PIPE} |" in page("exit-codes.md")


def test_the_configuration_page_lists_every_setting_with_its_default() -> None:
    """Name, default and range as the code has them."""
    text = page("configuration.md")
    for name, (default, low, high) in config.NUMBERS.items():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{name}` |")), "")
        cells = [cell.strip() for cell in row.split("|")]
        assert cells[2:4] == [f"{default:g}", f"{low:g} to {high:g}"], name
    for name in (
        "store",
        "db",
        "FREEGPU_HOME",
        "FREEGPU_STORE",
        "FREEGPU_DB",
        "enabled",
        "adapter",
    ):
        assert f"`{name}`" in text

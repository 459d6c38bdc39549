"""The pages hold together: links lead somewhere, commands exist, both READMEs say the same, examples are taken."""

from __future__ import annotations

import ast
import re
import textwrap
import unicodedata
from pathlib import Path

import click
import pytest

from freegpu.cli import app as application
from freegpu.cli.lazy import COMMANDS, LazyGroup
from freegpu.jobs.spec import load

ROOT = Path(__file__).parents[2]
READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")
PAGES = sorted(
    [*READMES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
)
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
_FENCE = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*)$", re.MULTILINE)
_SHELL = re.compile(r"\||&&|;|\)|2>")
_CALL = re.compile(r"(?<![\w./\"-])freegpu((?: +--?[a-z-]+)*) +([a-z][a-z-]*)([^\n]*)")


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def blocks(path: Path, *kinds: str) -> list[str]:
    """Its code blocks of these kinds."""
    return [
        text for kind, text in _FENCE.findall(path.read_text(encoding="utf-8")) if kind in kinds
    ]


def typed(path: Path) -> list[str]:
    """The commands that a reader is to type, without the prompt and the comments behind them."""
    lines = "\n".join(blocks(path, "console")).splitlines()
    return [re.split(r"\s+#\s", line[2:])[0].strip() for line in lines if line.startswith("$ ")]


def anchors(path: Path) -> set[str]:
    """The names that its headings get where Markdown is shown."""
    found = set()
    for heading in _HEADING.findall(prose(path)):
        words = re.sub(r"[`*]", "", heading).strip().lower()
        kept = [c for c in words if c in " -_" or unicodedata.category(c)[0] in "LN"]
        found.add("".join(kept).replace(" ", "-"))
    return found


def command(name: str) -> click.Command:
    found = LazyGroup().get_command(click.Context(application.app), name)
    assert found is not None
    return found


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_link_inside_the_project_leads_somewhere(path: Path) -> None:
    """Files and folders exist with that spelling, and so do the headings behind `#`."""
    for link in _LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{link} is not there"
        assert target.is_relative_to(ROOT), f"{link} leaves the project"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_command_of_the_pages_is_there_with_its_options(path: Path) -> None:
    """What a page tells to type can be typed: in code blocks and between backticks."""
    spans = re.findall(r"`([^`\n]+)`", prose(path))
    texts = [part for text in (*typed(path), *spans) for part in _SHELL.split(text)]
    for before, name, rest in [call for text in texts for call in _CALL.findall(text)]:
        assert name in COMMANDS, f"there is no `freegpu {name}`"
        found = command(name)
        inner = re.match(r" +([a-z]+)", rest) if isinstance(found, LazyGroup) else None
        if inner is not None and isinstance(found, LazyGroup):
            assert inner[1] in found.entries, f"there is no `freegpu {name} {inner[1]}`"
            found = found.get_command(click.Context(found), inner[1]) or found
        known = {option for param in found.params for option in param.opts}
        used = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", f"{before} {rest}")
        assert set(used) <= known | {"-h", "--help"}, f"`freegpu {name}` has not all of {used}"


def test_the_pages_are_found_and_their_commands_seen() -> None:
    """The tests above say nothing if they look at nothing."""
    assert len(PAGES) > 15
    assert "freegpu demo" in typed(ROOT / "docs" / "tutorial" / "first-job.md")
    assert {"make demo", "make test"} <= set(typed(READMES[0]))


def test_both_readmes_give_the_same_commands_pictures_and_pages() -> None:
    """A reader of either language is told the same things to do, and is sent to the same pages."""
    english, chinese = READMES
    assert typed(english) == typed(chinese)
    ours, theirs = (set(_LINK.findall(prose(path))) for path in READMES)
    local = {english.name, chinese.name, "#platforms", "#平台"}
    assert ours - local == theirs - local


def test_the_first_screen_has_the_two_commands() -> None:
    """`make demo` and `make test`, before anything has to be scrolled."""
    for path in READMES:
        first = path.read_text(encoding="utf-8").splitlines()[:25]
        assert any(line.startswith("$ make demo") for line in first)
        assert any(line.startswith("$ make test") for line in first)


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_job_spec_of_the_pages_is_taken(path: Path, tmp_path: Path) -> None:
    """A reader may copy it as it stands. A notice would mean that a field is ignored."""
    for text in blocks(path, "yaml"):
        (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
        loaded = load(tmp_path / "job.yaml", environ={"WANDB_API_KEY": "x"})
        assert loaded.notices == ()
        assert loaded.specs


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_every_python_example_is_python(path: Path) -> None:
    """Pasted into a file it compiles; `...` stands for the reader's own arguments."""
    for text in blocks(path, "python"):
        ast.parse(re.sub(r", \.\.\.\)", ")", textwrap.dedent(text)))


def test_the_how_to_calls_only_what_the_companion_has() -> None:
    """`fg.name` in the examples is a function of freegpu_job."""
    from freegpu.agent import companion

    page = (ROOT / "docs" / "how-to" / "adapt-a-script.md").read_text(encoding="utf-8")
    called = set(re.findall(r"\bfg\.(\w+)", page))
    assert len(called) > 8
    assert {name for name in called if not callable(getattr(companion, name, None))} == set()


@pytest.mark.parametrize("name", ["demo.svg", "demo-live.svg"])
def test_the_pictures_fetch_nothing(name: str) -> None:
    """An image that loads fonts from elsewhere is not shown, or tells somebody who reads the page."""
    picture = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
    assert "freegpu" in picture
    assert "url(http" not in picture
    assert "@font-face" not in picture

"""`freegpu cell`: what is printed where, the notebook file, and each thing that cannot be, in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.errors import ConfigError
from tests.unit.cli.conftest import Answer, Stream

TEXT = "# the cell\nrun(cell, agent)\n"


def test_stdout_is_the_cell_and_nothing_else(shell: Callable[..., Any], fake: Any) -> None:
    """`freegpu cell > cell.py` is a program; what to do with it is talk."""
    answer = shell("cell")
    assert (answer.code, answer.out) == (0, TEXT)
    assert fake.asked[-1] == ("cell", "jupyter", None, False)
    assert "whoever has the cell can answer for your sessions" in answer.err
    assert "keep `freegpu up` running here" in answer.err


def test_a_notebook_file_is_written_for_its_owner_alone(
    shell: Callable[..., Any], tmp_path: Path
) -> None:
    """It holds a key: mode 600, also over a file that others could read. stdout is its path; stderr where to open it."""
    path = tmp_path / "a b.ipynb"
    path.write_text("old")
    path.chmod(0o644)
    answer = shell("cell", "colab", "--ipynb", str(path))
    assert answer.out == f"{path}\n"
    assert "open it at https://colab.example.org/#create=true" in answer.err
    assert json.loads(path.read_text())["nbformat"] == 4
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["a b.ipynb"]


def test_options_reach_the_workspace(shell: Callable[..., Any], fake: Any) -> None:
    """--store and --new."""
    shell("cell", "kaggle", "--store", "folder:/kaggle/working", "--new")
    assert fake.asked[-1] == ("cell", "kaggle", "folder:/kaggle/working", True)


def test_the_key_of_a_public_notebook_is_given_beside_it(shell: Callable[..., Any]) -> None:
    """In words, with the name of the secret; to a program as `key`; never in the cell."""
    answer = shell("cell", "paperspace")
    assert answer.out == TEXT
    assert f"FREEGPU_CELL_KEY is {'ab' * 32}" in answer.err
    assert "secret FREEGPU_CELL_KEY in the notebook's own secret store" in answer.err
    data = shell("cell", "paperspace", "--json").envelope["data"]
    assert (data["key"], data["secrets"]) == ("ab" * 32, ["FREEGPU_CELL_KEY"])
    assert shell("cell", "colab", "--json").envelope["data"]["key"] == ""


@pytest.mark.parametrize(
    "where", ["missing/nb.ipynb", ".", "/", "taken.ipynb", "plain/nb.ipynb", "x" * 300]
)
def test_a_notebook_that_cannot_be_written_is_one_sentence(
    shell: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Exit code 10, the file's name, no trace of a half written one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.ipynb").mkdir()
    (tmp_path / "plain").write_text("a file")
    before = sorted(tmp_path.rglob("*"))
    answer = shell("cell", "colab", "--ipynb", where)
    assert answer.code == 10
    error, hint = answer.err.splitlines()
    assert error.startswith(f"error: the notebook {where} cannot be written: ")
    assert hint == "hint: choose another file with --ipynb"
    assert sorted(tmp_path.rglob("*")) == before


# --- with the real workspace ----------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Callable[..., Answer]:
    """The command line against a home of its own."""

    def call(*argv: str, toml: str = "") -> Answer:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        (home / "freegpu.toml").write_text(toml)
        out, err = Stream(terminal=False), Stream(terminal=False)
        environ = {"FREEGPU_HOME": str(home), "TERM": "xterm"}
        code = run(
            argv, call=Call(out=Output(stdout=out, stderr=err, environ=environ), environ=environ)
        )
        return Answer(code=code, out=out.text(), err=err.text())

    return call


@pytest.mark.parametrize(
    ("argv", "toml", "message", "hint"),
    [
        (
            ["colob"],
            "",
            "there is no cell for 'colob'",
            "did you mean colab?",
        ),
        (
            ["zzz"],
            "",
            "there is no cell for 'zzz'",
            "known: colab, kaggle, saturn, paperspace, studiolab, jupyter",
        ),
        (
            ["local"],
            "",
            "local (local) starts its sessions by itself and needs no cell",
            "cells are for colab, kaggle, saturn, paperspace, studiolab, jupyter",
        ),
        (
            ["colab"],
            "",
            "which Google Colab cannot see",
            "say with --store how the notebook sees this one",
        ),
        (
            ["colab", "--store", "rclone:box:freegpu"],
            "",
            "a notebook cannot reach the store rclone:box:freegpu",
            "say with --store how the notebook sees it",
        ),
        (
            ["lab"],
            '[platforms.lab]\nadapter = "attended"\nkind = "jupyter"\ncard = "T44"\n',
            "platform lab: card is 'T44', which no card is called",
            "did you mean T4?",
        ),
        (
            ["lab"],
            '[platforms.lab]\nadapter = "attended"\n',
            "platform lab: 'lab' is no kind of notebook",
            "set `kind` to one of colab",
        ),
    ],
)
def test_what_cannot_be_is_said_with_the_way_out(
    real: Callable[..., Answer], argv: list[str], toml: str, message: str, hint: str
) -> None:
    """Exit code 10, one sentence and one hint; stdout stays empty."""
    answer = real("cell", *argv, toml=toml)
    assert answer.code == ConfigError.exit_code == 10
    assert answer.out == ""
    lines = answer.err.splitlines()
    assert len(lines) == 2, answer.err
    assert message in lines[0]
    assert hint in lines[1]


def test_a_real_cell_is_the_same_twice_and_another_after_new(
    real: Callable[..., Answer], tmp_path: Path
) -> None:
    """The text compiles, the notebook is valid, --new changes the key, and status knows the platform."""
    first, again = real("cell"), real("cell")
    assert first.code == 0, first.err
    assert first.out == again.out
    compile(first.out, "cell.py", "exec")
    fresh = real("cell", "--new")
    assert fresh.out != first.out
    path = tmp_path / "colab.ipynb"
    mounted = ("--store", "folder:/content/drive/MyDrive/freegpu")
    assert real("cell", "colab", *mounted, "--ipynb", str(path)).code == 0
    nbformat.validate(nbformat.read(path, as_version=4))  # type: ignore[no-untyped-call]
    platforms = real("status", "--json").envelope["data"]["platforms"]
    assert {"colab", "jupyter"} <= {entry["name"] for entry in platforms}


def test_a_home_whose_attended_platform_was_removed_still_works(
    real: Callable[..., Answer],
) -> None:
    """Its cell is remembered, and no command breaks over it."""
    toml = '[platforms.lab]\nadapter = "attended"\nkind = "jupyter"\n'
    assert real("cell", "lab", toml=toml).code == 0
    answer = real("status")
    assert answer.code == 0, answer.err

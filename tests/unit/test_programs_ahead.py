"""Programs that the tests want are made ahead or their absence is said; the tests themselves install nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers import ahead
from tests.servers.ahead import Ahead
from tests.servers.colab_cli import COLAB
from tests.servers.present import NEEDED
from tests.servers.skypilot import SKYPILOT


@pytest.fixture(params=[COLAB, SKYPILOT], ids=lambda program: program.package)
def program(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Ahead:
    """A program of which nothing is prepared yet, on a machine where no Python is new enough."""
    monkeypatch.setattr(Ahead, "place", lambda self: tmp_path / self.folder)
    monkeypatch.setattr(ahead, "candidates", lambda: iter(["/nowhere/python3"]))
    wanted: Ahead = request.param
    return wanted


def test_without_a_new_python_it_is_said_and_the_run_goes_on(
    program: Ahead, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 and one line; a test that asks for the program is skipped."""
    assert program.main() == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"so {program.wanted_by} are skipped: it needs Python 3.1" in said
    with pytest.raises(pytest.skip.Exception, match="make test"):
        program.path("python")


def test_where_every_server_is_needed_its_absence_is_an_error(
    program: Ahead, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, and a test that asks for it fails."""
    monkeypatch.setenv(NEEDED, "1")
    assert program.main() == 1
    assert NEEDED in capsys.readouterr().err
    with pytest.raises(pytest.fail.Exception):
        program.path("python")


def test_an_index_that_does_not_answer_is_said_in_one_line(
    program: Ahead,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The dead end of a test's fence stands for a machine without a network; no stamp is left."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\nmkdir -p "$3/bin"\n'
        'printf "#!/bin/sh\\necho no route to it >&2; exit 1\\n" >"$3/bin/python"\nchmod +x "$3/bin/python"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(ahead, "candidates", lambda: iter([str(python)]))
    assert program.main() == 0
    assert "cannot be installed: no route to it" in capsys.readouterr().err
    assert not program.stamp().exists()


def test_what_is_there_is_used_as_it_is(program: Ahead, tmp_path: Path) -> None:
    """Quick: nothing is run when the stamp is there. Another version has another stamp."""
    (tmp_path / program.folder).mkdir()
    (tmp_path / program.folder / f"made-{program.version}").touch()
    assert program.main() == 0
    assert program.path("python") == str(tmp_path / program.folder / "bin" / "python")
    with pytest.raises(pytest.skip.Exception):
        replace(program, version="0.0.1").path("python")


def test_skypilot_s_dependencies_are_held_to_versions_that_worked() -> None:
    """One exact version a line, in the file that pip is told to obey."""
    assert SKYPILOT.constraints is not None
    lines = SKYPILOT.constraints.read_text().splitlines()
    assert len(lines) > 50
    assert all(line.count("==") == 1 for line in lines)

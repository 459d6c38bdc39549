"""The colab program of the tests is made ahead or its absence is said; the tests themselves install nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import colab_cli
from tests.servers.present import NEEDED


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is prepared yet, and no Python is new enough."""
    monkeypatch.setattr(colab_cli, "_place", lambda: tmp_path / "colab-cli")
    monkeypatch.setattr(colab_cli, "_candidates", lambda: iter(["/nowhere/python3"]))


def test_without_a_new_python_it_is_said_and_the_run_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 0 and one line; a test that asks for the program is skipped."""
    assert colab_cli.main() == 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "skipped: it needs Python 3.12 or newer" in said
    with pytest.raises(pytest.skip.Exception, match="make test"):
        colab_cli.colab_program()


def test_where_every_server_is_needed_its_absence_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, and a test that asks for it fails."""
    monkeypatch.setenv(NEEDED, "1")
    assert colab_cli.main() == 1
    assert NEEDED in capsys.readouterr().err
    with pytest.raises(pytest.fail.Exception):
        colab_cli.colab_program()


def test_an_index_that_does_not_answer_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The dead end of a test's fence stands for a machine without a network; no stamp is left."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && exit 0\nmkdir -p "$3/bin"\n'
        'printf "#!/bin/sh\\necho no route to it >&2; exit 1\\n" >"$3/bin/python"\nchmod +x "$3/bin/python"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(colab_cli, "_candidates", lambda: iter([str(python)]))
    assert colab_cli.main() == 0
    assert "cannot be installed: no route to it" in capsys.readouterr().err
    assert not (tmp_path / "colab-cli" / f"made-{colab_cli.VERSION}").exists()


def test_what_is_there_is_used_as_it_is(tmp_path: Path) -> None:
    """Quick: nothing is run when the stamp is there."""
    (tmp_path / "colab-cli").mkdir()
    (tmp_path / "colab-cli" / f"made-{colab_cli.VERSION}").touch()
    assert colab_cli.main() == 0
    assert colab_cli.colab_program() == str(tmp_path / "colab-cli" / "bin" / "colab")

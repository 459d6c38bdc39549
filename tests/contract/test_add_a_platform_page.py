"""The platform that docs/how-to/add-a-platform.md begins with, taken from the page: it keeps the contract."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu.testing.suites import AdapterSuite

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-a-platform.md").read_text(encoding="utf-8")
#: the file itself, and its test
SHED, SUITE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def shed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """shed.py where Python finds it, as the page asks for."""
    folder = tmp_path_factory.mktemp("shed")
    (folder / "shed.py").write_text(SHED, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield folder / "shed.py"
    sys.path.remove(str(folder))
    sys.modules.pop("shed", None)


# brings TestShed, word for word as the reader will write it
exec(compile(SUITE, "docs/how-to/add-a-platform.md", "exec"))


def test_the_page_brings_a_test_class() -> None:
    """Without it nothing above would have been tried."""
    assert issubclass(globals()["TestShed"], AdapterSuite)


def test_the_first_file_is_as_clean_as_ours(shed: Path) -> None:
    """People copy it: it passes the linter and the strict type check."""
    for tool in (
        ("ruff", "check", "--config", str(ROOT / "pyproject.toml")),
        ("ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml")),
        ("mypy", "--strict", "--cache-dir", str(shed.parent / "cache")),
    ):
        pytest.importorskip(tool[0])
        done = subprocess.run(
            [sys.executable, "-m", *tool, str(shed)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_settings_on_the_page_are_settings() -> None:
    """Each TOML block can be read, and names the class of the file."""
    blocks = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    settings, entry = (tomllib.loads(block) for block in blocks)
    assert settings["platforms"]["shed"]["adapter"] == "shed:ShedAdapter"
    assert entry["project"]["entry-points"]["freegpu.adapters"] == {"shed": "shed:ShedAdapter"}


def test_every_error_and_module_that_the_page_names_exists() -> None:
    """A page that names what is gone sends people away."""
    from freegpu import errors

    for name in set(re.findall(r"`(\w+Error)\b", PAGE)):
        assert name in errors.__all__
    for path in set(re.findall(r"\]\((\.\./[^)#]+)\)", PAGE)):
        assert (ROOT / "docs" / "how-to" / path).exists(), path

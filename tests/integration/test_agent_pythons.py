"""The shipped archive runs on every Python that a session may have, and on nothing but its standard library."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import freegpu
from freegpu.agent import wire
from freegpu.orchestrator import agent_archive
from tests.integration.agent_session import AgentSession

PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """A Python of this version on this machine: by pyenv, or on the PATH."""
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in sorted(installed.glob(f"{version}.*/bin/python3"))]
    on_path = shutil.which(f"python{version}")
    for python in (*found, *([on_path] if on_path else [])):
        try:
            command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            told = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            continue
        if told.stdout.strip() == version:  # a shim of pyenv answers only for what is switched on
            return python
    return None


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_archive.build(tmp_path_factory.mktemp("archive"))[0]


def sources(archive: Path) -> dict[str, str]:
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if name.endswith(".py")]
        return {name: opened.read(name).decode() for name in names}


@pytest.mark.parametrize("version", PYTHONS)
def test_the_archive_runs_a_job_on_this_python(tmp_path: Path, archive: Path, version: str) -> None:
    """Bundle, setup, run, checkpoint, outputs, stop: every module is loaded, warnings are errors."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    session = AgentSession(tmp_path, archive, python=python)
    try:
        bundle = session.bundle({"train.sh": "echo training"})
        script = """bash train.sh
echo '{"step": 1}' > "$FREEGPU_CHECKPOINT_DIR/state.json"; echo x > "$FREEGPU_OUTPUT_DIR/x"
echo 'FREEGPU_PROGRESS {"step": 1}'; echo "{'loss': 0.5, 'epoch': 1.0}"
"""
        session.run(script, setup="true", bundle=bundle)
        session.run("echo ready; sleep 60", job="job-2")
        session.start()
        assert session.hello()["python"].startswith(version + ".")
        ended = session.event("ended", "job-1-1", seconds=30)
        assert ended["reason"] == "completed", session.said
        assert ended["outputs"]
        assert ended["progress"] == {"step": 1}
        assert session.event("checkpoint")["size"] == len('{"step": 1}\n')
        session.shows("job-2-1", b"ready")
        session.send(wire.bye_ticket())
        assert session.wait() == 0
        assert session.event("ended", "job-2-1")["reason"] == "session_expired"
        assert session.said == ""
    finally:
        session.close()


def test_the_archive_says_so_on_a_python_that_is_too_old(archive: Path) -> None:
    """One line and exit code 2, also where the syntax of the rest cannot be read."""
    for version in ("3.8", "3.7", "3.6", "2.7"):
        python = interpreter(version)
        if python is None:
            continue
        done = subprocess.run(
            [python, str(archive), "x"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "needs Python 3.9 or newer" in done.stderr
        return
    pytest.skip("no older Python on this machine")


def test_the_archive_is_small_and_the_same_whenever_it_is_built(tmp_path: Path) -> None:
    """Less than 200 kB; equal sources give equal bytes, so the digest is its name in the store."""
    first, digest = agent_archive.build(tmp_path / "a")
    time.sleep(0.01)
    second, again = agent_archive.build(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert (digest, first.name) == (again, second.name)
    assert digest == wire.sha256(first.read_bytes())
    assert first.stat().st_size < 200_000


def test_an_archive_that_is_there_is_not_built_again(tmp_path: Path) -> None:
    """submit calls it every time."""
    first, _ = agent_archive.build(tmp_path)
    before = first.stat()
    second, _ = agent_archive.build(tmp_path)
    after = second.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_every_module_with_bytecode_is_there_and_is_the_same_code(archive: Path) -> None:
    """A stale name in the list would only be slow; bytecode of another source would be wrong."""
    with zipfile.ZipFile(archive) as opened:
        compiled = {name[:-1]: opened.read(name) for name in opened.namelist() if name[-1] == "c"}
    assert set(compiled) == agent_archive._EARLY
    for name, data in compiled.items():
        assert data[:4] == importlib.util.MAGIC_NUMBER
        assert data[8:16] == importlib.util.source_hash(sources(archive)[name].encode())


CELL = ("agent/notebook.py", "agent/vault.py")


def test_the_archive_imports_the_standard_library_and_itself_only(archive: Path) -> None:
    """Sessions have what they have; nothing is installed for the agent."""
    shipped = {name[:-3].replace("/", ".").removesuffix(".__init__") for name in sources(archive)}
    for name, text in sources(archive).items():
        if name.endswith("companion.py"):
            continue  # for scripts: its callbacks import the script's own framework, on use
        # under a notebook's cell: what that notebook has, on use
        theirs = {"IPython", "google", "kaggle_secrets"} if name.endswith(CELL) else set()
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} imports relatively"
                names = [node.module or ""]
            for imported in names:
                first = imported.split(".")[0]
                known = first in sys.stdlib_module_names | theirs or imported in shipped
                assert known, f"{name} imports {imported}"


def test_the_archive_is_written_in_the_syntax_of_python_3_9(archive: Path) -> None:
    """No match, no except*, no new kind of parentheses; and annotations are never evaluated."""
    for name, text in sources(archive).items():
        tree = ast.parse(text, name, feature_version=(3, 9))
        if any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree)) and "wire" not in name:
            assert "from __future__ import annotations" in text, name


def test_the_agent_imports_no_heavy_module_before_it_needs_it(archive: Path) -> None:
    """What a start costs is what it imports: tar, zip, ssl and asyncio wait for their use."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import freegpu.agent.loop, freegpu.agent.stores.folder\n"
        "print(' '.join(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(archive)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    heavy = {"asyncio", "ssl", "urllib.request", "http.client", "email", "unittest", "ctypes"}
    assert not loaded & heavy


def test_the_archive_s_statements_stand_on_the_lines_of_the_sources(archive: Path) -> None:
    """Comments and docstrings stay at home, and a traceback's line numbers still fit."""
    package = Path(freegpu.__file__).parent.parent
    for name, text in sources(archive).items():
        if name == "__main__.py":
            continue
        whole = (package / name).read_text()
        assert _statements(text) == _statements(whole), name
        assert len(text) <= len(whole)


def _statements(text: str) -> list[tuple[int, str]]:
    """(line, kind) of every statement that is not a docstring."""
    return [
        (node.lineno, type(node).__name__)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]

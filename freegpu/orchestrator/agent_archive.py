"""The agent as one file: `freegpu-agent.pyz`, built from this very installation.

Reproducible: the same sources under the same Python give the same bytes, so its digest names it in the store
and a session that has it already does not fetch it again. Needs the package's own sources, and nothing else.

Comments and docstrings stay at home, line by line, so that a traceback's line numbers fit the sources here; but for
the companion module, which users read. Beside the modules that an agent needs for its first heartbeat lies the bytecode of this Python: on this
machine (and any with the same version) it starts in half the time; every other Python reads the sources.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import marshal
import os
import secrets
import zipfile
from collections.abc import Iterator
from pathlib import Path

import freegpu
from freegpu.errors import ConfigError

__all__ = ["build"]

#: the first moment that a zip file can express; no real date, so that builds are equal
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: on the way to the first heartbeat; all modules would make the archive three times as large
_EARLY = frozenset(
    f"freegpu/agent/{name}.py"
    for name in [
        "__init__",
        "__main__",
        "clock",
        "control",
        "disk",
        "gpu",
        "lanes",
        "limits",
        "loop",
        "mailbox",
        "outbox",
        "preflight",
        "process",
        "reasons",
        "wire",
        "stores/__init__",
        "stores/base",
        "stores/folder",
    ]
)
#: laid beside jobs as `freegpu_job`
_READ_BY_USERS = frozenset(["freegpu/agent/companion.py"])
_MAIN = """import sys
if sys.version_info < (3, 9):
    sys.stderr.write("freegpu-agent: needs Python 3.9 or newer, this is %s\\n" % sys.version.split()[0])
    sys.exit(2)
from freegpu.agent.__main__ import main
sys.exit(main())
"""


def build(target_dir: Path) -> tuple[Path, str]:
    """The archive in this folder and its SHA-256; built only if it is not there yet.

    The file is named by its sources' digest, so a newer freegpu never runs an older agent.
    ConfigError: the sources are not readable, or the folder cannot be written.
    """
    try:
        sources = _sources(Path(freegpu.__file__).parent)
        target_dir.mkdir(parents=True, exist_ok=True)
        path = target_dir / f"freegpu-agent-{_digest(sources)[:16]}.pyz"
        if not path.is_file():
            _write(path, sources)
        return path, hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        message = f"the agent's archive cannot be made in {target_dir}: {error.strerror or error}"
        raise ConfigError(message, hint="check that the folder can be written") from error


def _sources(package: Path) -> dict[str, bytes]:
    """Names in the archive and their bytes, sorted."""
    files = [package / "__init__.py", *sorted((package / "agent").rglob("*.py"))]
    named = {f"freegpu/{file.relative_to(package).as_posix()}": file.read_bytes() for file in files}
    return {"__main__.py": _MAIN.encode(), **named}


def _lean(name: str, data: bytes) -> bytes:
    """The source with its comments and docstrings blanked out; every statement stays on its line."""
    if name in _READ_BY_USERS:
        return data
    lines = data.decode().split("\n")
    texts: set[int] = set()
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            if (
                node.end_lineno != node.lineno
            ):  # a text over several lines may hold what looks like a comment
                texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            continue
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str) and first.end_lineno is not None:
            # an empty string in its place: a body may consist of its docstring alone
            lines[first.lineno - 1] = f"{' ' * first.col_offset}''"
            lines[first.lineno : first.end_lineno] = [""] * (first.end_lineno - first.lineno)
    for row, line in enumerate(lines, start=1):
        if line.lstrip().startswith("#") and row not in texts:
            lines[row - 1] = ""
    return "\n".join(lines).encode()


def _digest(sources: dict[str, bytes]) -> str:
    # how it is built counts as well: an archive of an older freegpu must not be taken for this one
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER + Path(__file__).read_bytes())
    for name, data in sources.items():
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _with_bytecode(sources: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The sources, and beside each module what this Python makes of it."""
    for name, whole in sources.items():
        data = _lean(name, whole)
        yield name, data
        if name in _EARLY:
            # docstrings stay in the sources; a traceback finds its lines there
            code = compile(data, name, "exec", dont_inherit=True, optimize=2)
            # PEP 552: by hash and not to be checked, since the source is in the same signed file
            head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
            yield f"{name}c", head + importlib.util.source_hash(data) + marshal.dumps(code)


def _write(path: Path, sources: dict[str, bytes]) -> None:
    """Write it aside and rename: two commands may build it at the same time."""
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with zipfile.ZipFile(hidden, "w") as archive:
            for name, data in _with_bytecode(sources):
                entry = zipfile.ZipInfo(name, date_time=_EPOCH)
                entry.external_attr = 0o100644 << 16
                entry.create_system = 3  # the same on every system that builds it
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
        os.replace(hidden, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            hidden.unlink()

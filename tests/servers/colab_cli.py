"""Google's own `colab` program for tests, unmodified, in an environment of its own: made once, then used as it is.

It needs Python 3.12 or newer, which freegpu itself does not. `python -m tests.servers.colab_cli` makes it ahead.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.servers.present import absent

VERSION = "0.7.5"
_WANTED = f"google-colab-cli=={VERSION}"
_NEW_ENOUGH = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 12))"


def colab_program() -> str:
    """The path of the program; made on first use. Skips the test, or fails it in CI, where it cannot be had."""
    place = Path(sys.prefix) / "colab-cli"
    program, stamp = place / "bin" / "colab", place / f"made-{VERSION}"
    if stamp.exists():
        return str(program)
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.parent / "colab-cli.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            _make(place)
            stamp.touch()
    return str(program)


def _make(place: Path) -> None:
    python = next(filter(_good, _candidates()), None)
    if python is None:
        absent("Google's colab program needs Python 3.12 or newer, and none is on this machine")
    shutil.rmtree(place, ignore_errors=True)
    made = subprocess.run([python, "-m", "venv", str(place)], capture_output=True, text=True)
    if made.returncode:
        absent(f"{python} makes no virtual environment: {made.stderr.strip()[-300:]}")
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", _WANTED]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=900)
    if installed.returncode:
        absent(f"{_WANTED} cannot be installed: {installed.stderr.strip()[-300:]}")


def _candidates() -> Iterator[str]:
    """Programs that may be a new enough Python, likely ones first."""
    yield sys.executable
    for minor in (13, 12, 14):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    for path in sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3")):
        yield str(path)
    if found := shutil.which("python3"):
        yield found


def _good(python: str) -> bool:
    """A shim may be there for a version that is not: only running it tells."""
    try:
        return subprocess.run([python, "-c", _NEW_ENOUGH], capture_output=True).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    print(colab_program())

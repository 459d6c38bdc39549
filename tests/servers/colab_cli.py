"""Google's own `colab` program for tests, unmodified, in an environment of its own: made once, then used as it is.

It needs Python 3.12 or newer, which freegpu itself does not. `make test` makes it ahead, by
`python -m tests.servers.colab_cli`: the tests themselves reach nothing from which it could be installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.servers.present import NEEDED, absent

VERSION = "0.7.5"
_WANTED = f"google-colab-cli=={VERSION}"
_NEW_ENOUGH = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 12))"


class AbsentError(Exception):
    """Why the program cannot be had on this machine; one sentence."""


def _place() -> Path:
    return Path(sys.prefix) / "colab-cli"


def _stamp() -> Path:
    """Written last: what was interrupted is made anew."""
    return _place() / f"made-{VERSION}"


def colab_program() -> str:
    """The path of the program. Skips the test, or fails it in CI, where it was not made ahead."""
    if not _stamp().exists():
        absent(
            f"Google's colab program {VERSION} is not there: `make test` installs it ahead, given Python 3.12 or newer"
        )
    return str(_place() / "bin" / "colab")


def prepare() -> None:
    """Make the environment, quick if it is there. AbsentError: it cannot be made."""
    place, stamp = _place(), _stamp()
    if stamp.exists():
        return
    with open(place.parent / "colab-cli.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            _make(place)
            stamp.touch()


def _make(place: Path) -> None:
    python = next(filter(_good, _candidates()), None)
    if python is None:
        raise AbsentError("it needs Python 3.12 or newer, and none is on this machine")
    shutil.rmtree(place, ignore_errors=True)
    made = subprocess.run([python, "-m", "venv", str(place)], capture_output=True, text=True)
    if made.returncode:
        raise AbsentError(f"{python} makes no virtual environment: {_last(made.stderr)}")
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--retries=1"]
    try:
        installed = subprocess.run([*pip, _WANTED], capture_output=True, text=True, timeout=900)
    except subprocess.TimeoutExpired:
        raise AbsentError(f"{_WANTED} was not installed within 15 minutes") from None
    if installed.returncode:
        raise AbsentError(f"{_WANTED} cannot be installed: {_last(installed.stderr)}")


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if "notice" not in line]
    return lines[-1].strip()[-300:] if lines else "it does not say why"


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


def main() -> int:
    """Prepare it and say so if that fails; 1 only where every server is needed."""
    try:
        prepare()
    except AbsentError as error:
        needed = bool(os.environ.get(NEEDED))
        what = f"and {NEEDED} is set" if needed else "so the tests of Colab are skipped"
        print(f"Google's colab program is not to be had, {what}: {error}", file=sys.stderr)
        return 1 if needed else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

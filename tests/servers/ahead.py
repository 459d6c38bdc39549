"""Other people's programs for tests, unmodified, each in an environment of its own: made once, then used as it is.

Their dependencies would clash with ours, or they want another Python. `make test` makes them ahead; the tests
themselves reach nothing from which they could be installed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers.present import NEEDED, absent


class AbsentError(Exception):
    """Why the program cannot be had on this machine; one sentence."""


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """One program: what pip installs, and which Python it wants."""

    #: its folder, and how its requirement begins
    folder: str
    package: str
    version: str
    #: as it is called in a sentence
    called: str
    #: which tests want it, in words
    wanted_by: str
    lowest: tuple[int, int]
    #: a file of pip constraints; None: whatever pip chooses
    constraints: Path | None = None

    def place(self) -> Path:
        return Path(sys.prefix) / self.folder

    def stamp(self) -> Path:
        """Written last: what was interrupted is made anew."""
        return self.place() / f"made-{self.version}"

    def path(self, program: str) -> str:
        """A program of the environment. Skips the test, or fails it in CI, where it was not made ahead."""
        if not self.stamp().exists():
            absent(
                f"{self.called} {self.version} is not there: `make test` installs it ahead, given {self._python()}"
            )
        return str(self.place() / "bin" / program)

    def prepare(self) -> None:
        """Make the environment, quick if it is there. AbsentError: it cannot be made."""
        place, stamp = self.place(), self.stamp()
        if stamp.exists():
            return
        with open(place.parent / f"{self.folder}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not stamp.exists():
                self._make(place)
                stamp.touch()

    def _make(self, place: Path) -> None:
        python = next(filter(self._good, candidates()), None)
        if python is None:
            raise AbsentError(f"it needs {self._python()}, and none is on this machine")
        shutil.rmtree(place, ignore_errors=True)
        made = subprocess.run([python, "-m", "venv", str(place)], capture_output=True, text=True)
        if made.returncode:
            raise AbsentError(f"{python} makes no virtual environment: {_last(made.stderr)}")
        wanted = f"{self.package}=={self.version}"
        limits = ["--constraint", str(self.constraints)] if self.constraints else []
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--retries=1"]
        try:
            installed = subprocess.run(
                [*pip, *limits, wanted], capture_output=True, text=True, timeout=900
            )
        except subprocess.TimeoutExpired:
            raise AbsentError(f"{wanted} was not installed within 15 minutes") from None
        if installed.returncode:
            raise AbsentError(f"{wanted} cannot be installed: {_last(installed.stderr)}")

    def _python(self) -> str:
        return f"Python {self.lowest[0]}.{self.lowest[1]} or newer"

    def _good(self, python: str) -> bool:
        """A shim may be there for a version that is not: only running it tells."""
        check = f"import sys, ensurepip, venv; sys.exit(sys.version_info < {self.lowest})"
        try:
            return subprocess.run([python, "-c", check], capture_output=True).returncode == 0
        except OSError:
            return False

    def main(self) -> int:
        """Prepare it and say so if that fails; 1 only where every server is needed."""
        try:
            self.prepare()
        except AbsentError as error:
            needed = bool(os.environ.get(NEEDED))
            what = f"and {NEEDED} is set" if needed else f"so {self.wanted_by} are skipped"
            print(f"{self.called} is not to be had, {what}: {error}", file=sys.stderr)
            return 1 if needed else 0
        return 0


def candidates() -> Iterator[str]:
    """Programs that may be a new enough Python, likely ones first."""
    yield sys.executable
    for minor in (13, 12, 14):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    for path in sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python3")):
        yield str(path)
    if found := shutil.which("python3"):
        yield found


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if "notice" not in line]
    return lines[-1].strip()[-300:] if lines else "it does not say why"

"""Google's own program `colab`, run as it is: in a HOME of its own, with stdin closed, and with our own deadlines.

Its exit codes are 0 for failures and its `--timeout` is none (google-colab-cli 0.7.5): only what it printed, its notes
and its log are read, and its log goes once it is read, since it holds bearer tokens.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from freegpu.adapters.colab.answers import Answer, Said, answers
from freegpu.adapters.hosts import write_private
from freegpu.errors import AuthError, MissingSDKError, UnreachableError

__all__ = ["LIMITS_S", "SIGN_IN", "Program", "asked", "scrub", "session"]

#: seconds that one call of the program may take, by its command
LIMITS_S: Mapping[str, float] = MappingProxyType(
    {"new": 180.0, "upload": 120.0, "exec": 120.0, "stop": 60.0, "download": 60.0}
)
_CALL_S = 45.0
#: what the program needs of our environment; nothing else of it is its affair
_PASSED = re.compile(
    r"(?i)PATH|LANG|LC_\w+|TMPDIR|TZ|(https?|all|no)_proxy|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|SSL_CERT_(FILE|DIR)"
)
_ASKS = "Enter the authorization code"
SIGN_IN = "sign in with Colab's own program: `colab sessions`"


class Program:
    """The program of one account. `who`: adapter and account, for errors."""

    def __init__(self, cli: str, token_path: Path, who: Mapping[str, Any]) -> None:
        self.cli = cli
        self.token_path = token_path
        self.who = who

    def path(self) -> str:
        """Where the program is. MissingSDKError: nowhere."""
        usual = Path.home() / ".local" / "bin" / "colab"
        for path in (self.cli, shutil.which("colab") or "", str(usual)):
            if path and os.access(Path(path).expanduser(), os.X_OK):
                return str(Path(path).expanduser())
            if path and path == self.cli:
                break
        raise MissingSDKError(
            "Google's colab program is not there" + (f" at {self.cli}" if self.cli else ""),
            hint="install it with Python 3.12 or newer: `uv tool install google-colab-cli` or `pipx install google-colab-cli`",
            **self.who,
        )

    def run(
        self,
        place: Path,
        words: Sequence[str],
        locks: Sequence[int | None] = (),
        *,
        until: str = "",
    ) -> Said:
        """Run the program and take what it printed; it is killed when its time is up or when it has said `until`.

        AuthError: it asks for a sign-in. UnreachableError: it took too long.
        """
        argv = [self.path(), "--auth=oauth2", *words]
        config = place / ".config" / "colab-cli"
        config.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = config / "token.json"
        if (
            not link.is_symlink()
        ):  # the program writes a new token through it into the person's own file
            with contextlib.suppress(FileExistsError):
                link.symlink_to(self.token_path.absolute())
        write_private(config / "settings.json", b'{"enable_update_check": false}')
        around = {key: value for key, value in os.environ.items() if _PASSED.fullmatch(key)}
        # one POST a start: whether to ask again is decided elsewhere, and never blindly
        around |= {"HOME": str(place), "COLAB_CLI_ASSIGN_RETRIES": "0", "PYTHONUNBUFFERED": "1"}
        limit = LIMITS_S.get(words[0], _CALL_S)
        try:
            # without names: nothing of them stays when we are killed, and calls beside each other do not meet
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
                try:
                    child = subprocess.Popen(
                        argv,
                        cwd=place,
                        env=around,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        pass_fds=[lock for lock in locks if lock is not None],
                        start_new_session=True,
                    )
                except OSError as error:
                    raise MissingSDKError(
                        f"{argv[0]} cannot be run: {error.strerror or error}", **self.who
                    ) from error
                over = not _until_done(child, limit, out.fileno(), until)
                said = Said(out=_read(out.fileno()), err=_read(err.fileno()))
        finally:
            if words[0] != "new":
                scrub(place)
        if _ASKS in said.out:
            raise AuthError(
                "the colab program is not signed in, or its sign-in has ended",
                hint=SIGN_IN,
                **self.who,
            )
        if over:
            raise UnreachableError(f"colab {words[0]} did not end within {limit:g} s", **self.who)
        return said


def _until_done(child: subprocess.Popen[bytes], limit: float, out: int, until: str) -> bool:
    """False: its time was up. Whatever happens, nothing of it is left."""
    end = time.monotonic() + limit
    try:
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.1 if until else max(0.1, end - time.monotonic()))
                return True
            if until and any(line.startswith(until) for line in _read(out).split("\n")[:-1]):
                return True
        return False
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _read(descriptor: int) -> str:
    """What it has printed so far; the program goes on writing behind."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")


def session(place: Path, key: str) -> dict[str, Any]:
    """What the program itself keeps of this session; {} if it has forgotten it."""
    try:
        told = json.loads((place / ".config" / "colab-cli" / "sessions.json").read_bytes())[key]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}


def scrub(place: Path) -> None:
    """Remove what the program writes down beside what it needs: its log holds bearer tokens, its history all code."""
    config = place / ".config" / "colab-cli"
    (config / "colab.log").unlink(missing_ok=True)
    shutil.rmtree(config / "history", ignore_errors=True)
    for left in ("launch.zip", "cell.py"):
        (place / left).unlink(missing_ok=True)


def asked(place: Path) -> list[Answer]:
    """The requests of the program's last calls in this folder, from its log: it shows no body that it does not understand."""
    try:
        text = (place / ".config" / "colab-cli" / "colab.log").read_text(errors="replace")
    except OSError:
        return []
    return answers(text)

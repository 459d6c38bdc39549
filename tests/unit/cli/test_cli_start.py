"""What it costs to start: a command imports what it needs and nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: libraries that take tens to hundreds of milliseconds to import
HEAVY = {
    "apscheduler",
    "asyncio",
    "paramiko",
    "pydantic",
    "rich",
    "sqlalchemy",
    "sqlmodel",
    "yaml",
}
LIMIT_BYTES = 35 * 1024 * 1024


def modules_after(code: str, home: Path) -> set[str]:
    """The top-level modules that a fresh Python holds after the code, and freegpu's own in full."""
    program = (
        "import sys, json\n"
        f"{code}\n"
        "names = {n if n.startswith('freegpu') else n.split('.')[0] for n in sys.modules}\n"
        "sys.stderr.write('MODULES' + json.dumps(sorted(names)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FREEGPU_HOME": str(home)},
        timeout=60,
    )
    return set(json.loads(done.stderr.partition("MODULES")[2]))


@pytest.mark.parametrize(
    "argv", [["--help"], ["version"], ["status", "--help"], ["demo", "--help"], ["nothing"]]
)
def test_help_imports_nothing_but_click(argv: list[str], tmp_path: Path) -> None:
    """`freegpu --help` and shell completion are typed often; they need no ledger and no terminal library."""
    loaded = modules_after(
        f"from freegpu.cli.app import run\nassert run({argv!r}) in (0, 2)", tmp_path
    )
    assert not loaded & HEAVY
    assert not {n for n in loaded if n.startswith(("freegpu.orchestrator", "freegpu.adapters"))}
    assert "freegpu.cli.app" in loaded


def test_importing_every_module_of_the_command_line_imports_nothing_heavy(tmp_path: Path) -> None:
    """Whatever a command needs it imports when it runs."""
    loaded = modules_after(
        "import importlib, pkgutil, freegpu.cli\n"
        "for found in pkgutil.iter_modules(freegpu.cli.__path__):\n"
        "    importlib.import_module('freegpu.cli.' + found.name)",
        tmp_path,
    )
    assert not loaded & HEAVY
    assert "freegpu.cli.submit" in loaded


def test_help_takes_less_than_35_megabytes(tmp_path: Path) -> None:
    """Peak memory of the whole process, measured from a small one: a child begins with its parent's figure."""
    program = (
        "import os, sys\n"
        "pid = os.posix_spawn(sys.executable, [sys.executable, '-m', 'freegpu', '--help'], os.environ)\n"
        "_, status, usage = os.wait4(pid, 0)\n"
        "sys.stderr.write(f'{status} {usage.ru_maxrss}')"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    status, peak = map(int, done.stderr.split())
    assert status == 0
    assert 0 < peak * (1 if sys.platform == "darwin" else 1024) < LIMIT_BYTES


def test_the_module_and_the_command_are_the_same_program(tmp_path: Path) -> None:
    """`python -m freegpu` for those whose PATH does not have the command."""
    done = subprocess.run(
        [sys.executable, "-m", "freegpu", "--json", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 2


def test_a_reader_that_stops_reading_ends_the_program_silently(tmp_path: Path) -> None:
    """`freegpu schema | head -0` in a real pipe: no "Exception ignored", exit code 141."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "freegpu", "schema"],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_streams_that_are_closed_from_the_start_are_no_matter(tmp_path: Path) -> None:
    """`freegpu version >&- 2>&-` from cron jobs and daemons."""
    done = subprocess.run(
        ["sh", "-c", '"$0" -m freegpu version >&- 2>&-', sys.executable], check=False, timeout=60
    )
    assert done.returncode == 0


def test_a_shell_can_ask_for_completions(tmp_path: Path) -> None:
    """Click's own completion, under the name that the reference page gives."""
    done = subprocess.run(
        [sys.executable, "-m", "freegpu"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "_FREEGPU_COMPLETE": "bash_complete",
            "COMP_WORDS": "freegpu in",
            "COMP_CWORD": "1",
        },
        timeout=60,
    )
    assert done.stdout.split() == ["plain,init", "plain,interrupt"]

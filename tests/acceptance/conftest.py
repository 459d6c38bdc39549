"""A user at a terminal: the real command line, a home of their own, real agents, and nobody left over afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

#: raises in any Python process of the test that talks to another machine, and says so in a file
FENCE = """
import os, socket, sys
_connect = socket.socket.connect
def _fenced(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        with open(os.environ["FENCE_LOG"], "a") as file:
            file.write(f"{sys.argv} {address}\\n")
        raise OSError("no test talks to another machine")
    return _connect(self, address)
socket.socket.connect = _fenced
"""

#: a deterministic job: the result depends on nothing but `total`, however often it was stopped. At step HOLD it waits
#: for the file GATE, so that a test can disturb it at its leisure, however slow the machine is.
COUNTER = """
import json, os, signal, sys, time
from pathlib import Path

total, pause = int(os.environ.get("TOTAL", "30")), float(os.environ.get("PAUSE", "0.1"))
hold, gate = int(os.environ.get("HOLD", "-1")), Path(os.environ.get("GATE", "/"))
ckpt, out = Path(os.environ["FREEGPU_CHECKPOINT_DIR"]), Path(os.environ["FREEGPU_OUTPUT_DIR"])
ckpt.mkdir(exist_ok=True)
out.mkdir(exist_ok=True)
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
state = {"step": 0, "hash": 7}
resume = os.environ["FREEGPU_RESUME"]
if (ckpt / "state.json").exists():
    state = json.loads((ckpt / "state.json").read_text())
print(f"begin at {state['step']} resume={resume} attempt={os.environ['FREEGPU_ATTEMPT']}", flush=True)

def save():
    (ckpt / "state.json.tmp").write_text(json.dumps(state))
    os.replace(ckpt / "state.json.tmp", ckpt / "state.json")

def asked():
    if stop:
        print("asked to stop", flush=True)
        sys.exit(75)

while state["step"] < total:
    time.sleep(pause)
    while state["step"] == hold and not gate.exists():
        time.sleep(0.02)
        asked()
    state["step"] += 1
    state["hash"] = state["hash"] * 31 % 1000003
    print("FREEGPU_PROGRESS " + json.dumps({"step": state["step"], "total": total}), flush=True)
    save()
    asked()
(out / "result.json").write_text(json.dumps(state))
print("finished", flush=True)
"""

SETTINGS = "poll_s = 0.2\nbeat_s = 0.4\nidle_s = 15\nmargin_s = 1\ntick_s = 0.3\n"


def counter_result(total: int) -> dict[str, int]:
    """What an undisturbed run of COUNTER leaves behind."""
    value = 7
    for _ in range(total):
        value = value * 31 % 1000003
    return {"step": total, "hash": value}


class Ran:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class User:
    """Types commands. `home` is FREEGPU_HOME, `desk` the folder where they sit."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.desk = folder / "desk"
        self.desk.mkdir(parents=True)
        fence = folder / "fence"
        fence.mkdir()
        (fence / "sitecustomize.py").write_text(FENCE)
        self.fence_log = folder / "fence.log"
        self.env = {
            **os.environ,
            "FREEGPU_HOME": str(self.home),
            "PYTHONPATH": str(fence),
            "FENCE_LOG": str(self.fence_log),
            "COLUMNS": "200",
        }
        self.running: list[subprocess.Popen[str]] = []

    def settings(
        self, platforms: Mapping[str, Mapping[str, Any]] | None = None, **more: Any
    ) -> None:
        """Quick settings, and loopback platforms instead of `local` if any are given."""
        self.home.mkdir(exist_ok=True)
        quick = [line for line in SETTINGS.splitlines(True) if line.split()[0] not in more]
        lines = [*quick, *(f"{name} = {value}\n" for name, value in more.items())]
        if platforms:
            lines.append("[platforms.local]\nenabled = false\n")
        for name, options in (platforms or {}).items():
            lines.append(
                f'[platforms.{name}]\nadapter = "freegpu.testing.loopback:LoopbackAdapter"\n'
            )
            lines += [f"{key} = {_toml(value)}\n" for key, value in options.items()]
        (self.home / "freegpu.toml").write_text("".join(lines))

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "freegpu", *words]

    def types(self, *words: str, timeout: float = 60, env: Mapping[str, str] | None = None) -> Ran:
        """Run a command to its end."""
        done = subprocess.run(
            self.argv(*words),
            cwd=self.desk,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr + done.stdout, done.stderr + done.stdout
        return Ran(done.returncode, done.stdout, done.stderr)

    def ok(self, *words: str, timeout: float = 60) -> Ran:
        ran = self.types(*words, timeout=timeout)
        assert ran.code == 0, ran
        return ran

    def starts(self, *words: str) -> subprocess.Popen[str]:
        """Start a command and let it run."""
        process = subprocess.Popen(
            self.argv(*words),
            cwd=self.desk,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def job_file(self, text: str, name: str = "job.yaml") -> str:
        (self.desk / name).write_text(textwrap.dedent(text))
        return name

    @property
    def gate(self) -> Path:
        return self.desk.parent / "gate"

    def go(self) -> None:
        """Let the counter that holds go on."""
        self.gate.touch()

    def counter(
        self,
        total: int = 30,
        pause: float = 0.1,
        name: str = "count",
        extra: str = "",
        hold: int = -1,
    ) -> str:
        """A job file for COUNTER; with `hold` it waits at that step until `go`."""
        (self.desk / "counter.py").write_text(COUNTER)
        return self.job_file(
            f"""
            name: {name}
            workdir: .
            run: exec {sys.executable} counter.py
            envs: {{TOTAL: {total}, PAUSE: {pause}, HOLD: {hold}, GATE: {self.gate}}}
            freegpu:
              checkpoint: {{path: ckpt, every: 1s, grace: 3s}}
              {extra}
            """,
            f"{name}.yaml",
        )

    def job(self, name: str) -> Any:
        """The job's view by `show --json`."""
        return self.ok("show", name, "--json").json["data"]

    def until(self, what: Callable[[], Any], seconds: float = 60) -> Any:
        """Look until it is true. Every look is a command, so it also ticks."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = what()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds} s: {self.types('status')!r}")

    def until_job(self, name: str, state: str, seconds: float = 90) -> Any:
        def there() -> Any:
            self.types("tick")
            detail = self.job(name)
            final = detail["job"]["state"] in ("succeeded", "failed", "cancelled")
            assert not final or detail["job"]["state"] == state, detail["job"]
            return detail if detail["job"]["state"] == state else None

        return self.until(there, seconds)

    def processes(self, word: str = "") -> list[int]:
        """Processes of this user's home (agents, watchers, jobs), by their arguments or environment."""
        found = []
        mark = str(self.home.parent).encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes()
                there = mark in words or mark in (folder / "environ").read_bytes()
                if there and word.encode() in words and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
        return found

    def agent(self) -> int:
        """The pid of the one agent."""
        (pid,) = self.processes("freegpu-agent")
        return pid

    def leave(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for _ in range(3):
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        talked = self.fence_log.read_text() if self.fence_log.exists() else ""
        assert not talked, f"somebody tried to leave this machine: {talked}"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    somebody = User(tmp_path)
    yield somebody
    somebody.leave()


@pytest.fixture
def expected() -> Callable[[int], dict[str, int]]:
    return counter_result


@pytest.fixture(scope="session")
def make_user() -> type[User]:
    """For tests that share a user, because making one takes seconds. They call `leave` themselves."""
    return User

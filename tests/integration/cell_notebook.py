"""A real Jupyter kernel that runs a cell, a stand-in for google.colab, and a home whose `up` hands out work."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from freegpu import config
from freegpu.orchestrator.model import Job
from freegpu.orchestrator.operations import Workspace
from freegpu.orchestrator.views import CellMade
from tests.integration.agent_session import until

#: fast enough for a test, slow enough for two shared cores
SETTINGS = "idle_s = 3\npoll_s = 0.2\nbeat_s = 0.3\ntick_s = 0.3\n"
LOCAL_OFF = "[platforms.local]\nenabled = false\n"

#: what of google.colab a cell meets: names, exceptions and effects as in googlecolab/colabtools@3c07d77
_STAND_IN = {
    "__init__": "from google.colab import auth, drive, runtime, userdata\n",
    "auth": """
import json, os
def authenticate_user(clear_output=True):
    import google.oauth2.credentials
    with open(os.environ["STAND_IN"] + "/authenticated", "w"): pass
    person = os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = os.environ["STAND_IN"] + "/adc.json"
    # google-auth sends a person's refresh token to this address alone, whatever the file says
    with open(person) as file: google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT = json.load(file)["token_uri"]
""",
    "drive": """
import os
def mount(mountpoint, force_remount=False, timeout_ms=120000, readonly=False):
    with open(os.environ["STAND_IN"] + "/mounted", "w") as file: file.write(mountpoint)
""",
    "runtime": """
import os
def unassign():
    with open(os.environ["STAND_IN"] + "/unassigned", "a") as file: file.write("once\\n")
""",
    "userdata": """
import json, os
class SecretNotFoundError(Exception):
    def __init__(self, key): super().__init__(f"Secret {key} does not exist.")
class NotebookAccessError(Exception):
    def __init__(self, key): super().__init__(f"Notebook does not have access to secret {key}")
class TimeoutException(Exception):
    def __init__(self, key): super().__init__(f"Requesting secret {key} timed out. Secrets can only be fetched when running from the Colab UI.")
def get(key):
    with open(os.environ["STAND_IN"] + "/secrets.json") as file: told = json.load(file)
    if key not in told: raise SecretNotFoundError(key)
    if told[key] == "no access": raise NotebookAccessError(key)
    if told[key] == "no page": raise TimeoutException(key)
    return told[key]
""",
}


def stand_in(folder: Path, secrets: Mapping[str, str] | None = None) -> dict[str, str]:
    """Lay google.colab into this folder; the environment that a kernel needs to find it."""
    package = (
        folder / "packages" / "google" / "colab"
    )  # google itself is a namespace, as google-auth needs it
    package.mkdir(parents=True, exist_ok=True)
    for name, text in _STAND_IN.items():
        (package / f"{name}.py").write_text(text)
    (folder / "secrets.json").write_text(json.dumps(dict(secrets or {})))
    return {"PYTHONPATH": str(folder / "packages"), "STAND_IN": str(folder)}


@dataclass
class Notebook:
    """Cells that a real kernel runs in the background of the test."""

    folder: Path
    texts: Sequence[str]
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: every picture that a person saw, in order: text/plain and text/html
        self.pictures: list[Mapping[str, str]] = []
        self.said = ""
        self.document: Any = nbformat.from_dict(  # type: ignore[no-untyped-call]
            {
                "nbformat": 4,
                "nbformat_minor": 5,
                "metadata": {},
                "cells": [_code(number, text) for number, text in enumerate(self.texts)],
            }
        )
        self._kernel: Any = None
        self._loop: Any = None
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._execute, daemon=True)

    def start(self) -> Notebook:
        specs = self.folder / "kernels" / "tested"
        specs.mkdir(parents=True)
        mine = ("FREEGPU_", "AWS_")  # what our side has in its environment is not in a notebook's
        around = {n: v for n, v in os.environ.items() if not n.startswith(mine)}
        (specs / "kernel.json").write_text(
            json.dumps(
                {
                    "argv": [self.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
                    "display_name": "tested",
                    "language": "python",
                    "env": {
                        "IPYTHONDIR": str(self.folder / "ipython"),
                        "TMPDIR": str(self.folder),
                        **self.env,
                    },
                }
            )
        )
        self._around = around
        self._thread.start()
        return self

    def _execute(self) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # those of the Jupyter libraries, not ours
                asyncio.run(self._run())
        except BaseException as error:
            self._failed = error

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        manager = KernelSpecManager(
            kernel_dirs=[str(self.folder / "kernels")], ensure_native_kernel=False
        )
        self._kernel = AsyncKernelManager(kernel_name="tested", kernel_spec_manager=manager)
        client = _Client(self.document, km=self._kernel, allow_errors=True, timeout=120)
        client.notebook = self
        await client.async_execute(cleanup_kc=True, env=self._around)

    def interrupt(self) -> None:
        """The stop button."""
        asyncio.run_coroutine_threadsafe(self._kernel.interrupt_kernel(), self._loop).result(10)

    def kill(self) -> None:
        """Restart runtime: nobody is asked."""
        os.kill(self._kernel.provisioner.pid, 9)

    def seen(self, message: Mapping[str, Any]) -> None:
        """What the kernel sends to the page."""
        content = message["content"]
        if message["msg_type"] in ("display_data", "update_display_data"):
            self.pictures.append(content["data"])
        elif message["msg_type"] == "stream":
            self.said += content["text"]

    def shows(self, text: str, seconds: float = 30) -> None:
        """Wait until a person has seen this."""
        until(lambda: text in self.everything, seconds, f"{text!r} is not in:\n{self.everything}")

    @property
    def everything(self) -> str:
        """All that was ever shown or said."""
        return "\n".join([self.said, *(p["text/plain"] for p in self.pictures)])

    @property
    def errors(self) -> list[str]:
        """What stands under cells that failed."""
        return [
            "\n".join(output["traceback"])
            for cell in self.document.cells
            for output in cell.outputs
            if output["output_type"] == "error"
        ]

    def wait(self, seconds: float = 60) -> Notebook:
        """Until the last cell has run. AssertionError: it has not."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"still running; shown:\n{self.everything}"
        if self._failed is not None:
            raise self._failed
        nbformat.validate(self.document)
        return self

    def saved(self) -> str:
        """The notebook as Jupyter would save it, outputs and all."""
        return json.dumps(self.document)


def _code(number: int, text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": f"cell-{number}",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": text,
    }


class _Client(NotebookClient):
    notebook: Notebook

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        self.notebook.seen(msg)
        return super().process_message(msg, cell, cell_index)


class Home:
    """A home of its own, and a store folder beside it."""

    def __init__(self, folder: Path, extra: str = LOCAL_OFF, *, url: str = "") -> None:
        """`url`: a store behind an API, instead of the folder."""
        self.folder = folder
        self.home = folder / "home"
        self.store = folder / "store"
        self.url = url
        self.home.mkdir(parents=True)
        self.store.mkdir()
        self.configure(extra)

    def configure(self, extra: str) -> None:
        """Write freegpu.toml anew."""
        text = f'store = "{self.url or f"folder:{self.store}"}"\n{SETTINGS}{extra}'
        (self.home / "freegpu.toml").write_text(text)

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        with Workspace.open(config.load({}, home=self.home)) as opened:
            yield opened

    def cell(self, platform: str, **given: Any) -> CellMade:
        """`freegpu cell`."""
        with self.workspace() as opened:
            return opened.cell(platform, store=self.url or f"folder:{self.store}", **given)

    def submit(self, name: str, run: str, platforms: str, more: str = "") -> str:
        """A job with this command; its id."""
        body = "\n".join(f"  {line}" for line in run.splitlines())
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"name: {name}\nrun: |\n{body}\nfreegpu:\n  platforms: [{platforms}]\n{more}"
        )
        with self.workspace() as opened:
            return opened.submit(path, environ={}).jobs[0].id

    def job(self, id: str) -> Job:
        with self.workspace() as opened:
            return opened.ledger.job(id)

    def attempts(self, job: str) -> list[tuple[str, str]]:
        """(platform, why it ended) of each."""
        with self.workspace() as opened:
            return [(a.platform, str(a.reason or "")) for a in opened.ledger.attempts(job=job)]

    def pull(self, job: str) -> Path:
        """Its outputs, brought home."""
        into = self.folder / f"pulled-{job}"
        with self.workspace() as opened:
            opened.pull(job, into)
        return into

    @contextmanager
    def up(self) -> Iterator[None]:
        """`freegpu up`, from its first word on, beside what the test does."""
        path = self.folder / f"up-{time.monotonic_ns()}.log"
        with open(path, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "freegpu", "up"],
                env={**os.environ, "FREEGPU_HOME": str(self.home)},
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: b"moving jobs on" in path.read_bytes(), 30)
            yield
        finally:
            process.terminate()
            process.wait(20)

    def written(self) -> bytes:
        """Every byte in the store, names included."""
        with self.workspace() as opened:
            store = opened.store
            parts = ("agent", "attempts", "blobs", "cells", "jobs", "sessions")
            keys = [key for part in parts for key in store.list(part)]
            return b"\n".join(key.encode() + b"\n" + store.get(key) for key in keys)

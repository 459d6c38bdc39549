"""A session with a real agent process, driven by hand: the test is the orchestrator."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from freegpu.agent import wire
from freegpu.agent.stores.folder import FolderStore

HOME = "home-of-the-tests"
CPU = wire.Slot(index=0, card="CPU")


def until(what: Callable[[], Any], seconds: float = 15.0, why: str = "") -> Any:
    """The first truthy answer; AssertionError if there is none in time."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end, why or "it did not happen in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


class AgentSession:
    """A store, a mailbox and an agent started from the built archive."""

    def __init__(self, folder: Path, archive: Path, *, python: str = sys.executable) -> None:
        self.folder = folder
        self.archive = archive
        self.python = python
        self.root = folder / "store"
        self.root.mkdir()
        self.store = FolderStore(self.root, sync=False)
        self.store.put("freegpu.json", json.dumps({"format": 1, "home": HOME}).encode())
        self.session = "session-1"
        self.key = wire.session_key(b"k" * 32, self.session)
        self.work = folder / "work"
        self.tickets = 0
        self.counter = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.processes: list[subprocess.Popen[bytes]] = []

    # --- the agent ---------------------------------------------------------------------------------

    def start(self, **profile: Any) -> subprocess.Popen[bytes]:
        """Start the agent with a profile that is impatient."""
        known = wire.Profile(
            session=self.session,
            home=HOME,
            platform="tests",
            key=self.key.hex(),
            store=f"folder:{self.root}",
            work=str(self.work),
            slots=(CPU,),
            idle_s=30.0,
            poll_s=0.05,
            beat_s=0.2,
            margin_s=2.0,
        )
        path = self.folder / "profile.json"
        path.write_text(json.dumps(replace(known, **profile).to_json()))
        env = {name: value for name, value in os.environ.items() if not name.startswith("FREEGPU_")}
        env["FREEGPU_HOME"] = "/an/internal/of/ours"
        with open(self.folder / "agent.err", "ab") as words:
            self.process = subprocess.Popen(
                [self.python, "-I", "-W", "error", str(self.archive), str(path)],
                env=env,
                stderr=words,
            )
        self.processes.append(self.process)
        return self.process

    @property
    def said(self) -> str:
        """What the agent wrote to its own standard error."""
        return (self.folder / "agent.err").read_text()

    def wait(self, seconds: float = 20.0) -> int:
        """The agent's exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    @property
    def exit(self) -> dict[str, Any]:
        """exit.json"""
        found: dict[str, Any] = json.loads((self.work / "exit.json").read_text())
        return found

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    # --- tickets -----------------------------------------------------------------------------------

    def send(self, ticket: dict[str, Any], *, key: bytes | None = None) -> int:
        """Lay a ticket into the inbox; returns its number."""
        self.tickets += 1
        data = wire.pack_ticket(self.session, self.tickets, ticket, key or self.key)
        self.store.put(wire.inbox_key(self.session, self.tickets), data)
        return self.tickets

    def run(self, script: str, **fields: Any) -> wire.Run:
        """Send a run ticket for this script."""
        ticket = self.ticket(script, **fields)
        self.send(ticket.to_json())
        return ticket

    def ticket(self, script: str, **fields: Any) -> wire.Run:
        defaults: dict[str, Any] = {
            "job": "job-1",
            "number": 1,
            "epoch": 1,
            "slot": 0,
            "name": "a job",
            "grace_s": 2.0,
            "checkpoint_every_s": 0.2,
        }
        merged = {**defaults, **fields}
        merged.setdefault("attempt", f"{merged['job']}-{merged['epoch']}")
        return wire.Run(run=script, **merged)

    def bundle(self, files: dict[str, str]) -> str:
        """A code bundle in the store; returns its digest."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(text.encode()), 0o755
                tar.addfile(info, io.BytesIO(text.encode()))
        data = gzip.compress(raw.getvalue(), mtime=0)
        digest = wire.sha256(data)
        self.store.put(wire.input_key(digest), data)
        return digest

    def answer(self, ack: int, confirmed: dict[str, int] | None = None) -> None:
        """Write the orchestrator's heartbeat."""
        self.counter += 1
        body = {"counter": self.counter, "outbox_ack": ack, "confirmed": confirmed or {}}
        data = wire.pack({**body, "session": self.session}, self.key)
        self.store.put(wire.orchestrator_beat_key(self.session), data)

    # --- what comes back ---------------------------------------------------------------------------

    def events(self) -> list[dict[str, Any]]:
        """All events so far; each must be whole, signed and numbered without a gap."""
        found = []
        for place, key in enumerate(self.store.list(wire.outbox_prefix(self.session)), start=1):
            event = wire.unpack(self.store.get(key), self.key)
            assert (event["seq"], event["session"]) == (place, self.session)
            found.append(event)
        return found

    def event(self, kind: str, attempt: str = "", seconds: float = 15.0) -> dict[str, Any]:
        """The first event of this kind (of this attempt), waited for."""

        def look() -> dict[str, Any] | None:
            for event in self.events():
                if event["kind"] == kind and attempt in ("", event.get("attempt")):
                    return event
            return None

        found: dict[str, Any] = until(look, seconds, f"no {kind} event")
        return found

    def beat(self) -> dict[str, Any]:
        """The agent's heartbeat, waited for."""

        def look() -> dict[str, Any] | None:
            try:
                return wire.unpack(self.store.get(wire.agent_beat_key(self.session)), self.key)
            except Exception:
                return None

        found: dict[str, Any] = until(look)
        return found

    def phase(self) -> str:
        """What the first busy slot does, by the heartbeat; "" if none is busy."""
        slots = self.beat()["slots"]
        return str(slots[0]["phase"]) if slots else ""

    def hello(self) -> dict[str, Any]:
        """The agent's hello, waited for."""
        key = wire.hello_key(self.session)
        until(lambda: self.store.stat(key))
        return wire.unpack(self.store.get(key), self.key)

    def log(self, attempt: str) -> bytes:
        """All output in the store."""
        keys = self.store.list(wire.log_prefix(attempt))
        assert keys == [wire.log_key(attempt, seq) for seq in range(1, len(keys) + 1)]
        return b"".join(wire.unpack_log(self.store.get(key)) for key in keys)

    def shows(self, attempt: str, text: bytes, seconds: float = 15.0) -> None:
        """Wait until the output in the store has this."""
        until(lambda: text in self.log(attempt), seconds, f"{text!r} was not shown")

    def manifest(self, key: str, digest: str) -> wire.Manifest:
        return wire.Manifest.from_bytes(self.store.get(key), digest)

    def contents(self, manifest: wire.Manifest) -> dict[str, bytes]:
        """The files of a manifest, every byte verified."""
        found = {}
        for file in manifest.files:
            blobs = [self.store.get(part.key) for part in file.parts]
            assert [wire.sha256(blob) for blob in blobs] == [part.sha256 for part in file.parts]
            pieces = [b[p.at :][: p.bytes] for b, p in zip(blobs, file.parts, strict=True)]
            found[file.path] = b"".join(pieces)
            assert wire.sha256(found[file.path]) == file.sha256
        return found

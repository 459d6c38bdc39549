"""This machine as a platform: its NVIDIA cards, or its processor when there are none.

A session is an agent process that outlives the command that started it. No quota, no limit, one session a
model of card. What a card can do stands in the card table; how a process lives on is `hosts`' affair.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from freegpu import cards
from freegpu.adapters.base import (
    Capabilities,
    Collected,
    Launch,
    LogPage,
    Observation,
    Offer,
    PlatformState,
    QuotaReport,
    Request,
    SessionRef,
    Window,
    WindowKind,
)
from freegpu.adapters.hosts import ProcessHost
from freegpu.adapters.options import refuse_unknown
from freegpu.agent import gpu
from freegpu.clock import Clock
from freegpu.errors import ConfigError, RejectedError
from freegpu.jobs.lifecycle import EndReason

#: an agent says hello within about this many seconds here
START_DELAY_S = 0.5


class LocalAdapter:
    """See the module. Option `nvidia_smi`: which program to ask for cards."""

    def __init__(self, name: str, *, home: Path, nvidia_smi: str = "nvidia-smi") -> None:
        self.name = name
        self.home = home
        self.nvidia_smi = nvidia_smi
        self.host = ProcessHost(home / "sessions")
        self._secrets: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml. ConfigError: an option it does not know."""
        refuse_unknown(name, options, ("nvidia_smi",))
        program = options.get("nvidia_smi", "nvidia-smi")
        if not isinstance(program, str) or not program:
            raise ConfigError(
                f"platform {name}: nvidia_smi is {program!r}, not the path of a program"
            )
        return cls(name, home=home, nvidia_smi=program)

    @property
    def account(self) -> str:
        """The user of this machine."""
        try:
            return f"{getpass.getuser()}@{platform.node() or 'localhost'}"
        except (KeyError, OSError):  # a container whose user has no name
            return f"{os.getuid()}@{platform.node() or 'localhost'}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            stop=True, live_logs=True, max_concurrent=max(1, len(self._groups)), here=True
        )

    @property
    def windows(self) -> Mapping[str, Window]:
        return {"": Window(kind=WindowKind.NONE, source="one's own machine")}

    @functools.cached_property
    def _groups(self) -> dict[str, list[gpu.Card]]:
        """The cards by model; cards do not change while a command runs."""
        groups: dict[str, list[gpu.Card]] = {}
        for card in gpu.detect(self._run):
            known = cards.find(card.name)
            groups.setdefault(known.name if known else card.name, []).append(card)
        return groups

    def _run(self, command: Sequence[str]) -> str:
        return gpu.run((self.nvidia_smi, *command[1:]))

    def offers(self) -> Sequence[Offer]:
        common: dict[str, Any] = {
            "platform": self.name,
            "account": self.account,
            "memory_gb": _memory_gb(),
            "cpus": float(os.cpu_count() or 1),
            "disk_gb": _disk_gb(self.home),
            "start_delay_s": START_DELAY_S,
        }
        if not self._groups:
            return [Offer(card="CPU", count=1, **common)]
        # several models: the number of sessions alone does not tell which of them is taken
        taken = self._devices_in_use() if len(self._groups) > 1 else None
        return [
            Offer(
                card=model,
                count=len(group),
                vram_gb=_vram_gb(model, group),
                devices=tuple(str(card.index) for card in group),
                available=None
                if taken is None
                else int(not any(str(card.index) in taken for card in group)),
                **common,
            )
            for model, group in self._groups.items()
        ]

    def _devices_in_use(self) -> set[str]:
        """Devices of this machine that a living session of ours holds."""
        taken: set[str] = set()
        for key in self.host.keys():  # noqa: SIM118 - a method of ours, not a dict
            if not self.host.alive(key):
                continue
            try:
                profile = json.loads((self.host.place(key) / "profile.json").read_bytes())
                if profile["platform"] == self.name:
                    taken.update(gpu for slot in profile["slots"] for gpu in slot["gpus"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # another platform's session, with a profile of its own kind
        return taken

    def quota(self) -> Sequence[QuotaReport] | None:
        return None

    def render(self, launch: Launch, /) -> Request:
        place = self.host.place(launch.key)
        argv = [sys.executable, "-I", launch.agent_path, str(place / "profile.json")]
        return Request(key=launch.key, payload={"argv": argv, "profile": launch.profile.to_json()})

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        self._secrets = secrets

    def start(self, request: Request, /) -> SessionRef:
        files = {"profile.json": json.dumps(request.payload["profile"]).encode()}
        argv, secrets = list(request.payload["argv"]), dict(self._secrets())
        if secrets:
            # a private file that the agent deletes as it reads it: arguments and environments are seen by others
            files["access.json"] = json.dumps({"secrets": secrets}).encode()
            argv.append(f"--access={self.host.place(request.key) / 'access.json'}")
        try:
            self.host.start(request.key, argv, files)
        except OSError as error:
            raise RejectedError(
                f"an agent cannot be started here: {error.strerror or error}",
                hint=f"check the space and permissions of {self.host.folder}",
                adapter=self.name,
                account=self.account,
            ) from error
        return SessionRef(request.key)

    def find(self, key: str, /) -> SessionRef | None:
        return SessionRef(key) if self.host.started(key) else None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        return {ref: self._observe(ref) for ref in refs}

    def _observe(self, ref: SessionRef) -> Observation:
        if self.host.alive(ref):
            return Observation(state=PlatformState.RUNNING, raw="running")
        if not self.host.started(ref):
            return Observation(state=PlatformState.GONE, raw="no such process")
        record = self.host.exit_record(ref)
        if record:
            end = str(record.get("end", ""))
            reason = EndReason.SESSION_EXPIRED if end == "limit" else ""
            return Observation(
                state=PlatformState.ENDED,
                raw="exited",
                detail=f"its agent ended: {end}",
                reason=reason,
            )
        tail = self.host.log(ref, None)[0].strip().splitlines()
        detail = tail[-1] if tail else "its process was killed"
        return Observation(state=PlatformState.ENDED, raw="killed", detail=detail)

    def stop(self, ref: SessionRef, /) -> None:
        self.host.terminate(ref)

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        text, after = self.host.log(ref, cursor)
        return LogPage(text=text, cursor=after)

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def close(self) -> None:
        self.host.close()


def _vram_gb(model: str, group: Sequence[gpu.Card]) -> float:
    """Memory of each: the driver's MiB are a little below the number on the box; it may tell none at all."""
    known = cards.find(model)
    told = round(min(card.memory_mb for card in group) / 1024)
    return told or (known.vram_gb if known else 0.0)


def _memory_gb() -> float:
    """Main memory of this machine; 0: the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        return 0.0


def _disk_gb(folder: Path) -> float:
    """Free space for sessions; 0: the system does not tell."""
    try:
        return shutil.disk_usage(folder).free / 1e9
    except OSError:
        return 0.0

"""A machine that is reached by ssh as a platform: a lab server, a desktop under a table, a rented box.

A session is an agent process that outlives the connection and the orchestrator. Every question is one command on the
host, answered by `far`; nothing is installed there but ~/.freegpu. Other people come first: a card that somebody uses is
not offered, a host carries one session of ours, and that one is nice. No password is ever used.
"""

from __future__ import annotations

import functools
import json
import re
import secrets as random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from freegpu import cards
from freegpu.adapters.base import (
    Capabilities,
    Collected,
    Finding,
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
from freegpu.adapters.ssh import findings
from freegpu.adapters.stores.ssh import (
    HostKey,
    KeyRefused,
    Line,
    Said,
    SshRefused,
    broke,
    parse_target,
)
from freegpu.adapters.stores.ssh_known import Verdict
from freegpu.agent.stores.base import Source, StoreError
from freegpu.agent.wire import check_name
from freegpu.clock import Clock
from freegpu.errors import (
    AdapterError,
    AuthError,
    ConfigError,
    MissingSDKError,
    NoCapacityError,
    RejectedError,
    UnreachableError,
)
from freegpu.jobs.lifecycle import EndReason

__all__ = ["KNOWN_HOSTS", "SshAdapter"]

#: the known_hosts file of a freegpu home; the user's own are read and never written
KNOWN_HOSTS = "known_hosts"
#: MiB that an idle card may hold: a desktop on it, a daemon that keeps the driver loaded
IDLE_MB = 500
#: an agent says hello within about this many seconds
START_DELAY_S = 3.0
#: seconds without a word from the host, and seconds for a whole answer
SILENT_S = 30.0
ANSWER_S = 60.0
#: bytes a second that an upload makes at the very least, or it is given up
SLOWEST = 20_000

#: Finds a Python that is new enough and gives it the program on its stdin. One line without single quotes, backticks or
#: exclamation marks: whatever shell the account has (dash, fish, csh) hands it on as it is. Python says 99 if it is old.
_FIND = (
    "w=none; for p in ${4:-python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9}; do "
    'case "$p" in "~/"*) p="$HOME/${p#??}";; esac; '
    '"$p" -I -c "import sys; sys.version_info < (3, 9) and sys.exit(99);'
    ' exec(sys.stdin.buffer.read(int(sys.argv[1])))" "$1" "$2"; '
    "c=$?; case $c in 99) w=old;; 126|127) ;; *) exit $c;; esac; done; "
    'printf "\\n%s{\\"python\\": \\"%s\\"}%s\\n" "$2" "$w" "$3"'
)


class SshAdapter:
    """See the module. `host`: user@host:port or a name of ~/.ssh/config."""

    def __init__(
        self,
        name: str,
        *,
        home: Path,
        host: str,
        account: str = "",
        idle_mb: int = IDLE_MB,
        python: str = "",
    ) -> None:
        """ValueError: the host cannot be meant. Connects on use."""
        self.name = name
        self.target = parse_target(host)
        self.account = account or str(self.target)
        self.idle_mb = idle_mb
        self.python = python
        self.line = Line(self.target, own=home / KNOWN_HOSTS)
        self._secrets: Callable[[], Mapping[str, str]] = dict
        self._lock = threading.Lock()

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml. ConfigError: an option that it does not know, or cannot use."""
        known = {"host": str, "account": str, "idle_mb": int, "python": str}
        for option, value in options.items():
            if option not in known:
                raise ConfigError(
                    f"platform {name}: unknown option {option!r}", hint=f"known: {', '.join(known)}"
                )
            if not isinstance(value, known[option]) or isinstance(value, bool):
                raise ConfigError(f"platform {name}: {option} is {value!r}")
        if "host" not in options:
            raise ConfigError(
                f"platform {name}: it has no host",
                hint=f"freegpu connect ssh USER@HOST --as {name}",
            )
        if options.get("idle_mb", 0) < 0:
            raise ConfigError(f"platform {name}: idle_mb is negative")
        if not re.fullmatch(r"(~/)?[A-Za-z0-9_./+-]*", options.get("python", "")):
            raise ConfigError(
                f"platform {name}: python is {options['python']!r}, not the path of a program",
                hint="letters, digits and _ . / + - ; ~/ at its beginning is the home there",
            )
        try:
            return cls(name, home=home, **options)
        except ValueError as error:
            raise ConfigError(f"platform {name}: {error}") from error

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(stop=True, live_logs=True, max_concurrent=1)

    @property
    def windows(self) -> Mapping[str, Window]:
        return {"": Window(kind=WindowKind.NONE, source="a machine of one's own")}

    def quota(self) -> Sequence[QuotaReport] | None:
        return None

    def offers(self) -> Sequence[Offer]:
        told = self._ask("offers", idle_mb=self.idle_mb)
        common: dict[str, Any] = {
            "platform": self.name,
            "account": self.account,
            "memory_gb": float(told["memory_gb"]),
            "cpus": float(told["cpus"]),
            "disk_gb": float(told["disk_gb"]),
            "start_delay_s": START_DELAY_S,
            # one session a host, of whichever home
            "available": 0 if told["held"] else None,
        }
        if told["smi"] == "hangs":
            return []  # a driver that does not answer helps no job, and a host in that state no other
        if not told["cards"]:
            return [Offer(card="CPU", **common)]
        ours = {device for devices in told["held"].values() for device in devices}
        groups: dict[str, list[dict[str, Any]]] = {}
        for card in told["cards"]:
            if not card["used"] or card["index"] in ours:
                known = cards.find(card["name"])
                groups.setdefault(known.name if known else card["name"], []).append(card)
        return [
            Offer(
                card=model,
                count=len(group),
                vram_gb=_vram_gb(model, group),
                devices=tuple(card["index"] for card in group),
                **common,
            )
            for model, group in groups.items()
        ]

    def render(self, launch: Launch, /) -> Request:
        check_name(launch.key)
        work = f"~/.freegpu/sessions/{launch.key}/work"
        return Request(
            key=launch.key,
            payload={
                "host": str(self.target),
                "profile": {**launch.profile.to_json(), "work": work},
                "agent": {"path": launch.agent_path, "sha256": launch.agent_sha256},
            },
        )

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        self._secrets = secrets

    def start(self, request: Request, /) -> SessionRef:
        agent, profile = request.payload["agent"], request.payload["profile"]
        asked = {
            "key": check_name(request.key),
            "sha256": agent["sha256"],
            "profile": profile,
            "gpus": [gpu for slot in profile["slots"] for gpu in slot["gpus"]],
            "idle_mb": self.idle_mb,
            "secrets": dict(self._secrets()),
        }
        told = self._ask("start", **asked)
        if told.get("need"):
            self._send_agent(agent)
            told = self._ask("start", **asked)
        if "busy" in told:
            raise NoCapacityError(f"{self.target}: {told['busy']}", **self._who)
        if not told.get("started"):
            raise UnreachableError(
                f"a start of {request.key} on {self.target} did not come to its end", **self._who
            )
        return SessionRef(request.key)

    def _send_agent(self, agent: Mapping[str, str]) -> None:
        path = Path(agent["path"])
        try:
            size = path.stat().st_size
            told = self._ask("receive", source=path, sha256=agent["sha256"], size=size)
        except FileNotFoundError as error:
            raise RejectedError(f"the agent {path} is not there", **self._who) from error
        if not told["whole"]:
            raise UnreachableError(f"the agent did not arrive whole on {self.target}", **self._who)

    def find(self, key: str, /) -> SessionRef | None:
        if not _is_name(key):
            return None
        return SessionRef(key) if self._ask("find", key=key)["found"] else None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        keys = [ref for ref in refs if _is_name(ref)]
        seen = self._ask("observe", keys=keys)["seen"] if keys else {}
        return {ref: _observation(seen.get(ref, {"state": "gone"})) for ref in refs}

    def stop(self, ref: SessionRef, /) -> None:
        if _is_name(ref):
            self._ask("stop", key=ref)

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        at = int(cursor) if cursor and cursor.isdigit() else 0
        if not _is_name(ref):
            return LogPage(text="", cursor=str(at))
        told = self._ask("logs", key=ref, at=at)
        return LogPage(text=told["text"], cursor=str(told["at"]))

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def tidy(self, ref: SessionRef, /) -> None:
        if _is_name(ref):
            self._ask("tidy", key=ref)

    def diagnose(self, store: str, /) -> Sequence[Finding]:
        try:
            before = time.time()
            told = self._ask("diagnose", store=findings.way_to(store), idle_mb=self.idle_mb)
            after = time.time()
        except AdapterError as error:
            return [*findings.of_line(self.line), findings.of_error(error)]
        return [*findings.of_line(self.line), *findings.of_host(told, before, after)]

    def trust(self, fingerprints: Collection[str]) -> None:
        """Know the host's key from now on, and those of hosts on the way, if a person has named their fingerprints.

        AuthError: another key was shown, or one that no word can make good (revoked, or not the one that ssh knows).
        """
        while True:
            try:
                with self._lock:
                    key = self.line.look()
                    if key.verdict is Verdict.KNOWN:
                        return
            except KeyRefused as error:
                key = error.key
            except Exception as error:
                self._fail(error)
            if key.fingerprint not in fingerprints or not self._acceptable(key):
                raise AuthError(
                    f"{key.host} shows the key {key.kind} {key.fingerprint}"
                    + ("" if self._acceptable(key) else f", which {key.file} speaks against"),
                    hint="no other key was accepted: compare it with what the host's owner tells you",
                    **self._who,
                )
            self.line.accept(key)

    def _acceptable(self, key: HostKey) -> bool:
        """Whether a person's word is enough: not against a revocation, and not against the user's own known_hosts."""
        return key.verdict in (Verdict.UNKNOWN, Verdict.OTHER_TYPE) or (
            key.verdict is Verdict.CHANGED and key.file == self.line.own
        )

    def close(self) -> None:
        self.line.close()

    # --- questions --------------------------------------------------------------------------------------

    def _ask(self, do: str, *, source: Source = b"", **asked: Any) -> dict[str, Any]:
        """One question to the host. AdapterError: no answer, or no."""
        program = _program()
        mark = f"freegpu-{random.token_hex(8)}-"
        words = f"/bin/sh -c '{_FIND}' freegpu {len(program)} {mark} {mark[::-1]} {self.python}"
        head = program + json.dumps({"do": do, **asked}).encode() + b"\n"
        size = Path(source).stat().st_size if not isinstance(source, bytes) else len(source)
        with self._lock:
            try:
                said = self.line.say(
                    words.rstrip(),
                    source,
                    head=head,
                    timeout=SILENT_S,
                    total=ANSWER_S + size / SLOWEST,
                    until=lambda out: mark[::-1].encode() in out,
                )
            except Exception as error:
                self.line.close()
                self._fail(error)
        return self._answer(said, mark)

    def _fail(self, error: Exception) -> NoReturn:
        """The error as an AdapterError."""
        if isinstance(error, KeyRefused):
            hint = ""
            if self._acceptable(error.key):
                hint = (
                    "if you know from elsewhere that this is its key:"
                    f" `freegpu connect ssh {self.target} --accept-key {error.key.fingerprint}`"
                )
            raise AuthError(str(error), hint=hint, **self._who) from error
        if isinstance(error, SshRefused):
            raise AuthError(str(error), **self._who) from error
        if isinstance(error, ImportError):
            raise MissingSDKError("paramiko cannot be imported", **self._who) from error
        if isinstance(error, StoreError):
            raise UnreachableError(str(error), **self._who) from error
        import paramiko

        if isinstance(error, paramiko.ChannelException):
            raise UnreachableError(
                f"{self.target} opens no session on the connection ({error.text})",
                hint="MaxSessions in its sshd_config",
                **self._who,
            ) from error
        if broke(error) or isinstance(error, OSError):
            why = " ".join(str(getattr(error, "strerror", None) or error).split())
            # paramiko's own end of a connection is an EOFError that says nothing
            why = why or "the connection was closed"
            told = why if str(self.target) in why else f"{self.target} does not answer ({why})"
            raise UnreachableError(told, **self._who) from error
        raise error

    def _answer(self, said: Said, mark: str) -> dict[str, Any]:
        found = re.search(f"{mark}(.*?){mark[::-1]}".encode(), said.out, re.DOTALL)
        if found is None:
            first = (said.err or said.out).decode("utf-8", "replace").strip().splitlines()
            raise RejectedError(
                f"{self.target} ran nothing for us{': ' if first else ''}{first[-1][:200] if first else ''}",
                hint=f"`{self.target.command} /bin/sh -c true` must work and ask nothing",
                **self._who,
            )
        try:
            told: dict[str, Any] = json.loads(found[1])
        except ValueError as error:
            raise UnreachableError(
                f"{self.target} gave an answer with something else in it",
                hint="a program that its start-up files leave behind prints into it",
                **self._who,
            ) from error
        if "python" in told and "now" not in told:
            old = told["python"] == "old"
            raise RejectedError(
                f"{self.target} has {'only a Python older than 3.9' if old else 'no python3'}",
                hint="install one there; `python` in its table in freegpu.toml may name it",
                **self._who,
            )
        if "error" in told:
            file = f" ({told['file']})" if told.get("file") else ""
            raise RejectedError(f"{self.target}: {told['error']}{file}", **self._who)
        return told

    @property
    def _who(self) -> dict[str, str]:
        return {"adapter": self.name, "account": self.account}


@functools.cache
def _program() -> bytes:
    """What runs on the host."""
    return Path(__file__).with_name("far.py").read_bytes()


def _is_name(key: str) -> bool:
    try:
        check_name(key)
    except ValueError:
        return False
    return True


def _vram_gb(model: str, group: Sequence[Mapping[str, Any]]) -> float:
    """Memory of each: the driver's MiB are a little below the number on the box; it may tell none at all."""
    known = cards.find(model)
    told = round(min(int(card["mb"]) for card in group) / 1024)
    return told or (known.vram_gb if known else 0.0)


_WHY = {
    "restarted": "the machine was restarted",
    "killed": "its process was killed",
    "cut short": "its start was cut short",
}


def _observation(seen: Mapping[str, Any]) -> Observation:
    state = seen["state"]
    if state == "gone":
        return Observation(state=PlatformState.GONE, raw="no such session")
    if state != "ended":
        found = PlatformState.RUNNING if state == "running" else PlatformState.STARTING
        return Observation(state=found, raw=state)
    why, record = seen.get("why", ""), seen.get("record")
    if why or not isinstance(record, dict):
        tail = str(seen.get("tail", "")).strip().splitlines()
        said = tail[-1] if tail else f"its agent ended with exit code {seen.get('exit')}"
        detail = _WHY[why] if why else said
        return Observation(state=PlatformState.ENDED, raw=why or "exited", detail=detail)
    end = str(record.get("end", ""))
    return Observation(
        state=PlatformState.ENDED,
        raw="exited",
        detail=f"its agent ended: {end}",
        reason=EndReason.SESSION_EXPIRED if end == "limit" else "",
    )

"""The agent under a notebook's cell: one session, in the foreground, started by a person.

`run` is what the cell calls when it has fetched and verified the agent. It names the session, says so in the
store, starts the agent as a process of its own and shows how it goes until the queue is empty, the session's
time is up or somebody stops the cell. It does nothing to look busy, and it asks for no right that the work
itself does not need.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import freegpu
from freegpu.agent import gpu, wire
from freegpu.agent.loop import EXIT, VIEW
from freegpu.agent.show import Show
from freegpu.agent.stores import Access, StoreError, check_home, open_store
from freegpu.agent.vault import KEY_NAME, Token, VaultError, vault

_LOOK_S = 1.0
#: how each end reads; anything else is shown as it is
_ENDS = {
    "idle": "the queue is empty: no work came for a while",
    "drained": "the orchestrator has nothing more for this session",
    "bye": "the orchestrator ended this session",
    "limit": "the session's time is up; what ran is saved and goes on elsewhere",
    "signal": "stopped; what ran is saved and goes on elsewhere",
}


class CellError(RuntimeError):
    """The cell cannot work here; its text says what to do."""

    def _render_traceback_(self) -> List[str]:
        """What IPython shows instead of a traceback: the sentence alone."""
        return [f"freegpu: {self}"]


def run(cell: Mapping[str, Any], agent: "os.PathLike[str]") -> str:
    """Work off the queue that this cell belongs to; how the session ended. CellError, in one sentence."""
    for note in cell["notes"]:
        print(note)
    try:
        box = vault(cell["platform"])
        found = box.find(cell["secrets"])
        token = box.token(cell["scope"]) if cell["scope"] else None
        key = bytes.fromhex(str(cell["key"] or found.pop(KEY_NAME)))
    except VaultError as error:
        raise CellError(str(error)) from None
    except (KeyError, ValueError):
        message = f"the secret {KEY_NAME} is not the key of this cell: {box.advice(KEY_NAME)}"
        raise CellError(message) from None
    work = Path(tempfile.mkdtemp(prefix="freegpu-session-"))
    keeper = _TokenFile(work / "token.json", token) if token else None
    access = Access(secrets=found, token=keeper.read if keeper else None)
    slots = find_slots()
    limit_s = left_of(cell["limit_s"])
    session = wire.guest_session(cell["cell"], f"{int(time.time()):x}{secrets.token_hex(3)}")
    guest = wire.guest_key(key, session)
    try:
        store = open_store(cell["store"], access)
        check_home(store, cell["home"])
        body = {
            "session": session,
            "platform": cell["platform"],
            "slots": [[slot.card, slot.vram_gb, slot.precision] for slot in slots],
            "limit_s": limit_s,
            "agent": freegpu.__version__,
        }
        store.put_new(wire.announcement_key(cell["cell"], session), wire.pack(body, guest))
    except (StoreError, ValueError) as error:
        message = f"the store {cell['store']} cannot be used from here: {error}"
        raise CellError(message) from None
    profile = wire.Profile(
        session=session,
        home=cell["home"],
        platform=cell["platform"],
        key=guest.hex(),
        store=cell["store"],
        work=str(work),
        slots=tuple(slots),
        limit_s=limit_s,
        idle_s=cell["idle_s"],
        poll_s=cell["poll_s"],
        beat_s=cell["beat_s"],
        margin_s=cell["margin_s"],
        view=True,
    )
    print(
        f"session {session} on {', '.join(slot.card for slot in slots)}; stop the cell to save and leave"
    )
    child = _start(Path(agent), profile, found, keeper)
    end = _watch(child, work, Show(cell["title"], limit_s), keeper)
    print(_farewell(end, _read(work / VIEW)))
    if end in ("idle", "drained", "bye", "limit") and cell["release"]:
        box.release()
    return end


# --- what this machine is -----------------------------------------------------------------------------------


def find_slots(run: gpu.Runner = gpu.run) -> List[wire.Slot]:
    """One slot a card; a CPU slot where there is none."""
    cards = gpu.detect(run)
    if not cards:
        return [wire.Slot(0, "CPU")]
    caps = gpu.capabilities(run)
    return [
        wire.Slot(
            index,
            card.name,
            (str(card.index),),
            round(card.memory_mb / 1024, 1),
            _precision(caps.get(card.index)),
        )
        for index, card in enumerate(cards)
    ]


def _precision(capability: Optional[float]) -> str:
    # bf16 in hardware from Ampere on, fp16 matrix units from Volta on (NVIDIA's compute capability tables)
    if capability is None:
        return "fp32"
    return "bf16" if capability >= 8.0 else "fp16" if capability >= 7.0 else "fp32"


def left_of(limit_s: Optional[float], age: Optional[float] = None) -> Optional[float]:
    """Seconds that are left of a runtime's time. A runtime's clock runs from its boot, not from this cell."""
    if limit_s is None:
        return None
    age = runtime_age() if age is None else age
    # a process 1 that is older than any runtime may be is a machine's, not a runtime's
    return limit_s - age if age < limit_s else limit_s


def runtime_age() -> float:
    """Seconds since the container's first process started; 0 where /proc does not tell."""
    try:
        with open("/proc/1/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


# --- the agent as a child -------------------------------------------------------------------------------------


class _TokenFile:
    """Keeps a fresh access token in a file that only this user may read, for the agent process."""

    def __init__(self, path: Path, fresh: Callable[[], Token]) -> None:
        self.path = path
        self._fresh = fresh
        self._token: Optional[Token] = None

    def read(self) -> Token:
        """(token, seconds that it is still good for), renewed when these are few."""
        now = time.time()
        if self._token is None or self._token[1] - now < 600:
            token, seconds = self._fresh()
            self._token = (token, now + seconds)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                json.dump({"token": token, "expires_at": self._token[1]}, file)
        return self._token[0], self._token[1] - now


def _start(
    agent: Path, profile: wire.Profile, found: Mapping[str, str], keeper: Optional[_TokenFile]
) -> "subprocess.Popen[bytes]":
    place = Path(profile.work)
    path = place / "profile.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(profile.to_json(), file)
    given: Dict[str, Any] = {"secrets": dict(found)}
    if keeper:
        keeper.read()
        given["token_file"] = str(keeper.path)
    with open(place / "agent.log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, str(agent), str(path), "--access"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            # a person's Ctrl-C is ours to pass on, once; the kernel would give it to the whole group
            start_new_session=True,
        )
    if child.stdin:
        with child.stdin as pipe:
            pipe.write(json.dumps(given).encode())
    return child


def _watch(
    child: "subprocess.Popen[bytes]", work: Path, show: Show, keeper: Optional[_TokenFile]
) -> str:
    """Show how it goes until the agent has ended; why it ended."""
    screen = _Screen()
    names: Dict[str, str] = {}
    told = 0
    asked = 0
    while True:
        try:
            code = _wait(child)
            view = _read(work / VIEW)
            names.update({s["attempt"]: s["name"] for s in view.get("slots") or ()})
            if view and code is None:
                screen.draw(show.lines(view), show.html(view))
            for attempt, outcome in (view.get("history") or ())[told:]:
                screen.say(f"{names.get(attempt, attempt)}: {outcome.replace('_', ' ')}")
                told += 1
            if keeper and code is None:
                with contextlib.suppress(
                    VaultError, OSError
                ):  # the next look asks again; the agent tells when it is too late
                    keeper.read()
            if code is not None:
                return _why(code, work)
        except KeyboardInterrupt:
            asked += 1
            if asked == 1:
                screen.say("saving, then leaving; stop the cell once more to leave without")
            os.kill(child.pid, signal.SIGTERM if asked == 1 else signal.SIGKILL)


def _wait(child: "subprocess.Popen[bytes]") -> Optional[int]:
    try:
        return child.wait(_LOOK_S)
    except subprocess.TimeoutExpired:
        return None


def _why(code: int, work: Path) -> str:
    end = _read(work / EXIT).get("end")
    if code == 0 and end:
        return str(end)
    try:
        last = (work / "agent.log").read_text("utf-8", "replace").strip().splitlines()[-1:]
    except OSError:
        last = []
    words = last[0].replace("freegpu-agent: ", "") if last else f"exit code {code}"
    message = f"the agent ended badly: {words}"
    raise CellError(message)


def _farewell(end: str, view: Mapping[str, Any]) -> str:
    if end == "idle" and view.get("waiting") is None:
        return "freegpu: nobody handed out work: run `freegpu up` on your machine, then this cell again"
    return f"freegpu: {_ENDS.get(end, end)}"


def _read(path: Path) -> Dict[str, Any]:
    try:
        found: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


class _Screen:
    """One picture that is drawn over in a notebook; lines, when they change, anywhere else."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._rich = _in_notebook()
        self._last: Sequence[str] = ()
        self._at = 0.0

    def draw(self, lines: Sequence[str], html: str) -> None:
        if not self._rich:
            if lines[1:] != self._last and time.monotonic() - self._at > 10:
                print("\n".join(lines), flush=True)
                self._last, self._at = lines[1:], time.monotonic()
            return
        from IPython.display import display

        bundle = {"text/plain": "\n".join(lines), "text/html": html}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(bundle, raw=True)

    def say(self, text: str) -> None:
        print(text, flush=True)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return bool(shell and shell.get_ipython())

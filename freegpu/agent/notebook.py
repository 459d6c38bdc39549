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
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import freegpu
from freegpu.agent import gpu, wire
from freegpu.agent.loop import EXIT, VIEW
from freegpu.agent.show import Show
from freegpu.agent.stores import Access, StoreError, check_home, open_store
from freegpu.agent.stores.base import ObjectMissing
from freegpu.agent.vault import KEY_NAME, Token, Vault, VaultError, vault

_LOOK_S = 1.0
#: what is no part of a card's name: makers, lines, form factors, and the memory that the card always has
_NOISE = re.compile(r"(?i)(nvidia|tesla|quadro|geforce|pcie?|sxm\d?|16gb|40gb)")
#: how each end reads; anything else is shown as it is
_ENDS = {
    "idle": "the queue is empty: no work came for a while",
    "drained": "nothing more comes for this session: the queue is empty, or a new cell was made",
    "bye": "the orchestrator ended this session",
    "limit": "the session's time is up; what ran is saved and goes on elsewhere",
    "signal": "stopped; what ran is saved and goes on elsewhere",
    "killed": "stopped at once; what ran goes on elsewhere from its last checkpoint",
}


class CellError(RuntimeError):
    """The cell cannot work here; its text says what to do."""

    def _render_traceback_(self) -> List[str]:
        """What IPython shows instead of a traceback: the sentence alone."""
        return [f"freegpu: {self}"]


def run(cell: Mapping[str, Any], agent: "os.PathLike[str]") -> str:
    """Work off the queue that this cell belongs to; how the session ended. CellError, in one sentence.

    Outside of a notebook the sentence ends the program instead, as SystemExit.
    """
    try:
        return _run(cell, Path(agent))
    except CellError as error:
        if _in_notebook():
            raise
        raise SystemExit(f"freegpu: {error}") from None


def _run(cell: Mapping[str, Any], agent: Path) -> str:
    for note in cell["notes"]:
        print(note)
    box, found, token, key = _opened(cell)
    work = Path(tempfile.mkdtemp(prefix="freegpu-session-"))
    child = None
    try:
        keeper = _TokenFile(work / "token.json", token) if token else None
        access = Access(secrets=found, token=keeper.read if keeper else None)
        cards = gpu.detect()
        slots = slots_of(cards)
        limit_s = left_of(cell["limit_s"])
        session = wire.guest_session(cell["cell"], f"{int(time.time()):x}{secrets.token_hex(3)}")
        profile = wire.Profile(
            session=session,
            home=cell["home"],
            platform=cell["platform"],
            key=wire.guest_key(key, session).hex(),
            store=cell["store"],
            work=str(work),
            slots=tuple(slots),
            limit_s=limit_s,
            idle_s=cell["idle_s"],
            poll_s=cell["poll_s"],
            beat_s=cell["beat_s"],
            margin_s=cell["margin_s"],
            bandwidth=cell["bandwidth"],
            known=cell["known"],
            view=True,
        )
        _announce(cell, profile, [card.name for card in cards], access)
        print(
            f"session {session} on {', '.join(slot.card for slot in slots)}; stop the cell to save and leave"
        )
        child = _start(agent, profile, found, keeper)
        try:
            end, asked = _watch(child, work, Show(cell["title"], limit_s), keeper)
        finally:
            if child.stdin:
                child.stdin.close()  # whatever took us out of here: the agent saves and leaves
        print(_farewell(end, _read(work / VIEW)))
    finally:
        if (
            child is None or child.poll() is not None
        ):  # else it is still saving, and needs its token for that
            _sweep(work)
    if cell["release"] and not asked and end in ("idle", "drained", "bye", "limit"):
        _give_back(box)
    return end


def _opened(
    cell: Mapping[str, Any],
) -> Tuple[Vault, Dict[str, str], Optional[Callable[[], Token]], bytes]:
    """The notebook's vault, and out of it what the store takes, and the cell's key."""
    try:
        box = vault(cell["platform"])
        found = box.find(cell["secrets"])
        token = box.token(cell["scope"]) if cell["scope"] else None
    except VaultError as error:
        raise CellError(str(error)) from None
    try:
        key = bytes.fromhex((cell["key"] or found.pop(KEY_NAME)).strip())
    except ValueError:
        key = b""
    if wire.sha256(key)[:12] != cell["key_check"]:
        message = f"the secret {KEY_NAME} is not the key of this cell: {box.advice(KEY_NAME)}"
        raise CellError(message)
    return box, found, token, key


def _announce(
    cell: Mapping[str, Any], profile: wire.Profile, cards: Sequence[str], access: Access
) -> None:
    """Tell the orchestrator, through the store, that this session is there and what it has.

    `cards`: as the driver names them, since the card table tells more of them apart than `short_name` does.
    """
    names = list(cards) or [slot.card for slot in profile.slots]
    body = {
        "session": profile.session,
        "platform": profile.platform,
        "slots": [[name, slot.vram_gb, slot.precision] for name, slot in zip(names, profile.slots)],
        "limit_s": profile.limit_s,
        "agent": freegpu.__version__,
    }
    try:
        store = open_store(cell["store"], access)
        check_home(store, cell["home"])
        where = wire.announcement_key(cell["cell"], profile.session)
        store.put_new(where, wire.pack(body, bytes.fromhex(profile.key)))
    except ObjectMissing:
        message = f"the store {cell['store']} is empty as seen from here: say where it is with `freegpu cell --store`"
        raise CellError(message) from None
    except (StoreError, VaultError, ValueError) as error:
        message = f"the store {cell['store']} cannot be used from here: {error}"
        raise CellError(message) from None


def _sweep(work: Path) -> None:
    """Keys go; and so does everything else, if all that is worth keeping has reached the store."""
    if _read(work / EXIT).get("unsent_events") == 0:
        shutil.rmtree(work, ignore_errors=True)
        return
    for name in ("profile.json", "token.json"):
        with contextlib.suppress(OSError):
            (work / name).unlink()


def _give_back(box: Vault) -> None:
    try:
        box.release()
    except (
        Exception
    ) as error:  # the platform's own classes; the work is done, only the machine is not released
        print(f"freegpu: the runtime could not be given back ({error}): end it by hand")


# --- what this machine is -----------------------------------------------------------------------------------


def slots_of(cards: Sequence[gpu.Card], run: gpu.Runner = gpu.run) -> List[wire.Slot]:
    """One slot a card; a CPU slot where there is none."""
    if not cards:
        return [wire.Slot(0, "CPU")]
    caps = gpu.capabilities(run)
    return [
        wire.Slot(
            index,
            short_name(card.name),
            (str(card.index),),
            round(card.memory_mb / 1024, 1),
            _precision(caps.get(card.index)),
        )
        for index, card in enumerate(cards)
    ]


def short_name(driver_name: str) -> str:
    """What people call the card, for FREEGPU_CARD and the notebook: "Tesla T4" is a T4."""
    words = [word for word in re.split(r"[\s-]+", driver_name) if not _NOISE.fullmatch(word)]
    return re.sub(r"(RTX|GTX)-(?=\d)", r"\1", "-".join(words)) or driver_name


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
    given: Dict[str, Any] = {"secrets": dict(found), "tied": True}
    if keeper:
        keeper.read()
        given["token_file"] = str(keeper.path)
    hidden = {KEY_NAME, *found}
    with open(place / "agent.log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, str(agent), str(path), "--access"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            # a job inherits the agent's environment, and must not find the keys of the store there
            env={name: value for name, value in os.environ.items() if name not in hidden},
            # a person's Ctrl-C is ours to pass on, once; the kernel would give it to the whole group
            start_new_session=True,
        )
    if child.stdin:
        with contextlib.suppress(BrokenPipeError):  # it ended at once: _watch tells why
            child.stdin.write(json.dumps(given).encode() + b"\n")
            child.stdin.flush()  # open until we end, in whatever way: then the agent leaves too
    return child


def _watch(
    child: "subprocess.Popen[bytes]", work: Path, show: Show, keeper: Optional[_TokenFile]
) -> Tuple[str, bool]:
    """Show how it goes until the agent has ended; why it ended, and whether a person asked for it."""
    screen = _Screen()
    names: Dict[str, str] = {}
    told: List[str] = []
    asked = 0
    while True:
        try:
            code = _wait(child)
            view = _read(work / VIEW)
            names.update({s["attempt"]: s["name"] for s in view.get("slots") or ()})
            if view:
                screen.draw(show.lines(view), show.html(view))
            for attempt, outcome in view.get("history") or ():
                if attempt not in told:
                    told.append(attempt)
                    screen.say(f"{names.get(attempt, attempt)}: {outcome.replace('_', ' ')}")
            if code is not None:
                return ("killed" if asked > 1 else _why(code, work)), asked > 0
            if keeper:
                # the next look asks again; the agent tells when it is too late
                with contextlib.suppress(VaultError, OSError):
                    keeper.read()
        except KeyboardInterrupt:
            asked += 1
            # what is not said for want of time is done all the same
            child.send_signal(signal.SIGTERM if asked == 1 else signal.SIGKILL)
            if asked == 1:
                screen.say("saving, then leaving; stop the cell once more to leave without")


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
        asked = (
            "is `freegpu up` running on your machine, and is this the newest cell that you made?"
        )
        return f"freegpu: nobody handed out work: {asked}"
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

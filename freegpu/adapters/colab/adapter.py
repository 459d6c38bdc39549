"""Google Colab, driven by Google's own command line program `colab`; off unless a person connects it.

The program is run as it is, in a HOME of its own, and what it prints decides nothing: its exit codes are 0 for failures, and
it drops quota, outcomes and any runtime it did not understand. So the account is asked by ourselves, with the sign-in
that the program keeps; runtimes are told apart by the endpoints that were noted here, since Colab's list knows no names.
Tried with google-colab-cli 0.7.5 on 2026-12-02.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

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
    Rules,
    SessionRef,
    Window,
    WindowKind,
)
from freegpu.adapters.colab.account import Account
from freegpu.adapters.colab.findings import diagnose
from freegpu.adapters.colab.launch import Starts, cell, means, remote
from freegpu.adapters.colab.notes import Notes, noted
from freegpu.adapters.colab.program import Program, scrub
from freegpu.adapters.hosts import LOG_PAGE, held
from freegpu.adapters.options import refuse_unknown
from freegpu.clock import Clock, utc
from freegpu.errors import AdapterError, ConfigError, QuotaExhaustedError, RejectedError

__all__ = ["GPUS", "ColabAdapter"]

#: One pool for all: compute units. Its unit is the 3600th part of a compute unit, so that a runtime that takes one
#: compute unit an hour is charged one each second.
POOL = "ccu"
#: cards that the program can ask for. It takes every other word for an A100, without saying so.
GPUS = ("T4", "L4", "G4", "A100", "H100")
#: Compute units an hour; nothing is published, so these are guesses on the high side
_GUESSED_RATES: Mapping[str, float] = MappingProxyType(
    {"T4": 2.0, "L4": 5.0, "G4": 10.0, "A100": 15.0, "H100": 20.0}
)
#: 12 h at most without a paid balance, by the FAQ as others quote it
SESSION_S = 12 * 3600.0
FAQ = "https://research.google.com/colaboratory/faq.html"
_VERIFIED = "2026-12-02"
_OPTIONS = ("accepted", "account", "cli", "gpus", "only_paid", "token")


class ColabAdapter:
    """See the module. One folder for each session below the home, with the program's HOME for that session in it."""

    one_account: ClassVar[str] = "colab"
    rules: ClassVar[Rules] = Rules(
        name="free-unattended-use",
        sentences=(
            (
                "Colab's FAQ, as others quote it, says that runtimes of accounts without a positive balance of compute units"
                " may be ended at any time and without warning, and names among the reasons distributed computing workers,"
                " remote control such as SSH, and working around the notebook."
            ),
            (
                "Google offers the colab program for automation, but no text of Google's says how the two go together: a queue"
                " that starts free runtimes by itself may be taken for such a worker, and accounts have been blocked in error."
            ),
            "Several accounts to get around limits are forbidden to everybody.",
            (
                "freegpu starts runtimes for your own jobs only, gives them back when the queue is empty, and does nothing to"
                " look busy; --only-paid starts them only while you have a positive balance, which is what we recommend."
            ),
        ),
        url=FAQ,
    )

    def __init__(
        self,
        name: str,
        *,
        home: Path,
        clock: Clock,
        account: str = "yours",
        cli: str = "",
        gpus: Sequence[str] = ("T4",),
        only_paid: bool = False,
        token: str = "",
    ) -> None:
        self.name = name
        self.account = account
        self.folder = home / "colab" / name
        self.gpus = tuple(gpus)
        self.only_paid = only_paid
        self._clock = clock
        token_path = Path(token or "~/.config/colab-cli/token.json").expanduser()
        self._program = Program(cli, token_path, self._who())
        self._account = Account(self._program, self.folder)
        self._notes = Notes(self._account)
        self._starts = Starts(self._account)

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml. ConfigError: an option that cannot be meant, or the rules were not accepted."""
        refuse_unknown(name, options, _OPTIONS)
        if options.get("accepted") != cls.rules.name:
            raise ConfigError(
                f"platform {name}: the rules of Colab's FAQ on free, unattended use were not accepted",
                hint=f"read {FAQ}, then `freegpu connect colab --accept {cls.rules.name}`",
            )
        texts = {key: options.get(key, "") for key in ("cli", "token")}
        texts["account"] = options.get("account", "yours")
        for key, text in texts.items():
            if not isinstance(text, str) or (key in options and not text.strip()):
                raise ConfigError(f"platform {name}: {key} is {text!r}, not a text")
        only_paid = options.get("only_paid", False)
        if not isinstance(only_paid, bool):
            raise ConfigError(f"platform {name}: only_paid is {only_paid!r}, not true or false")
        return cls(
            name,
            home=home,
            clock=clock,
            gpus=_gpus(name, options.get("gpus", ["T4"])),
            only_paid=only_paid,
            **texts,
        )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            stop=True,
            live_logs=True,
            reports_quota=True,
            max_session_s=SESSION_S,
            max_concurrent=1,
        )

    @property
    def windows(self) -> Mapping[str, Window]:
        source = "Colab publishes no limits; ccu-info tells what is left and when it is refilled"
        kind = WindowKind.ROLLING
        return {POOL: Window(kind=kind, source=source, verified_on=_VERIFIED)}

    # --- what there is ----------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        self._account.refuse_blocked()
        told = self._account.ccu()
        if self.only_paid and not told.paid:
            return []
        return [
            Offer(
                platform=self.name,
                account=self.account,
                card=known.name,
                vram_gb=float(known.vram_gb),
                memory_gb=12.7,
                cpus=2.0,
                session_limit_s=SESSION_S,
                start_delay_s=40.0,
                pool=POOL,
                rate=_GUESSED_RATES[gpu],
            )
            for gpu in self.gpus
            if gpu in told.eligible and (known := cards.find(gpu)) is not None
        ]

    def quota(self) -> Sequence[QuotaReport] | None:
        self._account.refuse_blocked()
        told = self._account.ccu()
        return [
            QuotaReport(
                pool=POOL,
                # what was used is not told: what is left is all that there is from now on
                used_s=0.0,
                limit_s=None if told.left is None else max(0.0, told.left) * 3600,
                resets_at=told.refill,
                as_of=utc(self._clock),
            )
        ]

    # --- sessions ---------------------------------------------------------------------------------------

    def render(self, launch: Launch, /) -> Request:
        gpu = next((gpu for gpu in GPUS if means(gpu) == launch.offer.card), "")
        return Request(
            key=launch.key,
            payload={
                "gpu": gpu,
                "cell": f"{cell()}\n\nfreegpu({remote(launch.key)!r}, 'NONCE')\n",
                "agent": launch.agent_path,
                "profile": launch.profile.to_json(),
            },
        )

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        self._starts.secrets = secrets

    def start(self, request: Request, /) -> SessionRef:
        self._account.refuse_blocked()
        gpu = str(request.payload["gpu"])
        if gpu not in GPUS:
            raise RejectedError(f"Colab's program has no GPU that is called {gpu!r}", **self._who())
        place = self._notes.place(request.key)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(place / "lock") as lock:
            if self._notes.settle(place):
                return SessionRef(request.key)
            if self.only_paid and not self._account.ccu().paid:
                raise QuotaExhaustedError(
                    "the balance of compute units is not positive, and only_paid is set",
                    hint="buy compute units, or take only_paid out of freegpu.toml",
                    **self._who(),
                )
            try:
                self._notes.note(place, phase="claimed", gpu=gpu)
                endpoint, accelerator = self._starts.assign(place, request.key, gpu, lock)
                self._notes.note(
                    place, phase="assigned", endpoint=endpoint, accelerator=accelerator
                )
                self._starts.run(place, request, lock)
                self._notes.note(place, phase="started", endpoint=endpoint, accelerator=accelerator)
            except AdapterError:
                # with what Colab gave in between; if even that fails, the note stays and the next look does it
                with contextlib.suppress(AdapterError):
                    self._notes.settle(place)
                raise
            finally:
                # until what was asked for is settled, the program's log is the only trace of it
                if noted(place).get("phase") != "claimed":
                    scrub(place)
        return SessionRef(request.key)

    def find(self, key: str, /) -> SessionRef | None:
        place = self._notes.known(key)
        if place is None:
            return None
        self._account.refuse_blocked()
        with held(place / "lock"):  # waits for whoever is starting it just now
            return SessionRef(key) if self._notes.settle(place) else None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        notes = {ref: noted(place) for ref in refs if (place := self._notes.known(ref)) is not None}
        seen = dict.fromkeys(refs, Observation(state=PlatformState.GONE, raw="not noted here"))
        asked = {ref: note for ref, note in notes.items() if note.get("endpoint")}
        if not asked:
            return seen
        self._account.refuse_blocked()
        listed = self._account.assignments()
        for ref, note in asked.items():
            accelerator = listed.get(str(note["endpoint"]))
            if accelerator is None:
                seen[ref] = Observation(
                    state=PlatformState.ENDED,
                    raw="not assigned",
                    detail="Colab's list of runtimes does not have it any more",
                )
                continue
            came = cards.find(accelerator)
            seen[ref] = Observation(
                state=PlatformState.RUNNING,
                raw=f"assigned {accelerator}",
                card=came.name if came is not None else accelerator,
            )
        return seen

    def stop(self, ref: SessionRef, /) -> None:
        place = self._notes.known(ref)
        endpoint = str(noted(place).get("endpoint", "")) if place is not None else ""
        if place is None or not endpoint or endpoint not in self._account.assignments():
            return
        with contextlib.suppress(AdapterError):
            # it says "not found" and exits with 0 for what it has forgotten: only the list is believed
            self._program.run(place, ["stop", "-s", str(ref)])
        if endpoint in self._account.assignments():
            self._account.unassign(endpoint)

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        start = int(cursor) if cursor and cursor.isdigit() else 0
        place = self._notes.known(ref)
        if place is None:
            return LogPage(text="", cursor=cursor)
        self._account.refuse_blocked()
        fresh = place / "agent.log.new"
        with contextlib.suppress(
            AdapterError
        ):  # a runtime that is gone shows what was read of it before
            self._program.run(
                place, ["download", "-s", str(ref), f"content/{remote(ref)}.log", str(fresh)]
            )
        if fresh.exists():
            os.replace(fresh, place / "agent.log")
        try:
            data = (place / "agent.log").read_bytes()[start : start + LOG_PAGE]
        except FileNotFoundError:
            data = b""
        if len(data) == LOG_PAGE and b"\n" in data:
            data = data[: data.rindex(b"\n") + 1]  # not in the middle of a character
        return LogPage(text=data.decode("utf-8", "replace"), cursor=str(start + len(data)))

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def tidy(self, ref: SessionRef, /) -> None:
        place = self._notes.known(ref)
        if place is None:
            return
        self.stop(ref)
        shutil.rmtree(place, ignore_errors=True)

    def close(self) -> None:
        self._account.close()

    # --- what starts have left, and what is wrong ---------------------------------------------------------

    def unsettled(self) -> bool:
        return self._notes.unsettled()

    def settle(self) -> None:
        self._notes.sweep()

    def diagnose(self, store: str, /) -> Sequence[Finding]:
        return tuple(diagnose(self._account, store, only_paid=self.only_paid))

    def _who(self) -> dict[str, Any]:
        return {"adapter": self.name, "account": self.account}


def _gpus(name: str, given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"platform {name}: gpus is {given!r}, not a list of cards")
    for gpu in given:
        if gpu not in GPUS:
            raise ConfigError(
                f"platform {name}: Colab's program has no GPU that is called {gpu!r}",
                hint=f"known: {', '.join(GPUS)}",
            )
    return tuple(given)

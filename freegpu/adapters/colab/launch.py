"""One start: a runtime from Colab by its program, then the agent brought there and begun in a cell."""

from __future__ import annotations

import contextlib
import json
import secrets
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from freegpu import cards
from freegpu.adapters.base import Request
from freegpu.adapters.colab.account import Account
from freegpu.adapters.colab.answers import Answer, Said
from freegpu.adapters.colab.program import asked, session
from freegpu.adapters.hosts import held, write_private
from freegpu.errors import (
    AdapterError,
    NoCapacityError,
    QuotaExhaustedError,
    RejectedError,
    UnreachableError,
)

__all__ = ["Starts", "cell", "means", "remote"]


class Starts:
    """Starts sessions of one account."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.program = account.program
        self.who = account.who
        #: what opens the store, by name
        self.secrets: Callable[[], Mapping[str, str]] = dict

    def assign(self, place: Path, key: str, gpu: str, lock: int | None) -> tuple[str, str]:
        """A runtime and the accelerator that came. One request in flight for the account, and one POST for each."""
        with held(self.account.folder / "assign.lock") as alone:
            said = self.program.run(place, ["new", "-s", key, "--gpu", gpu], (lock, alone))
        endpoint = session(place, key).get("endpoint", "")
        answered = asked(place)
        if endpoint:
            came = next((a.json.get("accelerator") for a in answered if a.method == "POST"), gpu)
            return str(endpoint), str(came or gpu)
        raise self._refused(said, answered, gpu)

    def _refused(self, said: Said, answered: Sequence[Answer], gpu: str) -> AdapterError:
        """Why there is no runtime: the outcome in the body goes before the status, and both before what was printed."""
        last = next((a for a in reversed(answered) if "/assign" in a.url), None)
        if last is None:
            return UnreachableError(f"colab new came to no answer: {said.tail}", **self.who)
        outcome, status = last.json.get("outcome"), last.status
        if outcome == 5:
            self.account.block()
            return self.account.blocked()
        if outcome in (1, 2):
            what = {1: f"a runtime with a {gpu}", 2: "further use"}[outcome]
            return QuotaExhaustedError(
                f"Colab's quota does not allow {what} now",
                hint="`freegpu status` shows when it is refilled, where Colab tells",
                resets_at=self.account.refill(),
                **self.who,
            )
        if status == 200 and last.json.get("endpoint"):
            return NoCapacityError(
                f"Colab gave {last.json.get('accelerator')!r}, which its program cannot work with;"
                " it was given back",
                **self.who,
            )
        if status == 412:
            return self._ambiguous(gpu)
        if status == 400:
            return RejectedError(
                f"Colab does not give this account a {gpu}",
                hint="take it out of `gpus` in freegpu.toml",
                **self.who,
            )
        if status == 0:
            return UnreachableError(
                "the line to Colab broke while it was asked for a runtime", **self.who
            )
        if status == 503:
            return NoCapacityError(f"Colab has no {gpu} now", **self.who)
        return self.account.error(status, last.headers, "new")

    def _ambiguous(self, gpu: str) -> AdapterError:
        """412: too many runtimes by Google's own words, and on free accounts a lack of cards or of quota as well."""
        with contextlib.suppress(AdapterError):
            told = self.account.ccu()
            if not told.paid and told.left is not None and told.left <= 0:
                return QuotaExhaustedError(
                    "Colab's quota is used up", resets_at=told.refill, **self.who
                )
        return NoCapacityError(
            f"Colab gives no further runtime with a {gpu} now: too many runtimes, or none is free",
            **self.who,
        )

    def run(self, place: Path, request: Request, lock: int | None) -> None:
        """Bring the agent there and start it in a cell; the cell goes on when our program is killed."""
        name, nonce = remote(request.key), secrets.token_hex(12)
        packed, code = place / "launch.zip", place / "cell.py"
        try:
            self._pack(packed, request)
        except OSError as error:
            raise RejectedError(
                f"the launch cannot be packed: {error.strerror or error}",
                hint=f"check the space and permissions of {place}",
                **self.who,
            ) from error
        try:
            said = self.program.run(
                place, ["upload", "-s", request.key, str(packed), f"content/{name}.zip"], (lock,)
            )
        finally:
            packed.unlink(missing_ok=True)
        if "Uploaded" not in said.out:
            raise UnreachableError("the agent could not be brought to the runtime", **self.who)
        write_private(code, str(request.payload["cell"]).replace("NONCE", nonce).encode())
        mark = f"freegpu:{nonce}:"
        said = self.program.run(
            place,
            ["exec", "-s", request.key, "-f", str(code), "--timeout", "86400"],
            (lock,),
            until=mark,
        )
        line = next((line for line in said.out.splitlines() if line.startswith(mark)), "")
        word, _, detail = line.removeprefix(mark).partition(":")
        if word == "failed":
            raise RejectedError(f"the agent did not start there: {detail}", **self.who)
        if word != "started":
            raise UnreachableError("the cell that starts the agent gave no sign", **self.who)

    def _pack(self, packed: Path, request: Request) -> None:
        entrusted, profile = dict(self.secrets()), request.payload["profile"]
        write_private(packed, b"")  # private before anything is in it
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(str(request.payload["agent"]), "agent.pyz")
            archive.writestr("profile.json", json.dumps(profile))
            if entrusted:
                archive.writestr("access.json", json.dumps({"secrets": entrusted}))


def cell() -> str:
    """The text of the cell, without the call at its end."""
    return Path(__file__).with_name("cell.txt").read_text(encoding="utf-8").rstrip()


def remote(key: str) -> str:
    """What a session's files are called on its runtime."""
    return f"freegpu-{key}"


def means(gpu: str) -> str:
    """The card that Colab means by this word, as our table calls it; "" if it has none."""
    found = cards.find(gpu)
    return found.name if found is not None else ""

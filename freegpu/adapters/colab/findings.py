"""What is wrong with the program, the account, or the way there: for `connect` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from freegpu.adapters.base import Finding
from freegpu.adapters.colab.account import Account
from freegpu.adapters.colab.answers import Ccu, version
from freegpu.errors import AdapterError, AuthError

__all__ = ["diagnose"]

#: The version that this was tried with, and the oldest that is used: those before sent keep-alives from a daemon
TRIED = (0, 7, 5)
#: signatures and tokens fail when clocks are further apart, seconds
SKEW_S = 120.0


def diagnose(account: Account, store: str, *, only_paid: bool) -> Iterator[Finding]:
    """The program, the sign-in, the quota, the clock, and the store as sessions see it (`store`)."""
    yield from _program(account)
    if (account.folder / "blocked.json").exists():
        blocked = account.blocked()
        yield Finding(name="account", ok=False, detail=blocked.message, hint=blocked.hint)
        return
    try:
        account.bearer()
        told = account.ccu()
    except AdapterError as error:
        name = "credentials" if isinstance(error, AuthError) else "quota"
        yield Finding(name=name, ok=False, detail=error.message, hint=error.hint)
        return
    yield Finding(
        name="credentials",
        ok=True,
        detail=f"the colab program's own, in {account.program.token_path}",
    )
    yield _quota(told, only_paid=only_paid)
    if account.skew_s is not None:
        apart = abs(account.skew_s)
        yield Finding(
            name="clock",
            ok=apart < SKEW_S,
            detail=f"this machine's clock and Google's are {apart:.0f} s apart",
            hint="" if apart < SKEW_S else "set this machine's clock",
        )
    if store.startswith("folder:"):
        yield Finding(
            name="store",
            ok=None,
            detail="a folder: Colab's runtimes mount no Drive without a person; they reach s3: and drive: stores",
        )


def _program(account: Account) -> Iterator[Finding]:
    place = account.folder / "renew"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        said = account.program.run(place, ["version"])
    except AdapterError as error:
        yield Finding(name="installed", ok=False, detail=error.message, hint=error.hint)
        return
    found = version(said.out)
    if not found:
        yield Finding(
            name="installed",
            ok=False,
            detail=f"{account.program.path()} does not say its version: {said.tail}",
            hint="is it Google's colab program? It needs Python 3.12 or newer",
        )
        return
    told = ".".join(map(str, found))
    if found < TRIED:
        yield Finding(
            name="installed",
            ok=False,
            detail=f"google-colab-cli {told} at {account.program.path()} is too old: freegpu needs {'.'.join(map(str, TRIED))},"
            " and earlier ones keep runtimes awake by themselves",
            hint="`uv tool upgrade google-colab-cli` or `pipx upgrade google-colab-cli`",
        )
        return
    yield Finding(
        name="installed",
        ok=True if found == TRIED else None,
        detail=f"google-colab-cli {told} at {account.program.path()}"
        + ("" if found == TRIED else f"; freegpu was tried with {'.'.join(map(str, TRIED))}"),
    )


def _quota(told: Ccu, *, only_paid: bool) -> Finding:
    cards_told = ", ".join(sorted(told.eligible)) or "no GPU"
    left = (
        "Colab does not tell what is left"
        if told.left is None
        else f"{told.left:g} compute units are left"
    )
    kind = "a paid balance" if told.paid else "no paid balance"
    refill = f", refilled at {told.refill:%Y-%m-%d %H:%M} UTC" if told.refill else ""
    if only_paid and not told.paid:
        return Finding(
            name="quota",
            ok=None,
            detail=f"{kind}, and only_paid is set: nothing is started ({left}{refill})",
        )
    return Finding(name="quota", ok=True, detail=f"{kind}, {left}{refill}; eligible: {cards_told}")

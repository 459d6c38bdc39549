"""What `connect` and `doctor` tell of a Lightning account. Starts nothing; what fails is a finding."""

from __future__ import annotations

from collections.abc import Sequence

from freegpu.adapters.base import Finding
from freegpu.adapters.lightning import words
from freegpu.adapters.lightning.calls import Calls, authorization
from freegpu.adapters.lightning.meter import Meter
from freegpu.adapters.lightning.money import Money, Purse
from freegpu.clock import from_timestamp
from freegpu.config import without_password
from freegpu.errors import AdapterError


def of_account(
    calls: Calls, money: Money, meter: Meter, store: str, now: float
) -> Sequence[Finding]:
    """Installed, credentials, teamspace, balance, paid use, clock, store: as far as one needs the one before."""
    found = [
        Finding(name="installed", ok=True, detail="nothing needs to be installed for Lightning")
    ]
    stage = "credentials"
    try:
        _, where = authorization()
        user = calls.ask("GET", "/v1/auth/user")
        who = str(user.get("username") or user.get("id") or "somebody")
        found.append(Finding(name=stage, ok=True, detail=f"{where} are {who}'s"))
        found.append(_clock(calls.skew_s))
        stage = "teamspace"
        calls.project()
        found.append(Finding(name=stage, ok=True, detail=calls.teamspace or "the only one"))
        stage = "balance"
        notes = meter.read()
        purse = money.look(notes)
        ages = {source: words.age(now - notes.figures[source].since) for source in purse.said}
        found += [_balance(purse, ages, now), _paid(purse, money.ceiling)]
    except AdapterError as error:
        found.append(Finding(name=stage, ok=False, detail=error.message, hint=error.hint))
    if store:
        found.append(
            Finding(
                name="store",
                ok=None,
                detail=f"sessions open {without_password(store)} themselves; whether it can be reached from there only"
                " a session can tell",
                hint="`freegpu doctor lightning --live` runs a short one, which costs credits",
            )
        )
    return found


def _balance(purse: Purse, ages: dict[str, str], now: float) -> Finding:
    said = ", ".join(
        f"{name} {amount:.2f} (unchanged for {ages[name]})" for name, amount in purse.said.items()
    )
    return Finding(
        name="balance",
        ok=True,
        detail=f"{purse.said[purse.source]:.2f} credits by the {purse.source} balance, read at"
        f" {from_timestamp(now):%H:%M:%S} UTC; sources: {said}; the platform's figures may lag by hours, by our own"
        f" meter {purse.used:.2f} of {purse.limit:.2f} are used",
    )


def _paid(purse: Purse, ceiling: float) -> Finding:
    if not ceiling:
        return Finding(name="paid-use", ok=None, detail="nothing beyond the balance is used")
    return Finding(
        name="paid-use",
        ok=None,
        detail=f"up to {ceiling:g} credits a month beyond the balance that it began with; {max(0.0, purse.free):.2f}"
        " may be used from now on",
        hint="`freegpu connect lightning --paid-ceiling 0` takes the permission back",
    )


def _clock(skew: float | None) -> Finding:
    if skew is None:
        return Finding(name="clock", ok=None, detail="the platform does not tell its time")
    if abs(skew) <= 60:
        return Finding(name="clock", ok=True, detail="agrees with the platform's")
    return Finding(
        name="clock",
        ok=False,
        detail=f"differs from the platform's by {abs(skew):.0f} s",
        hint="set this machine's clock by a time server",
    )

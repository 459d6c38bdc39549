"""`connect lightning`: use a Lightning AI account, with the credentials that its own tools keep."""

from __future__ import annotations

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.connect.platform import connecting, store_option

__all__ = ["lightning"]

PAID = "paid-use"


@command(
    "connect lightning",
    example="freegpu connect lightning\n"
    "freegpu connect lightning --teamspace ada/lab --machines T4,L4\n"
    "freegpu connect lightning --paid-ceiling 5 --accept paid-use",
)
@click.option(
    "--teamspace", metavar="OWNER/NAME", help="Which teamspace; needed if you have several."
)
@click.option("--machines", metavar="CARDS", help="Cards that may be started, e.g. T4,L4,T4x4.")
@click.option(
    "--paid-ceiling",
    type=float,
    metavar="CREDITS",
    help="Credits a month that may be used beyond the balance; 0 takes that back (default: none).",
)
@click.option("--accept", metavar="WORD", help=f"Say {PAID} to allow what --paid-ceiling names.")
@store_option("sessions there")
@click.option("--as", "name", default="lightning", metavar="NAME", help="What to call it here.")
def lightning(
    call: Call,
    teamspace: str | None,
    machines: str | None,
    paid_ceiling: float | None,
    accept: str | None,
    store: str | None,
    name: str,
) -> Result:
    """Use your Lightning AI account from now on.

    Takes the credentials from where Lightning's own tools keep them, tries them, and stores no copy. No more than the
    balance is used unless you allow it by name and with a ceiling.
    """
    options: dict[str, object] = {}
    if paid_ceiling:
        if accept != PAID:
            raise click.UsageError(
                f"--paid-ceiling may cost you money: add --accept {PAID} to allow up to {paid_ceiling:g} credits"
            )
        options["paid"] = {"allow": PAID, "ceiling": paid_ceiling}
    elif accept is not None:
        raise click.UsageError("--accept goes with --paid-ceiling")
    elif paid_ceiling is not None:
        options["paid"] = None
    if teamspace:
        options["teamspace"] = teamspace
    if machines:
        options["machines"] = [word.strip() for word in machines.split(",") if word.strip()]
    return connecting(call, name, "lightning", options, store=store)

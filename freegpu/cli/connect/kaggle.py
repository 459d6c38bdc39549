"""`connect kaggle`: use a Kaggle account, with the credentials that Kaggle's own tools keep."""

from __future__ import annotations

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.connect.platform import connecting, store_option

__all__ = ["kaggle"]


@command(
    "connect kaggle",
    example="freegpu connect kaggle\nfreegpu connect kaggle --carry store --credentials private-dataset",
)
@click.option(
    "--carry",
    type=click.Choice(["sealed", "store"]),
    default="sealed",
    show_default=True,
    help="sealed: no credentials leave, results come back at the end. store: sessions open the store.",
)
@click.option(
    "--credentials",
    type=click.Choice(["none", "private-dataset"]),
    default="none",
    show_default=True,
    help="With --carry store: whether the store's keys may lie in a private dataset while a session runs.",
)
@store_option("sessions with --carry store")
@click.option("--as", "name", default="kaggle", metavar="NAME", help="What to call it here.")
def kaggle(call: Call, carry: str, credentials: str, store: str | None, name: str) -> Result:
    """Use your Kaggle account from now on.

    Takes the credentials from where Kaggle's own tools keep them, tries them, shows the quota, and stores no copy. The user
    name is kept: credentials of another account are refused later.
    """
    if carry == "sealed" and credentials != "none":
        raise click.UsageError("--credentials goes with --carry store: sealed sessions need none")
    if carry == "sealed" and store:
        raise click.UsageError("--store goes with --carry store: sealed sessions open no store")
    options: dict[str, object] = {
        # whoever is signed in now; written down when it worked
        "account": None,
        "carry": carry,
        "credentials": None if credentials == "none" else credentials,
    }
    return connecting(call, name, "kaggle", options, store=store)

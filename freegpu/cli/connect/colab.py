"""`connect colab`: Google's own program for Colab, after its rules were read and accepted."""

from __future__ import annotations

from pathlib import Path

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.connect.platform import connecting, store_option

__all__ = ["colab"]


@command(
    "connect colab",
    example="freegpu connect colab --only-paid --accept free-unattended-use",
)
@click.option(
    "--accept",
    multiple=True,
    metavar="RULES",
    help="Accept these rules by name, after you have read them: free-unattended-use.",
)
@click.option(
    "--only-paid/--also-free",
    default=None,
    help="Start runtimes only while the balance of compute units is positive.",
)
@click.option(
    "--cli",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Where the colab program is, if it is not on the PATH.",
)
@store_option("sessions there")
@click.option("--as", "name", default="colab-cli", metavar="NAME", help="The platform's name.")
def colab(
    call: Call,
    accept: tuple[str, ...],
    only_paid: bool | None,
    cli: Path | None,
    store: str | None,
    name: str,
) -> Result:
    """Let freegpu start Colab runtimes through Google's own colab program.

    Off unless you do this. It uses the program's own sign-in, and starts nothing now. The notebook cell of
    `freegpu cell colab` stays the usual way.
    """
    from freegpu.adapters.colab import forget_block

    options: dict[str, object] = {}
    if only_paid is not None:
        options["only_paid"] = only_paid
    if cli is not None:
        options["cli"] = str(cli.expanduser().absolute())
    with call.workspace() as workspace:
        forget_block(workspace.settings.home, name)
    return connecting(call, name, "colab-cli", options, store=store, accept=accept)

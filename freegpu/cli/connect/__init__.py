"""`freegpu connect`: what is connected, a module each. Kept apart so that help imports none of them."""

from __future__ import annotations

from types import MappingProxyType

import click

from freegpu.cli.call import Call
from freegpu.cli.command import common_options
from freegpu.cli.lazy import LazyGroup, Sections

__all__ = ["SECTIONS", "connect"]

SECTIONS: Sections = MappingProxyType(
    {
        "Stores": {
            "store": ("store", "store", "Use this store from now on, and find out what it can do."),
            "drive": ("drive", "drive", "Sign in to Google Drive, to keep the store there."),
        },
        "Platforms": {
            "colab": (
                "colab",
                "colab",
                "Let freegpu start Colab runtimes through Google's own colab program.",
            ),
            "kaggle": ("kaggle", "kaggle", "Use your Kaggle account from now on."),
            "lightning": ("lightning", "lightning", "Use your Lightning AI account from now on."),
            "ssh": ("ssh", "ssh", "Use a host that you reach by ssh from now on."),
        },
    }
)


@click.group(
    "connect",
    cls=LazyGroup,
    sections=SECTIONS,
    package="freegpu.cli.connect",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  freegpu connect store folder:/mnt/drive/freegpu",
)
@common_options
@click.pass_context
def connect(context: click.Context) -> None:
    """Connect shared storage: sign in, check, measure, set.

    What is found out is kept in the home and in its ledger; nothing secret goes into freegpu.toml.
    """
    if context.invoked_subcommand is None:
        if context.ensure_object(Call).json:
            kinds = [name for section in SECTIONS.values() for name in section]
            context.fail(f"say what to connect: {', '.join(kinds)}")
        click.echo(context.get_help())

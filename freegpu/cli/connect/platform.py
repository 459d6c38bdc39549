"""What every `connect PLATFORM` does with what was found out: show it, and say what comes next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.output import Output
from freegpu.cli.plain import Failure
from freegpu.cli.text import pad, safe, width
from freegpu.errors import AdapterError

__all__ = ["connecting", "store_option"]

F = TypeVar("F", bound=Callable[..., Any])

_WORDS = {True: ("ok", "good"), False: ("problem", "bad"), None: ("information", "dim")}


def store_option(where: str) -> Callable[[F], F]:
    """`--store`: how sessions there see the store, where that is not as it is seen here."""
    return click.option(
        "--store",
        metavar="URL",
        help=f"How {where} see the store, if not as it is seen here; '' takes that back.",
    )


def connecting(
    call: Call,
    name: str,
    adapter: str,
    options: Mapping[str, Any],
    *,
    store: str | None = None,
    accept: Collection[str] = (),
) -> Result:
    """Connect this platform. Exit code 0 if it is used from now on, 40 if something that it needs is missing.

    Options that are None are taken out of its table in freegpu.toml.
    """
    with call.workspace() as workspace:
        made = workspace.connect_platform(name, adapter, options, store=store, accept=accept)
    broken = [finding for finding in made.findings if finding.ok is False]

    def show(out: Output) -> None:
        wide = max((width(finding.name) for finding in made.findings), default=0)
        for finding in made.findings:
            word, style = _WORDS[finding.ok]
            out.line(
                f"{out.paint(pad(word, 11), style)}  {pad(finding.name, wide)}  {safe(finding.detail)}"
            )
            if finding.hint:
                out.line(f"{' ' * (wide + 15)}{out.paint('-> ' + safe(finding.hint), 'busy')}")
        out.line()
        if not made.connected:
            out.line(f"{name} is not connected; nothing was changed")
            return
        again = "" if made.changed else ", and was before"
        out.line(f"{name} is connected as {safe(made.account)}{again}; see {safe(made.file)}")
        for note in made.notes:
            out.warn(note)
        out.note(f"`freegpu doctor {name}` looks again; with --live it runs a two-minute job there")

    return Result(
        data=made,
        show=show,
        exit_code=0 if made.connected else AdapterError.exit_code,
        errors=tuple(
            Failure(code="connect", message=f"{f.name}: {f.detail}", hint=f.hint) for f in broken
        )
        if call.json
        else (),
    )

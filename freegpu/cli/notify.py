"""`freegpu notify`: where to tell people what happened. A group; each command shows addresses without secrets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command, common_options
from freegpu.cli.lazy import LazyGroup, Sections
from freegpu.cli.output import Output
from freegpu.cli.plain import Failure
from freegpu.cli.text import Column
from freegpu.errors import UnreachableError

if TYPE_CHECKING:
    from freegpu.orchestrator.addresses import Address

__all__ = ["SECTIONS", "notify"]

SECTIONS: Sections = MappingProxyType(
    {
        "Commands": {
            "add": ("notify", "add", "Add an address, or change what it hears of."),
            "list": ("notify", "show", "List the addresses, without their secrets."),
            "remove": ("notify", "remove", "Remove an address."),
            "test": ("notify", "test", "Send a test notice to every address now."),
        },
    }
)


@click.group(
    "notify",
    cls=LazyGroup,
    sections=SECTIONS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  freegpu notify add ntfys://my-secret-topic --on failed,lost",
)
@common_options
@click.pass_context
def notify(context: click.Context) -> None:
    """Have notices sent to your phone, chat or mail.

    Of jobs that ended, sessions that were lost, quotas that came back, and clicks that would pay off.
    """
    if context.invoked_subcommand is None:
        if context.ensure_object(Call).json:
            context.fail(f"say what to do: {', '.join(SECTIONS['Commands'])}")
        click.echo(context.get_help())


@command(
    "notify add",
    example="freegpu notify add ntfys://my-secret-topic\n"
    "freegpu notify add tgram://TOKEN/CHAT --on failed,lost\n"
    "freegpu notify add - < url.txt",
)
@click.argument("url", metavar="URL")
@click.option(
    "--on",
    metavar="EVENT,...",
    help="Only of these: succeeded, failed, lost, quota, attended. All without it.",
)
def add(call: Call, url: str, on: str | None) -> Result:
    """Add an address, or change what it hears of.

    URL is one of Apprise's; - reads it from standard input, so that it stands on no command line. It is kept in
    notify.toml in the home, readable by you alone.
    """
    from freegpu.orchestrator import addresses
    from freegpu.orchestrator.notify import begin

    kinds = _kinds(on)
    if url == "-":
        url = sys.stdin.readline().strip()
    with call.workspace() as workspace:
        home = call.settings.home
        first = not addresses.read(home)
        found = addresses.add(home, addresses.Address(url=url, on=kinds))
        if first:
            begin(workspace.ledger)
    number = next(n for n, each in enumerate(found, 1) if each.url == url)

    def show(out: Output) -> None:
        _lines(out, found)
        out.note(f"number {number} is set; `freegpu notify test` tries it")

    return Result(data={"number": number, "addresses": _plain(found)}, show=show)


@command("notify list", example="freegpu notify list")
def show(call: Call) -> Result:
    """List the addresses, without their secrets."""
    from freegpu.orchestrator import addresses

    found = addresses.read(call.settings.home)
    return Result(data={"addresses": _plain(found)}, show=lambda out: _lines(out, found))


@command("notify remove", example="freegpu notify remove 2")
@click.argument("which", metavar="N-or-URL")
def remove(call: Call, which: str) -> Result:
    """Remove an address.

    Named by its number in `freegpu notify list`, or by its whole URL. What waits to be sent to it is dropped.
    """
    from freegpu.orchestrator import addresses

    with call.workspace():
        found = addresses.remove(call.settings.home, which)
    return Result(data={"addresses": _plain(found)}, show=lambda out: _lines(out, found))


@command("notify test", example="freegpu notify test")
def test(call: Call) -> Result:
    """Send a test notice to every address now.

    Exit code 46 if one of them cannot be reached, 10 if there is none.
    """
    from freegpu.errors import ConfigError
    from freegpu.orchestrator import addresses
    from freegpu.orchestrator.notices import Notice, NoticeKind

    there = addresses.read(call.settings.home)
    if not there:
        raise ConfigError("there is no address yet", hint="`freegpu notify add URL` adds one")
    notice = Notice(
        kind=NoticeKind.SUCCEEDED,
        key="test",
        title="freegpu can reach you here",
        body="This is what a notice looks like; nothing has happened.",
    )
    reasons = [addresses.send(address, notice) for address in there]
    results = [
        {"number": number, "url": address.shown, "sent": not reason, "reason": reason}
        for number, (address, reason) in enumerate(zip(there, reasons, strict=True), 1)
    ]
    failed = tuple(
        Failure(
            code=UnreachableError.code,
            message=f"number {each['number']}, {each['url']}: {each['reason']}",
            hint="check the URL, and that this machine reaches the service",
        )
        for each in results
        if not each["sent"]
    )

    def tell(out: Output) -> None:
        for each in results:
            if each["sent"]:
                out.line(f"{each['number']}  {each['url']}  sent")

    code = UnreachableError.exit_code if failed else 0
    return Result(data={"results": results}, show=tell, exit_code=code, errors=failed)


def _kinds(on: str | None) -> tuple[Any, ...]:
    from freegpu.orchestrator.notices import NoticeKind

    if on is None:
        return tuple(NoticeKind)
    words = [word.strip() for word in on.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(NoticeKind)]
    if unknown or not words:
        raise click.BadParameter(
            f"{unknown[0]!r} is no event" if unknown else "it names no event",
            param_hint=f"'--on' (of {', '.join(NoticeKind)})",
        )
    return tuple(kind for kind in NoticeKind if kind in words)


def _plain(addresses: Sequence[Address]) -> list[dict[str, Any]]:
    return [
        {"number": number, "url": each.shown, "on": each.on}
        for number, each in enumerate(addresses, 1)
    ]


def _lines(out: Output, addresses: Sequence[Address]) -> None:
    if not addresses:
        out.note("no address; `freegpu notify add URL` adds one")
        return
    columns = (Column(title="N", right=True), Column(title="ADDRESS"), Column(title="HEARS OF"))
    rows = [
        (str(number), each.shown, ", ".join(each.on)) for number, each in enumerate(addresses, 1)
    ]
    out.table(columns, rows)

"""`connect ssh`: a host of one's own, with the keys and the configuration that the user's ssh has."""

from __future__ import annotations

import re
import sys

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.connect.platform import connecting, store_option
from freegpu.config import check_platform_name
from freegpu.errors import ConfigError

__all__ = ["ssh"]


@command(
    "connect ssh",
    example="freegpu connect ssh ada@lab.example.com\n"
    "freegpu connect ssh gpubox --as box --store folder:/mnt/shared/freegpu\n"
    "freegpu connect ssh ada@lab.example.com:2222 --accept-key SHA256:...",
)
@click.argument("host", metavar="[USER@]HOST[:PORT]")
@click.option(
    "--as", "name", metavar="NAME", help="What to call it here; the host's name if not given."
)
@store_option("sessions on that host")
@click.option(
    "--accept-key",
    "keys",
    multiple=True,
    metavar="SHA256:...",
    help="The fingerprint of the host's key, if ssh does not know it yet.",
)
@click.option("--python", metavar="PATH", help="The Python there; python3 if not given.")
@click.option(
    "--idle-mb", type=click.IntRange(0), metavar="MIB", help="What a free card may hold (500)."
)
def ssh(
    call: Call,
    host: str,
    name: str | None,
    store: str | None,
    keys: tuple[str, ...],
    python: str | None,
    idle_mb: int | None,
) -> Result:
    """Use a host that you reach by ssh from now on.

    Takes hosts, keys and jumps from ~/.ssh and your agent; no password. Looks at its Python, cards, clock and disk, and
    tries the way from there to the store. Several hosts may be connected.
    """
    name = name or _name(host)
    check_platform_name(name)
    there = call.settings.platforms.get(name)
    if there is not None and (there.adapter != "ssh" or there.options.get("host") != host):
        raise ConfigError(
            f"a platform is called {name} already ({there.options.get('host', there.adapter)})",
            hint="give this one another name with --as, or take the other out of freegpu.toml",
        )
    if keys:
        _trust(call, name, host, keys)
    options = {"host": host, "python": python, "idle_mb": idle_mb}
    given = {key: value for key, value in options.items() if value is not None}
    result = connecting(call, name, "ssh", given, store=store)
    unknown = _offered(result)
    if unknown and not keys and not call.json and sys.stdin.isatty():
        click.echo(unknown[0], err=True)
        if click.confirm(f"Is {unknown[1]} the key of that host?", err=True):
            _trust(call, name, host, [unknown[1]])
            result = connecting(call, name, "ssh", given, store=store)
    return result


def _name(host: str) -> str:
    """The host's first label as a platform's name."""
    where = host.rpartition("@")[2].strip("[]")
    numbers = re.fullmatch(r"[\d.]+(:\d+)?", where) or where.count(":") > 1
    label = where.partition(":")[0] if not numbers else f"host-{where.partition(':')[0]}"
    label = label if numbers else label.partition(".")[0]
    found = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    return (found if found[:1].isalpha() else f"host-{found}")[:32].rstrip("-")


def _trust(call: Call, name: str, host: str, keys: tuple[str, ...] | list[str]) -> None:
    from freegpu.adapters.ssh import SshAdapter
    from freegpu.clock import SystemClock

    adapter = SshAdapter.from_options(
        name, {"host": host}, home=call.settings.home, clock=SystemClock()
    )
    try:
        adapter.trust(keys)
    finally:
        adapter.close()


def _offered(result: Result) -> tuple[str, str] | None:
    """What was said of a host key that a person may accept, and its fingerprint."""
    for finding in result.data.findings:
        found = re.search(r"--accept-key (SHA256:\S+?)`", finding.hint)
        if finding.ok is False and found:
            return finding.detail, found[1]
    return None

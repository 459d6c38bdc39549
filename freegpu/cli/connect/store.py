"""`connect store`: one store, checked and measured before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.text import number, safe, size

if TYPE_CHECKING:
    from freegpu.orchestrator.probe import Measured

__all__ = ["figures", "store", "telling"]


@command(
    "connect store",
    example="freegpu connect store folder:/mnt/drive/freegpu\n"
    "freegpu connect store 's3://my-bucket/freegpu?endpoint=https://s3.example.com'\n"
    "freegpu connect store sftp://me@lab.example.com/data/freegpu\n"
    "freegpu connect store rclone:onedrive:freegpu",
)
@click.argument("url")
@click.option(
    "--force",
    is_flag=True,
    help="Even if open jobs have code and checkpoints in the store before.",
)
def store(call: Call, url: str, force: bool) -> Result:
    """Use this store from now on, and find out what it can do.

    Opens it, marks it as this home's, measures it with two clients, and writes it into freegpu.toml. What was
    measured is kept, and agents and orchestrator go by it. Nothing is changed if the store cannot be used.
    """
    with call.workspace() as workspace:
        connected = workspace.connect_store(url, force=force, say=telling(call))

    def show(out: Output) -> None:
        kind = "a new store" if connected.made else "this home's store"
        again = "" if connected.changed else ", and was set already"
        out.line(f"{safe(connected.store)} is {kind}{again}")
        out.facts([("written into", connected.file), *figures(connected.measured)])
        out.line()
        for sentence in connected.means:
            out.line(f"- {safe(sentence)}")
        for note in connected.notes:
            out.warn(note)

    return Result(data=connected, show=show)


def telling(call: Call) -> Callable[[str], None]:
    """What a person is told while a store is measured; a program is spared it."""

    def say(step: str) -> None:
        if not call.json:
            call.out.note(f"measuring: {step}")

    return say


def figures(found: Measured) -> list[tuple[str, str]]:
    """What was measured, for people."""

    def lag(seconds: float | None) -> str:
        if seconds is None:
            return "longer than was waited"
        return "none" if seconds == 0 else _time(seconds)

    space = found.space
    return [
        ("small put", _pair(found.put.median_s, found.put.p95_s)),
        ("small get", _pair(found.get.median_s, found.get.p95_s)),
        ("list", _pair(found.list.median_s, found.list.p95_s)),
        ("stat", _pair(found.stat.median_s, found.stat.p95_s)),
        ("upload", f"{size(int(found.up))}/s" if found.up else ""),
        ("download", f"{size(int(found.down))}/s" if found.down else ""),
        ("new object listed after", lag(found.list_lag_s)),
        ("new object readable after", lag(found.read_lag_s)),
        ("replaced object seen after", lag(found.replace_lag_s)),
        ("seen in order", _word(found.ordered)),
        ("one of racing writers wins", _word(found.cas)),
        ("server tells digests", _word(found.server_digest)),
        (
            "largest object",
            f"{size(found.max_object)}"
            if found.max_object is not None
            else f"at least {size(found.at_least)}",
        ),
        (
            "left",
            f"{size(space.free)}{f' of {size(space.total)}' if space.total else ''}"
            if space and space.free is not None
            else "the store does not tell",
        ),
    ]


def _word(fact: bool) -> str:
    return "yes" if fact else "no"


def _pair(median_s: float, p95_s: float) -> str:
    return f"{_time(median_s)} (slowest {_time(p95_s)})"


def _time(seconds: float) -> str:
    return f"{number(round(seconds * 1000, 1))} ms" if seconds < 1 else f"{seconds:.1f} s"

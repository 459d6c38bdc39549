"""`init` and `doctor`: making a home, and telling what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from freegpu.cli.call import Call, Result
from freegpu.cli.command import command
from freegpu.cli.output import Output
from freegpu.cli.plain import Failure
from freegpu.cli.text import pad, safe, width
from freegpu.errors import ConfigError, FreeGPUError

if TYPE_CHECKING:
    from freegpu.orchestrator.probe import Measured
    from freegpu.orchestrator.views import Check, StoreReport

#: what `doctor` is asked for to measure the store; no platform bears this name
STORE = "store"


@command("init", example="FREEGPU_HOME=~/gpu freegpu init")
@click.option(
    "--here",
    is_flag=True,
    help="Go on with a copied or moved home on this machine; the one it was copied from stops.",
)
def init(call: Call, here: bool) -> Result:
    """Make the home ready: ledger, key, store, platforms.

    Running it again changes nothing. No command needs it: the first one that writes does the same.
    """
    from freegpu.config import FILE_NAME, without_password

    with call.workspace() as workspace:
        made = workspace.init(here=here)
    data = {
        "home": made.home,
        "store": without_password(made.store),
        "db": without_password(made.db),
        "platforms": made.platforms,
        "created": made.created,
    }

    def show(out: Output) -> None:
        said = "this home goes on here from now on" if here else "this home was ready already"
        out.line("made a new home" if made.created else said)
        out.facts(
            [
                ("home", made.home),
                ("store", str(data["store"])),
                ("ledger", str(data["db"])),
                ("platforms", ", ".join(made.platforms) or "none"),
            ]
        )
        out.note(f"settings go into {made.home}/{FILE_NAME}; `freegpu doctor` checks them")

    return Result(data=data, show=show)


@command("doctor", example="freegpu doctor\nfreegpu doctor local --live\nfreegpu doctor store")
@click.argument("platform", required=False, metavar="[PLATFORM]")
@click.option(
    "--live", is_flag=True, help="Really run a one-line job on each platform, in a home of its own."
)
def doctor(call: Call, platform: str | None, live: bool) -> Result:
    """Check what is installed, reachable and configured.

    Each line says ok, problem or information, and what to do. Exit code 0 if nothing is broken, 10 otherwise.
    `freegpu doctor store` measures the store instead of a platform.
    """
    from freegpu.config import without_password

    if platform == STORE and live:
        raise click.UsageError("--live runs a job on platforms; the store is measured without it")
    settings: dict[str, Any] = {}
    report: StoreReport | None = None
    try:
        settings = _settings(call)
        with call.workspace() as workspace:
            if platform == STORE:
                from freegpu.cli.connect.store import telling

                report = workspace.doctor_store(telling(call))
                checks = list(report.checks)
            else:
                checks = list(workspace.doctor(platform))
            if live:
                from freegpu.cli import live as rehearsal

                checks += rehearsal.run(call, workspace, platform)
    except FreeGPUError as error:
        # a home or settings file that cannot be used is a finding like any other
        from freegpu.orchestrator.views import Check

        name = "settings" if isinstance(error, ConfigError) else "home"
        checks = [Check(name=name, ok=False, detail=str(error), hint=error.hint)]
    # what doctor prints is pasted into issues, and a driver's message may quote its whole URL
    checks = [replace(check, detail=without_password(check.detail)) for check in checks]
    broken = [check for check in checks if check.ok is False]
    data: dict[str, Any] = {"checks": checks, "settings": settings}
    if platform == STORE:
        data |= {
            "measured": report.measured if report else None,
            "means": report.means if report else (),
        }

    def show(out: Output) -> None:
        if report is not None and report.measured is not None:
            _show_measured(out, report.measured, report.means)
        _show(out, checks, settings, everything=platform is None)

    return Result(
        data=data,
        show=show,
        exit_code=ConfigError.exit_code if broken else 0,
        errors=tuple(
            Failure(code="doctor", message=f"{c.name}: {c.detail}", hint=c.hint) for c in broken
        )
        if call.json
        else (),
    )


def _show_measured(out: Output, measured: Measured, means: Sequence[str]) -> None:
    from freegpu.cli.connect.store import figures

    out.facts(figures(measured))
    out.line()
    for sentence in means:
        out.line(f"- {safe(sentence)}")
    out.line()


def _settings(call: Call) -> dict[str, Any]:
    """Every setting with its origin."""
    from freegpu.config import NUMBERS, without_password

    settings = call.settings
    found: dict[str, Any] = {}
    for name in ("home", "store", "db", *NUMBERS):
        value = getattr(settings, name)
        shown = value if isinstance(value, int | float) else without_password(str(value))
        found[name] = {"value": shown, "source": settings.sources.get(name, "default")}
    return found


def _show(
    out: Output, checks: Sequence[Check], settings: dict[str, Any], *, everything: bool
) -> None:
    words = {True: ("ok", "good"), False: ("problem", "bad"), None: ("information", "dim")}
    wide = max((width(safe(check.name)) for check in checks), default=0)
    for check in checks:
        word, style = words[check.ok]
        out.line(
            f"{out.paint(pad(word, 11), style)}  {pad(safe(check.name), wide)}  {safe(check.detail)}"
        )
        if check.hint:
            out.line(f"{' ' * (wide + 15)}{out.paint('-> ' + safe(check.hint), 'busy')}")
    changed = {n: e for n, e in settings.items() if e["source"] not in ("default",)}
    if everything and changed:
        out.line()
        out.title("Settings that are not the default")
        out.facts([(name, f"{e['value']} (from {e['source']})") for name, e in changed.items()])
    broken = sum(check.ok is False for check in checks)
    out.line()
    out.line(f"{broken} problem{'s' if broken > 1 else ''}" if broken else "nothing is broken")

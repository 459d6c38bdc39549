"""Groups whose commands are imported when they are called: `freegpu --help` costs no more than click.

Decides which commands there are, in which order help lists them, and in which module each one lives. A
group inside the group (`freegpu connect`) is a module that declares another LazyGroup over its own sections.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

__all__ = ["COMMANDS", "SECTIONS", "LazyGroup", "Sections"]

#: heading -> name -> (module, attribute, the line that help shows). The line is the first of the command's own help
Sections = Mapping[str, Mapping[str, tuple[str, str, str]]]

SECTIONS: Sections = MappingProxyType(
    {
        "Begin": {
            "demo": (
                "demo",
                "demo",
                "See everything end to end on this machine, without an account.",
            ),
            "init": ("setup", "init", "Make the home ready: ledger, key, store, platforms."),
            "connect": (
                "connect",
                "connect",
                "Connect shared storage: sign in, check, measure, set.",
            ),
            "doctor": ("setup", "doctor", "Check what is installed, reachable and configured."),
        },
        "Jobs": {
            "submit": ("submit", "submit", "Submit the jobs of a job spec."),
            "cancel": ("control", "cancel", "Cancel jobs."),
            "plan": ("plan", "plan", "Tell what would become of jobs before they are submitted."),
            "retry": ("control", "retry", "Try a failed or cancelled job again."),
            "interrupt": ("control", "interrupt", "Rehearse a preemption of a running job."),
            "pull": ("pull", "pull", "Bring a job's outputs or a checkpoint here, verified."),
        },
        "Looking": {
            "status": ("status", "status", "Show platforms with quota, sessions and jobs."),
            "cards": (
                "cards",
                "cards",
                "Show cards: memory, what they can compute, and how fast they are.",
            ),
            "jobs": ("jobs", "jobs", "List jobs."),
            "show": ("jobs", "show", "Show everything about one job."),
            "why": ("jobs", "why", "Tell why a job is where it is, platform by platform."),
            "results": ("results", "results", "Show what the cells of a matrix came to."),
            "report": ("report", "report", "Tell what the last weeks brought."),
            "simulate": (
                "plan",
                "simulate",
                "Run your queue and quotas forward, and draw what comes of it.",
            ),
            "logs": ("logs", "logs", "Print a job's output, over all its attempts."),
            "checkpoints": (
                "checkpoints",
                "checkpoints",
                "List a job's checkpoints, over all its attempts.",
            ),
        },
        "Running": {
            "cell": ("cell", "cell", "Make the agent cell for a notebook."),
            "up": ("up", "up", "Move jobs on until stopped."),
            "tick": ("up", "tick", "Move jobs on once."),
            "notify": ("notify", "notify", "Have notices sent to your phone, chat or mail."),
            "gc": ("gc", "gc", "Delete what nothing refers to any more."),
        },
        "About": {
            "schema": ("about", "schema", "Print the JSON Schema of a job spec, for editors."),
            "version": ("about", "version", "Print the version."),
        },
    }
)

COMMANDS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {name: entry for section in SECTIONS.values() for name, entry in section.items()}
)


class LazyGroup(click.Group):
    """The commands of `sections`, whose modules lie in `package`."""

    def __init__(
        self,
        *args: Any,
        sections: Sections = SECTIONS,
        package: str = "freegpu.cli",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.package = package
        self.entries = {name: e for section in sections.values() for name, e in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.entries:
            return None
        module, attribute, _ = self.entries[cmd_name]
        found: click.Command = getattr(
            importlib.import_module(f"{self.package}.{module}"), attribute
        )
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (name in self.entries or name.startswith("-") or ctx.resilient_parsing):
            import difflib

            near = difflib.get_close_matches(name[:40].lower(), self.entries, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"there is no command {name[:40]!r}{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, entry[2]) for name, entry in commands.items()])

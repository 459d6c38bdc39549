"""How a command is declared: a function from the call to a Result, with an example that its help shows."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, TypeVar

import click

from freegpu.cli.call import Call, Result

__all__ = ["command", "common_options"]

F = TypeVar("F", bound=Callable[..., Any])


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Call).json = True


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        call = context.ensure_object(Call)
        if not call.debug:
            call.debug = True
            _log_to_stderr()


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s: %(message)s")
    # the libraries' own chatter says nothing about a job
    for name in ("apscheduler", "asyncio", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.WARNING)


def common_options(function: F) -> F:
    """`--json` and `--debug`, which every command takes, also in front of its name."""
    function = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_set_debug,
        help="Show tracebacks and log to stderr.",
    )(function)
    return click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_set_json,
        help="Answer in one JSON envelope.",
    )(function)


class _Command(click.Command):
    """A command whose errors of usage always know which command it was: the parser's own do not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise


def command(name: str, *, example: str) -> Callable[[Callable[..., Result]], click.Command]:
    """Declare a command. Its function gets the Call first, then its options by name.

    `name` is what a user types behind `freegpu`, also of a command in a group: "connect store".
    """

    def declare(function: Callable[..., Result]) -> click.Command:
        @click.pass_obj
        def invoke(call: Call, /, **options: Any) -> None:
            call.command = name
            call.finish(function(call, **options))

        wrapped = update_wrapper(invoke, function)
        wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        lines = "\n".join(f"  {line}" for line in example.strip().splitlines())
        return click.command(
            name.split()[-1],
            cls=_Command,
            epilog=f"\b\nExample:\n{lines}",
            context_settings={"help_option_names": ["-h", "--help"]},
        )(common_options(wrapped))

    return declare

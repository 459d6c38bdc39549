"""The command `freegpu`: global options, and what becomes of every error that a command lets out.

No traceback reaches a user unless `--debug` asks for it. Exit codes: docs/reference/exit-codes.md.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click

from freegpu import __version__
from freegpu.cli.call import Call, failure
from freegpu.cli.command import common_options
from freegpu.cli.lazy import LazyGroup
from freegpu.cli.output import ReaderGone
from freegpu.cli.plain import Failure
from freegpu.errors import FreeGPUError

__all__ = ["BROKEN_PIPE", "INTERNAL", "INTERRUPTED", "USAGE", "app", "run"]

#: exit codes that belong to no class of error
INTERNAL = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
#: set by a shell that asks for completions; see docs/reference/cli.md
COMPLETE_VARIABLE = "_FREEGPU_COMPLETE"


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  freegpu demo\n  freegpu submit job.yaml --wait",
)
@click.version_option(__version__, prog_name="freegpu", message="%(prog)s %(version)s")
@common_options
@click.pass_context
def app(context: click.Context) -> None:
    """One queue over all your free GPUs.

    Jobs are checkpointed while they run, and continue elsewhere when a session ends.

    FREEGPU_HOME, FREEGPU_STORE and FREEGPU_DB name the home, the shared storage and the ledger; every
    command takes --json.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(argv: Sequence[str], *, call: Call | None = None) -> int:
    """Run one command line and return its exit code. Prints; raises nothing."""
    call = call or Call()
    options = list(argv)
    before = options[: options.index("--")] if "--" in options else options
    # a command line that cannot be parsed must be answered in the form that was asked for all the same
    call.json = "--json" in before
    call.debug = False
    completing = call.environ.get(COMPLETE_VARIABLE)
    if completing:
        from click.shell_completion import shell_complete

        return shell_complete(app, {"obj": call}, "freegpu", COMPLETE_VARIABLE, completing)
    try:
        code = _invoke(call, options, debug="--debug" in before)
        call.farewell()
    except ReaderGone:
        _close_quietly(call)
        return BROKEN_PIPE
    return code


def _invoke(call: Call, options: list[str], *, debug: bool) -> int:
    # not click's own main(): it takes any EPIPE, also one of a platform's socket, for a closed stdout
    try:
        with app.make_context("freegpu", options, obj=call) as context:
            app.invoke(context)
        call.out.flush()
    except ReaderGone:
        raise
    except click.exceptions.Exit as done:
        return done.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return call.fail(
            Failure(
                code="interrupted",
                message="interrupted",
                hint="what was submitted stays in the queue; `freegpu jobs` lists it",
            ),
            INTERRUPTED,
        )
    except Exception as error:
        return _explain(call, error, debug=debug)
    return call.exit_code


def _explain(call: Call, error: Exception, *, debug: bool) -> int:
    """Say in one sentence what happened; returns the exit code."""
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        if context is not None and context.parent is not None:
            # without the program's own name: "status", "connect store"
            call.command = context.command_path.partition(" ")[2]
        return call.fail(_usage(error), USAGE)
    if debug:
        call.out.trace(error)
    if isinstance(error, FreeGPUError):
        return call.fail(failure(error), error.exit_code)
    from freegpu.agent.stores.base import StoreError
    from freegpu.errors import SharedStoreError

    if isinstance(error, StoreError):
        translated = SharedStoreError(str(error), hint="run `freegpu doctor`")
        return call.fail(failure(translated), translated.exit_code)
    if isinstance(error, FileNotFoundError) and _homeless():
        message = "the folder you are in has been deleted"
        return call.fail(Failure(code="os", message=message, hint="cd to another one"), INTERNAL)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        hint = "" if debug else "run again with --debug to see where it happened"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space there, or write to another place"
        message = f"{error.strerror.lower()}{where}"
        return call.fail(Failure(code="os", message=message, hint=hint), INTERNAL)
    words = " ".join(str(error).split())[:200]
    message = f"internal error: {type(error).__name__}{': ' if words else ''}{words}"
    hint = "" if debug else "this is a bug in freegpu; run again with --debug to see where"
    return call.fail(Failure(code="internal", message=message, hint=hint), INTERNAL)


def _homeless() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _usage(error: click.ClickException) -> Failure:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "freegpu"
    return Failure(
        code="usage",
        message=message[:1].lower() + message[1:],
        hint=f"`{path} --help` shows what it takes",
    )


def _close_quietly(call: Call) -> None:
    """The reader has gone: keep Python from complaining about it once more at exit."""
    if call.out.stdout is sys.stdout:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)

"""One call of freegpu: its output, its environment, and the workspace, opened when a command asks for it.

What a command answers is a Result; this file decides whether it is shown to a person or as an envelope.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from freegpu.cli.output import Output
from freegpu.cli.plain import Failure, envelope
from freegpu.errors import FreeGPUError, SharedStoreError

if TYPE_CHECKING:
    from freegpu.config import Settings
    from freegpu.orchestrator.operations import Workspace
    from freegpu.orchestrator.views import Ticked

__all__ = ["Call", "Result", "failure"]

Opener = Callable[["Settings"], AbstractContextManager["Workspace"]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a command has to say, in both forms."""

    #: for `--json`
    data: Any
    #: for people
    show: Callable[[Output], None]
    exit_code: int = 0
    #: why it failed; with exit code 0, what went wrong beside what was asked for
    errors: tuple[Failure, ...] = ()


class Call:
    """What commands are given. Tests bring their own streams, environment, workspace and sleep."""

    def __init__(
        self,
        *,
        out: Output | None = None,
        environ: Mapping[str, str] | None = None,
        opener: Opener | None = None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.environ = os.environ if environ is None else environ
        self.out = out or Output(environ=self.environ)
        self.sleep = sleep
        self.now = now
        self.json = False
        self.debug = False
        #: the command in the words that name it in the envelope
        self.command = "freegpu"
        self.exit_code = 0
        #: what a tick beside the command met, told already
        self.troubles: tuple[Failure, ...] = ()
        self._opener = opener
        self._settings: Settings | None = None
        self._workspaces: list[Workspace] = []

    @property
    def settings(self) -> Settings:
        """The settings of this call. ConfigError."""
        if self._settings is None:
            from freegpu import config

            self._settings = config.load(self.environ)
        return self._settings

    def workspace(self) -> AbstractContextManager[Workspace]:
        """The home, opened. ConfigError, LedgerError: it cannot be used."""
        return self.opened(self.settings)

    def opened(self, settings: Settings) -> AbstractContextManager[Workspace]:
        """The home of other settings, opened."""
        if self._opener is not None:
            return self._opener(settings)
        if not self.debug:
            self._listen()
        from freegpu.orchestrator.operations import Workspace

        self._workspaces.append(Workspace.open(settings))
        return self._workspaces[-1]

    def farewell(self) -> None:
        """All has been said here: tell people elsewhere what this command's tick brought. Raises nothing."""
        for workspace in self._workspaces:
            workspace.tell(finish=True)

    def _listen(self) -> None:
        """Show warnings that are logged, as notes: no library writes tracebacks past us to stderr."""
        import logging

        call = self

        class Notes(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                error = record.exc_info[1] if record.exc_info else None
                cause = f": {type(error).__name__}: {error}" if error else ""
                call.out.warn(f"{record.getMessage()}{cause}")

        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(Notes(level=logging.WARNING))

    def move_on(self, workspace: Workspace) -> None:
        """Tick if that is needed. Trouble is a note: looking must work when a platform or the store does not.

        A store that is away is among the errors of the envelope too: what is shown is what was known before.
        """
        self.troubles = ()
        try:
            ticked = workspace.tick_if_needed()
        except (FreeGPUError, OSError) as error:
            # a ledger that cannot even be read is the command's failure: it is told once, not here too
            workspace.jobs(limit=1)
            if isinstance(error, SharedStoreError):
                self.troubles = (failure(error),)
            self.out.warn(f"could not move jobs on: {error}", getattr(error, "hint", ""))
        else:
            self.tell(ticked)

    def tell(self, ticked: Ticked) -> None:
        """What went wrong in a tick, as notes."""
        for problem in ticked.errors:
            self.out.warn(problem)

    def finish(self, result: Result) -> None:
        """Show the result of the command."""
        self.exit_code = result.exit_code
        if self.json:
            self.event(result)
            return
        result.show(self.out)
        for error in result.errors:
            self.out.error(error.message, error.hint)
        self.out.flush()

    def event(self, result: Result, *, one_line: bool = False) -> None:
        """The result's envelope on stdout."""
        document = envelope(
            self.command,
            exit_code=result.exit_code,
            data=result.data,
            errors=(*result.errors, *self.troubles),
        )
        self.out.document(document, one_line=one_line)

    def fail(self, failure: Failure, exit_code: int) -> int:
        """Say why the command failed; returns its exit code."""
        self.exit_code = exit_code
        if self.json:
            try:
                self.out.document(envelope(self.command, exit_code=exit_code, errors=[failure]))
            except OSError:
                self.out.error(failure.message, failure.hint)
        elif any(trouble.message == failure.message for trouble in self.troubles):
            # it was said a moment ago, when jobs could not be moved on
            self.out.error("this needs the store, which is away")
        else:
            self.out.error(failure.message, failure.hint)
        return exit_code


def failure(error: FreeGPUError) -> Failure:
    """The error as the envelope lists it."""
    return Failure(code=error.code, message=str(error), hint=error.hint)

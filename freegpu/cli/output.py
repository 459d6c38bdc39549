"""The only place that prints: data to stdout, talk to stderr, colours and live views on terminals alone.

Decides how much room there is, whether colours are wanted, and what a terminal is spared of a job's output.
Does not know commands.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from freegpu.cli import text
from freegpu.cli.plain import to_line
from freegpu.cli.text import Column

_STYLES = {"bold": "1", "dim": "2", "good": "32", "bad": "31", "busy": "36", "warn": "33"}
#: what a job may do to a terminal: colours, moves within the screen, clearing a line. The rest (titles,
#: the clipboard, other screens, reports that type for the user) is dropped
_KEPT = re.compile(rb"\x1b\[[0-9;:]*[mABCDGK]")
_CONTROL = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequence
    rb"|\x1b[PX^_\]][^\x07\x1b]*(?:\x07|\x1b\\)"  # text for the terminal itself
    rb"|\x1b[ -/]*[0-~]|\x1b"  # anything shorter
    rb"|[\x00-\x07\x0b-\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]",
    re.DOTALL,
)
#: a sequence whose end may come with the next chunk
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[PX^_\]][^\x07\x1b]*\x1b?|[ -/]*)|\xc2)\Z")
#: and how many bytes of it are waited for
_LONGEST = 4096


class ReaderGone(Exception):  # noqa: N818 - what happened to them, no error of ours
    """Whoever read stdout has closed it."""


@contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error
    except OSError as error:
        error.filename = error.filename or "standard output"
        raise


class Output:
    """Where one command talks to."""

    def __init__(
        self,
        *,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        # Python has None where the stream was closed before it began (`2>&-`)
        self.stdout = stdout or sys.stdout or io.StringIO()
        self.stderr = stderr or sys.stderr or io.StringIO()
        self.environ = os.environ if environ is None else environ
        self._escape = b""
        self._meter = False
        for stream in (self.stdout, self.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None and not stream.closed:
                # a name in Chinese must not end a command in a locale that cannot write it
                reconfigure(errors="backslashreplace")

    # --- where to -----------------------------------------------------------------------------------

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads stdout."""
        return self.stdout.isatty()

    @property
    def talks_to_terminal(self) -> bool:
        """Whether a person reads stderr."""
        return not self.stderr.closed and self.stderr.isatty()

    @property
    def room(self) -> int | None:
        """Columns of the terminal; None where nobody counts them."""
        return shutil.get_terminal_size().columns if self.on_terminal else None

    def _coloured(self, stream: TextIO) -> bool:
        return (
            not stream.closed
            and stream.isatty()
            and not self.environ.get("NO_COLOR")
            and self.environ.get("TERM") != "dumb"
        )

    def paint(self, words: str, style: str) -> str:
        """The words in a style, for stdout; unchanged where colours are not wanted."""
        return self._paint(words, style, self.stdout)

    def _paint(self, words: str, style: str, stream: TextIO) -> str:
        if style not in _STYLES or not words or not self._coloured(stream):
            return words
        return f"\x1b[{_STYLES[style]}m{words}\x1b[0m"

    # --- data ---------------------------------------------------------------------------------------

    def line(self, words: str = "") -> None:
        """One line of data. Names of other people's making go through `text.safe` first."""
        with _reader():
            self.stdout.write(words + "\n")

    def title(self, words: str) -> None:
        """A heading over a table."""
        self.line(self.paint(words, "bold"))

    def table(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str | tuple[str, str]]]
    ) -> None:
        """Aligned rows, cut to the terminal where there is one."""
        for row in text.table(columns, rows, room=self.room, paint=self.paint):
            self.line(row)

    def facts(self, pairs: Sequence[tuple[str, str]]) -> None:
        """ "name  value" lines; values are made safe, empty ones are left out."""
        pairs = [(name, value) for name, value in pairs if value]
        wide = max((text.width(name) for name, _ in pairs), default=0)
        for name, value in pairs:
            self.line(f"{self.paint(text.pad(name, wide), 'dim')}  {text.safe(value)}")

    def document(self, document: object, *, one_line: bool = False) -> None:
        """A JSON document: readable on a terminal, one line for programs."""
        indent = 2 if self.on_terminal and not one_line else None
        self.line(to_line(document, indent=indent))
        self.flush()

    def raw(self, data: bytes) -> None:
        """A job's output, byte for byte; to a terminal without what could harm it."""
        binary = getattr(self.stdout, "buffer", None)
        if self.on_terminal:
            data = self._harmless(data)
        with _reader():
            self.stdout.flush()
            if binary is None:
                self.stdout.write(data.decode("utf-8", "replace"))
            else:
                binary.write(data)
        self.flush()

    def _harmless(self, data: bytes) -> bytes:
        data, self._escape = self._escape + data, b""
        begun = _UNFINISHED.search(data, max(0, len(data) - _LONGEST))
        if begun:
            data, self._escape = data[: begun.start()], begun[0]
        return _CONTROL.sub(lambda m: m[0] if _KEPT.fullmatch(m[0]) else b"", data)

    def flush(self) -> None:
        """Send out what is buffered. ReaderGone: nobody takes it."""
        with _reader():
            self.stdout.flush()

    # --- talk ---------------------------------------------------------------------------------------

    def note(self, words: str) -> None:
        """A line for people that is no data."""
        self._talk(text.safe(words))

    def warn(self, words: str, hint: str = "") -> None:
        """Something that did not stop the command, and what to do about it."""
        self._talk(f"{self._paint('note:', 'warn', self.stderr)} {text.safe(words)}")
        self._hint(hint)

    def error(self, message: str, hint: str = "") -> None:
        """Why the command failed, and what to do about it."""
        self._talk(f"{self._paint('error:', 'bad', self.stderr)} {text.safe(message)}")
        self._hint(hint)

    def _hint(self, hint: str) -> None:
        if hint:
            self._talk(f"{self._paint('hint:', 'busy', self.stderr)} {text.safe(hint)}")

    def trace(self, error: BaseException) -> None:
        """The traceback, for `--debug`."""
        lines = traceback.format_exception(error)
        self._talk("".join(lines).rstrip())

    def _talk(self, words: str) -> None:
        self.end_meter()
        try:
            self.stderr.write(words + "\n")
            self.stderr.flush()
        except (OSError, ValueError):
            # nobody listens to the talk; the exit code and the data still say everything
            return

    def meter(self, words: str, done: int, total: int) -> None:
        """A bar of bytes on stderr, redrawn in place; silent where nobody watches."""
        if not self.talks_to_terminal or total <= 0:
            return
        self._bar(f"{text.safe(words)}  ", done / total, f"{text.size(done)} of {text.size(total)}")

    def steps(self, words: str, done: int, total: int) -> None:
        """The same for what is counted."""
        if self.talks_to_terminal and total > 0:
            self._bar(f"{text.safe(words)}  ", done / total, f"{done} of {total}")

    def _bar(self, words: str, share: float, figures: str) -> None:
        filled = round(24 * min(1.0, share))
        line = f"{words}[{'#' * filled}{'.' * (24 - filled)}]  {figures}"
        self.stderr.write("\r" + text.clip(line, shutil.get_terminal_size().columns - 1) + "\x1b[K")
        self.stderr.flush()
        self._meter = True

    def end_meter(self) -> None:
        """Leave the meter's line, if there is one."""
        if self._meter:
            self._meter = False
            self.stderr.write("\r\x1b[K")
            self.stderr.flush()

    # --- live views ---------------------------------------------------------------------------------

    @contextmanager
    def live(self) -> Iterator[Callable[[Sequence[str]], None]]:
        """A function that shows lines in place of those before; on a terminal only."""
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(
            file=self.stdout, highlight=False, no_color=not self._coloured(self.stdout)
        )

        def shape(lines: Sequence[str]) -> Text:
            shown = list(lines)
            height = max(4, console.size.height - 1)
            if len(shown) > height:
                shown = [*shown[: height - 1], f"... {len(lines) - height + 1} more lines"]
            drawn = Text("\n").join(Text.from_ansi(line) for line in shown)
            drawn.no_wrap = True
            return drawn

        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda lines: live.update(shape(lines), refresh=True)

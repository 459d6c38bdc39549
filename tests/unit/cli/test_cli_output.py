"""The only place that prints: what goes where, colours, and what a terminal is spared."""

from __future__ import annotations

import ast
import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import freegpu
from freegpu.cli.output import Output


class Screen(io.TextIOWrapper):
    """A terminal in memory."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return True


def on_screen(*chunks: bytes) -> bytes:
    """What a terminal gets of a job's output."""
    screen = Screen()
    out = Output(stdout=screen, stderr=Screen(), environ={"TERM": "xterm"})
    for chunk in chunks:
        out.raw(chunk)
    return screen.bytes.getvalue()


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"plain \xff\xfe bytes\r\n", b"plain \xff\xfe bytes\r\n"),
        (b"\x1b[32mgreen\x1b[0m \x1b[1A\x1b[K", b"\x1b[32mgreen\x1b[0m \x1b[1A\x1b[K"),
        (b"a\x1b]0;title\x07b", b"ab"),
        (b"a\x1b]52;c;cm0gLXJm\x1b\\b", b"ab"),
        (b"a\x1b[2Jb\x1b[?1049hc\x1b[6nd", b"abcd"),
        (b"a\x1bcb\x1b(0c\x07d", b"abcd"),
        (b"a\x1bP1$r\x1b\\b\xc2\x9bc", b"abc"),
        ("训练 50%|█████".encode(), "训练 50%|█████".encode()),
    ],
)
def test_a_terminal_gets_colours_and_progress_bars_but_no_commands(
    written: bytes, seen: bytes
) -> None:
    """Setting the title, the clipboard, other screens, or making the terminal type is dropped."""
    assert on_screen(written) == seen


@pytest.mark.parametrize("at", range(1, 20))
def test_a_sequence_that_is_split_over_two_pieces_is_dropped_all_the_same(at: int) -> None:
    """Segments of a log end anywhere."""
    data = b"a\x1b]0;t\x07b\x1b[31mc\x1b[2Jd"
    assert on_screen(data[:at], data[at:]) == b"ab\x1b[31mcd"


def test_hostile_output_is_cleaned_in_reasonable_time() -> None:
    """Megabytes of sequences that never end must not hang the reader."""
    began = time.process_time()
    on_screen(b"\x1b]" * 200_000, b"\x1b[" * 200_000)
    assert time.process_time() - began < 10


def test_a_pipe_gets_the_output_byte_for_byte(shell: Callable[..., Any], fake: Any) -> None:
    """What a file or program reads is the job's output, nothing less."""
    chunk = freegpu_chunk(b"a\x1b]0;title\x07\x00\xff\r")
    fake.answers["log_chunks"] = (chunk,)
    assert (
        shell("logs", "k3").out.encode("utf-8", "surrogateescape") == b"a\x1b]0;title\x07\x00\xff\r"
    )


def freegpu_chunk(data: bytes) -> Any:
    from freegpu.orchestrator.views import LogChunk

    return LogChunk(attempt="k-1", platform="local", card="CPU", data=data, first=True)


def test_colours_only_on_terminals_and_never_against_no_color(shell: Callable[..., Any]) -> None:
    """https://no-color.org, TERM=dumb, and pipes."""
    assert "\x1b[" in shell("status", terminal=True).out
    assert "\x1b" not in shell("status", terminal=True, environ={"NO_COLOR": "1"}).out
    assert "\x1b" not in shell("status", terminal=True, environ={"TERM": "dumb"}).out
    assert "\x1b" not in shell("status").out


def test_json_on_a_terminal_is_indented_and_elsewhere_one_line(shell: Callable[..., Any]) -> None:
    """The same document for both readers."""
    on_terminal = shell("jobs", "--json", terminal=True)
    piped = shell("jobs", "--json")
    assert on_terminal.envelope == piped.envelope
    assert on_terminal.out.count("\n") > 10
    assert piped.out.count("\n") == 1


def test_a_locale_that_cannot_write_a_name_does_not_end_the_command() -> None:
    """Escapes instead of UnicodeEncodeError."""
    screen = Screen(encoding="ascii")
    Output(stdout=screen, stderr=Screen(), environ={}).line("训练")
    assert screen.bytes.getvalue() == b"\\u8bad\\u7ec3\n"


def test_a_closed_stderr_does_not_end_the_command() -> None:
    """`2>&-`: the data and the exit code still say everything."""
    stderr = Screen()
    stderr.close()
    stdout = Screen()
    out = Output(stdout=stdout, stderr=stderr, environ={})
    out.note("nobody hears this")
    out.line("data")
    assert stdout.bytes.getvalue() == b"data\n"


def test_the_meter_shows_on_terminals_and_clears_its_line() -> None:
    """A bar on stderr that leaves nothing behind."""
    stderr = Screen()
    out = Output(stdout=Screen(), stderr=stderr, environ={})
    out.meter("upload", 1_000_000, 4_000_000)
    assert b"upload  [######" in stderr.bytes.getvalue()
    out.note("done")
    assert stderr.bytes.getvalue().endswith(b"\r\x1b[Kdone\n")


def test_steps_are_counted_on_terminals_only() -> None:
    """The same bar for what is counted; a pipe gets nothing of it."""
    stderr = Screen()
    Output(stdout=Screen(), stderr=stderr, environ={}).steps("runs of the queue", 3, 12)
    assert stderr.bytes.getvalue().startswith(b"\rruns of the queue  [######....")
    assert b"3 of 12" in stderr.bytes.getvalue()
    pipe = io.StringIO()
    Output(stdout=Screen(), stderr=pipe, environ={}).steps("runs of the queue", 3, 12)
    assert pipe.getvalue() == ""


def test_the_live_view_draws_lines_in_place_and_cuts_them_to_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More lines than the screen has are counted, not scrolled."""
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "60")
    screen = Screen()
    out = Output(stdout=screen, stderr=Screen(), environ={"TERM": "xterm"})
    with out.live() as draw:
        draw([f"line {i}" for i in range(50)])
    shown = screen.bytes.getvalue().decode()
    assert "line 0" in shown
    assert "line 20" not in shown
    assert "more lines" in shown


def test_only_output_prints() -> None:
    """No module of freegpu but the output and the agent's own programs writes to stdout or calls print."""
    package = Path(freegpu.__file__).parent
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name == "cli/output.py" or name.startswith("agent/"):
            continue
        for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(part, ast.Name):
                assert part.id != "print", f"{name}:{part.lineno} prints"
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                dotted = f"{part.value.id}.{part.attr}"
                allowed = name == "cli/app.py" and dotted == "sys.stdout"
                assert allowed or dotted not in ("sys.stdout", "sys.stderr"), (
                    f"{name}:{part.lineno}"
                )

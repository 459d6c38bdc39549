"""Make docs/images/demo.svg and demo-live.svg out of what `freegpu demo` really prints.

Runs the demo once on a pseudo-terminal, as a person would, and draws two screens of it: the live view as it stood when
the killed session's job had gone on elsewhere, and what is left on the screen at the end. No text is made up here.

    .venv/bin/python docs/images/make_demo_svg.py
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS, LINES = 110, 60
#: everything but colours: what moves the cursor or clears lines
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhlsu]|\r")
#: the pictures use the reader's own monospace font: an image may not fetch one
_FONT_FACE = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def run_demo() -> tuple[int, str]:
    """Everything that the demo writes to its terminal, and its exit code."""
    freegpu = str(Path(sys.executable).with_name("freegpu"))
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("NO_COLOR", None)
        os.environ.pop("COLUMNS", None)
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        os.execv(freegpu, [freegpu, "demo"])
    pieces = []
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), b"".join(pieces).decode("utf-8")


def plain(words: str) -> str:
    """The words without colours."""
    return Text.from_ansi(words).plain


def screens(told: str) -> tuple[str, str]:
    """(a frame of the live view, the final text), with their colours."""
    still = _MOVES.sub("", told)
    views, _, final = still.rpartition("Timeline")
    # the title is painted: its colour begins before the word
    final = "\x1b[1mTimeline" + final
    frames = re.split(r"(?=(?:\x1b\[[0-9;]*m)*freegpu demo, \d+ s)", views)
    gone_on = [f for f in frames if re.search(r"SIGKILL.*runs on", plain(f), re.DOTALL)]
    if not gone_on:
        raise ValueError("no frame of the live view shows the job after the kill")
    return gone_on[len(gone_on) // 2], final


def draw(words: str, title: str, name: str, typed: str) -> None:
    """One screen as a picture, as high as its text."""
    lines = [line.rstrip() for line in words.strip("\n").split("\n")]
    wide = max(len(plain(line)) for line in lines)
    console = Console(
        record=True,
        width=min(COLUMNS, wide + 2),
        file=io.StringIO(),
        color_system="standard",
    )
    console.print(Text.from_ansi(f"\x1b[32m$\x1b[0m {typed}"))
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, crop=True)
    from rich._export_format import CONSOLE_SVG_FORMAT

    picture = console.export_svg(
        title=title, unique_id=name, code_format=_FONT_FACE.sub("", CONSOLE_SVG_FORMAT)
    )
    picture = picture.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    clean = "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"
    (HERE / f"{name}.svg").write_text(clean, encoding="utf-8")


def main() -> int:
    """Run, draw, and say what was drawn."""
    code, told = run_demo()
    if os.environ.get("DEMO_RAW"):
        Path(os.environ["DEMO_RAW"]).write_text(told, encoding="utf-8")
    if code != 0:
        print(told)
        print(f"the demo failed with exit code {code}: nothing was drawn")
        return 1
    live, final = screens(told)
    draw(live, "freegpu demo, while it runs", "demo-live", "freegpu demo")
    draw(final, "freegpu demo, at the end", "demo", "freegpu demo")
    print(plain(live))
    print(plain(final))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command line. Thin: parse, call an operation, show what it answers."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The entry point of the command `freegpu`."""
    import sys

    if sys.getfilesystemencoding() != "utf-8":
        # job specs, names and paths are UTF-8 whatever the locale says: begin again in Python's UTF-8 mode
        import os

        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606
    try:
        from freegpu.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # before or after the command itself
        code = 130
    sys.exit(code)

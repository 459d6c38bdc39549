"""The command line. Thin: parse, call an operation, show what it answers."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The entry point of the command `freegpu`."""
    import sys

    try:
        from freegpu.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # before or after the command itself
        code = 130
    sys.exit(code)

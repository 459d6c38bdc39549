"""`python -m freegpu` is `freegpu`."""

from __future__ import annotations

from freegpu.cli import main

if __name__ == "__main__":
    main()

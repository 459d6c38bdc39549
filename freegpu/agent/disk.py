"""Notices when the session's own disk runs full, and keeps a little back for that moment.

A job's output is written to that disk. When it is full, the job's next `print` would fail, so a file that was
laid there at the start is given up: the job gets that much room while people and the keep rule react.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Callable, Optional

#: less free space than this is a full disk, bytes
LOW = 32 << 20
#: what is given up then, bytes
RESERVE = 16 << 20


class DiskWatch:
    """Looks at the free space of one folder."""

    def __init__(
        self,
        folder: Path,
        notice: Callable[[str, str], None],
        free: Optional[Callable[[], int]] = None,
    ) -> None:
        self._reserve = folder / "reserve"
        self._notice = notice
        self._free = free or (lambda: shutil.disk_usage(folder).free)
        self._low = False
        self._lay()

    def look(self) -> None:
        """Tell once when the disk becomes full, and once when it has room again."""
        try:
            free = self._free()
        except OSError:  # a disk that does not answer is seen by everybody else too
            return
        if not self._low and free < LOW:
            self._low = True
            with contextlib.suppress(OSError):
                os.unlink(self._reserve)
            self._notice("disk_full", f"{free >> 20} MiB are left on the session's disk")
        elif self._low and free > 4 * LOW:
            self._low = False
            self._notice("disk_back", f"{free >> 20} MiB are free on the session's disk again")
            self._lay()

    def close(self) -> None:
        """Give the reserve back."""
        with contextlib.suppress(OSError):
            os.unlink(self._reserve)

    def _lay(self) -> None:
        if not hasattr(os, "posix_fallocate"):
            return  # macOS: no such call, and zeros written to APFS reserve nothing
        try:
            if self._free() < 4 * LOW:
                return
            file = os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(file, 0, RESERVE)
            finally:
                os.close(file)
        except OSError:  # file systems without it: then there is no reserve, only the notice
            with contextlib.suppress(OSError):
                os.unlink(self._reserve)

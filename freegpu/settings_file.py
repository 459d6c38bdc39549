"""Changing freegpu.toml for the user: one value is set, and all the rest of the file stays as it was written.

Comments, order and blank lines are kept. The file is replaced in one step, so that a crash leaves the old
one or the new one; a symbolic link stays a link to the file that it points to.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from freegpu.config import FILE_NAME
from freegpu.errors import ConfigError

__all__ = ["set_text"]


def set_text(home: Path, name: str, value: str) -> bool:
    """Set a top-level setting of the home's freegpu.toml to a text; the file is made if there is none.

    False: it was so already. ConfigError: the file cannot be read, understood or written.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = home / FILE_NAME
    try:
        # a link into somebody's dotfiles is followed, not replaced
        path = path.resolve()
        raw = path.read_bytes() if path.exists() else b""
        bom = b"\xef\xbb\xbf" if raw.startswith(b"\xef\xbb\xbf") else b""
        text = raw.removeprefix(bom).decode("utf-8")
        windows = "\r\n" in text
        document = tomlkit.parse(text.replace("\r\n", "\n"))
        if document.get(name) == value:
            return False
        if name in document:
            document[name] = value
            text = tomlkit.dumps(document)
        else:
            # in front of everything: further down it would come between a comment and what that speaks of
            text = f"{name} = {tomlkit.item(value).as_string()}\n{tomlkit.dumps(document)}"
        _replace(path, bom + (text.replace("\n", "\r\n") if windows else text).encode())
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not valid TOML: {error}", hint="`freegpu doctor` tells which line"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be changed ({error.strerror or error})",
            hint=f"mend its permissions, or write {name} = {value!r} into it by hand",
        ) from error
    return True


def _replace(path: Path, data: bytes) -> None:
    """Put these bytes in the file's place, with its mode; 0600 for a new one."""
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)

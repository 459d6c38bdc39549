"""Changing freegpu.toml for the user: one value is set, and all the rest of the file stays as it was written.

Comments, order and blank lines are kept. The file is replaced in one step, so that a crash leaves the old
one or the new one; a symbolic link stays a link to the file that it points to.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freegpu.config import FILE_NAME
from freegpu.errors import ConfigError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

__all__ = ["set_platform", "set_text"]


def set_text(home: Path, name: str, value: str) -> bool:
    """Set a top-level setting of the home's freegpu.toml to a text; the file is made if there is none.

    False: it was so already. ConfigError: the file cannot be read, understood or written.
    """
    import tomlkit

    def change(document: TOMLDocument) -> str | None:
        if document.get(name) == value:
            return None
        if name in document:
            document[name] = value
            return tomlkit.dumps(document)
        # in front of everything: further down it would come between a comment and what that speaks of
        return f"{name} = {tomlkit.item(value).as_string()}\n{tomlkit.dumps(document)}"

    return _edit(home, change, f"write {name} = {value!r} into it by hand")


def set_platform(home: Path, name: str, values: Mapping[str, Any]) -> bool:
    """Set these values of [platforms.NAME], None: without it; what else stands there stays. Else as `set_text`."""
    import tomlkit
    from tomlkit.items import InlineTable

    def change(document: TOMLDocument) -> str | None:
        platforms: Any = document.get("platforms")
        table = platforms.get(name) if isinstance(platforms, dict) else None
        if table is None:
            if isinstance(platforms, InlineTable):
                platforms[name] = {k: v for k, v in values.items() if v is not None}
                return tomlkit.dumps(document)
            text = tomlkit.dumps(document)
            gap = "\n" if text and not text.endswith("\n\n") else ""
            start = "" if not text or text.endswith("\n") else "\n"
            lines = [
                f"{k} = {tomlkit.item(v).as_string()}\n" for k, v in values.items() if v is not None
            ]
            return f"{text}{start}{gap}[platforms.{name}]\n{''.join(lines)}"
        if all(table.get(key) == value for key, value in values.items()):
            return None
        for key, value in values.items():
            if value is not None:
                table[key] = value
            elif key in table:
                del table[key]
        return tomlkit.dumps(document)

    return _edit(home, change, f"write the table [platforms.{name}] into it by hand")


def _edit(home: Path, change: Callable[[TOMLDocument], str | None], otherwise: str) -> bool:
    """Put the text that `change` makes of the file in its place; None: nothing is to be changed."""
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
        changed = change(tomlkit.parse(text.replace("\r\n", "\n")))
        if changed is None:
            return False
        _replace(path, bom + (changed.replace("\n", "\r\n") if windows else changed).encode())
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not valid TOML: {error}", hint="`freegpu doctor` tells which line"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be changed ({error.strerror or error})",
            hint=f"mend its permissions, or {otherwise}",
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

"""Whose host keys are known: known_hosts files read line by line, as OpenSSH does, and an own file beside them.

One @cert-authority line makes paramiko's reader give up the whole file, and wildcards match nobody there
(paramiko 5.1, hostkeys.py); so this reads them itself. A line that makes no sense is nobody's line. Connects to nothing.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

__all__ = ["Known", "Verdict", "fingerprint", "forget", "lines_for", "remember", "verdict"]


class Verdict(StrEnum):
    """What the files say of a key that a host has shown."""

    KNOWN = "known"
    UNKNOWN = "unknown"  #: nothing is known of this host
    OTHER_TYPE = "other type"  #: only keys of other types are known: no sign of an attack
    CHANGED = "changed"  #: another key of the same type is known
    REVOKED = "revoked"  #: this very key is marked as not to be trusted


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A line that is about a host."""

    kind: str
    blob: bytes
    file: Path
    revoked: bool = False


def fingerprint(blob: bytes) -> str:
    """As ssh-keygen -l prints it."""
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def lines_for(entry: str, files: Sequence[Path]) -> list[Known]:
    """Everything that the files say about this host; `entry` is its name there, with [ ] and port if not 22."""
    return [known for file in files for known in _about(entry, file)]


def verdict(found: Sequence[Known], kind: str, blob: bytes) -> Verdict:
    """What follows for the key that the host has shown."""
    if any(known.revoked and known.blob == blob for known in found):
        return Verdict.REVOKED
    trusted = [known for known in found if not known.revoked]
    if any(known.blob == blob for known in trusted):
        return Verdict.KNOWN
    if any(known.kind == kind for known in trusted):
        return Verdict.CHANGED
    return Verdict.OTHER_TYPE if trusted else Verdict.UNKNOWN


def remember(file: Path, entry: str, kind: str, blob: bytes) -> None:
    """Know this key from now on; other keys of its type for this host are forgotten in this file."""
    forget(file, entry, kind)
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(f"{entry} {kind} {base64.b64encode(blob).decode()}\n".encode())


def forget(file: Path, entry: str, kind: str) -> None:
    """Take this host's keys of this type out of an own file."""
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    kept = [line for line in lines if line.split()[:2] != [entry.encode(), kind.encode()]]
    if kept != lines:
        hidden = file.with_name(f".{file.name}.{os.getpid()}")
        hidden.write_bytes(b"".join(kept))
        os.replace(hidden, file)


def _about(entry: str, file: Path) -> Iterator[Known]:
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.decode("utf-8", "replace").split()
        mark = words.pop(0) if words and words[0].startswith("@") else ""
        # no client of ours can check a host certificate, so an authority vouches for nothing here
        if len(words) < 3 or words[0].startswith("#") or mark not in ("", "@revoked"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        if _matches(words[0], entry):
            yield Known(kind=words[1], blob=blob, file=file, revoked=mark == "@revoked")


def _matches(patterns: str, entry: str) -> bool:
    if patterns.startswith("|1|"):
        try:
            salt, told = (base64.b64decode(part) for part in patterns[3:].split("|"))
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(hmac.digest(salt, entry.encode(), "sha1"), told)
    matched = False
    for pattern in patterns.split(","):
        # brackets are part of the name and not of the pattern
        plain = pattern.removeprefix("!").replace("[", "[[]").lower()
        if fnmatch.fnmatchcase(entry.lower(), plain):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched

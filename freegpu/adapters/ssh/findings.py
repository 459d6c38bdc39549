"""What `connect` and `doctor` tell about an ssh host, from what the line and the host have said. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from freegpu.adapters.base import Finding
from freegpu.adapters.stores.ssh import Line
from freegpu.agent.stores.google import API
from freegpu.agent.stores.s3_place import place
from freegpu.errors import AdapterError, AuthError, UnreachableError

__all__ = ["of_error", "of_host", "of_line", "way_to"]

#: a clock this far off is told; one this far off makes signed requests fail (S3: 15 minutes), seconds
_SKEW_TOLD_S = 30.0
_SKEW_BAD_S = 600.0
_LEAST_GB = 2.0


def way_to(store: str) -> dict[str, Any]:
    """What the host has to reach for this store: a folder, or a port of another host; empty: nothing to try."""
    scheme, colon, rest = store.partition(":")
    if not colon or "/" in scheme:
        return {"folder": store}
    if scheme == "folder":
        return {"folder": rest}
    try:
        url = API if scheme == "drive" else place(rest)[2] if scheme == "s3" else ""
    except ValueError:
        return {}
    parts = urlsplit(url)
    if not parts.hostname:
        return {}
    return {
        "host": parts.hostname,
        "port": parts.port or (80 if parts.scheme == "http" else 443),
        "scheme": parts.scheme,
    }


def of_line(line: Line) -> Iterator[Finding]:
    """How far the connection came."""
    key = line.host_key
    if key is None:
        return
    yield Finding(name="reached", ok=True, detail=f"{line.target} answers")
    if key.verdict == "known":
        yield Finding(
            name="host key", ok=True, detail=f"{key.kind} {key.fingerprint}, known from {key.file}"
        )
    if line.signed_in_with:
        yield Finding(name="credentials", ok=True, detail=f"signed in with {line.signed_in_with}")


def of_error(error: AdapterError) -> Finding:
    """Where it ended."""
    name = "host"
    if isinstance(error, AuthError):
        name = "host key" if "host key" in error.message else "credentials"
    elif isinstance(error, UnreachableError):
        name = "reached"
    elif "ython" in error.message:
        name = "python"
    return Finding(name=name, ok=False, detail=error.message, hint=error.hint)


def of_host(told: Mapping[str, Any], before: float, after: float) -> Iterator[Finding]:
    """What the host has said about itself; `before` and `after`: our clock around its answer, epoch seconds."""
    yield Finding(name="python", ok=True, detail=f"{told['executable']} is Python {told['python']}")
    yield _cards(told)
    if told["held"]:
        yield Finding(
            name="sessions", ok=None, detail=f"running there: {', '.join(sorted(told['held']))}"
        )
    yield _clock(float(told["now"]), before, after)
    free = float(told["disk_gb"])
    yield Finding(
        name="disk",
        ok=not told["writable"] and free >= _LEAST_GB,
        detail=f"{told['root']} cannot be written: {told['writable']}"
        if told["writable"]
        else f"{free:.0f} GB free at {told['root']}",
        hint="jobs unpack their code and keep checkpoints there until they are in the store"
        if free < _LEAST_GB
        else "",
    )
    if not told["lingers"]:
        yield Finding(
            name="lingering",
            ok=False,
            detail="that machine ends every process of a user who has signed out",
            hint="`loginctl enable-linger` there lets sessions go on",
        )
    if told["store"]:
        yield Finding(
            name="store",
            ok=False,
            detail=told["store"],
            hint="sessions on that host must open the store by themselves; --store says how they see it",
        )
    else:
        yield Finding(name="store", ok=True, detail="reached from there")


def _cards(told: Mapping[str, Any]) -> Finding:
    if told["smi"] == "hangs":
        return Finding(
            name="cards",
            ok=False,
            detail="nvidia-smi does not answer there",
            hint="a driver in that state usually takes a restart of the machine",
        )
    if told["smi"] == "fails":
        return Finding(
            name="cards",
            ok=False,
            detail="nvidia-smi fails there",
            hint="run it on the host: after an update of the driver it wants a restart",
        )
    if not told["cards"]:
        return Finding(name="cards", ok=None, detail="no NVIDIA card; its processor is offered")
    ours = {device for devices in told["held"].values() for device in devices}
    words = []
    for card in told["cards"]:
        used = "in use by us" if card["index"] in ours else card["used"] or "free"
        words.append(f"{card['index']}: {card['name']} ({used})")
    return Finding(name="cards", ok=True, detail=", ".join(words))


def _clock(theirs: float, before: float, after: float) -> Finding:
    off = theirs - before if theirs < before else max(0.0, theirs - after)
    way = "ahead of" if off > 0 else "behind"
    if abs(off) < _SKEW_TOLD_S:
        return Finding(name="clock", ok=True, detail="agrees with ours")
    return Finding(
        name="clock",
        ok=False if abs(off) > _SKEW_BAD_S else None,
        detail=f"its clock is {abs(off):.0f} s {way} ours",
        hint="set it by NTP: stores refuse signatures of another time",
    )

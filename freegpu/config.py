"""Settings: where this freegpu lives, which store, ledger and platforms it uses, and who said so.

Decides what each value is and where it came from: default, freegpu.toml in the home, or environment, the
later one wins. Does not know whether a store answers or which adapters exist; creates nothing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from freegpu.errors import ConfigError

__all__ = [
    "FILE_NAME",
    "NUMBERS",
    "PlatformSettings",
    "Settings",
    "check_platform_name",
    "load",
    "without_password",
]

#: the settings file, inside the home
FILE_NAME = "freegpu.toml"
#: a larger file is not one that a person wrote
MAX_BYTES = 1_000_000

#: name -> (default, smallest, largest); all in the unit that the name ends with
NUMBERS: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "poll_s": (1.0, 0.05, 3600.0),
        "beat_s": (2.0, 0.05, 3600.0),
        "idle_s": (60.0, 0.0, 86400.0),
        "margin_s": (20.0, 0.0, 3600.0),
        "tick_s": (5.0, 0.05, 3600.0),
        "silent_polls": (6.0, 2.0, 1000.0),
        "workdir_limit_gb": (1.0, 0.001, 10_000.0),
        "upload_mb_s": (0.0, 0.0, 100_000.0),
    }
)

#: what decisions aim at: jobs end early on average, or the last one does
GOALS = ("jct", "makespan")

_PLATFORM = re.compile(r"[a-z][a-z0-9_-]{0,31}")
#: what a platform may be called, for people
_NAMED = "one word of lower case letters, digits, - and _, beginning with a letter"
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_"'-]+)*)\s*=""")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformSettings:
    """One platform that may be used."""

    #: how the user calls it
    name: str
    #: name of an installed adapter, or "module:Class"
    adapter: str
    #: what the adapter is told; it alone knows the names
    options: Mapping[str, Any] = field(default_factory=dict)
    #: the store's URL as its sessions see it, where that is not the one that commands here use
    store: str = ""
    #: where it was configured: "default" or "/path/freegpu.toml:3"
    source: str = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything configurable. Times are seconds."""

    #: absolute folder
    home: Path
    #: URL of the shared storage, e.g. "folder:/data/freegpu"
    store: str
    #: absolute path of a SQLite file, or postgresql://
    db: str
    platforms: Mapping[str, PlatformSettings]
    #: how often an agent looks into its inbox
    poll_s: float = NUMBERS["poll_s"][0]
    #: how often an agent replaces its heartbeat
    beat_s: float = NUMBERS["beat_s"][0]
    #: how long an agent without work stays before it ends its session
    idle_s: float = NUMBERS["idle_s"][0]
    #: time an agent keeps back before its session's limit, on top of the job's grace
    margin_s: float = NUMBERS["margin_s"][0]
    #: pace of `freegpu up`
    tick_s: float = NUMBERS["tick_s"][0]
    #: looks without a moved heartbeat after which a session counts as silent
    silent_polls: int = int(NUMBERS["silent_polls"][0])
    #: largest working folder that is packed, GB
    workdir_limit_gb: float = NUMBERS["workdir_limit_gb"][0]
    #: most that an agent, or a command here, uploads into the store, MB/s; 0: no limit
    upload_mb_s: float = NUMBERS["upload_mb_s"][0]
    #: "jct" or "makespan"
    goal: Literal["jct", "makespan"] = "jct"
    #: setting -> "default", the name of an environment variable, or "/path/freegpu.toml:3"
    sources: Mapping[str, str] = field(default_factory=dict)

    def store_for(self, platform: str) -> str:
        """The store's URL as sessions on this platform see it."""
        named = self.platforms.get(platform)
        return (named.store if named is not None else "") or self.store

    @property
    def bandwidth(self) -> float | None:
        """`upload_mb_s` as bytes a second; None: no limit."""
        return self.upload_mb_s * 1e6 or None


def check_platform_name(name: str) -> None:
    """ConfigError: no table of freegpu.toml may be called so, and every later command would refuse the file."""
    if fault := _name_fault(name):
        raise ConfigError(fault, hint=_NAMED)


def _name_fault(name: str) -> str:
    return "" if _PLATFORM.fullmatch(name) else f"{name!r} cannot be a platform's name"


def load(environ: Mapping[str, str], *, home: Path | None = None) -> Settings:
    """The settings of `home`, or of the home that the environment or the platform's convention names.

    ConfigError: the file cannot be read, is not TOML, or says something that cannot be meant.
    """
    sources: dict[str, str] = {}
    home, sources["home"] = _home(environ, home)
    file = _File.read(home / FILE_NAME)
    file.check_names("", file.data, (*NUMBERS, "store", "db", "goal", "platforms"))
    values: dict[str, Any] = {}
    for name, default in (("store", f"folder:{home / 'store'}"), ("db", str(home / "state.db"))):
        values[name], sources[name] = _location(name, default, file, environ)
    for name in NUMBERS:
        values[name], sources[name] = _number(name, file)
    values["goal"], sources["goal"] = _goal(file)
    return Settings(
        home=home,
        platforms=MappingProxyType(dict(_platforms(file))),
        sources=MappingProxyType(sources),
        **values,
    )


def without_password(url: str) -> str:
    """The URL with a password in it blotted out, fit to be shown."""
    url = re.sub(r"(://[^:/@\s]*):[^@/\s]*@", r"\1:***@", url)
    return re.sub(r"([?&](?:password|sslpassword)=)[^&\s]*", r"\1***", url)


def _home(environ: Mapping[str, str], given: Path | None) -> tuple[Path, str]:
    if given is not None:
        return given.absolute(), "argument"
    named = environ.get("FREEGPU_HOME", "")
    if named:
        return _absolute(named, None, "FREEGPU_HOME"), "FREEGPU_HOME"
    import platformdirs

    return Path(platformdirs.user_data_dir("freegpu", appauthor=False)), "default"


def _absolute(text: str, base: Path | None, name: str) -> Path:
    """The path as an absolute one without `..`, seen from `base` or from here; symbolic links stay as they are."""
    if "\0" in text:
        raise ConfigError(f"{name} holds a NUL character", hint="write it without one")
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{name} is {text!r}, but whose home folder that is cannot be told",
            hint="write the folder out in full",
        ) from error
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} is {text!r}, which is not UTF-8 text", hint="choose a folder with another name"
        ) from error
    # only a relative path asks where we are: that folder may be gone
    if not path.is_absolute():
        path = (Path.cwd() if base is None else base) / path
    return Path(os.path.normpath(path))


def _location(name: str, default: str, file: _File, environ: Mapping[str, str]) -> tuple[str, str]:
    """A store or ledger: relative paths of the file are relative to it, those of the environment to here."""
    variable = f"FREEGPU_{name.upper()}"
    base: Path | None = None
    if environ.get(variable):
        text, source = environ[variable], variable
    elif name in file.data:
        text, base, source = file.text((name,)), file.path.parent, file.where((name,))
    else:
        return default, "default"
    prefix = "folder:" if name == "store" else ""
    if prefix and text.startswith(prefix):
        text = text.removeprefix(prefix)
    elif _SCHEME.match(text):
        return text, source
    return f"{prefix}{_absolute(text, base, f'{name} (from {source})')}", source


def _number(name: str, file: _File) -> tuple[float, str]:
    default, low, high = NUMBERS[name]
    whole = name == "silent_polls"
    if name not in file.data:
        return int(default) if whole else default, "default"
    value = file.data[name]
    if (
        isinstance(value, bool)
        or not isinstance(value, int if whole else int | float)
        or not math.isfinite(value)
    ):
        kind = "a whole number" if whole else "a number"
        message = f"{name} must be {kind}, found {_shown(value)}"
        raise file.refuse((name,), message, hint=f"for example {name} = {default:g}")
    if not low <= value <= high:
        message = f"{name} is {value:g}; it must be between {low:g} and {high:g}"
        raise file.refuse((name,), message, hint=f"the default is {default:g}")
    return int(value) if whole else float(value), file.where((name,))


def _goal(file: _File) -> tuple[str, str]:
    value = file.data.get("goal")
    if value is None:
        return GOALS[0], "default"
    if value not in GOALS:
        raise file.refuse(
            ("goal",),
            f"goal must be one of {', '.join(GOALS)}, found {_shown(value)}",
            hint='goal = "jct": jobs end early on average; "makespan": the last one ends early',
        )
    return str(value), file.where(("goal",))


def _platforms(file: _File) -> Iterator[tuple[str, PlatformSettings]]:
    tables = file.data.get("platforms", {})
    if not isinstance(tables, dict):
        raise file.refuse(
            ("platforms",),
            f"platforms must be tables, found {_shown(tables)}",
            hint="a platform begins with a line like [platforms.kaggle]",
        )
    if "local" not in tables:
        yield "local", PlatformSettings(name="local", adapter="local")
    for name, table in tables.items():
        at = ("platforms", name)
        if fault := _name_fault(name):
            raise file.refuse(at, fault, hint=_NAMED)
        if not isinstance(table, dict):
            raise file.refuse(
                at,
                f"platforms.{name} must be a table, found {_shown(table)}",
                hint=f"it begins with the line [platforms.{name}]",
            )
        options = dict(table)
        enabled = options.pop("enabled", True)
        if not isinstance(enabled, bool):
            raise file.refuse(
                (*at, "enabled"),
                f"platforms.{name}.enabled must be true or false, found {_shown(enabled)}",
                hint="write it without quotes",
            )
        adapter = file.text((*at, "adapter")) if "adapter" in options else name
        options.pop("adapter", None)
        store = file.text((*at, "store")) if "store" in options else ""
        options.pop("store", None)
        if enabled:
            yield (
                name,
                PlatformSettings(
                    name=name,
                    adapter=adapter,
                    options=MappingProxyType(options),
                    store=store,
                    source=file.where(at),
                ),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    """freegpu.toml, and on which line each of its names stands."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[tuple[str, ...], int]

    @classmethod
    def read(cls, path: Path) -> _File:
        try:
            with path.open("rb") as opened:
                raw = opened.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            # a home that is a file is refused by whoever makes the home
            return cls(path=path, data={}, lines={})
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read ({error.strerror or error})",
                hint="mend its permissions, or choose another home with FREEGPU_HOME",
            ) from error
        if len(raw) > MAX_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_BYTES:,} bytes", hint="it holds settings alone"
            )
        import tomllib

        try:
            text = raw.decode("utf-8-sig")
            data = tomllib.loads(text)
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise ConfigError(
                f"{path}:{line}: not UTF-8 text", hint="save the file as UTF-8"
            ) from error
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            reason, place = _toml_reason(str(error))
            raise ConfigError(
                f"{path}{place}: not valid TOML: {reason}",
                hint='a line looks like: store = "folder:/data/freegpu"',
            ) from error
        return cls(path=path, data=data, lines=_lines(text))

    def where(self, name: tuple[str, ...]) -> str:
        """The file, with the line of this name where it can be told."""
        line = self.lines.get(name)
        return f"{self.path}:{line}" if line else str(self.path)

    def refuse(self, name: tuple[str, ...], message: str, *, hint: str = "") -> ConfigError:
        return ConfigError(f"{self.where(name)}: {message}", hint=hint)

    def text(self, name: tuple[str, ...]) -> str:
        """The text under this name, which is there."""
        value: Any = self.data
        for part in name:
            value = value[part]
        if not isinstance(value, str) or not value.strip():
            message = f"{'.'.join(name)} must be text, found {_shown(value)}"
            raise self.refuse(name, message, hint="put it in quotes")
        return value

    def check_names(self, prefix: str, found: Iterable[str], known: Iterable[str]) -> None:
        """Refuse what nobody would read, naming the nearest name that somebody would."""
        names = sorted(known)
        for name in found:
            if name not in names:
                near = _nearest(name, names)
                raise self.refuse(
                    (name,),
                    f"there is no setting {prefix}{name!r}"
                    + (f"; did you mean {near}?" if near else ""),
                    hint=f"the settings are {', '.join(names)}",
                )


def _nearest(word: str, names: list[str]) -> str:
    import difflib

    folded = word.casefold()[:100]
    # the unit is what people leave out
    stems = {name.rsplit("_", 1)[0]: name for name in names} | {name: name for name in names}
    close = difflib.get_close_matches(folded, stems, n=1, cutoff=0.6)
    return stems[close[0]] if close else ""


def _shown(value: Any) -> str:
    """What was found, in few words."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value if len(str(value)) <= 40 else f"{str(value)[:40]}...")


def _toml_reason(message: str) -> tuple[str, str]:
    """tomllib's sentence and its place apart: ("expected ...", ":3")."""
    place = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)", message)
    if place is None:
        return message[:1].lower() + message[1:], ""
    reason = message[: place.start()]
    line = f":{place[1]}" if place[1] else ""
    return reason[:1].lower() + reason[1:] + ("" if line else ", at the end of the file"), line


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Name -> line, for TOML that is known to be valid. Names that are hard to find are left out."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if inside:
            # in the middle of a multi-line string nothing is a name
            if line.count(inside) % 2:
                inside = ""
            continue
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table = _parts(header[1])
            for depth in range(1, len(table) + 1):
                lines.setdefault(table[:depth], number)
        elif key:
            name = (*table, *_parts(key[1]))
            for depth in range(len(table) + 1, len(name) + 1):
                lines.setdefault(name[:depth], number)
            for quotes in ('"""', "'''"):
                if line.count(quotes) % 2:
                    inside = quotes
    return lines


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))

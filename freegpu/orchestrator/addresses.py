"""The addresses that notices are sent to, and the sending. See `notify`.

They are the URLs of Apprise (ntfy, Telegram, e-mail, Slack, WeCom and some hundred more). They carry tokens, so
they lie in a file of their own, readable by its owner only, and are shown without their secrets.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from freegpu.errors import ConfigError
from freegpu.orchestrator.home import NOTIFY_FILE, lock_file, write_private
from freegpu.orchestrator.notices import Notice, NoticeKind

__all__ = ["FILE_NAME", "Address", "add", "check", "read", "remove", "send"]

log = logging.getLogger(__name__)

#: the addresses, inside the home
FILE_NAME = NOTIFY_FILE
#: schemes whose first part is a host, and no secret
_HOSTED = frozenset({"json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos"})
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.+-]*)://")


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where to send to, and what."""

    url: str
    on: tuple[NoticeKind, ...] = tuple(NoticeKind)

    @property
    def digest(self) -> str:
        """Names it in the ledger, where its URL must not stand."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]

    @property
    def shown(self) -> str:
        """The URL with everything blotted out that may be a secret, which with most services is all of it."""
        scheme = _SCHEME.match(self.url)
        if scheme is None:
            return "***"
        name = scheme[1].lower()
        if name not in _HOSTED:
            return f"{name}://***"
        try:
            split = urlsplit(self.url)
            port = f":{split.port}" if split.port else ""
        except ValueError:
            return f"{name}://***"
        return f"{name}://{split.hostname or ''}{port}/..."


def read(home: Path) -> tuple[Address, ...]:
    """The addresses of this home, in their order. ConfigError: the file cannot be used."""
    path = home / FILE_NAME
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                os.fchmod(file.fileno(), 0o600)
                log.warning("%s could be read by others (mode %03o); now only you can", path, mode)
            raw = tomllib.load(file)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path} cannot be read ({reason})", hint="mend it, or delete it and add the URLs again"
        ) from error
    return tuple(_address(path, number, each) for number, each in enumerate(_entries(path, raw), 1))


def _entries(path: Path, raw: dict[str, object]) -> list[object]:
    entries = raw.get("notify", [])
    if set(raw) - {"notify"} or not isinstance(entries, list):
        raise ConfigError(
            f"{path} holds something else than [[notify]] tables",
            hint='each has url = "..." and perhaps on = ["failed"]',
        )
    return entries


def _address(path: Path, number: int, raw: object) -> Address:
    if not isinstance(raw, dict) or not isinstance(raw.get("url"), str) or set(raw) - {"url", "on"}:
        raise ConfigError(
            f"{path}: [[notify]] number {number} needs a url, and may have on; nothing else",
            hint="`freegpu notify add` writes it right",
        )
    on = raw.get("on", list(NoticeKind))
    try:
        kinds = tuple(dict.fromkeys(NoticeKind(kind) for kind in on))
    except (TypeError, ValueError):
        raise ConfigError(
            f"{path}: [[notify]] number {number} has on = {on!r}",
            hint=f"a list of {', '.join(NoticeKind)}",
        ) from None
    return Address(url=raw["url"], on=kinds)


def check(url: str) -> None:
    """ConfigError if nothing can be sent to such a URL. Contacts nobody."""
    scheme = _SCHEME.match(url)
    if scheme is None or not url.isprintable():
        raise ConfigError(
            "this is no notification URL", hint="e.g. ntfys://TOPIC or tgram://TOKEN/CHAT"
        )
    with _apprise_quiet() as said:
        import apprise

        known = apprise.Apprise().add(url)
    if not known:
        log.debug("apprise: %s", "; ".join(_without_secrets(words, url) for words in said))
        raise ConfigError(
            f"{scheme[1]}:// is no service that can be notified, or the URL lacks a part",
            hint="docs/how-to/notifications.md has the forms of the usual ones; Apprise's list has all",
        )


def add(home: Path, address: Address) -> tuple[Address, ...]:
    """Add it, or change what an address that is there already wants to hear of; all addresses. ConfigError."""
    check(address.url)
    with _alone(home):
        found = list(read(home))
        for index, other in enumerate(found):
            if other.url == address.url:
                found[index] = address
                break
        else:
            found.append(address)
        _write(home, found)
    return tuple(found)


def remove(home: Path, which: str) -> tuple[Address, ...]:
    """Remove the address with this number, from 1, or with this URL; those that are left. ConfigError."""
    with _alone(home):
        found = list(read(home))
        index = next((i for i, each in enumerate(found) if each.url == which), None)
        if index is None and which.isascii() and which.isdigit() and 1 <= int(which) <= len(found):
            index = int(which) - 1
        if index is None:
            there = f"there are {len(found)}" if found else "there is none"
            raise ConfigError(
                f"no address for notices is meant by this number or URL; {there}",
                hint="`freegpu notify list` shows them with their numbers",
            )
        del found[index]
        _write(home, found)
    return tuple(found)


def _write(home: Path, addresses: Sequence[Address]) -> None:
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("written by `freegpu notify`; the URLs are secrets"))
    tables = tomlkit.aot()
    for address in addresses:
        table = tomlkit.table()
        table["url"] = address.url
        if set(address.on) != set(NoticeKind):
            table["on"] = [str(kind) for kind in address.on]
        tables.append(table)
    if addresses:
        document["notify"] = tables
    try:
        write_private(home / FILE_NAME, tomlkit.dumps(document).encode())
    except OSError as error:
        raise ConfigError(
            f"{home / FILE_NAME} cannot be written ({error.strerror or error})",
            hint="mend the permissions of the home, or free some space",
        ) from error


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One change of the addresses at a time, so that none is forgotten."""
    with lock_file(home / "notify.lock"):
        yield


# --- sending ---------------------------------------------------------------------------------------------


def send(address: Address, notice: Notice) -> str:
    """Send it now; "" or why it did not arrive, without the secrets of the URL. Blocks for seconds."""
    import apprise

    body = f"{notice.body}\n{notice.url}" if notice.url else notice.body
    failed = notice.kind is NoticeKind.FAILED
    kind = apprise.NotifyType.FAILURE if failed else apprise.NotifyType.INFO
    with _apprise_quiet() as said:
        try:
            service = apprise.Apprise()
            sent = bool(
                service.add(address.url)
                and service.notify(title=notice.title, body=body, notify_type=kind)
            )
        except Exception as error:
            # a plugin of Apprise may raise anything, and no notice is worth a daemon
            said.append(f"{type(error).__name__}: {error}")
            sent = False
    if sent:
        return ""
    return _without_secrets(said[-1], address.url) if said else "it was not taken"


@contextmanager
def _apprise_quiet() -> Iterator[list[str]]:
    """What Apprise says goes into the list and nowhere else: it may hold the URL."""
    said: list[str] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger, listen = logging.getLogger("apprise"), Listen(level=logging.WARNING)
    logger.propagate = False
    logger.addHandler(listen)
    try:
        yield said
    finally:
        logger.removeHandler(listen)


def _without_secrets(words: str, url: str) -> str:
    """The words with each part of the URL blotted out that is long enough to be one."""
    parts = {part for part in re.split(r"[/:@?&=#+,]+", _SCHEME.sub("", url)) if len(part) >= 4}
    for part in sorted(parts | {unquote(part) for part in parts}, key=len, reverse=True):
        words = words.replace(part, "***")
    return " ".join(words.split()).rstrip(".")[:200]

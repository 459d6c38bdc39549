"""Telling people elsewhere: the addresses, the claim on each notice, and the sending. See `notices`.

Each notice is claimed in the ledger before it is sent, so that of several processes one sends it. A process
that dies between claim and sending loses the one notice that it had claimed. What an address does not take is
tried again, a few times. Nothing here delays or breaks a tick: `Notifier` works in a thread of its own, with
a time limit, and its failures are one warning line.

Addresses are the URLs of Apprise (ntfy, Telegram, e-mail, Slack, WeCom and some hundred more). They carry
tokens, so they lie in a file of their own, readable by its owner only, and are shown without their secrets.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from freegpu.errors import ConfigError, FreeGPUError
from freegpu.orchestrator import notices
from freegpu.orchestrator.home import lock_file, write_private
from freegpu.orchestrator.notices import Attended, JobFacts, Notice, NoticeKind, Queued, State

if TYPE_CHECKING:
    from freegpu.orchestrator.ledger import Ledger
    from freegpu.orchestrator.model import Balance

__all__ = [
    "FILE_NAME",
    "META",
    "Address",
    "Notifier",
    "Source",
    "add",
    "begin",
    "check",
    "pump",
    "read",
    "remove",
    "send",
]

log = logging.getLogger(__name__)

#: the addresses, inside the home
FILE_NAME = "notify.toml"
#: the fact in the ledger that holds what is remembered
META = "notify"
#: how long one round of sending may take, seconds; what is left comes next time
LIMIT_S = 30.0
#: how long a command that has shown its output waits for the round to end, seconds
FINISH_S = 10.0
#: audit lines that one round looks at
_LINES = 500
#: so many lines that tell nothing may lie behind the cursor before it is moved for their sake alone
_IDLE = 2000
#: schemes whose first part is a host, and no secret
_HOSTED = frozenset({"json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos"})
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.+-]*)://")


# --- addresses -------------------------------------------------------------------------------------------


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
            return f"{name}://{split.hostname or ''}{port}/..."
        except ValueError:
            return f"{name}://***"


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
    import apprise

    if not apprise.Apprise().add(url):
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

    said: list[str] = []

    class Listen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    body = f"{notice.body}\n{notice.url}" if notice.url else notice.body
    logger, listen = logging.getLogger("apprise"), Listen(level=logging.WARNING)
    logger.addHandler(listen)
    logger.propagate = False  # its own words may hold the URL
    try:
        service = apprise.Apprise()
        if not service.add(address.url):
            return "no service takes such a URL"
        kind = apprise.NotifyType.FAILURE if notice.kind is NoticeKind.FAILED else None
        sent = service.notify(
            title=notice.title, body=body, notify_type=kind or apprise.NotifyType.INFO
        )
    except Exception as error:
        # a plugin of Apprise may raise anything, and no notice is worth a daemon
        said.append(f"{type(error).__name__}: {error}")
        sent = False
    finally:
        logger.removeHandler(listen)
    if sent:
        return ""
    return _without_secrets(said[-1], address.url) if said else "it was not taken"


def _without_secrets(words: str, url: str) -> str:
    """The words with each part of the URL blotted out that is long enough to be one."""
    parts = {part for part in re.split(r"[/:@?&=#+,]+", _SCHEME.sub("", url)) if len(part) >= 4}
    for part in sorted(parts | {unquote(part) for part in parts}, key=len, reverse=True):
        words = words.replace(part, "***")
    return " ".join(words.split()).rstrip(".")[:200]


# --- what is new, and who tells it -----------------------------------------------------------------------


class Source(Protocol):
    """What a round of sending looks at; `operations.Workspace` is one."""

    @property
    def home(self) -> Path: ...
    @property
    def ledger(self) -> Ledger: ...
    def now(self) -> datetime: ...
    def balances(self) -> Sequence[Balance]:
        """Every pool of quota as it is now; asks no platform."""
        ...

    def attended(self) -> Sequence[Attended]:
        """Platforms where one click would pay off now."""
        ...


def begin(ledger: Ledger) -> None:
    """From now on: what happened before the first address was added is not told."""
    before = ledger.meta(META)
    state = _state(before) or State()
    ledger.swap_meta(META, before, replace(state, cursor=ledger.last_event(), queue=()).to_json())


def pump(
    source: Source,
    *,
    until: float,
    sender: Callable[[Address, Notice], str] = send,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """One round: note what is new, then send what is due, claimed one by one; how many notices arrived everywhere.

    `until`: on the monotonic clock; no sending is begun after it. ConfigError, LedgerError.
    """
    addresses = {address.digest: address for address in read(source.home)}
    if not addresses:
        return 0
    for _ in range(3):
        if _note(source, addresses):
            break
    sent = 0
    while monotonic() < until and (entry := _claim(source, addresses)) is not None:
        failed = []
        for digest in entry.to:
            address = addresses[digest]
            reason = sender(address, entry.notice) if monotonic() < until else "no time was left"
            if reason:
                failed.append((digest, reason))
        sent += not failed
        if failed:
            _give_back(source, entry, failed, addresses)
    return sent


def _note(source: Source, addresses: dict[str, Address]) -> bool:
    """Put what is new into the queue. False: another process changed it meanwhile; look again."""
    ledger, now = source.ledger, source.now()
    before = ledger.meta(META)
    state = _state(before)
    if state is None:
        state = State(cursor=ledger.last_event())
    last = ledger.last_event()
    events = ledger.events(actions=notices.ACTIONS, after_id=state.cursor, limit=_LINES)
    facts = {job: _facts(ledger, job) for job in {e.job for e in events if e.job}}
    new = notices.from_events(events, facts)
    back, windows = notices.resets(state.windows, source.balances(), now)
    invited, remembered = notices.invitations(state.invited, source.attended(), now)
    cursor = state.cursor
    if events:
        cursor = events[-1].id
    elif last - cursor > _IDLE:
        cursor = last
    wants = {digest: address.on for digest, address in addresses.items()}
    queue = notices.queued(state, [*new, *back, *invited], wants)
    queue = tuple(entry for entry in (_known(entry, addresses) for entry in queue) if entry.to)
    after = State(cursor=cursor, queue=queue, invited=remembered, windows=windows).to_json()
    return after == before or ledger.swap_meta(META, before, after)


def _known(entry: Queued, addresses: dict[str, Address]) -> Queued:
    """Without addresses that were removed."""
    return replace(entry, to=tuple(digest for digest in entry.to if digest in addresses))


def _claim(source: Source, addresses: dict[str, Address]) -> Queued | None:
    """Take the next notice that is due off the queue; None: there is none."""
    while True:
        before = source.ledger.meta(META)
        state = _state(before)
        now = source.now()
        due = [
            entry
            for entry in (state.queue if state else ())
            if (entry.after is None or entry.after <= now) and set(entry.to) <= set(addresses)
        ]
        if state is None or not due:
            return None
        queue = tuple(entry for entry in state.queue if entry is not due[0])
        if source.ledger.swap_meta(META, before, replace(state, queue=queue).to_json()):
            return due[0]


def _give_back(
    source: Source,
    entry: Queued,
    failed: Sequence[tuple[str, str]],
    addresses: dict[str, Address],
) -> None:
    """For another try, at the addresses that it did not reach; or give it up."""
    again = notices.put_off(entry, [digest for digest, _ in failed], source.now())
    for digest, reason in failed:
        then = "it is given up" if again is None else "it is tried again"
        log.warning(
            "could not notify %s that %s (%s); %s",
            addresses[digest].shown,
            entry.notice.title,
            reason,
            then,
        )
    while again is not None:
        before = source.ledger.meta(META)
        state = _state(before) or State()
        queue = (*state.queue, again)
        if source.ledger.swap_meta(META, before, replace(state, queue=queue).to_json()):
            return


def _state(text: str | None) -> State | None:
    if text is None:
        return None
    try:
        return State.from_json(text)
    except ValueError:
        log.warning("what was remembered of notices is unreadable; they begin anew")
        return None


def _facts(ledger: Ledger, job_id: str) -> JobFacts:
    try:
        job = ledger.job(job_id)
    except FreeGPUError:
        return JobFacts(name=job_id)
    took = (job.ended_at - job.created_at).total_seconds() if job.ended_at else None
    return JobFacts(
        name=job.name,
        why=job.why,
        attempts=job.attempts,
        lost_s=job.lost_s,
        took_s=None if took is None else max(0.0, took),
        has_checkpoint=job.checkpoint is not None,
    )


# --- beside the ticks ------------------------------------------------------------------------------------


class Notifier:
    """Sends beside a process that ticks. `note` after every tick; `finish` at the end of the process.

    The first tick of a process only marks that there may be news: a command that ticks once sends after its
    output, in `finish`. From the second tick on (`up`, `logs -f`) it sends in the background.
    """

    def __init__(self, home: Path, opened: Callable[[], AbstractContextManager[Source]]) -> None:
        self._home = home
        self._opened = opened
        self._thread: threading.Thread | None = None
        self._ticks = 0
        self._news = False

    def note(self) -> None:
        """A tick has ended. Returns at once, raises nothing."""
        self._ticks += 1
        self._news = True
        if self._ticks > 1:
            self.start()

    def start(self) -> None:
        """Send in the background, if there may be news, an address, and no round under way."""
        if self._thread is not None and self._thread.is_alive():
            return
        if not self._news or not (self._home / FILE_NAME).exists():
            return
        self._news = False
        self._thread = threading.Thread(target=self._round, name="freegpu-notify", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float = FINISH_S) -> bool:
        """Send what is new, and wait so long for it; whether it is done. Raises nothing."""
        until = time.monotonic() + timeout_s
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        with suppress(RuntimeError):  # the interpreter is shutting down: no thread can be started
            self.start()
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        return self._thread is None or not self._thread.is_alive()

    def _round(self) -> None:
        try:
            with self._opened() as source:
                pump(source, until=time.monotonic() + LIMIT_S)
        except FreeGPUError as error:
            log.warning("no notices could be sent: %s", error)
        except Exception:
            log.exception("no notices could be sent", extra={"action": "notify_failed"})

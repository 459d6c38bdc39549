"""Google Colab, driven by Google's own command line program `colab`; off unless a person connects it.

The program is run as it is, in a HOME of its own, and what it prints decides nothing: its exit codes are 0 for failures, and
it drops quota, outcomes and any runtime it did not understand. So the account is asked by ourselves, with the sign-in
that the program keeps; runtimes are told apart by the endpoints that were noted here, since Colab's list knows no names.
Tried with google-colab-cli 0.7.5 on 2026-12-02.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import ssl
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from freegpu import cards
from freegpu.adapters.base import (
    Capabilities,
    Collected,
    Finding,
    Launch,
    LogPage,
    Observation,
    Offer,
    PlatformState,
    QuotaReport,
    Request,
    Rules,
    SessionRef,
    Window,
    WindowKind,
)
from freegpu.adapters.hosts import LOG_PAGE, held, write_private
from freegpu.agent.wire import check_name
from freegpu.clock import Clock, utc
from freegpu.errors import (
    AdapterError,
    AuthError,
    ConfigError,
    MissingSDKError,
    NoCapacityError,
    QuotaExhaustedError,
    RateLimitedError,
    RejectedError,
    UnreachableError,
)

if TYPE_CHECKING:
    import httpx

__all__ = ["GPUS", "ColabAdapter", "forget_block"]

BACKEND = "https://colab.research.google.com/tun/m"
#: the version that this was tried with
TRIED = "0.7.5"
#: One pool for all: compute units. Its unit is the 3600th part of a compute unit, so that a runtime that takes one
#: compute unit an hour is charged one each second.
POOL = "ccu"
#: cards that the program can ask for. It takes every other word for an A100, without saying so.
GPUS = ("T4", "L4", "G4", "A100", "H100")
#: Compute units an hour; nothing is published, so these are guesses on the high side
_GUESSED_RATES: Mapping[str, float] = MappingProxyType(
    {"T4": 2.0, "L4": 5.0, "G4": 10.0, "A100": 15.0, "H100": 20.0}
)
#: 12 h at most without a paid balance, by the FAQ as others quote it
SESSION_S = 12 * 3600.0
FAQ = "https://research.google.com/colaboratory/faq.html"
_VERIFIED = "2026-12-02"
_OPTIONS = ("accepted", "account", "cli", "gpus", "only_paid", "token")
#: seconds that one call of the program may take, by its command
LIMITS_S: Mapping[str, float] = MappingProxyType(
    {"new": 180.0, "upload": 120.0, "exec": 120.0, "stop": 60.0, "download": 60.0}
)
_CALL_S = 45.0
#: seconds that one request of ours may take
_REQUEST_S = 10.0
#: what the program needs of our environment; nothing else of it is its affair
_PASSED = re.compile(
    r"(?i)PATH|LANG|LC_\w+|TMPDIR|TZ|(https?|all|no)_proxy|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|SSL_CERT_(FILE|DIR)"
)
_ASKS = "Enter the authorization code"
_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - ", re.MULTILINE)
_SIGN_IN = "sign in with Colab's own program: `colab sessions`"


class ColabAdapter:
    """See the module. One folder for each session below the home, with the program's HOME for that session in it."""

    one_account: ClassVar[str] = "colab"
    rules: ClassVar[Rules] = Rules(
        name="free-unattended-use",
        sentences=(
            (
                "Colab's FAQ, as others quote it, says that runtimes of accounts without a positive balance of compute units"
                " may be ended at any time and without warning, and names among the reasons distributed computing workers,"
                " remote control such as SSH, and working around the notebook."
            ),
            (
                "Google offers the colab program for automation, but no text of Google's says how the two go together: a queue"
                " that starts free runtimes by itself may be taken for such a worker, and accounts have been blocked in error."
            ),
            "Several accounts to get around limits are forbidden to everybody.",
            (
                "freegpu starts runtimes for your own jobs only, gives them back when the queue is empty, and does nothing to"
                " look busy; --only-paid starts them only while you have a positive balance, which is what we recommend."
            ),
        ),
        url=FAQ,
    )

    def __init__(
        self,
        name: str,
        *,
        home: Path,
        clock: Clock,
        account: str = "yours",
        cli: str = "",
        gpus: Sequence[str] = ("T4",),
        only_paid: bool = False,
        token: str = "",
    ) -> None:
        self.name = name
        self.account = account
        self.folder = home / "colab" / name
        self.gpus = tuple(gpus)
        self.only_paid = only_paid
        self.token_path = Path(token or "~/.config/colab-cli/token.json").expanduser()
        self._cli = cli
        self._clock = clock
        self._client: httpx.Client | None = None
        self._secrets: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml. ConfigError: an option that cannot be meant, or the rules were not accepted."""
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise ConfigError(
                f"platform {name}: unknown option {unknown[0]!r}",
                hint=f"known: {', '.join(_OPTIONS)}",
            )
        if options.get("accepted") != cls.rules.name:
            raise ConfigError(
                f"platform {name}: the rules of Colab's FAQ on free, unattended use were not accepted",
                hint=f"read {FAQ}, then `freegpu connect colab --accept {cls.rules.name}`",
            )
        texts = {key: options.get(key, "") for key in ("cli", "token")}
        texts["account"] = options.get("account", "yours")
        for key, text in texts.items():
            if not isinstance(text, str) or (key in options and not text.strip()):
                raise ConfigError(f"platform {name}: {key} is {text!r}, not a text")
        only_paid = options.get("only_paid", False)
        if not isinstance(only_paid, bool):
            raise ConfigError(f"platform {name}: only_paid is {only_paid!r}, not true or false")
        return cls(
            name,
            home=home,
            clock=clock,
            gpus=_gpus(name, options.get("gpus", ["T4"])),
            only_paid=only_paid,
            **texts,
        )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            stop=True,
            live_logs=True,
            reports_quota=True,
            max_session_s=SESSION_S,
            max_concurrent=1,
        )

    @property
    def windows(self) -> Mapping[str, Window]:
        source = "Colab publishes no limits; ccu-info tells what is left and when it is refilled"
        kind = WindowKind.ROLLING
        return {POOL: Window(kind=kind, source=source, verified_on=_VERIFIED)}

    # --- what there is ----------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        self._refuse_blocked()
        told = self._ccu()
        if self.only_paid and not told.paid:
            return []
        return [
            Offer(
                platform=self.name,
                account=self.account,
                card=known.name,
                vram_gb=float(known.vram_gb),
                memory_gb=12.7,
                cpus=2.0,
                session_limit_s=SESSION_S,
                start_delay_s=40.0,
                pool=POOL,
                rate=_GUESSED_RATES[gpu],
            )
            for gpu in self.gpus
            if gpu in told.eligible and (known := cards.find(gpu)) is not None
        ]

    def quota(self) -> Sequence[QuotaReport] | None:
        self._refuse_blocked()
        told = self._ccu()
        return [
            QuotaReport(
                pool=POOL,
                # what was used is not told: what is left is all that there is from now on
                used_s=0.0,
                limit_s=None if told.left is None else max(0.0, told.left) * 3600,
                resets_at=told.refill,
                as_of=utc(self._clock),
            )
        ]

    # --- sessions ---------------------------------------------------------------------------------------

    def render(self, launch: Launch, /) -> Request:
        gpu = next((gpu for gpu in GPUS if _means(gpu) == launch.offer.card), "")
        return Request(
            key=launch.key,
            payload={
                "gpu": gpu,
                "cell": f"{_cell()}\n\nfreegpu({_remote(launch.key)!r}, 'NONCE')\n",
                "agent": launch.agent_path,
                "profile": launch.profile.to_json(),
            },
        )

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        self._secrets = secrets

    def start(self, request: Request, /) -> SessionRef:
        self._refuse_blocked()
        gpu = str(request.payload["gpu"])
        if gpu not in GPUS:
            raise RejectedError(f"Colab's program has no GPU that is called {gpu!r}", **self._who())
        place = self._place(request.key)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(place / "lock") as lock:
            if self._settle(place):
                return SessionRef(request.key)
            if self.only_paid and not self._ccu().paid:
                raise QuotaExhaustedError(
                    "the balance of compute units is not positive, and only_paid is set",
                    hint="buy compute units, or take only_paid out of freegpu.toml",
                    **self._who(),
                )
            try:
                self._note(place, phase="claimed", gpu=gpu)
                endpoint, accelerator = self._assign(place, request.key, gpu, lock)
                self._note(place, phase="assigned", endpoint=endpoint, accelerator=accelerator)
                self._run(place, request, lock)
                self._note(place, phase="started", endpoint=endpoint, accelerator=accelerator)
            except AdapterError:
                # with what Colab gave in between; if even that fails, the note stays and the next look does it
                with contextlib.suppress(AdapterError):
                    self._settle(place)
                raise
            finally:
                _scrub(place)
        return SessionRef(request.key)

    def find(self, key: str, /) -> SessionRef | None:
        place = self._known(key)
        if place is None:
            return None
        self._refuse_blocked()
        with held(place / "lock"):  # waits for whoever is starting it just now
            return SessionRef(key) if self._settle(place) else None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        noted = {ref: _noted(place) for ref in refs if (place := self._known(ref)) is not None}
        seen = dict.fromkeys(refs, Observation(state=PlatformState.GONE, raw="not noted here"))
        asked = {ref: note for ref, note in noted.items() if note.get("endpoint")}
        if not asked:
            return seen
        self._refuse_blocked()
        listed = self._assignments()
        for ref, note in asked.items():
            accelerator = listed.get(str(note["endpoint"]))
            if accelerator is None:
                seen[ref] = Observation(
                    state=PlatformState.ENDED,
                    raw="not assigned",
                    detail="Colab's list of runtimes does not have it any more",
                )
                continue
            came = cards.find(accelerator)
            seen[ref] = Observation(
                state=PlatformState.RUNNING,
                raw=f"assigned {accelerator}",
                card=came.name if came is not None else accelerator,
            )
        self._sweep()
        return seen

    def stop(self, ref: SessionRef, /) -> None:
        place = self._known(ref)
        endpoint = str(_noted(place).get("endpoint", "")) if place is not None else ""
        if place is None or not endpoint or endpoint not in self._assignments():
            return
        with contextlib.suppress(AdapterError):
            # it says "not found" and exits with 0 for what it has forgotten: only the list is believed
            self._colab(place, ["stop", "-s", str(ref)])
        if endpoint in self._assignments():
            self._unassign(endpoint)

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        start = int(cursor) if cursor and cursor.isdigit() else 0
        place = self._known(ref)
        if place is None:
            return LogPage(text="", cursor=cursor)
        self._refuse_blocked()
        fresh = place / "agent.log.new"
        with contextlib.suppress(
            AdapterError
        ):  # a runtime that is gone shows what was read of it before
            self._colab(
                place, ["download", "-s", str(ref), f"content/{_remote(ref)}.log", str(fresh)]
            )
        if fresh.exists():
            os.replace(fresh, place / "agent.log")
        try:
            data = (place / "agent.log").read_bytes()[start : start + LOG_PAGE]
        except FileNotFoundError:
            data = b""
        if len(data) == LOG_PAGE and b"\n" in data:
            data = data[: data.rindex(b"\n") + 1]  # not in the middle of a character
        return LogPage(text=data.decode("utf-8", "replace"), cursor=str(start + len(data)))

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def tidy(self, ref: SessionRef, /) -> None:
        place = self._known(ref)
        if place is None:
            return
        self.stop(ref)
        shutil.rmtree(place, ignore_errors=True)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- starting ---------------------------------------------------------------------------------------

    def _assign(self, place: Path, key: str, gpu: str, lock: int | None) -> tuple[str, str]:
        """A runtime and the accelerator that came. One request in flight for the account, and one POST for each."""
        with held(self.folder / "assign.lock") as account:
            said = self._colab(place, ["new", "-s", key, "--gpu", gpu], (lock, account))
        endpoint = _session(place, key).get("endpoint", "")
        answers = _answers(place)
        if endpoint:
            came = next((a.json.get("accelerator") for a in answers if a.method == "POST"), gpu)
            return str(endpoint), str(came or gpu)
        raise self._refused(said, answers, gpu)

    def _refused(self, said: _Said, answers: Sequence[_Answer], gpu: str) -> AdapterError:
        """Why there is no runtime: the outcome in the body goes before the status, and both before what was printed."""
        last = next((a for a in reversed(answers) if "/assign" in a.url), None)
        if last is None:
            return UnreachableError(f"colab new came to no answer: {said.tail}", **self._who())
        outcome, status = last.json.get("outcome"), last.status
        if outcome == 5:
            self._block()
            return self._blocked()
        if outcome in (1, 2):
            what = {1: f"a runtime with a {gpu}", 2: "further use"}[outcome]
            return QuotaExhaustedError(
                f"Colab's quota does not allow {what} now",
                hint="`freegpu status` shows when it is refilled, where Colab tells",
                resets_at=self._refill(),
                **self._who(),
            )
        if status == 200 and last.json.get("endpoint"):
            return NoCapacityError(
                f"Colab gave {last.json.get('accelerator')!r}, which its program cannot work with;"
                " it was given back",
                **self._who(),
            )
        if status == 412:
            return self._ambiguous(gpu)
        if status == 400:
            return RejectedError(
                f"Colab does not give this account a {gpu}",
                hint="take it out of `gpus` in freegpu.toml",
                **self._who(),
            )
        if status == 503:
            return NoCapacityError(f"Colab has no {gpu} now", **self._who())
        return self._error(status, last.headers, "new")

    def _ambiguous(self, gpu: str) -> AdapterError:
        """412: too many runtimes by Google's own words, and on free accounts a lack of cards or of quota as well."""
        with contextlib.suppress(AdapterError):
            told = self._ccu()
            if not told.paid and told.left is not None and told.left <= 0:
                return QuotaExhaustedError(
                    "Colab's quota is used up", resets_at=told.refill, **self._who()
                )
        return NoCapacityError(
            f"Colab gives no further runtime with a {gpu} now: too many runtimes, or none is free",
            **self._who(),
        )

    def _run(self, place: Path, request: Request, lock: int | None) -> None:
        """Bring the agent there and start it in a cell; the cell goes on when our program is killed."""
        name, nonce = _remote(request.key), secrets.token_hex(12)
        packed, cell = place / "launch.zip", place / "cell.py"
        try:
            self._pack(packed, request)
        except OSError as error:
            raise RejectedError(
                f"the launch cannot be packed: {error.strerror or error}",
                hint=f"check the space and permissions of {place}",
                **self._who(),
            ) from error
        try:
            said = self._colab(
                place, ["upload", "-s", request.key, str(packed), f"content/{name}.zip"], (lock,)
            )
        finally:
            packed.unlink(missing_ok=True)
        if "Uploaded" not in said.out:
            raise UnreachableError("the agent could not be brought to the runtime", **self._who())
        write_private(cell, str(request.payload["cell"]).replace("NONCE", nonce).encode())
        mark = f"freegpu:{nonce}:"
        said = self._colab(
            place,
            ["exec", "-s", request.key, "-f", str(cell), "--timeout", "86400"],
            (lock,),
            until=mark,
        )
        line = next((line for line in said.out.splitlines() if line.startswith(mark)), "")
        word, _, detail = line.removeprefix(mark).partition(":")
        if word == "failed":
            raise RejectedError(f"the agent did not start there: {detail}", **self._who())
        if word != "started":
            raise UnreachableError("the cell that starts the agent gave no sign", **self._who())

    def _pack(self, packed: Path, request: Request) -> None:
        secrets, profile = dict(self._secrets()), request.payload["profile"]
        write_private(packed, b"")  # private before anything is in it
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(str(request.payload["agent"]), "agent.pyz")
            archive.writestr("profile.json", json.dumps(profile))
            if secrets:
                archive.writestr("access.json", json.dumps({"secrets": secrets}))

    # --- what was noted, and what Colab has of it -------------------------------------------------------

    def _place(self, key: str) -> Path:
        return self.folder / check_name(key)

    def _known(self, key: str) -> Path | None:
        """The session's folder, if there is one: a reference that somebody made up is merely unknown."""
        try:
            place = self._place(key)
        except ValueError:
            return None
        return place if place.is_dir() else None

    def _note(self, place: Path, **told: Any) -> None:
        write_private(place / "session.json", json.dumps({"at": time.time(), **told}).encode())

    def _settle(self, place: Path) -> bool:
        """Whether the session of this folder was started. If it came only half the way, what it got is given back.

        Called with the folder's lock held; the program holds it too, so none of them is at work any more.
        """
        note = _noted(place)
        if note.get("phase") == "started":
            return True
        if note:
            for endpoint in self._half(place, note):
                self._unassign(endpoint)
            (place / "session.json").unlink(missing_ok=True)
            (place / ".config" / "colab-cli" / "sessions.json").unlink(missing_ok=True)
        _scrub(place)
        return False

    def _half(self, place: Path, note: Mapping[str, Any]) -> set[str]:
        """The runtimes that a start which came to no end may have got."""
        found = {str(note.get("endpoint") or ""), _session(place, place.name).get("endpoint") or ""}
        for answer in _answers(place):
            if answer.method == "POST" and "/assign?" in answer.url:
                if endpoint := answer.json.get("endpoint"):
                    found.add(endpoint)
                elif answer.status not in (400, 412) and "outcome" not in answer.json:
                    # it may have happened: the same address names the runtime, if there is one
                    with contextlib.suppress(_NotFoundError):
                        found.add(self._ask("GET", answer.url).get("endpoint") or "")
        return found - {""}

    def _sweep(self) -> None:
        """Give back what starts that were killed have left; those that are still at work are left alone."""
        for place in sorted(self.folder.iterdir()):
            if _noted(place).get("phase") in ("claimed", "assigned"):
                with held(place / "lock", wait=False) as lock, contextlib.suppress(AdapterError):
                    if lock is not None:
                        self._settle(place)

    # --- Colab's own program ----------------------------------------------------------------------------

    def program(self) -> str:
        """Where the program is. MissingSDKError: nowhere."""
        usual = Path.home() / ".local" / "bin" / "colab"
        for path in (self._cli, shutil.which("colab") or "", str(usual)):
            if path and os.access(Path(path).expanduser(), os.X_OK):
                return str(Path(path).expanduser())
            if path and path == self._cli:
                break
        raise MissingSDKError(
            "Google's colab program is not there" + (f" at {self._cli}" if self._cli else ""),
            hint="install it with Python 3.12 or newer: `uv tool install google-colab-cli` or `pipx install google-colab-cli`",
            **self._who(),
        )

    def _colab(
        self,
        place: Path,
        words: Sequence[str],
        locks: Sequence[int | None] = (),
        *,
        until: str = "",
    ) -> _Said:
        """Run the program and take what it printed; it is killed when its time is up or when it has said `until`.

        AuthError: it asks for a sign-in. UnreachableError: it took too long.
        """
        argv = [self.program(), "--auth=oauth2", *words]
        config = place / ".config" / "colab-cli"
        config.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = config / "token.json"
        if (
            not link.is_symlink()
        ):  # the program writes a new token through it into the person's own file
            with contextlib.suppress(FileExistsError):
                link.symlink_to(self.token_path.absolute())
        write_private(config / "settings.json", b'{"enable_update_check": false}')
        around = {key: value for key, value in os.environ.items() if _PASSED.fullmatch(key)}
        # one POST a start: whether to ask again is decided elsewhere, and never blindly
        around |= {"HOME": str(place), "COLAB_CLI_ASSIGN_RETRIES": "0", "PYTHONUNBUFFERED": "1"}
        limit = LIMITS_S.get(words[0], _CALL_S)
        out, err = place / f"out-{os.getpid()}", place / f"err-{os.getpid()}"
        over = False
        try:
            with open(out, "wb") as told, open(err, "wb") as complained:
                try:
                    child = subprocess.Popen(
                        argv,
                        cwd=place,
                        env=around,
                        stdin=subprocess.DEVNULL,
                        stdout=told,
                        stderr=complained,
                        pass_fds=[lock for lock in locks if lock is not None],
                        start_new_session=True,
                    )
                except OSError as error:
                    raise MissingSDKError(
                        f"{argv[0]} cannot be run: {error.strerror or error}", **self._who()
                    ) from error
                over = not self._until_done(child, limit, out, until)
            text = out.read_text(errors="replace")
            said = _Said(out=text, err=err.read_text(errors="replace"))
        finally:
            out.unlink(missing_ok=True)
            err.unlink(missing_ok=True)
            if words[0] != "new":
                _scrub(place)
        if _ASKS in said.out:
            raise AuthError(
                "the colab program is not signed in, or its sign-in has ended",
                hint=_SIGN_IN,
                **self._who(),
            )
        if over:
            raise UnreachableError(
                f"colab {words[0]} did not end within {limit:g} s", **self._who()
            )
        return said

    def _until_done(
        self, child: subprocess.Popen[bytes], limit: float, out: Path, until: str
    ) -> bool:
        """False: its time was up. Whatever happens, nothing of it is left."""
        end = time.monotonic() + limit
        try:
            while time.monotonic() < end:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.1 if until else max(0.1, end - time.monotonic()))
                    return True
                if until and any(
                    line.startswith(until)
                    for line in out.read_text(errors="replace").split("\n")[:-1]
                ):
                    return True
            return False
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    # --- Colab itself -----------------------------------------------------------------------------------

    def _ccu(self) -> _Ccu:
        return _Ccu.read(self._ask("GET", f"{BACKEND}/ccu-info"))

    def _refill(self) -> datetime | None:
        try:
            return self._ccu().refill
        except AdapterError:
            return None

    def _assignments(self) -> dict[str, str]:
        """Accelerator by endpoint, of every runtime of the account; also words that the program would die of."""
        told = self._ask("GET", f"{BACKEND}/assignments").get("assignments") or []
        return {
            str(item["endpoint"]): str(item.get("accelerator", ""))
            for item in told
            if isinstance(item, dict) and item.get("endpoint")
        }

    def _unassign(self, endpoint: str) -> None:
        """Give a runtime back; silent if it is gone."""
        url = f"{BACKEND}/unassign/{endpoint}"
        with contextlib.suppress(_NotFoundError):
            proof = str(self._ask("GET", url).get("token", ""))
            self._ask("POST", url, {"X-Goog-Colab-Token": proof})

    def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """One request with the program's own sign-in. An empty answer is {}."""
        import httpx

        if self._client is None:
            self._client = httpx.Client(timeout=_REQUEST_S, verify=_trust())
        around = {
            "Authorization": f"Bearer {self._bearer()}",
            "Accept": "application/json",
            **(headers or {}),
        }
        try:
            reply = self._client.request(
                method, url, params=None if "?" in url else {"authuser": "0"}, headers=around
            )
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"Colab does not answer: {type(error).__name__}",
                hint="check the connection, and HTTPS_PROXY and REQUESTS_CA_BUNDLE where you use them",
                **self._who(),
            ) from error
        if reply.status_code >= 400:
            raise self._error(
                reply.status_code, reply.headers, url.rpartition("/tun/m/")[2].partition("/")[0]
            )
        return _body(reply.text)

    def _error(self, status: int, headers: Mapping[str, str], what: str) -> AdapterError:
        if status in (401, 403):
            return AuthError(
                f"Colab does not accept the sign-in ({status})", hint=_SIGN_IN, **self._who()
            )
        if status == 404:
            return _NotFoundError(f"Colab does not know that ({what})", **self._who())
        if status == 429:
            wait = str(headers.get("Retry-After", headers.get("retry-after", "")))
            return RateLimitedError(
                "Colab asks for fewer requests",
                retry_after_s=float(wait) if wait.isdigit() else None,
                **self._who(),
            )
        if status >= 500:
            return UnreachableError(f"Colab has a problem ({status} to {what})", **self._who())
        return RejectedError(f"Colab answered {status} to {what}", **self._who())

    def _bearer(self) -> str:
        """The program's access token; one that has ended is renewed by the program itself."""
        token, ends = self._signed_in()
        if ends is not None and ends - time.time() < 60:
            place = self.folder / "renew"
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            with held(place / "lock"):
                token, ends = self._signed_in()
                if ends is not None and ends - time.time() < 60:
                    self._colab(place, ["usage"])
                    token, ends = self._signed_in()
            if ends is not None and ends <= time.time():
                raise AuthError("the sign-in has ended", hint=_SIGN_IN, **self._who())
        return token

    def _signed_in(self) -> tuple[str, float | None]:
        """The access token and when it ends, epoch seconds. AuthError."""
        try:
            told = json.loads(self.token_path.read_bytes())
            token, ends = str(told["token"]), told.get("expiry")
            moment = datetime.fromisoformat(str(ends).replace("Z", "+00:00")) if ends else None
        except FileNotFoundError:
            raise AuthError(
                f"the colab program has no sign-in at {self.token_path}",
                hint=_SIGN_IN,
                **self._who(),
            ) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise AuthError(
                f"the sign-in at {self.token_path} cannot be read", hint=_SIGN_IN, **self._who()
            ) from None
        if moment is None:
            return token, None
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return token, aware.timestamp()

    # --- blocked ----------------------------------------------------------------------------------------

    def _block(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.folder / "blocked.json", json.dumps({"at": time.time()}).encode())

    def _blocked(self) -> RejectedError:
        return RejectedError(
            "Colab has blocked this account",
            hint="freegpu asks Colab for nothing more; write to Google in a notebook (Help > Send feedback), and when it"
            " is lifted, `freegpu connect colab`",
            **self._who(),
        )

    def _refuse_blocked(self) -> None:
        if (self.folder / "blocked.json").exists():
            raise self._blocked()

    def _who(self) -> dict[str, Any]:
        return {"adapter": self.name, "account": self.account}

    # --- diagnosis --------------------------------------------------------------------------------------

    def diagnose(self, store: str, /) -> Iterator[Finding]:
        yield from self._diagnose_program()
        if (self.folder / "blocked.json").exists():
            blocked = self._blocked()
            yield Finding(name="account", ok=False, detail=blocked.message, hint=blocked.hint)
            return
        try:
            self._bearer()
            told = self._ccu()
        except AdapterError as error:
            name = "credentials" if isinstance(error, AuthError) else "quota"
            yield Finding(name=name, ok=False, detail=error.message, hint=error.hint)
            return
        yield Finding(
            name="credentials", ok=True, detail=f"the colab program's own, in {self.token_path}"
        )
        yield self._diagnose_quota(told)
        yield from self._diagnose_clock()
        if store.startswith("folder:"):
            yield Finding(
                name="store",
                ok=None,
                detail="a folder: Colab's runtimes mount no Drive without a person; they reach s3: and drive: stores",
            )

    def _diagnose_program(self) -> Iterator[Finding]:
        place = self.folder / "renew"
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            said = self._colab(place, ["version"])
            found = re.search(r"\d+\.\d+\.\d+\S*", said.out)
        except AdapterError as error:
            yield Finding(name="installed", ok=False, detail=error.message, hint=error.hint)
            return
        if found is None:
            yield Finding(
                name="installed",
                ok=False,
                detail=f"{self.program()} does not say its version: {said.tail}",
                hint="is it Google's colab program? It needs Python 3.12 or newer",
            )
            return
        known = found.group() == TRIED
        more = "" if known else f"; freegpu was tried with {TRIED}"
        yield Finding(
            name="installed",
            ok=True if known else None,
            detail=f"google-colab-cli {found.group()} at {self.program()}{more}",
        )

    def _diagnose_quota(self, told: _Ccu) -> Finding:
        cards_told = ", ".join(sorted(told.eligible)) or "no GPU"
        left = (
            "Colab does not tell what is left"
            if told.left is None
            else f"{told.left:g} compute units are left"
        )
        kind = "a paid balance" if told.paid else "no paid balance"
        refill = f", refilled at {told.refill:%Y-%m-%d %H:%M} UTC" if told.refill else ""
        if self.only_paid and not told.paid:
            return Finding(
                name="quota",
                ok=None,
                detail=f"{kind}, and only_paid is set: nothing is started ({left}{refill})",
            )
        return Finding(
            name="quota", ok=True, detail=f"{kind}, {left}{refill}; eligible: {cards_told}"
        )

    def _diagnose_clock(self) -> Iterator[Finding]:
        assert self._client is not None  # noqa: S101 - it has just been used
        with contextlib.suppress(Exception):
            date = self._client.get(f"{BACKEND}/ccu-info").headers.get("Date", "")
            skew = parsedate_to_datetime(date).timestamp() - time.time()
            yield Finding(
                name="clock",
                ok=abs(skew) < 120,
                detail=f"this machine's clock and Google's are {abs(skew):.0f} s apart",
                hint="" if abs(skew) < 120 else "set this machine's clock",
            )


class _NotFoundError(RejectedError):
    """Colab does not know what was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Said:
    """What the program printed."""

    out: str
    err: str

    @property
    def tail(self) -> str:
        """The last line, for people."""
        lines = (self.out + "\n" + self.err).strip().splitlines()
        return lines[-1].strip()[-200:] if lines else "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """A request of the program's and what came back, from its log."""

    method: str
    url: str
    #: 0: nothing came
    status: int
    headers: Mapping[str, str]
    json: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ccu:
    """What ccu-info tells; the shapes are those that Google's VS Code extension reads (colab-vscode, 2026-08)."""

    paid: bool
    #: compute units that are left; None: it is not told
    left: float | None
    refill: datetime | None
    eligible: frozenset[str]
    #: compute units an hour of all that runs, and how many run
    rate: float
    running: int

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Self:
        balance = _number(told.get("currentBalance")) or 0.0
        free = told.get("freeCcuQuotaInfo")
        free = free if isinstance(free, dict) else {}
        milli, refill = (
            _number(free.get("remainingTokens")),
            _number(free.get("nextRefillTimestampSec")),
        )
        left = balance if balance > 0 else None if milli is None else milli / 1000
        return cls(
            paid=balance > 0,
            left=left,
            refill=datetime.fromtimestamp(refill, UTC) if refill and balance <= 0 else None,
            eligible=frozenset(map(str, told.get("eligibleGpus") or ())),
            rate=_number(told.get("consumptionRateHourly")) or 0.0,
            running=int(_number(told.get("assignmentsCount")) or 0),
        )


def forget_block(home: Path, name: str) -> None:
    """Ask Colab again although it had blocked the account: the person says that it is lifted."""
    (home / "colab" / name / "blocked.json").unlink(missing_ok=True)


def _number(told: object) -> float | None:
    """A number that may come as a text."""
    try:
        return float(told) if isinstance(told, int | float | str) else None
    except ValueError:
        return None


def _body(text: str) -> dict[str, Any]:
    """A JSON object behind Google's guard line; {} for anything else."""
    try:
        told = json.loads(text.removeprefix(")]}'\n") or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _noted(place: Path) -> dict[str, Any]:
    try:
        told = json.loads((place / "session.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _session(place: Path, key: str) -> dict[str, Any]:
    """What the program itself keeps of this session; {} if it has forgotten it."""
    try:
        told = json.loads((place / ".config" / "colab-cli" / "sessions.json").read_bytes())[key]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}


def _answers(place: Path) -> list[_Answer]:
    """The requests in the program's log, oldest first: it hides bodies that it does not understand, but logs them."""
    try:
        text = (place / ".config" / "colab-cli" / "colab.log").read_text(errors="replace")
    except OSError:
        return []
    found: list[dict[str, Any]] = []
    for record in _RECORD.split(text):
        name, _, message = record.partition(" - DEBUG - ")
        if name != "colab_cli.client":
            continue
        what, _, rest = message.partition(": ")
        rest = rest.rstrip("\n")
        if what == "Request":
            method, _, url = rest.partition(" ")
            found.append({"method": method, "url": url, "status": 0, "headers": {}, "json": {}})
        elif found and what == "Response":
            found[-1]["status"] = int(rest.split()[0]) if rest[:3].isdigit() else 0
        elif found and what == "Response Headers":
            pairs = re.findall(r"'([^']+)': '([^']*)'", rest)
            found[-1]["headers"] = {key.title(): value for key, value in pairs}
        elif found and what == "Response Body":
            found[-1]["json"] = _body(rest)
    return [_Answer(**one) for one in found]


def _scrub(place: Path) -> None:
    """Remove what the program writes down beside what it needs: its log holds bearer tokens, its history all code."""
    config = place / ".config" / "colab-cli"
    (config / "colab.log").unlink(missing_ok=True)
    shutil.rmtree(config / "history", ignore_errors=True)
    for left in ("launch.zip", "cell.py"):
        (place / left).unlink(missing_ok=True)


def _cell() -> str:
    return Path(__file__).with_name("colab_cell.txt").read_text(encoding="utf-8").rstrip()


def _remote(key: str) -> str:
    """What a session's files are called on its runtime."""
    return f"freegpu-{key}"


def _means(gpu: str) -> str:
    found = cards.find(gpu)
    return found.name if found is not None else ""


def _gpus(name: str, given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"platform {name}: gpus is {given!r}, not a list of cards")
    for gpu in given:
        if gpu not in GPUS:
            raise ConfigError(
                f"platform {name}: Colab's program has no GPU that is called {gpu!r}",
                hint=f"known: {', '.join(GPUS)}",
            )
    return tuple(given)


def _trust() -> ssl.SSLContext | bool:
    """The authorities that the person's environment names for requests, which the program uses; else the usual ones."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if path := os.environ.get(name):
            with contextlib.suppress(OSError):
                return ssl.create_default_context(
                    cafile=path if os.path.isfile(path) else None,
                    capath=path if os.path.isdir(path) else None,
                )
    return True

"""A Kaggle session is one private kernel of its own: its slug carries the session's id, so it is found from the account.

Sealed (the default): no credentials leave; what goes in is a private dataset, what comes back is the kernel's output.
Store: the kernel has internet and opens the store itself. Ending a session deletes its kernel, for there is no other
way, and with it the output. Facts: kagglesdk 0.1.38 and public reports, looked at on 2026-12-02; never tried with an
account.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

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
    SessionRef,
    Window,
    WindowKind,
)
from freegpu.adapters.hosts import held, write_private
from freegpu.adapters.kaggle import findings, output, parcel, room, words
from freegpu.adapters.kaggle.calls import (
    Calls,
    DeniedError,
    MissingError,
    TroubledError,
    check_endpoint,
)
from freegpu.adapters.kaggle.source import (
    ACCESS,
    AGENT,
    LIMIT_S,
    PREFIX,
    SEALED,
    SEED,
    SHAPES,
    SPARE_S,
    STORE,
    TPU_LIMIT_S,
    WRONG_MACHINE,
    payload,
    slug_of,
    source,
)
from freegpu.adapters.kaggle.words import GPU, TPU
from freegpu.adapters.options import refuse_unknown
from freegpu.agent import wire
from freegpu.agent.stores.base import StoreError
from freegpu.clock import Clock, utc
from freegpu.errors import (
    AdapterError,
    AuthError,
    ConfigError,
    FreeGPUError,
    NoCapacityError,
    RejectedError,
    UnreachableError,
)
from freegpu.jobs.lifecycle import EndReason

PRIVATE_DATASET = "private-dataset"
#: queue, image and start; an estimate
START_DELAY_S = 120.0
#: a source of this many bytes or more goes into the dataset instead
TEXT_MOST = 1 << 20
_OPTIONS = ("account", "carry", "credentials", "endpoint", "timeout_s")
_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_REF = re.compile(r"([A-Za-z0-9_-]{1,64})/(freegpu-[a-z0-9-]{1,42})")


class KaggleAdapter:
    """See the module. Options: `_OPTIONS`; docs/how-to/use-kaggle.md."""

    one_account = "kaggle"

    def __init__(
        self, name: str, *, home: Path, clock: Clock, options: Mapping[str, Any] | None = None
    ) -> None:
        given = dict(options or {})
        self.name = name
        self.home = home
        self.clock = clock
        account = str(given.get("account") or "")
        self.account = account or "kaggle"
        self.carry = _word(name, "carry", given.get("carry", SEALED), (SEALED, STORE))
        allowed = given.get("credentials", "none")
        self.credentials = _word(name, "credentials", allowed, ("none", PRIVATE_DATASET))
        endpoint = given.get("endpoint") or os.environ.get("FREEGPU_KAGGLE_ENDPOINT") or ""
        self.calls = Calls(
            name,
            account=account,
            endpoint=check_endpoint(name, str(endpoint)),
            clock=clock,
            timeout_s=_positive(name, "timeout_s", given.get("timeout_s", 20.0)),
        )
        self._secrets: Callable[[], Mapping[str, str]] = dict

    @classmethod
    def from_options(
        cls, name: str, options: Mapping[str, Any], *, home: Path, clock: Clock
    ) -> Self:
        """From its table in freegpu.toml. ConfigError: an option that it does not know, or cannot use."""
        refuse_unknown(name, options, _OPTIONS)
        return cls(name, home=home, clock=clock, options=options)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            reports_quota=True,
            sealed=self.carry == SEALED,
            # batch sessions with cards, by reports; whether others count is not known
            max_concurrent=2,
            max_session_s=LIMIT_S,
        )

    @property
    def windows(self) -> Mapping[str, Window]:
        source = "reports; the account's own figures and refresh time are read live"
        looked = "2026-12-02"

        def weekly(hours: float) -> Window:
            return Window(
                kind=WindowKind.FIXED_WEEKLY,
                limit_s=hours * 3600,
                # Saturday 00:00 UTC is inferred from one sighting
                reset_offset_s=5 * 86400.0,
                source=source,
                verified_on=looked,
            )

        free = Window(
            kind=WindowKind.PER_SESSION, limit_s=LIMIT_S, source=source, verified_on=looked
        )
        return {GPU: weekly(30), TPU: weekly(20), "": free}

    @property
    def signed_in(self) -> str:
        """The user name that Kaggle told, "" while nobody asked; `connect` writes it down."""
        return self.calls.told

    # --- what could be had ------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        allowed = {report.pool: report.limit_s for report in self.quota()}
        return [
            offer
            for offer in (
                self._offer("T4", GPU, LIMIT_S, count=2, memory_gb=29.0, cpus=4.0),
                self._offer("tpu-v5e-8", TPU, TPU_LIMIT_S, memory_gb=300.0, cpus=96.0),
                self._offer("CPU", "", LIMIT_S, memory_gb=29.0, cpus=4.0),
            )
            # a pool that Kaggle does not name, or of which nothing is allowed, is not this account's
            if not offer.pool or allowed.get(offer.pool)
        ]

    def _offer(self, card: str, pool: str, limit_s: float, **more: Any) -> Offer:
        known = cards.find(card)
        return Offer(
            platform=self.name,
            account=self.account,
            card=card,
            vram_gb=known.vram_gb if known else 0.0,
            # what comes back as output; the scratch disk beside it is larger
            disk_gb=19.5,
            session_limit_s=limit_s - SPARE_S,
            start_delay_s=START_DELAY_S,
            pool=pool,
            **more,
        )

    def quota(self) -> Sequence[QuotaReport]:
        """Reserved counts as used: whether `timeUsed` holds it already is not known, and the lower rest is the safe one."""
        self.calls.user()
        told = self.calls.ask("GetAcceleratorQuotaStatistics")
        return words.quota(told, utc(self.clock))

    # --- sessions ---------------------------------------------------------------------------------------

    def render(self, launch: Launch, /) -> Request:
        return Request(key=launch.key, payload=payload(launch, self.carry))

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        self._secrets = secrets

    def start(self, request: Request, /) -> SessionRef:
        if not _KEY.fullmatch(request.key):
            raise self._error(RejectedError, f"a session cannot be called {request.key!r}")
        if request.payload["card"] not in SHAPES:
            raise self._error(RejectedError, f"Kaggle has no {request.payload['card']}")
        folder = self.home / "kaggle"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # a push to a slug that is there starts a second session beside the first
        with held(folder / f"{request.key}.lock"):
            return self._there(request.key) or self._start(request, folder)

    def _start(self, request: Request, folder: Path) -> SessionRef:
        slug, owner = str(request.payload["slug"]), self.calls.user()
        with self._parcel(request, folder) as (text, files):
            if files:
                self._make_sure_of_room(owner, slug, request, folder)
                try:
                    parcel.bring(self.calls, owner, slug, slug.replace("-", " "), files)
                except AdapterError:
                    # nothing was pushed: it holds code, and nobody will ask for it
                    with suppress(AdapterError):
                        parcel.take_away(self.calls, owner, slug)
                    raise
        try:
            told = self.calls.ask(
                "SaveKernel",
                slug=f"{owner}/{slug}",
                text=text,
                datasetDataSources=[f"{owner}/{slug}"] if files else [],
                kernelDataSources=[],
                competitionDataSources=[],
                modelDataSources=[],
                categoryIds=[],
                **request.payload["save"],
            )
        except UnreachableError:
            raise  # it may have happened: find() will tell
        except AdapterError:
            self._clean_up(owner, slug)
            raise
        try:
            self._accepted(told, owner, slug)
        except NoCapacityError as error:
            # courtesy: without the note the next try uploads once more for nothing
            with suppress(AdapterError, OSError):
                room.remember(self.calls, _pool(request), folder, error.message)
            raise
        return SessionRef(f"{owner}/{slug}")

    def _make_sure_of_room(self, owner: str, slug: str, request: Request, folder: Path) -> None:
        """NoCapacityError: the push would be refused, so nothing is uploaded for it. What cannot be told is left to the push."""
        try:
            why = room.lacking(self.calls, _pool(request), folder)
        except AdapterError:
            return
        if why:
            with suppress(AdapterError):
                parcel.take_away(self.calls, owner, slug)  # of an earlier try, if any
            raise self._error(NoCapacityError, f"no session is free: {why}")

    def _accepted(self, told: Mapping[str, Any], owner: str, slug: str) -> None:
        """Read every way in which an answer of 200 says no. A kernel that runs without its inputs is no launch."""
        error = " ".join(str(told.get("error") or "").split())[:300]
        lacking = words.lacking(told)
        landed = str(told.get("ref") or "").rstrip("/").rpartition("/")[2]
        if not error and not lacking and landed in ("", slug):
            return
        self._clean_up(owner, slug)
        if landed.startswith(PREFIX) and landed != slug:
            self._clean_up(owner, landed)
        if error:
            raise self._error(words.refusal(error), f"Kaggle did not start the session: {error}")
        if lacking:
            raise self._error(
                RejectedError,
                f"Kaggle did not attach {', '.join(lacking)}, so the session was ended",
            )
        raise self._error(RejectedError, f"Kaggle put the session at {landed!r}, not at {slug!r}")

    def _clean_up(self, owner: str, slug: str) -> None:
        """After a failed launch. What cannot be removed now is not the failure to report."""
        with suppress(AdapterError):
            self._delete_kernel(owner, slug)
        with suppress(AdapterError):
            parcel.take_away(self.calls, owner, slug)

    @contextmanager
    def _parcel(self, request: Request, folder: Path) -> Iterator[tuple[str, dict[str, Path]]]:
        """The kernel's source, and the files of its dataset by name. RejectedError."""
        given, files, made = request.payload, dict[str, Path](), list[Path]()
        setup = dict(given["setup"])
        try:
            agent = Path(given["agent"]).read_bytes()
        except OSError as error:
            raise self._error(
                RejectedError, f"the agent cannot be read: {error.strerror}"
            ) from error
        if hashlib.sha256(agent).hexdigest() != setup["agent_sha256"]:
            raise self._error(RejectedError, "the agent is not the one of this launch")
        try:
            if given["tree"]:
                files[SEED] = folder / f"{request.key}.seed"
                made.append(files[SEED])
                parcel.pack(Path(given["tree"]), files[SEED])
            secret = self._sealed_secrets(bytes.fromhex(setup["profile"]["key"]))
            setup["access"] = ACCESS if secret else ""
            if secret:
                files[ACCESS] = folder / f"{request.key}.access"
                made.append(files[ACCESS])
                write_private(files[ACCESS], secret.encode())
            text = source(setup, agent)
            if len(text.encode()) >= TEXT_MOST:
                files[AGENT] = Path(given["agent"])
                text = source(setup, b"")
            yield text, files
        finally:
            for path in made:
                path.unlink(missing_ok=True)

    def _sealed_secrets(self, key: bytes) -> str:
        """What opening the store takes, to be read with the session's key only; "" if nothing. RejectedError."""
        try:
            given = dict(self._secrets()) if self.carry == STORE else {}
        except (FreeGPUError, StoreError) as error:
            # no session could do anything without
            raise self._error(
                RejectedError, f"what opens the store cannot be had here: {error}"
            ) from error
        if not given:
            return ""
        if self.credentials != PRIVATE_DATASET:
            raise self._error(
                RejectedError,
                "the store's credentials may not leave this machine, and sessions could not open the store without",
                hint="`freegpu connect kaggle --carry sealed` needs none; `--credentials private-dataset` allows it",
            )
        return wire.seal(key, secrets.token_bytes(16), given)

    def find(self, key: str, /) -> SessionRef | None:
        """Also ends what a crash before the push left: a dataset that nobody will ask for, and no ledger knows of."""
        if not _KEY.fullmatch(key):
            return None
        there = self._there(key)
        if there is None:
            with suppress(RejectedError, AuthError):
                parcel.take_away(self.calls, self.calls.user(), slug_of(key))
        return there

    def _there(self, key: str) -> SessionRef | None:
        owner, slug = self.calls.user(), slug_of(key)
        return SessionRef(f"{owner}/{slug}") if self._status(owner, slug) is not None else None

    def _status(self, owner: str, slug: str) -> dict[str, Any] | None:
        """As it came; None: there is no such kernel. What is missing is often said to be denied."""
        try:
            # without the label Kaggle answers for whatever version is newest; ours is the first
            return self.calls.ask(
                "GetKernelSessionStatus", userName=owner, kernelSlug=slug, versionLabel="v1"
            )
        except (MissingError, DeniedError):
            return None

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        if refs:
            self.calls.user()
        return {ref: self._observe(ref) for ref in refs}

    def _observe(self, ref: SessionRef) -> Observation:
        match = _REF.fullmatch(ref)
        if match is None:
            return Observation(state=PlatformState.GONE, raw="no such kernel")
        try:
            told = self.calls.ask(
                "GetKernelSessionStatus",
                userName=match[1],
                kernelSlug=match[2],
                versionLabel="v1",
            )
        except MissingError:
            return Observation(state=PlatformState.GONE, raw="404")
        except (DeniedError, TroubledError) as error:
            # kaggle-cli#1053: for three days the status of everything was a 500
            return Observation(state=PlatformState.UNKNOWN, raw=error.raw, detail=error.message)
        seen = words.observation(told)
        if seen.state is PlatformState.ENDED and seen.detail and not seen.reason:
            # Kaggle calls every failure an error; which machine came is known to the kernel alone
            with suppress(AdapterError):
                for line in output.log(self.calls, _where(match)).splitlines():
                    if line.startswith(WRONG_MACHINE):
                        detail = line.partition(": ")[2][:500]
                        return replace(seen, reason=EndReason.WRONG_CARD, detail=detail)
        return seen

    def stop(self, ref: SessionRef, /) -> None:
        """Delete its kernel: there is no other way to end a session, and its output goes with it."""
        match = _REF.fullmatch(ref)
        if match is not None:
            self._delete_kernel(match[1], match[2])

    def _delete_kernel(self, owner: str, slug: str) -> None:
        """Silent if it is gone. AdapterError."""
        try:
            told = self.calls.ask("DeleteKernel", userName=owner, kernelSlug=slug)
        except MissingError:
            return
        except DeniedError:
            if self._status(owner, slug) is None:
                return
            raise
        error = " ".join(str(told.get("errorMessage") or "").split())[:300]
        if error and self._status(owner, slug) is not None:
            raise self._error(
                UnreachableError,
                f"Kaggle did not delete {owner}/{slug}: {error}",
                hint=f"delete it at https://www.kaggle.com/code/{owner}/{slug}",
            )

    def tidy(self, ref: SessionRef, /) -> None:
        """Delete the session's kernel and its dataset. UnreachableError: the kernel is still there."""
        match = _REF.fullmatch(ref)
        if match is None:
            return
        owner, slug = match.groups()
        self._delete_kernel(owner, slug)
        parcel.take_away(self.calls, owner, slug)
        if self._status(owner, slug) is not None:
            raise self._error(
                UnreachableError,
                f"{owner}/{slug} is still there",
                hint="a deleted notebook may be shown for a day; freegpu looks again",
            )

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        """What was printed, once the session is over: while it runs Kaggle does not give it out here."""
        start = int(cursor) if cursor and cursor.isdigit() else 0
        match = _REF.fullmatch(ref)
        text = output.log(self.calls, _where(match)) if match else ""
        return LogPage(text=text[start:], cursor=str(max(start, len(text))))

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        match = _REF.fullmatch(ref)
        if match is None or self.carry != SEALED:
            return Collected(files=0, whole=self.carry != SEALED)
        return output.collect(self.calls, _where(match), match[2], into)

    def close(self) -> None:
        self.calls.close()

    # --- looking at itself ------------------------------------------------------------------------------

    def diagnose(self, store: str, /) -> Sequence[Finding]:
        found = [findings.installed()]
        if not found[0].ok:
            return found
        try:
            user, kept = self.calls.user(), self.calls.credentials()
            reports = self.quota()
        except AdapterError as error:
            return [
                *found,
                Finding(name="credentials", ok=False, detail=error.message, hint=error.hint),
            ]
        detail = f"the {kept.kind} in {kept.where} is {user}'s"
        found += [Finding(name="credentials", ok=True, detail=detail), words.quota_finding(reports)]
        with suppress(AdapterError):
            found.append(findings.sessions(room.ours(self.calls, PREFIX)))
        sealed = self.carry == SEALED
        allowed = self.credentials == PRIVATE_DATASET
        return [
            *found,
            findings.clock(self.calls.skew_s),
            findings.sealed() if sealed else findings.store(store, self._secrets, allowed=allowed),
            findings.ending(is_sealed=sealed),
        ]

    def _error(self, kind: type[AdapterError], message: str, *, hint: str = "") -> AdapterError:
        return kind(message, hint=hint, adapter=self.name, account=self.account)


def _pool(request: Request) -> str:
    save = request.payload["save"]
    return GPU if save["enableGpu"] else TPU if save["enableTpu"] else ""


def _where(match: re.Match[str]) -> dict[str, Any]:
    return {"userName": match[1], "kernelSlug": match[2], "versionLabel": "v1"}


def _positive(name: str, option: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"platform {name}: {option} is {value!r}, not a number above 0")
    return float(value)


def _word(name: str, option: str, value: Any, words: Sequence[str]) -> str:
    if value not in words:
        raise ConfigError(
            f"platform {name}: {option} is {value!r}", hint=f"one of {', '.join(words)}"
        )
    return str(value)

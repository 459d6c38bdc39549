"""Lightning AI by plain REST: a session is a Job from a Studio of its own, which carries the agent's files.

What a session costs is credits (1 credit = 1 USD); the pool `credits` counts seconds at one credit an hour, so that a
machine of 0.55 credits an hour has the rate 0.55. Why REST, why Jobs, and how money is counted: docs/adr/0010.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

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
from freegpu.adapters.hosts import held
from freegpu.adapters.lightning import findings, words
from freegpu.adapters.lightning.calls import Calls, MissingError
from freegpu.adapters.lightning.meter import Meter, Run
from freegpu.adapters.lightning.money import Money
from freegpu.adapters.options import refuse_unknown
from freegpu.clock import Clock, utc
from freegpu.errors import (
    AdapterError,
    NoCapacityError,
    RejectedError,
    UnreachableError,
)

POOL = "credits"
#: the free machine and the cheapest card: what a free account was seen to get (reports of 2026-09-25)
MACHINES = ("T4", "CPU")
#: seconds between the request and the agent's hello: a snapshot and a machine; an estimate
START_DELAY_S = 180.0
#: seconds after which a Studio of ours from which no job came belongs to no start any more
ORPHAN_S = 3600.0
_OPTIONS = (
    "account", "teamspace", "machines", "paid", "url", "least_minutes", "max_hours", "timeout_s",
)  # fmt: skip


class LightningAdapter:
    """See the module. Options: `_OPTIONS`; docs/how-to/use-lightning.md."""

    one_account = "lightning"

    def __init__(
        self, name: str, *, home: Path, clock: Clock, options: Mapping[str, Any] | None = None
    ) -> None:
        given = dict(options or {})
        self.name = name
        self.clock = clock
        teamspace = str(given.get("teamspace", ""))
        self.account = str(given.get("account") or teamspace or "lightning")
        self.machines = words.shapes(name, given.get("machines", MACHINES))
        self.least_s = 60.0 * words.positive(name, "least_minutes", given.get("least_minutes", 15))
        self.longest_s = 3600.0 * words.positive(name, "max_hours", given.get("max_hours", 12))
        url = given.get("url") or os.environ.get("LIGHTNING_CLOUD_URL") or "https://lightning.ai"
        self.folder = home / "lightning"
        self.calls = Calls(
            name,
            self.account,
            url=str(url),
            teamspace=teamspace,
            timeout_s=words.positive(name, "timeout_s", given.get("timeout_s", 15)),
            clock=clock,
        )
        self.meter = Meter(self.folder, clock)
        self.money = Money(self.calls, clock, ceiling=words.ceiling(name, given.get("paid", {})))
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
            live_logs=True,
            reports_quota=True,
            max_concurrent=1,
            max_session_s=self.longest_s,
        )

    @property
    def windows(self) -> Mapping[str, Window]:
        # no figure: 15 a month was true until July 2026, 5 at the start was seen in September 2026
        return {
            POOL: Window(
                kind=WindowKind.PREPAID,
                source="the account's balance; reports on free credits contradict each other",
                verified_on="2026-12-02",
            )
        }

    # --- what could be had ------------------------------------------------------------------------------

    def offers(self) -> Sequence[Offer]:
        purse = self.money.look(self.meter.read())
        return [
            Offer(
                platform=self.name,
                account=self.account,
                card=machine.card,
                count=machine.count,
                vram_gb=machine.vram_gb,
                memory_gb=machine.memory_gb,
                cpus=machine.cpus,
                disk_gb=machine.disk_gb,
                session_limit_s=self._limit_s(purse.free, machine.price),
                start_delay_s=START_DELAY_S,
                pool=POOL,
                rate=machine.price,
            )
            for machine in self._offered()
            if purse.free >= self._least(machine)
        ]

    def _least(self, machine: words.Machine) -> float:
        """Credits that a session takes to its first checkpoint."""
        return machine.price * (START_DELAY_S + self.least_s) / 3600

    def _limit_s(self, left: float, price: float) -> float:
        """How long a session may last that this many credits must carry, in whole minutes: it never outlives them."""
        carried = math.inf if price <= 0 else left * 3600 / price - START_DELAY_S
        return max(60.0, math.floor(min(self.longest_s, carried) / 60) * 60.0)

    def _offered(self) -> list[words.Machine]:
        """The cheapest machine of each shape that is allowed, on demand: spot may cost more and goes without notice."""
        found: dict[tuple[str, int], words.Machine] = {}
        for machine in self.calls.machines():
            shape = (machine.card, machine.count)
            if shape in self.machines and (
                shape not in found or machine.price < found[shape].price
            ):
                found[shape] = machine
        return [found[shape] for shape in self.machines if shape in found]

    def quota(self) -> Sequence[QuotaReport] | None:
        """The platform's figure as the limit, and as used what our own meter counted since it was last seen to move.

        With paid use: what there was when the month began and the ceiling, and what was used this month.
        """
        with self.meter.open() as notes:
            purse = self.money.look(notes)
        return [
            QuotaReport(
                pool=POOL,
                used_s=purse.used * 3600,
                limit_s=purse.limit * 3600,
                resets_at=None,
                as_of=utc(self.clock),
            )
        ]

    # --- sessions ---------------------------------------------------------------------------------------

    def render(self, launch: Launch, /) -> Request:
        limit = int(launch.profile.limit_s or self.longest_s)
        return Request(
            key=launch.key,
            payload={
                "name": words.PREFIX + launch.key,
                "card": launch.offer.card,
                "count": launch.offer.count,
                "interruptible": False,
                "limit_s": limit,
                "command": words.command(launch.key, limit),
                "profile": launch.profile.to_json(),
                "agent": launch.agent_path,
                "agent_sha256": launch.agent_sha256,
            },
        )

    def entrust(self, secrets: Callable[[], Mapping[str, str]], /) -> None:
        self._secrets = secrets

    def start(self, request: Request, /) -> SessionRef:
        if not words.KEY.fullmatch(request.key):
            raise self._error(RejectedError, f"a session cannot be called {request.key!r}")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # names are not unique there: two processes that start one key at once are kept apart here
        with held(self.folder / f"{request.key}.lock"):
            return self.find(request.key) or self._start(request)

    def _start(self, request: Request) -> SessionRef:
        payload, key = request.payload, request.key
        try:
            agent = Path(payload["agent"]).read_bytes()
        except OSError as error:
            raise self._error(
                RejectedError, f"the agent cannot be read: {error.strerror}"
            ) from error
        machine, limit = self._admit(
            key, str(payload["card"]), int(payload["count"]), int(payload["limit_s"])
        )
        # what the balance carries may have become less since it was planned: the agent leaves that much earlier
        profile = {**payload["profile"], "limit_s": float(limit)}
        command = words.command(key, limit)
        if limit == payload["limit_s"]:
            profile, command = payload["profile"], payload["command"]
        files = {"agent.pyz": agent, "launch.json": json.dumps(profile).encode()}
        secrets = dict(self._secrets())
        if secrets:
            files["access.json"] = json.dumps({"secrets": secrets}).encode()
        studio = ""
        try:
            studio = self._studio(str(payload["name"]), machine.cluster)
            for name, data in files.items():
                self.calls.upload(studio, f"freegpu/{key}/{name}", data)
            body = words.job_body(str(payload["name"]), studio, machine, command)
            ref = words.ref(self.calls.in_project("POST", "/jobs", body=body), studio)
        except UnreachableError:
            raise  # it may have happened: find() will tell, and until then it is counted as running
        except AdapterError:
            if studio:
                self.calls.delete_studio(studio)  # it holds what was entrusted, and nobody will ask
            with self.meter.open() as notes:
                notes.runs.pop(key, None)
            raise
        with self.meter.open() as notes:
            if key in notes.runs:
                notes.runs[key].ref = ref
        return ref

    def _admit(self, key: str, card: str, count: int, limit_s: int) -> tuple[words.Machine, int]:
        """The machine of this shape and how many seconds it may last; noted in the meter before anything is asked for.

        NoCapacityError: it is not offered. QuotaExhaustedError: the credits do not carry it to a checkpoint.
        """
        machine = next((m for m in self._offered() if (m.card, m.count) == (card, count)), None)
        if machine is None:
            raise self._error(NoCapacityError, f"no {card} x{count} is offered now")
        with self.meter.open() as notes:
            notes.runs.pop(key, None)  # of an earlier try, of which find() knows nothing
            purse = self.money.look(notes)
            if purse.free < self._least(machine):
                raise self.money.poor(purse, card, self._least(machine))
            limit = min(limit_s, int(self._limit_s(purse.free, machine.price)))
            notes.runs[key] = Run(
                price=machine.price, lasts_s=START_DELAY_S + limit, begun=self.clock.time()
            )
        return machine, limit

    def _studio(self, name: str, cluster: str) -> str:
        """The Studio of this name, made if there is none; one that an interrupted start left is used."""
        for row in self.calls.studios(name):
            if row.get("name") == name:
                return str(row["id"])
        made = self.calls.in_project("POST", "/cloudspaces", body=words.studio_body(name, cluster))
        studio = str(made["id"])
        runs = {"clusterId": made.get("clusterId", cluster), "localSource": True}
        self.calls.in_project("POST", f"/cloudspaces/{studio}/runs", body=runs)
        return studio

    def find(self, key: str, /) -> SessionRef | None:
        """The oldest job of this key that lives, else the oldest; other living ones are stopped: both burn credits."""
        if not words.KEY.fullmatch(key):
            return None
        ours = [
            job
            for job in self.calls.jobs()
            if words.is_job_of(key, job) and words.state(job) is not PlatformState.GONE
        ]
        if not ours:
            return None
        ours.sort(
            key=lambda job: (
                words.is_over(job),
                str(job.get("createdAt", "")),
                str(job.get("id", "")),
            )
        )
        for twin in ours[1:]:
            if not words.is_over(twin):
                self.calls.stop_job(str(twin["id"]))
        return words.ref(ours[0])

    def observe(self, refs: Sequence[SessionRef], /) -> Mapping[SessionRef, Observation]:
        seen: dict[SessionRef, Observation] = {}
        known = {ref: match[1] for ref in refs if (match := words.REF.fullmatch(ref))}
        listed = {str(job.get("id")): job for job in self.calls.jobs()} if known else {}
        over: dict[str, Mapping[str, Any]] = {}
        for ref in refs:
            job = listed.get(known.get(ref, ""))
            if job is None and ref in known:
                # lists lag behind: not to be listed is not to be gone
                job = self.calls.job(known[ref])
            gone = Observation(state=PlatformState.GONE, raw="no such job")
            seen[ref] = gone if job is None else words.observation(job)
            if ref in known and seen[ref].state in (PlatformState.ENDED, PlatformState.GONE):
                over[ref] = job or {}
        self._settle(over)
        return seen

    def _settle(self, over: Mapping[str, Mapping[str, Any]]) -> None:
        """Sessions that are over, with their jobs: their machines cost no more, and the platform's figure is noted."""
        now = self.clock.time()
        told = {}
        for name, job in over.items():
            stopped = words.moment(job.get("stoppedAt"))
            # by our clock, whatever theirs says; where it does not say, it ended now
            ended = now if stopped is None else stopped - (self.calls.skew_s or 0.0)
            told[name] = (min(ended, now), words.number(job.get("totalCost")))
        notes = self.meter.read() if told else None
        if notes and [n for n, (ended, cost) in told.items() if notes.settle(n, ended, cost, now)]:
            with self.meter.open() as notes:
                for name, (ended, cost) in told.items():
                    notes.settle(name, ended, cost, now)

    def stop(self, ref: SessionRef, /) -> None:
        match = words.REF.fullmatch(ref)
        job = self.calls.job(match[1]) if match else None
        if job is not None and not words.is_over(job):
            self.calls.stop_job(str(job["id"]))

    def tidy(self, ref: SessionRef, /) -> None:
        """Delete the session's job and its Studio with the files in it, and Studios of ours that nobody will use.

        `ref` may be a session's key: then what an unanswered start left is found by its name. UnreachableError:
        something is still there.
        """
        match = words.REF.fullmatch(ref)
        if match is not None:
            self._delete(match[1], match[2])
        elif words.KEY.fullmatch(ref):
            for job in [job for job in self.calls.jobs() if words.is_job_of(ref, job)]:
                self._delete(str(job["id"]), words.studio_of(job) or "-")
            name = words.PREFIX + ref
            for row in [row for row in self.calls.studios(name) if row.get("name") == name]:
                self.calls.delete_studio(str(row["id"]))
            self._settle({ref: {}})
        else:
            return
        self._sweep()

    def _delete(self, job: str, studio: str) -> None:
        told = self.calls.job(job)
        if told is not None and words.is_ours(told):
            self._settle({words.ref(told, studio): told})
            self.calls.delete(f"/jobs/{job}", {"cloudspaceId": studio})
        self.calls.delete_studio(studio)
        left = self.calls.job(job)
        if (
            left is not None
            and words.is_ours(left)
            and left.get("state") not in ("deleted", "delete")
        ):
            raise self._error(UnreachableError, f"the job {left.get('name')} is still there")

    def _sweep(self) -> None:
        """Studios of ours, of any home, from which no job came within an hour: starts that were given up, or crashed.

        They may hold what was entrusted to their sessions. One whose age the platform does not tell stays.
        """
        old = self.clock.time() + (self.calls.skew_s or 0.0) - ORPHAN_S
        left = [
            studio
            for studio in self.calls.studios()
            if words.is_ours(studio) and (words.moment(studio.get("createdAt")) or math.inf) < old
        ]
        if left:
            used = {words.studio_of(job) for job in self.calls.jobs()}
            for studio in left:
                if str(studio["id"]) not in used:
                    self.calls.delete_studio(str(studio["id"]))

    def logs(self, ref: SessionRef, /, *, cursor: str | None = None) -> LogPage:
        """The whole log is fetched and cut here: the platform's own filters find nothing once a job has ended."""
        start = int(cursor) if cursor and cursor.isdigit() else 0
        match = words.REF.fullmatch(ref)
        try:
            lines = self.calls.logs(match[1]) if match else []
        except MissingError:
            lines = []
        return LogPage(
            text="".join(f"{line}\n" for line in lines[start:]), cursor=str(max(start, len(lines)))
        )

    def collect(self, ref: SessionRef, /, into: Path) -> Collected:
        return Collected(files=0, whole=True)

    def diagnose(self, store: str, /) -> Sequence[Finding]:
        return findings.of_account(self.calls, self.money, self.meter, store, self.clock.time())

    def _error(self, kind: type[AdapterError], message: str, *, hint: str = "") -> AdapterError:
        return self.calls.error(kind, message, hint=hint)

    def close(self) -> None:
        self.calls.close()

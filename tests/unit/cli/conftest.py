"""A workspace with fixed answers, and a shell that runs a command line against it in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from freegpu.adapters.base import Finding
from freegpu.cli.app import run
from freegpu.cli.call import Call
from freegpu.cli.output import Output
from freegpu.jobs.lifecycle import AttemptState, EndReason, JobState
from freegpu.jobs.model import Accelerator, JobSpec, Needs
from freegpu.orchestrator import card_views
from freegpu.orchestrator.connection import Connected, PlatformConnected
from freegpu.orchestrator.forecast import WindowUse
from freegpu.orchestrator.forecast.plan import Expected, Moment, Unused
from freegpu.orchestrator.foresight import Ahead, Fits, Plan, Sooner, Span
from freegpu.orchestrator.hindsight import Saving
from freegpu.orchestrator.matrix_results import Cell, Results
from freegpu.orchestrator.model import Attempt, AuditEvent, Checkpoint, Job, Progress, Score, Speed
from freegpu.orchestrator.probe import Latency, Measured, Space
from freegpu.orchestrator.record import Decision, Outcome
from freegpu.orchestrator.retrospect import JobUse, PoolUse, Report
from freegpu.orchestrator.views import (
    BundleInfo,
    CellMade,
    Check,
    DryRun,
    Garbage,
    Generation,
    Generations,
    Initialised,
    JobDetail,
    JobView,
    LogChunk,
    PlatformView,
    Pulled,
    SessionView,
    SlotView,
    Status,
    StoreReport,
    Submitted,
    Ticked,
    Why,
)

NOW = datetime(2026, 12, 2, 12, 0, 0, tzinfo=UTC)


def job_view(**changes: Any) -> JobView:
    fields: dict[str, Any] = {
        "id": "k3x9f2",
        "name": "mnist",
        "state": "active",
        "why": "runs",
        "platform": "kaggle",
        "card": "T4",
        "attempt": "k3x9f2-2",
        "hops": 1,
        "progress": Progress(step=1200.0, total=4000.0, remaining_s=7800.0, at=NOW),
        "eta_s": 7800.0,
        "checkpoint_at": NOW - timedelta(minutes=3),
        "created_at": NOW - timedelta(hours=5),
        "ended_at": None,
        "lost_s": 12.5,
        "priority": 0,
        "deadline": None,
    }
    return JobView(**(fields | changes))


SPEC = JobSpec(
    name="mnist",
    run="python train.py",
    workdir="/home/me/mnist",
    envs={"LR": "3e-4"},
    secrets=("HF_TOKEN",),
    needs=Needs(accelerators=(Accelerator(card="T4", count=2),), vram_gb=12.0),
)


def generation(index: int, state: str, **changes: Any) -> Generation:
    fields: dict[str, Any] = {
        "name": f"1-{index}",
        "attempt": "k3x9f2-1",
        "number": 1,
        "platform": "swift",
        "epoch": 1,
        "generation": index,
        "step": 275 * index,
        "size": 52_428_800,
        "sent": 600_000,
        "at": NOW - timedelta(minutes=15 - 3 * index),
        "state": state,
        "confirmed_by": "orchestrator",
    }
    return Generation(**(fields | changes))


CHECKPOINT = Checkpoint(
    key="jobs/k3x9f2/checkpoints/1-4.json",
    sha256="ab" * 32,
    attempt="k3x9f2-1",
    epoch=1,
    generation=4,
    step=1100,
    size=52_428_800,
    confirmed_at=NOW - timedelta(minutes=3),
)
JOB = Job(
    id="k3x9f2",
    seq=1,
    name="mnist",
    state=JobState.PENDING,
    why="submitted",
    spec=SPEC,
    bundle="cd" * 32,
    created_at=NOW,
    updated_at=NOW,
    ended_at=None,
    epoch=0,
    attempts=0,
    failures=0,
    preemptions=0,
    not_before=None,
    patience=1,
    checkpoint=None,
    progress=Progress(),
    lost_s=0.0,
    result_attempt="",
    result_key="",
    result_sha256="",
)
ATTEMPT = Attempt(
    id="k3x9f2-1",
    job="k3x9f2",
    number=1,
    epoch=1,
    session="s-abcdefgh",
    slot=0,
    state=AttemptState.ENDED,
    reason=EndReason.LOST,
    detail="no sign of life over 6 looks",
    exit_code=None,
    platform="swift",
    card="A100",
    created_at=NOW - timedelta(hours=5),
    started_at=NOW - timedelta(hours=4),
    ended_at=NOW - timedelta(hours=1),
    ticket_seq=1,
    stop_reason=None,
    stop_seq=0,
    base_epoch=0,
    base_generation=0,
    saved_at=NOW - timedelta(hours=1),
    run_s=10800.0,
    lost_s=12.5,
    outputs_key="",
    outputs_sha256="",
    progress=Progress(step=1100.0),
    fenced=True,
)
EVENT = AuditEvent(
    id=7,
    at=NOW - timedelta(hours=1),
    action="attempt_ended",
    message="lost: goes on elsewhere",
    job="k3x9f2",
    attempt="k3x9f2-1",
    session="s-abcdefgh",
    platform="swift",
    data={},
)
SCORES = (
    Score(
        platform="kaggle",
        card="T4",
        count=2,
        where="new session",
        feasible=True,
        finish_s=9000.0,
        speed=1.0,
        sessions=1,
        why="26 h left this week",
        chosen=True,
        start_s=120.0,
        price_s=1800.0,
        pool="gpu",
        before_s=93_600.0,
        after_s=84_600.0,
    ),
    Score(
        platform="local",
        card="CPU",
        count=1,
        where="new session",
        feasible=False,
        finish_s=None,
        speed=0.05,
        sessions=0,
        why="local CPU: the job needs a card, and this is a CPU",
        fault="the job needs a card, and this is a CPU",
        change="`accelerators` with CPU would let it in",
    ),
)
DECISION = Decision(
    at=NOW - timedelta(hours=5),
    outcome=Outcome.PLACED,
    waiting=12,
    ahead=4,
    before=("a", "b", "c"),
    rules=(
        "the shortest remaining chooses first, by weight and age",
        "its length is not known, so quota for a whole session is set aside",
    ),
    work_s=9000.0,
    scores=SCORES,
    more=2,
)
STATUS = Status(
    platforms=(
        PlatformView(
            name="kaggle",
            account="me",
            card="T4",
            count=2,
            vram_gb=16.0,
            used_s=11400.0,
            limit_s=108000.0,
            left_s=93600.0,
            reserved_s=3000.0,
            resets_at=NOW + timedelta(days=3, hours=4),
            source="live",
            age_s=240.0,
            attended=False,
            open_sessions=1,
            max_concurrent=2,
            session_limit_s=43200.0,
            problem="",
        ),
        PlatformView(
            name="local",
            account="me",
            card="CPU",
            count=1,
            vram_gb=0.0,
            used_s=None,
            limit_s=None,
            left_s=None,
            reserved_s=0.0,
            resets_at=None,
            source="",
            age_s=None,
            attended=False,
            open_sessions=0,
            max_concurrent=1,
            session_limit_s=None,
            problem="",
        ),
    ),
    sessions=(
        SessionView(
            id="s-abcdefgh",
            platform="kaggle",
            card="T4",
            count=2,
            state="live",
            started_at=NOW - timedelta(hours=2),
            limit_s=43200.0,
            left_s=36000.0,
            slots=(
                SlotView(
                    slot=0,
                    job="k3x9f2",
                    job_name="mnist",
                    attempt="k3x9f2-2",
                    phase="running",
                    progress={"step": 1200},
                ),
                SlotView(slot=1, job="", job_name="", attempt="", phase="", progress=None),
            ),
            gpu=({"index": 0, "util": 97},),
            silent=False,
            queue=1,
            reason="for mnist: 2 h 30 min expected; quota 26 h -> 23 h 30 min",
        ),
    ),
    jobs=(job_view(reason="2 h 30 min expected; quota 26 h -> 23 h 30 min"),),
    counts={"active": 1, "succeeded": 3},
    orchestrator="",
)
CHUNKS = (
    LogChunk(attempt="k3x9f2-1", platform="swift", card="A100", data=b"step 1\n", first=True),
    LogChunk(attempt="k3x9f2-2", platform="kaggle", card="T4", data=b"step 2 \xff\n", first=True),
    LogChunk(attempt="k3x9f2-2", platform="kaggle", card="T4", data=b"done\n", first=False),
)


MEASURED = Measured(
    at=NOW,
    cas=False,
    ordered=True,
    list_lag_s=4.5,
    read_lag_s=0.0,
    replace_lag_s=None,
    max_object=5_000_000_000,
    at_least=16 << 20,
    server_digest=True,
    put=Latency(median_s=0.21, p95_s=1.25),
    get=Latency(median_s=0.1, p95_s=0.2),
    list=Latency(median_s=0.3, p95_s=0.4),
    stat=Latency(median_s=0.05, p95_s=0.06),
    up=20e6,
    down=40e6,
    space=Space(free=9_000_000_000, total=15_000_000_000),
    min_poll=2.0,
)


RESULTS = Results(
    name="sweep",
    params=("LR", "SEED"),
    metrics=("loss", "note"),
    cells=tuple(
        Cell(
            job=f"k3x9f{at}",
            name=f"sweep-lr{lr}-seed{at}",
            params={"LR": lr, "SEED": str(at)},
            state=state,
            platform="kaggle" if at else "",
            card="T4" if at else "",
            seconds=3725.0 * at,
            step=100.0 * at if at else None,
            total=4000.0 if at else None,
            metrics={"loss": loss, "note": "a,b"} if loss is not None else {},
        )
        for at, (lr, state, loss) in enumerate(
            (
                ("1e-4", "pending", None),
                ("3e-4", "active", 0.123456789),
                ("1e-3", "succeeded", 0.05),
            )
        )
    ),
    superseded=2,
)


EXPECTED = Expected(
    job="new-1",
    name="mnist",
    first=(("kaggle T4", 0.9), ("lightning L4", 0.1)),
    start=Moment(low=NOW, middle=NOW + timedelta(minutes=2), high=NOW + timedelta(hours=9)),
    finish=Moment(low=NOW + timedelta(hours=5), middle=NOW + timedelta(hours=7), high=None),
    hops=0.4,
    finishes=0.95,
    in_time=0.8,
)
CELLS = tuple(replace(EXPECTED, job=f"new-{n}", name=f"sweep-s{n}", in_time=None) for n in (2, 3))
SWEEP = replace(EXPECTED, job="sweep", name="sweep", jobs=("new-2", "new-3"), in_time=None)
UNUSED = Unused(
    platform="kaggle",
    pool="gpu",
    used_s=25_000.0,
    expired_s=17_000.0,
    resets_at=NOW + timedelta(days=3),
)
TRICKLES = Unused(
    platform="colab", pool="gpu", used_s=3600.0, expired_s=None, resets_at=None, expires=False
)
FITS = Fits(
    platform="kaggle",
    pool="gpu",
    expires_s=17_000.0,
    resets_at=NOW + timedelta(days=3),
    card="T4 x2",
    card_s=34_000.0,
    jobs=(("mnist", 1.6), ("sweep", 0.4)),
)
PLAN = Plan(
    begin=NOW,
    runs=40,
    jobs=(EXPECTED, *CELLS),
    pools=(UNUSED, TRICKLES),
    groups=(SWEEP,),
    fits=(FITS,),
    sooner=(
        Sooner(
            job="new-1",
            name="mnist",
            change="with one click on colab now",
            where="colab T4",
            finish=NOW + timedelta(hours=4),
            sooner_s=10_800.0,
        ),
    ),
    queued=3,
)
AHEAD = Ahead(
    begin=NOW,
    until=NOW + timedelta(weeks=2),
    runs=40,
    spans=(
        Span(
            platform="kaggle",
            card="T4",
            begin=NOW,
            end=NOW + timedelta(hours=7),
            reason="idle",
            jobs=("mnist",),
        ),
    ),
    windows=(
        WindowUse(
            platform="kaggle",
            pool="gpu",
            end=NOW + timedelta(days=3),
            limit_s=108_000.0,
            used_s=91_000.0,
            wanted=False,
        ),
    ),
    jobs=(EXPECTED, *CELLS),
    groups=(SWEEP,),
    pools=(UNUSED, TRICKLES),
    fits=(FITS,),
)
REPORT = Report(
    since=NOW - timedelta(weeks=1),
    until=NOW,
    pools=(
        PoolUse(
            platform="kaggle",
            pool="gpu",
            sessions=4,
            open_s=90_000.0,
            charged_s=91_000.0,
            expired_s=17_000.0,
            expired_by="live",
            ran_s=80_000.0,
            t4_s=79_000.0,
            lost_s=1000.0,
            interruptions=2,
        ),
        PoolUse(
            platform="colab",
            pool="gpu",
            sessions=1,
            open_s=7200.0,
            charged_s=7200.0,
            expired_s=None,
            expired_by="",
            ran_s=7000.0,
            t4_s=7000.0,
            lost_s=0.0,
            interruptions=0,
        ),
    ),
    t4_s=86_000.0,
    lost_s=1000.0,
    jobs=(
        JobUse(
            job="k3x9f2",
            name="mnist",
            platform="kaggle",
            card="T4",
            looks=120,
            percent=31.4,
            cpus=4.0,
            hint="the card waits, mostly for data (4 CPUs there: num_workers=4)",
            ran_s=80_000.0,
            wait_s=54_880.0,
        ),
    ),
    wait_s=54_880.0,
    savings=(
        Saving(
            kind="expired",
            amount_s=17_000.0,
            platform="kaggle",
            jobs=("q81mzt",),
            sentence="4 h 43 min of kaggle (gpu) expired Mon 30 Nov 00:00 UTC, while big\x1b waited 9 h: T4: needs 20 GB,"
            " the card has 16 GB (`vram: 16+` would let it in)",
        ),
    ),
    unknown=("colab gpu: what expired is not known, for nobody publishes the limit",),
)


class FakeLedger:
    """A ledger in which one job has run on two cards."""

    def speeds(self) -> list[Speed]:
        return [
            Speed(job="k3x9f2", card=card, workload="train-amp-cnn", steps_per_s=rate, at=NOW)
            for card, rate in (("T4", 2.0), ("L4", 3.0), ("L4", 2.0), ("L4", 2.5))
        ]

    def attempts(self, *, open_only: bool = False) -> list[Attempt]:
        return []

    def specs(self, ids: Any) -> list[tuple[str, str, JobSpec]]:
        seen = replace(SPEC, needs=Needs(workload="train-amp-cnn"))
        return [(id, "", seen) for id in ids if id == "k3x9f2"]


class FakeWorkspace:
    """Answers what it is told; notes what it is asked. `fails`: method -> what it raises."""

    settings = SimpleNamespace(home=Path("/h"))

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.fails: dict[str, BaseException] = {}
        self.answers: dict[str, Any] = {}
        self.opened = 0

    def __enter__(self) -> Self:
        self._answer("open", None)
        self.opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.opened -= 1

    def _answer(self, method: str, usual: Any, *asked: Any) -> Any:
        self.asked.append((method, *asked))
        if method in self.fails:
            raise self.fails[method]
        return self.answers.get(method, usual)

    def init(self, *, here: bool = False) -> Initialised:
        usual = Initialised(
            home="/h", store="folder:/h/store", db="/h/state.db", platforms=("local",), created=True
        )
        answer: Initialised = self._answer("init", usual)
        return answer

    def doctor(self, platform: str | None = None) -> Any:
        usual = (
            Check(name="freegpu", ok=None, detail="version 1"),
            Check(name="store", ok=True, detail="writes and reads back"),
        )
        return self._answer("doctor", usual, platform)

    def connect_store(self, url: str, *, force: bool = False, say: Any = None) -> Any:
        if say is not None:
            say("calls")
        usual = Connected(
            store=url,
            file="/h/freegpu.toml",
            changed=True,
            made=True,
            measured=MEASURED,
            means=("a checkpoint of 1 GB takes 50 s to save",),
            notes=(),
        )
        return self._answer("connect_store", usual, url, force)

    def connect_platform(
        self,
        name: str,
        adapter: str,
        options: Any,
        *,
        store: str | None = None,
        accept: Any = (),
    ) -> Any:
        usual = PlatformConnected(
            platform=name,
            adapter=adapter,
            account="ada",
            file="/h/freegpu.toml",
            findings=(Finding(name="credentials", ok=True, detail="accepted"),),
            connected=True,
            changed=True,
        )
        return self._answer("connect_platform", usual, name, adapter, dict(options), tuple(accept))

    def doctor_store(self, say: Any = None) -> Any:
        usual = StoreReport(
            checks=(Check(name="store", ok=True, detail="writes and reads back"),),
            measured=MEASURED,
            means=("a checkpoint of 1 GB takes 50 s to save",),
        )
        return self._answer("doctor_store", usual)

    def cell(self, platform: str, *, store: str | None = None, fresh: bool = False) -> CellMade:
        public = platform == "paperspace"
        usual = CellMade(
            platform=platform,
            title="Google Colab",
            url="https://colab.example.org/#create=true",
            id="0123456789",
            store=store or "folder:/content/drive/MyDrive/freegpu",
            text="# the cell\nrun(cell, agent)\n",
            notebook={"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []},
            secrets=("FREEGPU_CELL_KEY",) if public else (),
            key="ab" * 32 if public else "",
        )
        answer: CellMade = self._answer("cell", usual, platform, store, fresh)
        return answer

    def submit(
        self,
        path: str,
        *,
        overrides: Sequence[str] = (),
        environ: Mapping[str, str],
        on_progress: Any = None,
    ) -> Any:
        info = BundleInfo(sha256="cd" * 32, size=1234, files=3, reused=False)
        usual = Submitted(jobs=(JOB,), notices=("disk_size has no meaning here",), bundle=info)
        return self._answer("submit", usual, path, tuple(overrides))

    def dry_run(
        self, path: str, *, overrides: Sequence[str] = (), environ: Mapping[str, str]
    ) -> Any:
        usual = DryRun(
            specs=(SPEC,),
            notices=(),
            files=3,
            size=52_000,
            largest=(("train.py", 50_000), ("a\x1b[31m.txt", 2000)),
            decisions=(("mnist", DECISION),),
            requests=(("kaggle", {"key": "s-1", "payload": {"enable_gpu": True}}),),
        )
        return self._answer("dry_run", usual, path, tuple(overrides))

    def tick(self, *, block: bool = False) -> Any:
        return self._answer("tick", Ticked(did=True, actions=("started s-1",)), block)

    def tick_if_needed(self) -> Any:
        return self._answer("tick_if_needed", Ticked(did=False))

    def status(self) -> Any:
        return self._answer("status", STATUS)

    def jobs(self, states: Any = None, limit: int | None = None) -> Any:
        return self._answer("jobs", (job_view(),), states, limit)

    def show(self, job: str) -> Any:
        usual = JobDetail(
            job=job_view(),
            spec=SPEC,
            attempts=(ATTEMPT,),
            checkpoints=(CHECKPOINT,),
            events=(EVENT,),
        )
        return self._answer("show", usual, job)

    def why(self, job: str, *, now: bool = False) -> Any:
        usual = Why(
            job=job_view(),
            sentence="mnist is running on kaggle T4: runs",
            attempt="k3x9f2-2",
            placed=DECISION,
            gave_way="k3x9f2-1 gave up its slot: short needs the slot for 5 min",
            now=replace(DECISION, at=NOW, assumed=True, ahead=0) if now else None,
        )
        return self._answer("why", usual, job, now)

    def cards(self, name: str | None, workload: str) -> Any:
        ledger: Any = FakeLedger()
        return self._answer("cards", card_views.look(ledger, name, workload), name, workload)

    def plan(self, paths: Sequence[str], **words: Any) -> Any:
        return self._answer("plan", PLAN, tuple(paths), words.get("goal"), words.get("runs"))

    def simulate(self, weeks: int, **words: Any) -> Any:
        return self._answer("simulate", AHEAD, weeks, words.get("goal"), words.get("runs"))

    def report(self, weeks: int) -> Any:
        return self._answer("report", REPORT, weeks)

    def results(self, name: str, *, everything: bool = False) -> Any:
        return self._answer("results", RESULTS, name, everything)

    def log_chunks(
        self, job: str, *, attempt: int | None = None, follow: bool = False
    ) -> Iterator[LogChunk]:
        chunks = self._answer("log_chunks", CHUNKS, job, attempt, follow)
        return iter(chunks)

    def wait(self, jobs: Sequence[str], *, on_change: Any = None) -> Any:
        views = self._answer("wait", (), tuple(jobs))
        for view in views:
            on_change(view)
        return views

    def cancel(self, jobs: Sequence[str]) -> Any:
        return self._answer("cancel", (job_view(state="cancelled"),), tuple(jobs))

    def lost_by_cancelling(self, jobs: Sequence[str]) -> tuple[str, ...]:
        return ()

    def retry(self, job: str, *, from_scratch: bool = False) -> Any:
        return self._answer("retry", (job_view(state="pending"),), job, from_scratch)

    def interrupt(self, job: str) -> Any:
        return self._answer("interrupt", job_view(), job)

    def pull(self, job: str, into: Path, *, force: bool = False) -> Any:
        usual = Pulled(
            job=job_view(state="succeeded"),
            attempt="k3x9f2-2",
            files=("model.json", "a b\n.txt"),
            size=2048,
            into=into,
            partial=False,
        )
        return self._answer("pull", usual, job, into, force)

    def pull_matrix(self, name: str, into: Path | None, *, force: bool = False) -> Any:
        return self._answer("pull_matrix", None, name, into, force)

    def checkpoints(self, job: str) -> Any:
        nothing = {"step": None, "size": None, "sent": None, "at": None, "confirmed_by": ""}
        second = {"attempt": "k3x9f2-2", "number": 2, "platform": "kaggle", "epoch": 2}
        usual = Generations(
            job=job_view(),
            checkpoints=(
                generation(1, "unconfirmed", name="2-1", **{**nothing, **second}),
                generation(4, "base"),
                generation(3, "confirmed", confirmed_by="store"),
                generation(2, "confirmed"),
                generation(1, "deleted", sent=52_428_800),
            ),
        )
        return self._answer("checkpoints", usual, job)

    def pull_checkpoint(
        self, job: str, into: Path | None, *, which: str = "latest", force: bool = False
    ) -> Any:
        usual = Pulled(
            job=job_view(),
            attempt="k3x9f2-1",
            files=("checkpoint-9/model.safetensors", "a b\n.txt"),
            size=2048,
            into=into or Path("k3x9f2-checkpoint-1-4"),
            partial=False,
            checkpoint="1-4",
        )
        return self._answer("pull_checkpoint", usual, job, into, which, force)

    def gc(self, *, dry_run: bool, keep_days: float) -> Any:
        deleted = (("blobs/aa/" + "aa" * 32, 2_000_000, "no job refers to it"),)
        usual = Garbage(deleted=deleted, freed=2_000_000, kept=12, dry_run=dry_run)
        return self._answer("gc", usual, dry_run, keep_days)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def envelope(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        document: dict[str, Any] = json.loads(self.out)
        return document


class Closed(io.BytesIO):
    """The writing end of a pipe that nobody reads."""

    def write(self, _: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class Stream(io.TextIOWrapper):
    """A stream in memory that may claim to be a terminal."""

    def __init__(self, *, terminal: bool, closed: bool = False) -> None:
        raw = Closed() if closed else io.BytesIO()
        super().__init__(raw, encoding="utf-8", write_through=True)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        self.flush()
        data: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return data.decode("utf-8", "surrogateescape")


@pytest.fixture
def fake() -> FakeWorkspace:
    """The workspace that `shell` opens."""
    return FakeWorkspace()


@pytest.fixture
def shell(fake: FakeWorkspace, tmp_path: Path) -> Callable[..., Answer]:
    """Runs a command line; `terminal=True` for a person's screen."""

    def call(
        *argv: str,
        terminal: bool = False,
        closed: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> Answer:
        out, err = Stream(terminal=terminal, closed=closed), Stream(terminal=terminal)
        around = {"FREEGPU_HOME": str(tmp_path / "home"), "TERM": "xterm", **(environ or {})}
        code = run(
            argv,
            call=Call(
                out=Output(stdout=out, stderr=err, environ=around),
                environ=around,
                opener=lambda settings: fake,  # type: ignore[arg-type,return-value]
                sleep=lambda seconds: None,
                now=lambda: NOW,
            ),
        )
        assert fake.opened == 0, "the workspace was left open"
        return Answer(code=code, out=out.text(), err=err.text())

    return call

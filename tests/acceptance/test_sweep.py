"""A sweep, as typed: one file, many jobs, one bundle; what comes after it; its table; all of it by its name."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

pytestmark = pytest.mark.slow

#: each cell tells its loss twice; LR "bad" fails until the file GATE is there
CELL = """
import json, os, sys
lr, seed = os.environ["LR"], int(os.environ["SEED"])
if lr == "bad" and not os.path.exists(os.environ["GATE"]):
    sys.exit("no such rate")
rate = 1.0 if lr == "bad" else float(lr)
for step in (1, 2):
    told = {"step": step, "total": 2, "loss": rate * (seed + 1) / step}
    print("FREEGPU_PROGRESS " + json.dumps(told), flush=True)
"""


def sweep(user: Any, axes: str, name: str = "sweep") -> str:
    (user.desk / "cell.py").write_text(CELL)
    return str(
        user.job_file(
            f"""
            name: {name}
            workdir: .
            run: exec {sys.executable} cell.py
            envs: {{GATE: {user.gate}}}
            freegpu:
              retry: {{failures: 0}}
              matrix: {axes}
            """,
            f"{name}.yaml",
        )
    )


def after(user: Any, name: str, *others: str) -> str:
    return str(
        user.job_file(
            f"name: {name}\nrun: echo done\nfreegpu: {{after: [{', '.join(others)}]}}\n",
            f"{name}.yaml",
        )
    )


def table(user: Any, *words: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(user.ok("results", *words, "--csv").out)))


def test_a_sweep_runs_and_its_results_are_a_table(user: Any) -> None:
    """Every cell with its parameters and last figures; one bundle for all; what comes after it runs last."""
    user.settings()
    # the files are there before the first is packed, so that both pack the same
    file, last = sweep(user, "{LR: [0.5, 0.25], SEED: [0, 1]}"), after(user, "summary", "sweep")
    submitted = user.ok("submit", file, "--json").json["data"]
    assert len(submitted["jobs"]) == 4
    inputs = [path for path in (user.home / "store" / "blobs").rglob("*") if path.is_file()]
    assert [path.name for path in inputs] == [submitted["bundle"]["sha256"]]
    user.ok("submit", last)
    waits = user.ok("why", "summary").out.splitlines()[0]
    assert "waits for" in waits
    assert "sweep" in waits
    user.until_job("summary", "succeeded")
    rows = table(user, "sweep", "--sort", "-loss")
    assert (rows[0]["LR"], rows[0]["SEED"]) == ("0.5", "1")
    assert {(row["LR"], row["SEED"]): float(row["loss"]) for row in rows} == {
        (str(lr), str(seed)): lr * (seed + 1) / 2 for lr in (0.5, 0.25) for seed in range(2)
    }
    assert {(row["state"], row["platform"], row["step"], row["total"]) for row in rows} == {
        ("succeeded", "local", "2.0", "2.0")
    }
    ended = {row["job"]: user.job(row["job"])["job"]["ended_at"] for row in rows}
    assert user.job("summary")["attempts"][0]["started_at"] >= max(ended.values())
    person = user.ok("results", "sweep").out.splitlines()
    assert person[0].split() == ["JOB", "LR", "SEED", "STATE", "WHERE", "RAN", "PROGRESS", "loss"]
    assert len(person) == 5
    # each ran for less than a second, and all the same they tell how long such cells take: not an hour of a T4
    planned = user.ok("plan", file, "--runs", "4", "--json").json["data"]
    begin = datetime.fromisoformat(planned["begin"])
    done = [datetime.fromisoformat(job["finish"]["middle"]) for job in planned["jobs"]]
    assert len(done) == 4
    assert max(done) < begin + timedelta(minutes=10)


def test_a_failed_cell_holds_up_what_comes_after_and_a_matrix_is_retried_by_its_name(
    user: Any,
) -> None:
    """`why` and `status` say so; `retry sweep` means the cells that failed, not those that are done."""
    user.settings()
    user.ok("submit", sweep(user, "{LR: [0.5, bad], SEED: [0]}"))
    user.ok("submit", after(user, "summary", "sweep"))
    user.until_job("sweep-lrbad-seed0", "failed")
    user.until_job("sweep-lr0.5-seed0", "succeeded")
    why = user.ok("why", "summary").out
    assert "sweep-lrbad-seed0" in why
    assert "has failed" in why
    assert "freegpu retry" in why
    (line,) = (line for line in user.ok("jobs").out.splitlines() if "summary" in line)
    assert "after a job that has failed" in line
    planned = user.ok("simulate", "--runs", "2").out
    assert "nowhere" in planned, "it never begins as things stand"
    user.go()
    (again,) = user.ok("retry", "sweep", "--json").json["data"]["jobs"]
    assert again["name"] == "sweep-lrbad-seed0"
    user.until_job("summary", "succeeded")
    assert {row["state"] for row in table(user, "sweep")} == {"succeeded"}


def test_a_matrix_is_cancelled_by_its_name_and_one_job_is_never_meant_by_it(user: Any) -> None:
    """Open cells are cancelled, others left alone; commands on one job say that it is a matrix."""
    user.settings()
    user.counter(hold=0)  # only for its script
    hold = user.job_file(
        f"name: hold\nrun: exec {sys.executable} counter.py\nworkdir: .\n"
        f"envs: {{TOTAL: 2, HOLD: 0, GATE: {user.gate}}}\nfreegpu: {{matrix: {{PAUSE: [0.1, 0.2, 0.3]}}}}\n",
        "hold.yaml",
    )
    user.ok("submit", hold)
    for words in (["show", "hold"], ["why", "hold"], ["logs", "hold"]):
        refused = user.types(*words)
        assert refused.code != 0
        assert "'hold' is a matrix of 3 jobs" in refused.err
        assert "freegpu results hold" in refused.err
    nothing = user.types("pull", "hold")
    assert nothing.code == 33
    assert "no job of hold has outputs yet: " in nothing.err
    assert not (user.desk / "hold").exists()
    assert len(user.ok("cancel", "hold", "--json").json["data"]["jobs"]) == 3
    again = user.types("cancel", "hold")
    assert again.code != 0
    assert "every job of hold is over" in again.err
    assert {row["state"] for row in table(user, "hold")} == {"cancelled"}


#: a cell's own output; "half" leaves one and fails until GATE is there, "none" fails with nothing
PUT = """
import os, sys
what, out = os.environ["WHAT"], os.environ["FREEGPU_OUTPUT_DIR"]
done = os.path.exists(os.environ["GATE"])
if what == "none" and not done:
    sys.exit("nothing")
open(os.path.join(out, "what.txt"), "w").write(f"{what} {done if what == 'half' else ''}")
sys.exit("half" if what == "half" and not done else 0)
"""


def test_a_matrix_is_pulled_by_its_name_a_folder_a_cell(user: Any) -> None:
    """What is not there yet, or is no result, is told with code 33; the rest comes, whole. Then all of it, with 0."""
    user.settings()
    (user.desk / "put.py").write_text(PUT)
    file = user.job_file(
        f"name: put\nrun: exec {sys.executable} put.py\nworkdir: .\nenvs: {{GATE: {user.gate}}}\n"
        "freegpu: {retry: {failures: 0}, matrix: {WHAT: [a, b, half, none]}}\n",
        "put.yaml",
    )
    user.ok("submit", str(file))
    for name, state in [
        ("a", "succeeded"),
        ("b", "succeeded"),
        ("half", "failed"),
        ("none", "failed"),
    ]:
        user.until_job(f"put-what{name}", state)
    some = user.types("pull", "put", "home", "--json")
    assert some.code == 33
    assert [error["code"] for error in some.json["errors"]] == ["not_ready"]
    words = "2 of 4 jobs of put have no result: 2 failed; what the last attempt left is here of 1 of them"
    assert some.json["errors"][0]["message"] == words
    cells = {cell["params"]["WHAT"]: cell for cell in some.json["data"]["cells"]}
    assert [(what, len(c["files"]), c["partial"]) for what, c in cells.items()] == [
        ("a", 1, False),
        ("b", 1, False),
        ("half", 1, True),
        ("none", 0, False),
    ]
    home = user.desk / "home"
    assert {path.parent.name: path.read_text() for path in home.rglob("what.txt")} == {
        "put-whata": "a ",
        "put-whatb": "b ",
        "put-whathalf": "half False",
    }
    person = user.types("pull", "put", "home")
    assert person.code == 33
    assert person.out.splitlines() == [f"home/put-what{w}/what.txt" for w in ("a", "b", "half")]
    assert words in person.err
    assert "put-whathalf is failed: what attempt" in person.err
    user.go()
    user.ok("retry", "put")
    for name in ("half", "none"):
        user.until_job(f"put-what{name}", "succeeded")
    # what the failed attempt had left is in the way, of that cell alone
    kept = user.types("pull", "put", "home")
    assert kept.code == 10
    assert "put-whathalf/what.txt is there already and differs" in kept.err
    assert (home / "put-whatnone" / "what.txt").read_text() == "none "
    assert (home / "put-whathalf" / "what.txt").read_text() == "half False"
    user.ok("pull", "put", "home", "--force")
    assert (home / "put-whathalf" / "what.txt").read_text() == "half True"
    # without a folder: below one named after the matrix
    user.ok("pull", "put")
    assert len(list((user.desk / "put").iterdir())) == 4
    blobs = [path for path in (user.home / "store" / "attempts").rglob("*") if path.is_file()]
    (damaged,) = (path for path in blobs if path.read_bytes() == b"b ")
    damaged.write_bytes(b"??")
    torn = user.types("pull", "put", "again", "--json")
    assert torn.code == 52
    assert [error["code"] for error in torn.json["errors"]] == ["checksum"]
    assert sum(bool(cell["files"]) for cell in torn.json["data"]["cells"]) == 3


def test_five_hundred_cells_are_submitted_and_read_at_once(user: Any) -> None:
    """One bundle, and no command takes longer than a person waits, on a slow machine too."""
    user.settings(platforms={"away": {"card": "T4", "attended": True}})
    axes = {"LR": [round(0.001 * n, 3) for n in range(1, 26)], "SEED": list(range(20))}
    file = sweep(user, json.dumps(axes))
    took = {}
    for words in (
        ("submit", file),
        ("status",),
        ("jobs", "--limit", "0"),
        ("results", "sweep"),
        ("cancel", "sweep"),
        ("retry", "sweep"),
    ):
        begin = time.monotonic()
        user.ok(*words)
        took[words[0]] = time.monotonic() - begin
    assert len(table(user, "sweep")) == 500
    inputs = [path for path in (user.home / "store" / "blobs").rglob("*") if path.is_file()]
    assert len(inputs) == 1
    # about 1 to 2 s each on two cores of 2026; a query a cell would take a minute
    assert max(took.values()) < 15, took

"""`import freegpu_job` in a real session: setup and run have it, it saves, stops with 75, and resumes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from freegpu.agent import wire
from freegpu.orchestrator import agent_archive
from tests.integration.agent_session import AgentSession

TRAIN = """
import time
import freegpu_job as fg

found = fg.latest("*.json")
start = int(found.read_text()) if found else 0
print("began at", start, "resuming", fg.resuming(), "left", fg.time_left() is not None, flush=True)
for step in range(start, 100000):
    time.sleep(0.01)
    if step % 20 == 0 or fg.stopping():
        fg.save_atomically(fg.checkpoint_dir() / "state.json", lambda path: path.write_text(str(step)))
        fg.progress(step, 100000)
    if fg.resuming() and step > start + 5:
        (fg.output_dir() / "result.txt").write_text(f"from {start}")
        break
    if fg.stopping():
        fg.exit_to_resume()
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_archive.build(tmp_path_factory.mktemp("archive"))[0]


@pytest.fixture
def session(tmp_path: Path, archive: Path) -> Iterator[AgentSession]:
    session = AgentSession(tmp_path, archive)
    yield session
    session.close()


def test_a_job_imports_it_stops_with_75_and_resumes(session: AgentSession) -> None:
    """The second attempt restores what the first saved when it was asked to stop; the result tells from where."""
    bundle = session.bundle({"train.py": TRAIN})
    python = sys.executable
    session.run(
        f"{python} train.py",
        setup=f"{python} -c 'import freegpu_job; print(freegpu_job.precision())'",
        bundle=bundle,
        grace_s=10.0,
    )
    session.start(limit_s=600.0)
    session.shows("job-1-1", b"fp32\nbegan at 0 resuming False left True")
    session.event("checkpoint")
    session.send(wire.stop_ticket("job-1", 2, "preempted"))
    ended = session.event("ended", "job-1-1")
    assert (ended["reason"], ended["exit_code"]) == ("preempted", 75)

    saved = [event for event in session.events() if event["kind"] == "checkpoint"][-1]
    manifest = session.manifest(saved["key"], saved["sha256"])
    step = int(session.contents(manifest)["state.json"])
    assert ended["progress"] == {"step": step, "total": 100000}
    base = wire.Base(
        key=saved["key"],
        sha256=saved["sha256"],
        epoch=manifest.epoch,
        generation=manifest.generation,
    )
    session.run(f"{python} train.py", bundle=bundle, number=2, epoch=3, base=base)
    done = session.event("ended", "job-1-3")
    assert done["reason"] == "completed", session.log("job-1-3")
    assert b"began at %d resuming True" % step in session.log("job-1-3")
    result = session.manifest(done["outputs"]["key"], done["outputs"]["sha256"])
    assert session.contents(result)["result.txt"] == b"from %d" % step


def test_a_module_of_the_jobs_own_wins(session: AgentSession) -> None:
    """Whoever copied the file into the project runs that copy, and PYTHONPATH of the job stays in front."""
    bundle = session.bundle(
        {
            "train.py": "import freegpu_job, mine; print(freegpu_job.WHOSE, mine.WHOSE)",
            "freegpu_job.py": "WHOSE = 'the copy'",
            "lib/mine.py": "WHOSE = 'and the library'",
        }
    )
    session.run(f"{sys.executable} train.py", bundle=bundle, envs={"PYTHONPATH": "lib"})
    session.start()
    assert session.event("ended")["reason"] == "completed"
    assert session.log("job-1-1") == b"the copy and the library\n"

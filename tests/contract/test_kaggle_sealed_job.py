"""A job in a sealed Kaggle session, with the real agent: in by a dataset, home by the output, and on from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from freegpu.adapters.base import PlatformState, SessionRef
from freegpu.agent import wire
from freegpu.agent.stores.folder import FolderStore
from freegpu.orchestrator import agent_archive
from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import HOME_KEY, until
from tests.contract.kaggle import server, stage

__all__ = ["server", "stage"]

#: counts to GOAL from where its checkpoint is, and notes each number with the card that it sees
_COUNT = """
python3 - <<'PY'
import os, pathlib, time
saved = pathlib.Path(os.environ["FREEGPU_CHECKPOINT_DIR"]) / "n"
saved.parent.mkdir(exist_ok=True)
n = int(saved.read_text()) if saved.exists() else 0
print("from", n, "on card", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
seen = pathlib.Path({seen!r})
with open(seen / {name!r}, "a") as file:
    file.write("%s\\n" % os.environ.get("CUDA_VISIBLE_DEVICES"))
deadline = time.time() + 20
while len(list(seen.iterdir())) < {wait} and time.time() < deadline:
    time.sleep(0.05)
while n < {goal}:
    n += 1
    saved.with_suffix(".new").write_text(str(n))
    os.replace(saved.with_suffix(".new"), saved)
    time.sleep({pace})
os.makedirs("out", exist_ok=True)
pathlib.Path("out/result").write_text("counted to %d" % n)
PY
"""


def run(stage: Stage, index: int, *, goal: int, wait: int, epoch: int = 1, base: wire.Base | None = None, pace: float = 0.1) -> wire.Run:  # fmt: skip
    """Ticket number `index` + 1: job j-N, on slot N."""
    seen = stage.folder / "seen"
    seen.mkdir(exist_ok=True)
    return wire.Run(
        job=f"j-{index}",
        attempt=f"a-{index}-{epoch}",
        number=epoch,
        epoch=epoch,
        slot=index,
        name="count",
        run=_COUNT.format(seen=str(seen), name=f"j-{index}", wait=wait, goal=goal, pace=pace),
        checkpoint_every_s=0.2,
        outputs=("out/*",),
        base=base,
    )


def start(stage: Stage, key: str, runs: list[wire.Run], more: Path | None = None) -> SessionRef:
    """A session with these tickets in its inbox, and whatever else lies in `more`."""
    archive, _ = agent_archive.build(stage.home / "agent")
    launch = stage.launch(key, agent=archive)
    tree = Path(launch.tree)
    if more is not None:
        shutil.copytree(more, tree, dirs_exist_ok=True)
    secret = wire.session_key(HOME_KEY, key)
    inbox = FolderStore(tree, sync=False)
    for seq, ticket in enumerate(runs, 1):
        inbox.put(wire.inbox_key(key, seq), wire.pack_ticket(key, seq, ticket.to_json(), secret))
    return stage.start_request(stage.adapter.render(launch))


def events(home: Path, key: str) -> Iterator[dict[str, object]]:
    for path in sorted((home / wire.outbox_prefix(key)).iterdir()):
        yield wire.unpack(path.read_bytes(), wire.session_key(HOME_KEY, key))


def text_of(home: Path, what: str) -> list[str]:
    """The contents of the small blobs that hold this."""
    return [
        path.read_text()
        for path in home.rglob("blobs/*")
        if path.stat().st_size < 200 and what in path.read_text()
    ]


def test_two_attempts_run_side_by_side_on_the_two_cards_and_come_home(
    stage: Stage, server: KaggleServer, tmp_path: Path
) -> None:
    """Each waits for the other: one after the other would be too late. One session is charged once."""
    runs = [run(stage, index, goal=3, wait=2) for index in (0, 1)]
    ref = start(stage, "s-1", runs)
    until(lambda: stage.state(ref) is PlatformState.ENDED, seconds=40)
    home = tmp_path / "home-1"
    collected = stage.adapter.collect(ref, home)
    assert collected.whole, stage.adapter.logs(ref).text
    ends = {e["job"]: e["reason"] for e in events(home, "s-1") if e["kind"] == wire.ENDED}
    assert ends == {"j-0": "completed", "j-1": "completed"}, stage.adapter.logs(ref).text
    cards = {index: (stage.folder / "seen" / f"j-{index}").read_text() for index in (0, 1)}
    assert cards == {0: "0\n", 1: "1\n"}
    assert len(text_of(home, "counted to 3")) == 2
    assert not (home / "sessions/s-1/inbox").exists()
    assert server.used("gpu") < 60
    stage.adapter.tidy(ref)  # type: ignore[attr-defined]
    assert (server.kernels, server.data.known) == ({}, {})


def test_a_session_that_was_taken_away_is_resumed_from_what_came_home(
    stage: Stage, server: KaggleServer, tmp_path: Path
) -> None:
    """The last noted checkpoint goes in with the next session, which goes on from there."""
    ref = start(stage, "s-1", [run(stage, 0, goal=1000, wait=1, pace=2.0)])
    (kernel,) = server.kernels.values()
    working = server.machines.place(kernel.machine) / "working"
    until(
        lambda: (
            (working / "freegpu-output.json").exists()
            and "jobs/j-0/checkpoints" in (working / "freegpu-output.json").read_text()
        ),
        seconds=30,
    )
    server.machines.kill(kernel.machine)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    home = tmp_path / "home-1"
    assert stage.adapter.collect(ref, home).whole is False
    # what the orchestrator would make of it: the newest checkpoint whose event and blobs are there
    made = [e for e in events(home, "s-1") if e["kind"] == wire.CHECKPOINT]
    newest = max(made, key=lambda event: int(str(event["generation"])))
    base = wire.Base(
        key=str(newest["key"]),
        sha256=str(newest["sha256"]),
        epoch=1,
        generation=int(str(newest["generation"])),
    )
    reached = max(int(text) for text in text_of(home, "") if text.isdigit())
    shutil.rmtree(home / "sessions")
    again = start(stage, "s-2", [run(stage, 0, goal=reached + 3, wait=1, epoch=2, base=base)], home)
    until(lambda: stage.state(again) is PlatformState.ENDED, seconds=30)
    there = tmp_path / "home-2"
    assert stage.adapter.collect(again, there).whole
    ends = [e for e in events(there, "s-2") if e["kind"] in (wire.STARTED, wire.ENDED)]
    assert [e.get("reason") or e["resumed"] for e in ends] == [True, "completed"]
    assert text_of(there, f"counted to {reached + 3}")
    # the checkpoint that it was given does not come home a second time
    assert not (there / base.key).exists()

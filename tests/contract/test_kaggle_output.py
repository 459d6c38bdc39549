"""What comes home from a sealed session: all of it or what proves itself, and nothing that was not sent."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from freegpu.adapters.base import Collected, PlatformState, SessionRef
from freegpu.agent import wire
from freegpu.errors import UnreachableError
from freegpu.testing.kaggle_server import KaggleServer
from freegpu.testing.suites import Stage
from freegpu.testing.suites.stage import HOME_KEY, until
from tests.contract.kaggle import made, server, stage

__all__ = ["server", "stage"]

BLOB = b"weights" * 5000
BLOB_KEY = f"attempts/a-1/blobs/{hashlib.sha256(BLOB).hexdigest()}"
#: writes as an agent does, says that it is up, and waits to be killed or let go
_WRITER = """
import hashlib, json, os, sys, time
with open(sys.argv[1]) as file:
    profile = json.load(file)
root = profile["store"].partition(":")[2]
stage, blob, more, code = {stage!r}, {blob!r}, {more!r}, {code!r}
def put(key, data):
    path = os.path.join(root, key)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)
seen = open(os.path.join(root, "sessions/s-1/inbox/000001.json"), "rb").read()
put("attempts/a-1/blobs/" + hashlib.sha256(blob).hexdigest(), blob)
put("jobs/j-1/checkpoints/000001-000001.json", json.dumps({{"seen": len(seen)}}).encode())
put("sessions/s-1/hello.json", b'{{"session": "s-1"}}')
for index in range(more):
    put("sessions/s-1/outbox/%06d.json" % index, b'{{"seq": %d}}' % index)
print("a line that is long enough to be cut into several records of the log, " * 3, flush=True)
with open(os.path.join(stage, "pids", "s-1"), "ab", 0) as file:
    file.write(b"%d\\n" % os.getpid())
leave = os.path.join(stage, "leave")
for _ in range(1200):
    if os.path.exists(leave):
        break
    time.sleep(0.05)
sys.exit(code)
"""


def begun(stage: Stage, *, more: int = 0, code: int = 0) -> SessionRef:
    """A session whose agent has written."""
    agent = stage.folder / "writer.py"
    agent.write_text(_WRITER.format(stage=str(stage.folder), blob=BLOB, more=more, code=code))
    launch = stage.launch("s-1", agent=agent)
    tree = Path(launch.tree)
    for key, data in (("sessions/s-1/inbox/000001.json", b"ticket"), ("blobs/aa/aabb", b"code")):
        (tree / key).parent.mkdir(parents=True, exist_ok=True)
        (tree / key).write_bytes(data)
    ref = stage.start_request(stage.adapter.render(launch))
    until(lambda: stage.pids("s-1"), why="the writer does not come up")
    return ref


def ended(stage: Stage, ref: SessionRef) -> SessionRef:
    (stage.folder / "leave").touch()
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    return ref


def home(stage: Stage) -> Path:
    found = stage.folder / "came home"
    found.mkdir(exist_ok=True)
    return found


def names(stage: Stage) -> list[str]:
    return sorted(
        p.relative_to(home(stage)).as_posix() for p in home(stage).rglob("*") if p.is_file()
    )


ALL = sorted([BLOB_KEY, "jobs/j-1/checkpoints/000001-000001.json", "sessions/s-1/hello.json"])


def bring(stage: Stage, ref: SessionRef) -> Collected:
    return stage.adapter.collect(ref, home(stage))


@pytest.mark.parametrize("code", [0, 3])
def test_everything_that_the_session_wrote_comes_home(
    stage: Stage, server: KaggleServer, code: int
) -> None:
    """Also after an ERROR; neither what it was sent nor its own manifest comes with it. Twice is the same."""
    ref = ended(stage, begun(stage, code=code))
    assert bring(stage, ref) == Collected(files=3, whole=True)
    assert names(stage) == ALL
    assert (home(stage) / BLOB_KEY).read_bytes() == BLOB
    (kernel,) = server.kernels.values()
    assert set(server.outputs(kernel)) == {f"freegpu-store/{key}" for key in ALL} | {
        "freegpu-output.json"
    }
    before = len(server.requests)
    assert bring(stage, ref) == Collected(files=3, whole=True)
    again = [h.operation for h in server.requests[before:]]
    assert again.count("output") == 1  # the manifest; what lies there whole is not fetched again


def test_a_running_session_shows_no_output_and_is_not_whole(
    stage: Stage, server: KaggleServer
) -> None:
    """Output is published at the end."""
    ref = begun(stage)
    assert bring(stage, ref) == Collected(files=0, whole=False)
    assert names(stage) == []
    assert stage.adapter.logs(ref).text == ""


def test_a_session_that_was_killed_leaves_what_it_had_noted(
    stage: Stage, server: KaggleServer
) -> None:
    """The manifest is written again while it works: a kill without notice costs seconds of it, and it says so."""
    ref = begun(stage)
    (kernel,) = server.kernels.values()
    place = server.machines.place(kernel.machine)
    until(lambda: (place / "working/freegpu-output.json").exists())
    server.machines.kill(kernel.machine)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    assert bring(stage, ref) == Collected(files=3, whole=False)
    assert names(stage) == ALL


def test_a_session_killed_before_its_first_manifest_leaves_what_proves_itself(
    stage: Stage, server: KaggleServer
) -> None:
    """Blobs bear their digest as their name, messages are signed; half a file and what it was sent do not come."""
    ref = begun(stage)
    (kernel,) = server.kernels.values()
    server.machines.kill(kernel.machine)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    working = server.machines.place(kernel.machine) / "working"
    (working / "freegpu-output.json").unlink(missing_ok=True)
    torn = working / "freegpu-store/attempts/a-1/blobs" / ("0" * 64)
    torn.write_bytes(b"half")
    half = working / "freegpu-store/sessions/s-1/outbox/000009.json"
    half.parent.mkdir()
    half.write_bytes(b'{"seq": ')
    assert bring(stage, ref) == Collected(files=3, whole=False)
    assert names(stage) == ALL


def test_a_killed_agent_is_an_end_with_a_whole_output(stage: Stage, server: KaggleServer) -> None:
    """The kernel outlives its agent, and says how it went."""
    ref = begun(stage)
    os.kill(stage.pids("s-1")[0], signal.SIGKILL)
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    assert bring(stage, ref) == Collected(files=3, whole=True)
    assert "exit code -9" in stage.adapter.logs(ref).text


def test_every_page_of_the_list_is_read(stage: Stage, server: KaggleServer) -> None:
    """Older clients took the first 500 files for all (#664)."""
    server.page = 3
    ref = ended(stage, begun(stage, more=17))
    assert bring(stage, ref) == Collected(files=20, whole=True)


def test_a_list_that_never_ends_does(stage: Stage, server: KaggleServer) -> None:
    """A token that comes back is not followed for ever."""
    ref = ended(stage, begun(stage))
    server.instead["ListKernelSessionOutput"] = {"files": None, "nextPageToken": "same"}
    assert bring(stage, ref) == Collected(files=0, whole=False)


def test_truncated_files_do_not_count_and_are_not_kept(stage: Stage, server: KaggleServer) -> None:
    """What verifies comes home all the same; the rest comes with a later look."""
    ref = ended(stage, begun(stage))
    server.set_faults(truncate_output={"value": 4000, "only": ["output"]})
    collected = bring(stage, ref)
    assert collected == Collected(files=2, whole=False)
    assert BLOB_KEY not in names(stage)
    server.set_faults(truncate_output=None)
    assert bring(stage, ref) == Collected(files=3, whole=True)


def test_an_address_that_expired_is_asked_for_anew_and_its_page_is_no_file(
    stage: Stage, server: KaggleServer
) -> None:
    """Older clients saved the page that said so as the file, for it came with 200."""
    ref = ended(stage, begun(stage))
    server.uses = 0
    assert bring(stage, ref) == Collected(files=0, whole=False)
    assert names(stage) == []
    server.uses = 1
    assert bring(stage, ref).whole


def test_a_failing_address_is_tried_again(stage: Stage, server: KaggleServer) -> None:
    """One 503 of the file server costs a second look."""
    ref = ended(stage, begun(stage))
    server.set_faults(fail={"value": 503, "only": ["output"], "times": 1})
    assert bring(stage, ref).whole


def test_an_outage_of_the_files_is_told_after_what_could_be_had(
    stage: Stage, server: KaggleServer
) -> None:
    """Else the output would be tidied away for want of a file server: whole=False is Kaggle's fault, this is not."""
    ref = ended(stage, begun(stage))
    server.set_faults(fail={"value": 503, "only": ["output"]})
    with pytest.raises(UnreachableError):
        bring(stage, ref)
    first = server._on_output

    def blob_away(heard: Any, told: Any) -> Any:
        _, name, _ = server._signed[heard.path.rpartition("/")[2]]
        return server.error(503, "away") if BLOB_KEY in name else first(heard, told)

    server.set_faults(fail=None)
    server._on_output = blob_away  # type: ignore[method-assign]
    with pytest.raises(UnreachableError):
        bring(stage, ref)
    assert names(stage) == [key for key in ALL if key != BLOB_KEY]
    server._on_output = first  # type: ignore[method-assign]
    assert bring(stage, ref) == Collected(files=3, whole=True)


def test_an_outage_is_no_empty_output(stage: Stage, server: KaggleServer) -> None:
    """Not to be told is not to have nothing."""
    ref = ended(stage, begun(stage))
    server.set_faults(fail={"value": 503, "only": ["ListKernelSessionOutput"]})
    with pytest.raises(UnreachableError):
        bring(stage, ref)


@pytest.mark.parametrize(
    "key", ["../escaped", "FOLDER/escaped", "a/../../escaped", "", "./x"], ids=ascii
)
def test_no_path_leads_out_of_the_folder(stage: Stage, server: KaggleServer, key: str) -> None:
    """A manifest that tries is believed in nothing."""
    ref, key = ended(stage, begun(stage)), key.replace("FOLDER", str(stage.folder))
    server.planted[f"freegpu-store/{key}"] = b"!"
    digest = hashlib.sha256(b"!").hexdigest()
    _rewrite(server, lambda told: told["files"].update({key: [1, digest]}))
    assert bring(stage, ref).whole is False
    assert not list(stage.folder.rglob("escaped"))
    assert names(stage) == ALL


def test_a_manifest_of_another_kernel_is_not_believed(stage: Stage, server: KaggleServer) -> None:
    """Only what proves itself is taken then."""
    ref = ended(stage, begun(stage))
    _rewrite(server, lambda told: told.update(kernel="freegpu-other"))
    assert bring(stage, ref) == Collected(files=3, whole=False)


def test_a_file_that_was_changed_after_its_manifest_does_not_come(
    stage: Stage, server: KaggleServer
) -> None:
    """By size and by digest."""
    ref = ended(stage, begun(stage))
    (kernel,) = server.kernels.values()
    server.outputs(kernel)[f"freegpu-store/{BLOB_KEY}"].write_bytes(BLOB[:-1] + b"!")
    assert bring(stage, ref) == Collected(files=2, whole=False)
    assert BLOB_KEY not in names(stage)


def _rewrite(server: KaggleServer, change: Any) -> None:
    (kernel,) = server.kernels.values()
    path = server.outputs(kernel)["freegpu-output.json"]
    told = json.loads(path.read_bytes())
    change(told)
    path.write_text(json.dumps(told))


def test_a_log_is_joined_before_it_is_read(stage: Stage, server: KaggleServer) -> None:
    """A JSON array in a string, whose records end in the middle of lines; a log may be missing altogether."""
    ref = ended(stage, begun(stage))
    page = stage.adapter.logs(ref)
    assert "cut into several records of the log" in page.text
    assert stage.adapter.logs(ref, cursor=page.cursor).text == ""
    for told, text in (
        (None, ""),
        ("plain", "plain"),
        ('[{"data": "a"}, {"data": null}, {"data": "b\\n"}]', "ab\n"),
    ):
        server.instead["ListKernelSessionOutput"] = {"log": told}
        assert stage.adapter.logs(ref).text == text
    server.instead.clear()
    assert stage.adapter.logs(SessionRef("ada/freegpu-other")).text == ""


def test_a_damaged_input_ends_the_session_before_its_agent_begins(
    stage: Stage, server: KaggleServer
) -> None:
    """Verified where it arrives: a dataset is no more trusted than a store."""
    launch = stage.launch("s-1")
    (Path(launch.tree) / "blob").write_bytes(b"x" * 1000)
    first = server.data.create

    def damaged(told: Any, owner: str) -> Any:
        made = first(told, owner)
        (dataset,) = server.data.known.values()
        dataset.files = {name: data[:-1] + b"!" for name, data in dataset.files.items()}
        return made

    server.data.create = damaged  # type: ignore[method-assign]
    ref = stage.start_request(stage.adapter.render(launch))
    until(lambda: stage.state(ref) is PlatformState.ENDED)
    assert "came damaged" in stage.adapter.logs(ref).text
    assert not stage.pids("s-1")


def test_a_job_s_own_processes_find_no_key_in_the_kernel_s_folder(
    stage: Stage, server: KaggleServer
) -> None:
    """Profile and inputs lie in scratch, not in what becomes the output."""
    ref = ended(stage, begun(stage))
    (kernel,) = server.kernels.values()
    key = wire.session_key(HOME_KEY, "s-1").hex().encode()
    for path in server.outputs(kernel).values():
        assert key not in path.read_bytes()
        assert b"ticket" not in path.read_bytes()
    assert not list((server.machines.place(kernel.machine) / "scratch").iterdir())
    assert stage.state(ref) is PlatformState.ENDED


def test_in_store_mode_there_is_nothing_to_bring(server: KaggleServer, tmp_path: Path) -> None:
    """All of it lies in the store."""
    adapter = made(tmp_path, carry="store")
    found = tmp_path / "none"
    assert adapter.collect(SessionRef("ada/freegpu-s-1"), found) == Collected(files=0, whole=True)
    adapter.close()

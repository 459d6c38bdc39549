"""The agent cell in real Jupyter kernels: what a person sees, what the job gives, how it ends.

google.colab is a stand-in (see cell_notebook); everything else is real: kernel, agent, orchestrator, store.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freegpu.agent import wire
from freegpu.errors import ForeignStoreError
from freegpu.orchestrator import cells
from freegpu.testing.drive_server import DriveServer
from tests.integration.agent_session import until
from tests.integration.cell_notebook import Home, Notebook, stand_in
from tests.integration.test_agent_pythons import interpreter
from tests.servers import s3
from tests.servers.s3 import moto_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

#: counts to N with a checkpoint a step; what it leaves depends on nothing but N
JOB = """
python3 - <<'END'
import json, os, pathlib, time
saved = pathlib.Path(os.environ["FREEGPU_CHECKPOINT_DIR"], "state.json")
step, total = (json.loads(saved.read_text()) if saved.exists() else 0), {total}
while step < total:
    step += 1
    aside = saved.with_name("state.tmp")
    aside.write_text(json.dumps(step))
    aside.replace(saved)
    print("FREEGPU_PROGRESS", json.dumps({{"step": step, "total": total, "loss": 1 / step}}), flush=True)
    time.sleep(0.25)
result = pathlib.Path(os.environ["FREEGPU_OUTPUT_DIR"], "result.bin")
result.write_bytes(b"".join(bytes([n % 251]) * n for n in range(total)) + b"\\r\\n\\x00")
END
"""
SAVING = "  checkpoint: {every: 1s, grace: 5s}\n  outputs: ['*.bin']\n"


def result(total: int) -> bytes:
    """What JOB leaves."""
    return b"".join(bytes([n % 251]) * n for n in range(total)) + b"\r\n\x00"


VERSIONS = ("3.10", "3.12", "3.13")


@pytest.fixture(scope="session")
def kernel_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A Python of this version that has ipykernel: virtual environments, made side by side on first use."""
    making: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}

    def make_all() -> None:
        for version in VERSIONS:
            base = interpreter(version)
            if base is None:
                continue
            place = tmp_path_factory.mktemp(f"python-{version}") / "venv"
            subprocess.run([base, "-m", "venv", "--without-pip", str(place)], check=True)
            python = str(place / "bin" / "python")
            # from the index that this machine's pip is set to; without one the test is skipped
            pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile"]
            environ = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
            quiet = subprocess.DEVNULL
            making[version] = (
                python,
                subprocess.Popen([*pip, "ipykernel"], env=environ, stdout=quiet, stderr=quiet),
            )

    def python(version: str) -> str:
        if version == "ours":
            return sys.executable
        if not making:
            make_all()
        if version not in making:
            pytest.skip(f"no Python {version} on this machine")
        found, installing = making[version]
        if installing.wait(100):
            pytest.skip(f"ipykernel could not be installed for Python {version}")
        return found

    yield python
    for _, installing in making.values():
        installing.kill()
        installing.wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where cells run as programs lay their agent
    return Home(tmp_path / "all")


@pytest.mark.parametrize("version", ["ours", *VERSIONS])
def test_a_job_runs_in_a_colab_notebook_and_the_person_sees_how_it_goes(
    tmp_path: Path, home: Home, kernel_python: Callable[[str], str], version: str
) -> None:
    """Card, time, job with progress, confirmed checkpoint and queue are shown; the result is right to the byte;
    the cell ends when the queue is empty and gives the runtime back, once; no key is ever shown or stored."""
    python = kernel_python(version)
    made = home.cell("colab")
    job = home.submit("count", JOB.format(total=32), "colab", SAVING)
    env = stand_in(tmp_path / "colab")
    with home.up():
        notebook = Notebook(tmp_path / "nb", [made.text], python, env).start().wait()
    assert notebook.errors == []
    assert (home.pull(job) / "result.bin").read_bytes() == result(32)
    assert home.attempts(job) == [("colab", "completed")]

    shown = notebook.everything
    assert re.search(r"freegpu on Google Colab: CPU · session \d+ s · (\d+ h )?\d+ min left", shown)
    assert re.search(r"count \(attempt 1\) running step \d+ of 32 \[#+\.*\] \d+ %", shown)
    assert re.search(r"loss 0\.\d+", shown)
    assert re.search(
        r"saved: checkpoint \d+, its content \d+ s old, (confirmed|not .*confirmed: \d)", shown
    )
    assert "queue: empty" in shown
    assert "count: completed" in notebook.said
    assert "freegpu: nothing more comes for this session: the queue is empty" in notebook.said
    assert "distributed computing workers" in notebook.said
    html = "\n".join(picture["text/html"] for picture in notebook.pictures)
    assert re.search(r'<progress max="1" value="0\.\d+"></progress>', html)
    assert len(notebook.document.cells[0].outputs) < 8, "one picture is drawn over, not a thousand"

    assert (tmp_path / "colab" / "unassigned").read_text() == "once\n"
    key = bytes.fromhex(re.search(r'"key": "(\w{64})"', made.text)[1])  # type: ignore[index]
    (session,) = {path.name for path in (home.store / "sessions").iterdir()}
    for secret in (key.hex(), wire.guest_key(key, session).hex()):
        assert secret.encode() not in home.written()
        outputs = "".join(str(output) for output in notebook.document.cells[0].outputs)
        assert secret not in outputs + shown + html


@pytest.mark.parametrize("kind", ["s3", "drive, asked", "drive, granted"])
def test_a_colab_notebook_works_over_a_store_behind_an_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A bucket by the keys in Colab's Secrets; Drive as the person who is asked in the notebook, or by the OAuth
    client of our side. The cell fetches the agent by itself, nothing is mounted, no secret is shown or stored."""
    with contextlib.ExitStack() as stack:
        env = stand_in(tmp_path / "colab")
        if kind == "s3":
            server = stack.enter_context(moto_server(tmp_path))
            server.client().create_bucket(Bucket="box")
            secrets, url = dict(s3.SECRETS), server.url("box")
            for name, value in secrets.items():
                monkeypatch.setenv(name, value)
        else:
            drive = stack.enter_context(DriveServer())
            url = f"drive:freegpu?endpoint={drive.url}"
            asked = kind == "drive, asked"
            grant = drive.oauth.grant("ours", "drive" if asked else "drive.file")
            monkeypatch.setenv("FREEGPU_DRIVE", grant)
            secrets = {} if asked else {"FREEGPU_DRIVE": grant}
            person = {**json.loads(drive.oauth.grant("colab", "drive")), "type": "authorized_user"}
            (tmp_path / "colab" / "adc.json").write_text(json.dumps(person))
        (tmp_path / "colab" / "secrets.json").write_text(json.dumps(secrets))
        home = Home(tmp_path / "all", url=url)
        made = home.cell("colab")
        assert set(made.secrets) == set(secrets)
        job = home.submit("count", JOB.format(total=12), "colab", SAVING)
        with home.up():
            notebook = Notebook(tmp_path / "nb", [made.text], env=env).start().wait(90)
        assert notebook.errors == []
        assert (home.pull(job) / "result.bin").read_bytes() == result(12)
        assert home.attempts(job) == [("colab", "completed")]
        assert "count: completed" in notebook.said
        assert (tmp_path / "colab" / "unassigned").read_text() == "once\n"
        assert (tmp_path / "colab" / "authenticated").exists() is (kind == "drive, asked")
        assert not (tmp_path / "colab" / "mounted").exists()
        seen = made.text + notebook.saved() + notebook.everything
        written = home.written()
        hidden = [
            *secrets.values(),
            *(json.loads(v)["refresh_token"] for v in secrets.values() if v[0] == "{"),
        ]
        for secret in hidden:
            assert secret not in seen
            assert secret.encode() not in written


def test_stopping_the_cell_saves_and_the_job_goes_on_elsewhere(tmp_path: Path, home: Home) -> None:
    """The stop button: a last checkpoint, no work lost, the runtime is the person's; the job ends on local."""
    job = home.submit("count", JOB.format(total=40), "colab, local", SAVING)
    notebook = Notebook(
        tmp_path / "nb", [home.cell("colab").text], env=stand_in(tmp_path / "colab")
    )
    with home.up():
        notebook.start().shows("confirmed")
        notebook.interrupt()
        notebook.wait()
        until(lambda: home.job(job).state == "pending", 20)
    assert "saving, then leaving" in notebook.said
    assert "freegpu: stopped; what ran is saved and goes on elsewhere" in notebook.said
    assert notebook.errors == []
    assert not (tmp_path / "colab" / "unassigned").exists()
    saved = home.job(job).checkpoint
    assert saved is not None
    home.configure("")
    with home.up():
        until(lambda: home.job(job).state == "succeeded", 40)
    assert home.attempts(job) == [("colab", "session_expired"), ("local", "completed")]
    assert (home.pull(job) / "result.bin").read_bytes() == result(40)


def test_stopping_twice_leaves_at_once_and_leaves_nothing_running(
    tmp_path: Path, home: Home
) -> None:
    """A job that does not listen and has a minute to save: the second Ctrl-C does not wait for it, and it is gone."""
    script, alive = tmp_path / "cell.py", tmp_path / "alive"
    script.write_text(home.cell("jupyter").text)
    deaf = f"trap '' TERM; while :; do date +%N > {alive}; sleep 0.1; done"
    home.submit("deaf", deaf, "jupyter", "  checkpoint: {grace: 60s}\n")
    with home.up():
        cell = subprocess.Popen(
            [sys.executable, "-u", str(script)],
            stdout=subprocess.PIPE,
            text=True,
            # tests that run in a shell's background are started with SIGINT ignored, and so are their children
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert cell.stdout is not None
        until(alive.exists, 30)
        cell.send_signal(signal.SIGINT)
        while "saving, then leaving" not in cell.stdout.readline():
            assert cell.poll() is None
        time.sleep(0.5)
        assert cell.poll() is None, "it has a minute"
        cell.send_signal(signal.SIGINT)
        said = cell.stdout.read()
        assert cell.wait(20) == 0
        cell.stdout.close()
    assert "freegpu: stopped at once" in said
    last = alive.read_text()
    time.sleep(0.5)
    assert alive.read_text() == last, "the job still runs"


def test_two_notebooks_with_one_cell_share_the_work(tmp_path: Path, home: Home) -> None:
    """Each run is a session of its own: no job runs twice, and both machines work at once."""
    mark = f'echo "$FREEGPU_JOB_ID" >> {tmp_path}/runs; sleep 3'
    text = home.cell("jupyter").text
    jobs = [home.submit(f"mark-{n}", mark, "jupyter") for n in range(4)]
    books = [Notebook(tmp_path / f"nb-{n}", [text]) for n in range(2)]
    with home.up():
        for book in books:
            book.start()
        for book in books:
            book.wait()
    assert sorted((tmp_path / "runs").read_text().split()) == sorted(jobs)
    assert all(home.attempts(job) == [("jupyter", "completed")] for job in jobs)
    for book in books:
        assert re.search(r"mark-\d: completed", book.said), "this one stood idle"


def test_a_cell_runs_again_and_after_an_upgrade(tmp_path: Path, home: Home) -> None:
    """Twice in one kernel; and yesterday's cell with yesterday's agent, though freegpu is newer now."""
    text = home.cell("jupyter").text
    with home.workspace() as opened:
        agent = opened.identity.agent_path.read_bytes()
        newer = wire.sha256(agent + b"\n")
        (home.store / wire.agent_key(newer)).write_bytes(agent + b"\n")
        cells.make(
            opened.ledger, opened.home_id, "jupyter", f"folder:{home.store}", newer, fresh=False
        )
    first = home.submit("first", "echo one", "jupyter")
    notebook = Notebook(tmp_path / "nb", [text, text])
    with home.up():
        notebook.start().shows("the queue is empty")
        second = home.submit("second", "echo two", "jupyter")
        notebook.wait()
    assert notebook.errors == []
    assert notebook.said.count("the queue is empty") == 2
    assert [home.attempts(job) for job in (first, second)] == [[("jupyter", "completed")]] * 2


def test_a_public_notebook_gets_its_key_from_elsewhere(tmp_path: Path, home: Home) -> None:
    """Paperspace: no key in the text; from the environment it works, and no job finds it there."""
    made = home.cell("paperspace")
    assert len(made.key) == 64
    assert made.key not in made.text
    look = "env > $FREEGPU_OUTPUT_DIR/env.txt; tr '\\0' '\\n' < /proc/$PPID/environ >> $FREEGPU_OUTPUT_DIR/env.txt"
    job = home.submit("look", look, "paperspace", "  outputs: ['*']\n")
    env = {"FREEGPU_CELL_KEY": made.key}
    with home.up():
        notebook = Notebook(tmp_path / "nb", [made.text], env=env).start().wait()
    assert notebook.errors == []
    assert home.attempts(job) == [("paperspace", "completed")]
    found = (home.pull(job) / "env.txt").read_text()
    assert "FREEGPU_JOB_ID" in found
    assert made.key not in found
    assert made.key.encode() not in home.written()
    assert made.key not in notebook.saved()


def test_an_agent_leaves_with_its_kernel(tmp_path: Path, home: Home) -> None:
    """Restart runtime: nobody sees the agent any more, so it saves, ends its job's processes and goes."""
    job = home.submit("count", JOB.format(total=400), "jupyter", SAVING)
    notebook = Notebook(tmp_path / "nb", [home.cell("jupyter").text])
    with home.up():
        notebook.start().shows("confirmed")
        notebook.kill()
        until(lambda: home.job(job).state == "pending", 20, "the agent works on unseen")
    assert home.attempts(job) == [("jupyter", "session_expired")]


def test_what_cannot_work_is_one_sentence(tmp_path: Path, home: Home) -> None:
    """No traceback: the agent is gone, was changed, the store is another home's, keys are missing or wrong."""
    jupyter, public = home.cell("jupyter"), home.cell("paperspace")
    colab = home.cell("colab").text.replace('"secrets": []', '"secrets": ["WANTED"]')
    foreign = Home(tmp_path / "other").cell("jupyter")
    body = re.search(r'"agent": "([^"]+)"', jupyter.text)
    assert body is not None
    agent = home.store / body[1]
    mark = tmp_path / "ran"
    setup = f"""
import os, pathlib
agent = pathlib.Path({str(agent)!r}); kept = agent.read_bytes()
"""
    texts = [
        setup + "agent.unlink()",
        jupyter.text,
        f'{setup.replace("kept = agent.read_bytes()", "")}agent.write_bytes(b"open({str(mark)!r}, chr(119))")',
        jupyter.text,
        "agent = pathlib.Path(" + repr(str(agent)) + "); agent.write_bytes(kept)",
        # another home's cell that points at this home's store, and the other way round
        foreign.text.replace(str(tmp_path / "other" / "store"), str(home.store)),
        public.text,
        'os.environ["FREEGPU_CELL_KEY"] = "not a key"',
        public.text,
        f'os.environ["FREEGPU_CELL_KEY"] = {"0" * 64!r}',
        public.text,
        colab,
        f'pathlib.Path({str(tmp_path / "colab" / "secrets.json")!r}).write_text(\'{{"WANTED": "no access"}}\')',
        colab,
        jupyter.text.replace(str(home.store), str(tmp_path / "no such folder")),
    ]
    env = stand_in(tmp_path / "colab")
    notebook = Notebook(tmp_path / "nb", texts, env=env).start().wait()
    where = "put FREEGPU_CELL_KEY into the environment of the notebook's kernel"
    key = "Colab's Secrets (the key icon at the left), with notebook access on"
    expected = [
        "freegpu: the agent that this cell was made for is not in .* make a new cell: freegpu cell jupyter",
        "freegpu: the agent that this cell was made for is not in .* make a new cell: freegpu cell jupyter",
        "freegpu: the store .* cannot be used from here: the store belongs to home h-[0-9a-f]+, not to h-[0-9a-f]+",
        re.escape(f"freegpu: the secret FREEGPU_CELL_KEY is not there: {where}"),
        re.escape(f"freegpu: the secret FREEGPU_CELL_KEY is not the key of this cell: {where}"),
        re.escape(f"freegpu: the secret FREEGPU_CELL_KEY is not the key of this cell: {where}"),
        re.escape(f"freegpu: the secret WANTED is not there: put WANTED into {key}"),
        re.escape(f"freegpu: Colab does not hand out the secret WANTED: put WANTED into {key}")
        + r" \(NotebookAccessError\)",
        "freegpu: the agent that this cell was made for is not in .* freegpu cell jupyter",
    ]
    assert len(notebook.errors) == len(expected), notebook.errors
    for found, wanted in zip(notebook.errors, expected, strict=True):
        assert re.fullmatch(wanted, found), f"{found!r} is not {wanted!r}"
    assert not mark.exists(), "changed code has run"
    assert not (home.store / "cells").exists(), "a session was announced all the same"


def test_a_copied_home_does_not_take_over_the_store(tmp_path: Path, home: Home) -> None:
    """A copy of the ledger that got another name (or another home altogether) makes no cell for this store."""
    home.cell("jupyter")
    other = Home(tmp_path / "other")
    other.store = home.store
    other.configure("")
    with pytest.raises(ForeignStoreError, match="belongs to"):
        other.cell("jupyter")


def test_a_program_gets_the_sentence_and_an_exit_code(tmp_path: Path, home: Home) -> None:
    """`python cell.py`: the same cell without a notebook; lines instead of a picture, 1 if it cannot work."""
    script = tmp_path / "cell.py"
    script.write_text(home.cell("jupyter").text)
    job = home.submit("hello", "sleep 1; echo hello", "jupyter")
    with home.up():
        began = time.monotonic()
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert time.monotonic() - began < 40
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (
        "hello: completed\nfreegpu: the queue is empty: no work came for a while\n" in done.stdout
    )
    assert home.attempts(job) == [("jupyter", "completed")]
    script.write_text(home.cell("paperspace").text)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("freegpu: the secret FREEGPU_CELL_KEY is not there")
    assert done.stderr.count("\n") == 1

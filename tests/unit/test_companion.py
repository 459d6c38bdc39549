"""`freegpu_job`, the one file that a script may use: what it finds, says and asks for; without any framework."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freegpu.agent import companion
from freegpu.agent.progress import Progress
from tests.integration.test_agent_pythons import PYTHONS, interpreter


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folders of an attempt; afterwards nobody has been asked to stop, and SIGTERM is as it was."""
    monkeypatch.setenv("FREEGPU_CHECKPOINT_DIR", str(tmp_path / "ckpt"))
    monkeypatch.setenv("FREEGPU_OUTPUT_DIR", str(tmp_path / "out"))
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)
    companion._stop.clear()
    companion._watching = False


def put(folder: Path, name: str, *, age: int, text: str = "x") -> Path:
    """A file in the checkpoint folder, this many seconds old."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (1_000_000 - age, 1_000_000 - age))
    return path


# --- folders and variables -------------------------------------------------------------------------------


def test_the_folders_are_those_of_the_attempt_and_there(job: Path) -> None:
    """A script may write into them at once."""
    assert companion.checkpoint_dir() == job / "ckpt"
    assert companion.output_dir() == job / "out"
    assert (job / "ckpt").is_dir()
    assert (job / "out").is_dir()


def test_at_home_the_folders_are_beside_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without freegpu the same script runs; nothing is resumed and no limit is known."""
    monkeypatch.chdir(tmp_path)
    assert companion.checkpoint_dir() == Path("ckpt")
    assert companion.output_dir() == Path("out")
    assert not companion.resuming()
    assert companion.precision() == "fp32"
    assert companion.time_left() is None


def test_what_the_agent_tells_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """FREEGPU_RESUME, FREEGPU_PRECISION, and the seconds until FREEGPU_DEADLINE."""
    monkeypatch.setenv("FREEGPU_RESUME", "1")
    monkeypatch.setenv("FREEGPU_PRECISION", "fp16")
    monkeypatch.setenv("FREEGPU_DEADLINE", "1060")
    monkeypatch.setattr("time.time", lambda: 1000.0)
    assert companion.resuming()
    assert companion.precision() == "fp16"
    assert companion.time_left() == 60.0


# --- what to resume from ---------------------------------------------------------------------------------


def test_latest_is_the_newest_that_matches(job: Path) -> None:
    """By time, and by name where two were saved in one moment."""
    assert companion.latest("*.pt") is None
    folder = companion.checkpoint_dir()
    put(folder, "9.pt", age=30)
    newest = put(folder, "10.pt", age=20)
    put(folder, "other.bin", age=0)
    assert companion.latest("*.pt") == newest
    twin = put(folder, "11.pt", age=20)
    assert companion.latest("*.pt") == twin


def test_latest_passes_over_what_is_not_whole(job: Path) -> None:
    """Temporary names, empty files, links that lead nowhere, Trainer folders whose saving was cut off."""
    folder = companion.checkpoint_dir()
    whole = put(folder, "checkpoint-10/trainer_state.json", age=90, text="{}").parent
    os.utime(whole, (900_000, 900_000))
    put(folder, "checkpoint-20/optimizer.pt", age=10)
    put(folder, "checkpoint-30/trainer_state.json", age=5)
    put(folder, "checkpoint-30/checkpoint-is-incomplete.txt", age=5)
    put(folder, "last.pt.tmp", age=1)
    put(folder, "x.part", age=1)
    put(folder, ".hidden", age=1)
    put(folder, "empty.pt", age=1, text="")
    (folder / "checkpoint-40").symlink_to(folder / "nowhere")
    assert companion.latest() == whole
    assert companion.latest("checkpoint-*") == whole


def test_a_save_that_fails_leaves_the_old_file_whole(job: Path) -> None:
    """The new one takes its place in one step, or not at all."""
    target = companion.checkpoint_dir() / "last.pt"

    def write(text: str) -> Callable[[Path], None]:
        def to(path: Path) -> None:
            assert path.name.endswith(".tmp")
            path.write_text(text)
            if text == "half":
                raise OSError("no space left")

        return to

    companion.save_atomically(target, write("one"))
    companion.save_atomically(target, write("two"))
    with pytest.raises(OSError, match="no space left"):
        companion.save_atomically(target, write("half"))
    assert target.read_text() == "two"
    assert companion.latest() == target


# --- being asked to stop ---------------------------------------------------------------------------------


def test_sigterm_is_a_question_and_not_the_end(job: Path) -> None:
    """The script goes on, sees it, saves, and leaves with 75."""
    assert not companion.stopping()
    companion.exit_if_stopped()
    os.kill(os.getpid(), signal.SIGTERM)
    assert companion.stopping()
    with pytest.raises(SystemExit) as left:
        companion.exit_if_stopped()
    assert left.value.code == companion.RESUME_ME == 75


def test_a_thread_that_asks_neither_fails_nor_listens(job: Path) -> None:
    """Only the main thread can take signals; a data loader's may still ask."""
    import threading

    before = signal.getsignal(signal.SIGTERM)
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(companion.stopping()))
    thread.start()
    thread.join()
    assert answers == [False]
    assert signal.getsignal(signal.SIGTERM) is before


# --- progress --------------------------------------------------------------------------------------------


class Scalar:
    """An array or tensor of some elements."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def item(self) -> float:
        if len(self.values) != 1:
            raise ValueError("only one element can be converted to a number")
        return self.values[0]

    def __str__(self) -> str:
        return f"Scalar{self.values}"


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (0.5, 0.5),
        (Scalar(0.25), 0.25),
        (True, True),
        ("warm-up", "warm-up"),
        (Scalar(1.0, 2.0), "Scalar(1.0, 2.0)"),
        (["a", 1], "['a', 1]"),
        (None, None),
        (float("nan"), None),
        (Scalar(float("inf")), None),
    ],
    ids=str,
)
def test_the_agent_understands_every_report(
    value: object, seen: object, capfd: pytest.CaptureFixture[str]
) -> None:
    """One odd value does not lose the step: the agent reads what the companion writes."""
    companion.progress(120, 4000, extra=value)
    line = capfd.readouterr().out
    assert line.startswith("FREEGPU_PROGRESS {")
    told = Progress().feed(line.encode())
    expected = {"step": 120, "total": 4000, **({} if seen is None else {"extra": seen})}
    assert told == expected


def test_a_total_that_is_not_known_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    """Unknown and infinite totals are no totals."""
    companion.progress(3)
    companion.progress(4, float("inf"))
    lines = [line.split(" ", 1)[1] for line in capfd.readouterr().out.splitlines()]
    assert [json.loads(line) for line in lines] == [{"step": 3}, {"step": 4, "total": None}]


# --- frameworks, as stand-ins ----------------------------------------------------------------------------


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Put a module into place, with the packages above it."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        above = ".".join(parts[:count])
        monkeypatch.setitem(sys.modules, above, types.ModuleType(above))
    made = types.ModuleType(name)
    made.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, made)


class Base:
    """What every framework calls its callbacks' base class."""


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_trainer_is_told_to_save_and_stop(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing before SIGTERM; at the next step's end after it, both wishes."""
    module(monkeypatch, "transformers", TrainerCallback=Base)
    callback = companion.trainer_callback()
    assert type(callback).__mro__[1] is Base
    control = types.SimpleNamespace(should_save=False, should_training_stop=False)
    state = types.SimpleNamespace(global_step=7, max_steps=100, is_world_process_zero=True)
    callback.on_train_begin(None, state, control)
    callback.on_step_end(None, state, control)
    assert not control.should_save
    stop()
    callback.on_step_end(None, state, control)
    assert control.should_save
    assert control.should_training_stop
    callback.on_log(None, state, control, logs={"loss": 0.5, "learning_rate": 1e-4})
    state.is_world_process_zero = False
    callback.on_log(None, state, control, logs={"loss": 0.5})
    said = capfd.readouterr().out
    assert said == 'FREEGPU_PROGRESS {"step": 7, "total": 100, "loss": 0.5}\n'


class LightningTrainer:
    """The part of a Lightning trainer that the callback touches."""

    estimated_stepping_batches: float = 100
    global_step = 50
    is_global_zero = True
    should_stop = False
    saved: tuple[str, ...] = ()

    def save_checkpoint(self, path: Path) -> None:
        self.saved = (*self.saved, path.name)
        path.write_text("weights")


@pytest.mark.parametrize("package", ["lightning.pytorch.callbacks", "pytorch_lightning.callbacks"])
def test_lightning_saves_once_and_stops(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], package: str
) -> None:
    """Under both names of the package; Lightning's own way with SIGTERM, which saves nothing, is replaced."""
    monkeypatch.setitem(sys.modules, "lightning", None)
    module(monkeypatch, package, Callback=Base)
    callback, trainer = companion.lightning_callback(), LightningTrainer()
    assert not companion.stopping()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as Lightning does when fit() begins
    callback.on_train_start(trainer, None)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    assert not trainer.should_stop
    stop()
    callback.on_train_batch_end(trainer, None, None, None, 0)
    callback.on_train_batch_end(trainer, None, None, None, 0)
    assert vars(trainer)["should_stop"] is True
    assert trainer.saved == ("last.ckpt.tmp",)
    assert (companion.checkpoint_dir() / "last.ckpt").read_text() == "weights"
    assert '"step": 50, "total": 100}' in capfd.readouterr().out


def test_keras_leaves_at_once_so_that_its_backup_stays(
    job: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A normal end of fit() makes BackupAndRestore delete what it saved: there must be none."""
    module(monkeypatch, "keras.callbacks", Callback=Base)
    callback = companion.keras_callback()
    callback.params = {"epochs": 20}
    callback.on_train_begin()
    callback.on_train_batch_end(0, {})
    callback.on_epoch_end(2, {"loss": Scalar(0.5)})
    assert capfd.readouterr().out == 'FREEGPU_PROGRESS {"step": 3, "total": 20, "loss": 0.5}\n'
    stop()
    with pytest.raises(SystemExit) as left:
        callback.on_train_batch_end(1, {})
    assert left.value.code == companion.RESUME_ME


# --- the file itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", PYTHONS)
def test_it_is_one_file_that_any_python_of_a_session_takes(tmp_path: Path, version: str) -> None:
    """Copied beside a script it needs nothing of freegpu; warnings are errors."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    shutil.copyfile(companion.__file__, tmp_path / "freegpu_job.py")
    (tmp_path / "train.py").write_text(
        "import os, signal, sys\n"
        "import freegpu_job as fg\n"
        "assert fg.latest() is None and not fg.stopping() and fg.time_left() is None\n"
        "fg.save_atomically(fg.checkpoint_dir() / 'a.json', lambda path: path.write_text('1'))\n"
        "fg.progress(1, loss=float('nan'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert fg.stopping() and fg.latest().name == 'a.json' and 'freegpu' not in sys.modules\n"
        "fg.exit_to_resume()\n"
    )
    done = subprocess.run(
        [python, "-W", "error", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (75, "")
    assert done.stdout == 'FREEGPU_PROGRESS {"step": 1, "loss": null}\n'

"""The how-to's three lines, with the real frameworks: stopped by SIGTERM, exit 75, resumed where they were.

Each framework is tried where it is installed; a model of a few numbers, no download, the processor.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from freegpu.agent import companion

pytestmark = pytest.mark.slow

TORCH = """
import sys, time
import torch
import freegpu_job as fg

model, total = torch.nn.Linear(4, 1), 400
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def load(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]

def save(path, step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path)

found = fg.latest("*.pt")
start = load(found) if found else 0
print("BEGAN", start, flush=True)
for step in range(start, total):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(PAUSE)
    if step % 20 == 0 or fg.stopping():
        fg.save_atomically(fg.checkpoint_dir() / "last.pt", lambda path: save(path, step + 1))
        fg.progress(step, total, loss=loss)
    if fg.stopping():
        fg.exit_to_resume()
print("DONE", flush=True)
"""

TRANSFORMERS = """
import time
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
import freegpu_job as fg

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x=None, labels=None):
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}

class Told(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        print("BEGAN", state.global_step, flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(PAUSE)

data = [{"x": torch.ones(4), "labels": torch.ones(1)}] * 64
args = TrainingArguments(
    output_dir=str(fg.checkpoint_dir()), save_steps=10, save_total_limit=2, max_steps=60, logging_steps=5,
    per_device_train_batch_size=2, use_cpu=True, report_to=[], disable_tqdm=True,
)
trainer = Trainer(model=Model(), args=args, train_dataset=data, callbacks=[Told(), fg.trainer_callback()])
trainer.train(resume_from_checkpoint=fg.latest("checkpoint-*"))
fg.exit_if_stopped()
print("DONE", flush=True)
"""

LIGHTNING = """
import time
import torch
import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
import freegpu_job as fg

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

class Told(Callback):
    def on_train_start(self, trainer, module):
        print("BEGAN", trainer.global_step, flush=True)

    def on_train_batch_end(self, trainer, *args, **kwargs):
        time.sleep(PAUSE)

data = torch.utils.data.DataLoader(torch.ones(100, 4), batch_size=1)
checkpoints = ModelCheckpoint(dirpath=fg.checkpoint_dir(), save_last=True, every_n_train_steps=10)
trainer = L.Trainer(
    max_epochs=2, callbacks=[checkpoints, Told(), fg.lightning_callback()], accelerator="cpu",
    logger=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), data, ckpt_path=fg.latest("*.ckpt"))
fg.exit_if_stopped()
print("DONE", trainer.global_step, flush=True)
"""

KERAS = """
import time
import numpy as np
import keras
import freegpu_job as fg

class Told(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if not told:
            told.append(print("BEGAN", epoch, flush=True))

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE)

told = []
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
backup = keras.callbacks.BackupAndRestore(fg.checkpoint_dir(), save_freq=5)
x, y = np.ones((80, 4)), np.ones((80, 1))
model.fit(x, y, batch_size=8, epochs=6, verbose=0, callbacks=[backup, Told(), fg.keras_callback()])
print("DONE", flush=True)
"""


class Script:
    """A user's script in a folder of its own, as an attempt sees it."""

    def __init__(self, folder: Path, text: str, extra: Mapping[str, str]) -> None:
        self.folder = folder
        self.path = folder / "train.py"
        library = folder / "lib"
        library.mkdir()
        shutil.copyfile(companion.__file__, library / "freegpu_job.py")
        self.path.write_text(text.replace("PAUSE", "0.03"))
        paths = [str(library), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ,
            **extra,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "FREEGPU_CHECKPOINT_DIR": str(folder / "ckpt"),
            "FREEGPU_OUTPUT_DIR": str(folder / "out"),
        }
        self.log = ""

    def run(self, saved: Callable[[Path], bool] | None = None) -> int:
        """Its exit code; with `saved` it gets a SIGTERM once that holds for its checkpoint folder."""
        log = self.folder / "log.txt"
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(self.path)],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            end = time.monotonic() + 120
            while saved is not None and not saved(self.folder / "ckpt"):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.02)
            if saved is not None:
                process.send_signal(signal.SIGTERM)
            return process.wait(120)
        finally:
            process.kill()
            self.log = log.read_text()

    @property
    def began(self) -> int:
        """Where the last run began."""
        return int(self.log.split("BEGAN", 1)[1].split()[0])


def has(pattern: str) -> Callable[[Path], bool]:
    """A condition: the checkpoint folder holds such a file."""
    return lambda folder: any(folder.glob(pattern))


def second_epoch(folder: Path) -> bool:
    """Keras begins again with the epoch: there must be one before it."""
    told = folder / "training_metadata.json"
    try:
        return bool(json.loads(told.read_text())["epoch"] > 0)
    except (OSError, ValueError):  # not there, or just being written
        return False


@pytest.mark.parametrize(
    ("module", "text", "saved", "extra"),
    [
        pytest.param("torch", TORCH, has("last.pt"), {}, id="torch"),
        pytest.param(
            "transformers",
            TRANSFORMERS,
            has("checkpoint-*/trainer_state.json"),
            {},
            id="transformers",
        ),
        pytest.param("lightning", LIGHTNING, has("*.ckpt"), {}, id="lightning"),
        pytest.param("keras", KERAS, second_epoch, {"KERAS_BACKEND": "torch"}, id="keras"),
    ],
)
def test_the_how_tos_lines_stop_with_75_and_resume(
    tmp_path: Path,
    module: str,
    text: str,
    saved: Callable[[Path], bool],
    extra: Mapping[str, str],
) -> None:
    """SIGTERM: saved, exit 75. The next attempt begins where that was, and ends with 0."""
    needed = {module, "torch"} | ({"accelerate"} if module == "transformers" else set())
    missing = sorted(name for name in needed if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    script = Script(tmp_path, text, extra)
    assert script.run(saved) == companion.RESUME_ME, script.log
    assert "DONE" not in script.log
    assert script.began == 0
    assert script.run() == 0, script.log
    assert "DONE" in script.log
    assert script.began > 0

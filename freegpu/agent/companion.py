"""What a script may use to be a good job: `import freegpu_job` works in every session, and nothing has to be installed.

The agent lays this one file beside the job under the name `freegpu_job`; it may also be copied into a project, to run a script by hand: without
freegpu around it, the folders are `./ckpt` and `./out` and nobody asks the script to stop. Standard library only, and no other part of
freegpu is imported. The callbacks import their framework when they are made.

    import freegpu_job as fg

    state = fg.latest("*.pt")                # newest complete file to resume from, or None
    for step in range(start, total):
        ...
        fg.progress(step, total, loss=loss)
        if fg.stopping():                    # the session ends: save now
            save(fg.checkpoint_dir() / "last.pt")
            fg.exit_to_resume()
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn, Optional

#: exit code that means: saved, resume me
RESUME_ME = 75

_stop = threading.Event()
_watching = False


def checkpoint_dir() -> Path:
    """The folder whose content survives the session; restored before the script starts."""
    return _folder("FREEGPU_CHECKPOINT_DIR", "ckpt")


def output_dir() -> Path:
    """The folder for results; brought home by `freegpu pull`."""
    return _folder("FREEGPU_OUTPUT_DIR", "out")


def resuming() -> bool:
    """Whether the checkpoint folder holds the progress of an earlier attempt."""
    return os.environ.get("FREEGPU_RESUME") == "1"


def precision() -> str:
    """bf16, fp16 or fp32: what this card does fast."""
    return os.environ.get("FREEGPU_PRECISION", "fp32")


def time_left() -> Optional[float]:
    """Seconds until the session's time is up; None: no limit is known."""
    deadline = os.environ.get("FREEGPU_DEADLINE")
    return float(deadline) - time.time() if deadline else None


def latest(pattern: str = "*") -> Optional[Path]:
    """The newest file or folder in the checkpoint folder that matches; None: start from scratch.

    Unfinished ones are passed over: temporary names, empty files, and Trainer folders without their last file.
    """
    found = [path for path in checkpoint_dir().glob(pattern) if _complete(path)]
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def stopping() -> bool:
    """Whether the script was asked to save and stop (SIGTERM). The first call begins to listen."""
    _watch()
    return _stop.is_set()


def exit_to_resume() -> NoReturn:
    """End the script with the word "saved, resume me"."""
    sys.stdout.flush()
    sys.exit(RESUME_ME)


def progress(step: float, total: Optional[float] = None, **values: Any) -> None:
    """Tell how far the job is; at most once a second is enough.

    Arrays and tensors of one element count as their number, what is not finite as unknown, anything else as text.
    """
    report = {"step": step, **({} if total is None else {"total": total}), **values}
    line = json.dumps({name: _plain(value) for name, value in report.items()})
    print(f"FREEGPU_PROGRESS {line}", flush=True)  # noqa: T201 - a line on stdout is the interface


def save_atomically(path: "os.PathLike[str]", write: Any) -> None:
    """Call `write(temporary path)`, then put the file in its place, so that nobody ever sees half of it."""
    target = Path(path)
    temporary = target.with_name(target.name + ".tmp")
    write(temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, target)


def trainer_callback() -> Any:
    """A Transformers `TrainerCallback`: progress, and on SIGTERM save and stop.

    After `trainer.train(...)` call `exit_if_stopped()`.
    """
    from transformers import TrainerCallback

    class FreegpuCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            _watch()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if stopping():
                control.should_save = True
                control.should_training_stop = True

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            values = {k: v for k, v in (logs or {}).items() if k in ("loss", "eval_loss", "epoch")}
            if state.is_world_process_zero:
                progress(state.global_step, state.max_steps, **values)

    return FreegpuCallback()


def lightning_callback() -> Any:
    """A Lightning `Callback`: progress, and on SIGTERM save `last.ckpt` and stop.

    After `trainer.fit(...)` call `exit_if_stopped()`.
    """
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        from pytorch_lightning.callbacks import Callback

    class FreegpuCallback(Callback):  # type: ignore[misc, unused-ignore]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            # Lightning has put its own there, which breaks off without saving
            _listen()

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            if trainer.is_global_zero and trainer.global_step % 50 == 0:
                progress(trainer.global_step, trainer.estimated_stepping_batches)
            if stopping() and not trainer.should_stop:
                save_atomically(checkpoint_dir() / "last.ckpt", trainer.save_checkpoint)
                trainer.should_stop = True

    return FreegpuCallback()


def keras_callback() -> Any:
    """A Keras `Callback`: progress, and on SIGTERM "resume me" after the batch.

    What is resumed from is the last save of `BackupAndRestore(checkpoint_dir(), save_freq=...)`, which stands
    before it in the list of callbacks.
    """
    from keras.callbacks import Callback

    class FreegpuCallback(Callback):  # type: ignore[misc, unused-ignore]
        def on_train_begin(self, logs: Any = None) -> None:
            _watch()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            progress(epoch + 1, self.params.get("epochs"), **(logs or {}))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if stopping():
                # `stop_training` would count as a normal end, and BackupAndRestore delete what it has saved
                exit_to_resume()

    return FreegpuCallback()


def exit_if_stopped() -> None:
    """After a training loop: if it ended because the session does, say "resume me" and end the script."""
    if _stop.is_set():
        exit_to_resume()


def _watch() -> None:
    """Listen for SIGTERM, unless we do already."""
    if not _watching:
        _listen()


def _listen() -> None:
    """Listen for SIGTERM; works only in the main thread, as signals do."""
    global _watching  # one process has one SIGTERM
    if threading.current_thread() is threading.main_thread():
        _watching = True
        signal.signal(signal.SIGTERM, lambda number, frame: _stop.set())


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable) or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _complete(path: Path) -> bool:
    if path.name.startswith(".") or path.name.endswith((".tmp", ".part")):
        return False
    if path.is_dir():
        if (path / "checkpoint-is-incomplete.txt").exists():
            return False
        return not path.name.startswith("checkpoint-") or (path / "trainer_state.json").is_file()
    # a link that leads nowhere is none either
    return path.is_file() and path.stat().st_size > 0


def _plain(value: Any) -> Any:
    """What freegpu understands of a value: numbers, text, yes and no, nothing."""
    if not isinstance(value, (bool, int, float, str)) and hasattr(value, "item"):
        try:
            value = value.item()
        except (TypeError, ValueError, RuntimeError):  # of more than one element
            return str(value)[:200]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)[:200]

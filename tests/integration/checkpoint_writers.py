"""Saves checkpoints as the frameworks do, in their order of writes; meant to be killed at any moment.

Run as a script it waits for lines `STYLE SEED` on stdin and forks a writer for each, so that one that was
killed is followed by the next at once; it answers with the writer's process id. Before each save a
line goes to LOG: {path: SHA-256} of the whole state that is about to be written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

#: the longest pause inside a save, seconds
NAP_S = 0.012


class Writer:
    def __init__(self, folder: Path, log: Path, seed: int) -> None:
        self.folder = folder
        self.log = log
        self.rng = random.Random(seed)
        self.number = seed * 1000

    def nap(self) -> None:
        if self.rng.random() < 0.4:
            time.sleep(self.rng.uniform(0, NAP_S))

    def content(self, size: int = 0) -> bytes:
        return self.rng.randbytes(size or self.rng.randint(20_000, 120_000))

    def announce(self, state: dict[str, bytes]) -> None:
        line = json.dumps({path: hashlib.sha256(data).hexdigest() for path, data in state.items()})
        with open(self.log, "a") as file:
            file.write(line + "\n")

    def pour(self, path: str, data: bytes) -> None:
        """Truncate and write in place, bit by bit."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as file:
            self.nap()
            step = max(1, len(data) // self.rng.randint(2, 16))
            for at in range(0, len(data), step):
                file.write(data[at : at + step])
                file.flush()
                self.nap()

    def swap(self, path: str, data: bytes) -> None:
        """safetensors 0.8: beside it, then renamed."""
        beside = f"{path.rpartition('/')[0]}/.tmp{self.number}".lstrip("/")
        self.pour(beside, data)
        os.replace(self.folder / beside, self.folder / path)

    # --- formats ---------------------------------------------------------------------------------------

    def torch(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for index in range(4):
                archive.writestr(f"archive/data/{index}", self.content(30_000))
        return buffer.getvalue()

    def safetensors(self) -> bytes:
        data = self.content()
        shape = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
        header = json.dumps({"weight": shape}).encode()
        return struct.pack("<Q", len(header)) + header + data

    def hdf5(self, path: str, whole: bytes) -> None:
        """The library keeps the end of the file in its own memory, and writes it down when it closes."""
        target = self.folder / path
        with open(target, "wb") as file:
            file.write(hdf5_head(96))
            file.flush()
            for at in range(96, len(whole), 16_384):
                file.write(whole[at : at + 16_384])
                file.flush()
                self.nap()
            file.seek(0)
            file.write(whole[:96])

    # --- styles ----------------------------------------------------------------------------------------

    def trainer(self) -> None:
        """Hugging Face: straight into checkpoint-N, trainer_state.json last, then the older one goes."""
        home = f"checkpoint-{self.number}"
        files = {
            "config.json": b'{"a": 1}',
            "model.safetensors": self.safetensors(),
            "optimizer.pt": self.torch(),
            "scheduler.pt": self.torch(),
            "rng_state.pth": self.torch(),
            "trainer_state.json": json.dumps({"global_step": self.number}).encode(),
        }
        self.announce({f"{home}/{name}": data for name, data in files.items()})
        for name, data in files.items():
            put = self.swap if name.endswith(".safetensors") else self.pour
            put(f"{home}/{name}", data)
        self.rotate(home)

    def rotate(self, home: str) -> None:
        for old in self.folder.iterdir():
            if old.is_dir() and old.name != home:
                for file in sorted(old.rglob("*"), reverse=True):
                    file.rmdir() if file.is_dir() else file.unlink()
                    self.nap()
                old.rmdir()

    def one(self, path: str, put: Callable[[str, bytes], None], data: bytes) -> None:
        self.announce({path: data})
        put(path, data)

    def lightning(self) -> None:
        self.one("last.ckpt", self.pour, self.torch())

    def torch_save(self) -> None:
        self.one("model.pt", self.pour, self.torch())

    def safetensors_renamed(self) -> None:
        self.one("model.safetensors", self.swap, self.safetensors())

    def safetensors_in_place(self) -> None:
        self.one("model.safetensors", self.pour, self.safetensors())

    def keras_h5(self) -> None:
        data = self.content()
        self.one("model.h5", self.hdf5, hdf5_head(96 + len(data)) + data)

    def keras_zip(self) -> None:
        self.one("model.keras", self.pour, self.torch())

    def keras_backup(self) -> None:
        """BackupAndRestore: weights in place, what they belong to after them."""
        data = self.content()
        weights = hdf5_head(96 + len(data)) + data
        about = json.dumps({"epoch": self.number}).encode()
        self.announce({"latest.weights.h5": weights, "training_metadata.json": about})
        self.hdf5("latest.weights.h5", weights)
        self.pour("training_metadata.json", about)

    def orbax(self) -> None:
        """Everything under a temporary name, renamed when it is whole; the older step is deleted."""
        temporary = f"{self.number}.orbax-checkpoint-tmp-{self.rng.randint(1, 99)}"
        files = self.step_files()
        self.announce({f"{self.number}/{name}": data for name, data in files.items()})
        for name, data in files.items():
            self.pour(f"{temporary}/{name}", data)
        os.rename(self.folder / temporary, self.folder / str(self.number))
        for old in self.folder.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(old)
        self.rotate(str(self.number))

    def orbax_commit(self) -> None:
        """Where a store cannot rename: in place, and a file that says so last."""
        files, said = self.step_files(), b"Checkpoint commit was successful"
        state = {f"{self.number}/{name}": data for name, data in files.items()}
        self.announce({**state, f"{self.number}/commit_success.txt": said})
        for path, data in state.items():
            self.pour(path, data)
        (self.folder / f"{self.number}/commit_success.txt").write_bytes(said)
        self.rotate(str(self.number))

    def step_files(self) -> dict[str, bytes]:
        return {
            "_CHECKPOINT_METADATA": b'{"item_handlers": {}}',
            "default/_METADATA": json.dumps({"tree": self.number}).encode(),
            "default/d/0": self.content(),
            "default/manifest.ocdbt": self.content(500),
        }


STYLES = (
    *("trainer", "lightning", "torch_save", "safetensors_renamed", "safetensors_in_place"),
    *("keras_h5", "keras_zip", "keras_backup", "orbax", "orbax_commit"),
)


def hdf5_head(end: int) -> bytes:
    """A superblock of version 0; `end` is where the file ends by its own word."""
    fixed = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + struct.pack("<HHL", 4, 16, 0)
    nothing = 0xFFFFFFFFFFFFFFFF
    return (fixed + struct.pack("<4Q", 0, nothing, end, nothing)).ljust(96, b"\0")


def write_for_ever(style: str, folder: Path, log: Path, seed: int) -> None:
    writer = Writer(folder, log, seed)
    while True:
        writer.number += 1
        getattr(writer, style)()
        # one save after the other, or time enough to be seen as finished
        time.sleep(writer.rng.choice([0.01, writer.rng.uniform(0.15, 0.4)]))


def main() -> None:
    folder, log = Path(sys.argv[1]), Path(sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        style, seed = line.split()
        pid = os.fork()
        if not pid:
            write_for_ever(style, folder, log, int(seed))
        print(pid, flush=True)


if __name__ == "__main__":
    main()

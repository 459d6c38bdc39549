"""What a second checkpoint costs when most of it has not changed: bytes, requests, seconds.

    python benchmarks/checkpoint_dedup.py [--scale N] [--most-lora SHARE] [--most-block SHARE]

Writes checkpoints in the true layout of torch.save (zip with stored, aligned entries), safetensors and
folders of very many files, sends two or more of them into a folder store, restores the last one and compares.
Prints a line of JSON for each case; exits with 1 when more than those shares of the second one were sent
again, or when anything takes more requests than docs/adr/0009 says.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from freegpu.agent import wire
from freegpu.agent.snapshot import Item
from freegpu.agent.stores.base import Source
from freegpu.agent.stores.folder import FolderStore
from freegpu.agent.transfer import Known, download, known_parts, thin_blobs, upload

Tensors = Mapping[str, bytes]
ALIGN = 64


def torch_zip(path: Path, tensors: Tensors, *, root: str = "archive", step: int = 0) -> None:
    """What torch.save writes: stored entries, each one's data at a multiple of 64, the pickle before them."""
    entries = {"data.pkl": b"\x80\x02" + json.dumps([step, list(tensors)]).encode()}
    entries |= {"byteorder": b"little"}
    entries |= {f"data/{index}": data for index, data in enumerate(tensors.values())}
    entries |= {"version": b"3\n", ".data/serialization_id": b"1" * 40}
    directory, at = [], 0
    with open(path, "wb") as file:
        for name, data in entries.items():
            label = f"{root}/{name}".encode()
            crc = zlib.crc32(data)
            gap = -(at + 30 + len(label) + 4) % ALIGN
            extra = b"FB" + struct.pack("<H", gap) + b"Z" * gap
            head = (20, 0, 0, 0, 0, crc, len(data), len(data), len(label), len(extra))
            file.write(struct.pack("<4s5H3L2H", b"PK\3\4", *head) + label + extra + data)
            back = (0, 20, 0, 0, 0, 0, crc, len(data), len(data), len(label), 0, 0, 0, 0, 0, at)
            directory.append(struct.pack("<4s6H3L5H2L", b"PK\1\2", *back) + label)
            at += 30 + len(label) + len(extra) + len(data)
        whole = b"".join(directory)
        count = min(len(entries), 0xFFFF)
        file.write(whole)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(whole), at, 0))


def safetensors(path: Path, tensors: Tensors) -> None:
    """Length, header, tensors one after the other; the header padded to eight."""
    header, at = {}, 0
    for name, data in tensors.items():
        shape = {"dtype": "F32", "shape": [len(data) // 4], "data_offsets": [at, at + len(data)]}
        header[name] = shape
        at += len(data)
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for data in tensors.values():
            file.write(data)


class Model:
    """A transformer of this width and depth in fp32, with adapters of that rank or without."""

    def __init__(self, seed: int, width: int, depth: int, vocabulary: int, rank: int = 0) -> None:
        self.rng = random.Random(seed)
        self.tensors: dict[str, bytes] = {}
        self.add("embed.weight", vocabulary * width)
        for layer in range(depth):
            for name in ("q", "k", "v", "o"):
                self.add(f"layers.{layer}.{name}.weight", width * width)
                if rank and name in "qv":
                    self.add(f"layers.{layer}.{name}.lora_A", rank * width)
                    self.add(f"layers.{layer}.{name}.lora_B", rank * width)
            for name in ("up", "down"):
                self.add(f"layers.{layer}.{name}.weight", 4 * width * width)
            for name in ("norm1", "norm2"):
                self.add(f"layers.{layer}.{name}.weight", width)
        self.add("norm.weight", width)

    def add(self, name: str, count: int) -> None:
        self.tensors[name] = self.rng.randbytes(4 * count)

    def train(self, what: str) -> list[str]:
        """New values for every tensor whose name has this in it; their names."""
        names = [name for name in self.tensors if what in name]
        for name in names:
            self.add(name, len(self.tensors[name]) // 4)
        return names

    def adam(self, names: list[str]) -> dict[str, bytes]:
        sizes = {name: len(self.tensors[name]) for name in names}
        return {
            f"{name}.{moment}": self.rng.randbytes(size)
            for name, size in sizes.items()
            for moment in ("exp_avg", "exp_avg_sq")
        }


def lora_in_full(folder: Path, scale: int, *, root: str = "archive") -> Iterator[None]:
    """Lightning: all of the model in last.ckpt, only adapters trained; overwritten."""
    model = Model(1, 512 * scale, 8, 16000, rank=8)
    for step in range(4):
        names = model.train("lora")
        everything = {**model.tensors, **model.adam(names)}
        torch_zip(folder / "last.ckpt", everything, root=root or f"step={step}", step=step)
        yield


def last_block(folder: Path, scale: int) -> Iterator[None]:
    """Transformers: the last of eight blocks trained; one checkpoint-N after the other."""
    model = Model(2, 512 * scale, 8, 8000)
    fixed = {"config.json": 900, "tokenizer.json": 2_000_000, "training_args.bin": 5000}
    rng = random.Random(3)
    texts = {name: rng.randbytes(size) for name, size in fixed.items()}
    for step in range(4):
        names = model.train("layers.7.")
        home = folder / f"checkpoint-{100 * (step + 1)}"
        home.mkdir()
        safetensors(home / "model.safetensors", model.tensors)
        torch_zip(home / "optimizer.pt", model.adam(names), root="optimizer", step=step)
        for name, data in {**texts, "rng_state.pth": rng.randbytes(14_000)}.items():
            (home / name).write_bytes(data)
        (home / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        for old in folder.iterdir():
            if old != home:
                for file in old.iterdir():
                    file.unlink()
                old.rmdir()
        yield


def full(folder: Path, scale: int) -> Iterator[None]:
    """Everything trained."""
    model = Model(4, 512 * scale, 8, 16000)
    for step in range(2):
        names = model.train("")
        torch_zip(folder / "last.ckpt", {**model.tensors, **model.adam(names)}, step=step)
        yield


def many_tensors(folder: Path, scale: int) -> Iterator[None]:
    """50,000 tensors of 200 bytes to 4 kB in one file, every hundredth of them trained."""
    rng = random.Random(5)
    tensors = {f"t.{i:05}": rng.randbytes(4 * rng.randint(50, 1000)) for i in range(50_000)}
    for _ in range(2):
        for index in range(0, 50_000, 100):
            tensors[f"t.{index:05}"] = rng.randbytes(len(tensors[f"t.{index:05}"]))
        safetensors(folder / "model.safetensors", tensors)
        yield


def many_files(folder: Path, scale: int) -> Iterator[None]:
    """50,000 files of 200 bytes to 4 kB, every hundredth of them rewritten."""
    rng = random.Random(6)
    for step in range(2):
        for index in range(0, 50_000, 100 if step else 1):
            path = folder / f"d{index // 500:03}" / f"{index:05}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(rng.randbytes(rng.randint(200, 4000)))
        yield


CASES = {
    "LoRA in a full .ckpt": lora_in_full,
    "the same, named anew": lambda folder, scale: lora_in_full(folder, scale, root=""),
    "last block, HF folder": last_block,
    "everything trained": full,
    "50,000 tensors": many_tensors,
    "50,000 files": many_files,
}


class Counting(FolderStore):
    """A folder that counts what is asked of it."""

    puts = gets = sent = 0

    def put_new(self, key: str, source: Source) -> bool:
        self.puts += 1
        self.sent += len(source) if isinstance(source, bytes) else 0
        return super().put_new(key, source)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        return super().get(key, start, end)


def items_of(folder: Path) -> list[Item]:
    """Every file below, as a snapshot has them."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            info = path.stat()
            name = path.relative_to(folder).as_posix()
            found.append(Item(name, path, info.st_size, info.st_mtime_ns, 0o644))
    return found


def measure(name: str, scale: int = 1) -> dict[str, Any]:
    """All generations of a case. Shares are of the generation's bytes; puts are without the manifest's."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "store").mkdir()
        (root / "store" / "freegpu.json").write_text("{}")
        folder = root / "ckpt"
        folder.mkdir()
        store = Counting(root / "store", sync=False)
        known: Known = {}
        lasting: Known = {}
        generations: list[dict[str, Any]] = []
        for generation, _ in enumerate(CASES[name](folder, scale), 1):
            items = items_of(folder)
            store.puts = store.sent = 0
            began = time.perf_counter()
            files = upload(store, "a-1", items, known, lasting=lasting)
            took = time.perf_counter() - began
            manifest = wire.Manifest("j-1", "a-1", 1, generation, None, 0.0, files)
            thin = thin_blobs(manifest)
            named = {part.key: part.size for part in manifest.blobs()}
            lasting = {**known, **known_parts([manifest])}
            known = {piece: part for piece, part in lasting.items() if part.key not in thin}
            generations.append(
                {
                    "mb": round(manifest.size / 1e6, 1),
                    "sent": round(store.sent / manifest.size, 4),
                    "puts": store.puts,
                    "pieces": sum(len(file.parts) for file in files),
                    "manifest_kb": round(len(manifest.to_bytes()) / 1e3, 1),
                    "blobs_hold": round(sum(named.values()) / manifest.size, 2),
                    "seconds": round(took, 2),
                }
            )
        store.gets = 0
        began = time.perf_counter()
        download(store, manifest, root / "back")
        back = time.perf_counter() - began
        for item in items:
            if (root / "back" / item.path).read_bytes() != item.source.read_bytes():
                raise SystemExit(f"{item.path} did not come back as it was")
        restore = {"gets": store.gets, "seconds": round(back, 2)}
        return {"case": name, "generations": generations, "restore": restore}


def most_puts(megabytes: float) -> float:
    """The bound that docs/adr/0009 gives for a whole checkpoint."""
    return 18 + megabytes / 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=1, help="width in multiples of 512")
    parser.add_argument("--most-lora", type=float, default=0.03)
    parser.add_argument("--most-block", type=float, default=0.30)
    parser.add_argument("--case", choices=CASES, action="append")
    given = parser.parse_args()
    most = {"LoRA in a full .ckpt": given.most_lora, "last block, HF folder": given.most_block}
    bad = False
    for name in given.case or CASES:
        found = measure(name, given.scale)
        print(json.dumps(found))
        for generation in found["generations"]:
            bad |= generation["puts"] > most_puts(generation["mb"])
        bad |= max(g["sent"] for g in found["generations"][1:]) > most.get(name, 1.01)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

"""Where files are cut: at tensor borders, the same tensors always into the same pieces, never too many."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import random
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from freegpu.agent.cuts import MOST, PIECE, cuts


def _benchmark() -> ModuleType:
    """The benchmark makes files in the true layouts; what it measures is held here too."""
    path = Path(__file__).parents[2] / "benchmarks" / "checkpoint_dedup.py"
    spec = importlib.util.spec_from_file_location("checkpoint_dedup", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bench = _benchmark()


def pieces(path: Path) -> list[bytes]:
    data = path.read_bytes()
    with open(path, "rb") as file:
        ends = cuts(file, len(data))
    assert ends == sorted(set(ends)), "every piece has bytes"
    assert (ends[-1] if ends else 0) == len(data), "they cover the file"
    found = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    assert max(map(len, found), default=0) <= MOST
    return found


def digests(path: Path) -> dict[str, int]:
    return {hashlib.sha256(piece).hexdigest(): len(piece) for piece in pieces(path)}


def new_share(before: Path, after: Path) -> float:
    old, new = digests(before), digests(after)
    return sum(size for sha, size in new.items() if sha not in old) / after.stat().st_size


def some_tensors(rng: random.Random) -> dict[str, bytes]:
    return {
        f"t{i}": rng.randbytes(rng.choice([0, 4, 400, 5_000, 70_000, 900_000])) for i in range(60)
    }


@pytest.mark.parametrize("kind", ["torch", "safetensors", "npz"])
@pytest.mark.parametrize("seed", range(4))
def test_a_tensor_that_changed_costs_itself_and_its_small_neighbours(
    tmp_path: Path, kind: str, seed: int
) -> None:
    """Whatever else the file is, and also when something before it has grown."""
    rng = random.Random(seed)
    tensors = some_tensors(rng)
    changed = dict(tensors)
    large = [name for name, data in tensors.items() if len(data) == 900_000]
    changed[large[-1]] = rng.randbytes(900_000)
    first = next(iter(changed))
    changed[first] = rng.randbytes(len(changed[first]) + 4)
    for name, state in (("before", tensors), ("after", changed)):
        path = tmp_path / name
        if kind == "torch":
            bench.torch_zip(path, state, step=len(name))
        elif kind == "safetensors":
            bench.safetensors(path, state)
        else:
            with zipfile.ZipFile(path, "w") as archive:
                for entry, data in state.items():
                    archive.writestr(f"{entry}.npy", data)
    total = (tmp_path / "after").stat().st_size
    most = 900_000 + len(changed[first]) + 200_000
    assert new_share(tmp_path / "before", tmp_path / "after") <= most / total


def test_pieces_of_a_large_tensor_are_cut_from_its_own_beginning(tmp_path: Path) -> None:
    """Something that is inserted before it moves it, and changes none of its pieces."""
    rng = random.Random(1)
    large = rng.randbytes(3 * PIECE + 1000)
    bench.safetensors(tmp_path / "a", {"large": large})
    bench.safetensors(tmp_path / "b", {"new": rng.randbytes(50_001), "large": large})
    assert new_share(tmp_path / "a", tmp_path / "b") < 60_000 / len(large)


def test_a_model_of_fifty_thousand_tensors_is_few_pieces(tmp_path: Path) -> None:
    """A manifest names every piece; small tensors are joined, in zips together with what stands between them."""
    rng = random.Random(2)
    small = {f"t{i}": rng.randbytes(200) for i in range(50_000)}
    bench.safetensors(tmp_path / "a", small)
    bench.torch_zip(tmp_path / "b", small)
    assert len(pieces(tmp_path / "a")) <= 1500
    assert len(pieces(tmp_path / "b")) <= 1500


def test_a_very_large_file_is_cut_into_larger_pieces() -> None:
    """Two hundred GB of no known format, of which nothing but the beginning is looked at."""

    class Large(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return b"?" * (size or 0)

    ends = cuts(Large(), 200 << 30)
    assert len(ends) <= 2 * 4096
    assert ends[0] == MOST


def test_no_piece_is_longer_than_the_store_takes(tmp_path: Path) -> None:
    """Also less than the least that would stand alone."""
    path = tmp_path / "a"
    bench.safetensors(path, {"x": b"x" * 5000, "y": b"y" * 5000})
    size = path.stat().st_size
    with open(path, "rb") as file:
        ends = cuts(file, size, most=1000)
    assert ends[-1] == size
    assert max(b - a for a, b in zip([0, *ends], ends, strict=False)) <= 1000


@pytest.mark.parametrize("seed", range(20))
def test_damaged_files_are_cut_like_any_other(tmp_path: Path, seed: int) -> None:
    """Cut off, flipped, with a directory or header that lies: all of the file is in the pieces, and nothing is raised."""
    rng = random.Random(seed)
    tensors = some_tensors(rng)
    path = tmp_path / "a"
    (bench.torch_zip if seed % 2 else bench.safetensors)(path, tensors)
    data = bytearray(path.read_bytes())
    if seed % 4 < 2:
        del data[rng.randrange(len(data)) :]
    for _ in range(30):
        if data:
            place = rng.choice([rng.randrange(len(data)), rng.randrange(min(len(data), 2000))])
            data[place] ^= 1 << rng.randrange(8)
            data[-rng.randint(1, min(len(data), 3000))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    pieces(path)


@pytest.mark.parametrize(
    ("case", "most"),
    [
        ("LoRA in a full .ckpt", 0.03),
        ("the same, named anew", 0.03),
        ("last block, HF folder", 0.30),
    ],
)
def test_what_is_sent_again_is_within_the_bounds(case: str, most: float) -> None:
    """The bounds of ADR 9, for every later checkpoint, not only the second; and few requests."""
    found = bench.measure(case)
    first, *later = found["generations"]
    assert first["sent"] == 1.0
    assert all(generation["sent"] <= most for generation in later)
    for generation in found["generations"]:
        assert generation["puts"] <= bench.most_puts(generation["mb"])
        assert generation["blobs_hold"] <= 1.5
    assert found["restore"]["gets"] <= 2 * first["puts"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["50,000 tensors", "50,000 files"])
def test_very_many_small_things_are_few_requests(case: str) -> None:
    """Each request costs a third of a second on Drive, and money elsewhere."""
    found = bench.measure(case)
    for generation in found["generations"]:
        assert generation["puts"] <= bench.most_puts(generation["mb"])
        assert generation["manifest_kb"] <= 10_000
    assert found["restore"]["gets"] <= 40

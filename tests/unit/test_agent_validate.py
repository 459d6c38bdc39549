"""Completeness by format: what is whole is accepted, what was cut off never is."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import pytest

from freegpu.agent.validate import complete


def a_zip(*, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for index in range(3):
            archive.writestr(f"archive/data/{index}", bytes(range(256)) * 20)
    return buffer.getvalue()


def a_safetensors() -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]},
            "b": {"dtype": "U8", "shape": [7], "data_offsets": [400, 407]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(range(1, 12)) * 37


def an_npy(descr: str = "<f4", shape: str = "(10, 3)", body: int = 120) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\7" * body


def an_hdf5(version: int = 0) -> bytes:
    size = 2048
    if version == 0:
        head = b"\x89HDF\r\n\x1a\n" + bytes([0, 0, 0, 0, 0, 8, 8, 0]) + b"\4\0\x10\0" + b"\0" * 4
    else:
        head = b"\x89HDF\r\n\x1a\n" + bytes([version, 8, 8, 0])
    head += struct.pack("<QQQQ", 0, 2**64 - 1, size, 96)
    return head + b"\1" * (size - len(head))


WHOLE = {
    "model.pt": a_zip(),
    "last.ckpt": a_zip(compression=zipfile.ZIP_DEFLATED),
    "pytorch_model.bin": a_zip(),
    "arrays.npz": a_zip(),
    "model.keras": a_zip(),
    "model.safetensors": a_safetensors(),
    "state.json": b'{"step": 12, "loss": [0.5, 0.25]}\n',
    "weights.npy": an_npy(),
    "names.npy": an_npy("<U10", "(3,)", 120),
    "times.npy": an_npy("<M8[ns]", "(4,)", 32),
    "scalar.npy": an_npy("|b1", "()", 1),
    "old.h5": an_hdf5(0),
    "new.weights.h5": an_hdf5(3),
}


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_whole_file_is_accepted(name: str, tmp_path: Path) -> None:
    """True for every known format, shallow and deep."""
    path = tmp_path / name
    path.write_bytes(WHOLE[name])
    assert complete(path) is True
    assert complete(path, deep=True) is True


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_file_cut_off_anywhere_is_never_accepted(name: str, tmp_path: Path) -> None:
    """A writer that truncates and writes again passes through every prefix: none of them is whole."""
    data, path = WHOLE[name], tmp_path / name
    # a JSON document is whole without the line's end
    longest = len(data.rstrip()) if name.endswith(".json") else len(data)
    for length in {*range(min(200, longest)), *range(0, longest, 61), longest - 1, longest - 2}:
        path.write_bytes(data[:length])
        # a prefix that has lost its magic cannot be told from an unknown format: it has to settle
        assert complete(path) is not True, length
        if length > 16:
            assert complete(path) is False, length


@pytest.mark.parametrize("name", ["model.pt", "arrays.npz", "state.json", "last.ckpt"])
def test_a_tail_of_zeros_is_seen_where_the_format_ends_with_something(
    name: str, tmp_path: Path
) -> None:
    """Space that was allocated but not yet written reads as zeros."""
    data, path = WHOLE[name], tmp_path / name
    for kept in (len(data) // 2, len(data) - 8, 20):
        path.write_bytes(data[:kept] + b"\0" * (len(data) - kept))
        assert complete(path) is False


@pytest.mark.parametrize("name", ["model.pt", "last.ckpt"])
def test_a_hole_in_a_zip_is_seen_by_the_deep_check_only(name: str, tmp_path: Path) -> None:
    """The directory is whole, the bytes of an entry are not."""
    data, path = bytearray(WHOLE[name]), tmp_path / name
    at = 60
    data[at : at + 60] = b"\0" * 60
    path.write_bytes(data)
    assert complete(path) is True
    assert complete(path, deep=True) is False


def test_an_empty_file_is_incomplete_where_its_name_promises_a_format(tmp_path: Path) -> None:
    """Opened and not yet written; but an empty commit_success.txt is what it should be."""
    for name in (*WHOLE, "x.pkl", "x.gz"):
        (tmp_path / name).write_bytes(b"")
        assert complete(tmp_path / name) is False
    (tmp_path / "commit_success.txt").write_bytes(b"")
    assert complete(tmp_path / "commit_success.txt") is None


def test_what_has_no_known_format_is_left_to_time(tmp_path: Path) -> None:
    """None: neither proven nor disproven."""
    for name, data in {
        "merges.txt": b"a b\n",
        "legacy.pt": b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
        "random.pkl": b"\x80\x04\x95\x03K\x01.",
        "userblock.h5": b"#!/bin/sh\n" + b"x" * 600,
        "objects.npy": an_npy("|O", "(3,)", 50),
    }.items():
        (tmp_path / name).write_bytes(data)
        assert complete(tmp_path / name) is None, name
    (tmp_path / "random.pkl").write_bytes(b"\x80\x04\x95\x03K\x01")
    assert complete(tmp_path / "random.pkl") is False


def test_an_hdf5_file_that_is_open_or_has_grown_is_incomplete(tmp_path: Path) -> None:
    """Growing, left behind by a writer that was killed, or marked as open by it."""
    path = tmp_path / "model.h5"
    path.write_bytes(an_hdf5(0) + b"more")
    assert complete(path) is False
    opened = bytearray(an_hdf5(3))
    opened[11] = 1
    path.write_bytes(opened)
    assert complete(path) is False


def test_hostile_headers_are_answered_without_reading_much(tmp_path: Path) -> None:
    """Lengths that lie, JSON that nests, directories that point outside: False, no exception."""
    cases = {
        "huge.safetensors": struct.pack("<Q", 2**63) + b"{}",
        "list.safetensors": struct.pack("<Q", 2) + b"[]",
        "negative.npy": an_npy("<f4", "(-1, 5)", 20),
        "call.npy": an_npy("<f4", "__import__('os')", 20),
        "deep.json": b"[" * 200_000,
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        assert complete(tmp_path / name) is False, name


def test_a_large_json_is_judged_by_its_end(tmp_path: Path) -> None:
    """Beyond 8 MiB it is not parsed: cut off is cut off, and otherwise it has to settle."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"x": "' + b"a" * (9 << 20) + b'"}\n')
    assert complete(path) is None
    path.write_bytes(b'{"x": "' + b"a" * (9 << 20))
    assert complete(path) is False


def test_big_files_cost_as_little_as_small_ones(tmp_path: Path) -> None:
    """Only the header and the directory are read: a sparse file of 20 GB is answered at once."""
    path = tmp_path / "model.safetensors"
    size = 20 << 30
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    assert complete(path) is True

"""Where a file is cut into pieces, so that two checkpoints have those pieces in common that did not change.

Decides by the file's own layout alone: the same tensors give the same pieces, at whatever place of whatever
file. Borders are those of tensors in safetensors, and of entries in zips (torch.save, .npz, .keras). A
small tensor is joined with its neighbours; a large one is cut at a fixed distance from its own beginning.
Every other file is cut at a fixed distance from the file's. What is in the store, and how pieces travel, is
not known here (see transfer).
"""

from __future__ import annotations

import json
import os
from typing import IO, List, Tuple

_KB, _MB = 1 << 10, 1 << 20
#: a piece has at most this many bytes, more in a file of more than 8 GiB; and at the very most
PIECE, MOST = 4 * _MB, 32 * _MB
#: a tensor of so many bytes stands alone: the least and the most
_ALONE = (16 * _KB, 4 * _MB)
#: a file has this many large pieces, or so many tensors that stand alone, at most (by a factor of two)
_LARGE, _TENSORS = 2048, 4096
_HEADER = 100_000_000

_Range = Tuple[int, int]


def cuts(file: "IO[bytes]", size: int, *, most: int = MOST) -> List[int]:
    """The ends of the pieces of a file of this size, the last of them `size`. None is longer than `most`.

    A file that is not what it looks like is cut like one of no known format. OSError.
    """
    if size <= min(_ALONE[0], most):
        return [size] if size else []
    ranges, weight = _tensors(file, size)
    longest = min(most, _between(PIECE, (weight or size) // _LARGE, MOST))
    alone = min(longest, _between(_ALONE[0], weight // _TENSORS, _ALONE[1]))
    ends: List[int] = []
    start = 0
    for begin, end in ranges:
        if end - begin >= alone:
            _cut(ends, start, begin, longest)
            _cut(ends, begin, end, longest)
            start = end
        elif end - start >= alone:
            _cut(ends, start, end, longest)
            start = end
    _cut(ends, start, size, longest)
    return ends


def _cut(ends: List[int], start: int, end: int, longest: int) -> None:
    ends.extend(range(start + longest, end, longest))
    if end > start:
        ends.append(end)


def _between(least: int, wanted: int, most: int) -> int:
    """Only powers of two in between: a file that grows a little keeps its pieces."""
    return max(least, min(most, 1 << max(0, wanted.bit_length() - 1)))


def _tensors(file: "IO[bytes]", size: int) -> Tuple[List[_Range], int]:
    """Where tensors lie, in order, none over another; and the bytes of those whose size is the model's alone."""
    file.seek(0)
    head = file.read(9)
    try:
        if head[:4] == b"PK\3\4":
            return _in_order(_entries(file), size)
        length = int.from_bytes(head[:8], "little")
        if head[8:] == b"{" and length <= min(size - 8, _HEADER):
            file.seek(8)
            header = json.loads(file.read(length))
            found = [v["data_offsets"] for k, v in header.items() if k != "__metadata__"]
            at = 8 + length
            return _in_order([(at + int(a), at + int(b), True) for a, b in found], size)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # cut off, or something else that begins like it
    return [], 0


def _entries(file: "IO[bytes]") -> List[Tuple[int, int, bool]]:
    # on use: it costs the agent's start a few milliseconds
    import zipfile

    found = []
    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                # the local header's extra field is not the directory's: torch pads it so that the data is aligned
                file.seek(entry.header_offset + 26)
                lengths = file.read(4)
                begin = entry.header_offset + 30
                begin += int.from_bytes(lengths[:2], "little") + int.from_bytes(
                    lengths[2:], "little"
                )
                # the size of a pickle or a text varies with what a counter says
                steady = os.path.splitext(entry.filename)[1] not in (".pkl", ".json")
                found.append((begin, begin + entry.compress_size, steady))
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ValueError from error
    return found


def _in_order(found: List[Tuple[int, int, bool]], size: int) -> Tuple[List[_Range], int]:
    ranges, at, weight = [], 0, 0
    for begin, end, steady in sorted(found):
        if begin < at or end > size:
            raise ValueError
        if end > begin:
            ranges.append((begin, end))
            weight += (end - begin) * steady
            at = end
    return ranges, weight

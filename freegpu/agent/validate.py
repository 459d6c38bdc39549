"""Whether a file is whole, as far as its format can tell.

Decides nothing about whether somebody still writes. Knows the formats in which frameworks save: torch and
numpy zips, safetensors, .npy, HDF5, JSON, pickle. A format with its length written down catches a file that
was cut off; a hole of zeros in the middle of a safetensors or HDF5 file shows in no length, and is not seen.
Costs about a millisecond whatever the size, but for JSON (parsed up to 8 MiB) and the deep check of zips.
"""

from __future__ import annotations

import json
import os
import re
from typing import IO, Any, Optional

#: an empty file of such a name is one whose writer has only just opened it
_KNOWN = frozenset(
    [
        *(".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".npz", ".npy"),
        *(".keras", ".h5", ".hdf5", ".json", ".zip", ".gz", ".tar"),
    ]
)
_ALWAYS_ZIP = frozenset([".npz", ".zip", ".keras"])
_JSON_PARSED = 8 << 20
_DEEP = 64 << 20
_NPY_TYPE = re.compile(r"[<>|=]?([?a-zA-Z])(\d*)(\[[^\]]*\])?")
_HDF5 = b"\x89HDF\r\n\x1a\n"


def complete(path: "os.PathLike[str]", *, deep: bool = False) -> Optional[bool]:
    """True: whole. False: cut off, or not what its name says. None: the format cannot tell.

    `deep` also checks the CRC of every entry of a zip of up to 64 MiB (some 50 ms). OSError if it cannot
    be read.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    size = os.stat(path).st_size
    if size == 0:
        return False if suffix in _KNOWN else None
    with open(path, "rb") as file:
        head = file.read(16)
        if suffix == ".safetensors":
            return _safetensors(file, head, size)
        if head[:2] == b"PK" and head[2:4] in (b"\3\4", b"\5\6"):
            return _zip(file, size, deep=deep and size <= _DEEP)
        if suffix in _ALWAYS_ZIP:
            return False
        if suffix == ".json":
            return _json(file, size)
        if suffix == ".npy":
            return _npy(file, size)
        if suffix in (".h5", ".hdf5"):
            return _hdf5(file, size)
        if suffix in (".pkl", ".pickle") and head[:1] == b"\x80":
            # the last opcode is STOP; that it is there does not prove what lies before it
            file.seek(-1, os.SEEK_END)
            return None if file.read(1) == b"." else False
        if not head.strip(b"\0") and suffix in _KNOWN:
            return False  # allocated, not yet written
    return None


def _safetensors(file: "IO[bytes]", head: bytes, size: int) -> bool:
    if len(head) < 8:
        return False
    length = int.from_bytes(head[:8], "little")
    if not 2 <= length <= min(size - 8, 100_000_000):  # the format's own limit for a header
        return False
    file.seek(8)
    try:
        header = json.loads(file.read(length))
        ends = [int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False
    return size == 8 + length + max(ends, default=0)


def _zip(file: "IO[bytes]", size: int, *, deep: bool) -> bool:
    # on use: it costs the agent's start a few milliseconds
    import zipfile

    try:
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                # 30: the smallest local header; a directory that points behind the file's end is no directory
                if entry.header_offset + 30 + entry.compress_size > size:
                    return False
                file.seek(entry.header_offset)
                if file.read(4) != b"PK\3\4":
                    return False
            return not deep or _intact(archive)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        return False


def _intact(archive: Any) -> bool:
    try:
        return archive.testzip() is None
    except (RuntimeError, NotImplementedError):
        return (
            True  # encrypted, or compressed in a way this Python lacks: nobody here can look inside
        )
    except Exception:
        return False


def _json(file: "IO[bytes]", size: int) -> Optional[bool]:
    if size > _JSON_PARSED:
        file.seek(-64, os.SEEK_END)
        return None if file.read().rstrip()[-1:] in (b"}", b"]") else False
    file.seek(0)
    try:
        json.loads(file.read())
    except (ValueError, RecursionError):
        return False
    return True


def _npy(file: "IO[bytes]", size: int) -> Optional[bool]:
    import ast

    file.seek(0)
    head = file.read(12)
    if head[:6] != b"\x93NUMPY" or len(head) < 12:
        return False
    start = 10 if head[6] == 1 else 12
    length = int.from_bytes(head[8:start], "little")
    if start + length > size:
        return False
    file.seek(start)
    try:
        header = ast.literal_eval(file.read(min(length, 1 << 20)).decode("latin-1").strip())
        shape, kind = header["shape"], header["descr"]
        found = _NPY_TYPE.fullmatch(kind) if isinstance(kind, str) else None
        if not found or found.group(1) == "O":
            return None  # records and pickled objects: no length to compare with
        width = int(found.group(2) or 1) * (4 if found.group(1) == "U" else 1)
        for extent in shape:
            width *= int(extent)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        return False
    return size == start + length + width


def _hdf5(file: "IO[bytes]", size: int) -> Optional[bool]:
    file.seek(0)
    head = file.read(96)
    if head[:8] != _HDF5:
        return None  # a user block may stand before it
    try:
        version = head[8]
        if version >= 2:
            width, at = head[9], 12
            writing = bool(head[11] & 1) if version >= 3 else False
        else:
            width, at, writing = head[13], 24 if version == 0 else 28, False
        if width not in (4, 8) or len(head) < at + 3 * width:
            return False
        end = int.from_bytes(head[at + 2 * width : at + 3 * width], "little")
    except IndexError:
        return False
    # closed by the library, the file ends where it says (h5py 3.16, every file space strategy); one that is
    # longer is growing, or its writer was killed
    return not writing and size == end

"""Named arrays of one dimension in a zip file, as `numpy.load` reads it, read back without trust.

Equal arrays give equal bytes, for there are no dates in it, and the file is never half there.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

LIMIT_BYTES = 8 << 30
"""What the arrays of a file may take in memory, at 8 bytes a number."""

_SUFFIX = ".npy"
_MAGIC = b"\x93NUMPY\x01\x00"
_LENGTH_BYTES = 2
_HEADER = re.compile(
    rb"\{'descr': '([<|][iuf][1248])', 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n"
)
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold
_UNIX = 3


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays, each of one dimension, replacing the file in one step.

    Raises:
        OSError: the file stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w") as file:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(name + _SUFFIX, _DATE)
                member.create_system = _UNIX
                file.writestr(member, _encode(array), zipfile.ZIP_DEFLATED)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_arrays(path: Path, kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the arrays of a file that `kinds` names; others are passed over.

    Nothing is loaded before what the file declares has been checked.

    Args:
        path: the file.
        kinds: which type of numbers each array may have, as NumPy's codes: "u1", or "u" for
            unsigned ones of any width.

    Raises:
        ValueError: something is wrong; zipfile raises errors of many other types beside.
    """
    with zipfile.ZipFile(path) as file:
        members = {member.filename.removesuffix(_SUFFIX): member for member in file.infolist()}
        if missing := kinds.keys() - members.keys():
            raise ValueError(f"it has no array {min(missing)}")
        numbers = sum(_check(file, members[name], kind) for name, kind in kinds.items())
        if 8 * numbers > LIMIT_BYTES:
            raise ValueError(f"it declares {numbers} numbers, which is more than any trace has")
        return {name: _decode(file.read(members[name])) for name in kinds}


def _encode(array: np.ndarray) -> bytes:
    """Return the npy format, version 1.0, of a one-dimensional array."""
    values = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    text = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': ({len(values)},), }}"
    size = len(_MAGIC) + _LENGTH_BYTES + len(text) + 1
    header = f"{text}{' ' * (-size % 64)}\n".encode()
    return _MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header + values.tobytes()


def _check(file: zipfile.ZipFile, member: zipfile.ZipInfo, kind: str) -> int:
    """Return how many numbers a member declares.

    Raises:
        ValueError: it is no such array, or not as long as its own header says.
    """
    name = member.filename.removesuffix(_SUFFIX)
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"{name} is compressed in an unknown way")
    with file.open(member) as stream:
        before = stream.read(len(_MAGIC) + _LENGTH_BYTES)
        header = stream.read(int.from_bytes(before[len(_MAGIC) :], "little"))
    found = _HEADER.fullmatch(header)
    if not before.startswith(_MAGIC) or found is None:
        raise ValueError(f"{name} is no array of one dimension")
    dtype, count = np.dtype(found[1].decode()), int(found[2])
    if not dtype.str[1:].startswith(kind):
        raise ValueError(f"{name} is {dtype}, not {np.dtype(kind) if kind[1:] else 'unsigned'}")
    if member.file_size != len(before) + len(header) + count * dtype.itemsize:
        raise ValueError(f"{name} is not as long as it says")
    return count


def _decode(data: bytes) -> np.ndarray:
    """Return the array of a member that has been checked."""
    begin = len(_MAGIC) + _LENGTH_BYTES
    at = begin + int.from_bytes(data[len(_MAGIC) : begin], "little")
    found = _HEADER.fullmatch(data[begin:at])
    if found is None:
        raise ValueError("it changed while it was read")
    return np.frombuffer(data, found[1].decode(), int(found[2]), at)

"""Flower's arrays without copies: the same bytes as Flower's own, made and read in one step.

A Flower `Array` holds NumPy's .npy format: a header that depends on type and shape only, then the
values. The headers of a model are always the same few, so they are made once.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from flwr.app import Array

NUMPY = "numpy.ndarray"


def pack(values: np.ndarray) -> Array:
    """Return `values` as a Flower array; of C-ordered ones equal to `Array(values)` to the byte."""
    values = np.asarray(values, order="C")
    data = _header(values.dtype.str, values.shape) + values.tobytes()
    return Array(dtype=str(values.dtype), shape=values.shape, stype=NUMPY, data=data)


def unpack(array: Array) -> np.ndarray:
    """Return a read-only view of the values of a Flower array.

    Raises:
        ValueError: the bytes are not of the declared type and shape.
    """
    shape, dtype = tuple(array.shape), np.dtype(array.dtype)
    header = _header(dtype.str, shape)
    if array.stype != NUMPY or not array.data.startswith(header):
        return _decoded(array)
    return np.frombuffer(array.data, dtype, offset=len(header)).reshape(shape)


def _decoded(array: Array) -> np.ndarray:
    """Read an array whose bytes are laid out otherwise, as Flower does."""
    values = np.asarray(array.numpy())
    values.flags.writeable = False
    return values


@lru_cache(maxsize=1024)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the .npy header of C-ordered values of a type and shape."""
    file = io.BytesIO()
    form = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, form)
    return file.getvalue()

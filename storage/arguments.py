"""What callers hand in, checked before anything changes."""

from __future__ import annotations

import operator

import numpy as np

LARGEST_BUDGET_BYTES = 1 << 46
"""What an address space of 47 bits has room to map, with a copy."""


def sample_numbers(samples: np.ndarray, count: int) -> np.ndarray:
    """Samples as int64[k].

    Raises:
        TypeError: they are no integers.
        ValueError: they are not in one row, or not in 0..count-1.
    """
    numbers = np.asarray(samples)
    if numbers.dtype != np.int64:
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise TypeError(f"samples must be integers, not {numbers.dtype}")
        if numbers.dtype.kind == "u" and numbers.size and int(numbers.max()) >= count:
            raise ValueError(f"samples must be in 0..{count - 1}")
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1:
        raise ValueError("samples must be one row of numbers")
    # Negative numbers are huge ones when read without a sign.
    if np.count_nonzero(numbers.view(np.uint64) >= count):
        raise ValueError(f"samples must be in 0..{count - 1}")
    return numbers


def byte_counts(counts: np.ndarray) -> np.ndarray:
    """Starts, lengths or sizes as int64[k].

    Raises:
        TypeError: they are no integers.
        ValueError: they are not in one row, or negative, or larger than any file.
    """
    numbers = np.asarray(counts)
    if numbers.dtype != np.int64:
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise TypeError(f"starts, lengths and sizes must be integers, not {numbers.dtype}")
        if numbers.dtype.kind == "u" and numbers.size and int(numbers.max()) > 2**62:
            raise ValueError("starts, lengths and sizes cannot be so large")
        numbers = numbers.astype(np.int64)
    if numbers.ndim != 1:
        raise ValueError("starts, lengths and sizes must be one row of numbers")
    return numbers


def check_buffer(buffer: np.ndarray, *, writable: bool) -> None:
    """Make sure that payloads can be copied into or out of a buffer.

    Raises:
        ValueError: it is not a contiguous uint8[m], or is to be written and cannot be.
    """
    right = (
        isinstance(buffer, np.ndarray)
        and buffer.dtype == np.uint8
        and buffer.ndim == 1
        and buffer.flags.c_contiguous
        and (buffer.flags.writeable or not writable)
    )
    if not right:
        raise ValueError(
            "the buffer must be a NumPy array of uint8 in one row, contiguous"
            + (" and writable" if writable else "")
        )


def budget(budget_bytes: int) -> int:
    """A budget in bytes.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative, or more than can be mapped.
    """
    checked = operator.index(budget_bytes)
    if checked < 0:
        raise ValueError("a budget cannot be negative")
    if checked > LARGEST_BUDGET_BYTES:
        raise ValueError("a budget can be 64 TiB at most")
    return checked


def note(name: str, value: np.ndarray) -> np.ndarray:
    """A note that can be saved: an array of numbers or of text.

    Raises:
        TypeError: it is something else.
    """
    array = np.array(value)
    if array.dtype.hasobject or array.dtype.kind == "V":
        raise TypeError(f"the note {name!r} is no array of numbers or text")
    return array

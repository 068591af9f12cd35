"""Which pages of some memory the system holds just now."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)


def resident_pages(memory: np.ndarray) -> np.ndarray:
    """Ask mincore(2) about whole pages: bool, one each; a file's pages count if they are cached."""
    first = -memory.ctypes.data % mmap.PAGESIZE
    count = (len(memory) - first) // mmap.PAGESIZE
    answer = np.zeros(count, np.uint8)
    failed = _LIBC.mincore(
        ctypes.c_void_p(memory.ctypes.data + first),
        ctypes.c_size_t(count * mmap.PAGESIZE),
        ctypes.c_void_p(answer.ctypes.data),
    )
    assert not failed, ctypes.get_errno()
    return (answer & 1).astype(bool)

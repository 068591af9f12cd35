"""Bytes that no file system or disk can make smaller."""

from __future__ import annotations

import numpy as np

_OFFSETS = 1 << 20


class Noise:
    """Random bytes, of which every payload is a stretch that begins at its own place.

    Attributes:
        buffer: uint8 [m].
    """

    def __init__(self, largest_bytes: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self.buffer = np.frombuffer(rng.bytes(largest_bytes + _OFFSETS), np.uint8)

    def starts(self, count: int) -> np.ndarray:
        """Return where so many payloads begin, int64 [count]."""
        return self._rng.integers(0, _OFFSETS, count)

    def payload(self, size_bytes: int) -> memoryview:
        """Return one payload."""
        start = int(self.starts(1)[0])
        return self.buffer.data[start : start + size_bytes]

"""What was read since the policy was last told: it hears of reads in bulk."""

from __future__ import annotations

import numpy as np


class ReadLog:
    """Requests in order, and how each was served; noting one costs next to nothing.

    Attributes:
        count: how many there are.
    """

    __slots__ = ("_chunks", "_samples", "_status", "count")

    def __init__(self) -> None:
        self.count = 0
        self._chunks: list[tuple[np.ndarray, np.ndarray]] = []
        # Those that came one by one, after the chunks.
        self._samples: list[int] = []
        self._status: list[int] = []

    def note(self, samples: np.ndarray, status: np.ndarray) -> None:
        """Note a batch, int64[k] and uint8[k]."""
        if self._samples:
            self._close_chunk()
        self._chunks.append((samples.copy(), status.copy()))
        self.count += len(samples)

    def note_one(self, sample: int, status: int) -> None:
        """Note a single request."""
        self._samples.append(sample)
        self._status.append(status)
        self.count += 1

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the requests and how they were served, int64 and uint8[count], and forget them."""
        self._close_chunk()
        samples = np.concatenate([samples for samples, _ in self._chunks])
        status = np.concatenate([status for _, status in self._chunks])
        self._chunks.clear()
        self.count = 0
        return samples, status

    def _close_chunk(self) -> None:
        ones = np.array(self._samples, np.int64), np.array(self._status, np.uint8)
        self._chunks.append(ones)
        self._samples.clear()
        self._status.clear()

"""The meter: true counts of one participation, taken where the bytes move."""

from __future__ import annotations

import numpy as np

from fedio.protocol import Meter
from storage import CacheStats


class MeterReading:
    """Counts a participation while it goes on."""

    def __init__(self, before: CacheStats, size_bytes: np.ndarray, decode_s: np.ndarray) -> None:
        """Start counting.

        Args:
            before: the cache's counters at the start.
            size_bytes: int64 [n], what each sample weighs.
            decode_s: float64 [n], declared seconds to decode each sample.
        """
        self._before = before
        self._size_bytes = size_bytes
        self._decode_s = decode_s
        self._served: list[np.ndarray] = []
        self._missed: list[np.ndarray] = []

    def batch(self, served: np.ndarray, missed: np.ndarray) -> None:
        """Count one batch: the samples that were trained, those of them read from the origin."""
        self._served.append(served)
        self._missed.append(missed)

    @property
    def served(self) -> np.ndarray:
        """The samples that were trained, in order, int64 [m]."""
        return np.concatenate(self._served)

    def result(self, after: CacheStats) -> Meter:
        """Return the counts, with the cache's counters as they stand now."""
        cache = after - self._before
        served, missed = self.served, np.concatenate(self._missed)
        return Meter(
            steps=len(self._served),
            trained_samples=len(served),
            unique_samples=len(np.unique(served)),
            requests=cache.requests,
            hits=cache.hits,
            staged=cache.staged,
            substituted=cache.substituted,
            misses=cache.misses,
            corrupt=cache.corrupt,
            hit_bytes=cache.hit_bytes,
            origin_bytes=int(self._size_bytes[missed].sum()),
            written_samples=cache.written_samples,
            written_bytes=cache.written_bytes,
            evicted_samples=cache.evicted_samples,
            decode_s=float(self._decode_s[served].sum()),
        )

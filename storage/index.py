"""Who is in a cache and what each is charged: arrays over all samples, and their sums."""

from __future__ import annotations

import numpy as np


class CacheIndex:
    """One row per sample 0..n-1; `add` and `remove` keep the sums right.

    Attributes:
        resident: bool[n], in the cache.
        size_bytes: int64[n], the declared size of a resident.
        length_bytes: int64[n], its payload length.
        cost_bytes: int64[n], what it is charged.
        staged: bool[n], came in ahead of its use.
        pins: int64[n], how often it is pinned, resident or not.
        used_bytes: sum of the residents' charges.
        resident_bytes: sum of the residents' declared sizes.
        pinned_bytes: sum of the pinned residents' charges.
        count: number of residents.
    """

    def __init__(self, samples: int) -> None:
        self.resident = np.zeros(samples, dtype=bool)
        self.size_bytes = np.zeros(samples, np.int64)
        self.length_bytes = np.zeros(samples, np.int64)
        self.cost_bytes = np.zeros(samples, np.int64)
        self.staged = np.zeros(samples, dtype=bool)
        self.pins = np.zeros(samples, np.int64)
        self.used_bytes = 0
        self.resident_bytes = 0
        self.pinned_bytes = 0
        self.count = 0
        self._any_pins = False

    def add(
        self, samples: np.ndarray, sizes: np.ndarray, lengths: np.ndarray, costs: np.ndarray
    ) -> None:
        """Take in samples that are not resident, each once; all arrays int64[k]."""
        self.resident[samples] = True
        self.staged[samples] = False
        self.size_bytes[samples] = sizes
        self.length_bytes[samples] = lengths
        self.cost_bytes[samples] = costs
        self.used_bytes += _total(costs)
        self.resident_bytes += _total(sizes)
        if self._any_pins:
            self.pinned_bytes += _total(costs[self.pins[samples] > 0])
        self.count += len(samples)

    def remove(self, samples: np.ndarray) -> None:
        """Take out residents, each once, int64[k]."""
        costs = self.cost_bytes[samples]
        self.resident[samples] = False
        self.staged[samples] = False
        self.used_bytes -= _total(costs)
        self.resident_bytes -= _total(self.size_bytes[samples])
        if self._any_pins:
            self.pinned_bytes -= _total(costs[self.pins[samples] > 0])
        self.count -= len(samples)

    def pin(self, samples: np.ndarray, change: int) -> None:
        """Add `change` (1 or -1) to the pins of samples, each once; pins never fall below 0."""
        self._any_pins = True
        rows = samples[self.resident[samples]]
        self.pinned_bytes -= _total(self.cost_bytes[rows[self.pins[rows] > 0]])
        self.pins[samples] = np.maximum(0, self.pins[samples] + change)
        self.pinned_bytes += _total(self.cost_bytes[rows[self.pins[rows] > 0]])

    @property
    def residents(self) -> np.ndarray:
        """The samples in the cache, ascending, int64[k]."""
        return np.flatnonzero(self.resident)


def _total(values: np.ndarray) -> int:
    """The sum of int64[k]; of a few values Python's is the faster one."""
    return int(values.sum()) if len(values) > 64 else sum(values.tolist())

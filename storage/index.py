"""Who is in a cache, and what each is charged: arrays over all samples, and their sums."""

from __future__ import annotations

from typing import Protocol

import numpy as np

LARGEST_SIZE_BYTES = 2**32 - 1
"""Sizes and lengths are kept in four bytes each."""


class Charges(Protocol):
    """What samples are charged for their declared sizes; `Layout` is one."""

    def cost(self, size_bytes: np.ndarray) -> np.ndarray:
        """Of sizes int64[k], int64[k]."""
        ...

    def cost_of(self, size_bytes: int) -> int:
        """Of one size."""
        ...


class CacheIndex:
    """One row per sample 0..n-1; `add` and `remove` keep the sums right.

    Attributes:
        layout: says what a sample is charged.
        resident: bool[n], in the cache.
        size_bytes: uint32[n], the declared size of a resident.
        length_bytes: uint32[n], its payload length.
        checksums: uint64[n], of its payload.
        staged: bool[n], came in ahead of its use.
        used_bytes: sum of the residents' charges.
        resident_bytes: sum of the residents' declared sizes.
        pinned_bytes: sum of the pinned residents' charges.
        count: number of residents.
        largest_cost_bytes: no resident is charged more.
    """

    def __init__(self, samples: int, layout: Charges) -> None:
        self.layout = layout
        self.resident = np.zeros(samples, dtype=bool)
        self.size_bytes = np.zeros(samples, np.uint32)
        self.length_bytes = np.zeros(samples, np.uint32)
        self.checksums = np.zeros(samples, np.uint64)
        self.staged = np.zeros(samples, dtype=bool)
        self.used_bytes = 0
        self.resident_bytes = 0
        self.pinned_bytes = 0
        self.count = 0
        self.largest_cost_bytes = 1
        self._pins: dict[int, int] = {}

    def add(
        self, samples: np.ndarray, sizes: np.ndarray, lengths: np.ndarray, checksums: np.ndarray
    ) -> None:
        """Take in samples that are not resident, each once."""
        self.resident[samples] = True
        self.staged[samples] = False
        self.size_bytes[samples] = sizes
        self.length_bytes[samples] = lengths
        self.checksums[samples] = checksums
        self._count(samples, 1)

    def enter(self, sample: int, size_bytes: int, length_bytes: int, checksum: int) -> None:
        """Take in one sample that is not resident."""
        self.resident[sample] = True
        self.staged[sample] = False
        self.size_bytes[sample] = size_bytes
        self.length_bytes[sample] = length_bytes
        self.checksums[sample] = checksum
        self._count_one(sample, 1)

    def holds(self, sample: int, size_bytes: int, length_bytes: int, checksum: int) -> bool:
        """Whether a sample is resident with the same payload and size."""
        return (
            bool(self.resident.item(sample))
            and self.checksums.item(sample) == checksum
            and self.length_bytes.item(sample) == length_bytes
            and self.size_bytes.item(sample) == size_bytes
        )

    def remove(self, samples: np.ndarray) -> None:
        """Take out residents, each once, int64[k]."""
        self._count(samples, -1)
        self.resident[samples] = False
        self.staged[samples] = False

    def relayout(self, layout: Charges) -> None:
        """Charge the residents by another layout."""
        self.layout = layout
        residents = self.residents
        self.used_bytes = self.resident_bytes = self.pinned_bytes = self.count = 0
        self._count(residents, 1)

    def cost_of(self, sample: int) -> int:
        """What a resident is charged."""
        return self.layout.cost_of(self.size_bytes.item(sample))

    def costs(self, samples: np.ndarray) -> np.ndarray:
        """What residents are charged, int64[k]."""
        return self.layout.cost(self.size_bytes[samples].astype(np.int64))

    @property
    def has_pins(self) -> bool:
        """Whether any sample, resident or not, is pinned."""
        return bool(self._pins)

    def pin(self, samples: np.ndarray, change: int) -> None:
        """Add `change` (1 or -1) to the pins of samples, each once; pins never fall below 0."""
        for sample in samples.tolist():
            before = self._pins.pop(sample, 0)
            after = max(0, before + change)
            if after:
                self._pins[sample] = after
            if self.resident[sample] and (before > 0) != (after > 0):
                self.pinned_bytes += change * self.cost_of(sample)

    def is_pinned(self, sample: int) -> bool:
        """Whether a sample, resident or not, is pinned."""
        return sample in self._pins

    @property
    def residents(self) -> np.ndarray:
        """The samples in the cache, ascending, int64[k]."""
        return np.flatnonzero(self.resident)

    def _count(self, samples: np.ndarray, sign: int) -> None:
        if len(samples) == 1:
            self._count_one(samples.item(), sign)
            return
        sizes = self.size_bytes[samples].astype(np.int64)
        costs = self.layout.cost(sizes)
        if sign > 0 and len(costs):
            self.largest_cost_bytes = max(self.largest_cost_bytes, int(costs.max()))
        self.used_bytes += sign * int(costs.sum())
        self.resident_bytes += sign * int(sizes.sum())
        self.count += sign * len(samples)
        if self._pins:
            pinned = [sample in self._pins for sample in samples.tolist()]
            self.pinned_bytes += sign * int(costs[pinned].sum())

    def _count_one(self, sample: int, sign: int) -> None:
        size_bytes = self.size_bytes.item(sample)
        cost_bytes = self.layout.cost_of(size_bytes)
        self.largest_cost_bytes = max(self.largest_cost_bytes, cost_bytes)
        self.used_bytes += sign * cost_bytes
        self.resident_bytes += sign * size_bytes
        self.count += sign
        if sample in self._pins:
            self.pinned_bytes += sign * cost_bytes

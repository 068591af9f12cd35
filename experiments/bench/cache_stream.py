"""What caches are asked for: samples in an order as in training, and their payloads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_NOISE_BYTES = 1 << 20
_STRIDE = 8191


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples, and where the payload of each lies in the noise, int64[k] each."""

    samples: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class Stream:
    """Samples 0..n-1 in random order, each of them again only after all others.

    The payload of a sample is a stretch of noise that begins at its own place, so that nothing
    has to be put together while the clock runs.

    Attributes:
        samples: n, at most 2^20.
        noise: uint8[m], with the payloads.
    """

    def __init__(self, samples: int, smallest: int, largest: int) -> None:
        """Draw an order, and lengths from the smallest to the largest, in bytes."""
        self.samples = samples
        self._rng = np.random.default_rng(samples)
        self.noise = self._rng.integers(0, 256, _NOISE_BYTES + largest, dtype=np.uint8)
        self._lengths = self._rng.integers(smallest, largest + 1, samples)
        self._order = self._rng.permutation(samples)
        self._came = 0

    def fresh(self, count: int) -> np.ndarray:
        """Return the next samples, which never came or came longest ago, int64[count]."""
        self._came += count
        return self._order[np.arange(self._came - count, self._came) % self.samples]

    def recent(self, count: int, newest: int) -> np.ndarray:
        """Return some of the `newest` samples that came last, int64[count]."""
        ages = self._rng.choice(newest, count, replace=count > newest)
        return self._order[(self._came - 1 - ages) % self.samples]

    def absent(self, count: int) -> np.ndarray:
        """Return some of the third of all samples that comes next, int64[count]."""
        ahead = self._rng.choice(self.samples // 3, count, replace=count > self.samples // 3)
        return self._order[(self._came + ahead) % self.samples]

    def batch(self, samples: np.ndarray) -> Batch:
        """Return samples with their payloads."""
        return Batch(samples, samples * _STRIDE % _NOISE_BYTES, self._lengths[samples])

    def batches(self, samples: np.ndarray, transaction: int) -> list[Batch]:
        """Return samples in batches of so many."""
        return [
            self.batch(samples[first : first + transaction])
            for first in range(0, len(samples), transaction)
        ]

    def mixed(self, some: np.ndarray, others: np.ndarray, transaction: int) -> list[Batch]:
        """Return some samples and others, shuffled, in batches of so many."""
        return self.batches(self._rng.permutation(np.concatenate([some, others])), transaction)

    def payloads(self, batch: Batch, rows: np.ndarray) -> bytes:
        """Return the payloads of the rows of a batch, bool[k], back to back."""
        view = self.noise.data
        bounds = zip(batch.starts[rows].tolist(), batch.lengths[rows].tolist(), strict=True)
        return b"".join(view[start : start + length] for start, length in bounds)

"""A batch of payloads offered to a cache, and the changes that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from storage.layout import cost, whole_pages


@dataclass(frozen=True, slots=True)
class Offer:
    """A checked batch without repetitions.

    Attributes:
        samples: int64[k], each once.
        buffer: uint8[m] with the payloads.
        starts: where each begins, int64[k].
        lengths: its bytes, int64[k].
        sizes: its declared bytes, int64[k].
        costs: what it will be charged, int64[k].
        last_position: for each sample as it was offered, its row here, int64[offered].
    """

    samples: np.ndarray
    buffer: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray
    costs: np.ndarray
    last_position: np.ndarray

    @classmethod
    def of(
        cls,
        samples: np.ndarray,
        buffer: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        sizes: np.ndarray,
    ) -> Offer:
        """Check a batch; of a repeated sample the last payload counts.

        Raises:
            ValueError: arrays of different lengths, or a payload outside the buffer.
        """
        starts, lengths, sizes = (np.asarray(a, np.int64) for a in (starts, lengths, sizes))
        if not len(samples) == len(starts) == len(lengths) == len(sizes):
            raise ValueError("samples, starts, lengths and sizes must be of one length")
        if len(samples) and min(starts.min(), lengths.min(), sizes.min()) < 0:
            raise ValueError("starts, lengths and sizes cannot be negative")
        if len(samples) and (starts + lengths).max() > len(buffer):
            raise ValueError("a payload ends after the buffer")
        last = {sample: position for position, sample in enumerate(samples.tolist())}
        rows = np.arange(len(samples))
        if len(last) < len(samples):
            kept = np.array(sorted(last.values()), np.int64)
            rows = np.searchsorted(kept, [last[sample] for sample in samples.tolist()])
            samples, starts, lengths, sizes = (a[kept] for a in (samples, starts, lengths, sizes))
        return cls(samples, buffer, starts, lengths, sizes, cost(sizes), rows)


class Plan:
    """Changes decided and not yet stored: removals and puts, in order.

    Attributes:
        puts: sample -> its row in the offer.
    """

    def __init__(self) -> None:
        self.puts: dict[int, int] = {}
        self._steps: list[tuple[list[int], int]] = []
        self._removed: list[int] = []

    def remove(self, samples: list[int]) -> None:
        """Samples leave, to make room for the next put; one not yet stored need not be."""
        for sample in samples:
            self.puts.pop(sample, None)
        self._removed += samples

    def put(self, sample: int, row: int) -> None:
        """A row of the offer is to be stored."""
        self.puts[sample] = row
        self._steps.append((self._removed, row))
        self._removed = []

    def keep(self, resident: np.ndarray) -> None:
        """Put only what is still resident, bool[n]: the cache was emptied meanwhile."""
        self.puts = {sample: row for sample, row in self.puts.items() if resident[sample]}

    def groups(
        self, lengths: np.ndarray, limit_pages: int
    ) -> Iterator[tuple[list[int], list[int]]]:
        """What to remove and which rows to put, cut where the pages touched pass a limit.

        A put stays together with the removals that make room for it.
        """
        alive = set(self.puts.values())
        removed: list[int] = []
        rows: list[int] = []
        touched = 0
        for leaving, row in [*self._steps, (self._removed, -1)]:
            put = [row] if row in alive else []
            pages = len(leaving) + sum(1 + whole_pages(int(lengths[r])) for r in put)
            if touched and touched + pages > limit_pages:
                yield removed, rows
                removed, rows, touched = [], [], 0
            removed += leaving
            rows += put
            touched += pages
        if removed or rows:
            yield removed, rows

"""A batch of payloads offered to a cache, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from storage.layout import cost


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


@dataclass(slots=True)
class Plan:
    """Changes decided and not yet stored.

    Attributes:
        removed: samples to be removed, before anything is put.
        puts: sample -> its row in the offer.
    """

    removed: list[int] = field(default_factory=list)
    puts: dict[int, int] = field(default_factory=dict)

    def remove(self, samples: list[int]) -> None:
        """Samples leave, whether stored before or only about to be."""
        for sample in samples:
            self.puts.pop(sample, None)
        self.removed += samples

    def keep(self, resident: np.ndarray) -> None:
        """Put only what is still resident, bool[n]: the cache was emptied meanwhile."""
        self.puts = {sample: row for sample, row in self.puts.items() if resident[sample]}

    def groups(self, lengths: np.ndarray, limit_bytes: int) -> Iterator[list[int]]:
        """The rows to put, cut where the charge of their `lengths` passes a limit."""
        rows = list(self.puts.values())
        charges = cost(lengths[rows]).tolist()
        group: list[int] = []
        charged = 0
        for row, charge in zip(rows, charges, strict=True):
            if group and charged + charge > limit_bytes:
                yield group
                group, charged = [], 0
            group.append(row)
            charged += charge
        yield group

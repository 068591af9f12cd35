"""A batch of payloads offered to a cache, and the changes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.checksum import digests
from storage.index import LARGEST_SIZE_BYTES, Charges


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
        checksums: of the payloads, uint64[k].
    """

    samples: np.ndarray
    buffer: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray
    costs: np.ndarray
    checksums: np.ndarray

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What the index keeps of each: samples, sizes, lengths and checksums."""
        return self.samples, self.sizes, self.lengths, self.checksums

    @classmethod
    def of(
        cls,
        samples: np.ndarray,
        buffer: np.ndarray,
        spans: tuple[np.ndarray, np.ndarray, np.ndarray],
        charges: Charges,
        seed: int,
    ) -> tuple[Offer, np.ndarray]:
        """Check a batch; of a repeated sample the last payload counts.

        Args:
            samples: int64[k].
            buffer: uint8[m].
            spans: starts, lengths and declared sizes, int64[k] each.
            charges: says what they will be charged.
            seed: of the checksums.

        Returns:
            The offer, and for each sample as it was offered its row there, int64[k].

        Raises:
            ValueError: arrays of different lengths, a payload outside the buffer, or a size above
                4 GiB.
        """
        starts, lengths, sizes = spans
        if not len(samples) == len(starts) == len(lengths) == len(sizes):
            raise ValueError("samples, starts, lengths and sizes must be of one length")
        rows = np.arange(len(samples))
        if len(samples):
            if (starts | lengths | sizes).min() < 0:  # where one of them has the sign
                raise ValueError("starts, lengths and sizes cannot be negative")
            if ((starts > len(buffer)) | (lengths > len(buffer) - starts)).any():
                raise ValueError("a payload ends after the buffer")
            if sizes.max() > LARGEST_SIZE_BYTES:
                raise ValueError("no sample may have more than 4 GiB")
        last = {sample: position for position, sample in enumerate(samples.tolist())}
        if len(last) < len(samples):
            kept = np.array(sorted(last.values()), np.int64)
            rows = np.searchsorted(kept, [last[sample] for sample in samples.tolist()])
            samples, starts, lengths, sizes = (a[kept] for a in (samples, starts, lengths, sizes))
        sums = digests(buffer.data, starts.tolist(), lengths.tolist(), (samples + seed).tolist())
        return cls(samples, buffer, starts, lengths, sizes, charges.cost(sizes), sums), rows


class Plan:
    """Changes decided and not yet stored: first all removals, then all puts.

    Attributes:
        puts: sample -> its row in the offer.
        removed: what has to leave the store.
    """

    def __init__(self) -> None:
        self.puts: dict[int, int] = {}
        self.removed: list[int] = []

    def remove(self, samples: list[int]) -> None:
        """Samples leave; one that is not stored yet never comes."""
        if self.puts:
            for sample in samples:
                self.puts.pop(sample, None)
        self.removed += samples

    def put(self, samples: list[int], rows: list[int]) -> None:
        """Rows of the offer are to be stored."""
        self.puts.update(zip(samples, rows, strict=True))

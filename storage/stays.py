"""When keeping a sample pays: from a batch that asks for it until the next that does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from storage.trace import Stream


@dataclass(frozen=True, slots=True)
class Stays:
    """The stays that earn hits; a cache that is filled on demand can grant any set that fits.

    Boundary j lies between the batches j and j + 1. A stay takes its cost at the boundaries
    start..end - 1, so it has left when another of the same sample begins at its end.

    Attributes:
        samples: int64[k], whose stay it is.
        starts: int64[k], the batch in which the sample can come in, ascending.
        ends: int64[k], the next batch that asks for it.
        hits: int64[k], the requests for it in that batch.
        cost_bytes: int64[k].
        batches: how many batches there are.
    """

    samples: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    hits: np.ndarray
    cost_bytes: np.ndarray
    batches: int

    @classmethod
    def of(cls, stream: Stream, cost_bytes: np.ndarray, usable_bytes: int) -> Self:
        """All stays of the samples that fit by themselves; `cost_bytes` is int64[n]."""
        batches = len(stream.batch_starts)
        batch = np.repeat(np.arange(batches), stream.batch_ends - stream.batch_starts)
        order = np.argsort(stream.requests, kind="stable")
        samples, batch = stream.requests[order], batch[order]
        is_new = (np.diff(samples, prepend=-1) != 0) | (np.diff(batch, prepend=-1) != 0)
        first = np.flatnonzero(is_new)
        hits = np.diff(first, append=len(samples))
        samples, batch = samples[first], batch[first]
        is_again = np.diff(samples, prepend=-1) == 0
        again = np.flatnonzero(is_again & (cost_bytes[samples] <= usable_bytes))
        again = again[np.argsort(batch[again - 1], kind="stable")]
        kept = samples[again]
        return cls(kept, batch[again - 1], batch[again], hits[again], cost_bytes[kept], batches)

    def load(self, granted: np.ndarray) -> np.ndarray:
        """What the stays take at each boundary, float64[batches]; `granted` is a cost each."""
        comes = np.bincount(self.starts, granted, self.batches)
        leaves = np.bincount(self.ends, granted, self.batches)
        taken: np.ndarray = np.cumsum(comes - leaves)
        return taken

"""The meter: true counts of one participation, taken where the bytes move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clients.samplers import effective_samples
from fedio.protocol import Meter
from storage import CacheStats


class StepCounts(NamedTuple):
    """The counts of one step, as `Meter` lists them."""

    samples: int
    reads: int
    hit_bytes: int
    misses: int
    origin_bytes: int
    decoded: int
    decoded_bytes: int
    written: int
    written_bytes: int


class MeterReading:
    """Counts a participation while it goes on; steps may be counted in any order, by any thread."""

    def __init__(self, steps: int, depth: int = 1, readers: int = 1) -> None:
        """Start counting.

        Args:
            steps: how many there are going to be.
            depth: batches at a time, the one in training included.
            readers: how many read.
        """
        self._depth, self._readers = depth, readers
        self._steps: list[StepCounts] = [StepCounts(*(0,) * 9)] * steps
        self._trained: list[np.ndarray] = [np.empty(0, np.int64)] * steps
        self._weights: list[np.ndarray | None] = [None] * steps
        self._skipped = [0] * steps
        self._refused = [0] * steps

    def step(self, step: int, counts: StepCounts) -> None:
        """Count what was read, decoded and written for a step, from 0."""
        self._steps[step] = counts

    def trained(self, step: int, samples: np.ndarray, weights: np.ndarray | None) -> None:
        """Count what a step trains.

        Args:
            step: its number, from 0.
            samples: int64[k].
            weights: theirs in the loss, float64[k]; None where all count alike.
        """
        self._trained[step], self._weights[step] = samples, weights

    def skipped(self, step: int, samples: int) -> None:
        """Count samples of a step that are not trained, since they cannot be read or decoded."""
        self._skipped[step] += samples

    def refused(self, step: int, samples: int) -> None:
        """Count samples that the store had no room for."""
        self._refused[step] += samples

    @property
    def all_skipped(self) -> int:
        """How many samples have been skipped so far."""
        return sum(self._skipped)

    def result(self, cache: CacheStats) -> Meter:
        """Return the counts, with those of the cache since the participation began."""
        trained = np.concatenate([np.empty(0, np.int64), *self._trained])
        columns = [list(column) for column in zip(*self._steps, strict=True)] or [[]] * 9
        by_step = StepCounts(*map(sum, columns))
        return Meter(
            steps=len(self._steps),
            depth=self._depth,
            readers=self._readers,
            trained_samples=by_step.samples,
            unique_samples=int(np.count_nonzero(np.bincount(trained))),
            effective_samples=effective_samples(trained, self._all_weights()),
            skipped=self.all_skipped,
            requests=cache.requests,
            hits=cache.hits,
            staged=cache.staged,
            substituted=cache.substituted,
            misses=cache.misses,
            corrupt=cache.corrupt,
            hit_bytes=cache.hit_bytes,
            origin_bytes=by_step.origin_bytes,
            decoded_samples=by_step.decoded,
            decoded_bytes=by_step.decoded_bytes,
            written_samples=cache.written_samples,
            written_bytes=cache.written_bytes,
            evicted_samples=cache.evicted_samples,
            refused=sum(self._refused),
            **{f"step_{name}": columns[i] for i, name in enumerate(StepCounts._fields)},
        )

    def _all_weights(self) -> np.ndarray | None:
        if all(weights is None for weights in self._weights):
            return None
        pairs = zip(self._trained, self._weights, strict=True)
        return np.concatenate([np.ones(len(s)) if w is None else w for s, w in pairs])

"""Reading: what a training gets from a data path, what it gives back, and what was trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from clients.datapath import DataPath
from clients.feed import Batch
from clients.samplers import Sampler


class Reading:
    """Hands the batches of a data path to a trainer and their losses back; close it afterwards."""

    def __init__(self, path: DataPath, sampler: Sampler) -> None:
        """Get ready.

        Args:
            path: brings the batches, and hands losses on to the policy.
            sampler: takes losses at once.
        """
        self._path, self._sampler = path, sampler
        self._source = path.batches()
        self._samples: list[np.ndarray] = []
        self._places: list[np.ndarray] = []

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._source:
            self._samples.append(batch.samples)
            self._places.append(batch.places)
            yield batch.images, batch.labels, batch.weights

    @property
    def feedback(self) -> Callable[[np.ndarray], None] | None:
        """Takes the losses of the last batch, float64[k]; None where nobody learns from them."""
        return self._feedback if self._path.learns or self._sampler.learns else None

    def of_accesses(self, order: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what was trained for each access, int64 [m], and its loss, float64 [m].

        Of one that was skipped the sample itself, and NaN.

        Args:
            order: int64 [m], what was asked for.
            losses: of all that was trained, one batch after the other, float64.
        """
        places = np.concatenate(self._places)
        served, of_each = order.copy(), np.full(len(order), np.nan)
        served[places], of_each[places] = np.concatenate(self._samples), losses
        return served, of_each

    def close(self) -> None:
        """End reading, wherever it is."""
        self._source.close()

    def _feedback(self, losses: np.ndarray) -> None:
        self._path.feedback(self._samples[-1], losses)
        self._sampler.feedback(self._samples[-1], losses)

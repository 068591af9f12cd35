"""Placement policies: what a cache keeps. The cache counts bytes, the policy orders samples."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Literal

import numpy as np

Why = Literal["evicted", "overwritten", "deleted", "corrupt"]


class Policy(ABC):
    """Decides what comes in and what leaves a cache of samples 0..samples-1.

    All arrays of samples are int64[k]. A policy must be deterministic; ties go to the lowest
    sample number. State that must outlive the process goes through `columns` and `restore`.

    Attributes:
        evicts: whether `victims` ever names one; a policy that never does is not asked.
        samples: how many samples there are, cached or not.
        quarantined: how many scores were no finite number and counted as the lowest.
    """

    evicts = True

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.quarantined = 0

    @property
    def learns(self) -> bool:
        """Whether it takes feedback; reads need not wait for that otherwise."""
        return type(self).feedback is not Policy.feedback

    @abstractmethod
    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Samples were read, in this order, each a use of its own; `hit` is bool[k]."""

    def admit(self, samples: np.ndarray, sizes: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Which of the samples that are not cached may come in, bool[k]; `sizes` are charged."""
        return np.ones(len(samples), dtype=bool)

    @abstractmethod
    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the cached samples that may leave for `incoming` (None: to free room), in order.

        The cache takes as many as it needs, skips pinned ones, and calls `removed` for what really
        leaves before it closes the generator; nothing else changes meanwhile. Whatever stays must
        be offered again next time. A generator that ends early rejects the incoming sample.
        """

    @abstractmethod
    def inserted(self, samples: np.ndarray) -> None:
        """Samples came in, in this order."""

    @abstractmethod
    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Samples left."""

    def feedback(  # noqa: B027 - of no use to most policies
        self, samples: np.ndarray, losses: np.ndarray
    ) -> None:
        """A training step reported its losses, float64[k]."""

    @abstractmethod
    def columns(self) -> dict[str, np.ndarray]:
        """The state as named arrays."""

    @abstractmethod
    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take the state back from what `columns` returned."""


class ScorePolicy(Policy):
    """Evicts the lowest score first; a subclass sets scores through `rescore`.

    The order lies in a heap that is kept lazily: a score that falls is pushed anew, one that
    rises is put right only when it comes up as a victim. So a use costs no work in the heap, and
    an eviction O(log residents) amortised.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.scores = np.zeros(samples)
        self._cached = np.zeros(samples, dtype=bool)
        self._count = 0
        self._heap: list[tuple[float, int]] = []

    def rescore(self, samples: np.ndarray, scores: np.ndarray) -> None:
        """Give samples new scores, float64[k]; of a repeated sample the last one counts."""
        finite = np.isfinite(scores)
        if not finite.all():
            self.quarantined += int(np.count_nonzero(~finite))
            scores = np.where(finite, scores, -np.inf)
        fell = samples[(scores < self.scores[samples]) & self._cached[samples]]
        self.scores[samples] = scores
        self._push(fell)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        """Yield cached samples by rising score, then by rising number."""
        passed: set[int] = set()
        try:
            while self._heap:
                score, sample = heapq.heappop(self._heap)
                if not self._cached[sample] or sample in passed:
                    continue
                if score != self.scores[sample]:
                    self._push(np.array([sample]))
                    continue
                passed.add(sample)
                yield sample
        finally:
            self._push(np.array([s for s in passed if self._cached[s]], np.int64))

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into the order with the score that they have."""
        self._cached[samples] = True
        self._count += len(samples)
        self._push(samples)
        if len(self._heap) > 4 * self._count + 1024:
            self._rebuild()

    def removed(self, samples: np.ndarray, why: Why) -> None:  # noqa: ARG002
        """Take samples out of the order; their scores stay."""
        self._count -= int(np.count_nonzero(self._cached[samples]))
        self._cached[samples] = False

    def columns(self) -> dict[str, np.ndarray]:
        """Scores and who is cached; the heap follows from them."""
        return {
            "scores": self.scores,
            "cached": self._cached,
            "quarantined": np.array(self.quarantined),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take scores back and rebuild the order."""
        self.scores = columns["scores"].copy()
        self._cached = columns["cached"].copy()
        self.quarantined = int(columns["quarantined"])
        self._count = int(np.count_nonzero(self._cached))
        self._rebuild()

    def _push(self, samples: np.ndarray) -> None:
        for score, sample in zip(self.scores[samples].tolist(), samples.tolist(), strict=True):
            heapq.heappush(self._heap, (score, sample))

    def _rebuild(self) -> None:
        cached = np.flatnonzero(self._cached)
        self._heap = list(zip(self.scores[cached].tolist(), cached.tolist(), strict=True))
        heapq.heapify(self._heap)

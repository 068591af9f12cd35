"""Least recently used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage.policy import ScorePolicy, Why


class LRU(ScorePolicy):
    """Keeps what was used last; the score of a sample is the number of its last use.

    Uses are numbered one by one, inside a batch too. A sample that comes in without having been
    read since it left (it was staged) counts as used when it comes in.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._uses = 0

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        """Number the uses; a miss counts as one, its sample is about to come in."""
        self._use(samples)

    def outlasts(self, incoming: np.ndarray, victim: int) -> bool:
        """Compare last uses; unread ones are used when they come in. A subclass says so itself."""
        if type(self) is not LRU:
            return False
        scores = self.scores[incoming]
        return not np.count_nonzero((scores > 0) & (scores < self.scores.item(victim)))

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through the order once for all; a subclass says so itself."""
        if type(self) is not LRU:
            return super().exchange(incoming)
        self._use_unread(np.array(incoming))
        left = self._queue.exchange(incoming)
        self.scores[left] = 0
        return left

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into the order, unread ones as used now."""
        self._use_unread(samples)
        super().inserted(samples)

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Forget the last use of what left; an overwritten sample keeps it."""
        super().removed(samples, why)
        if why != "overwritten":
            self.scores[samples] = 0

    def columns(self) -> dict[str, np.ndarray]:
        """The order and the number of uses so far."""
        return super().columns() | {"uses": np.array(self._uses)}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take the order and the number of uses back."""
        super().restore(columns)
        self._uses = int(columns["uses"])

    def _use_unread(self, samples: np.ndarray) -> None:
        scores = self.scores[samples]
        if np.count_nonzero(scores) < len(scores):
            self._use(samples[scores == 0])

    def _use(self, samples: np.ndarray) -> None:
        """Number uses one by one; of a repeated sample the last counts."""
        first, self._uses = self._uses + 1, self._uses + len(samples)
        # These are above all other scores, which spares the order a look at them.
        self.scores[samples] = np.arange(first, self._uses + 1, dtype=np.float64)

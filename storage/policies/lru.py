"""Least recently used."""

from __future__ import annotations

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
        self.rescore(samples, self._number(len(samples)))

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into the order, unread ones as used now."""
        unread = samples[self.scores[samples] == 0]
        if len(unread):
            self.rescore(unread, self._number(len(unread)))
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

    def _number(self, count: int) -> np.ndarray:
        numbers = np.arange(self._uses + 1, self._uses + count + 1, dtype=np.float64)
        self._uses += count
        return numbers

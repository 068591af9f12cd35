"""Losses that reach a policy late, since batches are read ahead of training."""

from __future__ import annotations

from collections import deque

import numpy as np

from storage.policy import Policy


class LateFeedback:
    """Tells a policy the losses of batches in their order, as late as reading ahead lets them come.

    With a depth of d, before batch j is read the losses of all batches up to j - d are told, and
    those of the last d when the participation ends.
    """

    def __init__(self, policy: Policy) -> None:
        """Start with a depth of 1: all is told before the next batch is read."""
        self._policy = policy
        self._depth = 1
        self._waiting: deque[tuple[np.ndarray, np.ndarray]] = deque()

    def begin(self, depth: int) -> None:
        """Begin a participation, of that depth."""
        self._depth = depth

    def read(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Take what training the batch just read is going to tell, int64[k] and float64[k]."""
        self._waiting.append((samples, losses))
        if len(self._waiting) >= self._depth:
            self._tell()

    def end(self) -> None:
        """Tell all that is left."""
        while self._waiting:
            self._tell()

    def _tell(self) -> None:
        samples, losses = self._waiting.popleft()
        if len(samples):
            self._policy.feedback(samples, losses)

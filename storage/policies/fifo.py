"""First in, first out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage.policy import ScorePolicy


class FIFO(ScorePolicy):
    """Keeps what came in last; the score of a sample is the number of its arrival.

    An overwritten sample comes in anew.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._arrivals = 0

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Uses change nothing."""

    def outlasts(self, incoming: np.ndarray, victim: int) -> bool:  # noqa: ARG002
        """Whoever comes in is behind all residents. A subclass says so itself."""
        return type(self) is FIFO

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Go through the order once for all; a subclass says so itself."""
        if type(self) is not FIFO:
            return super().exchange(incoming)
        self._number(np.array(incoming))
        return self._queue.exchange(incoming)

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples at the end of the order."""
        self._number(samples)
        super().inserted(samples)

    def columns(self) -> dict[str, np.ndarray]:
        """The order and the number of arrivals so far."""
        return super().columns() | {"arrivals": np.array(self._arrivals)}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take the order and the number of arrivals back."""
        super().restore(columns)
        self._arrivals = int(columns["arrivals"])

    def _number(self, samples: np.ndarray) -> None:
        first, self._arrivals = self._arrivals + 1, self._arrivals + len(samples)
        self.scores[samples] = np.arange(first, self._arrivals + 1, dtype=np.float64)

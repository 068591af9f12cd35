"""What was measured: operations of several sizes, and the seconds that each took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Points:
    """Operations in any order.

    Attributes:
        sizes: bytes of each operation, or samples of each step, float64 [m].
        seconds: what it took, above 0, float64 [m].
    """

    sizes: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> Points:
        """Return the points of (size, seconds) pairs."""
        table = np.array(list(pairs), np.float64).reshape(-1, 2)
        return cls(table[:, 0], table[:, 1])

    @classmethod
    def together(cls, parts: Sequence[Points]) -> Points:
        """Return the points of several measurements of the same."""
        sizes, seconds = zip(*((part.sizes, part.seconds) for part in parts), strict=True)
        return cls(np.concatenate(sizes), np.concatenate(seconds))

    def by_size(self) -> list[tuple[float, np.ndarray]]:
        """Return each size, ascending, with the seconds of its operations."""
        return [(size, self.seconds[self.sizes == size]) for size in np.unique(self.sizes).tolist()]

"""A scale on which samples lie by rank and uses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scale(NamedTuple):
    """A sample lies at the level of its rank + (sign * uses - zero) / span.

    Attributes:
        levels: of `UNSCORED`, then of each rank from 0 to the highest that any sample has, rising.
        sign: 1 if uses speak for a sample, -1 if against it, 0 if they do not count.
        zero: the least sign * uses of any sample with a rank, so none is below its level.
        span: infinite if uses do not count.
    """

    levels: list[float]
    sign: int
    zero: int
    span: float

    def of(self, rank: int, uses: int) -> float:
        """Return where a sample lies."""
        return self.levels[rank + 1] + (uses * self.sign - self.zero) / self.span

    def of_all(self, ranks: np.ndarray, uses: np.ndarray) -> np.ndarray:
        """Return where samples lie, float64[k], to the bit as `of` does."""
        on_level: np.ndarray = np.array(self.levels)[ranks + 1]
        return on_level + (uses * self.sign - self.zero) / self.span

"""The least and the greatest of whole numbers that come and go."""

from __future__ import annotations

from typing import Self

import numpy as np


class Extremes:
    """Knows the ends of a multiset of whole numbers from 0 on.

    An end moves outwards when it is told to, and inwards when nothing is there any more: so a
    change costs O(1), and a move as many steps as it is long.

    Attributes:
        counts: how often each number is there; the owner keeps it up to date, within its length.
            The last one is spare, for what is -1.
        least: there is nothing below.
        greatest: there is nothing above.
    """

    def __init__(self) -> None:
        self.counts = [0]
        self.least, self.greatest = 0, -1

    @classmethod
    def of(cls, numbers: np.ndarray) -> Self:
        """Return the extremes of these, int64[k]."""
        extremes = cls()
        extremes.reach(0, numbers.max(initial=-1).item())
        found = np.bincount(numbers).tolist()
        extremes.counts[: len(found)] = found
        return extremes

    def reach(self, least: int, greatest: int) -> None:
        """Be ready for numbers between these."""
        self.least = min(self.least, least)
        self.greatest = max(self.greatest, greatest)
        self.make_room(greatest)

    def make_room(self, greatest: int) -> None:
        """Have counts up to this number."""
        if len(self.counts) < greatest + 2:
            self.counts[-1:-1] = [0] * (greatest + 2)

    def ends(self) -> tuple[int, int]:
        """Return the least and the greatest number; (0, 0) of none."""
        counts, least, greatest = self.counts, self.least, self.greatest
        while least <= greatest and not counts[least]:
            least += 1
        while least <= greatest and not counts[greatest]:
            greatest -= 1
        self.least, self.greatest = least, greatest
        return (least, greatest) if least <= greatest else (0, 0)

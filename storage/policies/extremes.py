"""The least and the greatest of whole numbers that come and go."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Extremes:
    """A multiset of whole numbers that knows its ends; a change costs O(log distinct) amortised."""

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._count: dict[int, int] = {}
        self._least: list[int] = []
        self._greatest: list[int] = []
        for value in values:
            self.add(value)

    def add(self, value: int) -> None:
        """Take a number in."""
        count = self._count.get(value, 0)
        self._count[value] = count + 1
        if not count:
            heapq.heappush(self._least, value)
            heapq.heappush(self._greatest, -value)

    def remove(self, value: int) -> None:
        """Take out one of a number that is there."""
        if self._count[value] == 1:
            del self._count[value]
        else:
            self._count[value] -= 1

    def ends(self) -> tuple[int, int]:
        """Return the least and the greatest number; (0, 0) of none."""
        if not self._count:
            return 0, 0
        while self._least[0] not in self._count:
            heapq.heappop(self._least)
        while -self._greatest[0] not in self._count:
            heapq.heappop(self._greatest)
        return self._least[0], -self._greatest[0]

"""The order in which samples leave by a priority that each use raises."""

from __future__ import annotations

import heapq
from array import array
from collections import deque

import numpy as np

Entry = tuple[float, int, int]  # priority, number, sample

_SPARE = 64


class RankHeap:
    """Hands out cached samples by rising priority, then by rising number.

    A sample has its number while it is cached, and another one after each use. An entry counts if
    it has the number that its sample has. One of a sample that was used since is put right when it
    comes up, so a use costs no work here. Entries that come in rising order need no heap.

    Args:
        priorities: float64[n]; while a sample is cached, its own never falls.
        numbers: int64[n], unique; 0 is of whoever is not cached.
    """

    def __init__(self, priorities: array[float], numbers: array[int]) -> None:
        self._priorities, self._numbers = priorities, numbers
        self._heap: list[Entry] = []
        self._rising: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._heap) + len(self._rising)

    def push(self, entry: Entry) -> None:
        """Take in an entry: of a sample that came in, or one that was handed out in vain."""
        if not self._rising or self._rising[-1] < entry:
            self._rising.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def pop(self) -> Entry:
        """Hand out the lowest entry.

        Its sample may have another entry alike if it left and came back.

        Raises:
            IndexError: nothing is cached that was not handed out.
        """
        heap, rising = self._heap, self._rising
        while True:
            if rising and (not heap or rising[0] < heap[0]):
                entry = rising.popleft()
            else:
                entry = heapq.heappop(heap)
            _, number, sample = entry
            now = self._numbers[sample]
            if now == number:
                return entry
            right = self._priorities[sample], now, sample
            if now and entry < right:  # a lower one is here since the sample came back
                heapq.heappush(heap, right)

    def tidy(self, count: int) -> None:
        """Let only entries stay that count, of that many samples, if most do not."""
        if len(self) > 2 * count + _SPARE:
            self.order_anew()

    def order_anew(self) -> None:
        """Take in whoever is cached, and nobody else."""
        cached = np.flatnonzero(np.frombuffer(self._numbers, np.int64)).tolist()
        self._heap = [(self._priorities[s], self._numbers[s], s) for s in cached]
        heapq.heapify(self._heap)
        self._rising.clear()

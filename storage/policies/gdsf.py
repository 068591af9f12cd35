"""Greedy dual size frequency."""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence

import numpy as np

from storage.policies.rank_heap import Entry, RankHeap
from storage.policy import Policy, Why
from storage.victim_queue import NOBODY

_PER_BYTE = 1e6  # libCacheSim's unit, so that priorities are rounded alike


class GDSF(Policy):
    """Keeps what is used most for what it costs.

    A sample has the priority L + uses / cost since it was used last or came in. The lowest leaves,
    of equal ones what was used least lately, and L rises to its priority, so uses count less the
    older they are (Cherkasova, Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency
    Caching Policy, HPL-98-69, 1998). A newcomer has one use; if it would be the lowest itself, it
    does not come in. L rises to its priority all the same, as in libCacheSim, else what was used
    twice could keep newcomers out for good.

    Uses of a sample that is not cached do not count; an overwritten one keeps those that it has.
    The charge that counts is the one with which it came in.

    Departures:
        Where charges differ, a newcomer that does not come in leaves the cache as it was. In
        libCacheSim, those with a priority below its own have left by then, all for nothing.
    """

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._offered = np.ones(samples)  # what samples were charged when they were offered last
        self._costs = np.ones(samples)
        self._uses = np.zeros(samples, np.int64)
        # One number at a time is read from an array; its view takes many at once.
        self._priorities = array("d", [0.0]) * samples
        self._numbers = array("q", [0]) * samples  # of the last use; 0: not cached
        self._priorities_view = np.frombuffer(self._priorities)
        self._numbers_view = np.frombuffer(self._numbers, np.int64)
        self._heap = RankHeap(self._priorities, self._numbers)
        self._clock = self._count = 0
        self._level = 0.0  # L
        self._next_level = 0.0  # what L is once that is in for which somebody left

    def weigh(self, samples: np.ndarray, costs: np.ndarray) -> None:
        """Note the charges; they count once the samples come in."""
        self._offered[samples] = np.maximum(costs, 1)

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Count and number the uses of who was there."""
        used = samples[hit]
        np.add.at(self._uses, used, 1)
        self._level = self._next_level
        self._rank(used)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield the lowest priority first, as long as the incoming one's is not lower."""
        claim = np.inf
        if incoming is not None:
            uses = max(1, self._uses.item(incoming))
            claim = uses * _PER_BYTE / self._offered.item(incoming) + self._next_level
        passed: list[Entry] = []
        try:
            while len(passed) < self._count:
                lowest = self._heap.pop()
                if passed and lowest == passed[-1]:
                    continue
                passed.append(lowest)
                if claim < lowest[0]:
                    self._level = self._next_level = claim
                    return
                yield lowest[2]
        finally:
            for entry in passed:
                self._heap.push(entry)

    def exchange(self, incoming: Sequence[int]) -> list[int]:
        """Compare each with the lowest."""
        heap, priorities, numbers = self._heap, self._priorities, self._numbers
        level, clock = self._next_level, self._clock
        costs = self._offered[incoming]
        left: list[int] = []
        for sample, gain in zip(incoming, (_PER_BYTE / costs).tolist(), strict=True):
            lowest, claim = heap.pop(), level + gain
            priority, _, victim = lowest
            if claim < priority:
                heap.push(lowest)
                left.append(NOBODY)
                level = claim
                continue
            left.append(victim)
            level = max(level, priority)
            clock += 1
            numbers[victim], numbers[sample], priorities[sample] = 0, clock, claim
            heap.push((claim, clock, sample))
        self._level, self._next_level, self._clock = level, level, clock
        newcomers, victims = np.array(incoming), np.array(left)
        has_entered = victims != NOBODY
        self._costs[newcomers[has_entered]] = costs[has_entered]
        self._uses[newcomers] = has_entered
        self._uses[victims[has_entered]] = 0  # also of who came in and left again
        return left

    def inserted(self, samples: np.ndarray) -> None:
        """Give samples the priority of one use, or of those that they have."""
        self._costs[samples] = self._offered[samples]
        self._uses[samples] = np.maximum(self._uses[samples], 1)
        self._rank(samples[:1])  # somebody may have left for the first one
        self._level = self._next_level
        self._rank(samples[1:])
        self._count += len(samples)
        columns = self._priorities_view[samples], self._numbers_view[samples], samples
        for entry in zip(*(column.tolist() for column in columns), strict=True):
            self._heap.push(entry)
        self._heap.tidy(self._count)

    def removed(self, samples: np.ndarray, why: Why) -> None:
        """Forget samples, but for the uses of an overwritten one."""
        self._numbers_view[samples] = 0
        self._count -= len(samples)
        if why != "overwritten":
            self._uses[samples] = 0
        if why == "evicted":
            self._level = self._next_level
            highest = self._priorities_view[samples].max(initial=self._level)
            self._next_level = float(highest)

    def columns(self) -> dict[str, np.ndarray]:
        """Priorities and what they are made of; the order follows from them."""
        return {
            "offered": self._offered,
            "costs": self._costs,
            "uses": self._uses,
            "priorities": self._priorities_view,
            "numbers": self._numbers_view,
            "clock": np.array(self._clock),
            "levels": np.array([self._level, self._next_level]),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take them back."""
        self._offered[:] = columns["offered"]
        self._costs[:] = columns["costs"]
        self._uses[:] = columns["uses"]
        self._priorities_view[:] = columns["priorities"]
        self._numbers_view[:] = columns["numbers"]
        self._clock = int(columns["clock"])
        self._level, self._next_level = columns["levels"].tolist()
        self._count = int(np.count_nonzero(self._numbers_view))
        self._heap.order_anew()

    def _rank(self, samples: np.ndarray) -> None:
        """Number uses one by one; of a repeated sample the last one counts."""
        first, self._clock = self._clock + 1, self._clock + len(samples)
        self._numbers_view[samples] = np.arange(first, self._clock + 1)
        gains = self._uses[samples] * _PER_BYTE / self._costs[samples]
        self._priorities_view[samples] = gains + self._level

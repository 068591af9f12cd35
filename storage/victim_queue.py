"""The order in which samples leave: only its front, and only once a victim is asked for."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Generator, Sequence

import numpy as np

Entry = tuple[float, int]  # score, sample

NOBODY = -1
"""Stands where a sample would when there is none."""

_SHORTEST_FRONT = 64
_FEW_RESIDENTS, _FEW_SAMPLES = 256, 4096


class VictimQueue:
    """Names the cached samples by rising score, then by rising number.

    It keeps a front: the lowest of them, sorted, up to a border. What comes in or gets another
    score above the border costs nothing; what comes to lie below joins a small heap. When both are
    used up, a partition cuts off the next front, 1/8 of all, so a victim costs 8 of its steps,
    amortised. A queue that nobody has asked yet holds nothing.

    An entry holds the score that its sample had. It counts while the sample is cached and has that
    score; two equal ones, of a sample that left and came back, come up one after the other.

    Args:
        scores: float64[n], never NaN; the owner writes to it and then calls `put`.
        cached: bool[n]; the owner calls `put` after an arrival, nothing after a departure.
    """

    def __init__(self, scores: np.ndarray, cached: np.ndarray) -> None:
        self._scores, self._cached = scores, cached
        self._score_of, self._is_cached = scores.data, cached.data  # of one sample
        self.clear()

    def __len__(self) -> int:
        return len(self._front) - self._next + len(self._heap)

    def clear(self) -> None:
        """Forget the front; the next call of `victims` finds it anew."""
        # One number at a time is read from these; a NumPy array is slow at that.
        self._front, self._front_scores = array("q"), array("d")
        self._next = 0  # the place in the front of the first that was not named yet
        self._heap: list[Entry] = []
        self._border: Entry | None = None  # all cached samples up to it have an entry
        self._share = 0  # the length of a front; the heap grows no longer

    def put(self, samples: np.ndarray) -> None:
        """Samples, int64[k], came in, or their scores changed."""
        border = self._border
        if border is None:
            return
        if len(samples) == 1:
            sample = samples.item()
            if self._is_cached[sample]:
                self.push(sample)
            return
        scores = self._scores[samples]
        low = self._cached[samples] & (scores <= border[0])
        if np.count_nonzero(low):
            entries = zip(scores[low].tolist(), samples[low].tolist(), strict=True)
            self._join([entry for entry in entries if entry <= border])

    def victims(self) -> Generator[int, None, None]:
        """Yield the cached samples in order; those still cached at the end are named again."""
        passed: list[int] = []
        score_of, is_cached, last = self._score_of, self._is_cached, NOBODY
        try:
            while True:
                at = self._next
                if at < len(self._front):
                    score, sample = self._front_scores[at], self._front[at]
                    if self._heap and self._heap[0] < (score, sample):
                        score, sample = heapq.heappop(self._heap)
                    else:
                        self._next = at + 1
                elif self._heap:
                    score, sample = heapq.heappop(self._heap)
                elif self._advance(len(passed)):
                    continue
                else:
                    return
                if sample != last and is_cached[sample] and score_of[sample] == score:
                    last = sample
                    passed.append(sample)
                    yield sample
        finally:
            self._join([(score_of[sample], sample) for sample in passed if is_cached[sample]])

    def exchange(self, incoming: Sequence[int], claims: Sequence[float] | None = None) -> list[int]:
        """Let samples come in one by one, each for the first in order.

        Args:
            incoming: samples that are not cached, each once; at least one other is.
            claims: for each, above which score its victim must not lie, nor on it; None: it comes
                in whoever has to leave.

        Returns:
            For each its victim, which may be one that came in just before; `NOBODY` when its claim
            was too low.
        """
        if claims is None:
            claims = [math.inf] * len(incoming)
        if len(self._cached) <= _FEW_SAMPLES:
            residents = self._cached.nonzero()[0]
            if len(residents) <= _FEW_RESIDENTS:
                return self._exchange_few(residents, incoming, claims)
        left: list[int] = []
        is_cached, score_of, bar = self._is_cached, self._score_of, math.nan
        victim = NOBODY  # the first in order, as long as it is out of the queue
        for sample, claim in zip(incoming, claims, strict=True):
            if victim == NOBODY:
                victim = self.pop()
                bar = score_of[victim]
            if claim > bar:
                is_cached[victim] = False
                is_cached[sample] = True
                self.push(sample)
                left.append(victim)
                victim = NOBODY
            else:
                left.append(NOBODY)
        if victim != NOBODY:
            self.push(victim)
        return left

    def _exchange_few(
        self, residents: np.ndarray, incoming: Sequence[int], claims: Sequence[float]
    ) -> list[int]:
        """Do the same by sorting all residents, which takes less than keeping a front of few."""
        self.clear()
        scores = self._scores[residents]
        rows = scores.argsort(kind="stable")[: len(incoming)]  # no more can leave
        heap = list(zip(scores[rows].tolist(), residents[rows].tolist(), strict=True))
        left: list[int] = []
        is_cached, score_of = self._is_cached, self._score_of
        for sample, claim in zip(incoming, claims, strict=True):
            low, victim = heap[0]
            if claim > low:
                heapq.heapreplace(heap, (score_of[sample], sample))
                is_cached[victim] = False
                is_cached[sample] = True
                left.append(victim)
            else:
                left.append(NOBODY)
        return left

    def pop(self) -> int:
        """Return the first in order, which its owner takes out of the cache now.

        Raises:
            IndexError: nothing is cached.
        """
        score_of, is_cached, heap = self._score_of, self._is_cached, self._heap
        while True:
            at = self._next
            if at < len(self._front):
                entry = self._front_scores[at], self._front[at]
                if heap and heap[0] < entry:
                    entry = heapq.heappop(heap)
                else:
                    self._next = at + 1
            elif heap:
                entry = heapq.heappop(heap)
            elif self._advance(0):
                continue
            else:
                raise IndexError("nothing is cached")
            score, sample = entry
            if is_cached[sample] and score_of[sample] == score:
                return sample

    def push(self, sample: int) -> None:
        """One cached sample came in, or its score changed."""
        border = self._border
        if border is not None:
            entry = (self._score_of[sample], sample)
            if entry <= border:
                if len(self._heap) < self._share:
                    heapq.heappush(self._heap, entry)
                else:
                    self.clear()

    def _join(self, entries: list[Entry]) -> None:
        """Put entries below the border into the heap, unless a new front is the cheaper way."""
        if len(self._heap) + len(entries) > self._share:
            self.clear()
            return
        for entry in entries:
            heapq.heappush(self._heap, entry)

    def _advance(self, passed: int) -> bool:
        """Cut the next front off what is above the border; False when nothing is.

        A front is no shorter than what was passed so far, so passing all takes few fronts.
        """
        residents = np.flatnonzero(self._cached)
        # Few residents of many samples are found by a look at all, so a front pays for that too.
        self._share = max(_SHORTEST_FRONT, len(residents) // 8, len(self._cached) // 1024)
        scores = self._scores[residents]
        if passed and self._border is not None:
            score, sample = self._border
            above = (scores > score) | ((scores == score) & (residents > sample))
            residents, scores = residents[above], scores[above]
        if not len(residents):
            return False
        rows = _lowest(scores, max(self._share, passed))
        residents, scores = residents[rows], scores[rows]
        self._front, self._next = array("q", residents.tobytes()), 0
        self._front_scores = array("d", scores.tobytes())
        self._border = (scores.item(-1), residents.item(-1))
        return True


def _lowest(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the `count` lowest scores, or of all, sorted; ties by row."""
    if count >= len(scores):
        return _sorted(scores)
    border = np.partition(scores, count - 1)[count - 1]
    below = np.flatnonzero(scores < border)
    at_border = np.flatnonzero(scores == border)[: count - len(below)]
    return np.concatenate((below[_sorted(scores[below])], at_border))


def _sorted(scores: np.ndarray) -> np.ndarray:
    """Return the rows by score, ties by row; where there are none, a faster sort will do."""
    rows = np.argsort(scores)
    ranked = scores[rows]
    if np.count_nonzero(ranked[1:] == ranked[:-1]):
        return np.argsort(scores, kind="stable")
    return rows

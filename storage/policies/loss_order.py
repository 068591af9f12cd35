"""The order in which samples leave by loss rank and uses, on a scale that shifts."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from heapq import heappop, heappush, heapreplace

import numpy as np

from storage.policies.ranks import UNSCORED
from storage.policies.scale import Scale
from storage.victim_queue import NOBODY

# A key holds the signed uses above the number of the sample.
_USES, _SAMPLE = 32, 2**32 - 1

_LEAST_ROOM = 512
_FEW_RESIDENTS, _FEW_SAMPLES = 256, 4096


class LossOrder:
    """Names the cached samples as they lie on a scale, then by signed uses, then by number.

    When one sample is trained, the scale may shift and all samples with it. But among those of one
    rank, uses alone decide, always. So there is one lazy heap per rank, and one of their heads,
    which alone is made anew when the scale shifts; as far as it goes, for no sample with a rank is
    below its level. Ranks are below the batch size, so that costs O(1) per access of a batch; a
    use, an arrival or a victim costs O(log residents) amortised. Nothing is kept before somebody
    has to leave.

    A key holds the uses that its sample had. A use that lets a sample rise costs no work: a key
    that is too low is put right when it comes up.

    Args:
        ranks: int64[n]; the owner calls `put` after a change.
        uses: int64[n]; the owner calls `put` after a change, if the sign is -1.
        cached: bool[n]; the owner calls `put` after an arrival, nothing after a departure.
        sign: of the uses, as on the scale.
    """

    def __init__(self, ranks: np.ndarray, uses: np.ndarray, cached: np.ndarray, sign: int) -> None:
        self._ranks, self._uses, self._cached, self._sign = ranks, uses, cached, sign
        # One number at a time is read from these; a NumPy array is slow at that.
        self._rank_of, self._uses_of = ranks.data, uses.data
        self._is_cached = cached.data
        self._scale = Scale([0.0], 0, 0, math.inf)
        self._heaps: list[list[int]] = []  # of keys: of `UNSCORED`, of rank 0, ...
        self._heads: list[tuple[float, int, int]] = []  # where it lies, key, place of the heap
        self._opened = 0  # how many of the heaps have had their heads there
        self._room = 0  # how many keys may come until all is made anew

    def __len__(self) -> int:
        return len(self._heads) + sum(map(len, self._heaps))

    def clear(self) -> None:
        """Forget the order; whoever has to leave next finds it anew."""
        self._room = 0

    def shift(self, scale: Scale) -> None:
        """Let samples lie on another scale from now on."""
        self._scale = scale
        self._heads.clear()
        self._opened = 0

    def put(self, samples: np.ndarray) -> None:
        """Samples, int64[k], came in, or their ranks changed, or they fell."""
        if self._room > 0:
            self._add(samples[self._cached[samples]].tolist())

    def victims(self) -> Generator[int, None, None]:
        """Yield the cached samples in order; those still cached at the end are named again."""
        self._prepare()
        passed = [NOBODY]
        try:
            while (sample := self._pop()) != NOBODY:
                if sample != passed[-1]:  # or it has two keys alike, for it left and came back
                    passed.append(sample)
                    yield sample
        finally:
            self.put(np.array(passed[1:], np.int64))

    def exchange(self, incoming: Sequence[int], claims: Scale) -> list[int]:
        """Let samples come in one by one, each for the first in order.

        Args:
            incoming: samples that are not cached, each once; at least one other is.
            claims: a scale on which who comes in lies above its victim.

        Returns:
            For each its victim, which may be one that came in just before, or `NOBODY`.
        """
        if len(self._cached) <= _FEW_SAMPLES:
            residents = self._cached.nonzero()[0]
            if len(residents) <= _FEW_RESIDENTS:
                return self._exchange_few(residents, incoming, claims)
        self._prepare()
        left: list[int] = []
        rank_of, uses_of, is_cached = self._rank_of, self._uses_of, self._is_cached
        levels, sign, zero, span = claims
        victim, bar = NOBODY, math.nan  # the first in order, as long as it is out of its heap
        for sample in incoming:
            if victim == NOBODY:
                victim = self._pop()
                bar = claims.of(rank_of[victim], uses_of[victim])
            if levels[rank_of[sample] + 1] + (uses_of[sample] * sign - zero) / span > bar:
                is_cached[victim] = False
                is_cached[sample] = True
                self._add((sample,))
                left.append(victim)
                victim = NOBODY
            else:
                left.append(NOBODY)
        if victim != NOBODY:
            self._add((victim,))
        return left

    def _exchange_few(
        self, residents: np.ndarray, incoming: Sequence[int], claims: Scale
    ) -> list[int]:
        """Do the same by sorting all residents, which takes less than keeping heaps of few."""
        self.clear()
        keys = self._keys(residents)
        scores = self._scale.of_all(self._ranks[residents], self._uses[residents])
        rows = np.lexsort((keys, scores))[: len(incoming)]  # no more can leave
        heap = list(zip(scores[rows].tolist(), keys[rows].tolist(), strict=True))
        left: list[int] = []
        rank_of, uses_of, is_cached = self._rank_of, self._uses_of, self._is_cached
        levels, sign, zero, span = claims
        other = None if claims is self._scale else self._scale
        victim, bar = NOBODY, math.nan
        for sample in incoming:
            rank, uses = rank_of[sample], uses_of[sample]
            if victim == NOBODY:
                bar, key = heap[0]
                victim = key & _SAMPLE
                if other:
                    bar = claims.of(rank_of[victim], uses_of[victim])
            claim = levels[rank + 1] + (uses * sign - zero) / span
            if claim > bar:
                lies_at = other.of(rank, uses) if other else claim
                heapreplace(heap, (lies_at, (uses * self._sign << _USES) + sample))
                is_cached[victim] = False
                is_cached[sample] = True
                left.append(victim)
                victim = NOBODY
            else:
                left.append(NOBODY)
        return left

    def _prepare(self) -> None:
        """Make the heaps, unless they are there; what is sorted is a heap."""
        if self._room > 0:
            return
        cached = self._cached.nonzero()[0]
        keys, ranks = self._keys(cached), self._ranks[cached]
        rows = np.lexsort((keys, ranks))
        ends = np.cumsum(np.bincount(ranks - UNSCORED))
        self._heaps = [heap.tolist() for heap in np.split(keys[rows], ends[:-1])]
        self._room = 2 * len(cached) + _LEAST_ROOM
        self.shift(self._scale)

    def _keys(self, samples: np.ndarray) -> np.ndarray:
        keys: np.ndarray = (self._uses[samples] * self._sign << _USES) + samples
        return keys

    def _add(self, samples: Sequence[int]) -> None:
        """Add the keys of cached samples, and heads where they are the first of their rank."""
        self._room -= len(samples)
        rank_of, uses_of, sign = self._rank_of, self._uses_of, self._sign
        heaps, opened = self._heaps, self._opened
        for sample in samples:
            place, key = rank_of[sample] + 1, (uses_of[sample] * sign << _USES) + sample
            while place >= len(heaps):
                heaps.append([])
            heap = heaps[place]
            heappush(heap, key)
            if place < opened and heap[0] == key:
                self._add_head(place)

    def _pop(self) -> int:
        """Take the first cached sample out of the order; `NOBODY` when there is none."""
        heads, heaps = self._heads, self._heaps
        levels = self._scale.levels
        last = min(len(levels), len(heaps))
        while True:
            place = self._opened
            if place < last:
                if not place or not heads or heads[0][0] >= levels[place]:
                    self._opened += 1
                    self._add_head(place)
                    continue
            elif not heads:
                return NOBODY
            _, key, place = heappop(heads)
            heap = heaps[place]
            if not heap or heap[0] != key:  # another head came before it
                continue
            heappop(heap)
            self._add_head(place)
            sample = key & _SAMPLE
            if self._is_cached[sample] and self._rank_of[sample] == place - 1:
                right = (self._uses_of[sample] * self._sign << _USES) + sample
                if key == right:
                    return sample
                if key < right:
                    self._add((sample,))

    def _add_head(self, place: int) -> None:
        """Let the first of a heap, if there is one, compete as its key has it."""
        heap = self._heaps[place]
        if heap:
            levels, _, zero, span = self._scale
            lies_at = levels[place] + ((heap[0] >> _USES) - zero) / span
            heappush(self._heads, (lies_at, heap[0], place))

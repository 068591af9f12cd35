"""An order of samples by loss rank and uses that stays right when every score shifts at once."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Generator

import numpy as np

from storage.policies.ranks import UNSCORED, loss_ranks
from storage.policy import Policy, Why

Head = tuple[float, int, int, int]  # score, signed uses, sample, rank


class LossOrder(Policy):
    """Keeps a loss rank and a number of uses of every sample, and orders the cached ones by them.

    A score may depend on all samples trained so far, so that all scores shift when one sample is
    trained. Only its weights on rank and uses shift, though: among samples of one rank, uses alone
    decide, always. So there is one lazy heap per rank, and one of their heads, which alone is made
    anew when scores shift, once a batch at most. Ranks are below the batch size, so that costs O(1)
    per access of a batch; a use, an arrival or a victim costs O(log residents) amortised.

    Ranks and uses of samples that left are kept. One that is incoming must outrank its victims.
    A use is an access, once each; the rank is that of the last training step, and of a sample that
    was in it more than once the last position counts. A loss that is no finite number is counted,
    and its sample is unscored again.

    Attributes:
        ranks: int64[n], `UNSCORED` before the first training step.
        uses: int64[n].
        uses_sign: 1 when a sample of fewer uses leaves before another of its rank, -1 when it
            leaves after it, 0 when uses do not matter. Ties go to the lowest number.
    """

    uses_sign = 1

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.ranks = np.full(samples, UNSCORED, np.int64)
        self.uses = np.zeros(samples, np.int64)
        self._cached = np.zeros(samples, dtype=bool)
        self._count = 0
        self._queues: dict[int, list[tuple[int, int]]] = {}  # rank -> heap of (signed uses, sample)
        self._entries = 0
        self._heads: list[Head] | None = None

    @abstractmethod
    def score(self, rank: int, uses: int) -> float:
        """Return what orders victims; within a rank it never contradicts `uses_sign`."""

    @abstractmethod
    def outranks(self, incoming: int, victim: int) -> bool:
        """Whether a sample that is not cached may take the place of a cached one."""

    def changed(
        self, samples: np.ndarray, ranks_before: np.ndarray, uses_before: np.ndarray
    ) -> None:
        """Ranks or uses of samples, each once, int64[k], are no longer what they were."""

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        """Count the uses; a miss is one too."""
        distinct, times = np.unique(samples, return_counts=True)
        self.uses[distinct] += times
        self.changed(distinct, self.ranks[distinct], self.uses[distinct] - times)
        if self.uses_sign < 0:  # only a score that falls must be put right at once
            self._queue(distinct[self._cached[distinct]])

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Rank the losses of a training step."""
        ranks = loss_ranks(losses)
        self.quarantined += int(np.count_nonzero(ranks == UNSCORED))
        distinct = np.unique(samples)
        ranks_before = self.ranks[distinct]
        self.ranks[samples] = ranks
        self.changed(distinct, ranks_before, self.uses[distinct])
        self._queue(distinct[self._cached[distinct]])

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        """Yield cached samples by rising score, as far as the incoming one outranks them."""
        passed: set[int] = set()
        heads = self._all_heads()
        try:
            while heads:
                entry = heapq.heappop(heads)
                *_, sample, rank = entry
                now = self._head(rank, passed)
                if now != entry:
                    _push(heads, now)
                    continue
                if incoming not in {None, sample} and not self.outranks(incoming, sample):
                    _push(heads, entry)
                    return
                passed.add(sample)
                _push(heads, self._head(rank, passed))
                yield sample
        finally:
            self._queue(np.array([s for s in passed if self._cached[s]], np.int64))

    def inserted(self, samples: np.ndarray) -> None:
        """Put samples into the order with the rank and the uses that they have."""
        self._cached[samples] = True
        self._count += len(samples)
        self._queue(samples)

    def removed(self, samples: np.ndarray, why: Why) -> None:  # noqa: ARG002
        """Take samples out of the order; their ranks and uses stay."""
        self._count -= int(np.count_nonzero(self._cached[samples]))
        self._cached[samples] = False

    def columns(self) -> dict[str, np.ndarray]:
        """Ranks, uses and who is cached; the order follows from them."""
        return {
            "ranks": self.ranks,
            "uses": self.uses,
            "cached": self._cached,
            "quarantined": np.array(self.quarantined),
        }

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        """Take ranks and uses back and make the order anew."""
        self.ranks = columns["ranks"].copy()
        self.uses = columns["uses"].copy()
        self._cached = columns["cached"].copy()
        self.quarantined = int(columns["quarantined"])
        self._count = int(np.count_nonzero(self._cached))
        self._order_anew()

    def _queue(self, samples: np.ndarray) -> None:
        """Put cached samples into the heaps of their ranks, and before the heads."""
        if self._entries + len(samples) > 4 * self._count + 1024:
            self._order_anew()  # all cached samples are in it, these too
            return
        ranks, uses = self.ranks[samples].tolist(), self.uses[samples].tolist()
        for rank, used, sample in zip(ranks, uses, samples.tolist(), strict=True):
            entry = (self.uses_sign * used, sample)
            queue = self._queues.setdefault(rank, [])
            heapq.heappush(queue, entry)
            if self._heads is not None and queue[0] == entry:
                heapq.heappush(self._heads, (self.score(rank, used), *entry, rank))
        self._entries += len(samples)
        if self._heads is not None and len(self._heads) > 2 * len(self._queues) + 64:
            self._heads = None

    def _shift(self) -> None:
        """All scores have shifted: which heads come first must be found anew."""
        self._heads = None

    def _order_anew(self) -> None:
        self._queues, self._entries, self._heads = {}, 0, None
        cached = np.flatnonzero(self._cached)
        signed = self.uses_sign * self.uses[cached]
        for rank, used, sample in zip(
            self.ranks[cached].tolist(), signed.tolist(), cached.tolist(), strict=True
        ):
            self._queues.setdefault(rank, []).append((used, sample))
        for queue in self._queues.values():
            heapq.heapify(queue)
        self._entries = len(cached)

    def _all_heads(self) -> list[Head]:
        """Return the heap of (score, signed uses, sample, rank) over the heads of all ranks.

        An entry may be out of date, but each rank has one that is not above its real head.
        """
        if self._heads is None:
            found = [self._head(rank, set()) for rank in list(self._queues)]
            self._heads = [head for head in found if head is not None]
            heapq.heapify(self._heads)
        return self._heads

    def _head(self, rank: int, passed: set[int]) -> Head | None:
        """Return the first cached sample of a rank that was not passed; drop what is stale."""
        queue = self._queues.get(rank, [])
        while queue:
            signed, sample = queue[0]
            right = self.uses_sign * int(self.uses[sample])
            if self._cached[sample] and self.ranks[sample] == rank and sample not in passed:
                if signed == right:
                    return self.score(rank, int(self.uses[sample])), signed, sample, rank
                if signed < right:
                    heapq.heapreplace(queue, (right, sample))
                    continue
            heapq.heappop(queue)
            self._entries -= 1
        self._queues.pop(rank, None)
        return None


def _push(heads: list[Head], head: Head | None) -> None:
    if head is not None:
        heapq.heappush(heads, head)

"""How many hits no policy can exceed, computed without running any."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappush, heappushpop

import numpy as np

from storage.space_prices import priced_hits
from storage.stays import Stays
from storage.trace import Stream


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven bound.

    Attributes:
        hits: no cache has more demand hits.
        is_exact: whether some schedule is known to have as many.
        method: how it was found, for tables.
    """

    hits: int
    is_exact: bool
    method: str


def hit_bound(stream: Stream, cost_bytes: np.ndarray, usable_bytes: int) -> Bound:
    """Bound the demand hits of any cache that starts empty and may decline what it is offered.

    A batch is read first, and each request for a resident is a hit; then any residents may leave,
    and any samples of the batch may come in. So hits are earned by stays (`storage.stays`), and a
    set of stays can be had if it fits at each boundary. A cache that samples are brought into
    ahead of requests may have more hits.

    With equal costs, and one request for each sample of a batch (or as many for each), the bound
    is the optimum. Otherwise it is the lower of two relaxations: prices of space
    (`storage.space_prices`), and a cache that may hold any samples, but no more than the cheapest
    that fit. What is proven for a larger cache holds for a smaller one too.

    Args:
        stream: the requests; the sizes in it are not looked at.
        cost_bytes: what each sample is charged, int64[n], >= 0.
        usable_bytes: what the residents may be charged in all, >= 0.
    """
    stays = Stays.of(stream, cost_bytes, usable_bytes)
    if not np.any(stays.load(stays.cost_bytes) > usable_bytes):
        return Bound(int(stays.hits.sum()), is_exact=True, method="all that is used again fits")
    costs = np.sort(cost_bytes[np.unique(stays.samples)])
    slots = int(np.searchsorted(np.cumsum(costs), usable_bytes, side="right"))
    counted = _counted_hits(stays, slots)
    if costs[0] == costs[-1] and np.ptp(stays.hits) == 0:
        return Bound(counted, is_exact=True, method="Belady with bypass")
    priced = priced_hits(stays, usable_bytes)
    if counted < priced:
        return Bound(counted, is_exact=False, method="relaxation: as many as the cheapest")
    return Bound(priced, is_exact=False, method="relaxation: prices of space")


def _counted_hits(stays: Stays, slots: int) -> int:
    """What stays can earn, at most, if no more than `slots` of them cross a boundary.

    A stay earns a first hit, or also a second, and so on. The second hits alone cannot be more
    than the stays that fit when only those with two hits or more are wanted, and so for each; the
    sum of these optima bounds the optimum of the sum. It is exact when all stays have as many.
    """
    levels = np.unique(stays.hits)
    granted = [_granted(stays, stays.hits >= level, slots) for level in levels]
    return int(np.dot(np.diff(levels, prepend=0), granted))


def _granted(stays: Stays, wanted: np.ndarray, slots: int) -> int:
    """The most of the wanted stays, bool[k], of which no more than `slots` cross a boundary.

    Belady's rule with bypass: of too many, the one that ends last goes, even if it has just begun.
    A schedule that keeps it and lets another go can swap the two, as the other leaves earlier
    (Faigle and Nawijn, Discrete Applied Mathematics 58, 1995).
    """
    free = slots
    granted = [0] * stays.batches  # by the batch where they end
    latest: list[int] = []  # a heap of -end; those that have ended come last and are never taken
    batch = 0
    for start, end in zip(stays.starts[wanted].tolist(), stays.ends[wanted].tolist(), strict=True):
        while batch < start:
            batch += 1
            free += granted[batch]
        granted[end] += 1
        if free:
            free -= 1
            heappush(latest, -end)
        else:
            granted[-heappushpop(latest, -end)] -= 1
    return sum(granted)

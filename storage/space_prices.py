"""A bound on hits from prices of space, for samples of mixed costs and repeats in a batch."""

from __future__ import annotations

import numpy as np

from storage.stays import Stays

_PACE = 5
"""How much faster prices move than grants; with 7, they may not settle."""

_REST = 0.3
"""What is added to a price, in even prices, so that one which came down to zero can move."""


def priced_hits(stays: Stays, usable_bytes: int) -> int:
    """What stays can earn within `usable_bytes` at every boundary, at most.

    Let a byte have a price >= 0 at each boundary. The granted stays take no more than all bytes,
    so what they earn is at most the price of all bytes, plus, for each stay that earns more than
    its own bytes cost, the difference. This holds for any prices (weak duality of linear
    programming). One even price gives the bound of space times time, PFOO-L (Berger, Beckmann and
    Harchol-Balter, Practical bounds on optimal caching with variable object sizes, SIGMETRICS
    2018). Good prices are sought in floats; what they prove is computed in integers, so that no
    rounding can lower it.

    Args:
        stays: they do not all fit.
        usable_bytes: > 0.
    """
    total = int(stays.hits.sum())
    sums = _good_prices(stays, np.maximum(1, stays.cost_bytes) / usable_bytes)
    if sums[-1] >= total:
        return total
    # Prices are counted in parts of a hit, the smallest with which all sums stay below 2^63. Sums
    # that never fall do not after rounding either, and so are sums of other prices >= 0.
    unit = 2**62 // (total + 1)
    tolls = np.floor(sums * (unit / usable_bytes)).astype(np.int64)
    gains = unit * stays.hits - stays.cost_bytes * (tolls[stays.ends] - tolls[stays.starts])
    proven = usable_bytes * int(tolls[-1]) + int(np.maximum(gains, 0).sum())
    return min(total, proven // unit)


def _good_prices(stays: Stays, shares: np.ndarray) -> np.ndarray:
    """The best found sums of prices before each batch, float64[batches]; all bytes together are 1.

    A primal-dual method (Pock and Chambolle, Diagonal preconditioning for first order primal-dual
    algorithms, ICCV 2011): each stay is granted more while it earns more than it costs, prices
    rise where too much is granted, and both move in proportion to prices. A stay that is far too
    dear at first weighs little, so that it slows nothing down. The bound is mostly within 0.5 % of
    the best that prices can prove after 100 steps, and within 0.1 % after 400; where all stays are
    alike it takes longer.

    Args:
        stays: what is to be granted.
        shares: the part of all bytes that each takes, > 0, float64[k].
    """
    hits, least = stays.hits, np.inf
    areas = shares * (stays.ends - stays.starts)
    even = _even_price(hits, areas, stays.batches - 1)
    prices = np.full(stays.batches - 1, even)
    granted = np.zeros(len(hits))
    weights = np.minimum(1, hits / (even * areas))
    wanted = np.maximum(1, stays.load(weights * shares)[:-1])
    dearest = (hits / shares).max()  # at this price nothing is granted
    for _ in range(max(100, min(400, 40_000_000 // len(hits)))):
        sums = np.concatenate(([0.0], np.cumsum(prices)))
        tolls = shares * (sums[stays.ends] - sums[stays.starts])
        value = sums[-1] + np.maximum(hits - tolls, 0).sum()
        if value < least:
            best, least = sums, value
        before = granted
        pace = _PACE * (tolls + _REST * even * areas)
        granted = np.clip(before + weights * (hits - tolls) / pace, 0, 1)
        excess = stays.load((2 * granted - before) * shares)[:-1] - 1
        moved = prices + _PACE * (prices + _REST * even) * excess / wanted
        prices = np.clip(moved, 0, dearest)
    return best


def _even_price(hits: np.ndarray, areas: np.ndarray, boundaries: int) -> float:
    """The best price if all boundaries have the same, or that of the last stay if all fit.

    `areas` is what the stays take of all space at all boundaries, float64[k].
    """
    order = np.argsort(areas / hits)
    fitting = int(np.searchsorted(np.cumsum(areas[order]), boundaries))
    last = order[min(fitting, len(order) - 1)]
    return float(hits[last] / areas[last])

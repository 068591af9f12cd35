"""The share of hits that a participation can expect, from what is cached and how samples come.

The cache is taken as it stands at the start: what the participation itself brings in and drives
out depends on the policy.
"""

from __future__ import annotations

import numpy as np

# How many times as often "unbiased" takes a cached sample as a missing one, unless told otherwise.
PREFERENCE = 4.0


def expected_hit_share(
    sampler: str,
    resident_share: np.ndarray,
    samples: np.ndarray,
    accesses: int,
    batch_size: int,
) -> np.ndarray:
    """Return the expected share of hits in a participation's accesses, float64 [k], 0 to 1.

    Samplers that do not look at the cache hit in proportion to what is in it, and so is an unknown
    one taken to. `clients.samplers` has the procedures; their arguments are at their defaults.

    Args:
        sampler: its name.
        resident_share: the share of its samples that each client holds, float64 [k], 0 to 1.
        samples: n of each, [k], at least 1.
        accesses: q.
        batch_size: B.
    """
    if sampler == "pads":
        return _pads(resident_share, samples, accesses, batch_size)
    if sampler == "unbiased":
        cached = PREFERENCE * resident_share
        return cached / (cached + (1.0 - resident_share))
    return resident_share


def _pads(
    resident_share: np.ndarray, samples: np.ndarray, accesses: int, batch_size: int
) -> np.ndarray:
    """Return the share of hits of passes of n draws each, and of one of what is left to do.

    The server does not know losses, so all samples count as equally likely. h, how many draws of a
    pass are of cached samples, is binomial; the mean is taken over h a deviation below and above
    what is expected, which is exact for a polynomial of third degree and smooths the jumps of the
    repetition factor. So it is 0.006 off on average, and where the likeliest samples are the cached
    ones 0.02 too low.
    """
    n = samples.astype(np.float64)
    passes = np.floor(accesses / n)
    left = accesses - passes * n
    cached_draws = n * resident_share
    deviation = np.sqrt(cached_draws * (1.0 - resident_share))
    hits = np.zeros_like(cached_draws)
    for drawn in (cached_draws - deviation, cached_draws + deviation):
        h = np.clip(drawn, 0.0, n)
        hits += passes * _hits_of_pass(n, h, batch_size) + _hits_of_pass(left, h, batch_size)
    share: np.ndarray = np.minimum(hits / (2 * accesses), 1.0)
    return share


def _hits_of_pass(need: np.ndarray, cached_draws: np.ndarray, batch_size: int) -> np.ndarray:
    """Return min(r h, need), h draws of cached samples being taken r times each.

    r is m = need // h + 1 where that is at most 3, and then r h > need, so 3 gives the same. It is
    never less beyond: m / 2 rounded up, which is need // 2h + 1, where h > 0.6 B, else int(0.2 B).
    """
    few, many = batch_size // 5, np.floor(need / np.maximum(2.0 * cached_draws, 1e-9)) + 1.0
    factor = np.maximum(3.0, few + (cached_draws > 0.6 * batch_size) * (many - few))
    hits: np.ndarray = np.minimum(factor * cached_draws, need)
    return hits

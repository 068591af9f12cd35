"""Unbiased sampling: cached samples more often, with weights that make up for it."""

from __future__ import annotations

import numpy as np

from clients.samplers.sampler import Sampler

# Beyond this a missing sample would as good as never be trained.
LARGEST = 1e6


class Unbiased(Sampler):
    """Prefers cached samples and weighs each access by its inverse propensity.

    Sample i has the propensity p_i, `preference` for a cached sample against 1 for a missing one,
    so that they sum to 1; it comes N_i times in q accesses, with E[N_i] = q p_i exactly. Counts
    vary little: N_i is q p_i rounded down or up, by systematic sampling over a random permutation.
    They are shuffled, so each access is of sample i with probability p_i, and has the weight
    1 / (n p_i). Its weighted gradient then has the expectation sum of p_i g_i / (n p_i), the mean
    of g_i over all n samples. So the gradient of each step is an unbiased estimate of the
    gradient of the mean loss, over the draw of the participation and at given model weights; where
    the policy serves a stand-in for what was ordered it is not.

    `preference` trades variance for I/O. The second moment of a weighted gradient is the sum of
    g_i^2 / (n^2 p_i), its mean cost the sum of p_i c_i; where gradients are of one size their
    product is least for p_i ~ 1 / sqrt(c_i). So 4 is right where a miss costs 16 times a hit, 1 is
    no preference. The larger it is the fewer the misses, and the rarer and heavier each.

    Source: inverse propensities, Horvitz and Thompson (1952), as in importance sampling; systematic
    sampling with unequal probabilities, Madow (1949); allocation by cost, Neyman (1934).

    Args:
        samples: n, how many samples the client has.
        batch_size: B.
        preference: how many times as often a cached sample comes as a missing one, 1e-6 to 1e6.

    Raises:
        ValueError: no such preference.
    """

    uses_resident = True

    def __init__(self, samples: int, batch_size: int, preference: float = 4.0) -> None:
        super().__init__(samples, batch_size)
        if not 1 / LARGEST <= preference <= LARGEST:
            raise ValueError(f"preference is a number from 1e-6 to 1e6, got {preference}")
        self._preference = preference
        self._weights = np.ones(samples)

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        """Return the accesses, shuffled."""
        likelihood = np.where(resident, self._preference, 1.0)
        self._weights = likelihood.mean() / likelihood
        shuffled = rng.permutation(self.samples)
        counts = accesses / (self.samples * self._weights[shuffled])
        return rng.permutation(shuffled[systematic(counts, accesses, rng)])

    def weights(self, order: np.ndarray) -> np.ndarray:
        """Return 1 / (n p) of each access, with the propensities of the last order."""
        of_access: np.ndarray = self._weights[order]
        return of_access


def systematic(counts: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return positions, ascending, int64 [draws]: each so often as `counts` says, or one more.

    Points one apart, from a random start within the first, fall on the counts laid end to end.

    Args:
        counts: the expected counts, float64; they sum to `draws`.
        draws: how many points.
        rng: draws the start.
    """
    points = rng.random() + np.arange(draws)
    # What rounding leaves beyond the end belongs to the last.
    return np.minimum(np.searchsorted(np.cumsum(counts), points, "right"), len(counts) - 1)

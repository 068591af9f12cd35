"""How many samples a participation's weights are worth."""

from __future__ import annotations

import numpy as np


def effective_samples(order: np.ndarray, weights: np.ndarray | None) -> float:
    """Return how many distinct samples, all weighing alike, these accesses are worth.

    (sum of W_s)^2 / sum of W_s^2, with W_s the sum of the weights of all accesses of sample s. So k
    samples used alike count k, a sample used often counts for little more than once, and accesses
    that weigh nothing count 0.

    Args:
        order: int64 [m], the samples accessed.
        weights: float [m], not negative, or None where all are 1.

    Source: the effective sample size of weights, Kish, Survey Sampling (1965).
    """
    of_sample = np.bincount(order, weights).astype(np.float64)
    largest = of_sample.max(initial=0.0)
    if not largest:
        return 0.0
    of_sample /= largest
    return float(of_sample.sum() ** 2 / np.square(of_sample).sum())

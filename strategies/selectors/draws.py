"""Choosing some of many, by rank or by weight, in time linear in the many."""

from __future__ import annotations

import numpy as np


def top(scores: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return positions of the `count` highest scores; equal ones at the border are drawn.

    Without the draw a fleet in which all are equal would always be cut at the same clients.
    """
    if count >= len(scores):
        return np.arange(len(scores))
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    border = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > border)
    tied = np.flatnonzero(scores == border)
    return np.concatenate([above, rng.choice(tied, count - len(above), replace=False)])


def draw(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw positions without replacement, each next one in proportion to the weights left.

    The `count` largest of log(weight) + Gumbel noise are such a draw (Efraimidis and Spirakis,
    Information Processing Letters 97, 2006, in its logarithmic form). Weight 0 comes last, and
    evenly; so all weights zero is a uniform draw. What is not a finite positive number weighs 0.
    """
    good = np.isfinite(weights) & (weights > 0)
    keys = np.full(len(weights), -np.inf)
    np.log(weights, out=keys, where=good)
    return top(keys + rng.gumbel(size=len(weights)), count, rng)

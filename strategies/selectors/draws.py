"""Choosing some of many, by rank or by weight, in time linear in the many."""

from __future__ import annotations

import numpy as np


def top(scores: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return positions of the `count` highest scores; equal ones at the border are drawn.

    Without the draw a fleet in which all are equal would always be cut at the same clients. NaN is
    lower than anything.
    """
    unknown = np.isnan(scores)
    if unknown.any():
        scores = np.where(unknown, -np.inf, scores)
    if count >= len(scores):
        return np.arange(len(scores))
    if count <= 0:
        return np.zeros(0, dtype=np.int64)
    border = np.partition(scores, len(scores) - count)[len(scores) - count]
    reach = np.flatnonzero(scores >= border)
    is_above = scores[reach] > border
    above, tied = reach[is_above], reach[~is_above]
    return np.concatenate([above, rng.choice(tied, count - len(above), replace=False)])


def draw(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw positions without replacement, each next one in proportion to the weights left.

    The `count` largest of weight / exponential noise are such a draw (Efraimidis and Spirakis,
    Information Processing Letters 97, 2006), in logarithms, which no weight overflows. Weight 0
    comes last, and evenly; so all weights zero is a uniform draw. What is not a finite positive
    number weighs 0.
    """
    keys: np.ndarray = np.fmax(weights, 0.0)
    keys[np.isinf(keys)] = 0.0
    with np.errstate(divide="ignore"):
        np.log(keys, out=keys)
        keys -= np.log(rng.standard_exponential(len(keys)))
    return top(keys, count, rng)

"""Importance of samples from their loss ranks: what policies and samplers share."""

from __future__ import annotations

import numpy as np

# The rank of a sample that has no loss yet, or whose last one was no finite number.
UNSCORED = -1


def loss_ranks(losses: np.ndarray) -> np.ndarray:
    """Return the rank of each loss in its batch, int64[k]: 0 is the lowest, ties by position.

    The rank counts, never the size of the loss. What is no finite number gets `UNSCORED`, and the
    others are ranked among themselves.

    Args:
        losses: float64[k].
    """
    ranks = np.empty(len(losses), np.int64)
    finite = np.isfinite(losses)
    rows = losses.argsort(kind="stable")
    if np.count_nonzero(finite) < len(rows):
        ranks[~finite] = UNSCORED
        rows = rows[finite[rows]]
    ranks[rows] = np.arange(len(rows))
    return ranks


def weights(ranks: np.ndarray) -> np.ndarray:
    """Return the importance w = ln(rank + 10), float64[k]; 1.0 of what is unscored.

    So a sample without a score ranks below every one that has one.
    Source: SHADE (FAST 2023), with the constants of FedCaSe's artifact.
    """
    found: np.ndarray = np.where(ranks == UNSCORED, 1.0, np.log(np.maximum(ranks, 0) + 10.0))
    return found


def normalised(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return (value - low) / (high - low), float64[k]; 0 for all where the range is zero."""
    if high <= low:
        return np.zeros(len(values))
    scaled: np.ndarray = (values - low) / (high - low)
    return scaled

"""Whether a device can hold what it is to train."""

from __future__ import annotations

import logging

import numpy as np

from strategies.fleet import Fleet

logger = logging.getLogger(__name__)

# Weights, their gradients, and momentum.
COPIES_OF_THE_MODEL = 3
NAMED = 5


def fits(fleet: Fleet, model_bytes: float, batch_size: int) -> np.ndarray:
    """Return which clients can hold the model and the smallest cache: bool [clients].

    They need memory for the model as it is trained, and for one batch of samples as they are
    cached. Who does not say what memory it has, or what its samples weigh, is taken to fit.

    Args:
        fleet: the table, with what the clients say of themselves.
        model_bytes: of the model.
        batch_size: B.
    """
    with np.errstate(all="ignore"):
        needed = COPIES_OF_THE_MODEL * model_bytes + batch_size * fleet.mean_cached_bytes
        too_small: np.ndarray = fleet.speeds.memory_bytes < needed
    return ~too_small


def say_who_does_not_fit(fleet: Fleet) -> None:
    """Log which clients are left out for want of memory, if any are."""
    left_out = np.flatnonzero(~fleet.fits)
    if len(left_out):
        some = ", ".join(map(str, left_out[:NAMED].tolist())) + ("..." * (len(left_out) > NAMED))
        logger.warning(
            "%d of %d clients cannot hold the model and a batch in memory and are left out: %s",
            len(left_out),
            len(fleet),
            some,
        )

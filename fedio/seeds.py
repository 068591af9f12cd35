"""Random generators by purpose, so that the order of execution cannot matter."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What randomness is used for; each purpose has streams of its own."""

    FLEET = 1
    PARTITION = 2
    WEIGHTS = 3
    SAMPLING = 4
    SELECTION = 5
    SIZES = 6
    NODES = 7
    AVAILABILITY = 8
    CAPACITY = 9
    FAULTS = 10


def rng(seed: int, purpose: Purpose, client: int = 0, server_round: int = 0) -> np.random.Generator:
    """Return the generator of one purpose, client and round of the run seeded with `seed`."""
    key = (int(purpose), client, server_round)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))

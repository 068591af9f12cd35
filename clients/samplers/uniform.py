"""Uniform sampling: a fresh permutation for each participation."""

from __future__ import annotations

import numpy as np

from clients.samplers.sampler import Sampler


class Uniform(Sampler):
    """Every sample once in random order, and again in another order until there are enough."""

    uses_resident = False

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        """Return permutations of all n samples, one after another, cut to `accesses`."""
        del resident
        epochs = -(-accesses // self.samples)
        return np.concatenate([rng.permutation(self.samples) for _ in range(epochs)])[:accesses]

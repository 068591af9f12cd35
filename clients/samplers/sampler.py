"""The sampler: it fixes all accesses of a participation before the first one."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class Sampler(ABC):
    """Chooses which samples a participation trains on, and in which order."""

    @abstractmethod
    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        """Return the samples to access, in order.

        Args:
            resident: bool [n], which of the client's n samples are cached now.
            accesses: how many accesses the participation makes, S x B.
            rng: this participation's generator.

        Returns:
            int64 [accesses], each in 0..n-1.
        """

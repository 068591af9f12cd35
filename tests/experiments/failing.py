"""Plug-ins that fail, for the tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from clients.samplers import Uniform


class Raises(Uniform):
    """Raises in the round when a file says so."""

    def __init__(self, samples: int, batch_size: int, message: str = "boom") -> None:
        super().__init__(samples, batch_size)
        self.message = message

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        del resident, accesses, rng
        raise ValueError(self.message)


class Dies(Uniform):
    """Ends its process at once, unless it is the one named."""

    def __init__(self, samples: int, batch_size: int, spare: int, mark: str) -> None:
        super().__init__(samples, batch_size)
        self.spare = spare
        self.mark = Path(mark)

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        if os.getpid() != self.spare:
            self.mark.touch()
            os._exit(3)
        return super().order(resident, accesses, rng)

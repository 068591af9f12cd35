"""Wall-clock time of a participation on this host; nothing virtual is made of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clients.trainer import Wall


@dataclass(slots=True)
class Busy:
    """Wall-clock seconds that reading was busy with each batch, float64 [steps]."""

    origin_s: np.ndarray
    cache_s: np.ndarray
    decode_s: np.ndarray
    write_s: np.ndarray

    @classmethod
    def none(cls, steps: int) -> Busy:
        """Return zeros."""
        return cls(*np.zeros((4, steps)))

    @property
    def total_s(self) -> np.ndarray:
        """All of them together, float64 [steps]."""
        total: np.ndarray = self.origin_s + self.cache_s + self.decode_s + self.write_s
        return total


@dataclass(frozen=True, slots=True)
class ParticipationWall:
    """Where the wall-clock time of a participation went.

    Attributes:
        training: of the thread that trains; it sums to all but opening and saving the cache.
        reading: how long reading was busy, at the same time if it ran ahead.
        total_s: from the request to the answer.
    """

    training: Wall
    reading: Busy
    total_s: float

"""Wall-clock time of a participation on this host; nothing virtual is made of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clients.trainer import Wall
from fedio.protocol import WallSeconds


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
        download_s, upload_s: waiting for the model on its way in and out.
        behind_s: by how much this host was slower than the device it stands for.
    """

    training: Wall
    reading: Busy
    total_s: float
    download_s: float = 0.0
    upload_s: float = 0.0
    behind_s: float = 0.0

    @property
    def seconds(self) -> WallSeconds:
        """The same by phase: what neither the network nor computing takes is stall."""
        compute_s = self.training.compute_s + self.training.copy_s
        rest_s = self.total_s - self.download_s - self.upload_s - compute_s
        return WallSeconds(
            download_s=self.download_s,
            origin_s=float(self.reading.origin_s.sum()),
            cache_s=float(self.reading.cache_s.sum()),
            decode_s=float(self.reading.decode_s.sum()),
            write_s=float(self.reading.write_s.sum()),
            stall_s=max(rest_s, 0.0),
            compute_s=compute_s,
            upload_s=self.upload_s,
            behind_s=self.behind_s,
        )

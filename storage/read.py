"""What a read of the cache returns."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Status(IntEnum):
    """How a requested sample was served; from MISS on it was not."""

    HIT = 0
    STAGED = 1
    SUBSTITUTED = 2
    MISS = 3
    CORRUPT = 4


_FIRST_UNSERVED = int(Status.MISS)


class Read(NamedTuple):
    """The answer to a batch of requests.

    Attributes:
        samples: what was served, or not, for each request, int64[k].
        starts: where its payload begins in the buffer, int64[k].
        lengths: its bytes, 0 when it was not served, int64[k].
        status: a `Status` each, uint8[k].
        used_bytes: the payloads lie back to back in so many first bytes of the buffer.
    """

    samples: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    status: np.ndarray
    used_bytes: int

    @property
    def served(self) -> np.ndarray:
        """Which requests the cache answered, bool[k]."""
        answered: np.ndarray = self.status < _FIRST_UNSERVED
        return answered

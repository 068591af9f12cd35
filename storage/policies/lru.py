"""Least recently used."""

from __future__ import annotations

import numpy as np

from storage.policies.recency import Recency


class LRU(Recency):
    """Keeps what was used last.

    Uses are numbered one by one, inside a batch too. A sample that comes in without having been
    read since it left (it was staged) counts as used when it comes in.
    """

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:  # noqa: ARG002
        """Touch what is used; a miss is a use too, its sample is about to come in."""
        self.touch(samples)

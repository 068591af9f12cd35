"""First in, first out."""

from __future__ import annotations

import numpy as np

from storage.policies.recency import Recency


class FIFO(Recency):
    """Keeps what came in last, however much it is used; an overwritten sample comes in anew."""

    forgets_overwritten = True

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        """Uses change nothing."""

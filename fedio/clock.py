"""The virtual clock, and the order in which things happen on it."""

from __future__ import annotations

import numpy as np


class VirtualClock:
    """Simulated seconds since the start of the run; they only ever move forward."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    @property
    def now_s(self) -> float:
        """The current virtual time in seconds."""
        return self._now_s

    def advance_to(self, time_s: float) -> None:
        """Move to `time_s`.

        Raises:
            ValueError: `time_s` is in the past or not finite.
        """
        if not np.isfinite(time_s) or time_s < self._now_s:
            raise ValueError(f"the clock is at {self._now_s} s and cannot move to {time_s} s")
        self._now_s = float(time_s)


def arrival_order(arrivals_s: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return the positions of `arrivals_s` in order of arrival; ties go by client number."""
    return np.lexsort((clients, arrivals_s))

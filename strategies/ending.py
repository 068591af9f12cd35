"""When a run is over before its last round."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedio.config import Rounds
from fedio.runs import HELD_EVALUATIONS


class Ending:
    """Watches a run's clock and its evaluations, for the horizon and the accuracy that end it.

    Attributes:
        is_over: whether the round that was noted last is the last.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._held = 0  # evaluations in a row that had the accuracy
        self.is_over = False

    def note(self, now_s: float, accuracy: float | None) -> None:
        """Take note of a round: when it ended, and what its evaluation found, if there was one."""
        wanted, horizon_s = self._rounds.stop_accuracy, self._rounds.horizon_s
        if wanted is not None and accuracy is not None:
            self._held = self._held + 1 if accuracy >= wanted else 0
        self.is_over = self._held >= HELD_EVALUATIONS or (
            horizon_s is not None and now_s >= horizon_s
        )

    def state(self) -> dict[str, np.ndarray]:
        """Return what was noted so far."""
        return {"noted": np.array([self._held, self.is_over])}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from there."""
        self._held, is_over = state["noted"].tolist()
        self.is_over = bool(is_over)

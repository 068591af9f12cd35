"""Contention: what decoding and training lose to each other in real time, as on cores they share.

The counterpart of `fedio.contention`, for what really goes on.
"""

from __future__ import annotations

import threading

from storage import Clock

DECODING, TRAINING = "decoding", "training"


class Contention:
    """What decoding and training lose to each other while both go on.

    With a slowdown of s each gets on by 1 / s of the time, and so loses 1 - 1 / s of it.
    """

    def __init__(self, clock: Clock, slowdown: float) -> None:
        """Begin with nothing going on.

        Args:
            clock: the time.
            slowdown: how many times as long both take while both go on, at least 1.
        """
        self._clock, self._share = clock, 1 - 1 / slowdown
        self._lock = threading.Lock()
        self._looked_s = self._lost_s = 0.0
        self._begun: dict[str, float] = {}  # what goes on, and what had been lost before

    def begin(self, what: str) -> None:
        """One of the two begins."""
        with self._lock:
            self._begun[what] = self._look()

    def lost_s(self, what: str) -> float:
        """Return what one of the two has lost by now, since it began."""
        with self._lock:
            lost_s = self._look()
            return lost_s - self._begun.get(what, lost_s)

    def end(self, what: str) -> None:
        """One of the two has come to its end."""
        with self._lock:
            self._look()
            self._begun.pop(what, None)

    def _look(self) -> float:
        """Return what either would have lost by now, had it gone on from the start."""
        now_s = self._clock.now_s()
        if len(self._begun) == 2:
            self._lost_s += self._share * (now_s - self._looked_s)
        self._looked_s = now_s
        return self._lost_s

"""Real time: a clock, and queues whose operations take their time by it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

_LATENESS_S = 0.01
"""An operation that ended later than it should makes up to so much of it good in the next."""

_HANDOVER_S, _HANDOVER_SHARE = 0.002, 1 / 16
"""So long, and so much of its own time, may an operation take to follow another: the queue is not
idle while a program gets from one to the next."""

_NAP_S, _LEAST_NAP_S = 0.05, 1e-6
"""How often a sleeper looks whether it is still wanted, and how short a nap may get."""


class Clock(Protocol):
    """Tells the time and passes it."""

    def now_s(self) -> float:
        """Seconds since some moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let at least so much time pass, or nearly."""
        ...


class WallClock:
    """Real time, which never goes back."""

    def now_s(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        time.sleep(seconds)


def _nothing_s() -> float:
    return 0.0


class RealTimeQueue:
    """Operations of any threads that follow one another, each of which takes so many seconds.

    What it really takes to carry one out is part of its time. Lateness does not add up, neither
    within the queue nor from one operation to the next, but for what is more than a hundredth of a
    second; time in which nothing is asked for is lost.

    Attributes:
        behind_s: the lateness, so far, that nothing made good.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """Begin idle.

        Args:
            clock: real time when not given.
        """
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._free_at_s = -math.inf
        self._late_s = self.behind_s = 0.0
        self._stopped = False

    def take(
        self, seconds: float, asked_s: float, delay_s: Callable[[], float] = _nothing_s
    ) -> None:
        """Carry an operation out that only takes time; see `enqueue` and `wait`."""
        self.wait(self.enqueue(seconds, asked_s), delay_s)

    def enqueue(self, seconds: float, asked_s: float) -> float:
        """Let an operation follow those before it; returns when it is due to end.

        Args:
            seconds: what it takes.
            asked_s: when it was asked for.
        """
        with self._lock:
            asked_s -= self._late_s
            idle_s = asked_s - self._free_at_s
            follows = idle_s <= min(_HANDOVER_S, _HANDOVER_SHARE * seconds)
            self._free_at_s = (self._free_at_s if follows else asked_s) + seconds
            return self._free_at_s

    def wait(self, due_s: float, delay_s: Callable[[], float] = _nothing_s) -> None:
        """Pass the time until an operation is due to end, and note by how much too much.

        Args:
            due_s: as `enqueue` said.
            delay_s: for how long, by now, it was held up since; grows slower than time.
        """
        while not self._stopped:
            delayed_s = delay_s()
            late_s = self._clock.now_s() - due_s - delayed_s
            if late_s >= 0:
                with self._lock:
                    self._late_s = min(late_s, _LATENESS_S)
                    self.behind_s += late_s - self._late_s
                return
            # What is being held up comes nearer to its end, and would never quite get there.
            least_s = _LEAST_NAP_S if delayed_s else 0.0
            self._clock.sleep(max(min(-late_s, _NAP_S), least_s))

    def stop(self) -> None:
        """From now on nobody waits; who does already goes on within a twentieth of a second."""
        self._stopped = True

"""An origin that takes the time of a slow tier, in real seconds."""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol

import numpy as np

from storage.arguments import byte_counts
from storage.errors import OriginError
from storage.origin import Origin
from storage.tier import Tier

_LATENESS_S = 0.01
"""A read that came later than it should makes up to so much of it good in the next."""

_HANDOVER_S, _HANDOVER_SHARE = 0.002, 1 / 16
"""So long, and so much of its own time, may a read take to follow another: the queue is not idle
while a program gets from one read to the next."""

_NAP_S = 0.05
"""How often a sleeper looks whether it is still wanted."""


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


class ThrottledOrigin(Origin):
    """Another origin at the speed of a tier: k samples of b bytes take `tier.read_s(k, b)`.

    A tier is one queue: reads of all threads, and of all subsets, follow one another in the order
    they were asked for. The time that the real read takes is part of it. Lateness does not add up,
    neither within a queue nor from one read to the next; time in which nobody reads is lost.
    """

    def __init__(
        self,
        origin: Origin,
        tier: Tier,
        size_bytes: np.ndarray | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Slow an origin down.

        Args:
            origin: has the payloads.
            tier: of one device.
            size_bytes: what each sample is taken for, int64[n]; its payload when not given.
            clock: real time when not given.

        Raises:
            ValueError: not one size for each sample.
        """
        self._origin, self._tier = origin, tier
        self._timed_bytes = byte_counts(origin.size_bytes if size_bytes is None else size_bytes)
        if len(self._timed_bytes) != len(origin):
            raise ValueError(f"{len(self._timed_bytes)} sizes for {len(origin)} samples")
        self._clock = clock or WallClock()
        self._lock = threading.Lock()
        self._free_at_s = -math.inf
        self._late_s = 0.0
        self._closed = False

    @property
    def size_bytes(self) -> np.ndarray:
        """The length of each payload, int64[n]."""
        return self._origin.size_bytes

    def read(self, samples: np.ndarray, buffer: np.ndarray, at: int) -> np.ndarray:
        """Copy payloads back to back into a buffer, in due time; see `Origin.read`.

        Raises:
            OriginError: also when the origin has been closed.
        """
        self._check_open()
        self._starts(samples, buffer, at)  # what is refused takes no time
        due_s = self._enqueue(samples)
        starts = self._origin.read(samples, buffer, at)
        self._sleep_until(due_s)
        return starts

    def close(self) -> None:
        """End all reads with an error, those under way within a twentieth of a second."""
        self._closed = True

    def _enqueue(self, samples: np.ndarray) -> float:
        """Let a read follow those that were asked for before; returns when it is due to end."""
        seconds = float(self._tier.read_s(len(samples), self._timed_bytes[samples].sum()))
        with self._lock:
            asked_at_s = self._clock.now_s() - self._late_s
            idle_s = asked_at_s - self._free_at_s
            follows = idle_s <= min(_HANDOVER_S, _HANDOVER_SHARE * seconds)
            self._free_at_s = (self._free_at_s if follows else asked_at_s) + seconds
            return self._free_at_s

    def _sleep_until(self, due_s: float) -> None:
        """Pass the time, and note by how much too much."""
        while (rest_s := due_s - self._clock.now_s()) > 0:
            self._check_open()
            self._clock.sleep(min(rest_s, _NAP_S))
        self._check_open()
        self._late_s = min(-rest_s, _LATENESS_S)

    def _check_open(self) -> None:
        if self._closed:
            raise OriginError("this origin is closed: open it again")

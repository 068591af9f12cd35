"""An origin that takes the time of a slow tier, in real seconds."""

from __future__ import annotations

import numpy as np

from storage.arguments import byte_counts
from storage.errors import OriginError
from storage.origin import Origin
from storage.real_time import Clock, RealTimeQueue, WallClock
from storage.tier import Tier


class ThrottledOrigin(Origin):
    """Another origin at the speed of a tier: k samples of b bytes take `tier.read_s(k, b)`.

    A tier is one queue: reads of all threads, and of all subsets, follow one another in the order
    they were asked for. The time that the real read takes is part of it.
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
        self._queue = RealTimeQueue(self._clock)
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
        seconds = float(self._tier.read_s(len(samples), self._timed_bytes[samples].sum()))
        due_s = self._queue.enqueue(seconds, self._clock.now_s())
        starts = self._origin.read(samples, buffer, at)
        self._queue.wait(due_s)
        self._check_open()
        return starts

    def close(self) -> None:
        """End all reads with an error, those under way within a twentieth of a second."""
        self._closed = True
        self._queue.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise OriginError("this origin is closed: open it again")

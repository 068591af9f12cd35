"""Pace: how long a device takes for what it does, in real seconds.

At this host's own speed it does not wait for anything. At the pace of a profile it waits, whenever
something is done, until the time is over that the profile says: what the host does itself is part
of that time. The counts are those of the meter, so that a participation takes what
`fedio.costs.phases` makes of them: both tiers are one queue, each reader decodes on its own, and
what overlaps there does so because threads really run beside each other.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from functools import partial
from itertools import chain

import numpy as np

from clients.contention import DECODING, TRAINING, Contention
from fedio.profiles import MOST_SLOWDOWN, Speeds
from storage import Clock, RealTimeQueue, WallClock


class Pace:
    """The pace of one participation, or of staging for one: this host's own.

    It is told of what has been carried out, and when that began; of decoding and training also when
    they begin.

    Attributes:
        now_s: tells the time, in seconds since some moment.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        """Begin.

        Args:
            clock: real time when not given.
        """
        self._clock = clock or WallClock()
        self.now_s = self._clock.now_s

    @property
    def behind_s(self) -> float:
        """By how much, so far, this host took longer than the device it stands for."""
        return 0.0

    def cold_s(self, samples: int, size_bytes: int, cached_bytes: int) -> float:
        """Return what it takes to read, decode and cache samples; 0 where that is not known.

        Args:
            samples: how many.
            size_bytes: what they weigh at the origin.
            cached_bytes: what they weigh in the cache.
        """
        del samples, size_bytes, cached_bytes
        return 0.0

    def window_s(self, window_s: float) -> float:
        """Return what the cost model may let staging take in a window of real time."""
        del window_s
        return float("inf")

    def download(self, size_bytes: int) -> float:
        """The model is asked for; returns the seconds until it is there."""
        del size_bytes
        return 0.0

    def upload(self, size_bytes: int) -> float:
        """The model is to be sent; returns the seconds until it is."""
        del size_bytes
        return 0.0

    def read_origin(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Samples have been read from the origin."""

    def read_cache(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Samples have been read from the cache."""

    def write_cache(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Samples have been written into the cache."""

    def begin_decoding(self) -> None:
        """Images are about to be decoded."""

    def decode(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Images have been decoded, of so many encoded bytes."""

    def begin_training(self) -> None:
        """A step is about to be trained."""

    def train(self, samples: int, began_s: float) -> None:
        """A step has been trained."""

    def stop_reading(self) -> None:
        """Nobody needs what is being read: from now on no reader waits."""


OWN_PACE = Pace()


class ProfilePace(Pace):
    """The pace of a device's profile.

    Where decoding and training slow each other down there is one reader; see `fedio.contention`.
    """

    def __init__(
        self, speeds: Speeds, clock: Clock | None = None, storage_slowdown: float = 1.0
    ) -> None:
        """Begin.

        Args:
            speeds: of the device.
            clock: real time when not given.
            storage_slowdown: how many times as long both tiers take.
        """
        super().__init__(clock)
        self._speeds, self._storage_slowdown = speeds, storage_slowdown
        self._origin, self._cache = speeds.origin, speeds.cache
        new = partial(RealTimeQueue, self._clock)
        self._storage, self._training, self._network = new(), new(), new()
        self._decoding: defaultdict[int, RealTimeQueue] = defaultdict(new)  # of each reader
        self._reading_is_over = False
        self._contention = Contention(self._clock, min(float(speeds.slowdown), MOST_SLOWDOWN))

    @property
    def behind_s(self) -> float:
        """By how much, so far, this host took longer than the device it stands for.

        Lateness of all that was waited for, also where something else took longer meanwhile.
        """
        queues = chain([self._storage, self._training, self._network], self._decoding.values())
        return sum(queue.behind_s for queue in queues)

    def cold_s(self, samples: int, size_bytes: int, cached_bytes: int) -> float:
        """Return what it takes to read, decode and cache samples, alone."""
        storage_s = self._origin.read_s(samples, size_bytes)
        storage_s = storage_s + self._cache.write_s(samples, cached_bytes)
        decode_s = self._speeds.decode_s(samples, size_bytes) * self._speeds.slowdown
        return float(storage_s * self._storage_slowdown + decode_s)

    def window_s(self, window_s: float) -> float:
        """Return what the cost model may let staging take: it is what it will take."""
        return window_s

    def download(self, size_bytes: int) -> float:
        """Wait until the model is there; returns the seconds."""
        return self._send(size_bytes / float(self._speeds.download_bytes_per_s))

    def upload(self, size_bytes: int) -> float:
        """Wait until the model is sent; returns the seconds."""
        return self._send(size_bytes / float(self._speeds.upload_bytes_per_s))

    def read_origin(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Wait as long as the origin takes."""
        self._store(self._origin.read_s(samples, size_bytes), began_s)

    def read_cache(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Wait as long as the cache takes."""
        self._store(self._cache.read_s(samples, size_bytes), began_s)

    def write_cache(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Wait as long as the cache takes."""
        self._store(self._cache.write_s(samples, size_bytes), began_s)

    def begin_decoding(self) -> None:
        """From now on it slows training down."""
        self._contention.begin(DECODING)

    def decode(self, samples: int, size_bytes: int, began_s: float) -> None:
        """Wait as long as decoding takes, beside training."""
        if not self._reading_is_over:
            seconds = float(self._speeds.decode_s(samples, size_bytes))
            lost_s = partial(self._contention.lost_s, DECODING)
            self._decoding[threading.get_ident()].take(seconds, began_s, lost_s)
        self._contention.end(DECODING)

    def begin_training(self) -> None:
        """From now on it slows decoding down."""
        self._contention.begin(TRAINING)

    def train(self, samples: int, began_s: float) -> None:
        """Wait as long as a step takes, beside decoding."""
        seconds = float(samples * self._speeds.compute_s + self._speeds.step_s)
        self._training.take(seconds, began_s, partial(self._contention.lost_s, TRAINING))
        self._contention.end(TRAINING)

    def stop_reading(self) -> None:
        """From now on no reader waits."""
        self._reading_is_over = True
        for queue in [self._storage, *self._decoding.values()]:
            queue.stop()

    def _send(self, seconds: float) -> float:
        """Keep the network busy for that long; returns how long it really was."""
        began_s = self.now_s()
        self._network.take(seconds, began_s)
        return self.now_s() - began_s

    def _store(self, seconds: np.ndarray, began_s: float) -> None:
        """Keep storage, both tiers, busy for that long since then."""
        self._storage.take(float(seconds) * self._storage_slowdown, began_s)

"""The data path of a client: a participation's batches, through cache and origin, in order.

Reading may run ahead of training. Decisions do not depend on how fast either is: storage is asked
in the order of the batches, and before batch j the policy has learned the losses of all batches up
to j - depth, no more, since batch j gets the place that batch j - depth had in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from clients.client_data import ClientData
from clients.fetching import Batch, Fetcher
from clients.meter import MeterReading
from clients.pace import OWN_PACE, Pace
from clients.wall import Busy
from storage import BufferPool, SampleCache, prefetched
from storage.buffers import touched

STALL_LIMIT_S = 120.0
"""Wall-clock seconds after which an origin that gives nothing counts as gone."""

STALLS = 10
"""Where it is known how long reading takes, an origin is gone only after so many times as long."""

AHEAD_BYTES = 32 << 20
"""Where nothing is decoded and nothing learned, so many bytes of images are read at a time:
reading and training in turns would push each other out of the processor's caches."""


class Buffers:
    """The memory of data paths, one after another: slabs that only ever grow."""

    def __init__(self, allocate: Callable[[int], np.ndarray] = touched) -> None:
        """Begin with nothing.

        Args:
            allocate: gives the memory for images, uint8[m], for its m bytes.
        """
        self._allocate = allocate
        self._slabs: dict[str, np.ndarray] = {}
        self._pools: dict[str, BufferPool] = {}

    def images(self, count: int, buffer_bytes: int) -> BufferPool:
        """Return so many buffers of at least that size for images, all free."""
        return self._pool("images", count, buffer_bytes, self._allocate)

    def scratches(self, count: int, buffer_bytes: int) -> BufferPool:
        """Return so many buffers of at least that size for payloads, all free."""
        return self._pool("scratches", count, buffer_bytes, touched)

    def _pool(
        self, name: str, count: int, buffer_bytes: int, allocate: Callable[[int], np.ndarray]
    ) -> BufferPool:
        pool = self._pools.get(name)
        if pool is not None and pool.free < pool.count:
            # A reader that hangs will write into its buffer when it wakes.
            del self._slabs[name]
            pool = None
        if pool is None or pool.count != count or pool.buffer_bytes < buffer_bytes:

            def slab(size_bytes: int) -> np.ndarray:
                if name not in self._slabs or len(self._slabs[name]) < size_bytes:
                    self._slabs[name] = allocate(size_bytes)
                return self._slabs[name]

            pool = self._pools[name] = BufferPool(count, buffer_bytes, slab)
        return pool


@dataclass(frozen=True, slots=True)
class Ahead:
    """How reading runs ahead: `depth` batches at a time, the one in training included.

    Without threads batches are read when they are asked for, with the same results.
    """

    depth: int = 1
    readers: int = 1
    threads: bool = False


class DataPath:
    """Brings the batches of one participation.

    Attributes:
        meter: counts it.
        learns: whether the policy takes losses.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it connects
        self,
        order: np.ndarray,
        batch_size: int,
        data: ClientData,
        cache: SampleCache,
        buffers: Buffers,
        ahead: Ahead,
        weights: np.ndarray | None = None,
        kept: np.ndarray | None = None,
        pace: Pace = OWN_PACE,
    ) -> None:
        """Get ready.

        Args:
            order: the samples to access, int64 [m].
            batch_size: B.
            data: the client's samples.
            cache: between them and the training.
            buffers: the memory to use.
            ahead: how reading runs ahead.
            weights: of the accesses in the loss, float64 [m]; None where all count alike.
            kept: samples that were staged for it, int64[k]: pinned until their last use, and marked
                no more at the end.
            pace: how long everything takes.
        """
        self._steps, self._pace = -(-len(order) // batch_size), pace
        self.meter = MeterReading(self._steps, ahead.depth, ahead.readers)
        self._fetcher = Fetcher(order, batch_size, data, cache, self.meter, weights, pace)
        self._data, self._cache, self._buffers, self._ahead = data, cache, buffers, ahead
        self._batch_images_bytes = batch_size * data.image_bytes
        self._scratch_bytes = data.scratch_bytes(batch_size)
        self._stall_limit_s = stall_limit_s(batch_size, data, pace)
        self.learns = cache.policy.learns
        self._learned: list[tuple[np.ndarray, np.ndarray]] = []
        self._handed_on = 0
        self._kept = np.empty(0, np.int64) if kept is None else kept
        self._last_uses: list[np.ndarray] = []
        if len(self._kept):
            used = self._kept[np.isin(self._kept, order)]
            cache.pin(used)
            self._last_uses = last_uses(order, batch_size, used)

    @property
    def busy(self) -> Busy:
        """How long reading has been busy with each batch."""
        return self._fetcher.busy

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the batches in order; one of which no sample can be trained is left out.

        Raises:
            DataPathError: too many samples cannot be read or decoded.
            OriginError: the origin gives nothing at all any more.
        """
        threads = self._ahead.threads and self._ahead.depth > 1
        with closing(self._prefetched() if threads else self._in_turns()) as source:
            try:
                for batch in source:
                    if len(batch.samples):
                        yield batch
                    else:
                        self.feedback(batch.samples, np.empty(0))
            finally:
                self._pace.stop_reading()

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        """Take the losses of the batch that was trained last; see `finish`."""
        self._learned.append((samples, losses))

    def finish(self) -> None:
        """All batches are trained: hand on what has not been learned yet, and tidy the cache up."""
        self._learn(len(self._learned))
        self._cache.unmark_staged(self._kept)
        if len(self._fetcher.damaged):
            self._cache.delete(self._fetcher.damaged)

    def _prefetched(self) -> Generator[Batch, None, None]:
        """Read in threads, while batches are trained."""
        ahead = self._ahead
        images = self._buffers.images(ahead.depth, self._batch_images_bytes)
        scratches = self._buffers.scratches(ahead.readers, self._scratch_bytes)

        def fetch(step: int, buffer: np.ndarray, turn: AbstractContextManager[object]) -> Batch:
            scratch = scratches.take()
            try:
                return self._fetcher.fetch(step, buffer, scratch, self._decisions(step, turn))
            finally:
                scratches.give(scratch)

        return prefetched(self._steps, fetch, images, ahead.readers, self._stall_limit_s)

    def _in_turns(self) -> Generator[Batch, None, None]:
        """Read when asked, several batches at a time where that changes nothing."""
        together = 1
        if not (self.learns or self._data.dataset.decoder.encoded):
            together = max(1, min(self._steps, AHEAD_BYTES // self._batch_images_bytes))
        images = self._buffers.images(1, together * self._batch_images_bytes)
        scratches = self._buffers.scratches(1, self._scratch_bytes)
        lent, scratch = images.take(), scratches.take()
        buffers = lent[: together * self._batch_images_bytes].reshape(together, -1)
        try:
            for first in range(0, self._steps, together):
                steps = range(first, min(first + together, self._steps))
                yield from [
                    self._fetcher.fetch(step, buffer, scratch, self._decisions(step, nullcontext()))
                    for step, buffer in zip(steps, buffers, strict=False)
                ]
        finally:
            scratches.give(scratch)
            images.give(lent)

    @contextmanager
    def _decisions(self, step: int, turn: AbstractContextManager[object]) -> Iterator[None]:
        """Within its turn, let the cache know all that it may know before a batch, and after it."""
        with turn:
            self._learn(step + 1 - self._ahead.depth)
            yield
            if self._last_uses:
                self._cache.unpin(self._last_uses[step])

    def _learn(self, count: int) -> None:
        """Let the policy learn the losses of the first `count` batches."""
        while self.learns and self._handed_on < count:
            samples, losses = self._learned[self._handed_on]
            self._handed_on += 1
            if len(samples):
                self._cache.feedback(samples, losses)


def stall_limit_s(samples: int, data: ClientData, pace: Pace) -> float:
    """Return after how many seconds storage that has given nothing counts as gone.

    Args:
        samples: how many are read at a time.
        data: the client's samples, of which the largest may come.
        pace: how long that takes.
    """
    sizes = (samples * int(each.max(initial=0)) for each in (data.size_bytes, data.form.size_bytes))
    return max(STALL_LIMIT_S, STALLS * pace.cold_s(samples, *sizes))


def largest_batch_bytes(order: np.ndarray, batch_size: int, size_bytes: np.ndarray) -> float:
    """Return the encoded bytes of the largest batch of an order.

    Args:
        order: int64 [m].
        batch_size: B.
        size_bytes: of each sample, int64 [n].
    """
    firsts = np.arange(0, len(order), batch_size)
    return float(np.add.reduceat(size_bytes[order], firsts).max())


def last_uses(order: np.ndarray, batch_size: int, samples: np.ndarray) -> list[np.ndarray]:
    """Return for each batch of an order which samples, int64[k], are used in it and not after it.

    Args:
        order: int64 [m].
        batch_size: B.
        samples: int64[k], each in the order.
    """
    last = np.zeros(order.max() + 1, np.int64)
    last[order] = np.arange(len(order)) // batch_size
    steps = -(-len(order) // batch_size)
    return [samples[last[samples] == step] for step in range(steps)]

"""Fetching: one batch through the cache, what that lacks from the origin, all of it decoded."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from clients.client_data import ClientData
from clients.loading import UNREADABLE, Loader, Payloads
from clients.meter import MeterReading, StepCounts
from clients.wall import Busy
from storage import Read, SampleCache
from storage.errors import StoreFull

logger = logging.getLogger(__name__)

MOST_SKIPPED_SHARE = 0.1
"""A participation that cannot train more of its accesses than this has failed."""


class DataPathError(RuntimeError):
    """Too many samples of a participation cannot be read or decoded."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one training step gets: the samples served, their images and labels, and weights.

    `places` are their positions among the accesses of the participation; the images' memory is
    used again once the next batch is asked for.
    """

    samples: np.ndarray
    images: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    places: np.ndarray


class Fetcher:
    """Fetches the batches of one participation, and counts what that takes.

    What cannot be read or decoded is left out of its batch. Several threads may fetch at a time.
    """

    def __init__(
        self,
        order: np.ndarray,
        batch_size: int,
        data: ClientData,
        cache: SampleCache,
        meter: MeterReading,
        weights: np.ndarray | None,
    ) -> None:
        """Get ready.

        Args:
            order: the samples to access, int64 [m].
            batch_size: B.
            data: the client's samples.
            cache: between them and the training.
            meter: takes the counts.
            weights: of the accesses in the loss, float64 [m]; None where all count alike.
        """
        self._order, self._batch_size, self._weights = order, batch_size, weights
        self._data, self._cache, self._meter = data, cache, meter
        self._loader = Loader(data)
        self.busy = Busy.none(-(-len(order) // batch_size))

    @property
    def damaged(self) -> np.ndarray:
        """Samples of which the cache may have a payload that is no image, int64[k]."""
        return np.unique(np.array(self._loader.damaged, np.int64))

    def fetch(
        self,
        step: int,
        buffer: np.ndarray,
        scratch: np.ndarray,
        turn: AbstractContextManager[object],
    ) -> Batch:
        """Read one batch and decode it into `buffer`.

        Args:
            step: which one.
            buffer: uint8[m], with room for its images.
            scratch: uint8[m], with room for its payloads.
            turn: entered for whatever has to happen in the order of batches. Only a payload that
                turns out to be no image is read once more after it.

        Raises:
            DataPathError: too many samples of the participation could not be read or decoded.
        """
        data, cache, first = self._data, self._cache, step * self._batch_size
        wanted = self._order[first : first + self._batch_size]
        images = buffer[: len(wanted) * data.image_bytes].reshape(-1, *data.dataset.shape)
        origin_bytes = 0
        with turn:
            samples_before, bytes_before = cache.written
            began_s = time.perf_counter()
            read = cache.read(wanted, scratch)
            _add_time(self.busy.cache_s, step, began_s)
            served = read.served
            payloads = Payloads(read.samples, read.starts, read.lengths, self._are_images(read))
            if np.count_nonzero(served) < len(served):
                missed = np.flatnonzero(~served)
                origin_bytes = self._bring(step, payloads, missed, scratch, read.used_bytes)
            samples_after, bytes_after = cache.written
        began_s = time.perf_counter()
        self._loader.decode(payloads, images, scratch)
        _add_time(self.busy.decode_s, step, began_s)
        written = samples_after - samples_before, bytes_after - bytes_before
        self._count(step, payloads, served, origin_bytes, written)
        return self._batch(step, payloads, images)

    def _are_images(self, read: Read) -> np.ndarray:
        """Return which payloads that were read are decoded already, bool[k]."""
        if not self._data.form.some_prepared:
            return np.zeros(len(read.samples), dtype=bool)
        are_images: np.ndarray = read.served & self._data.is_converted[read.samples]
        return are_images

    def _bring(
        self, step: int, payloads: Payloads, missed: np.ndarray, scratch: np.ndarray, at: int
    ) -> int:
        """Read the rows `missed` from the origin and offer them; returns the bytes that came."""
        data, samples = self._data, payloads.samples[missed]
        began_s = time.perf_counter()
        starts, lengths = self._loader.from_origin(samples, scratch, at), data.origin.size_bytes
        _add_time(self.busy.origin_s, step, began_s)
        payloads.starts, payloads.lengths = payloads.starts.copy(), payloads.lengths.copy()
        payloads.starts[missed], payloads.lengths[missed] = starts, lengths[samples]
        came = samples
        if starts.min() == UNREADABLE:
            payloads.is_whole, came = False, samples[starts != UNREADABLE]
        if data.form.some_prepared:
            began_s = time.perf_counter()
            converted = missed[data.is_converted[samples]]
            self._loader.convert(payloads, converted, scratch, at + int(lengths[samples].sum()))
            _add_time(self.busy.decode_s, step, began_s)
        there = missed
        if not payloads.is_whole:
            there = missed[payloads.starts[missed] != UNREADABLE]
        if len(there):
            began_s = time.perf_counter()
            self._offer(step, payloads, there, scratch)
            _add_time(self.busy.write_s, step, began_s)
        return int(data.size_bytes[came].sum())

    def _offer(self, step: int, payloads: Payloads, rows: np.ndarray, scratch: np.ndarray) -> None:
        """Offer rows to the cache; without room for them training goes on all the same."""
        samples = payloads.samples[rows]
        spans = payloads.starts[rows], payloads.lengths[rows], self._data.form.size_bytes[samples]
        try:
            self._cache.offer(samples, scratch, *spans)
        except StoreFull as error:
            self._meter.refused(step, len(samples))
            logger.warning("%d samples are not cached: %s", len(samples), error)

    def _count(
        self,
        step: int,
        payloads: Payloads,
        served: np.ndarray,
        origin_bytes: int,
        written: tuple[int, int],
    ) -> None:
        """Count a step: who was served by the cache, and what else came or went."""
        data, samples = self._data, payloads.samples
        decoded, lost, reads = samples, 0, int(np.count_nonzero(served))
        if not payloads.is_whole or data.form.some_prepared:
            there = payloads.starts != UNREADABLE
            lost = len(there) - int(np.count_nonzero(there))
            decoded = samples[there & ~(served & data.form.prepared[samples])]
        if not data.is_timed:
            decoded = decoded[:0]
        counts = StepCounts(
            samples=len(samples) - lost,
            reads=reads,
            hit_bytes=int(data.form.size_bytes[samples[served]].sum()) if reads else 0,
            misses=len(samples) - reads,
            origin_bytes=origin_bytes,
            decoded=len(decoded),
            decoded_bytes=int(data.size_bytes[decoded].sum()),
            written=written[0],
            written_bytes=written[1],
        )
        self._meter.step(step, counts)
        if lost:
            self._skip(step, lost)

    def _skip(self, step: int, samples: int) -> None:
        self._meter.skipped(step, samples)
        skipped, accesses = self._meter.all_skipped, len(self._order)
        said = f"{skipped} of {accesses} samples cannot be read: {self._loader.trouble}"
        if skipped > MOST_SKIPPED_SHARE * accesses:
            raise DataPathError(said)
        logger.warning(said)

    def _batch(self, step: int, payloads: Payloads, images: np.ndarray) -> Batch:
        """Return the batch of a step, without what is unreadable."""
        first = step * self._batch_size
        samples, places = payloads.samples, np.arange(first, first + len(images))
        if not payloads.is_whole:
            there = payloads.starts != UNREADABLE
            samples, places = samples[there], places[there]
            images[: len(samples)] = images[there]
        weights = None if self._weights is None else self._weights[places]
        self._meter.trained(step, samples, weights)
        labels = self._data.labels[samples]
        return Batch(samples, images[: len(samples)], labels, weights, places)


def _add_time(busy_s: np.ndarray, step: int, began_s: float) -> None:
    """Add the time since then to what reading was busy with a step, float64 [steps]."""
    busy_s[step] += time.perf_counter() - began_s

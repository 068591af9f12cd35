"""Fetching: one batch through the cache, what that lacks from the origin, all of it decoded."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from clients.client_data import ClientData
from clients.loading import UNREADABLE, Loader, Payloads
from clients.meter import MeterReading, StepCounts
from clients.wall import Busy
from storage import SampleCache
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
        self._converted = data.is_converted
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
            written_before = cache.written
            with self._timed("cache_s", step):
                read = cache.read(wanted, scratch)
            served = read.served
            are_images = served & self._converted[read.samples]
            payloads = Payloads(read.samples, read.starts, read.lengths, are_images)
            if not served.all():
                missed = np.flatnonzero(~served)
                origin_bytes = self._bring(step, payloads, missed, scratch, read.used_bytes)
            written = np.subtract(cache.written, written_before).tolist()
        with self._timed("decode_s", step):
            self._loader.decode(payloads, images, scratch)
        self._count(step, payloads, served, origin_bytes, written)
        return self._batch(step, payloads, images)

    def _bring(
        self, step: int, payloads: Payloads, missed: np.ndarray, scratch: np.ndarray, at: int
    ) -> int:
        """Read the rows `missed` from the origin and offer them; returns the bytes that came."""
        data, samples = self._data, payloads.samples[missed]
        with self._timed("origin_s", step):
            starts = self._loader.from_origin(samples, scratch, at)
        payloads.starts, payloads.lengths = payloads.starts.copy(), payloads.lengths.copy()
        payloads.starts[missed], payloads.lengths[missed] = starts, data.origin.size_bytes[samples]
        converted = missed[self._converted[samples]]
        if len(converted):
            with self._timed("decode_s", step):
                at += int(data.origin.size_bytes[samples].sum())
                self._loader.convert(payloads, converted, scratch, at)
        there = missed[payloads.starts[missed] != UNREADABLE]
        if len(there):
            with self._timed("write_s", step):
                self._offer(step, payloads, there, scratch)
        return int(data.size_bytes[samples[starts != UNREADABLE]].sum())

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
        written: list[int],
    ) -> None:
        """Count a step: who was served by the cache, and what else came or went."""
        data, samples = self._data, payloads.samples
        there = payloads.starts != UNREADABLE
        decoded = samples[there & ~(served & data.form.prepared[samples])]
        if not data.is_timed:
            decoded = decoded[:0]
        reads, lost = int(np.count_nonzero(served)), samples[~there]
        counts = StepCounts(
            samples=len(samples) - len(lost),
            reads=reads,
            hit_bytes=int(data.form.size_bytes[samples[served]].sum()),
            misses=len(samples) - reads,
            origin_bytes=origin_bytes,
            decoded=len(decoded),
            decoded_bytes=int(data.size_bytes[decoded].sum()),
            written=written[0],
            written_bytes=written[1],
        )
        self._meter.step(step, counts)
        if len(lost):
            self._skip(step, len(lost))

    def _skip(self, step: int, samples: int) -> None:
        self._meter.skipped(step, samples)
        skipped, accesses = self._meter.all_skipped, len(self._order)
        said = f"{skipped} of {accesses} samples cannot be read: {self._loader.trouble}"
        if skipped > MOST_SKIPPED_SHARE * accesses:
            raise DataPathError(said)
        logger.warning(said)

    def _batch(self, step: int, payloads: Payloads, images: np.ndarray) -> Batch:
        """Return the batch of a step, without what is unreadable."""
        samples, places = payloads.samples, np.arange(len(images)) + step * self._batch_size
        there = payloads.starts != UNREADABLE
        if not there.all():
            samples, places = samples[there], places[there]
            images[: len(samples)] = images[there]
        weights = None if self._weights is None else self._weights[places]
        self._meter.trained(step, samples, weights)
        labels = self._data.labels[samples]
        return Batch(samples, images[: len(samples)], labels, weights, places)

    @contextmanager
    def _timed(self, phase: str, step: int) -> Iterator[None]:
        """Add what the block takes to the time that reading was busy."""
        began = time.perf_counter()
        yield
        getattr(self.busy, phase)[step] += time.perf_counter() - began

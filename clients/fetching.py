"""Fetching: one batch through the cache, what that lacks from the origin, all of it decoded."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from clients.client_data import ClientData
from clients.loading import UNREADABLE, Loader, Payloads
from clients.meter import MeterReading, StepCounts
from clients.pace import OWN_PACE, Pace
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

    def __init__(  # noqa: PLR0913, PLR0917 - what it connects
        self,
        order: np.ndarray,
        batch_size: int,
        data: ClientData,
        cache: SampleCache,
        meter: MeterReading,
        weights: np.ndarray | None,
        pace: Pace = OWN_PACE,
    ) -> None:
        """Get ready.

        Args:
            order: the samples to access, int64 [m].
            batch_size: B.
            data: the client's samples.
            cache: between them and the training.
            meter: takes the counts.
            weights: of the accesses in the loss, float64 [m]; None where all count alike.
            pace: how long everything takes.
        """
        self._order, self._batch_size, self._weights = order, batch_size, weights
        self._data, self._cache, self._meter = data, cache, meter
        self._loader, self._pace = Loader(data), pace
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
        data, pace, busy, first = self._data, self._pace, self.busy, step * self._batch_size
        wanted = self._order[first : first + self._batch_size]
        images = buffer[: len(wanted) * data.image_bytes].reshape(-1, *data.dataset.shape)
        origin_bytes, written = 0, (0, 0)
        with turn:
            began_s = pace.now_s()
            read = self._cache.read(wanted, scratch)
            hits = read.samples[read.served]
            hit_bytes = int(data.form.size_bytes[hits].sum()) if len(hits) else 0
            pace.read_cache(len(hits), hit_bytes, began_s)
            self._add_time(busy.cache_s, step, began_s)
            payloads = Payloads(read.samples, read.starts, read.lengths, self._are_images(read))
            if len(hits) < len(wanted):
                missed = np.flatnonzero(~read.served)
                origin_bytes = self._bring(step, payloads, missed, scratch, read.used_bytes)
                written = self._offer(step, payloads, missed, scratch)
        began_s = pace.now_s() - float(busy.decode_s[step])  # with what was decoded for the cache
        pace.begin_decoding()
        self._loader.decode(payloads, images, scratch)
        counts = self._count(payloads, read.served, hit_bytes, origin_bytes, written)
        self._meter.step(step, counts)
        if counts.samples < len(wanted):
            self._skip(step, len(wanted) - counts.samples)
        pace.decode(counts.decoded, counts.decoded_bytes, began_s)
        busy.decode_s[step] = pace.now_s() - began_s
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
        """Read the rows `missed` from the origin, as they are cached; returns the bytes read."""
        data, pace, samples = self._data, self._pace, payloads.samples[missed]
        began_s = pace.now_s()
        starts, lengths = self._loader.from_origin(samples, scratch, at), data.origin.size_bytes
        came = samples
        if starts.min() == UNREADABLE:
            payloads.is_whole, came = False, samples[starts != UNREADABLE]
        origin_bytes = int(data.size_bytes[came].sum())
        pace.read_origin(len(samples), origin_bytes, began_s)
        self._add_time(self.busy.origin_s, step, began_s)
        payloads.starts, payloads.lengths = payloads.starts.copy(), payloads.lengths.copy()
        payloads.starts[missed], payloads.lengths[missed] = starts, lengths[samples]
        if data.form.some_prepared:
            began_s = pace.now_s()
            converted = missed[data.is_converted[samples]]
            self._loader.convert(payloads, converted, scratch, at + int(lengths[samples].sum()))
            self._add_time(self.busy.decode_s, step, began_s)
        return origin_bytes

    def _offer(
        self, step: int, payloads: Payloads, missed: np.ndarray, scratch: np.ndarray
    ) -> tuple[int, int]:
        """Offer what came to the cache; without room for it training goes on all the same.

        Returns how many samples were written, and their bytes.
        """
        rows, cache, pace = missed, self._cache, self._pace
        if not payloads.is_whole:
            rows = missed[payloads.starts[missed] != UNREADABLE]
        if not len(rows):
            return 0, 0
        samples, began_s = payloads.samples[rows], pace.now_s()
        spans = payloads.starts[rows], payloads.lengths[rows], self._data.form.size_bytes[samples]
        samples_before, bytes_before = cache.written
        try:
            cache.offer(samples, scratch, *spans)
        except StoreFull as error:
            self._meter.refused(step, len(samples))
            logger.warning("%d samples are not cached: %s", len(samples), error)
        samples_after, bytes_after = cache.written
        written = samples_after - samples_before, bytes_after - bytes_before
        pace.write_cache(*written, began_s)
        self._add_time(self.busy.write_s, step, began_s)
        return written

    def _count(
        self,
        payloads: Payloads,
        served: np.ndarray,
        hit_bytes: int,
        origin_bytes: int,
        written: tuple[int, int],
    ) -> StepCounts:
        """Count a step: who was served by the cache, and what else came or went."""
        data, samples = self._data, payloads.samples
        decoded, there, reads = samples, len(samples), int(np.count_nonzero(served))
        if not payloads.is_whole or data.form.some_prepared:
            is_there = payloads.starts != UNREADABLE
            there = int(np.count_nonzero(is_there))
            decoded = samples[is_there & ~(served & data.form.prepared[samples])]
        if not data.is_timed:
            decoded = decoded[:0]
        return StepCounts(
            samples=there,
            reads=reads,
            hit_bytes=hit_bytes,
            misses=len(samples) - reads,
            origin_bytes=origin_bytes,
            decoded=len(decoded),
            decoded_bytes=int(data.size_bytes[decoded].sum()),
            written=written[0],
            written_bytes=written[1],
        )

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

    def _add_time(self, busy_s: np.ndarray, step: int, began_s: float) -> None:
        """Add the time since then to what reading was busy with a step, float64 [steps]."""
        busy_s[step] += self._pace.now_s() - began_s

"""The data path of a client: cache first, origin for what it misses, then decoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from clients.datasets import Dataset
from clients.meter import MeterReading
from storage import Origin, SampleCache


@dataclass(frozen=True, slots=True)
class ClientData:
    """One client's samples, numbered 0..n-1.

    Attributes:
        dataset: decodes payloads; its own numbering is not used.
        origin: the slow tier, with this client's payloads only.
        labels: int64 [n].
        size_bytes: int64 [n], what tiers time and budgets charge.
        decode_s: float64 [n], declared seconds to decode.
    """

    dataset: Dataset
    origin: Origin
    labels: np.ndarray
    size_bytes: np.ndarray
    decode_s: np.ndarray


@dataclass(frozen=True, slots=True)
class Batch:
    """What one training step gets: the samples served, their images and labels."""

    samples: np.ndarray
    images: np.ndarray
    labels: np.ndarray


def batches(
    order: np.ndarray, batch_size: int, data: ClientData, cache: SampleCache, meter: MeterReading
) -> Iterator[Batch]:
    """Read the samples of `order` batch by batch, one after another.

    A cached sample comes from the cache. A missed one is read from the origin and offered to the
    cache, whose policy decides whether it stays.
    """
    largest = int(data.origin.size_bytes.max(initial=0))
    buffer = np.empty(largest * batch_size, dtype=np.uint8)
    for first in range(0, len(order), batch_size):
        wanted = order[first : first + batch_size]
        read = cache.read(wanted, buffer)
        starts, lengths = read.starts.copy(), read.lengths.copy()
        missed = np.flatnonzero(~read.served)
        if missed.size:
            samples = wanted[missed]
            starts[missed] = data.origin.read(samples, buffer, read.used_bytes)
            lengths[missed] = data.origin.size_bytes[samples]
            cache.offer(samples, buffer, starts[missed], lengths[missed], data.size_bytes[samples])
        meter.batch(read.samples, wanted[missed])
        images = data.dataset.decode(buffer, starts, lengths)
        yield Batch(read.samples, images, data.labels[read.samples])


def ahead(source: Iterable[Batch], limit_bytes: int) -> Iterator[Batch]:
    """Read as many batches as fit into `limit_bytes` of images before handing out the first.

    Reading and training each run faster on their own than in turns, since they do not push each
    other out of the processor's caches. The order of reads stays the same.
    """
    held: list[Batch] = []
    held_bytes = 0
    for batch in source:
        held.append(batch)
        held_bytes += batch.images.nbytes
        if held_bytes >= limit_bytes:
            yield from held
            held, held_bytes = [], 0
    yield from held

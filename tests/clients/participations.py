"""Participations without a model: what comes in batches, and what storage is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from clients.client_data import ClientData
from clients.datapath import Ahead, Buffers, DataPath
from clients.datasets.dataset import Dataset, Pixels
from clients.fetching import Batch
from clients.forms import Form
from fedio.protocol import Meter
from storage import ArrayOrigin, MemoryStore, Policy, Read, SampleCache

Event = tuple[str, list[int]]


def threads_of_ours() -> list[threading.Thread]:
    """Who reads ahead or stages at this moment."""
    return [t for t in threading.enumerate() if t.name.startswith(("prefetch", "staging"))]


def drawn(samples: int, seed: int = 0, *, side: int = 4) -> ClientData:
    """Small pictures of noise that weigh as much as photos, each another size."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (samples, 3, side, side), np.uint8)
    labels = rng.integers(0, 10, samples)
    size_bytes = rng.lognormal(9, 0.5, samples).astype(np.int64)
    dataset = Dataset("noise", 10, labels, ArrayOrigin(pixels), Pixels((3, side, side)))
    form = Form(np.zeros(samples, dtype=bool), size_bytes)
    weights = size_bytes, form
    return ClientData(dataset, dataset.origin, labels, *weights, is_timed=True, budget_bytes=0)


def prepared(data: ClientData, each_bytes: int) -> ClientData:
    """The same samples, cached prepared."""
    samples = len(data)
    form = Form(np.ones(samples, dtype=bool), np.full(samples, each_bytes))
    return replace(data, form=form)


class Listened(SampleCache):
    """A cache that writes down what it is asked and told, and what it answers."""

    def __init__(self, budget_bytes: int, policy: Policy) -> None:
        super().__init__(MemoryStore(), budget_bytes, policy)
        self.events: list[Event] = []
        self.reads: list[Read] = []

    def read(self, samples: np.ndarray, buffer: np.ndarray) -> Read:
        self.events.append(("read", samples.tolist()))
        self.reads.append(super().read(samples, buffer))
        return self.reads[-1]

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        self.events.append(("told", samples.tolist()))
        super().feedback(samples, losses)


@dataclass(frozen=True)
class Seen:
    """A participation: copies of its batches, the losses, the counts."""

    batches: list[Batch]
    losses: list[np.ndarray]
    meter: Meter

    @property
    def samples(self) -> np.ndarray:
        return np.concatenate([batch.samples for batch in self.batches])


def losses_of(batch: Batch) -> np.ndarray:
    """What training might say of a batch: it depends on everything in it."""
    of_images = batch.images.reshape(len(batch.samples), -1).astype(np.float64).mean(axis=1)
    return of_images / 64 + batch.samples * 37 % 101 / 25 + batch.labels / 10


def participate(
    path: DataPath, cache: SampleCache, on_batch: Callable[[int, Batch], None] | None = None
) -> Seen:
    """Take all batches, tell the losses of each, and finish."""
    before = cache.stats.copy()
    batches, losses = [], []
    for number, batch in enumerate(path.batches()):
        if on_batch is not None:
            on_batch(number, batch)
        batches.append(replace(batch, images=batch.images.copy()))
        losses.append(losses_of(batch))
        path.feedback(batch.samples, losses[-1])
    path.finish()
    meter = path.meter.result(cache.stats - before)
    meter.check()
    return Seen(batches, losses, meter)


def path_of(
    order: np.ndarray,
    data: ClientData,
    cache: SampleCache,
    ahead: Ahead,
    *,
    batch_size: int = 8,
    buffers: Buffers | None = None,
    weights: np.ndarray | None = None,
) -> DataPath:
    """A data path, the policy having heard of the order."""
    cache.plan(order)
    return DataPath(order, batch_size, data, cache, buffers or Buffers(), ahead, weights)


def assert_same(one: Seen, other: Seen) -> None:
    """Two participations are alike in all that was trained, learned and counted."""
    assert len(one.batches) == len(other.batches)
    for ours, theirs in zip(one.batches, other.batches, strict=True):
        np.testing.assert_array_equal(ours.samples, theirs.samples)
        np.testing.assert_array_equal(ours.images, theirs.images)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_array_equal(ours.places, theirs.places)
        assert (ours.weights is None) == (theirs.weights is None)
        if ours.weights is not None:
            np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert [losses.tolist() for losses in one.losses] == [
        losses.tolist() for losses in other.losses
    ]
    assert replace(one.meter, readers=1) == replace(other.meter, readers=1)


def state_of(cache: SampleCache) -> tuple[list[int], dict[str, tuple[str, list[object]]]]:
    """Who is in a cache, and all that its policy remembers."""
    columns = {
        name: (str(column.dtype), column.ravel().tolist())
        for name, column in cache.policy.columns().items()
    }
    return cache.residents.tolist(), columns

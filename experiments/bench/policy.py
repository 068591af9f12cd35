"""Policies: accesses per second of each, replayed in batches, beside cachetools' LRU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import cachetools
import numpy as np

from experiments.bench.measure import Row, in_turns
from storage.policies import POLICIES
from storage.replay import BySize, replay
from storage.synthetic import epochs, zipf
from storage.trace import Stream

BATCH = 32


@dataclass(frozen=True, slots=True)
class Setting:
    """One capacity, and what makes LRU hit about 70 % or about 10 % there.

    Attributes:
        capacity: samples.
        requests: of a turn, at least.
        exponent: of Zipf's law over ten times as many samples.
        samples: of shuffled epochs.
    """

    capacity: int
    requests: int
    exponent: float
    samples: int

    def traces(self) -> dict[str, Stream]:
        """Draw the two traces."""
        rng = np.random.default_rng(self.capacity)
        popular = zipf(
            rng,
            samples=10 * self.capacity,
            requests=self.requests,
            exponent=self.exponent,
            batch=BATCH,
        )
        passes = -(-self.requests // self.samples)
        shuffled = epochs(rng, samples=self.samples, epochs=passes, batch=BATCH)
        return {"zipf": popular.streams[0], "epochs": shuffled.streams[0]}


FULL = (
    Setting(capacity=100, requests=100_000, exponent=1.13, samples=260),
    Setting(capacity=10_000, requests=200_000, exponent=0.97, samples=23_000),
    Setting(capacity=100_000, requests=800_000, exponent=0.96, samples=210_000),
)


def rows(settings: tuple[Setting, ...] = FULL) -> Iterator[Row]:
    """Measure every policy of the table on every trace."""
    for setting in settings:
        for name, stream in setting.traces().items():
            yield from _beside_cachetools(setting.capacity, name, stream)


def _beside_cachetools(capacity: int, trace: str, stream: Stream) -> Iterator[Row]:
    """Yield a row per policy on one trace, all measured in turns.

    Ours are told the losses of each batch, as in training, and that costs the time it does.
    """
    losses = np.random.default_rng(0).exponential(size=len(stream.requests)).astype(np.float32)
    taught = replace(stream, losses=losses)
    keys = stream.requests.tolist()
    ours: list[Callable[[], float]] = [
        partial(_hit_ratio, name, taught, capacity) for name in POLICIES
    ]
    reference = partial(_cachetools, keys, capacity)
    reference_s, *ours_s = in_turns(reference, *ours)
    reference_hit_ratio = round(reference(), 3)
    for name, hit_ratio, turns_s in zip(POLICIES, ours, ours_s, strict=True):
        yield Row(
            name=f"policy.{name}",
            value=median(turns_s) / len(keys) * 1e6,
            unit="us/access",
            reference="cachetools-lru",
            ratio=median(ref / own for ref, own in zip(reference_s, turns_s, strict=True)),
            setting={
                "trace": trace,
                "capacity": capacity,
                "batch": BATCH,
                "hit_ratio": round(hit_ratio(), 3),
                "reference_hit_ratio": reference_hit_ratio,
            },
        )


def _hit_ratio(name: str, stream: Stream, capacity: int) -> float:
    policy = POLICIES[name](stream.samples)
    return replay(stream, policy, BySize(), capacity).hits / len(stream.requests)


def _cachetools(keys: list[int], capacity: int) -> float:
    """Run cachetools' LRU as one would: look, use or put."""
    cache: cachetools.LRUCache[int, None] = cachetools.LRUCache(capacity)
    hits = 0
    for key in keys:
        if key in cache:
            cache[key]
            hits += 1
        else:
            cache[key] = None
    return hits / len(keys)

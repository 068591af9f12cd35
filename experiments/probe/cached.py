"""The cache tier as a client uses it: full, and for every sample that comes others leave."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.probe.noise import Noise
from experiments.probe.points import Points
from storage import LRU, SampleCache, open_cache

WEARING, MEASURED = 4, 15
ROUNDS = WEARING + MEASURED
"""A round reads and offers a batch of each size; the first ones fill the cache."""

_ROUNDS_HELD = 2.5


@dataclass(frozen=True, slots=True)
class Cached:
    """What a cache took.

    Attributes:
        reads: a sample that was read; each point is the mean of a batch.
        writes: a sample that was offered and taken, likewise.
        saves_s: saving its state, as at the end of a participation.
    """

    reads: Points
    writes: Points
    saves_s: list[float]


def measure_cache(folder: Path, batches: Mapping[int, int], rng: np.random.Generator) -> Cached:
    """Open a cache of LRU on LMDB, wear it in, then read and offer batches of all sizes in turns.

    A batch is read in the round after the one that it came in, when the processor's own caches
    have forgotten it.

    Args:
        folder: for the cache; there is none yet.
        batches: size in bytes -> samples of a batch.
        rng: what to draw contents and orders from.
    """
    batch_bytes = [size * count for size, count in batches.items()]
    noise, buffer = Noise(max(batches), rng), np.ones(max(batch_bytes), np.uint8)
    policy = LRU(ROUNDS * sum(batches.values()))
    reads: list[tuple[float, float]] = []
    writes: list[tuple[float, float]] = []
    saves_s: list[float] = []
    last: dict[int, np.ndarray] = {}
    came = 0
    with open_cache(folder, int(_ROUNDS_HELD * sum(batch_bytes)), policy, durable=False) as cache:
        for number in range(ROUNDS):
            if number == WEARING:
                reads, writes, saves_s = [], [], []
            for size, count in batches.items():
                if number:
                    reads.append((size, _read_s(cache, rng.permutation(last[size]), buffer)))
                last[size] = np.arange(came, came + count)
                came += count
                writes.append((size, _offer_s(cache, last[size], size, noise)))
            saves_s.append(_save_s(cache, number))
    return Cached(Points.of(reads), Points.of(writes), saves_s)


def _read_s(cache: SampleCache, samples: np.ndarray, buffer: np.ndarray) -> float:
    """Read a batch; returns seconds per sample."""
    began = time.perf_counter()
    read = cache.read(samples, buffer)
    took_s = time.perf_counter() - began
    if not read.served.all():
        raise RuntimeError("the cache has lost what it took in the last round")
    return took_s / len(samples)


def _offer_s(cache: SampleCache, samples: np.ndarray, size: int, noise: Noise) -> float:
    """Offer a batch of samples of one size; returns seconds per sample."""
    starts, lengths = noise.starts(len(samples)), np.full(len(samples), size)
    began = time.perf_counter()
    taken = cache.offer(samples, noise.buffer, starts, lengths)
    took_s = time.perf_counter() - began
    if not taken.all():
        raise RuntimeError("the cache has refused a sample that it has room for")
    return took_s / len(samples)


def _save_s(cache: SampleCache, tag: int) -> float:
    began = time.perf_counter()
    cache.save(tag)
    return time.perf_counter() - began

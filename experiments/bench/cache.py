"""The cache: what a sample costs beside a bare py-lmdb loop and beside diskcache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from experiments.bench import cache_file
from experiments.bench.cache_references import Cache, DiskCache
from experiments.bench.cache_sides import DISKCACHE, PY_LMDB, Sides, Work, beside, filled
from experiments.bench.cache_stream import Batch, Stream
from experiments.bench.measure import REPETITIONS, Row, in_turns

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        works: what the caches hold; each of them more than twice the largest transaction.
        transactions: samples read or offered at once.
        hit_ratios: the share of them that is resident.
        read_samples: at most so many are read in a turn, but one transaction at least.
        admit_samples: at most so many are offered in a turn, but one transaction at least.
        turn_bytes: so many payload bytes at most, likewise.
        file: the same for what the files cost.
    """

    works: tuple[Work, ...]
    transactions: tuple[int, ...]
    hit_ratios: tuple[float, ...]
    read_samples: int
    admit_samples: int
    turn_bytes: int
    file: cache_file.Scale

    def turn(self, samples: int, payload_bytes: int, transaction: int) -> int:
        """Return how many samples a turn has: whole transactions."""
        return max(1, min(samples, self.turn_bytes // payload_bytes) // transaction) * transaction


FULL = Scale(
    works=(
        Work(16 * _MIB, 785, 785),
        Work(16 * _MIB, 3072, 3072),
        Work(160 * _MIB, 100_000, 100_000),
    ),
    transactions=(1, 32, 1000),
    hit_ratios=(0.0, 0.5, 1.0),
    read_samples=4000,
    admit_samples=2000,
    turn_bytes=32 << 20,
    file=cache_file.FULL,
)


def rows(scale: Scale = FULL) -> Iterator[Row]:
    """Measure everything; takes a few minutes."""
    for work in scale.works:
        for measure in (_reads, _admits):
            with filled(work, max(scale.transactions), (PY_LMDB, DISKCACHE)) as sides:
                yield from measure(scale, work, sides)
    yield from cache_file.rows(scale.file)


def _reads(scale: Scale, work: Work, sides: Sides) -> Iterator[Row]:
    """Read samples that all sides hold, and others that none does, in random order."""
    stream = sides.stream
    common = min(map(len, sides.all))
    buffer = np.zeros(work.largest * max(scale.transactions), np.uint8)
    for transaction, hit_ratio in product(scale.transactions, scale.hit_ratios):
        count = scale.turn(scale.read_samples, work.mean, transaction)
        hits = round(count * hit_ratio)
        turns = [
            stream.mixed(stream.absent(count - hits), stream.recent(hits, common), transaction)
            for _ in range(REPETITIONS + 1)
        ]
        for cache in sides.all:
            _check(cache, stream, turns[0], buffer, hits)
        actions = [
            _get_turns(cache, turns) if transaction == 1 else _read_turns(cache, turns, buffer)
            for cache in sides.all
        ]
        seconds = in_turns(*actions)
        setting = work.setting(transaction=transaction, hit_ratio=hit_ratio)
        yield from _rows("cache.read", sides, np.array(seconds) / count, setting)


def _admits(scale: Scale, work: Work, sides: Sides) -> Iterator[Row]:
    """Offer samples that are new, and others that came lately and are there."""
    stream = sides.stream
    lately = min(map(len, sides.all)) // 2
    buffer = np.zeros(work.largest * max(scale.transactions), np.uint8)
    for transaction, hit_ratio in product(scale.transactions, scale.hit_ratios):
        count = scale.turn(scale.admit_samples, work.mean, transaction)
        hits = round(count * hit_ratio)
        turns = []
        for _ in range(REPETITIONS + 1):
            known = stream.recent(hits, lately)
            turns.append(stream.mixed(stream.fresh(count - hits), known, transaction))
        take = _put_turns if transaction == 1 else _offer_turns
        seconds = in_turns(*(take(cache, turns, stream) for cache in sides.all))
        for cache in sides.all:
            last = stream.batches(stream.recent(min(lately, count), lately), transaction)
            _check(cache, stream, last, buffer, min(lately, count))
        setting = work.setting(transaction=transaction, hit_ratio=hit_ratio)
        yield from _rows("cache.admit", sides, np.array(seconds) / count, setting)


def _read_turns(cache: Cache, turns: list[list[Batch]], buffer: np.ndarray) -> Callable[[], None]:
    """Return what reads the batches of the next turn."""
    left = iter(turns)

    def read() -> None:
        for batch in next(left):
            cache.read(batch.samples, buffer)

    return read


def _get_turns(cache: Cache, turns: list[list[Batch]]) -> Callable[[], None]:
    """Return what gets the samples of the next turn one by one, as bytes."""
    left = iter([[int(batch.samples[0]) for batch in turn] for turn in turns])

    def get() -> None:
        for sample in next(left):
            cache.get(sample)

    return get


def _offer_turns(cache: Cache, turns: list[list[Batch]], stream: Stream) -> Callable[[], None]:
    """Return what offers the batches of the next turn."""
    left = iter(turns)

    def admit() -> None:
        for batch in next(left):
            cache.offer(batch.samples, stream.noise, batch.starts, batch.lengths)

    return admit


def _put_turns(cache: Cache, turns: list[list[Batch]], stream: Stream) -> Callable[[], None]:
    """Return what puts the samples of the next turn one by one."""
    left = iter(
        [
            [(int(b.samples[0]), stream.payloads(b, np.array([True]))) for b in turn]
            for turn in turns
        ]
    )

    def put() -> None:
        for sample, payload in next(left):
            cache.put(sample, payload)

    return put


def _check(
    cache: Cache, stream: Stream, batches: list[Batch], buffer: np.ndarray, hits: int
) -> None:
    """Make sure that a cache serves as many of the samples as it should, byte for byte."""
    found = 0
    for batch in batches:
        served = cache.read(batch.samples, buffer).served
        held = stream.payloads(batch, served)
        first = held[: batch.lengths[0]] if served[0] else None
        if buffer[: len(held)].tobytes() != held or cache.get(int(batch.samples[0])) != first:
            raise RuntimeError(f"{type(cache).__name__} served other bytes than it was given")
        found += int(np.count_nonzero(served))
    # diskcache guesses what its files take, and so evicts a few more than it had to.
    least = 0.99 * hits if isinstance(cache, DiskCache) else hits
    if not least <= found <= hits:
        raise RuntimeError(f"{type(cache).__name__} served {found} samples instead of {hits}")


def _rows(name: str, sides: Sides, seconds: np.ndarray, setting: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of one setting from seconds per sample, float64[sides, repetitions]."""
    ours, *others = (seconds * 1e6).tolist()
    references = dict(zip(sides.references, others, strict=True))
    yield from beside((name, "us/sample"), ours, references, setting)

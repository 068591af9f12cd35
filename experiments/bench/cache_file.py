"""What the cache's file costs: bytes written, bytes that are worth something, time to open."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import lmdb

from experiments.bench.cache_references import Cache, PyLmdb
from experiments.bench.cache_sides import PY_LMDB, Work, beside, fill, filled, offer
from experiments.bench.cache_stream import Stream
from experiments.bench.measure import REPETITIONS, Row
from storage import LRU, SampleCache, open_cache

_MIB = 1 << 20
_SHARES = [percent / 100 for percent in range(95, 0, -5)]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        churned: what the caches hold whose writes and room are measured.
        transactions: samples offered at once, of which the writes are measured.
        part_samples: at most so many are offered in each repetition of that.
        part_bytes: so many payload bytes at most, but one transaction at least.
        share_samples: so many are offered before the room is measured, one by one.
        opened: what the cache holds that is opened.
        opened_samples: how many of them.
    """

    churned: tuple[Work, ...]
    transactions: tuple[int, ...]
    part_samples: int
    part_bytes: int
    share_samples: int
    opened: Work
    opened_samples: int


FULL = Scale(
    churned=tuple(
        Work(16 * _MIB, *bounds)
        for bounds in (
            (785, 785),
            (2044, 2044),
            (3073, 3073),
            (4096, 4096),
            (150_000, 150_000),
            (300, 40_000),
        )
    ),
    transactions=(1, 32),
    part_samples=480,
    part_bytes=4 * _MIB,
    share_samples=20_000,
    opened=Work(128 * _MIB, 785, 785),
    opened_samples=100_000,
)


def rows(scale: Scale = FULL) -> Iterator[Row]:
    """Measure everything; takes a minute or two."""
    for work in scale.churned:
        for transaction in scale.transactions:
            yield from _write_amplification(scale, work, transaction)
    for work in scale.churned:
        yield from _payload_share(scale, work)
    yield from _opening(scale)


def _write_amplification(scale: Scale, work: Work, transaction: int) -> Iterator[Row]:
    """Bytes that go to write calls, per payload byte, while as much leaves as comes in.

    Before each part all residents are read in random order, so that those which leave next lie
    scattered: what came together would otherwise leave together, which suits our pages too well.
    """
    most = min(scale.part_samples, scale.part_bytes // work.mean)
    count = max(1, most // transaction) * transaction
    with filled(work, transaction, (PY_LMDB,)) as sides:
        written: list[list[float]] = [[] for _ in sides.all]
        for _ in range(REPETITIONS):
            for sample in sides.stream.recent(len(sides.ours), len(sides.ours)).tolist():
                sides.ours.get(sample)
            batches = sides.stream.batches(sides.stream.fresh(count), transaction)
            payload_bytes = sum(int(batch.lengths.sum()) for batch in batches)
            for cache, figures in zip(sides.all, written, strict=True):
                before = _written_bytes()
                for batch in batches:
                    offer(cache, sides.stream, batch)
                figures.append((_written_bytes() - before) / payload_bytes)
    yield from beside(
        ("cache.write_amplification", "bytes written/payload byte"),
        written[0],
        {PY_LMDB: written[1]},
        work.setting(transaction=transaction, operations=count * REPETITIONS),
    )


def _payload_share(scale: Scale, work: Work) -> Iterator[Row]:
    """Payload bytes that a file of the budget's size keeps, worn in, one sample at a time."""
    stream = work.stream(transaction=1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fedio"
        with closing(open_cache(path, work.budget_bytes, LRU(stream.samples))) as cache:
            fill(cache, stream)
            _churn(cache, stream, scale.share_samples)
            ours = cache.resident_bytes / work.budget_bytes
        theirs = next(share for share in _SHARES if _fits(scale, work, share, Path(folder)))
    setting = work.setting(transaction=1, operations=scale.share_samples)
    yield Row("cache.payload_share", ours, "share of the budget", PY_LMDB, ours / theirs, setting)


def _fits(scale: Scale, work: Work, share: float, folder: Path) -> bool:
    """Whether a py-lmdb file of the budget's size can keep so many payload bytes."""
    stream = work.stream(transaction=1)
    residents = max(1, int(share * work.budget_bytes / work.mean))
    with TemporaryDirectory(dir=folder) as path:
        reference = PyLmdb(Path(path), work.budget_bytes, residents)
        with closing(reference):
            try:
                _churn(reference, stream, residents + scale.share_samples)
            except lmdb.MapFullError:
                return False
    return True


def _churn(cache: Cache, stream: Stream, samples: int) -> None:
    for _ in range(samples):
        offer(cache, stream, stream.batch(stream.fresh(1)))


def _opening(scale: Scale) -> Iterator[Row]:
    """Open a cache that was saved, and a py-lmdb file together with a look at who is there."""
    work, samples = scale.opened, scale.opened_samples
    stream = Stream(samples, work.smallest, work.largest)
    with TemporaryDirectory() as folder:

        def ours() -> SampleCache:
            return open_cache(Path(folder) / "fedio", work.budget_bytes, LRU(samples))

        def reference() -> PyLmdb:
            opened = PyLmdb(Path(folder) / PY_LMDB, work.map_bytes, samples)
            opened.samples()
            return opened

        with closing(ours()) as cache, closing(reference()) as other:
            for batch in stream.batches(stream.fresh(samples), 1000):
                for each in (cache, other):
                    offer(each, stream, batch)
            if len(cache) < samples:
                raise RuntimeError(f"{len(cache)} of {samples} samples are in the cache")
            cache.save(tag=1)
        ours_ms, reference_ms = [], []
        for _ in range(REPETITIONS + 1):
            ours_ms.append(_open_ms(ours))
            reference_ms.append(_open_ms(reference))
        tracemalloc.start()
        with closing(ours()):
            memory_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    yield from beside(
        ("cache.open", "ms"),
        ours_ms[1:],
        {PY_LMDB: reference_ms[1:]},
        work.setting(samples=samples, memory_bytes_per_sample=round(memory_bytes / samples, 1)),
    )


def _open_ms(make: Callable[[], Cache]) -> float:
    """Milliseconds to open a cache; closing it is not measured."""
    began = time.perf_counter()
    cache = make()
    ended = time.perf_counter()
    cache.close()
    return (ended - began) * 1e3


def _written_bytes() -> int:
    """Bytes that this process has passed to write calls so far."""
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["wchar"])

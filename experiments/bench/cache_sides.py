"""Our cache and its references, filled alike, and the rows of what they showed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from experiments.bench.cache_references import Cache, DiskCache, PyLmdb
from experiments.bench.cache_stream import Batch, Stream
from experiments.bench.measure import Row
from storage import LRU, SampleCache, open_cache

PY_LMDB, DISKCACHE = "py-lmdb", "diskcache"
_FILLING = 100


@dataclass(frozen=True, slots=True)
class Work:
    """What is kept: payloads of `smallest` to `largest` bytes, within a budget."""

    budget_bytes: int
    smallest: int
    largest: int

    @property
    def mean(self) -> int:
        """The expected bytes of a payload."""
        return (self.smallest + self.largest) // 2

    @property
    def map_bytes(self) -> int:
        """The size of a py-lmdb file that never gets too small."""
        return 4 * self.budget_bytes

    def stream(self, transaction: int) -> Stream:
        """Return a stream of more than twice as many samples as the budget holds."""
        samples = 2 * (self.budget_bytes // self.mean + _FILLING + transaction)
        return Stream(samples, self.smallest, self.largest)

    def setting(self, **more: object) -> dict[str, Any]:
        """Return what a row says about it."""
        same = self.smallest == self.largest
        payload_bytes = self.mean if same else f"{self.smallest}..{self.largest}"
        return {
            "payload_bytes": payload_bytes,
            "budget_bytes": self.budget_bytes,
            "policy": "lru",
            "store": "lmdb",
            **more,
        }


@dataclass(frozen=True, slots=True)
class Sides:
    """Full caches, and the stream that filled them.

    Attributes:
        ours: evicts whenever a sample comes in.
        references: by name; a py-lmdb file holds as many samples as ours.
        stream: what came, and what comes next.
    """

    ours: SampleCache
    references: Mapping[str, Cache]
    stream: Stream

    @property
    def all(self) -> list[Cache]:
        """Ours and the references, in the order in which they take turns."""
        return [self.ours, *self.references.values()]


@contextmanager
def filled(work: Work, transaction: int, references: Sequence[str]) -> Iterator[Sides]:
    """Open caches in a temporary folder and fill them twice over, so that the files are worn in.

    Args:
        work: what they hold.
        transaction: the largest batch that is going to be asked of them.
        references: whom to open beside ours.
    """
    stream = work.stream(transaction)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        ours = open_cache(folder / "fedio", work.budget_bytes, LRU(stream.samples))
        stack.enter_context(closing(ours))
        offered = fill(ours, stream)
        makers: dict[str, Callable[[Path], Cache]] = {
            PY_LMDB: lambda path: PyLmdb(path, work.map_bytes, len(ours)),
            DISKCACHE: lambda path: DiskCache(path, work.budget_bytes),
        }
        others = {name: makers[name](folder / name) for name in references}
        for other in others.values():
            stack.enter_context(closing(other))
            for batch in offered:
                offer(other, stream, batch)
        sides = Sides(ours, others, stream)
        for batch in stream.batches(stream.fresh(len(ours)), _FILLING):
            for cache in sides.all:
                offer(cache, stream, batch)
        yield sides


def fill(cache: SampleCache, stream: Stream) -> list[Batch]:
    """Offer new samples to an empty cache until some have left; returns what was offered."""
    offered: list[Batch] = []
    while len(cache) == _FILLING * len(offered):
        offered.append(stream.batch(stream.fresh(_FILLING)))
        offer(cache, stream, offered[-1])
    return offered


def offer(cache: Cache, stream: Stream, batch: Batch) -> None:
    """Offer a batch to a cache."""
    cache.offer(batch.samples, stream.noise, batch.starts, batch.lengths)


def beside(
    row: tuple[str, str],
    ours: Sequence[float],
    references: Mapping[str, Sequence[float]],
    setting: dict[str, Any],
) -> Iterator[Row]:
    """Yield a row for each reference, from figures measured in turns, of which less is better.

    Args:
        row: its name and unit.
        ours: our figures, one per repetition.
        references: those of the references, by name.
        setting: what else to say.
    """
    for name, theirs in references.items():
        ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
        yield Row(row[0], median(ours), row[1], name, median(ratios), setting)

"""A cache under observation: every payload that comes back is compared with what went in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from storage import POLICIES, Policy, Read, SampleCache, Status, open_cache


class Watched:
    """A cache, and the payload that each sample had when it was last taken."""

    def __init__(self, cache: SampleCache) -> None:
        self.cache = cache
        self.taken: dict[int, bytes] = {}

    def offer(
        self,
        samples: list[int],
        sizes: list[int],
        version: int = 0,
        nominal: list[int] | None = None,
    ) -> list[bool]:
        payloads = [payload(s, size, version) for s, size in zip(samples, sizes, strict=True)]
        buffer = np.frombuffer(b"".join(payloads), np.uint8)
        lengths = np.array(sizes, np.int64)
        taken = self.cache.offer(
            np.array(samples, np.int64),
            buffer,
            np.cumsum(lengths) - lengths,
            lengths,
            None if nominal is None else np.array(nominal, np.int64),
        )
        for sample, content, was_taken in zip(samples, payloads, taken, strict=True):
            if was_taken:
                self.taken[sample] = content
        return taken.tolist()

    def read(self, samples: list[int]) -> Read:
        index = np.array(samples, np.int64)
        room = sum(len(self.taken.get(s, b"")) for s in samples)
        if self.cache.policy.substitutes:
            room = len(samples) * max(map(len, self.taken.values()), default=0)
        buffer = np.zeros(room + 1, np.uint8)
        read = self.cache.read(index, buffer)
        assert (read.samples == index)[read.status != Status.SUBSTITUTED].all()
        for sample, start, length, served in zip(
            read.samples.tolist(), read.starts, read.lengths, read.served, strict=True
        ):
            if served:
                assert buffer[start : start + length].tobytes() == self.taken[sample]
            else:
                assert length == 0
        assert read.used_bytes == read.lengths.sum()
        assert (read.starts == np.cumsum(read.lengths) - read.lengths).all()
        return read

    def hits(self, samples: list[int]) -> list[bool]:
        return self.read(samples).served.tolist()

    def check(self) -> None:
        """Used is the sum of the residents' charges and within the budget; index = data."""
        cache = self.cache
        residents = cache.residents
        sizes = cache._index.size_bytes[residents]
        assert cache.used_bytes == cache._index.layout.cost(sizes).sum()
        assert cache.resident_bytes == sizes.sum()
        assert cache.used_bytes <= cache.usable_bytes <= cache.budget_bytes
        assert len(cache) == len(residents)
        assert cache.store.present().tolist() == residents.tolist()
        lengths = cache._index.length_bytes[residents].tolist()
        assert lengths == [len(self.taken[s]) for s in residents.tolist()]
        stats = cache.stats
        assert stats.hits + stats.substituted + stats.misses == stats.requests


def payload(sample: int, size: int, version: int = 0) -> bytes:
    return np.random.default_rng((sample, size, version)).bytes(size)


def make(
    path: Path | None, budget_bytes: int, policy: str = "lru", samples: int = 64, **options: object
) -> Watched:
    return Watched(open_cache(path, budget_bytes, POLICIES[policy](samples), **options))


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """Opens watched caches and closes them after the test."""
    opened: list[Watched] = []

    def watch_one(
        path: Path | None,
        budget_bytes: int,
        policy: str = "lru",
        samples: int = 64,
        **options: object,
    ) -> Watched:
        opened.append(make(path, budget_bytes, policy, samples, **options))
        return opened[-1]

    yield watch_one
    for watched in opened:
        watched.cache.close()


@pytest.fixture(params=["lmdb", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where a cache lies: a folder, or None for memory."""
    return tmp_path / "cache" if request.param == "lmdb" else None


@pytest.fixture(params=POLICIES)
def policy_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def new_policy() -> Callable[[str, int], Policy]:
    return lambda name, samples: POLICIES[name](samples)

"""Stand-ins: who is served in place of what is not cached, over both stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import LRU, Policy, Read, SampleCache, Status, open_cache
from storage.policies import ICache
from storage.victim_queue import NOBODY
from tests.storage.conftest import Watched, payload

BUDGET = 200_000
HIT, SUBSTITUTED, MISS, CORRUPT = (
    int(s) for s in (Status.HIT, Status.SUBSTITUTED, Status.MISS, Status.CORRUPT)
)


class Always(LRU):
    """Lets whoever it is told to stand in for everybody, and writes down what it hears."""

    substitutes = True

    def __init__(self, samples: int, stand_in: int) -> None:
        super().__init__(samples)
        self.stand_in = stand_in
        self.heard: list[tuple[str, list[int]]] = []

    def stand_ins(self, samples: np.ndarray) -> np.ndarray:
        self.heard.append(("stand in", samples.tolist()))
        return np.full(len(samples), self.stand_in)

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        self.heard.append(("access", samples.tolist()))
        self.heard.append(("hit", np.flatnonzero(hit).tolist()))
        super().access(samples, hit)


class Never(LRU):
    """Would stand in, but is never to be asked."""

    def stand_ins(self, samples: np.ndarray) -> np.ndarray:
        raise AssertionError(samples)


Filled = Callable[..., Watched]


@pytest.fixture
def filled(folder: Path | None) -> Any:
    """Opens a cache of samples 0..4 of 100, 200, ... bytes, declared ten times as large."""
    opened: list[SampleCache] = []

    def fill(policy: Policy) -> Watched:
        opened.append(open_cache(folder, BUDGET, policy))
        watched = Watched(opened[-1])
        sizes = [100, 200, 300, 400, 500]
        assert all(watched.offer(list(range(5)), sizes, nominal=[10 * n for n in sizes]))
        return watched

    yield fill
    for cache in opened:
        cache.close()


def counts(cache: SampleCache) -> tuple[int, int, int, int, int, int]:
    stats = cache.stats
    return (
        stats.requests, stats.hits, stats.substituted, stats.misses, stats.corrupt, stats.hit_bytes
    )  # fmt: skip


def test_a_stand_in_is_served_with_its_own_payload_and_size(filled: Filled) -> None:
    watched = filled(Always(20, stand_in=3))
    read = watched.read([1, 10, 3, 11, 10])
    assert read.samples.tolist() == [1, 3, 3, 3, 3]
    assert read.status.tolist() == [HIT, SUBSTITUTED, HIT, SUBSTITUTED, SUBSTITUTED]
    assert read.lengths.tolist() == [200, 400, 400, 400, 400]
    assert read.served.all()
    assert counts(watched.cache) == (5, 2, 3, 0, 0, 2000 + 4 * 4000)
    watched.check()


def test_it_is_asked_for_what_is_missing_and_told_of_the_batch_afterwards(filled: Filled) -> None:
    policy = Always(20, stand_in=3)
    cache = filled(policy).cache
    policy.heard.clear()
    buffer = np.zeros(9000, np.uint8)
    cache.read(np.array([4, 0]), buffer)
    cache.read(np.array([12, 1, 12, 15]), buffer)
    cache.get(2)
    assert cache.stats.substituted == 3
    assert policy.heard == [
        ("access", [4, 0]),
        ("hit", [0, 1]),
        ("stand in", [12, 12, 15]),
        ("access", [12, 1, 12, 15, 2]),
        ("hit", [1, 4]),
    ]


def test_nobody_and_strangers_do_not_stand_in(filled: Filled) -> None:
    for stand_in in (NOBODY, 19):
        policy = Always(20, stand_in)
        watched = filled(policy)
        read = watched.read([0, 10])
        assert read.samples.tolist() == [0, 10]
        assert read.status.tolist() == [HIT, MISS]
        watched.cache.close()


def test_a_policy_that_does_not_substitute_is_not_asked(filled: Filled) -> None:
    assert filled(Never(20)).read([1, 10]).status.tolist() == [HIT, MISS]


def test_a_single_payload_is_never_substituted(filled: Filled) -> None:
    cache = filled(Always(20, stand_in=3)).cache
    assert cache.get(10) is None
    assert counts(cache)[:4] == (1, 0, 0, 1)


def test_a_staged_stand_in_is_a_substitution(filled: Filled) -> None:
    cache = filled(Always(20, stand_in=3)).cache
    cache.mark_staged(np.array([1, 3]))
    read = cache.read(np.array([1, 10]), np.zeros(1000, np.uint8))
    assert read.status.tolist() == [int(Status.STAGED), SUBSTITUTED]
    assert (cache.stats.hits, cache.stats.staged, cache.stats.substituted) == (1, 1, 1)


def test_a_damaged_stand_in_is_a_miss_and_leaves(filled: Filled) -> None:
    watched = filled(Always(20, stand_in=3))
    watched.cache.store.remove([3])
    read = watched.read([2, 10, 11, 4])
    assert read.samples.tolist() == [2, 10, 11, 4]
    assert read.status.tolist() == [HIT, CORRUPT, CORRUPT, HIT]
    assert read.starts.tolist() == [0, 300, 300, 300]
    assert read.lengths.tolist() == [300, 0, 0, 500]
    assert counts(watched.cache) == (4, 2, 0, 2, 2, 3000 + 5000)
    assert 3 not in watched.cache
    watched.check()


def test_flipped_bytes_of_a_stand_in_are_not_served(tmp_path: Path) -> None:
    with open_cache(tmp_path, BUDGET, LRU(20)) as cache:
        Watched(cache).offer([2, 3], [300, 400])
        cache.save(0)
    content = bytearray((tmp_path / "data.mdb").read_bytes())
    content[content.find(payload(3, 400)[:50]) + 20] ^= 1
    (tmp_path / "data.mdb").write_bytes(content)
    with open_cache(tmp_path, BUDGET, Always(20, stand_in=3)) as cache:
        read = cache.read(np.array([10, 2]), np.zeros(1000, np.uint8))
        assert read.status.tolist() == [CORRUPT, HIT]
        assert cache.residents.tolist() == [2]


def test_a_buffer_that_is_too_small_for_a_stand_in_changes_nothing(filled: Filled) -> None:
    cache = filled(Always(20, stand_in=3)).cache
    cache.read(np.array([0]), np.zeros(100, np.uint8))
    before = cache.stats.copy()
    with pytest.raises(ValueError, match="has 499 bytes, 500 are needed"):
        cache.read(np.array([0, 10]), np.zeros(499, np.uint8))
    assert cache.stats == before
    read = cache.read(np.array([0, 10]), np.zeros(500, np.uint8))
    assert (read.used_bytes, read.samples.tolist()) == (500, [0, 3])


def important_are(policy: ICache, losses: list[float]) -> None:
    policy.feedback(np.arange(len(losses)), np.array(losses))
    policy.plan(np.arange(len(losses)))


def test_a_read_that_failed_uses_no_stand_in(filled: Filled) -> None:
    cache = filled(ICache(20, important_share=0.5)).cache
    important_are(cache.policy, [float(n) for n in range(20)])
    before = {name: column.copy() for name, column in cache.policy.columns().items()}
    with pytest.raises(ValueError, match="are needed"):
        cache.read(np.array([5, 6, 7]), np.zeros(599, np.uint8))
    assert cache.read(np.array([1]), np.zeros(200, np.uint8)).served.all()
    before["used"][1], before["requests"] = True, np.array(1)
    after = cache.policy.columns()
    for name, column in before.items():
        np.testing.assert_array_equal(column, after[name], name)
    read = cache.read(np.array([5, 6, 15]), np.zeros(400, np.uint8))
    assert read.samples.tolist() == [0, 2, 15]
    assert read.status.tolist() == [SUBSTITUTED, SUBSTITUTED, MISS]


class Client:
    """Reads batches, offers what was missing, learns from losses, plans its participations."""

    def __init__(self, cache: SampleCache, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.sizes = np.random.default_rng(seed).integers(500, 5000, cache.policy.samples)
        self.watched = Watched(cache)

    def participate(self) -> list[tuple[list[int], list[int]]]:
        cache = self.watched.cache
        cache.policy.plan(np.empty(0, np.int64))
        served = []
        for _ in range(12):
            read = self.batch(self.rng.integers(0, len(self.sizes), 8).tolist())
            served.append((read.samples.tolist(), read.status.tolist()))
            cache.feedback(read.samples, self.rng.exponential(size=8))
            self.watched.check()
        return served

    def batch(self, batch: list[int]) -> Read:
        before = self.watched.cache.stats.copy()
        residents = set(self.watched.cache.residents.tolist())
        read = self.watched.read(batch)
        missed = sorted({s for s, there in zip(batch, read.served, strict=True) if not there})
        stats = self.watched.cache.stats - before
        assert stats.hits == sum(s in residents for s in batch)
        assert stats.hit_bytes == self.sizes[read.samples[read.served]].sum()
        assert stats.substituted == np.count_nonzero(read.status == SUBSTITUTED)
        assert residents.issuperset(read.samples[read.served].tolist())
        assert residents.isdisjoint(missed)
        self.watched.offer(missed, self.sizes[missed].tolist())
        return read


@pytest.mark.parametrize("seed", range(4))
def test_both_stores_and_a_reopened_cache_substitute_alike(tmp_path: Path, seed: int) -> None:
    def new() -> ICache:
        return ICache(60, important_share=0.4, important_space=0.5, times=1 + seed % 2)

    straight = Client(open_cache(None, BUDGET // 3, new()), seed)
    halting = Client(open_cache(tmp_path, BUDGET // 3, new()), seed)
    for tag in range(15):
        assert straight.participate() == halting.participate()
        halting.watched.cache.save(tag)
        halting.watched.cache.close()
        halting.watched.cache = open_cache(tmp_path, BUDGET // 3, new())
    assert straight.watched.cache.stats.substituted > 50
    assert straight.watched.cache.residents.tolist() == halting.watched.cache.residents.tolist()
    halting.watched.cache.close()

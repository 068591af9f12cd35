"""Another budget, and space given back: the file is as large as it may be, its content right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import POLICIES, open_cache

Watch = Callable[..., Any]
SAMPLES = 6000
BUDGETS = [16 << 20, 9 << 20, 3 << 20, 100_000]


def fill(watched: Any, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for samples in rng.permutation(SAMPLES)[:count].reshape(-1, 50):
        watched.offer(samples.tolist(), rng.integers(300, 9000, 50).tolist())


@pytest.mark.parametrize("after", BUDGETS)
@pytest.mark.parametrize("before", BUDGETS)
@pytest.mark.parametrize("way", ["resized", "reopened"])
def test_a_changed_budget_holds_at_once(
    tmp_path: Path, watch: Watch, way: str, before: int, after: int
) -> None:
    data = tmp_path / "data.mdb"
    watched = watch(tmp_path, before, samples=SAMPLES)
    fill(watched, 0, min(3000, before // 4000 // 50 * 50 + 50))
    watched.cache.save(7, {"note": np.arange(3)})
    held = watched.cache.residents
    if way == "reopened":
        watched.cache.close()
        again = watch(tmp_path, after, samples=SAMPLES)
        again.taken, watched = watched.taken, again
    else:
        victims = watched.cache.resize(after)
        assert set(victims) == set(held) - set(watched.cache.residents)
    cache = watched.cache
    assert cache.budget_bytes == after
    assert data.stat().st_size <= max(after, 1 << 20)
    assert (len(cache) == len(held)) or after < before
    if after < before:
        assert len(cache) > 0.8 * len(held) * cache.usable_bytes / (before + 1) or len(held) < 50
    watched.check()
    assert all(watched.hits(cache.residents.tolist()))
    if way == "resized":
        cache.close()
        again = watch(tmp_path, after, samples=SAMPLES)
        again.taken, watched = watched.taken, again
        assert not watched.cache.rebuilt
    assert (watched.cache.tag, watched.cache.notes["note"].tolist()) == (7, [0, 1, 2])
    fill(watched, 1, 1500)
    assert data.stat().st_size <= max(after, 1 << 20)
    assert watched.cache.stats.evicted_for_room == 0
    watched.check()
    assert all(watched.hits(watched.cache.residents.tolist()))


def test_a_budget_in_memory_can_be_changed_too(watch: Watch) -> None:
    watched = watch(None, 1 << 20, samples=SAMPLES)
    fill(watched, 0, 500)
    assert len(watched.cache.resize(300_000)) > 50
    watched.check()
    assert len(watched.cache.resize(1 << 20)) == 0
    watched.check()


def test_compacting_gives_back_what_nobody_needs(tmp_path: Path, watch: Watch) -> None:
    data = tmp_path / "data.mdb"
    watched = watch(tmp_path, 16 << 20, samples=SAMPLES)
    fill(watched, 0, 3000)
    leaving = np.random.default_rng(2).permutation(watched.cache.residents)[:2500]
    watched.cache.delete(leaving)
    watched.cache.save(3)
    before = data.stat().st_size
    given_back = watched.cache.compact()
    assert data.stat().st_size == before - given_back
    assert data.stat().st_size < 1.3 * watched.cache.resident_bytes + 200_000
    assert watched.cache.is_current
    assert all(watched.hits(watched.cache.residents.tolist()))
    watched.check()
    fill(watched, 3, 500)
    watched.cache.close()
    again = watch(tmp_path, 16 << 20, samples=SAMPLES)
    assert again.cache.tag == 3
    assert not again.cache.rebuilt


def test_what_was_not_saved_is_not_saved_by_compacting(tmp_path: Path) -> None:
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](9)) as cache:
        buffer, zero = np.ones(5000, np.uint8), np.array([0])
        cache.offer(np.array([1]), buffer, zero, np.array([5000]))
        cache.save(1)
        cache.offer(np.array([2]), buffer, zero, np.array([5000]))
        cache.compact()
        assert not cache.is_current
        assert cache.get(2) == buffer.tobytes()
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](9)) as cache:
        assert cache.tag == 1
        assert set(cache.residents) | set(cache.missing) == {1}


def test_pages_that_held_something_before_it_was_reopened_are_given_back(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    with open_cache(tmp_path, 4 << 20, POLICIES["lru"](4000)) as cache:
        for sample in range(1100):
            cache.put(sample, bytes([sample % 251]) * 3000)
        cache.delete(np.arange(3, 4000))
        cache.save(1)
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](4000)) as cache:
        assert data.stat().st_size <= 1 << 20
        cache.compact()
        assert data.stat().st_size < 100_000
        assert cache.residents.tolist() == [0, 1, 2]
        assert cache.get(2) == bytes([2]) * 3000


@pytest.mark.parametrize("count", range(240, 252))
def test_a_file_just_below_its_new_size_can_still_be_written(tmp_path: Path, count: int) -> None:
    with open_cache(tmp_path, 3 << 20, POLICIES["lru"](4000)) as cache:
        for sample in range(count):
            cache.put(sample, bytes([sample % 251]) * 4000)
        cache.compact()
        cache.resize(1 << 20)
        for sample in range(2000, 2060):
            assert cache.put(sample, b"z" * 4000)
        cache.save(1)
        assert cache.stats.evicted_for_room == 0
        assert (tmp_path / "data.mdb").stat().st_size <= 1 << 20


def test_after_compacting_an_older_state_is_not_taken_for_what_lies_there(tmp_path: Path) -> None:
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](100)) as cache:
        for sample in range(20):
            cache.put(sample, bytes([sample]) * 3000)
        cache.save(1)
        for sample in range(20):
            cache.put(sample, bytes([sample + 100]) * 3000)
        cache.compact()
        for turn in range(60):  # LMDB numbers its transactions anew, and passes the saved number
            cache.put(0, bytes([turn]) * 3000)
            cache.store._file.flush()
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](100)) as cache:
        assert cache.tag == 1
        kept = cache.residents.tolist()
        assert sorted([*kept, *cache.missing.tolist()]) == list(range(20))
        assert all(cache.get(sample) == bytes([sample]) * 3000 for sample in kept)
        assert cache.stats.corrupt == 0


def test_who_dies_between_two_page_sizes_leaves_a_report(tmp_path: Path) -> None:
    with open_cache(tmp_path, 4 << 20, POLICIES["lru"](100)) as cache:
        for sample in range(50):
            cache.put(sample, bytes(3000))
        cache.save(1)
        cache.put(60, b"unsaved")
        cache.resize(8 << 20)
    with open_cache(tmp_path, 8 << 20, POLICIES["lru"](100)) as cache:
        assert len(cache) == 0
        assert "pages of 4096 bytes" in cache.rebuilt_reason


@pytest.mark.parametrize("after", BUDGETS)
@pytest.mark.parametrize("before", BUDGETS)
def test_an_empty_cache_takes_on_any_budget(tmp_path: Path, before: int, after: int) -> None:
    with open_cache(tmp_path, before, POLICIES["lru"](9)) as cache:
        cache.save(1)
        assert len(cache.resize(after)) == 0
        assert cache.put(3, b"three")
        cache.save(2)
    with open_cache(tmp_path, before, POLICIES["lru"](9)) as cache:
        assert (cache.tag, cache.get(3)) == (2, b"three")


def test_what_a_smaller_budget_evicted_on_opening_stays_away(tmp_path: Path, watch: Watch) -> None:
    watched = watch(tmp_path, 3 << 20, samples=SAMPLES)
    fill(watched, 0, 500)
    watched.cache.save(1)
    watched.cache.close()
    with open_cache(tmp_path, 1 << 20, POLICIES["lru"](SAMPLES)) as cache:
        kept = cache.residents.tolist()
        assert cache.is_current
    with open_cache(tmp_path, 3 << 20, POLICIES["lru"](SAMPLES)) as cache:
        assert cache.residents.tolist() == kept
        assert len(cache.missing) == 0

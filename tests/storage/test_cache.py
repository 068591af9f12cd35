"""The cache keeps its budget and its promises, over both stores and every policy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import POLICIES, Layout, NotAllowed, NoVictim, Status, open_cache, usable_bytes

Watch = Callable[..., Any]
SAMPLES = 40
SIZES = st.sampled_from([0, 1, 100, 785, 2040, 2048, 4068, 4069, 4080, 4096, 9000, 40_000])
NUMBERS = st.lists(st.integers(0, SAMPLES - 1), max_size=8)
OPERATIONS = st.one_of(
    st.tuples(st.just("read"), NUMBERS),
    st.tuples(
        st.just("offer"),
        st.lists(
            st.tuples(st.integers(0, SAMPLES - 1), SIZES), max_size=8, unique_by=lambda o: o[0]
        ),
        st.integers(0, 1),
    ),
    st.tuples(st.just("delete"), NUMBERS),
    st.tuples(st.just("pin"), NUMBERS),
    st.tuples(st.just("unpin"), NUMBERS),
    st.tuples(st.just("evict"), st.integers(0, 50_000)),
)


def apply(watched, operation: tuple) -> object:
    """Carry out one operation; returns what was decided."""
    kind, argument = operation[0], operation[1]
    cache = watched.cache
    if kind == "read":
        return watched.read(argument).status.tolist()
    if kind == "offer":
        samples, sizes = [s for s, _ in argument], [n for _, n in argument]
        return watched.offer(samples, sizes, version=operation[2])
    if kind == "evict":
        try:
            return cache.evict(argument).tolist()
        except NoVictim:
            return "no victim"
    getattr(cache, kind)(np.array(argument, np.int64))
    return None


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=st.lists(OPERATIONS, max_size=40), budget=st.sampled_from([0, 9000, 60_000]))
def test_both_stores_keep_the_budget_and_decide_alike(
    operations: list[tuple], budget: int, policy_name: str, tmp_path_factory, watch: Watch
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    lmdb = watch(folder, budget, policy_name, SAMPLES)
    memory = watch(None, budget, policy_name, SAMPLES)
    for operation in operations:
        assert apply(lmdb, operation) == apply(memory, operation)
        lmdb.check()
        memory.check()
        assert lmdb.cache.residents.tolist() == memory.cache.residents.tolist()
    assert lmdb.cache.stats == memory.cache.stats
    lmdb.cache.close()


def test_long_random_use_keeps_the_budget(
    folder: Path | None, policy_name: str, watch: Watch
) -> None:
    rng = np.random.default_rng(8)
    watched = watch(folder, 120_000, policy_name, SAMPLES)
    sizes = [0, 100, 785, 2040, 4080, 4096, 9000, 130_000]
    for _ in range(2500):
        kind = rng.choice(["read", "offer", "overwrite", "delete"], p=[0.4, 0.4, 0.1, 0.1])
        samples = rng.choice(SAMPLES, 3, replace=False).tolist()
        if kind == "read":
            watched.read(samples)
        elif kind == "delete":
            watched.cache.delete(np.array(samples))
        else:
            version = int(rng.integers(99)) if kind == "overwrite" else 0
            watched.offer(samples, rng.choice(sizes, 3).tolist(), version)
        watched.check()
    assert watched.cache.stats.hits > 100
    assert watched.cache.stats.rejected > 100


def test_random_traces_hit_alike_in_both_stores(
    policy_name: str, tmp_path: Path, watch: Watch
) -> None:
    rng = np.random.default_rng(5)
    sizes = rng.integers(300, 20_000, 200)
    pair = [watch(p, 1 << 20, policy_name, 200) for p in (tmp_path / "c", None)]
    for _ in range(80):
        batch = rng.zipf(1.3, 32) % 200
        for watched in pair:
            read = watched.read(batch.tolist())
            missed = np.unique(batch[~read.served])
            watched.offer(missed.tolist(), sizes[missed].tolist())
        assert pair[0].cache.residents.tolist() == pair[1].cache.residents.tolist()
    assert pair[0].cache.stats == pair[1].cache.stats
    assert pair[0].cache.stats.hits > 0
    pair[0].check()


def test_a_batch_is_decided_as_if_offered_one_by_one(policy_name: str, watch: Watch) -> None:
    rng = np.random.default_rng(6)
    together, apart = (watch(None, 60_000, policy_name, SAMPLES) for _ in range(2))
    for _ in range(100):
        samples = rng.choice(SAMPLES, 12, replace=False).tolist()
        sizes = rng.choice([100, 785, 4096, 9000, 80_000], 12).tolist()
        one_by_one = [apart.offer([s], [n])[0] for s, n in zip(samples, sizes, strict=True)]
        assert together.offer(samples, sizes) == one_by_one
        assert together.cache.residents.tolist() == apart.cache.residents.tolist()
    assert together.cache.stats == apart.cache.stats


def test_a_sample_over_the_whole_budget_is_rejected_and_nothing_evicted(
    folder: Path | None, policy_name: str, watch: Watch
) -> None:
    watched = watch(folder, 60_000, policy_name)
    watched.offer([1, 2], [9000, 9000])
    assert watched.offer([3], [60_000]) == [False]
    assert watched.cache.residents.tolist() == [1, 2]
    assert watched.cache.stats.rejected == 1
    assert watched.cache.stats.evicted_samples == 0
    watched.check()


def test_a_sample_of_exactly_the_usable_budget_is_kept_alone(
    folder: Path | None, watch: Watch
) -> None:
    cost_of = Layout.for_budget(60_000).cost_of
    size = next(n for n in range(40_000, 60_000) if cost_of(n) > usable_bytes(60_000)) - 1
    budget = next(b for b in range(1, 70_000) if usable_bytes(b) == cost_of(size))
    watched = watch(folder, budget)
    watched.offer([1, 2], [785, 785])
    assert watched.cache.could_take(size)
    assert watched.offer([3], [size]) == [True]
    assert watched.cache.residents.tolist() == [3]
    assert watched.cache.used_bytes == watched.cache.usable_bytes
    watched.check()


@pytest.mark.parametrize("new_size", [1, 100, 101, 5000, 30_000])
def test_an_overwrite_counts_the_new_payload(
    folder: Path | None, policy_name: str, watch: Watch, new_size: int
) -> None:
    watched = watch(folder, 60_000, policy_name)
    watched.offer([1, 2], [100, 785])
    assert watched.offer([1], [new_size], version=1) == [True]
    assert watched.cache.residents.tolist() == [1, 2]
    assert watched.cache.resident_bytes == new_size + 785
    assert watched.hits([1, 2]) == [True, True]
    watched.check()


def test_an_oversize_overwrite_keeps_the_old_payload(
    folder: Path | None, policy_name: str, watch: Watch
) -> None:
    watched = watch(folder, 60_000, policy_name)
    watched.offer([1, 2], [100, 785])
    assert watched.offer([1], [70_000]) == [False]
    assert watched.hits([1, 2]) == [True, True]
    assert watched.cache.resident_bytes == 885
    watched.check()


def test_the_same_payload_again_is_not_written(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 60_000)
    watched.offer([1], [100])
    before = watched.cache.stats.copy()
    assert watched.offer([1], [100]) == [True]
    assert (watched.cache.stats - before).written_samples == 0
    assert watched.offer([1], [100], version=1) == [True]
    assert (watched.cache.stats - before).written_samples == 1
    assert watched.hits([1]) == [True]


def test_of_a_repeated_sample_the_last_counts(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 60_000)
    assert watched.offer([5, 1, 5], [100, 200, 300]) == [True, True, True]
    assert watched.hits([5, 1]) == [True, True]
    watched.check()


def test_without_a_budget_everything_is_a_miss(
    folder: Path | None, policy_name: str, watch: Watch
) -> None:
    watched = watch(folder, 0, policy_name)
    for _ in range(3):
        assert watched.offer([1, 2], [0, 785]) == [False, False]
        assert watched.hits([1, 2, 1]) == [False] * 3
    assert watched.cache.stats.misses == watched.cache.stats.requests == 9
    watched.check()


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        open_cache(None, -1, POLICIES["lru"](3))


def test_when_all_is_pinned_nothing_comes_in(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 9400)
    cache = watched.cache
    assert watched.offer([1, 2, 3, 4, 5, 6, 7, 8], [785] * 8) == [True] * 8
    cache.pin(cache.residents)
    assert watched.offer([20, 21], [4000, 785]) == [False, True]
    assert cache.stats.no_victim == 1
    cache.pin(np.array([21]))
    with pytest.raises(NoVictim):
        cache.evict(cache.usable_bytes)
    cache.unpin(np.array([3, 3]))
    assert watched.offer([22], [785]) == [True]
    assert 3 not in cache
    assert 1 in cache
    watched.check()


def test_pins_add_up(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 60_000)
    watched.offer([1], [785])
    one = np.array([1])
    watched.cache.pin(one)
    watched.cache.pin(one)
    watched.cache.unpin(one)
    with pytest.raises(NoVictim):
        watched.cache.evict(watched.cache.usable_bytes)
    watched.cache.unpin(one)
    assert watched.cache.evict(watched.cache.usable_bytes).tolist() == [1]
    watched.check()


def test_counters_tell_what_happened(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 60_000)
    sizes = {1: 100, 2: 3000, 3: 785}
    watched.offer([1, 2], [100, 3000])
    before = watched.cache.stats.copy()
    read = watched.read([1, 3, 2, 3, 1])
    delta = watched.cache.stats - before
    assert read.status.tolist() == [Status.HIT, Status.MISS, Status.HIT, Status.MISS, Status.HIT]
    assert (delta.requests, delta.hits, delta.misses) == (5, 3, 2)
    assert delta.hit_bytes == 100 + 3000 + 100
    missed = read.samples[~read.served]
    assert sum(sizes[s] for s in missed.tolist()) == 2 * 785
    watched.cache.evict(watched.cache.usable_bytes)
    delta = watched.cache.stats - before
    assert (delta.evicted_samples, delta.evicted_bytes) == (2, 3100)


def test_staged_samples_are_hits_counted_apart(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 60_000)
    watched.offer([1, 2], [100, 100])
    watched.cache.mark_staged(np.array([2, 9]))
    assert watched.read([1, 2, 9]).status.tolist() == [Status.HIT, Status.STAGED, Status.MISS]
    assert (watched.cache.stats.hits, watched.cache.stats.staged) == (2, 1)
    watched.cache.delete(np.array([2]))
    watched.offer([2], [100])
    assert watched.read([2]).status.tolist() == [Status.HIT]


def test_a_mark_of_staging_can_be_taken_off(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 60_000)
    watched.offer([1, 2, 3], [100, 100, 100])
    watched.cache.mark_staged(np.array([1, 2]))
    assert watched.read([1]).status.tolist() == [Status.STAGED]
    watched.cache.unmark_staged(np.array([1, 3, 9, 1]))
    assert watched.read([1, 2, 3]).status.tolist() == [Status.HIT, Status.STAGED, Status.HIT]
    assert (watched.cache.stats.hits, watched.cache.stats.staged) == (4, 2)
    with pytest.raises(ValueError, match=r"0\.\.63"):
        watched.cache.unmark_staged(np.array([2, 64]))
    assert watched.read([2]).status.tolist() == [Status.STAGED]


def test_what_is_written_is_known_without_telling_the_policy_of_reads(
    folder: Path | None, watch: Watch
) -> None:
    watched = watch(folder, 60_000)
    assert watched.cache.written == (0, 0)
    assert watched.offer([1, 2], [100, 3000], nominal=[200, 4000]) == [True, True]
    assert watched.cache.written == (2, 4200)
    read = watched.cache.read(np.array([1, 1, 5]), np.zeros(200, np.uint8))
    assert watched.cache.written == (2, 4200)
    assert watched.cache._log.count == len(read.samples) == 3
    watched.offer([1, 3, 4], [100, 785, 70_000], nominal=[200, 785, 70_000])
    watched.cache.put(5, b"12345")
    assert watched.cache.written == (4, 4990)
    stats = watched.cache.stats
    assert watched.cache.written == (stats.written_samples, stats.written_bytes)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    residents=st.lists(SIZES, max_size=12),
    pinned=NUMBERS,
    size=SIZES,
    budget=st.sampled_from([0, 9000, 60_000]),
)
def test_what_could_not_be_taken_is_not(
    residents: list[int],
    pinned: list[int],
    size: int,
    budget: int,
    policy_name: str,
    watch: Watch,
) -> None:
    watched = watch(None, budget, policy_name, SAMPLES)
    cache, newcomer = watched.cache, len(residents)
    cache.pin(np.array(pinned, np.int64))
    watched.offer(list(range(newcomer)), residents)
    possible = cache.could_take(size)
    taken = watched.offer([newcomer], [size]) == [True]
    assert taken <= possible
    if policy_name in {"lru", "fifo", "static"}:  # these take whatever they can
        assert taken == possible


def test_room_for_a_newcomer_is_what_is_free_and_what_may_leave(
    folder: Path | None, watch: Watch
) -> None:
    lru, static = watch(folder, 60_000), watch(None, 60_000, "static")
    for watched in (lru, static):
        watched.offer([1, 2], [20_000, 20_000])
    cost_of = Layout.for_budget(60_000).cost_of
    most, rest = lru.cache.usable_bytes, lru.cache.usable_bytes - lru.cache.used_bytes
    for cache, room_bytes in ((lru.cache, most), (static.cache, rest)):
        largest = max(n for n in range(60_000) if cost_of(n) <= room_bytes)
        assert cache.could_take(largest)
        assert not cache.could_take(largest + 1)
    lru.cache.pin(np.array([1, 2, 40]))
    assert lru.cache.could_take(785)
    assert not lru.cache.could_take(20_000)
    assert not watch(None, 0).cache.could_take(0)


def test_declared_sizes_are_charged_instead_of_the_payload(tmp_path: Path, watch: Watch) -> None:
    watched = watch(
        tmp_path, 10_000_000, samples=64, payload_bytes=np.full(64, 784), identity="inflated"
    )
    for start in range(0, 20, 4):
        samples = list(range(start, start + 4))
        watched.offer(samples, [784] * 4, nominal=[3_000_000] * 4)
    assert watched.cache.residents.tolist() == [17, 18, 19]
    assert watched.cache.resident_bytes == 9_000_000
    watched.check()


def test_a_short_buffer_is_refused_before_anything_changes(
    folder: Path | None, watch: Watch
) -> None:
    watched = watch(folder, 60_000)
    watched.offer([1, 2], [100, 200])
    before = watched.cache.stats.copy()
    with pytest.raises(ValueError, match="300 are needed"):
        watched.cache.read(np.array([1, 2]), np.zeros(299, np.uint8))
    assert watched.cache.stats == before


def test_bad_arguments_are_refused_before_anything_changes(
    folder: Path | None, watch: Watch
) -> None:
    cache = watch(folder, 60_000).cache
    buffer, one, zero = np.zeros(10, np.uint8), np.array([1]), np.array([0])
    for samples, starts, lengths in (
        ([64], [0], [5]), ([-1], [0], [5]), ([1], [6], [5]), ([1], [-1], [5]), ([1, 2], [0], [5]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"must be|negative|after the buffer"):
            cache.offer(np.array(samples), buffer, np.array(starts), np.array(lengths))
    with pytest.raises(ValueError, match="negative"):
        cache.offer(one, buffer, zero, one, np.array([-1]))
    with pytest.raises(ValueError, match=r"0\.\.63"):
        cache.read(np.array([64]), buffer)
    assert len(cache) == 0
    assert -1 not in cache
    assert "1" not in cache


def test_empty_batches_do_nothing(folder: Path | None, watch: Watch) -> None:
    watched = watch(folder, 60_000)
    assert watched.offer([], []) == []
    assert watched.hits([]) == []
    watched.cache.delete(np.array([], np.int64))
    assert watched.cache.evict(0).tolist() == []


def test_a_closed_cache_says_so(folder: Path | None, watch: Watch) -> None:
    cache = watch(folder, 60_000).cache
    with cache:
        pass
    cache.close()
    with pytest.raises(NotAllowed, match="open it again"):
        cache.read(np.array([1]), np.zeros(9, np.uint8))
    with pytest.raises(NotAllowed, match="open it again"):
        cache.offer(np.array([1]), np.zeros(9, np.uint8), np.array([0]), np.array([9]))


def test_threads_read_right_bytes_or_miss_while_others_evict(
    folder: Path | None, watch: Watch
) -> None:
    writer = watch(folder, 60_000)
    for sample in range(SAMPLES):
        writer.offer([sample], [3000])
    failures: list[str] = []

    def read_all() -> None:
        buffer = np.zeros(8 * 3000, np.uint8)
        for turn in range(100):
            samples = np.arange(turn, turn + 8) % SAMPLES
            read = writer.cache.read(samples, buffer)
            for sample, start, served in zip(samples, read.starts, read.served, strict=True):
                got = buffer[start : start + 3000].tobytes()
                if served and got != writer.taken[int(sample)]:
                    failures.append(f"wrong bytes of {sample}")

    threads = [threading.Thread(target=read_all) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(100):
        writer.offer([turn % SAMPLES], [3000])
    for thread in threads:
        thread.join()
    assert not failures
    assert writer.cache.stats.corrupt == 0

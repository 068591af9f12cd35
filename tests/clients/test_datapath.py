"""The data path: the same whoever reads, exact counts, and memory that stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.datapath import Ahead, Buffers, DataPath, last_uses
from clients.fetching import Fetcher
from clients.meter import MeterReading
from clients.samplers import SAMPLERS
from storage import LRU, POLICIES, SampleCache, Static, Status
from storage.buffers import touched
from tests.clients.participations import (
    Event,
    Listened,
    Seen,
    assert_same,
    drawn,
    participate,
    path_of,
    state_of,
    threads_of_ours,
)

SAMPLES, BATCH, STEPS = 40, 8, 12
DATA = drawn(SAMPLES)
BUDGET = int(DATA.size_bytes.sum()) // 2
EVERYWHERE = [(depth, readers) for depth in range(1, 7) for readers in range(1, 4)]
SOMEWHERE = [(1, 1), (2, 1), (2, 3), (3, 2), (4, 1), (6, 3)]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not threads_of_ours()


class Rounds:
    """A few participations in a row, each ordered by a sampler for the cache as it is."""

    def __init__(self, policy: str, sampler: str, ahead: Ahead) -> None:
        self.cache = Listened(BUDGET, POLICIES[policy](SAMPLES))
        self.sampler = SAMPLERS[sampler](SAMPLES, BATCH)
        self.buffers = Buffers()
        self.seen = [self._round(number, ahead) for number in range(3)]

    def _round(self, number: int, ahead: Ahead) -> Seen:
        resident = np.zeros(SAMPLES, dtype=bool)
        resident[self.cache.residents] = True
        rng = np.random.default_rng(number)
        order = self.sampler.checked_order(resident, STEPS * BATCH, rng)
        weights = self.sampler.checked_weights(order)
        path = path_of(
            order, DATA, self.cache, ahead, batch_size=BATCH, buffers=self.buffers, weights=weights
        )
        seen = participate(path, self.cache)
        for batch, losses in zip(seen.batches, seen.losses, strict=True):
            self.sampler.feedback(batch.samples, losses)
        return seen


def assert_threads_change_nothing(policy: str, sampler: str, places: list[tuple[int, int]]) -> None:
    for depth in sorted({depth for depth, _ in places}):
        turns = Rounds(policy, sampler, Ahead(depth))
        for readers in [readers for d, readers in places if d == depth]:
            threads = Rounds(policy, sampler, Ahead(depth, readers, threads=True))
            assert threads.cache.events == turns.cache.events
            assert state_of(threads.cache) == state_of(turns.cache)
            for ours, theirs in zip(threads.seen, turns.seen, strict=True):
                assert_same(ours, theirs)


@pytest.mark.parametrize("sampler", ["uniform", "pads", "unbiased"])
@pytest.mark.parametrize("policy", POLICIES)
def test_threads_change_nothing(policy: str, sampler: str) -> None:
    assert_threads_change_nothing(policy, sampler, SOMEWHERE)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["uniform", "pads"])
@pytest.mark.parametrize("policy", ["lru", "next_use", "experience", "icache"])
def test_threads_change_nothing_at_any_depth(policy: str, sampler: str) -> None:
    assert_threads_change_nothing(policy, sampler, EVERYWHERE)


def with_lag(batches: list[list[int]], depth: int) -> list[Event]:
    """What a cache should hear: the losses of batch j - depth just before batch j is read."""
    events: list[Event] = []
    for number, batch in enumerate(batches):
        if number >= depth:
            events.append(("told", batches[number - depth]))
        events.append(("read", batch))
    return events + [("told", batch) for batch in batches[max(len(batches) - depth, 0) :]]


@pytest.mark.parametrize("readers", [0, 1, 2, 3])
@pytest.mark.parametrize("depth", range(1, 7))
@pytest.mark.parametrize("steps", [1, 3, 12])
def test_before_batch_j_losses_up_to_j_minus_depth_are_known(
    depth: int, readers: int, steps: int
) -> None:
    order = np.random.default_rng(1).integers(0, SAMPLES, steps * BATCH)
    cache = Listened(BUDGET, POLICIES["importance"](SAMPLES))
    path = path_of(order, DATA, cache, Ahead(depth, max(readers, 1), threads=readers > 0))
    participate(path, cache)
    batches = np.split(order, steps)
    assert cache.events == with_lag([batch.tolist() for batch in batches], depth)


def test_the_losses_are_those_of_the_batch() -> None:
    told: list[tuple[np.ndarray, np.ndarray]] = []

    class Hears(LRU):
        def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
            told.append((samples.copy(), losses.copy()))

    order = np.random.default_rng(2).permutation(SAMPLES)
    cache = Listened(BUDGET, Hears(SAMPLES))
    seen = participate(path_of(order, DATA, cache, Ahead(3, 2, threads=True)), cache)
    assert len(told) == len(seen.batches) == 5
    for (samples, losses), batch, expected in zip(told, seen.batches, seen.losses, strict=True):
        np.testing.assert_array_equal(samples, batch.samples)
        np.testing.assert_array_equal(losses, expected)


def test_a_policy_that_learns_nothing_is_told_nothing() -> None:
    cache = Listened(BUDGET, LRU(SAMPLES))
    participate(path_of(np.arange(SAMPLES), DATA, cache, Ahead(2)), cache)
    assert {event for event, _ in cache.events} == {"read"}


@settings(max_examples=60)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    share=st.sampled_from([0.0, 0.1, 0.5, 3.0]),
    batch_size=st.integers(1, 12),
    depth=st.integers(1, 6),
    readers=st.integers(0, 3),
    orders=st.lists(
        st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=60), min_size=1, max_size=3
    ),
)
def test_counts_are_exact(
    policy: str,
    share: float,
    batch_size: int,
    depth: int,
    readers: int,
    orders: list[list[int]],
) -> None:
    budget = int(share * DATA.size_bytes.sum())
    cache = Listened(budget, POLICIES[policy](SAMPLES))
    ahead = Ahead(depth, max(readers, 1), threads=readers > 0)
    for requests in orders:
        order, before = np.array(requests), cache.stats.copy()
        cache.reads.clear()
        path = path_of(order, DATA, cache, ahead, batch_size=batch_size)
        seen = participate(path, cache)  # which lets the meter check itself
        did, meter = cache.stats - before, seen.meter
        status = np.concatenate([read.status for read in cache.reads])
        served = np.concatenate([read.samples for read in cache.reads])
        np.testing.assert_array_equal(seen.samples, served)
        missed = order[status >= Status.MISS]
        assert meter.origin_bytes == DATA.size_bytes[missed].sum()
        assert meter.hit_bytes == DATA.size_bytes[served[status < Status.MISS]].sum()
        assert meter.requests == meter.trained_samples == len(order)
        assert meter.decoded_bytes == DATA.size_bytes[served].sum()
        assert meter.unique_samples == len(np.unique(served))
        assert (meter.depth, meter.readers) == (depth, max(readers, 1))
        of_cache = {name: getattr(did, name) for name in did.__dataclass_fields__}
        for name in set(of_cache) & set(meter.totals):
            assert meter.totals[name] == of_cache[name], name
        assert cache.used_bytes <= cache.usable_bytes


def test_a_step_has_the_counts_of_its_own_batch() -> None:
    cache = Listened(10 * BUDGET, LRU(SAMPLES))
    order = np.array([0, 1, 2, 3, 0, 1, 9, 9])
    meter = participate(path_of(order, DATA, cache, Ahead(), batch_size=4), cache).meter
    sizes = DATA.size_bytes
    assert meter.step_samples == [4, 4]
    assert meter.step_reads == [0, 2]
    assert meter.step_misses == [4, 2]
    assert meter.step_hit_bytes == [0, sizes[[0, 1]].sum()]
    assert meter.step_origin_bytes == [sizes[:4].sum(), 2 * sizes[9]]
    assert meter.step_written == [4, 1]
    assert meter.step_written_bytes == [sizes[:4].sum(), sizes[9]]
    assert meter.step_decoded == [4, 4]
    assert meter.unique_samples == 5
    assert meter.effective_samples == pytest.approx(64 / (3 * 4 + 2 * 1))


class Crowded(AbstractContextManager[None]):
    """A turn before and after which others write as well."""

    def __init__(self, cache: SampleCache) -> None:
        self._cache, self._others = cache, iter([30, 31])

    def __enter__(self) -> None:
        self._cache.put(next(self._others), bytes(500))

    def __exit__(self, *_: object) -> None:
        self._cache.put(next(self._others), bytes(500))


def test_what_others_write_is_not_counted() -> None:
    cache, meter, order = Listened(10 * BUDGET, LRU(SAMPLES)), MeterReading(1), np.arange(4)
    fetcher = Fetcher(order, 4, DATA, cache, meter, None)
    buffer, scratch = (np.empty(DATA.scratch_bytes(4), np.uint8) for _ in range(2))
    fetcher.fetch(0, buffer, scratch, Crowded(cache))
    counted = meter.result(cache.stats)
    assert (counted.step_written, counted.written_samples) == ([4], 6)
    assert counted.step_written_bytes == [DATA.size_bytes[:4].sum()]


def test_weights_go_with_their_accesses_and_count() -> None:
    cache = Listened(BUDGET, LRU(SAMPLES))
    order, weights = np.array([3, 4, 5, 3, 3]), np.array([1.0, 0.0, 2.0, 0.5, 0.5])
    path = path_of(order, DATA, cache, Ahead(2, 1, threads=True), batch_size=2, weights=weights)
    seen = participate(path, cache)
    given = [batch.weights for batch in seen.batches if batch.weights is not None]
    assert [one.tolist() for one in given] == [[1.0, 0.0], [2.0, 0.5], [0.5]]
    assert seen.meter.effective_samples == pytest.approx(16 / 8)


@pytest.mark.parametrize("threads", [False, True])
def test_images_lie_in_the_slab_and_pools_do_not_grow(*, threads: bool) -> None:
    slabs: list[np.ndarray] = []

    def allocate(size_bytes: int) -> np.ndarray:
        slabs.append(touched(size_bytes))
        return slabs[-1]

    buffers, cache = Buffers(allocate), Listened(BUDGET, POLICIES["importance"](SAMPLES))
    taken = 0
    for number in range(5):
        order = np.random.default_rng(number).permutation(SAMPLES)
        path = path_of(order, DATA, cache, Ahead(3, 2, threads=threads), buffers=buffers)
        for batch in path.batches():
            assert np.shares_memory(batch.images, slabs[-1])
            path.feedback(batch.samples, np.ones(len(batch.samples)))
            taken += 1
        path.finish()
    assert taken == 25
    assert len(slabs) == 1


def test_the_memory_of_images_is_that_of_the_depth() -> None:
    """A batch stays as it is until the next is asked for, and its place is used again."""
    order = np.random.default_rng(0).permutation(SAMPLES)
    cache = Listened(BUDGET, LRU(SAMPLES))
    path = path_of(order, DATA, cache, Ahead(2, 1, threads=True))
    places = []
    for batch in path.batches():
        lengths = np.full(len(batch.samples), DATA.image_bytes)
        expected, buffer = np.empty_like(batch.images), np.empty(lengths.sum(), np.uint8)
        starts = DATA.origin.read(batch.samples, buffer, 0)
        DATA.dataset.decode(buffer, starts, lengths, expected)
        np.testing.assert_array_equal(batch.images, expected)
        places.append(batch.images.ctypes.data)
    assert len(places) == 5
    assert len(set(places)) == 2


def test_slabs_only_grow_whatever_shapes_come_in_turns() -> None:
    asked: list[int] = []

    def allocate(size_bytes: int) -> np.ndarray:
        asked.append(size_bytes)
        return touched(size_bytes)

    buffers = Buffers(allocate)
    for count, size_bytes in [(4, 5000), (2, 9000), (4, 5000), (1, 100), (3, 5000), (6, 5000)] * 2:
        pool = buffers.images(count, size_bytes)
        assert (pool.count, pool.free) == (count, count)
        assert pool.buffer_bytes >= size_bytes
    assert len(asked) == 2


def test_a_buffer_that_a_reader_still_has_is_never_lent_again() -> None:
    buffers = Buffers()
    lent = buffers.images(2, 100).take()
    pool = buffers.images(2, 100)
    assert pool.free == 2
    assert not any(np.shares_memory(lent, pool.take()) for _ in range(2))


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("after", [1, 3])
def test_leaving_early_gives_all_back(after: int, *, threads: bool) -> None:
    buffers, cache = Buffers(), Listened(BUDGET, LRU(SAMPLES))
    order = np.random.default_rng(0).integers(0, SAMPLES, 12 * BATCH)
    path = path_of(order, DATA, cache, Ahead(4, 3, threads=threads), buffers=buffers)
    source = path.batches()
    for _ in range(after):
        next(source)
    source.close()
    for pool in buffers._pools.values():
        assert pool.free == pool.count
    seen = participate(path_of(order, DATA, cache, Ahead(4, 3, threads=threads)), cache)
    assert seen.meter.trained_samples == len(order)


def test_samples_are_kept_until_their_last_use() -> None:
    order = np.array([1, 2, 3, 1, 4, 5, 2, 2, 6])
    per_step = [samples.tolist() for samples in last_uses(order, 3, np.array([1, 2, 6, 3]))]
    assert per_step == [[3], [1], [2, 6]]


@pytest.mark.parametrize("threads", [False, True])
def test_what_is_kept_outlives_demand_misses_and_nothing_longer(*, threads: bool) -> None:
    """Room for six samples, four of which were staged: LRU alone would throw them out."""
    data = replace(DATA, form=replace(DATA.form, size_bytes=np.full(SAMPLES, 3000)))
    kept = np.array([20, 21, 22, 23])
    order = np.array([0, 1, 2, 3, 4, 5, 20, 21, 6, 7, 8, 9, 22, 23, 30, 31])

    def staged_hits(pinned: np.ndarray | None) -> tuple[list[int], Listened]:
        cache = Listened(23_500, LRU(SAMPLES))
        assert cache.usable_bytes // cache._index.layout.cost_of(3000) == 6
        scratch = np.empty(data.scratch_bytes(4), np.uint8)
        starts = data.origin.read(kept, scratch, 0)
        lengths = data.origin.size_bytes[kept]
        assert cache.offer(kept, scratch, starts, lengths, data.form.size_bytes[kept]).all()
        cache.mark_staged(kept)
        ahead = Ahead(3, 2, threads=threads)
        seen = participate(DataPath(order, 2, data, cache, Buffers(), ahead, kept=pinned), cache)
        status = np.concatenate([read.status for read in cache.reads])
        assert seen.meter.staged == np.count_nonzero(status == Status.STAGED)
        return order[status == Status.STAGED].tolist(), cache

    hits, cache = staged_hits(kept)
    assert hits == kept.tolist()
    assert cache.residents.tolist() == [8, 9, 22, 23, 30, 31]
    assert not cache._index.staged.any()
    assert not cache._index.has_pins
    assert staged_hits(None)[0] == []


def test_what_is_kept_and_never_asked_for_is_not_held() -> None:
    cache = Listened(BUDGET, Static(SAMPLES))
    path = DataPath(np.arange(8), 4, DATA, cache, Buffers(), Ahead(), kept=np.array([2, 39]))
    participate(path, cache)
    assert not cache._index.has_pins

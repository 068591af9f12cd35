"""next_use: within a known order no cache does better, and off the plan nothing breaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import POLICIES, open_cache
from storage.bound import hit_bound
from storage.policies import NextUse
from storage.replay import BySize, replay
from storage.trace import Stream

SAMPLES = 10


def stream_of(order: list[int], batch: int, starts: list[int] | None = None) -> Stream:
    parts = starts or [0]
    return Stream(
        client=0,
        size_bytes=np.ones(SAMPLES, np.int64),
        requests=np.array(order),
        batch_starts=np.union1d(np.arange(0, len(order), batch), parts),
        starts=np.array(parts),
        rounds=np.arange(len(parts)),
    )


@given(
    order=st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=60),
    capacity=st.integers(0, SAMPLES),
)
def test_within_a_plan_it_is_the_optimum(order: list[int], capacity: int) -> None:
    stream = stream_of(order, batch=1)
    bound = hit_bound(stream, stream.size_bytes, capacity)
    assert bound.is_exact
    assert replay(stream, NextUse(SAMPLES), BySize(), capacity).hits == bound.hits


@given(
    passes=st.lists(st.permutations(range(SAMPLES)), min_size=1, max_size=8),
    batch=st.sampled_from([2, 5, 10]),
    capacity=st.integers(1, SAMPLES),
)
def test_in_batches_without_repeats_too(passes: list[list[int]], batch: int, capacity: int) -> None:
    stream = stream_of([sample for one in passes for sample in one], batch)
    bound = hit_bound(stream, stream.size_bytes, capacity)
    assert replay(stream, NextUse(SAMPLES), BySize(), capacity).hits == bound.hits


@given(
    passes=st.lists(st.permutations(range(SAMPLES)), min_size=2, max_size=6),
    capacity=st.integers(1, SAMPLES),
)
def test_when_each_participation_reads_all_once_it_keeps_what_it_has(
    passes: list[list[int]], capacity: int
) -> None:
    """As MinIO does: no sample is needed twice in what is known, so none is worth writing."""
    starts = [SAMPLES * position for position in range(len(passes))]
    stream = stream_of([sample for one in passes for sample in one], 5, starts)
    ours = replay(stream, NextUse(SAMPLES), BySize(), capacity)
    theirs = replay(stream, POLICIES["static"](SAMPLES), BySize(), capacity)
    assert (ours.hits, ours.written_bytes) == (theirs.hits, theirs.written_bytes)


def test_victims_by_hand() -> None:
    policy = NextUse(6)
    policy.plan(np.array([0, 1, 2, 3, 1, 0]))
    policy.inserted(np.array([0, 1, 2, 4]))
    assert list(policy.victims(None)) == [4, 2, 1, 0]
    policy.access(np.array([0, 1]), np.ones(2, dtype=bool))
    # Now 2 is needed next, 1 at position 4, 0 at 5, and 4 never.
    assert list(policy.victims(None)) == [4, 0, 1, 2]
    assert list(policy.victims(3)) == [4, 0, 1]
    assert list(policy.victims(5)) == []
    assert policy.exchange([5, 3]) == [-1, 4]


def test_what_is_read_off_the_plan() -> None:
    policy = NextUse(6)
    policy.plan(np.array([0, 1, 2, 0, 1]))
    policy.inserted(np.array([0, 1, 2]))
    policy.access(np.array([5]), np.zeros(1, dtype=bool))  # not in the plan
    policy.access(np.array([1]), np.ones(1, dtype=bool))  # before its turn
    assert list(policy.victims(None)) == [1, 2, 0]
    policy.access(np.array([2]), np.ones(1, dtype=bool))  # the plan goes on from there
    assert list(policy.victims(None)) == [2, 1, 0]
    policy.access(np.array([0, 1, 1]), np.ones(3, dtype=bool))
    policy.access(np.array([0]), np.ones(1, dtype=bool))
    assert list(policy.victims(None)) == [0, 1, 2]  # nothing is left of it


@given(data=st.data())
def test_a_restored_twin_decides_alike_for_ever(data: st.DataObject) -> None:
    sample = st.integers(0, SAMPLES - 1)
    policy = NextUse(SAMPLES)
    residents: set[int] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        order = data.draw(st.lists(sample, min_size=1, max_size=12))
        policy.plan(np.array(order))
        for read in [*order, *data.draw(st.lists(sample, max_size=2))]:
            policy.access(np.array([read]), np.array([read in residents]))
            if read not in residents and len(residents) < 3:
                policy.inserted(np.array([read]))
                residents.add(read)
            elif read not in residents:
                (victim,) = policy.exchange([read])
                if victim >= 0:
                    residents ^= {read, victim}
            if data.draw(st.booleans()):
                twin = NextUse(SAMPLES)
                twin.restore({name: c.copy() for name, c in policy.columns().items()})
                assert list(twin.victims(None)) == list(policy.victims(None))
                policy = twin


def test_a_cache_hands_the_plan_on_after_pending_reads() -> None:
    policy = NextUse(4)
    cache = open_cache(None, 1 << 20, policy)
    cache.plan(np.array([1, 2]))
    cache.read(np.array([1]), np.empty(0, np.uint8))
    cache.plan(np.array([1, 3]))
    policy.inserted(np.array([1, 2]))
    assert list(policy.victims(None)) == [2, 1]
    with pytest.raises(ValueError, match=r"0\.\.3"):
        cache.plan(np.array([4]))

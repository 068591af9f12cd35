"""Every row of the table keeps the contract; LRU equals a model of twenty lines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import LRU, POLICIES, Layout, Policy, SampleCache, ScorePolicy, open_cache
from storage.layout import usable_bytes
from storage.victim_queue import NOBODY

NewPolicy = Callable[[str, int], Policy]


def budget_for(slots: int, size: int) -> int:
    """The smallest budget that holds `slots` samples of one size."""
    need = slots * Layout.for_budget(0).cost_of(size)
    low, high = need, 2 * need + 10
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if usable_bytes(middle) >= need else (middle + 1, high)
    return low


def use(cache: SampleCache, batch: list[int], size: int) -> list[int]:
    """Read a batch, offer what was missing; returns what left."""
    before = set(cache.residents.tolist())
    samples = np.array(batch, np.int64)
    buffer = np.zeros(len(batch) * size, np.uint8)
    missed = np.unique(samples[~cache.read(samples, buffer).served])
    lengths = np.full(len(missed), size)
    cache.offer(missed, buffer, lengths * np.arange(len(missed)), lengths)
    return sorted(before - set(cache.residents.tolist()))


def drained(policy: Policy) -> list[int]:
    """All victims in order; nobody leaves."""
    order: Generator[int, None, None] = policy.victims(None)
    victims = list(order)
    order.close()
    return victims


def test_admit_answers_for_each_sample(policy_name: str, new_policy: NewPolicy) -> None:
    policy = new_policy(policy_name, 10)
    answer = policy.admit(np.array([1, 2, 3]), np.array([5, 5, 5]))
    assert answer.dtype == bool
    assert answer.shape == (3,)


def test_victims_are_residents_each_once_and_asking_changes_nothing(
    policy_name: str, new_policy: NewPolicy
) -> None:
    policy = new_policy(policy_name, 20)
    policy.access(np.array([4, 9, 4, 7]), np.zeros(4, dtype=bool))
    policy.inserted(np.array([4, 7, 9, 11]))
    policy.removed(np.array([7]), "evicted")
    first = drained(policy)
    assert len(set(first)) == len(first)
    assert set(first) <= {4, 9, 11}
    assert drained(policy) == first
    half = policy.victims(None)
    next(half, None)
    half.close()
    assert drained(policy) == first


@pytest.mark.parametrize("why", ["evicted", "overwritten", "deleted", "corrupt"])
def test_what_left_is_no_victim(policy_name: str, new_policy: NewPolicy, why: str) -> None:
    policy = new_policy(policy_name, 5)
    policy.inserted(np.arange(5))
    policy.removed(np.array([0, 3]), why)  # type: ignore[arg-type]
    assert set(drained(policy)) <= {1, 2, 4}


def test_restored_columns_decide_alike(policy_name: str, new_policy: NewPolicy) -> None:
    rng = np.random.default_rng(0)
    policy = new_policy(policy_name, 30)
    cache = SampleCache(open_cache(None, 0, policy).store, budget_for(8, 100), policy)
    for _ in range(30):
        use(cache, rng.integers(0, 30, 5).tolist(), 100)
    twin = new_policy(policy_name, 30)
    twin.capacity_bytes = policy.capacity_bytes
    twin.restore({name: column.copy() for name, column in policy.columns().items()})
    assert drained(twin) == drained(policy)
    for each in (policy, twin):
        each.access(np.array([3, 1, 2]), np.zeros(3, dtype=bool))
    assert drained(twin) == drained(policy)


def test_feedback_of_any_value_is_survived(policy_name: str, new_policy: NewPolicy) -> None:
    policy = new_policy(policy_name, 5)
    policy.inserted(np.arange(5))
    policy.feedback(np.array([0, 1, 2]), np.array([np.nan, np.inf, -1.0]))
    assert len(set(drained(policy))) == len(drained(policy))


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
def test_an_exchange_equals_taking_in_one_by_one(name: str, data: st.DataObject) -> None:
    swift, steady = POLICIES[name](16), POLICIES[name](16)
    slots = data.draw(st.integers(1, 9))
    residents: set[int] = set()
    for policy in (swift, steady):
        policy.capacity_bytes = 10 * slots
        policy.weigh(np.arange(16), np.full(16, 10))
    for _ in range(data.draw(st.integers(1, 30))):
        batch = data.draw(st.lists(st.integers(0, 15), min_size=1, max_size=6))
        losses = np.array(data.draw(st.lists(st.floats(0, 3), min_size=6, max_size=6)))
        incoming = [s for s in dict.fromkeys(batch) if s not in residents]
        hit = np.array([sample in residents for sample in batch])
        room = slots - len(residents) if swift.evicts else len(incoming)
        entering, late = incoming[:room], incoming[room:]
        for policy in (swift, steady):
            policy.access(np.array(batch), hit)
            policy.inserted(np.array(entering, np.int64))
        residents.update(entering)
        left = swift.exchange(late) if late else []
        assert left == Policy.exchange(steady, late)
        for sample, victim in zip(late, left, strict=True):
            if victim != NOBODY:
                residents.remove(victim)
                residents.add(sample)
        for policy in (swift, steady):
            policy.feedback(np.array(batch), losses[: len(batch)])
        assert drained(swift) == drained(steady)
        columns = steady.columns()
        for column_name, column in swift.columns().items():
            np.testing.assert_array_equal(column, columns[column_name], column_name)
        assert set(drained(swift)) <= residents


def test_the_table_holds_policies() -> None:
    assert {"lru", "static"} <= set(POLICIES)
    assert all(issubclass(policy, Policy) for policy in POLICIES.values())


@given(
    trace=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6), max_size=60),
    slots=st.integers(1, 8),
)
def test_lru_evicts_as_the_model_does(trace: list[list[int]], slots: int) -> None:
    cache = open_cache(None, budget_for(slots, 100), POLICIES["lru"](12))
    last_use: OrderedDict[int, None] = OrderedDict()
    held: set[int] = set()
    for batch in trace:
        missed = sorted(set(batch) - held)
        for sample in batch:
            last_use.pop(sample, None)
            last_use[sample] = None
        expected = []
        for sample in missed:
            if len(held) == slots:
                victim = next(s for s in last_use if s in held)
                held.remove(victim)
                expected.append(victim)
            held.add(sample)
        gone = use(cache, batch, 100)
        assert cache.residents.tolist() == sorted(held)
        assert set(gone) <= set(expected)


def test_lru_numbers_the_uses_inside_a_batch() -> None:
    policy = LRU(10)
    policy.access(np.array([5, 3, 8, 3]), np.zeros(4, dtype=bool))
    policy.inserted(np.array([3, 5, 8]))
    assert drained(policy) == [5, 8, 3]


def test_lru_counts_an_arrival_without_a_read_as_a_use() -> None:
    policy = LRU(10)
    policy.access(np.array([1]), np.zeros(1, dtype=bool))
    policy.inserted(np.array([1, 7, 4]))
    assert drained(policy) == [1, 7, 4]


def test_static_keeps_what_came_first() -> None:
    cache = open_cache(None, budget_for(3, 100), POLICIES["static"](10))
    assert use(cache, [4, 2, 9], 100) == []
    assert use(cache, [1, 2, 3], 100) == []
    assert cache.residents.tolist() == [2, 4, 9]
    assert cache.stats.rejected == 2


@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_with_residents_in_it_is_decided_one_by_one(name: str) -> None:
    at_once, singly = (open_cache(None, budget_for(5, 100), POLICIES[name](20)) for _ in range(2))
    buffer = np.zeros(1000, np.uint8)
    for batch in ([5, 6, 7, 8, 9], [15, 5], [9, 16, 17, 6]):
        samples = np.array(batch)
        lengths = np.full(len(batch), 100)
        for cache in (at_once, singly):
            cache.read(samples, buffer)
        at_once.offer(samples, buffer, 100 * np.arange(len(batch)), lengths)
        for sample in samples:
            singly.offer(np.array([sample]), buffer, np.zeros(1, np.int64), lengths[:1])
        assert at_once.residents.tolist() == singly.residents.tolist()


class ByLoss(ScorePolicy):
    """Evicts the smallest loss first."""

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        pass

    def feedback(self, samples: np.ndarray, losses: np.ndarray) -> None:
        self.rescore(samples, losses)


def test_ties_go_to_the_lowest_number() -> None:
    policy = ByLoss(6)
    policy.inserted(np.array([5, 1, 3, 0]))
    assert drained(policy) == [0, 1, 3, 5]
    policy.feedback(np.array([0, 5]), np.array([2.0, 2.0]))
    assert drained(policy) == [1, 3, 0, 5]


def test_scores_that_are_no_number_come_first_and_are_counted() -> None:
    policy = ByLoss(6)
    policy.inserted(np.arange(6))
    cache_losses = np.array([1.0, np.nan, -5.0, np.inf, -np.inf])
    policy.feedback(np.array([0, 4, 2, 3, 1]), cache_losses)
    assert drained(policy) == [1, 3, 4, 2, 5, 0]
    assert policy.quarantined == 3


def test_the_cache_counts_quarantined_scores() -> None:
    cache = open_cache(None, 1 << 20, ByLoss(6))
    cache.feedback(np.array([1, 2]), np.array([np.nan, 1.0]))
    assert cache.stats.quarantined == 1


@given(st.lists(st.tuples(st.integers(0, 7), st.floats(-3, 3)), max_size=200), st.data())
def test_a_lazy_order_equals_a_full_sort(
    changes: list[tuple[int, float]], data: st.DataObject
) -> None:
    policy = ByLoss(8)
    scores = np.zeros(8)
    held: set[int] = set()
    for sample, score in changes:
        policy.feedback(np.array([sample]), np.array([score]))
        scores[sample] = score
        if sample not in held:
            policy.inserted(np.array([sample]))
            held.add(sample)
        elif data.draw(st.booleans()):
            victims = policy.victims(None)
            first = next(victims)
            policy.removed(np.array([first]), "evicted")
            victims.close()
            assert first == min(held, key=lambda s: (scores[s], s))
            held.remove(first)
        assert drained(policy) == sorted(held, key=lambda s: (scores[s], s))


def test_the_heap_stays_in_proportion() -> None:
    policy = ByLoss(50)
    for turn in range(5000):
        policy.inserted(np.array([turn % 50]))
        policy.removed(np.array([turn % 50]), "deleted")
    assert len(policy._queue) < 2000

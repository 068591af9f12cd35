"""SIEVE's hand goes the way it would go along a list, whatever leaves in between."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Policy
from storage.policies import SIEVE
from storage.policy import Why
from tests.storage.policy_use import SAMPLES, RandomUse, order_of

SEEDS = [range(10), pytest.param(range(10, 200), marks=pytest.mark.slow)]


class ListSieve(Policy):
    """The queue is a list, and the hand goes along it one by one."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.queue: list[int] = []
        self.used: set[int] = set()
        self.hand = 0

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        self.used |= set(samples[hit].tolist())

    def victims(self, incoming: int | None) -> Generator[int, None, None]:  # noqa: ARG002
        before = self.queue.copy(), self.used.copy(), self.hand
        order = []
        while self.queue:
            order.append(self.find())
            self.take(order[-1])
        self.queue, self.used, self.hand = before
        yield from order

    def find(self) -> int:
        while self.queue[self.hand] in self.used:
            self.used.remove(self.queue[self.hand])
            self.step()
        return self.queue[self.hand]

    def step(self) -> None:
        self.hand = (self.hand + 1) % len(self.queue)

    def take(self, sample: int) -> None:
        place = self.queue.index(sample)
        self.queue.remove(sample)
        self.used.discard(sample)
        self.hand -= place < self.hand
        if self.hand == len(self.queue):
            self.hand = 0

    def inserted(self, samples: np.ndarray) -> None:
        self.queue += samples.tolist()

    def removed(self, samples: np.ndarray, why: Why) -> None:
        for sample in samples.tolist():
            while why == "evicted" and self.find() != sample:
                self.step()
            self.take(sample)

    def columns(self) -> dict[str, np.ndarray]:
        used = np.array([sample in self.used for sample in self.queue], dtype=bool)
        return {"queue": np.array(self.queue), "used": used, "hand": np.array(self.hand)}

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_hand_goes_as_along_a_list(seeds: range) -> None:
    for seed in seeds:
        swift, slow = SIEVE(SAMPLES), ListSieve(SAMPLES)
        use = RandomUse([swift, slow], seed)
        for _ in range(60):
            use.run(5)
            assert order_of(swift) == order_of(slow)
            expected = slow.columns()
            for name, column in swift.columns().items():
                np.testing.assert_array_equal(column, expected[name], name)


@given(
    count=st.integers(1, 200),
    turns=st.lists(st.tuples(st.integers(0, 199), st.integers(0, 20)), max_size=30),
)
def test_the_gaps_are_closed(count: int, turns: list[tuple[int, int]]) -> None:
    """Many come and go, so the array is laid anew; it stays in proportion to who is there."""
    swift, slow = SIEVE(4000), ListSieve(4000)
    for policy in (swift, slow):
        policy.inserted(np.arange(count))
    for turn, (used, many) in enumerate(turns):
        sample = np.array([slow.queue[used % count]])
        incoming = range(200 + 20 * turn, 200 + 20 * turn + many)
        left = []
        for policy in (swift, slow):
            policy.access(sample, np.array([True]))
            left.append(policy.exchange(incoming) if many else [])
        assert left[0] == left[1]
        assert len(swift._queue) <= max(64, 2 * (count + 20))
    assert order_of(swift) == order_of(slow)


def filled(count: int) -> SIEVE:
    policy = SIEVE(20)
    policy.inserted(np.arange(count))
    return policy


def use(policy: Policy, *samples: int) -> None:
    policy.access(np.array(samples), np.ones(len(samples), dtype=bool))


def test_the_hand_stays_where_it_found_a_victim() -> None:
    policy = filled(4)
    use(policy, 0, 2)
    assert policy.exchange([10]) == [1]
    use(policy, 0)
    assert policy.exchange([11]) == [3]  # the hand passed 2 and did not go back to 0
    assert policy.exchange([12]) == [10]


def test_whoever_comes_in_after_the_newest_has_left_is_not_next() -> None:
    policy = filled(3)
    use(policy, 0, 1)
    assert policy.exchange([10]) == [2]
    assert policy.exchange([11]) == [0]


def test_all_used_all_are_spared_once() -> None:
    policy = filled(3)
    use(policy, 0, 1, 2)
    assert policy.exchange([10, 11]) == [0, 1]


def test_an_overwritten_sample_comes_in_anew() -> None:
    policy = filled(3)
    use(policy, 0)
    policy.removed(np.array([0]), "overwritten")
    policy.inserted(np.array([0]))
    assert order_of(policy) == [1, 2, 0]


def test_a_pinned_sample_is_passed_by_and_offered_again() -> None:
    policy = filled(4)
    use(policy, 1)
    with closing(policy.victims(9)) as order:
        assert list(islice(order, 2)) == [0, 2]
        policy.removed(np.array([2]), "evicted")
    policy.inserted(np.array([9]))
    assert order_of(policy) == [3, 9, 0, 1]

"""GDSF names the lowest priority first, as a dictionary and a full sort do."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest

from storage import Policy
from storage.policies import GDSF
from storage.policy import Why
from storage.victim_queue import NOBODY
from tests.storage.policy_use import SAMPLES, RandomUse, order_of

SEEDS = [range(10), pytest.param(range(10, 200), marks=pytest.mark.slow)]


class SortedGDSF(Policy):
    """Of each sample the priority, the number of its last use, the uses and the charge."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.rows: dict[int, tuple[float, int, int, int]] = {}
        self.offered = dict.fromkeys(range(samples), 1)
        self.kept_uses: dict[int, int] = {}
        self.now = 0
        self.level = self.level_before = 0.0

    def weigh(self, samples: np.ndarray, costs: np.ndarray) -> None:
        self.offered.update(zip(samples.tolist(), costs.tolist(), strict=True))

    def rank(self, sample: int, uses: int, cost: int) -> None:
        self.now += 1
        self.rows[sample] = self.level_before + uses * 1e6 / cost, self.now, uses, cost

    def access(self, samples: np.ndarray, hit: np.ndarray) -> None:
        self.level_before = self.level
        for sample in samples[hit].tolist():
            _, _, uses, cost = self.rows[sample]
            self.rank(sample, uses + 1, cost)

    def victims(self, incoming: int | None) -> Generator[int, None, None]:
        claim = np.inf
        if incoming is not None:
            uses = self.rows[incoming][2] if incoming in self.rows else 1
            claim = self.level + uses * 1e6 / self.offered[incoming]
        for sample in sorted(self.rows, key=self.rows.__getitem__):
            if claim < self.rows[sample][0]:
                self.level = self.level_before = claim
                return
            yield sample

    def inserted(self, samples: np.ndarray) -> None:
        for sample in samples.tolist():
            self.rank(sample, self.kept_uses.pop(sample, 1), self.offered[sample])
        self.level_before = self.level

    def removed(self, samples: np.ndarray, why: Why) -> None:
        if why == "evicted":
            self.level_before = self.level
        for sample in samples.tolist():
            priority, _, uses, _ = self.rows.pop(sample)
            if why == "evicted":
                self.level = max(self.level, priority)
            elif why == "overwritten":
                self.kept_uses[sample] = uses

    def columns(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def restore(self, columns: dict[str, np.ndarray]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_order_is_that_of_a_full_sort(seeds: range) -> None:
    for seed in seeds:
        swift, slow = GDSF(SAMPLES), SortedGDSF(SAMPLES)
        use = RandomUse([swift, slow], seed)
        for _ in range(60):
            use.run(5)
            assert order_of(swift) == order_of(slow)


def filled(*costs: int) -> GDSF:
    policy = GDSF(30)
    policy.weigh(np.arange(len(costs)), np.array(costs))
    policy.inserted(np.arange(len(costs)))
    return policy


def use(policy: Policy, *samples: int) -> None:
    policy.access(np.array(samples), np.ones(len(samples), dtype=bool))


def test_large_ones_leave_first_and_of_equal_ones_what_was_used_least_lately() -> None:
    policy = filled(2, 4, 2, 1)
    assert order_of(policy) == [1, 0, 2, 3]
    use(policy, 0)
    use(policy, 1)
    assert order_of(policy) == [2, 1, 3, 0]


def test_a_newcomer_that_would_be_the_lowest_stays_out_but_not_for_ever() -> None:
    policy = filled(1, 1)
    use(policy, 0, 1)
    use(policy, 0)
    assert policy.exchange([5, 6, 7]) == [NOBODY, 1, 6]
    assert order_of(policy) == [0, 7]


def test_old_uses_are_worth_less_and_less() -> None:
    policy = filled(1, 1)
    use(policy, *[0] * 5)
    left = policy.exchange(list(range(10, 30)))
    assert left.index(0) == 10  # L rises by one for every two that leave


def test_an_overwritten_sample_keeps_its_uses_and_takes_the_new_charge() -> None:
    policy = filled(1, 1, 1)
    use(policy, 0, 0)
    policy.removed(np.array([0]), "overwritten")
    policy.weigh(np.array([0]), np.array([6]))
    policy.inserted(np.array([0]))
    assert order_of(policy) == [0, 1, 2]


def test_what_left_and_came_back_is_named_once_and_last() -> None:
    """An old entry must not speak for it, in an exchange neither."""
    policy = filled(1, 1, 1)
    policy.removed(np.array([0]), "deleted")
    use(policy, 1)
    assert policy.exchange([0]) == [2]
    use(policy, 0)
    assert order_of(policy) == [1, 0]


def test_the_order_stays_in_proportion() -> None:
    policy = filled(1, 1, 1)
    for _ in range(2000):
        policy.removed(np.array([1]), "overwritten")
        policy.inserted(np.array([1]))
    assert len(policy._heap) < 200

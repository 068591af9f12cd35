"""Long use of everything that a cache can do with a policy, all of its state in its columns."""

from __future__ import annotations

import numpy as np
import pytest

from storage import POLICIES, Policy
from tests.storage.policy_use import SAMPLES, RandomUse, order_of

NAMES = ["fifo", "lru", "lfu", "random", "sieve", "s3fifo", "arc", "gdsf"]
SEEDS = [range(6), pytest.param(range(6, 120), marks=pytest.mark.slow)]


def state(policy: Policy) -> dict[str, np.ndarray]:
    return {name: column.copy() for name, column in policy.columns().items()}


def twin_of(policy: Policy) -> Policy:
    twin = policy.fresh()()
    twin.capacity_bytes = policy.capacity_bytes
    twin.restore(state(policy))
    return twin


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_restored_twins_decide_alike_for_long(name: str, seeds: range) -> None:
    for seed in seeds:
        use = RandomUse([POLICIES[name](SAMPLES)], seed)
        for _ in range(8):
            use.run(60)
            assert sorted(order_of(use.policies[0])) == sorted(use.residents)
            use.policies.append(twin_of(use.policies[0]))
        first, *others = (state(policy) for policy in use.policies)
        for other in others:
            assert other.keys() == first.keys()
            for column in first:
                np.testing.assert_array_equal(other[column], first[column], column)


@pytest.mark.parametrize("name", NAMES)
def test_asking_changes_nothing(name: str) -> None:
    """One of two policies is asked now and then for some victims, of whom nobody leaves."""
    use = RandomUse([POLICIES[name](SAMPLES) for _ in range(2)], 1)
    for turn in range(200):
        use.run(3)
        before = state(use.policies[0])
        order = use.policies[0].victims(None)
        for _ in range(turn % 7):
            next(order, None)
        order.close()
        for column, values in state(use.policies[0]).items():
            np.testing.assert_array_equal(values, before[column], column)

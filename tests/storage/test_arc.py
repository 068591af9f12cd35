"""ARC's lists and ghosts: who joins which, and what the target learns."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import numpy as np
import pytest

from storage import Policy
from storage.policies import ARC
from tests.storage.policy_use import SAMPLES, RandomUse, order_of

SEEDS = [range(10), pytest.param(range(10, 200), marks=pytest.mark.slow)]
NAMES = ("once", "often", "once_ghosts", "often_ghosts")


def filled(slots: int, cost: int = 10) -> ARC:
    policy = ARC(100)
    policy.capacity_bytes = cost * slots
    policy.weigh(np.arange(100), np.full(100, cost))
    policy.inserted(np.arange(slots))
    return policy


def use(policy: Policy, *samples: int) -> None:
    policy.access(np.array(samples), np.ones(len(samples), dtype=bool))


def miss(policy: Policy, *samples: int) -> None:
    policy.access(np.array(samples), np.zeros(len(samples), dtype=bool))


def lists(policy: ARC) -> list[list[int]]:
    columns = policy.columns()
    return [columns[name].tolist() for name in NAMES]


@pytest.mark.parametrize("seeds", SEEDS)
def test_lists_hold_all_residents_and_know_their_charges(seeds: range) -> None:
    for seed in seeds:
        policy = ARC(SAMPLES)
        use = RandomUse([policy], seed)
        for _ in range(60):
            use.run(5)
            once, often, once_ghosts, often_ghosts = lists(policy)
            assert sorted(once + often) == sorted(use.residents)
            assert not set(once_ghosts) & set(often_ghosts)
            assert not set(once_ghosts + often_ghosts) & set(use.residents)
            for queue in policy._queues.values():
                assert queue.charged_bytes == sum(policy._costs[s] for s in queue.order)


@pytest.mark.parametrize("seeds", SEEDS)
def test_lists_and_ghosts_are_bounded_when_they_are_looked_at(seeds: range) -> None:
    for seed in seeds:
        policy = ARC(SAMPLES)
        use = RandomUse([policy], seed)
        for _ in range(60):
            use.run(5)
            policy.access(np.empty(0, np.int64), np.empty(0, dtype=bool))
            once, often, once_ghosts, often_ghosts = (
                queue.charged_bytes for queue in policy._queues.values()
            )
            assert once + once_ghosts <= max(once, use.capacity)
            assert once + once_ghosts + often + often_ghosts <= 2 * use.capacity
            assert policy._target_bytes >= 0


def test_a_second_use_moves_a_sample_to_the_second_list_in_the_order_of_last_use() -> None:
    policy = filled(5)
    use(policy, 3, 1, 3, 4)
    assert lists(policy)[:2] == [[0, 2], [1, 3, 4]]
    use(policy, 1)
    assert lists(policy)[:2] == [[0, 2], [3, 4, 1]]


def test_ghosts_move_the_target_and_come_back_into_the_second_list() -> None:
    policy = filled(4)
    use(policy, 2, 3)
    assert policy.exchange([10]) == [0]  # the first list is above a target of nothing
    miss(policy, 0)
    assert policy._target_bytes == 10
    assert policy.exchange([0]) == [1]
    assert lists(policy) == [[10], [2, 3, 0], [1], []]
    assert policy.exchange([11]) == [2]  # not above its target any more
    miss(policy, 2)
    assert policy._target_bytes == 0
    assert policy.exchange([2]) == [10]


def test_the_fewer_ghosts_a_list_has_the_more_each_of_them_says() -> None:
    policy = filled(6)
    use(policy, 2, 3, 4, 5)
    policy.removed(np.array([0]), "evicted")
    policy.removed(np.array([2, 3, 4]), "evicted")
    miss(policy, 0)
    assert policy._target_bytes == 30


def test_at_the_target_a_ghost_of_the_second_list_takes_from_the_first() -> None:
    policy = filled(4)
    use(policy, 1, 2, 3)
    policy._target_bytes = 10.0
    policy.removed(np.array([1]), "evicted")
    policy.inserted(np.array([20]))
    miss(policy, 20)
    policy._target_bytes = 30.0
    miss(policy, 1)
    assert policy._target_bytes == 20  # what is on the first list
    assert next(policy.victims(50)) == 2
    assert next(policy.victims(1)) == 0
    assert policy.exchange([1]) == [0]


def test_at_the_target_one_that_nobody_asked_for_takes_from_the_first_too() -> None:
    policy = filled(4)
    use(policy, 1, 2, 3)
    policy.removed(np.array([1]), "evicted")
    policy.inserted(np.array([20]))
    policy._target_bytes = 20.0
    assert next(policy.victims(50)) == 2
    assert next(policy.victims(1)) == 0
    assert policy.exchange([1]) == [0]


def test_a_ghost_that_nobody_asked_for_teaches_nothing() -> None:
    policy = filled(4)
    use(policy, 2, 3)
    policy.exchange([10])
    policy.exchange([0])
    assert policy._target_bytes == 0
    assert lists(policy)[1] == [2, 3, 0]
    assert 0 not in lists(policy)[2]


def test_an_overwritten_sample_stays_in_its_list() -> None:
    policy = filled(4)
    use(policy, 2, 3)
    for sample in (0, 2):
        policy.removed(np.array([sample]), "overwritten")
        policy.inserted(np.array([sample]))
    assert lists(policy) == [[1, 0], [3, 2], [], []]


def test_what_was_deleted_is_no_ghost() -> None:
    policy = filled(4)
    use(policy, 3)
    policy.removed(np.array([0, 3]), "deleted")
    policy.removed(np.array([1]), "corrupt")
    assert lists(policy) == [[2], [], [], []]


def test_victims_come_as_if_each_of_them_left() -> None:
    policy = filled(6)
    use(policy, 3, 4, 5)
    policy._target_bytes = 20.0
    assert order_of(policy) == [0, 3, 4, 5, 1, 2]
    with closing(policy.victims(50)) as order:
        policy.removed(np.array(list(islice(order, 2))), "evicted")
    assert lists(policy) == [[1, 2], [4, 5], [0], [3]]
    assert order_of(policy) == [4, 5, 1, 2]


def test_a_smaller_capacity_forgets_ghosts_and_bounds_the_target() -> None:
    policy = filled(8)
    use(policy, 5, 6, 7)
    policy.exchange([20, 21, 22])
    policy._target_bytes = 80.0
    policy.capacity_bytes = 40
    with closing(policy.victims(None)) as order:
        policy.removed(np.array(list(islice(order, 4))), "evicted")
    miss(policy, 99)
    assert sum(queue.charged_bytes for queue in policy._queues.values()) <= 80
    ghost = lists(policy)[2] + lists(policy)[3]
    miss(policy, ghost[-1])
    assert policy._target_bytes <= 40

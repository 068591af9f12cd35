"""S3-FIFO's queues: who moves on, who is remembered, and what asking leaves as it was."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import numpy as np
import pytest

from storage import Policy
from storage.policies import S3FIFO
from tests.storage.policy_use import SAMPLES, RandomUse, order_of

SEEDS = [range(10), pytest.param(range(10, 200), marks=pytest.mark.slow)]


def filled(slots: int) -> S3FIFO:
    """As many samples as fit: the first tenth is in the small queue, the others in the main one."""
    policy = S3FIFO(200)
    policy.capacity_bytes = 10 * slots
    policy.weigh(np.arange(200), np.full(200, 10))
    policy.inserted(np.arange(slots))
    return policy


def use(policy: Policy, *samples: int) -> None:
    policy.access(np.array(samples), np.ones(len(samples), dtype=bool))


def miss(policy: Policy, *samples: int) -> None:
    policy.access(np.array(samples), np.zeros(len(samples), dtype=bool))


def queues(policy: S3FIFO) -> tuple[list[int], list[int], list[int]]:
    columns = policy.columns()
    return tuple(columns[name].tolist() for name in ("small", "main", "ghosts"))


@pytest.mark.parametrize("seeds", SEEDS)
def test_queues_hold_all_residents_and_know_their_charges(seeds: range) -> None:
    for seed in seeds:
        policy = S3FIFO(SAMPLES)
        use = RandomUse([policy], seed)
        for _ in range(60):
            use.run(5)
            small, main, ghosts = queues(policy)
            assert sorted(small + main) == sorted(use.residents)
            assert not set(ghosts) & set(use.residents)
            for queue in policy._queues.values():
                assert queue.charged_bytes == sum(policy._costs[s] for s in queue.order)
            policy.access(np.empty(0, np.int64), np.empty(0, dtype=bool))
            assert policy._ghosts.charged_bytes <= 0.9 * use.capacity


def test_newcomers_fill_the_small_queue_and_then_the_main_one() -> None:
    policy = filled(20)
    assert queues(policy) == ([0, 1], list(range(2, 20)), [])
    assert policy.exchange([30]) == [0]
    assert queues(policy) == ([1, 30], list(range(2, 20)), [0])


def test_who_was_used_twice_moves_on_and_starts_again() -> None:
    policy = filled(20)
    use(policy, 0, 1, 0)
    assert policy.exchange([30]) == [1]
    assert queues(policy) == ([30], [*range(2, 20), 0], [1])
    assert policy._uses[0] == 0


def test_a_ghost_that_is_asked_for_joins_the_main_queue() -> None:
    policy = filled(20)
    policy.exchange([30])
    miss(policy, 0)
    assert queues(policy)[2] == []
    assert policy.exchange([0]) == [1]
    assert queues(policy) == ([30], [*range(2, 20), 0], [1])


def test_a_ghost_that_nobody_asked_for_joins_the_main_queue_too() -> None:
    policy = filled(20)
    policy.exchange([30])
    assert policy.exchange([0]) == [1]
    assert queues(policy) == ([30], [*range(2, 20), 0], [1])


def test_the_main_queue_spares_who_was_used_three_times_at_most() -> None:
    policy = filled(20)
    for _ in range(9):
        use(policy, 2)
    policy.exchange([30, 31])
    miss(policy, 0)
    policy.exchange([0])  # now the main queue is longer than its share
    assert policy._main.charged_bytes > 180
    assert policy.exchange([40]) == [3]
    assert policy._uses[2] == 2
    assert queues(policy)[1][-1] == 2


def test_the_oldest_ghosts_are_forgotten() -> None:
    policy = filled(20)
    policy.exchange(list(range(30, 60)))
    miss(policy, 199)
    assert queues(policy)[2] == [*range(40, 58)]


def test_asking_for_all_moves_nothing() -> None:
    policy = filled(20)
    use(policy, 0, 0, *range(2, 12), *range(5, 9))
    before = {name: column.copy() for name, column in policy.columns().items()}
    assert len(order_of(policy)) == 20
    for name, column in policy.columns().items():
        np.testing.assert_array_equal(column, before[name], name)


def test_pinned_samples_stay_in_front_in_their_order() -> None:
    policy = filled(50)
    use(policy, 2, 2)
    with closing(policy.victims(99)) as order:
        assert list(islice(order, 3)) == [0, 1, 3]
        policy.removed(np.array([3]), "evicted")
    small, main, ghosts = queues(policy)
    assert (small, main[-1], ghosts) == ([0, 1, 4], 2, [3])


def test_who_was_asked_for_in_vain_after_the_last_who_left_stays_in_place() -> None:
    asked, asked_more = filled(50), filled(50)
    for policy, count in ((asked, 1), (asked_more, 3)):
        use(policy, 1, 1)
        with closing(policy.victims(99)) as order:
            assert 0 in list(islice(order, count))
            policy.removed(np.array([0]), "evicted")
    assert queues(asked_more) == queues(asked) == ([1, 2, 3, 4], list(range(5, 50)), [0])
    assert asked_more._uses[1] == 2


def test_who_leaves_from_the_middle_leaves_the_others_as_they_were() -> None:
    policy = filled(20)
    policy.removed(np.array([1]), "deleted")
    policy.removed(np.array([7]), "corrupt")
    assert queues(policy) == ([0], [*range(2, 7), *range(8, 20)], [])


def test_an_overwritten_sample_stays_in_its_queue_as_a_newcomer() -> None:
    policy = filled(20)
    policy.exchange([30])
    use(policy, 1, 1, 5)
    for sample in (1, 5):
        policy.removed(np.array([sample]), "overwritten")
        policy.inserted(np.array([sample]))
    assert queues(policy)[0] == [30, 1]
    assert queues(policy)[1][-1] == 5
    assert policy._uses[1] == policy._uses[5] == 0


def test_a_smaller_capacity_has_smaller_queues() -> None:
    policy = filled(100)
    policy.exchange(list(range(110, 130)))
    policy.capacity_bytes = 100
    with closing(policy.victims(None)) as order:
        policy.removed(np.array(list(islice(order, 90))), "evicted")
    miss(policy, 199)
    small, main, ghosts = queues(policy)
    assert len(small) + len(main) == 10
    assert len(ghosts) <= 9

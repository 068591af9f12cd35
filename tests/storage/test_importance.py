"""Loss ranks by hand, and SHADE's policy beside a model that sorts everything each time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from storage.policies import Importance
from storage.policies.extremes import Extremes
from storage.policies.ranks import UNSCORED, loss_ranks, normalised, weights

NAN, INF = float("nan"), float("inf")


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def use(policy: Importance, *samples: int) -> None:
    policy.access(array(*samples), np.zeros(len(samples), dtype=bool))


def drained(policy: Importance, incoming: int | None = None) -> list[int]:
    """The victims in order; nobody leaves."""
    return list(policy.victims(incoming))


def test_the_rank_counts_and_not_the_size_of_the_loss() -> None:
    assert loss_ranks(np.array([0.5, 9000.0, 0.1, 0.6])).tolist() == [1, 3, 0, 2]
    assert loss_ranks(np.array([-1.0, -0.5, -2.0, -0.9])).tolist() == [1, 3, 0, 2]
    assert loss_ranks(np.array([2.0, 2.0, 1.0])).tolist() == [1, 2, 0]
    assert loss_ranks(np.array([INF, 2.0, NAN, 1.0, -INF])).tolist() == [-1, 1, -1, 0, -1]


def test_weights_by_hand() -> None:
    found = weights(array(UNSCORED, 0, 1, 19))
    np.testing.assert_allclose(found, [1.0, 2.302585093, 2.397895273, 3.36729583])


def test_normalised_by_hand() -> None:
    assert normalised(np.array([1.0, 2.0, 5.0]), 1.0, 5.0).tolist() == [0, 0.25, 1]
    assert normalised(np.array([1.0, 7.0]), 3.0, 3.0).tolist() == [0, 0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=60))
def test_extremes_are_those_of_what_is_there(changes: list[tuple[bool, int]]) -> None:
    extremes, there = Extremes(), list[int]()
    for comes, value in changes:
        if comes:
            extremes.reach(value, value)
            extremes.counts[value] += 1
            there.append(value)
        elif there:
            extremes.counts[there.pop(value % len(there))] -= 1
        else:
            extremes.counts[-1] -= 1  # the spare one
        assert extremes.ends() == ((min(there), max(there)) if there else (0, 0))
    assert Extremes.of(np.array(there, np.int64)).ends() == extremes.ends()


def test_the_victim_is_of_the_least_rank_then_of_the_fewest_uses_then_the_lowest() -> None:
    policy = Importance(10)
    use(policy, 1, 2, 3)
    policy.feedback(array(1, 2, 3), np.array([0.3, 0.1, 0.2]))  # ranks 2, 0, 1
    use(policy, 4, 5, 6)
    policy.feedback(array(4, 5, 6), np.array([0.1, 0.2, 0.3]))  # ranks 0, 1, 2
    use(policy, 2, 2, 1)
    policy.inserted(array(6, 5, 4, 3, 2, 1, 7))
    # 7 was never trained; of rank 0, 4 has one use and 2 three; 3 and 5 are equal.
    assert drained(policy) == [7, 4, 2, 3, 5, 6, 1]


def test_who_comes_in_outranks_whoever_leaves() -> None:
    policy = Importance(10)
    use(policy, 0, 1, 2, 3)
    policy.feedback(array(0, 1, 2, 3), np.array([0.1, 0.2, 0.3, 0.4]))
    policy.inserted(array(0, 1, 2))
    assert drained(policy, incoming=3) == [0, 1, 2]
    use(policy, 4)
    assert drained(policy, incoming=4) == []  # never trained: 1.0 is below all
    policy.feedback(array(5, 4), np.array([0.1, 0.2]))  # rank 1, 1 use: as 1
    assert drained(policy, incoming=4) == [0]
    use(policy, 4)
    assert drained(policy, incoming=4) == [0, 1]
    assert drained(policy, incoming=None) == [0, 1, 2]


def test_what_left_is_remembered() -> None:
    policy = Importance(4)
    use(policy, 0, 1)
    policy.feedback(array(0, 1), np.array([0.1, 0.2]))
    policy.inserted(array(0, 1))
    policy.removed(array(1), "evicted")
    assert drained(policy, incoming=1) == [0]
    policy.inserted(array(1))
    assert drained(policy) == [0, 1]


def test_scores_go_to_the_samples_that_were_trained() -> None:
    """Whichever order the samples of a batch come in, each keeps its own rank."""
    losses = {4: 0.9, 7: 0.1, 2: 0.5}
    for order in ([4, 7, 2], [2, 4, 7], [7, 2, 4]):
        policy = Importance(8)
        use(policy, *sorted(order))
        policy.feedback(array(*order), np.array([losses[s] for s in order]))
        assert policy.ranks[[7, 2, 4]].tolist() == [0, 1, 2]


def test_a_sample_that_is_twice_in_a_batch_has_two_uses_and_its_last_rank() -> None:
    policy = Importance(8)
    use(policy, 3, 5, 3)
    policy.feedback(array(3, 5, 3), np.array([0.2, 0.1, 0.2]))
    assert policy.uses.tolist() == [0, 0, 0, 2, 0, 1, 0, 0]
    assert policy.ranks[[3, 5]].tolist() == [2, 0]


def test_losses_that_are_no_number_are_counted_and_unscore() -> None:
    policy = Importance(4)
    policy.feedback(array(0, 1, 2), np.array([0.1, 0.2, 0.3]))
    policy.inserted(array(0, 1, 2))
    policy.feedback(array(2, 0, 1), np.array([NAN, 0.5, INF]))
    assert policy.quarantined == 2
    assert policy.ranks.tolist() == [0, UNSCORED, UNSCORED, UNSCORED]
    assert drained(policy) == [1, 2, 0]
    assert policy.columns()["quarantined"] == 2

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.selectors.cohorts import LOOK_AT, best_cohort, best_round_s, spares, spread

NOBODY = np.zeros(0, dtype=np.int64)
SECONDS = st.one_of(st.sampled_from([1.0, 2.0, 4.0]), st.floats(0.1, 100.0))
VALUES = st.one_of(st.sampled_from([1.0, 3.0]), st.floats(0.01, 10.0))


def rate(seconds: np.ndarray, value: np.ndarray, cohort: list[int]) -> float:
    return float(value[cohort].sum() / seconds[cohort].max())


@given(
    figures=st.lists(st.tuples(SECONDS, VALUES), min_size=1, max_size=9),
    count=st.integers(1, 9),
    held=st.sets(st.integers(0, 8)),
)
def test_the_cohort_is_the_best_of_all_that_are_possible(
    figures: list[tuple[float, float]], count: int, held: set[int]
) -> None:
    seconds, value = np.array(figures).T
    count = min(count, len(seconds))
    fixed = sorted(client for client in held if client < len(seconds))[:count]
    at = np.array(fixed, dtype=np.int64)
    joined = best_cohort(seconds, value, at, count, np.random.default_rng(0))
    cohort = [*fixed, *joined.tolist()]
    assert len(set(cohort)) == len(cohort) == count
    possible = [c for c in combinations(range(len(seconds)), count) if set(fixed) <= set(c)]
    best = max(rate(seconds, value, list(c)) for c in possible)
    assert rate(seconds, value, cohort) == pytest.approx(best)


def best_of_all_s(seconds: np.ndarray, value: np.ndarray, count: int) -> float:
    """The value per second of the best round, its length being that of any client."""
    found = 0.0
    for round_s in seconds:
        in_time = value[seconds <= round_s]
        if len(in_time) >= count:
            found = max(found, np.sort(in_time)[-count:].sum() / round_s)
    return found


@pytest.mark.parametrize("slow_are_worth_more", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_of_many_the_round_is_very_nearly_the_best(seed: int, slow_are_worth_more: bool) -> None:
    rng = np.random.default_rng(seed)
    seconds, value = rng.lognormal(3.0, 0.7, 3000), rng.lognormal(0.0, 0.5, 3000)
    if slow_are_worth_more:
        value *= seconds**0.9
    cohort = best_cohort(seconds, value, NOBODY, 20, rng)
    found = rate(seconds, value, cohort.tolist())
    assert found >= 0.97 * best_of_all_s(seconds, value, 20)


def test_a_round_is_as_long_as_it_must_be_and_no_longer_for_nothing() -> None:
    seconds, value = np.array([1.0, 2.0, 3.0, 30.0]), np.array([1.0, 1.0, 1.0, 1.0])
    assert best_round_s(seconds, value, 2, 2.0) == 2.0
    assert best_round_s(seconds, value, 2, 2.5) == 2.5
    # 2 / 2 is more than 21 / 30, and less than 201 / 30.
    assert best_round_s(seconds, np.array([1.0, 1.0, 1.0, 20.0]), 2, 2.0) == 2.0
    assert best_round_s(seconds, np.array([1.0, 1.0, 1.0, 200.0]), 2, 2.0) == 30.0
    # What is held counts in any round, and so speaks for a short one.
    assert best_round_s(seconds, np.array([1.0, 1.0, 1.0, 35.0]), 1, 1.0) == 30.0
    assert best_round_s(seconds, np.array([1.0, 1.0, 1.0, 35.0]), 1, 1.0, held=1.0) == 1.0
    assert best_round_s(seconds, np.array([1.0, 1.0, 1.0, 60.0]), 1, 1.0, held=1.0) == 30.0


def test_the_slow_come_together_when_one_of_them_must() -> None:
    seconds = np.array([1.0] * 6 + [10.0] * 6)
    value = np.array([1.0] * 6 + [2.0] * 6)
    rng = np.random.default_rng(0)
    assert best_cohort(seconds, value, NOBODY, 4, rng).max() < 6
    assert best_cohort(seconds, value, np.array([6]), 4, rng).min() > 6


def test_equal_ones_are_drawn() -> None:
    seen = np.zeros(6)
    for seed in range(300):
        seen[best_cohort(np.ones(6), np.ones(6), NOBODY, 2, np.random.default_rng(seed))] += 1
    assert seen.min() > 60


def test_those_that_stand_by_are_slower_than_the_cohort_by_little() -> None:
    seconds, cohort = np.arange(1.0, 41.0), np.arange(10)
    seen = set()
    for seed in range(100):
        found = spares(seconds, cohort, 3, np.random.default_rng(seed)).tolist()
        assert len(set(found)) == 3
        seen |= set(found)
    assert seen == set(range(10, 22))


def test_where_too_few_are_slower_the_slowest_stand_by() -> None:
    seconds, rng = np.arange(1.0, 11.0), np.random.default_rng(0)
    assert sorted(spares(seconds, np.array([0, 8]), 3, rng).tolist()) == [6, 7, 9]
    assert sorted(spares(seconds, np.array([9]), 2, rng).tolist()) == [7, 8]
    assert spares(seconds, np.array([0]), 0, rng).tolist() == []


def test_of_very_many_a_part_is_looked_at_and_all_in_turn() -> None:
    clients = np.arange(2 * LOOK_AT + 100) * 2
    kept, seen = np.array([0, 2, 4]), np.zeros(len(clients), dtype=np.bool_)
    for seed in range(20):
        some = spread(clients, kept, np.random.default_rng(seed))
        assert (np.diff(some) > 0).all()
        assert np.isin(kept, some).all()
        assert len(some) <= LOOK_AT
        seen[some // 2] = True
        assert (some % 2 == 0).all()
    assert seen.all()
    few = clients[:LOOK_AT]
    np.testing.assert_array_equal(spread(few, kept, np.random.default_rng(0)), few)

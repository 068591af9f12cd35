from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.selectors.draws import draw, top

ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def chance_of_pair(pair: tuple[int, int], weights: list[float]) -> float:
    a, b = (weights[i] for i in pair)
    total = sum(weights)
    return a / total * b / (total - a) + b / total * a / (total - b)


def test_one_is_drawn_in_proportion_to_its_weight() -> None:
    rng = np.random.default_rng(0)
    weights = np.array([1.0, 0.0, 2.0, 7.0])
    drawn = [draw(weights, 1, rng).item() for _ in range(10_000)]
    shares = np.bincount(drawn, minlength=4) / 10_000
    np.testing.assert_allclose(shares, [0.1, 0.0, 0.2, 0.7], atol=0.02)


def test_two_are_drawn_as_if_one_after_the_other() -> None:
    rng = np.random.default_rng(1)
    weights = [1.0, 2.0, 3.0, 10.0]
    draws = [tuple(sorted(draw(np.array(weights), 2, rng).tolist())) for _ in range(10_000)]
    for pair in itertools.combinations(range(4), 2):
        assert draws.count(pair) / 10_000 == pytest.approx(chance_of_pair(pair, weights), abs=0.02)


def test_weight_zero_comes_last_and_evenly() -> None:
    rng = np.random.default_rng(2)
    weights = np.array([0.0, 5.0, 0.0, np.nan, -3.0, np.inf, 1e-300])
    seen = np.zeros(7)
    for _ in range(2_500):
        drawn = draw(weights, 3, rng)
        assert {1, 6} <= set(drawn.tolist())
        seen[drawn] += 1
    np.testing.assert_allclose(seen[[0, 2, 3, 4, 5]] / 2_500, 0.2, atol=0.03)


@given(st.lists(ANY_FLOAT, max_size=20), st.integers(0, 25), st.integers(0, 2**32))
def test_any_weights_give_the_number_wanted_and_distinct(
    weights: list[float], count: int, seed: int
) -> None:
    drawn = draw(np.array(weights, dtype=np.float64), count, np.random.default_rng(seed))
    assert len(drawn) == min(count, len(weights))
    assert len(set(drawn.tolist())) == len(drawn)
    assert all(0 <= i < len(weights) for i in drawn)


@given(st.lists(FINITE, max_size=20), st.integers(0, 25), st.integers(0, 2**32))
def test_top_has_no_score_below_one_left_out(scores: list[float], count: int, seed: int) -> None:
    array = np.array(scores, dtype=np.float64)
    chosen = top(array, count, np.random.default_rng(seed))
    left = np.delete(array, chosen)
    assert len(chosen) == min(count, len(scores))
    assert len(set(chosen.tolist())) == len(chosen)
    if len(left) and len(chosen):
        assert array[chosen].min() >= left.max()


def test_equal_scores_at_the_border_are_drawn_evenly() -> None:
    rng = np.random.default_rng(3)
    scores = np.array([1.0, 9.0, 1.0, 1.0, 0.0, 1.0])
    seen = np.zeros(6)
    for _ in range(4_000):
        seen[top(scores, 3, rng)] += 1
    np.testing.assert_allclose(seen / 4_000, [0.5, 1.0, 0.5, 0.5, 0.0, 0.5], atol=0.03)


def test_nan_is_lower_than_anything() -> None:
    scores = np.array([np.nan, -np.inf, 1.0, np.nan, 2.0])
    rng = np.random.default_rng(0)
    assert sorted(top(scores, 2, rng).tolist()) == [2, 4]
    assert set(top(scores, 3, rng).tolist()) > {2, 4}
    assert len(set(top(np.full(5, np.nan), 3, rng).tolist())) == 3

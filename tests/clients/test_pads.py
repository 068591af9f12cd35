"""PADS by hand: likelihoods, the table of repetitions, passes, smoothing and what is remembered."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.samplers import Pads
from clients.samplers.pads import most_drawn_first, one_pass, repetition_factor
from clients.samplers.smoothing import LARGEST, Smoothing

NAN, INF = float("nan"), float("inf")
# h -> r and the share of hits in percent, of need 160 and B 20.
REPETITIONS = {
    4: (4, 10),
    8: (4, 20),
    12: (4, 30),
    13: (7, 57),
    16: (6, 60),
    20: (5, 62.5),
    32: (3, 60),
    40: (3, 75),
    54: (3, 100),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("cached_draws", REPETITIONS)
def test_repetitions(cached_draws: int) -> None:
    factor, hit_share = REPETITIONS[cached_draws]
    assert repetition_factor(160, cached_draws, 20) == factor
    # A pass over 160 draws of which that many are of the one cached sample, number 0.
    draws = np.arange(160)
    draws[:cached_draws] = 0
    order = one_pass(draws, np.arange(160) == 0, 160, 20, rng())
    assert len(order) == 160
    assert 100 * np.mean(order == 0) == pytest.approx(hit_share, abs=0.5)


@pytest.mark.parametrize(
    ("need", "cached_draws", "batch_size", "factor"),
    [
        (160, 0, 20, 1),
        (160, 160, 20, 2),  # m = 2, the second time is cut off
        (160, 81, 20, 2),
        (160, 80, 20, 3),
        (160, 12, 40, 8),  # 12 is not over 24: int(0.2 * 40)
        (160, 25, 40, 4),  # m = 7, over 24: half of it, rounded up
        (10, 1, 1, 6),  # m = 11, over 0.6
        (10, 1, 2, 3),  # 1 is not over 1.2, int(0.4) is below 3
        (5, 9, 20, 1),
    ],
)
def test_repetitions_elsewhere(need: int, cached_draws: int, batch_size: int, factor: int) -> None:
    assert repetition_factor(need, cached_draws, batch_size) == factor


def test_hits_come_first_and_missing_draws_fill_up() -> None:
    draws = np.array([3, 5, 3, 0, 1, 2, 4, 4])
    resident = np.isin(np.arange(8), [3, 5])
    order = one_pass(draws, resident, 8, 20, rng())
    # h = 3, m = 8 // 3 + 1 = 3: nine accesses of cached samples, cut to eight.
    assert set(order.tolist()) == {3, 5}
    resident = np.isin(np.arange(8), [3])
    order = one_pass(draws, resident, 8, 20, rng())
    # h = 2, m = 5, not over 12: 4 times, so eight.
    assert order.tolist() == [3] * 8
    order = one_pass(draws, np.isin(np.arange(8), [5]), 8, 2, rng())
    # h = 1, m = 9, not over 1.2: 3 times; five of the seven missing draws.
    assert order[:3].tolist() == [5] * 3
    assert set(order[3:].tolist()) <= {0, 1, 2, 3, 4}
    cold = one_pass(draws, np.zeros(8, dtype=bool), 8, 20, rng())
    assert sorted(cold.tolist()) == sorted(draws.tolist())
    assert cold.tolist() != draws.tolist()


def test_most_drawn_first() -> None:
    draws = np.array([2, 0, 3, 2, 4, 0, 2])
    assert most_drawn_first(draws).tolist() == [2, 2, 2, 0, 0, 3, 4]


def test_likelihoods_by_hand() -> None:
    pads = Pads(4, 20)
    assert pads.likelihood().tolist() == [0.25] * 4
    pads.feedback(np.array([2, 0, 1]), np.array([0.1, 0.2, 0.3]))
    # w = ln 11, ln 12, ln 10, 1 = 2.397895, 2.484907, 2.302585, 1; range ln 1.2 = 0.182322.
    # e = w + nw = 2.397895 + 0.522759, 2.484907 + 1, 2.302585, 1; plus ls = 0.01 each.
    e = np.array([2.930654, 3.494907, 2.312585, 1.01])
    np.testing.assert_allclose(pads.likelihood(), e / e.sum(), atol=1e-6)


def test_a_range_of_zero_leaves_the_importance() -> None:
    pads = Pads(3, 20)
    pads.feedback(np.array([1]), np.array([5.0]))
    e = np.array([1.01, math.log(10) + 0.01, 1.01])
    np.testing.assert_allclose(pads.likelihood(), e / e.sum())


def test_draws_follow_the_likelihoods() -> None:
    pads = Pads(4, 20)
    pads.feedback(np.array([2, 0, 1]), np.array([0.1, 0.2, 0.3]))
    order = pads.order(np.zeros(4, dtype=bool), 40_000, rng(1))
    seen, expected = np.bincount(order, minlength=4), 40_000 * pads.likelihood()
    # The 99.99 % quantile of chi-square with 3 degrees of freedom is 21.1.
    assert np.sum((seen - expected) ** 2 / expected) < 21.1


def test_a_participation_is_passes_over_the_cache_as_it_was() -> None:
    resident = np.isin(np.arange(10), [7])
    order = Pads(10, 20).order(resident, 25, rng(5))
    again = rng(5)
    expected = []
    for need in (10, 10, 5):
        draws = again.choice(10, 10, p=np.full(10, 0.1))
        expected += one_pass(draws, resident, need, 20, again).tolist()
    assert order.tolist() == expected


def test_every_third_participation_sorts_its_draws() -> None:
    cold = np.zeros(30, dtype=bool)
    pads, columns = Pads(30, 20), {}
    for participation in range(1, 7):
        pads = Pads(30, 20)
        pads.restore(columns)
        order = pads.order(cold, 30, rng(3))
        again = rng(3)
        draws = again.choice(30, 30, p=np.full(30, 1 / 30))
        if participation % 3 == 0:
            draws = most_drawn_first(draws)
        assert order.tolist() == one_pass(draws, cold, 30, 20, again).tolist(), participation
        columns = pads.columns()


def test_a_warm_cache_means_fewer_unique_samples() -> None:
    resident = np.arange(100) < 20
    cold = Pads(100, 20).order(np.zeros(100, dtype=bool), 160, rng())
    warm = Pads(100, 20).order(resident, 160, rng())
    assert resident[warm].mean() > 0.5
    assert len(np.unique(warm)) < len(np.unique(cold))


def test_smoothing_by_hand() -> None:
    first = Smoothing().after(2.0)
    assert (Smoothing().value, first.value) == (0.01, 0.02)
    # 0.02 * exp((1.5 - 2) / 2) = 0.02 * 0.778801, then * exp((3 - 1.5) / 1.5) = e.
    second = first.after(1.5)
    assert second.value == pytest.approx(0.01557602, abs=1e-8)
    assert second.after(3.0).value == pytest.approx(0.01557602 * math.e, abs=1e-7)


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_smoothing_passes_over_what_is_no_number(loss: float) -> None:
    before = Smoothing(0.3, 2.0)
    assert before.after(loss) == before


@given(
    before=st.floats(allow_nan=False, allow_infinity=False),
    loss=st.floats(allow_nan=False, allow_infinity=False),
    value=st.floats(0, LARGEST),
)
def test_smoothing_stays_within_bounds(before: float, loss: float, value: float) -> None:
    after = Smoothing(value, before).after(loss)
    assert 0 <= after.value <= LARGEST
    assert after.loss == loss


def test_after_a_loss_of_zero_smoothing_starts_again() -> None:
    assert Smoothing(0.3, 0.0).after(4.0) == Smoothing(0.04, 4.0)


def test_what_is_remembered() -> None:
    pads = Pads(5, 20)
    pads.restore({})
    pads.order(np.zeros(5, dtype=bool), 4, rng())
    pads.feedback(np.array([3, 1]), np.array([2.0, 3.0]))
    pads.feedback(np.array([0, 1, 4]), np.array([NAN, 4.0, INF]))
    columns = pads.columns()
    assert columns["ranks"].tolist() == [-1, 0, -1, 0, -1]
    assert columns["participations"] == 1
    assert columns["smoothing"].tolist() == [0.03, 3.0]  # the mean of 2, 3 and 4
    assert {name: column.tolist() for name, column in pads.columns().items()} == {
        name: column.tolist() for name, column in columns.items()
    }
    following, same = Pads(5, 20), Pads(5, 20)
    following.restore(columns)
    same.restore({name: column.copy() for name, column in columns.items()})
    orders = [p.order(np.arange(5) < 2, 12, rng(9)).tolist() for p in (following, same)]
    assert orders[0] == orders[1]
    assert following.likelihood()[1] > following.likelihood()[0]
    assert columns["participations"] == 1


def test_a_sample_that_is_twice_in_a_step_takes_its_last_rank() -> None:
    pads = Pads(4, 20)
    pads.feedback(np.array([2, 0, 2]), np.array([0.5, 0.1, 0.5]))
    assert pads.columns()["ranks"].tolist() == [0, -1, 2, -1]


def test_losses_of_any_size_break_nothing() -> None:
    pads = Pads(3, 20)
    pads.feedback(np.array([0, 1, 2]), np.array([1.7e308, 1.7e308, 1e-300]))
    again = Pads(3, 20)
    again.restore(pads.columns())
    assert np.isfinite(again.likelihood()).all()
    assert again.columns()["smoothing"][0] == 0.01

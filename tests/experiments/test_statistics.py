"""What is said over seeds, worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from experiments.statistics import (
    FEWEST_CENSORED_PAIRS,
    AccuracyDifference,
    Speedup,
    Time,
    accuracy_difference,
    speedup,
    t_interval,
)

LN_2 = math.log(2)


def times(*seconds: float) -> dict[int, Time]:
    """Times by seed; what is below zero was not reached by then."""
    return {seed: Time(abs(one), reached=one > 0) for seed, one in enumerate(seconds)}


def differences(values: Sequence[float]) -> AccuracyDifference:
    arm = {seed: 0.8 + value for seed, value in enumerate(values)}
    return accuracy_difference(arm, dict.fromkeys(arm, 0.8))


def test_intervals_are_those_of_the_t_distribution() -> None:
    values = np.random.default_rng(0).normal(size=7)
    for confidence in (0.9, 0.95):
        expected = stats.t.interval(confidence, 6, values.mean(), stats.sem(values))
        assert t_interval(list(values), confidence) == pytest.approx(expected)


def test_speedup_pairs_seeds_and_brackets_them() -> None:
    found = speedup(times(50, 100), times(100, 400))
    # Ratios 2 and 4: mean of logs 1.5 ln 2, deviation ln 2 / sqrt 2, t(0.975, 1) = 12.7062.
    half = 12.7062 * LN_2 / 2
    assert found.ratio == pytest.approx(math.sqrt(8))
    assert found.low == pytest.approx(math.sqrt(8) / math.exp(half), rel=1e-4)
    assert found.high == pytest.approx(math.sqrt(8) * math.exp(half), rel=1e-4)
    assert (found.bound, found.pairs) == (None, 2)


def test_only_seeds_of_both_count_and_one_has_no_interval() -> None:
    alone = Speedup(ratio=2.0, pairs=1)
    assert speedup(times(50), times(100)) == alone
    assert speedup(times(50) | {7: Time(1.0, reached=True)}, times(100)) == alone
    assert speedup(times(50), times(100) | {7: Time(1.0, reached=False)}) == alone
    assert speedup(times(50), {1: Time(100.0, reached=True)}) == Speedup()
    assert speedup({}, times(100)) == Speedup()


def test_where_the_arm_is_censored_its_speedup_is_at_most_that() -> None:
    found = speedup(times(*[50] * 7, -400), times(*[100] * 8))
    # Ratios 2 and, once, at most 1/4. In units of ln 2: mean of logs (7 - 2) / 8 = 0.625, variance
    # (7 x 0.375^2 + 2.625^2) / 7 = 1.125, t(0.975, 7) = 2.364624.
    half = 2.364624 * math.sqrt(1.125 / 8)
    assert found.ratio == pytest.approx(2**0.625)
    assert found.high == pytest.approx(2 ** (0.625 + half), rel=1e-6)
    assert (found.low, found.bound, found.pairs) == (None, "at most", 8)


def test_where_the_reference_is_censored_the_speedup_is_at_least_that() -> None:
    found = speedup(times(*[100] * 8), times(*[50] * 7, -400))
    # The other way round.
    half = 2.364624 * math.sqrt(1.125 / 8)
    assert found.ratio == pytest.approx(2**-0.625)
    assert found.low == pytest.approx(2 ** (-0.625 - half), rel=1e-6)
    assert (found.high, found.bound, found.pairs) == (None, "at least", 8)


def test_few_pairs_are_a_bound_without_interval_if_one_is_censored() -> None:
    assert speedup(times(-50), times(100)) == Speedup(2.0, bound="at most", pairs=1)
    assert speedup(times(50), times(-100)) == Speedup(2.0, bound="at least", pairs=1)
    found = speedup(times(*[50] * 6, -400), times(*[100] * 7))
    assert (found.low, found.high, found.bound) == (None, None, "at most")
    assert speedup(times(*[50] * 6, 400), times(*[100] * 7)).high is not None


def test_bounds_from_either_side_are_no_bound() -> None:
    assert speedup(times(-50, 50, 50), times(100, -100, 100)) == Speedup(bound="mixed", pairs=3)


def test_pairs_that_are_censored_twice_are_left_out_and_take_the_interval_along() -> None:
    assert speedup(times(-50, -50), times(-100, -100)) == Speedup()
    found = speedup(times(50, 100, -70), times(100, 400, -70))
    assert found == Speedup(pytest.approx(math.sqrt(8)), pairs=2)  # type: ignore[arg-type]
    found = speedup(times(-50, 100, -70), times(100, 400, -70))
    assert found == Speedup(
        pytest.approx(math.sqrt(8)), bound="at most", pairs=2  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_run_that_took_no_time_says_nothing() -> None:
    nothing = {0: Time(0.0, reached=False)}
    assert speedup(nothing, times(100)) == speedup(times(100), nothing) == Speedup()


def test_the_known_end_of_a_censored_interval_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    # Of the share that is the hardest, and with a reference that does not vary.
    runs, true, limit = 4000, -0.2, 0.2 + 0.25 * 1.08
    arms = -true + rng.normal(0, 0.25, (runs, FEWEST_CENSORED_PAIRS))
    held = censored = 0
    for logs in arms:
        arm = {s: Time(math.exp(min(x, limit)), reached=x <= limit) for s, x in enumerate(logs)}
        found = speedup(arm, dict.fromkeys(arm, Time(1.0, reached=True)))
        censored += found.bound == "at most"
        assert found.high is not None
        held += found.high >= math.exp(true)
    assert censored > runs / 2
    assert held / runs > 0.965


@pytest.mark.parametrize(
    ("values", "equal"),
    [
        # Deviation 0.002, t(0.95, 2) = 2.91999: the interval is the mean +- 0.0033717.
        ((0.002, 0.004, 0.006), "yes"),  # above 0, and yet within the margin
        ((-0.006, -0.004, -0.002), "yes"),
        ((0.005, 0.007, 0.009), "higher"),  # up to 0.0104
        ((0.011, 0.013, 0.015), "higher"),
        ((-0.009, -0.007, -0.005), "lower"),
        ((-0.015, -0.013, -0.011), "lower"),
        # Deviation 0.01: +- 0.01686.
        ((-0.01, 0.0, 0.01), "open"),
        ((0.005, 0.015, 0.025), "open"),
        ((0.0, 0.0), "yes"),
    ],
)
def test_equal_accuracy_is_an_interval_within_one_point(
    values: tuple[float, ...], equal: str
) -> None:
    assert differences(values).equal == equal


def test_the_difference_comes_with_its_interval() -> None:
    found = differences((0.002, 0.004, 0.006))
    assert found.mean == pytest.approx(0.004)
    assert found.low == pytest.approx(0.004 - 0.0033717, abs=1e-7)
    assert found.high == pytest.approx(0.004 + 0.0033717, abs=1e-7)


def test_equal_is_what_two_one_sided_t_tests_say() -> None:
    rng = np.random.default_rng(2)
    verdicts = set()
    for _ in range(200):
        values = rng.normal(rng.normal(0, 0.008), 0.006, rng.integers(2, 11))
        tests = [
            stats.ttest_1samp(values, margin, alternative=side).pvalue
            for margin, side in ((-0.01, "greater"), (0.01, "less"))
        ]
        found = differences(values)
        assert (found.equal == "yes") == (max(tests) < 0.05)
        verdicts.add(found.equal)
    assert verdicts == {"yes", "higher", "lower", "open"}


def test_without_two_pairs_or_where_one_does_not_compare_accuracies_do_not() -> None:
    nothing = AccuracyDifference()
    assert differences([0.001]) == nothing
    assert accuracy_difference({0: 0.8, 1: 0.8}, {1: 0.8, 2: 0.8}) == nothing
    assert accuracy_difference({0: 0.8, 1: 0.8, 2: None}, dict.fromkeys(range(3), 0.8)) == nothing
    assert accuracy_difference(dict.fromkeys(range(3), 0.8), {0: 0.8, 1: 0.8, 2: None}) == nothing
    # A seed that the reference did not run does not matter.
    some = accuracy_difference({0: 0.8, 1: 0.8, 2: None}, {0: 0.8, 1: 0.8})
    assert some == AccuracyDifference(0.0, 0.0, 0.0, "yes")

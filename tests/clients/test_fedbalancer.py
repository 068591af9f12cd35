"""FedBalancer by hand: the threshold, what is selected, the ratio, and what is remembered."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clients.samplers import SAMPLERS, FedBalancer, Sampler
from fedio.config import Spec
from fedio.errors import InputError
from fedio.plugins import create

NAN, INF = float("nan"), float("inf")
NONE = np.zeros(10, bool)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def after(losses: list[float], ratio: float = 0.0, mean: float = NAN, p: float = 1) -> FedBalancer:
    """Return a sampler with those last losses; one that is infinite is not known."""
    sampler = FedBalancer(len(losses), 2, p)
    sampler.restore({"losses": np.array(losses), "control": np.array([ratio, mean])})
    return sampler


# Losses 0..10: low 0, high, at 80 of 100 parts of the way, 8.
ELEVEN = [float(loss) for loss in range(11)]


@pytest.mark.parametrize(
    ("losses", "ratio", "threshold"),
    [
        (ELEVEN, 0, 0),
        (ELEVEN, 0.25, 2),
        (ELEVEN, 1, 8),
        ([*ELEVEN, INF, INF], 0.25, 2),
        ([1, 2], 0.5, 1.4),  # high is 1.8
        ([3], 1, 3),
        ([2, 2, 2], 0.7, 2),
        ([0.1, 0.3, 0.7], 1, 0.54),
        ([0.49, *[2.65] * 5], 1, 2.65),  # 0.49 + (2.65 - 0.49) is over 2.65
        ([INF, INF], 0.5, -INF),
    ],
)
def test_the_threshold(losses: list[float], ratio: float, threshold: float) -> None:
    sampler = after(losses, ratio)
    assert sampler.threshold == pytest.approx(threshold)
    assert sampler.threshold <= max(losses)


@pytest.mark.parametrize(
    ("p", "over", "under"),
    [
        (1, 8, 0),
        (0.9, 7, 1),  # 0.9 x 8 is 7.2
        (0.75, 6, 2),
        (0.5, 5, 3),  # 4 of 8, but only 3 are under
        (0, 5, 3),
    ],
)
def test_what_is_selected(p: float, over: int, under: int) -> None:
    # lt is 3; the one that is at 3 is over it.
    sampler = after(ELEVEN, 0.375, p=p)
    for seed in range(20):
        selected = sampler.selected(rng(seed))
        assert len(set(selected)) == len(selected) == 8
        assert ((selected >= 3).sum(), (selected < 3).sum()) == (over, under)
    others = {tuple(sorted(sampler.selected(rng(seed)))) for seed in range(20)}
    assert (len(others) == 1) == (p == 1)


def test_selected_samples_come_in_fresh_permutations() -> None:
    order = after(ELEVEN, 1).order(NONE, 8, rng())
    assert sorted(order[:3]) == sorted(order[3:6]) == [8, 9, 10]
    assert len(set(order[6:])) == 2
    assert {tuple(after(ELEVEN, 1).order(NONE, 3, rng(seed))) for seed in range(50)} == {
        (8, 9, 10), (8, 10, 9), (9, 8, 10), (9, 10, 8), (10, 8, 9), (10, 9, 8),
    }  # fmt: skip


def test_equal_losses_are_all_over() -> None:
    assert sorted(after([2.0] * 5, 1).selected(rng())) == [0, 1, 2, 3, 4]
    assert sorted(after([1, 5, 5, 5, 5], 1).selected(rng())) == [1, 2, 3, 4]


def test_at_first_it_is_uniform() -> None:
    order = FedBalancer(10, 2).order(NONE, 25, rng())
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))


def test_a_sample_without_a_loss_is_over_the_threshold() -> None:
    sampler = after([0, 1, 2, INF], 1)
    assert sorted(sampler.selected(rng())) == [2, 3]
    sampler.feedback(np.array([3, 2, 1]), np.array([0.5, NAN, INF]))
    # Known now: 0 and 0.5, so high is 0.4.
    assert sorted(sampler.selected(rng())) == [1, 2, 3]
    sampler.feedback(np.array([0, 3]), np.array([-INF, NAN]))
    assert sorted(sampler.selected(rng())) == [0, 1, 2, 3]


def test_of_a_sample_twice_in_a_step_the_last_loss_counts() -> None:
    sampler = FedBalancer(3, 2)
    sampler.feedback(np.array([1, 1]), np.array([5.0, 2.0]))
    assert sampler.columns()["losses"].tolist() == [INF, 2, INF]


@pytest.mark.parametrize(
    ("mean", "ratio", "expected"),
    [
        (NAN, 0.5, 0.5),  # the first participation
        (2.0, 0.5, 0.55),  # 1.5 now
        (1.0, 0.5, 0.45),
        (1.5, 0.5, 0.5),
        (2.0, 0.0, 0.05),
        (1.0, 0.0, 0.0),
        (2.0, 1.0, 1.0),
        (2.0, 0.98, 1.0),
        (1.0, 0.03, 0.0),
    ],
)
def test_the_ratio_follows_the_mean_loss(mean: float, ratio: float, expected: float) -> None:
    sampler = after([1, 9, INF], ratio, mean)
    sampler.feedback(np.array([1]), np.array([2.0]))
    found, now = sampler.columns()["control"].tolist()
    assert found == pytest.approx(expected)
    assert now == 1.5


def test_a_participation_that_taught_nothing_changes_nothing() -> None:
    sampler = after([1, 2, INF], 0.5, 1.5)
    assert sampler.columns()["control"].tolist() == [0.5, 1.5]
    unknown = after([1, INF], 0.5, 1.0)
    unknown.feedback(np.array([0, 1]), np.array([NAN, INF]))
    ratio, mean = unknown.columns()["control"].tolist()
    assert ratio == 0.5
    assert math.isnan(mean)
    assert unknown.columns()["losses"].tolist() == [INF, INF]


def test_ratios_rise_to_one_and_samples_become_fewer() -> None:
    columns: dict[str, np.ndarray] = {}
    selected, ratios = [], []
    for participation in range(25):
        sampler = FedBalancer(11, 2)
        sampler.restore(columns)
        selected.append(len(sampler.selected(rng())))
        losses = np.array(ELEVEN) / (participation + 1)
        sampler.feedback(np.arange(11), losses)
        columns = sampler.columns()
        ratios.append(columns["control"][0])
    assert ratios[:3] == pytest.approx([0, 0.05, 0.1])
    assert ratios[20:] == pytest.approx([1] * 5)
    assert selected[:3] == [11, 11, 10]
    assert selected == sorted(selected, reverse=True)
    assert selected[-1] == 3


@pytest.mark.parametrize("p", [-0.1, 1.1, NAN, "all"])
def test_a_share_that_is_none_is_the_users_error(p: object) -> None:
    spec = Spec(name="fedbalancer", args={"p": p})
    with pytest.raises(InputError, match=r"sampler 'fedbalancer' does not take"):
        create(spec, SAMPLERS, Sampler, 10, 2)  # type: ignore[type-abstract]

"""The unbiased sampler: a step has the gradient of all samples on average, by its weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812

from clients.samplers import SAMPLERS, Sampler, Unbiased, effective_samples
from clients.samplers.unbiased import systematic
from fedio.config import Spec
from fedio.errors import InputError
from fedio.plugins import create

SAMPLES, BATCH, STEPS = 60, 8, 5
PARTICIPATIONS = 20_000


@pytest.fixture(scope="module")
def gradients() -> np.ndarray:
    """Return the gradient of each sample, easy ones first, in 100 projections: [n, 100].

    Of an mlp as it is at first, on random images whose labels depend on them.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    images = torch.randn(SAMPLES, 20, generator=generator)
    losses = F.cross_entropy(model(images), images[:, :4].argmax(1), reduction="none")
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    each = torch.stack([torch.cat([part.ravel() for part in row]) for row in rows]).double()
    projections = torch.randn(each.shape[1], 100, generator=generator).double()
    by_loss = losses.argsort()
    return (each @ projections)[by_loss].numpy()


@dataclass
class Found:
    """How far gradients are from the full one: each projection in standard errors, and in all."""

    largest_z: float
    relative_bias: float

    @classmethod
    def of(cls, estimates: np.ndarray, full: np.ndarray) -> Found:
        """Compare independent estimates, [participations, 100], with the full gradient."""
        error = estimates.mean(axis=0) - full
        standard = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
        return cls(
            float(np.abs(error / standard).max()),
            float(np.linalg.norm(error) / np.linalg.norm(full)),
        )

    @property
    def is_unbiased(self) -> bool:
        return self.largest_z < 4 and self.relative_bias < 0.01


def step_gradients(share: float, gradients: np.ndarray, weighted: bool) -> np.ndarray:
    """Return the gradients of the steps, [participations, steps, 100]."""
    resident = np.arange(SAMPLES) < share * SAMPLES
    sampler, rng = Unbiased(SAMPLES, BATCH), np.random.default_rng(3)
    found = np.empty((PARTICIPATIONS, STEPS, gradients.shape[1]))
    for participation in range(PARTICIPATIONS):
        order = sampler.checked_order(resident, STEPS * BATCH, rng)
        weights = sampler.checked_weights(order)
        assert weights is not None
        if not weighted:
            weights = np.ones(len(order))
        of_sample = np.zeros((STEPS, SAMPLES))
        np.add.at(of_sample, (np.arange(len(order)) // BATCH, order), weights / BATCH)
        found[participation] = of_sample @ gradients
    return found


@pytest.mark.parametrize("share", [0.1, 0.5, 1])
def test_the_gradient_of_a_step_is_that_of_all_samples_on_average(
    share: float, gradients: np.ndarray
) -> None:
    full = gradients.mean(axis=0)
    steps = step_gradients(share, gradients, weighted=True)
    assert Found.of(steps.mean(axis=1), full).is_unbiased
    for step in range(STEPS):
        assert Found.of(steps[:, step], full).largest_z < 4


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_without_weights_it_is_not(share: float, gradients: np.ndarray) -> None:
    steps = step_gradients(share, gradients, weighted=False)
    found = Found.of(steps.mean(axis=1), gradients.mean(axis=0))
    assert found.largest_z > 4
    assert found.relative_bias > 0.01


def test_weights_by_hand() -> None:
    sampler = Unbiased(4, 2, preference=3)
    order = sampler.order(np.array([False, True, False, False]), 6, np.random.default_rng(0))
    # Propensities 1/2 and 1/6; expected counts 3 and 1, so these are the counts.
    assert np.bincount(order, minlength=4).tolist() == [1, 3, 1, 1]
    assert sampler.weights(np.array([1, 0, 3])) == pytest.approx([1 / 2, 3 / 2, 3 / 2])
    assert effective_samples(order, sampler.weights(order)) == pytest.approx(4)


@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("preference", [0.1, 1, 4])
def test_where_all_samples_are_alike_weights_are_one(share: int, preference: float) -> None:
    sampler = Unbiased(7, 2, preference)
    order = sampler.order(np.full(7, bool(share)), 20, np.random.default_rng(0))
    assert sampler.weights(order) == pytest.approx(np.ones(20), rel=1e-12)
    assert set(np.bincount(order)) == {2, 3}


def test_misses_become_rarer_with_preference() -> None:
    resident = np.arange(50) < 10
    missed = []
    for preference in (0.25, 1, 4, 1e6):
        order = Unbiased(50, 8, preference).order(resident, 400, np.random.default_rng(0))
        missed.append(int((~resident[order]).sum()))
    # 40 missing samples of 40 + 10 x preference.
    assert missed == [pytest.approx(400 * 40 / (40 + 10 * p), abs=10) for p in (0.25, 1, 4, 1e6)]


@given(
    counts=st.lists(st.floats(1e-6, 50), min_size=1, max_size=40),
    draws=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_a_count_is_rounded_down_or_up(counts: list[float], draws: int, seed: int) -> None:
    expected = np.array(counts) * draws / np.sum(counts)
    drawn = systematic(expected, draws, np.random.default_rng(seed))
    assert len(drawn) == draws
    found = np.bincount(drawn, minlength=len(counts))
    assert len(found) == len(counts)
    assert (np.abs(found - expected) < 1 + 1e-9).all()


def test_a_start_at_the_very_end_stays_inside() -> None:
    class Late(np.random.Generator):
        def random(self) -> float:  # type: ignore[override]
            return np.nextafter(1, 0)

    late = Late(np.random.PCG64(0))
    counts = np.full(10, 0.3)
    assert np.cumsum(counts)[-1] < 3
    assert systematic(counts, 3, late).tolist() == [3, 6, 9]


def test_any_two_samples_come_together_at_times() -> None:
    rng, pairs = np.random.default_rng(0), set()
    sampler = Unbiased(4, 2)
    for _ in range(200):
        pairs.add(tuple(sorted(sampler.order(np.zeros(4, bool), 2, rng).tolist())))
    assert len(pairs) == 6


def test_it_remembers_nothing_and_learns_nothing() -> None:
    sampler = Unbiased(6, 2)
    sampler.order(np.arange(6) < 2, 9, np.random.default_rng(0))
    assert sampler.columns() == {}
    assert sampler.uses_resident
    assert not sampler.learns


@pytest.mark.parametrize("preference", [0, -1, float("nan"), float("inf"), 1e7, "much"])
def test_a_preference_that_is_none_is_the_users_error(preference: object) -> None:
    spec = Spec(name="unbiased", args={"preference": preference})
    with pytest.raises(InputError, match=r"sampler 'unbiased' does not take"):
        create(spec, SAMPLERS, Sampler, 10, 2)  # type: ignore[type-abstract]

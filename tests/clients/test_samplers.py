"""Every sampler gives exactly S x B accesses, and uniform ones are fresh permutations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.samplers import SAMPLERS, Sampler, Uniform

COUNTS = st.integers(1, 60)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@given(samples=COUNTS, accesses=COUNTS, seed=st.integers(0, 9), data=st.data())
def test_every_sampler_gives_exactly_the_accesses_asked_for(
    name: str, samples: int, accesses: int, seed: int, data: st.DataObject
) -> None:
    resident = np.array(data.draw(st.lists(st.booleans(), min_size=samples, max_size=samples)))
    order = SAMPLERS[name](samples, 8).order(resident, accesses, np.random.default_rng(seed))
    again = SAMPLERS[name](samples, 8).order(resident, accesses, np.random.default_rng(seed))
    assert order.dtype == np.int64
    assert order.shape == (accesses,)
    assert order.min() >= 0
    assert order.max() < samples
    assert (order == again).all()


def test_uniform_goes_through_all_samples_before_any_comes_again() -> None:
    order = Uniform(10, 8).order(np.zeros(10, bool), 25, np.random.default_rng(3))
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert len(set(order[20:])) == 5
    assert order[:10].tolist() != order[10:20].tolist()


class Says(Sampler):
    """Orders whatever it is told."""

    answer: object = None

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        del resident, accesses, rng
        return self.answer  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([0, 1, 2], r"gave int64 \(3,\), not int64 \(4,\)"),
        ([0.0, 1.0, 2.0, 0.0], "gave float64"),
        ([0, 1, 2, 3], r"outside 0\.\.2"),
        ([0, 1, 2, -1], r"outside 0\.\.2"),
        (None, "gave object"),
    ],
)
def test_an_order_that_is_none_is_refused(answer: object, said: str) -> None:
    sampler = Says(3, 2)
    sampler.answer = answer
    with pytest.raises(ValueError, match=f"sampler Says .*{said}"):
        sampler.checked_order(np.zeros(3, bool), 4, np.random.default_rng(0))

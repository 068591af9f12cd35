"""Every sampler gives exactly S x B accesses, and uniform ones are fresh permutations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.samplers import SAMPLERS, Uniform

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

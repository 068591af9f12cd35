"""Every sampler gives exactly S x B accesses with a weight each, and remembers through columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.samplers import SAMPLERS, Sampler, Uniform, effective_samples

COUNTS = st.integers(1, 60)
# As a model may give them: float32, and anything at all.
LOSSES = st.floats(0, 10, width=32) | st.floats(width=32)


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@given(samples=COUNTS, accesses=COUNTS, seed=st.integers(0, 9), data=st.data())
def test_every_sampler_gives_exactly_the_accesses_asked_for(
    name: str, samples: int, accesses: int, seed: int, data: st.DataObject
) -> None:
    columns: dict[str, np.ndarray] = {}
    for participation in range(3):
        resident = np.array(data.draw(st.lists(st.booleans(), min_size=samples, max_size=samples)))
        sampler, again = SAMPLERS[name](samples, 8), SAMPLERS[name](samples, 8)
        sampler.restore(columns)
        again.restore({key: value.copy() for key, value in columns.items()})
        before, kept = resident.copy(), {key: value.copy() for key, value in columns.items()}
        order = sampler.checked_order(resident, accesses, np.random.default_rng(seed))
        assert order.dtype == np.int64
        repeated = again.checked_order(resident, accesses, np.random.default_rng(seed))
        assert order.tolist() == repeated.tolist(), participation
        assert_weighed(sampler, again, order)
        for first in range(0, accesses, 8):
            step = order[first : first + 8]
            losses = data.draw(st.lists(LOSSES, min_size=len(step), max_size=len(step)))
            sampler.feedback(step, np.array(losses))
        assert resident.tolist() == before.tolist()
        assert_equal(columns, kept)
        columns = sampler.columns()
        assert_kept(SAMPLERS[name](samples, 8), columns)


def assert_weighed(sampler: Sampler, again: Sampler, order: np.ndarray) -> None:
    """There is a weight for each access, and the same one again."""
    weights = sampler.checked_weights(order)
    if weights is None:
        assert again.checked_weights(order) is None
    else:
        assert weights.dtype == np.float64
        assert weights.shape == order.shape
        assert (weights >= 0).all()
        assert np.isfinite(weights).all()
        assert weights.tolist() == np.asarray(again.checked_weights(order)).tolist()
    assert 0 < effective_samples(order, weights) <= len(np.unique(order)) + 1e-9


def assert_kept(fresh: Sampler, columns: dict[str, np.ndarray]) -> None:
    """What is remembered is numbers, and the same when it has been taken back."""
    assert all(column.dtype.kind in "bif" for column in columns.values())
    fresh.restore({key: value.copy() for key, value in columns.items()})
    assert_equal(fresh.columns(), columns)


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for key, column in one.items():
        np.testing.assert_array_equal(column, other[key])


def test_uniform_goes_through_all_samples_before_any_comes_again() -> None:
    order = Uniform(10, 8).order(np.zeros(10, bool), 25, np.random.default_rng(3))
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert len(set(order[20:])) == 5
    assert order[:10].tolist() != order[10:20].tolist()


class Says(Sampler):
    """Orders whatever it is told."""

    answer: object = None
    answer_weights: object = None

    def order(self, resident: np.ndarray, accesses: int, rng: np.random.Generator) -> np.ndarray:
        del resident, accesses, rng
        return self.answer  # type: ignore[return-value]

    def weights(self, order: np.ndarray) -> np.ndarray | None:
        del order
        return self.answer_weights  # type: ignore[return-value]


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


def test_without_weights_all_weigh_the_same() -> None:
    assert Uniform(3, 2).checked_weights(np.array([0, 1, 2])) is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([1.0, 2.0], r"gave weights float64 \(2,\), not float64 \(3,\)"),
        (np.ones((3, 1)), r"gave weights float64 \(3, 1\)"),
        (1.0, r"gave weights float64 \(\)"),
        (["a", "b", "c"], "gave weights <U1"),
        ([1.0, None, 1.0], "gave weights object"),
        ([1j, 1, 1], "gave weights complex128"),
        ([1.0, np.nan, 1.0], "gave a weight that is negative or no finite number"),
        ([1.0, np.inf, 1.0], "gave a weight that is negative or no finite number"),
        ([1.0, -0.1, 1.0], "gave a weight that is negative or no finite number"),
    ],
)
def test_weights_that_are_none_are_refused(answer: object, said: str) -> None:
    sampler = Says(3, 2)
    sampler.answer_weights = answer
    with pytest.raises(ValueError, match=f"sampler Says {said}"):
        sampler.checked_weights(np.array([0, 1, 2]))


@pytest.mark.parametrize("answer", [[0, 1, 2], np.float32([0, 1, 2]), (0.0, 1.0, 2.0)])
def test_weights_become_float64(answer: object) -> None:
    sampler = Says(3, 2)
    sampler.answer_weights = answer
    weights = sampler.checked_weights(np.array([0, 1, 2]))
    assert weights is not None
    assert (weights.dtype, weights.tolist()) == (np.float64, [0, 1, 2])


@pytest.mark.parametrize(
    ("order", "weights", "worth"),
    [
        ([3, 1, 2, 0], None, 4),
        ([3, 1, 2, 0], [5, 5, 5, 5], 4),
        ([1, 1, 1], None, 1),
        ([0, 0, 7], None, 9 / 5),
        ([0, 7], [2, 1], 9 / 5),
        ([0, 0, 7, 7], [1, 1, 0, 2], 2),  # two accesses of each, and a weight of 2 in all
        ([0, 1, 2], [1, 0, 1], 2),
        ([0, 1], [1e-300, 1e-300], 2),
        ([0, 1], [1e300, 1e300], 2),
        ([0, 1], [0, 0], 0),
        ([], None, 0),
        ([], [], 0),
    ],
)
def test_effective_samples(order: list[int], weights: list[float] | None, worth: float) -> None:
    given = None if weights is None else np.array(weights, np.float64)
    assert effective_samples(np.array(order, np.int64), given) == pytest.approx(worth)

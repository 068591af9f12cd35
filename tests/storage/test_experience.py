"""FedCaSe's experience by hand, under all its switches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from storage.policies import Experience


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def trained(**switches: Any) -> Experience:
    """Samples 0..3 have ranks 0..3 and 1, 5, 3, 2 uses; 4 and 5 were never trained."""
    policy = Experience(6, **switches)
    uses = array(0, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3)
    policy.access(uses, np.zeros(len(uses), dtype=bool))
    policy.feedback(array(0, 1, 2, 3), np.array([0.1, 0.2, 0.3, 0.4]))
    return policy


def experiences(policy: Experience) -> list[float]:
    return [policy.experience(int(policy.ranks[s]), int(policy.uses[s])) for s in range(6)]


def test_by_hand() -> None:
    # ln 10, 11, 12, 13 = 2.302585, 2.397895, 2.484907, 2.564949; range 0.262364.
    # nw = 0, 0.363274, 0.694919, 1; unscored (1 - 2.302585) / 0.262364 = -4.964797.
    # nf = (f - 1) / 4 = 0, 1, 0.5, 0.25; of no use at all -0.25.
    found = experiences(trained())
    expected = [0, 1.363274, 1.194919, 1.25, -5.214797, -5.214797]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # (5 - f) / 4 = 1, 0, 0.5, 0.75; of no use at all 1.25.
    found = experiences(trained(frequency="penalise"))
    expected = [1, 0.363274, 1.194919, 1.75, -3.714797, -3.714797]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    found = experiences(trained(frequency="ignore"))
    expected = [0, 0.363274, 0.694919, 1, -4.964797, -4.964797]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("switches", "order"),
    [
        ({}, [0, 2, 3, 1]),
        ({"frequency": "penalise"}, [1, 0, 2, 3]),
        ({"frequency": "ignore"}, [0, 1, 2, 3]),
        ({"victims": "artifact"}, [0, 1, 2, 3]),
        ({"victims": "artifact", "frequency": "penalise"}, [0, 1, 2, 3]),
    ],
)
def test_victims(switches: dict[str, str], order: list[int]) -> None:
    policy = trained(**switches)
    policy.inserted(array(3, 2, 1, 0))
    assert list(policy.victims(None)) == order


def test_who_comes_in_has_more_experience() -> None:
    policy = trained()
    policy.inserted(array(0, 1, 3))
    assert list(policy.victims(2)) == [0]  # 1.19 is more than 0, less than 1.25 and 1.36
    policy.access(array(2), np.zeros(1, dtype=bool))
    assert list(policy.victims(2)) == [0, 3, 1]  # nf is 0.75 now, e 1.44
    assert list(policy.victims(4)) == []
    assert list(policy.victims(None)) == [0, 3, 1]


def test_the_artifact_asks_for_more_experience_than_its_own_victim_has() -> None:
    policy = trained(victims="artifact", frequency="penalise")
    policy.inserted(array(0, 3))
    # The victim is 0, of least (w, f), though its e = 1 is more than 0.36 of 1.
    assert list(policy.victims(1)) == []
    assert list(policy.victims(2)) == [0]


def test_the_order_follows_when_the_range_moves() -> None:
    policy = trained()
    policy.inserted(array(0, 1, 2, 3))
    # 3 used 96 times more: nf of 1, 2 is 4/97, 2/97, so that rank decides between them.
    policy.access(np.full(96, 3), np.ones(96, dtype=bool))
    assert list(policy.victims(None)) == [0, 1, 2, 3]
    # Rank 29 for 0 in a batch of 30: 3 ranks low now, but its uses keep it.
    policy.feedback(np.array([4] * 29 + [0]), np.arange(30.0))
    assert policy.ranks[0] == 29
    assert policy.experience(29, 1) == pytest.approx(1 + 1 / 98)


def test_a_range_of_zero_is_a_term_of_zero() -> None:
    policy = Experience(4)
    assert policy.experience(-1, 7) == 0
    policy.access(array(0, 1), np.zeros(2, dtype=bool))
    policy.feedback(array(0), np.array([0.5]))
    assert [policy.experience(0, 1), policy.experience(-1, 1)] == [0, 0]
    policy.feedback(array(0, 1), np.array([0.5, 0.6]))
    assert [policy.experience(0, 1), policy.experience(1, 1)] == [0, 1]


def test_a_loss_that_is_no_number_leaves_the_range() -> None:
    policy = trained()
    policy.feedback(array(1), np.array([np.inf]))
    assert policy.quarantined == 1
    assert policy.experience(3, 3) == pytest.approx(2)  # f is 1..3 without sample 1


def test_extremes_are_of_all_trained_samples_cached_or_not() -> None:
    policy = trained()
    before = experiences(policy)
    policy.inserted(array(1, 2))
    policy.removed(array(1), "evicted")
    assert experiences(policy) == before


def test_a_switch_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="frequency is one of favour, penalise, ignore"):
        Experience(3, frequency="often")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="victims one of experience, artifact"):
        Experience(3, victims="lru")  # type: ignore[arg-type]

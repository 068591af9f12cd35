"""When a run is over before its last round."""

from __future__ import annotations

import pytest

from fedio.config import Rounds
from strategies.ending import Ending


@pytest.mark.parametrize(
    ("accuracies", "last"),
    [
        ([0.1, 0.5, 0.5, 0.5, 0.5], 4),
        ([0.5, 0.5, 0.4, 0.6, 0.6, 0.6], 6),
        # Rounds without an evaluation neither help nor harm.
        ([0.5, None, 0.5, None, 0.5, 0.5], 5),
        ([0.4, 0.4, 0.4, 0.5, 0.5], None),
    ],
)
def test_it_ends_once_three_evaluations_in_a_row_have_the_accuracy(
    accuracies: list[float | None], last: int | None
) -> None:
    assert over_after(Rounds(stop_accuracy=0.5), accuracies) == last


def test_it_ends_with_the_round_in_which_the_horizon_is_over() -> None:
    assert over_after(Rounds(horizon_s=30.0), [None] * 5) == 3
    assert over_after(Rounds(horizon_s=25.0), [None] * 5) == 3
    assert over_after(Rounds(), [None] * 5) is None


def over_after(rounds: Rounds, accuracies: list[float | None]) -> int | None:
    """Return the round that is the last; each takes 10 s, and each begins from what was kept."""
    kept = Ending(rounds).state()
    for number, accuracy in enumerate(accuracies, 1):
        ending = Ending(rounds)
        ending.restore(kept)
        assert not ending.is_over
        ending.note(10.0 * number, accuracy)
        if ending.is_over:
            return number
        kept = ending.state()
    return None

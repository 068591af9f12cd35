"""Power of choice: who is a candidate, and which candidates are taken, by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from strategies.selector import Cohort, View
from strategies.selectors import PowerOfChoice

ViewOf = Callable[..., View]
TRIED = {"last_round": 5, "times_selected": 2}
EVERYBODY = PowerOfChoice(choices=100.0)


def select(selector: PowerOfChoice, view: View, seed: int = 0) -> Cohort:
    return selector.select(view, {}, np.random.default_rng(seed))[0]


def shares(selector: PowerOfChoice, view: View, rounds: int) -> np.ndarray:
    """How often each client is selected, per round."""
    chosen = [select(selector, view, seed).clients for seed in range(rounds)]
    return np.bincount(np.concatenate(chosen), minlength=len(view.fleet)) / rounds


def test_among_all_as_candidates_the_highest_losses_win(view_of: ViewOf) -> None:
    view = view_of(6, 3, loss=[0.5, 3.0, 1.0, 2.0, 0.1, 4.0], **TRIED)
    cohort = select(EVERYBODY, view)
    assert cohort.clients.tolist() == [1, 3, 5]
    assert cohort.reasons.why == ["high loss"] * 3
    assert cohort.reasons.details["loss"].tolist() == [3.0, 2.0, 4.0]
    assert cohort.reasons.rest == {"lower score": 3}


def test_candidates_are_as_many_as_said(view_of: ViewOf) -> None:
    view = view_of(50, 5, loss=np.arange(50.0), **TRIED)
    assert select(PowerOfChoice(), view).reasons.rest == {"lower score": 5, "not drawn": 40}
    rest = select(PowerOfChoice(choices=2.5), view).reasons.rest
    assert rest == {"lower score": 8, "not drawn": 37}  # of 12.5 candidates, 13
    # With as many candidates as are selected the loss is of no account: the draw alone decides.
    assert select(PowerOfChoice(choices=1.0), view).reasons.rest == {"not drawn": 45}


def test_a_client_is_a_candidate_in_proportion_to_its_samples(view_of: ViewOf) -> None:
    view = view_of(4, 1, samples=[100, 300, 600, 1000], loss=1.0, **TRIED)
    found = shares(PowerOfChoice(choices=1.0), view, 3_000)
    np.testing.assert_allclose(found, [0.05, 0.15, 0.3, 0.5], atol=0.035)


def test_a_false_number_of_samples_makes_no_candidate_for_ever(view_of: ViewOf) -> None:
    view = view_of(40, 4, samples=[2**52] + [100] * 39, loss=1.0, **TRIED)
    assert shares(PowerOfChoice(choices=1.0), view, 500)[0] == pytest.approx(0.1, abs=0.05)


def test_without_samples_nobody_is_a_candidate_while_others_are(view_of: ViewOf) -> None:
    everyone = np.ones(6, dtype=np.bool_)
    view = view_of(6, 2, samples=[-1, 9, 9, 0, 9, 9], feasible=everyone, loss=1.0, **TRIED)
    found = shares(PowerOfChoice(), view, 50)
    assert (found[[0, 3]] == 0).all()
    assert (found[[1, 2, 4, 5]] > 0).all()


def test_who_was_never_selected_comes_first_and_evenly(view_of: ViewOf) -> None:
    loss = [np.nan, 9.0, np.nan, 8.0, np.nan]
    view = view_of(5, 2, loss=loss, times_selected=[0, 1, 0, 1, 0])
    found = shares(EVERYBODY, view, 600)
    np.testing.assert_allclose(found, [2 / 3, 0, 2 / 3, 0, 2 / 3], atol=0.08)
    assert select(EVERYBODY, view).reasons.why == ["new", "new"]


@pytest.mark.parametrize("claim", [np.nan, np.inf, -np.inf, -2.0, 1e30, 1.7e308])
def test_a_loss_that_is_none_counts_as_the_lowest_of_who_has_answered(
    view_of: ViewOf, claim: float
) -> None:
    loss = [1.0, 2.0, 3.0, 4.0, 5.0, claim]
    view = view_of(6, 1, loss=loss, **TRIED)
    assert shares(EVERYBODY, view, 30)[4] == 1
    found = shares(EVERYBODY, view_of(6, 4, loss=loss, **TRIED), 30)
    assert found.tolist() == [0, 1, 1, 1, 1, 0]
    told = select(EVERYBODY, view_of(6, 6, loss=loss, **TRIED)).reasons.details["loss"]
    np.testing.assert_array_equal(told, [1.0, 2.0, 3.0, 4.0, 5.0, np.nan])


def test_who_was_selected_and_never_answered_is_not_preferred(view_of: ViewOf) -> None:
    loss = [1.0, 2.0, 3.0, 4.0, np.nan]  # the median of four, as Oort's artifact takes it, is 3
    assert shares(EVERYBODY, view_of(5, 1, loss=loss, times_selected=1), 30)[4] == 0
    found = shares(EVERYBODY, view_of(5, 3, loss=loss, times_selected=1), 30)
    assert found.tolist() == [0, 0, 1, 1, 1]


def test_equal_losses_are_drawn(view_of: ViewOf) -> None:
    found = shares(EVERYBODY, view_of(8, 2, loss=0.0, **TRIED), 400)
    np.testing.assert_allclose(found, 0.25, atol=0.08)


@pytest.mark.parametrize("choices", [0.9, -1.0, np.nan, np.inf])
def test_fewer_candidates_than_clients_are_refused(choices: float) -> None:
    with pytest.raises(ValueError, match="choices is"):
        PowerOfChoice(choices=choices)

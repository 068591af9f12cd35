"""REFL: whose turn it is while they are there, and who rests, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from strategies.fleet import Fleet
from strategies.selector import Cohort, View
from strategies.selectors import REFL

ViewOf = Callable[..., View]


def select(selector: REFL, view: View, seed: int = 0) -> Cohort:
    return selector.select(view, {}, np.random.default_rng(seed))[0]


def test_those_least_available_later_are_chosen(view_of: ViewOf) -> None:
    view = view_of(6, 3, available_later=[0.9, 0.1, 1.0, 0.0, 0.5, np.nan])
    cohort = select(REFL(), view)
    assert cohort.clients.tolist() == [1, 3, 4]
    assert cohort.reasons.why == ["least available"] * 3
    assert cohort.reasons.details["forecast"].tolist() == [0.1, 0.0, 0.5]
    assert cohort.reasons.rest == {"lower score": 3}


@pytest.mark.parametrize("forecast", [np.nan, np.inf, -np.inf, -0.5, 1.5, 1e30])
def test_a_forecast_that_is_no_share_counts_as_available(view_of: ViewOf, forecast: float) -> None:
    others = select(REFL(), view_of(4, 3, available_later=[forecast, 0.9, 0.95, 0.99]))
    assert others.clients.tolist() == [1, 2, 3]
    alike = view_of(2, 1, available_later=[forecast, 1.0])
    assert {select(REFL(), alike, seed).clients.item() for seed in range(20)} == {0, 1}


def test_equal_forecasts_are_drawn(view_of: ViewOf) -> None:
    view = view_of(6, 2, available_later=[0.2, 0.7, 0.7, 0.7, 0.7, 0.9])
    seen = np.zeros(6)
    for seed in range(400):
        seen[select(REFL(), view, seed).clients] += 1
    np.testing.assert_allclose(seen / 400, [1, 0.25, 0.25, 0.25, 0.25, 0], atol=0.08)


def test_who_answered_within_the_last_five_rounds_rests(view_of: ViewOf) -> None:
    # It is round 10: an answer to round 6 is 4 rounds old, one to round 5 is 5.
    view = view_of(5, 3, last_round=[9, 6, 5, 0, 1], available_later=[0.0, 0.0, 1.0, 1.0, 1.0])
    cohort = select(REFL(), view)
    assert cohort.clients.tolist() == [2, 3, 4]
    assert cohort.reasons.rest == {"excluded": 2}
    assert select(REFL(rest_rounds=0), view).clients.tolist()[:2] == [0, 1]
    assert select(REFL(rest_rounds=4), view).clients.tolist()[0] == 1


def test_where_too_few_are_left_those_who_rested_longest_are_taken(view_of: ViewOf) -> None:
    view = view_of(6, 4, last_round=[9, 8, 7, 8, 0, 1], available_later=[0.0] * 4 + [1.0] * 2)
    drawn = set()
    for seed in range(30):
        cohort = select(REFL(), view, seed)
        why = dict(zip(cohort.clients.tolist(), cohort.reasons.why, strict=True))
        drawn |= why.keys() - {2, 4, 5}
        assert why.keys() > {2, 4, 5}
        assert why[2] == "rested longest"
        assert why[4] == why[5] == "least available"
        assert cohort.reasons.rest == {"excluded": 2}
    assert drawn == {1, 3}


def test_only_the_feasible_count_as_left(view_of: ViewOf) -> None:
    feasible = np.array([True, True, False, False])
    view = view_of(4, 2, last_round=[9, 9, 0, 0], feasible=feasible)
    assert select(REFL(), view).clients.tolist() == [0, 1]


def test_nobody_trains_twice_within_the_rest_while_there_are_others(view_of: ViewOf) -> None:
    view = view_of(12, 2, available_later=np.arange(12) / 12)
    fleet = Fleet.from_arrays({name: a.copy() for name, a in view.fleet.arrays().items()})
    log = []
    for server_round in range(1, 16):
        seen = replace(view, fleet=fleet.read_only(), round=server_round)
        clients = select(REFL(), seen, server_round).clients
        log.append(clients.tolist())
        fleet.observed(clients, server_round, 1.0)
    # The forecasts never change, so the ten least available take turns and the last two never do.
    assert log == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]] * 3


def test_a_negative_rest_is_refused() -> None:
    with pytest.raises(ValueError, match="rest_rounds is -1"):
        REFL(rest_rounds=-1)

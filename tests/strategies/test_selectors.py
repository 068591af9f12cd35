"""What holds for the cohorts of every selector: a row in the table is a test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from strategies.selector import NoFeasibleClient, Selector, View
from strategies.selectors import SELECTORS
from tests.strategies.any_states import ROUNDS, any_states
from tests.strategies.selector_table import EVERY, check, check_state, named, select

ViewOf = Callable[..., View]
# Which column each promises to follow: the more (+1) or less (-1) a client has of it, all else
# equal and within what the others have, the more likely it is chosen. TiFL ranks tiers, not
# clients; uniform follows nothing.
PROMISES = [
    ("power_of_choice", {}, "loss", +1),
    ("oort", {}, "utility", +1),
    ("oort", {}, "duration_s", -1),
    ("oort", {"parameters": "fedscale"}, "utility", +1),
    ("refl", {}, "available_later", -1),
    ("fedcase", {"base": "uniform", "share": 0.6}, "utility", +1),
    ("fedcase", {"base": "uniform", "share": 0.6}, "duration_s", -1),
    ("io_aware", {}, "utility", +1),
]


@pytest.fixture(params=EVERY, ids=named)
def selector(request: pytest.FixtureRequest) -> Selector:
    name, args = request.param
    return SELECTORS[name](**args)


def check_fleet(selector: Selector, views: list[View], rng: np.random.Generator) -> None:
    """All is well with a cohort in each of the views, or there is a typed error."""
    state = selector.initial_state(len(views[0].fleet))
    for view in views:
        if view.count and not view.feasible.any():
            with pytest.raises(NoFeasibleClient):
                selector.select(view, state, rng)
        else:
            cohort, state = selector.select(view, state, rng)
            check(view, cohort)
            check_state(state)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**63))
def test_any_feedback_gives_a_cohort_of_the_feasible(view_of: ViewOf, seed: int) -> None:
    for views in any_states(seed, 1, view_of(1, 1).fleet):
        for name, args in EVERY:
            check_fleet(SELECTORS[name](**args), views, np.random.default_rng(seed))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "args"), EVERY, ids=map(named, EVERY))
@settings(max_examples=50, phases=[Phase.generate])  # a seed cannot be shrunk
@given(seed=st.integers(0, 2**63))
def test_a_great_many_states_of_feedback(
    view_of: ViewOf, name: str, args: dict[str, Any], seed: int
) -> None:
    """Every row of the table sees 10^5 states, and every variant of one 10^4."""
    selector, states = SELECTORS[name](**args), 10_000 if args else 100_000
    rng, fleets = np.random.default_rng(seed), math.ceil(states / 50 / ROUNDS)
    for views in any_states(seed, fleets, view_of(1, 1).fleet):
        check_fleet(selector, views, rng)


@pytest.mark.parametrize(("clients", "count"), [(12, 1), (12, 7), (12, 12), (1, 1)])
def test_first_round_without_feedback(
    selector: Selector, view_of: ViewOf, clients: int, count: int
) -> None:
    view = view_of(clients, count, server_round=1)
    check(view, select(selector, view))


@pytest.mark.parametrize(("count", "chosen"), [(9, 4), (4, 4), (0, 0), (3, 3)])
def test_more_than_feasible_gives_all_of_them(
    selector: Selector, view_of: ViewOf, count: int, chosen: int
) -> None:
    feasible = np.isin(np.arange(10), [1, 4, 5, 9])
    view = view_of(10, count, feasible=feasible, last_round=[0, 1] * 5, utility=3.0)
    cohort = select(selector, view)
    check(view, cohort)
    assert len(cohort.clients) == chosen
    if chosen == 4:
        assert cohort.clients.tolist() == [1, 4, 5, 9]


def test_nobody_feasible_is_a_typed_error_unless_nobody_is_wanted(
    selector: Selector, view_of: ViewOf
) -> None:
    nobody = np.zeros(3, dtype=np.bool_)
    with pytest.raises(NoFeasibleClient, match="none of 3 clients"):
        select(selector, view_of(3, 1, feasible=nobody))
    assert len(select(selector, view_of(3, 0, feasible=nobody)).clients) == 0


def test_where_all_were_tried_the_cohort_is_full_and_nobody_in_it_is_gone(
    selector: Selector, view_of: ViewOf
) -> None:
    tried = {"last_round": 8, "times_selected": 3, "utility": np.arange(24.0), "loss": 1.0}
    before = view_of(24, 8, server_round=9, **tried)
    _, state = selector.select(before, selector.initial_state(24), np.random.default_rng(0))
    view = view_of(24, 8, feasible=np.arange(24) < 12, **tried)
    check(view, select(selector, view, state=state))


@pytest.mark.parametrize("duration_s", [0.0, np.nan, -1.0, np.inf, 5e-324])
def test_any_duration_gives_finite_scores(
    selector: Selector, view_of: ViewOf, duration_s: float
) -> None:
    tried = {"last_round": 5, "times_selected": 1, "utility": 1.0, "loss": 1.0}
    for durations in (duration_s, [duration_s, 5.0, 6.0, 7.0] * 3):
        view = view_of(12, 5, duration_s=durations, **tried)
        check(view, select(selector, view))


def test_the_rest_is_counted_by_reason(selector: Selector, view_of: ViewOf) -> None:
    feasible = np.array([False, False, False, True, True, True])
    view = view_of(6, 2, feasible=feasible, busy_until_s=[9.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    rest = select(selector, view).reasons.rest
    assert rest.pop("busy") == 2
    assert rest.pop("unavailable") == 1
    assert rest.keys() <= {"excluded", "lower score", "not drawn"}
    assert sum(rest.values()) == 1


TRIED = {"last_round": 3, "times_selected": 1, "duration_s": 5.0}
ALIKE = {
    "untried": {},
    "tried, equal": {**TRIED, "utility": 2.0, "loss": 1.5, "available_later": 0.5},
    "tried, zero": {**TRIED, "utility": 0.0, "loss": 0.0, "available_later": 0.0},
    "tried, none known": {"last_round": 3, "times_selected": 1},
    "no samples known": {"samples": -1},
    "nothing known": {"compute_s": np.nan, "mean_size_bytes": np.nan},
}


@pytest.mark.parametrize("known", ALIKE)
@pytest.mark.parametrize(("clients", "count", "draws"), [(12, 4, 100), (150, 2, 250)])
def test_clients_that_are_alike_are_drawn_evenly(
    selector: Selector, view_of: ViewOf, clients: int, count: int, draws: int, known: str
) -> None:
    everyone = np.ones(clients, dtype=np.bool_)
    view = view_of(clients, count, feasible=everyone, **ALIKE[known])
    state = selector.initial_state(clients)
    rng = np.random.default_rng(20)
    seen, shares, free = np.zeros(clients), np.zeros(draws), clients - 1
    for turn in range(draws):
        chosen = selector.select(view, state, rng)[0].clients
        seen[chosen] += 1
        shares[turn] = len(chosen) / clients  # more than `count` where a selector appends
    # Inclusions without replacement are less spread than independent ones, by this factor.
    spread = np.sum(shares * (1 - shares)) * clients / free
    statistic = np.sum((seen - shares.sum()) ** 2) / spread
    # The 99.99 % quantile of chi-square, by Wilson and Hilferty's approximation.
    bound = free * (1 - 2 / (9 * free) + 3.719 * (2 / (9 * free)) ** 0.5) ** 3
    assert statistic < bound


@pytest.mark.parametrize(("name", "args", "column", "sign"), PROMISES, ids=map(named, PROMISES))
def test_what_a_selector_promises_to_follow_it_follows(
    view_of: ViewOf, name: str, args: dict[str, Any], column: str, sign: int
) -> None:
    """One client moves from the second worst place to the second best; all others stay."""
    selector, rng, draws = SELECTORS[name](**args), np.random.default_rng(5), 300
    others = np.sort(rng.random(19))[::sign]
    same = {"last_round": 3, "times_selected": 1, "duration_s": 0.5, "utility": 0.5, "loss": 0.5}
    chosen = []
    for place in (1, 7, 18):
        figures = [others[place - 1 : place + 1].mean(), *others]
        view = view_of(20, 4, **(same | {column: figures}))
        chosen.append(sum(0 in select(selector, view, seed).clients for seed in range(draws)))
    worst, middle, best = chosen
    spread = sum(times * (1 - times / draws) for times in chosen) ** 0.5
    assert worst - 3 * spread <= middle <= best + 3 * spread
    assert best > worst + 4 * spread


def test_whoever_says_so_names_the_next_and_nobody_else_does(
    selector: Selector, view_of: ViewOf
) -> None:
    view = replace(view_of(40, 5), staging=True)
    assert (len(select(selector, view).next) > 0) == selector.names_next


@pytest.mark.slow
def test_a_million_clients(selector: Selector, view_of: ViewOf) -> None:
    rng = np.random.default_rng(0)
    clients = 10**6
    view = view_of(
        clients,
        100,
        last_round=rng.integers(0, 10, clients),
        utility=rng.random(clients),
        loss=rng.random(clients),
        duration_s=rng.random(clients) * 100,
        samples=rng.integers(1, 500, clients),
        available_later=rng.random(clients),
        feasible=rng.random(clients) < 0.5,
    )
    check(view, select(selector, view))

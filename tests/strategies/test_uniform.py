"""Uniform selection, drawn when the round comes or, where clients stage, one round ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from strategies.selector import State, View
from strategies.selectors import FedCaSe, Uniform

ViewOf = Callable[..., View]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def nobody() -> State:
    return Uniform().initial_state(0)


def test_without_staging_it_is_one_draw_from_the_candidates(view_of: ViewOf) -> None:
    feasible = np.arange(50) % 3 != 0
    candidates = np.flatnonzero(feasible)
    for seed in range(20):
        given, reference = rng(seed), rng(seed)
        cohort, state = Uniform().select(view_of(50, 7, feasible=feasible), nobody(), given)
        drawn = reference.choice(np.arange(len(candidates)), 7, replace=False, shuffle=False)
        assert cohort.clients.tolist() == sorted(candidates[drawn])
        assert given.bit_generator.state == reference.bit_generator.state
        assert cohort.next.tolist() == state["named"].tolist() == []
        assert cohort.reasons.why == ["drawn"] * 7


def test_with_staging_the_first_round_is_drawn_the_same_and_names_the_second(
    view_of: ViewOf,
) -> None:
    plain, _ = Uniform().select(view_of(50, 7), nobody(), rng())
    first, state = Uniform().select(view_of(50, 7, staging=True), nobody(), rng())
    assert first.clients.tolist() == plain.clients.tolist()
    assert len(first.next) == 7
    second, state = Uniform().select(view_of(50, 7, staging=True), state, rng(1))
    assert second.clients.tolist() == first.next.tolist()
    assert second.reasons.why == ["named"] * 7
    assert second.next.tolist() == state["named"].tolist() != first.next.tolist()


def test_those_at_work_are_named_too_and_replaced_if_they_still_are(view_of: ViewOf) -> None:
    feasible = np.arange(20) < 10
    replaced = 0
    for seed in range(30):
        idle = view_of(20, 6, staging=True)
        named = Uniform().select(idle, nobody(), rng(seed))[0].next
        view = view_of(20, 6, staging=True, feasible=feasible)
        cohort, _ = Uniform().select(view, {"named": named}, rng(seed))
        kept = named[named < 10]
        assert len(cohort.clients) == 6
        assert np.isin(kept, cohort.clients).all()
        assert (cohort.clients < 10).all()
        assert cohort.reasons.why.count("named") == len(kept)
        assert cohort.reasons.why.count("drawn") == 6 - len(kept)
        assert sum(cohort.reasons.rest.values()) == 14
        replaced += 6 - len(kept)
        # Half of all are at work now, and as many of those are named as of the others.
        assert (cohort.next >= 10).any()
    assert replaced > 30


def test_nobody_of_whom_nothing_is_known_is_named(view_of: ViewOf) -> None:
    view = view_of(6, 4, staging=True, samples=[9, -1, 9, 0, 9, -1])
    cohort, _ = Uniform().select(view, nobody(), rng())
    assert cohort.next.tolist() == [0, 2, 4]


def test_no_more_of_those_named_take_part_than_are_wanted(view_of: ViewOf) -> None:
    seen = np.zeros(10)
    named = np.arange(2, 8)
    for seed in range(200):
        view = view_of(10, 3, staging=True)
        cohort, _ = Uniform().select(view, {"named": named}, rng(seed))
        assert len(cohort.clients) == 3
        seen[cohort.clients] += 1
    assert (seen[named] > 0).all()
    assert seen.sum() == seen[named].sum()


@pytest.mark.parametrize("idle", [1.0, 0.7])
def test_named_a_round_ahead_all_are_as_likely_as_ever(view_of: ViewOf, idle: float) -> None:
    clients, count, rounds = 12, 4, 2000
    generator, state = rng(20), nobody()
    view = view_of(clients, count, staging=True)
    seen, named = np.zeros(clients), np.zeros(clients)
    for _ in range(rounds):
        feasible = generator.random(clients) < idle
        feasible[generator.choice(clients, count, replace=False)] = True
        cohort, state = Uniform().select(replace(view, feasible=feasible), state, generator)
        seen[cohort.clients] += 1
        named[cohort.next] += 1
    share = count / clients
    spread = rounds * share * (1 - share) * clients / (clients - 1)
    for counts in (seen, named):
        statistic = np.sum((counts - rounds * share) ** 2) / spread
        assert statistic < 37.4  # the 99.99 % quantile of chi-square with 11 degrees of freedom


def test_fedcase_passes_on_whom_its_base_names(view_of: ViewOf) -> None:
    selector = FedCaSe(base="uniform", share=0.0)
    view = view_of(30, 6, staging=True)
    first, state = selector.select(view, selector.initial_state(30), rng())
    assert len(first.next) == 6
    second, _ = selector.select(view, state, rng(1))
    assert second.clients.tolist() == first.next.tolist()

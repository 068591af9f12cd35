"""What holds for the states of every selector, which a checkpoint keeps and a resumed run reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from strategies.fleet import Fleet
from strategies.selector import Cohort, Selector, State, View
from strategies.selectors import SELECTORS
from tests.strategies.selector_table import EVERY, check_state, named, select

ViewOf = Callable[..., View]


@pytest.fixture(params=EVERY, ids=named)
def selector(request: pytest.FixtureRequest) -> Selector:
    name, args = request.param
    return SELECTORS[name](**args)


def test_global_generators_stay_as_they_are(selector: Selector, view_of: ViewOf) -> None:
    def states() -> tuple[object, bytes, int, bytes]:
        name, keys, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
        assert name == "MT19937"
        return random.getstate(), keys.tobytes(), position, torch.get_rng_state().numpy().tobytes()

    before = states()
    select(selector, view_of(20, 5, last_round=[0, 4] * 10, utility=1.0))
    assert states() == before


def answer(fleet: Fleet, cohort: Cohort, server_round: int) -> None:
    """Clients answer with figures that follow from who they are and when."""
    clients = cohort.clients
    fleet.selected(clients, server_round)
    fleet.observed(clients, server_round, 1.0 + clients % 7)
    utility, loss = (clients * 13 % 11) / server_round, (1 + clients % 5) / server_round
    fleet.claimed(clients, server_round, utility=utility, loss=loss)
    fleet.available_later[:] = (np.arange(len(fleet)) * server_round % 9) / 8


def rounds_of(
    selector: Selector, view_of: ViewOf, carry: Callable[[State], State]
) -> list[tuple[list[int], list[str], list[float]]]:
    """What is chosen in thirty rounds, and why; `carry` takes a state from one to the next."""
    view = view_of(30, 6)
    fleet = Fleet.from_arrays({name: a.copy() for name, a in view.fleet.arrays().items()})
    state = selector.initial_state(30)
    log = []
    for server_round in range(1, 31):
        seen = replace(view, fleet=fleet.read_only(), round=server_round)
        rng = np.random.default_rng([7, server_round])
        check_state(state)
        cohort, state = selector.select(seen, carry(state), rng)
        score = cohort.reasons.details.get("score", np.zeros(0))
        log.append((cohort.clients.tolist(), cohort.reasons.why, score.tolist()))
        answer(fleet, cohort, server_round)
    return log


def test_a_state_restored_from_bytes_gives_the_same_rounds(
    selector: Selector, view_of: ViewOf
) -> None:
    def stored(state: State) -> State:
        raw = {name: (a.tobytes(), a.dtype.str, a.shape) for name, a in state.items()}
        return {
            name: np.frombuffer(data, dtype).reshape(shape)
            for name, (data, dtype, shape) in raw.items()
        }

    kept = rounds_of(selector, view_of, lambda state: state)
    assert rounds_of(selector, view_of, stored) == kept


def test_neither_state_nor_table_changes(selector: Selector, view_of: ViewOf) -> None:
    def watched(state: State) -> State:
        for array in state.values():
            array.flags.writeable = False
        return state

    rounds_of(selector, view_of, watched)
    view = view_of(20, 5, last_round=[0, 4] * 10, utility=1.0, times_selected=2)
    before = {name: array.copy() for name, array in view.fleet.arrays().items()}
    state = selector.initial_state(20)
    kept = {name: array.copy() for name, array in state.items()}
    feasible = view.feasible.copy()
    _, after = selector.select(view, state, np.random.default_rng(0))
    assert after is not state
    assert state.keys() == kept.keys()
    for name, array in kept.items():
        np.testing.assert_array_equal(state[name], array)
    for name, array in before.items():
        np.testing.assert_array_equal(view.fleet.arrays()[name], array)
    np.testing.assert_array_equal(view.feasible, feasible)


def test_the_generator_decides_and_nothing_else(selector: Selector, view_of: ViewOf) -> None:
    view = view_of(40, 5, last_round=[0, 4] * 20, utility=1.0)
    cohorts = [select(selector, view, seed).clients.tolist() for seed in (1, 1, 2, 3, 4)]
    assert cohorts[0] == cohorts[1]
    assert any(cohort != cohorts[0] for cohort in cohorts[2:])

"""What holds for every selector: the tests run over the table."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedio.config import Arm, Spec
from fedio.errors import InputError
from strategies.fleet import Fleet
from strategies.selector import Cohort, NoFeasibleClient, Reasons, Selector, State, View
from strategies.selectors import SELECTORS
from strategies.server_app import selector_of

ViewOf = Callable[..., View]
EVERY = [
    *((name, {}) for name in SELECTORS),
    ("oort", {"parameters": "fedscale"}),
    ("oort", {"blacklist_rounds": 0, "blacklist_max_len": 1.0, "pacer_step": 1}),
    ("io_aware", {"explore": 1.0}),
    ("fedcase", {"base": "uniform", "share": 0.6}),
]
CLAIMS = ("utility", "duration_s", "mean_size_bytes", "mean_cached_bytes", "decoded_share")
SPEEDS = ("compute_s", "step_s", "decode_sample_s", "depth", "readers", "slowdown")
SPEEDS += ("upload_bytes_per_s", "origin_read_bytes_per_s", "cache_read_bytes_per_s")
REALS = (0.0, -0.0, 5e-324, 1e-9, 1.0, 2.0, 3.5, 1e12, 1.7e308, np.nan, np.inf, -np.inf, -1.0)
WHOLES = (-1, 0, 1, 7, 200, 2**52)


@pytest.fixture(params=EVERY, ids=lambda row: " ".join([row[0], *map(str, row[1].values())]))
def selector(request: pytest.FixtureRequest) -> Selector:
    name, args = request.param
    return SELECTORS[name](**args)


def select(selector: Selector, view: View, seed: int = 0, state: State | None = None) -> Cohort:
    start = selector.initial_state(len(view.fleet)) if state is None else state
    return selector.select(view, start, np.random.default_rng(seed))[0]


def check(view: View, cohort: Cohort) -> None:
    """The cohort is feasible, distinct, of the right size and accounted for."""
    clients = cohort.clients
    appended = cohort.reasons.why.count("experienced")
    wanted = min(view.count, int(view.feasible.sum())) + appended
    assert clients.dtype == np.int64
    assert len(clients) == wanted
    assert (np.diff(clients) > 0).all()
    assert view.feasible[clients].all()
    assert cohort.local_steps.tolist() == [view.local_steps] * wanted
    assert cohort.next.dtype == np.int64
    assert (np.diff(cohort.next) > 0).all()
    assert (view.fleet.samples[cohort.next] > 0).all()
    assert len(cohort.next) <= (view.count if view.staging else 0)
    reasons = cohort.reasons
    assert len(reasons.why) == wanted
    assert all(len(figures) == wanted for figures in reasons.details.values())
    assert np.isfinite(reasons.details.get("score", np.zeros(0))).all()
    assert np.isfinite(reasons.details.get("utility", np.zeros(0))).all()
    assert sum(reasons.rest.values()) == len(view.fleet) - wanted
    assert all(count > 0 for count in reasons.rest.values())


def any_view(clients: int, rng: np.random.Generator, view_of: ViewOf) -> View:
    """A state of a fleet in which claims and observations may be anything at all."""
    server_round = int(rng.integers(1, 50))
    some = {name: rng.choice(REALS, clients) for name in (*CLAIMS, *SPEEDS) if rng.random() < 0.7}
    return view_of(
        clients,
        int(rng.integers(0, clients + 4)),
        server_round=server_round,
        feasible=rng.random(clients) < rng.random(),
        samples=rng.choice(WHOLES, clients),
        resident_samples=rng.choice(WHOLES, clients),
        last_round=rng.integers(0, server_round + 1, clients) * rng.integers(0, 2, clients),
        times_selected=rng.integers(0, 4, clients),
        busy_until_s=rng.choice([0.0, 5.0], clients),
        staging=bool(rng.integers(2)),
        **some,
    )


def check_any(selector: Selector, seed: int, view_of: ViewOf) -> None:
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 25))
    state = selector.initial_state(clients)
    for _ in range(3):
        view = any_view(clients, rng, view_of)
        if view.count and not view.feasible.any():
            with pytest.raises(NoFeasibleClient):
                selector.select(view, state, rng)
        else:
            cohort, state = selector.select(view, state, rng)
            check(view, cohort)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**63))
def test_any_feedback_gives_a_cohort_of_the_feasible(view_of: ViewOf, seed: int) -> None:
    for name, args in EVERY:
        check_any(SELECTORS[name](**args), seed, view_of)


@pytest.mark.slow
def test_a_great_many_states_of_feedback(selector: Selector, view_of: ViewOf) -> None:
    for seed in range(6_000):
        check_any(selector, seed, view_of)


@pytest.mark.parametrize("count", [1, 7, 12])
def test_first_round_without_feedback(selector: Selector, view_of: ViewOf, count: int) -> None:
    view = view_of(12, count, server_round=1)
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


def test_the_rest_is_counted_by_reason(selector: Selector, view_of: ViewOf) -> None:
    feasible = np.array([False, False, False, True, True, True])
    view = view_of(6, 2, feasible=feasible, busy_until_s=[9.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    rest = select(selector, view).reasons.rest
    assert rest.pop("busy") == 2
    assert rest.pop("unavailable") == 1
    assert rest.keys() <= {"excluded", "lower score", "not drawn"}
    assert sum(rest.values()) == 1


UNIFORM = {
    "untried": {},
    "tried, equal": {"last_round": 3, "utility": 2.0, "duration_s": 5.0},
    "tried, zero": {"last_round": 3, "utility": 0.0, "duration_s": 5.0},
    "tried, none known": {"last_round": 3, "utility": np.nan},
    "no samples known": {"samples": -1},
    "nothing known": {"compute_s": np.nan, "mean_size_bytes": np.nan},
}


@pytest.mark.parametrize("known", UNIFORM)
@pytest.mark.parametrize(("clients", "count", "draws"), [(12, 4, 500), (150, 2, 700)])
def test_clients_that_are_alike_are_drawn_evenly(
    selector: Selector, view_of: ViewOf, clients: int, count: int, draws: int, known: str
) -> None:
    everyone = np.ones(clients, dtype=np.bool_)
    view = view_of(clients, count, feasible=everyone, **UNIFORM[known])
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
    fleet.claimed(clients, server_round, utility=(clients * 13 % 11) / server_round)


def rounds_of(
    selector: Selector, view_of: ViewOf, carry: Callable[[State], State], rounds: int = 12
) -> list[tuple[list[int], list[str], list[float]]]:
    view = view_of(30, 6)
    fleet = Fleet.from_arrays({name: a.copy() for name, a in view.fleet.arrays().items()})
    state = selector.initial_state(30)
    log = []
    for server_round in range(1, rounds + 1):
        seen = replace(view, fleet=fleet.read_only(), round=server_round)
        rng = np.random.default_rng([7, server_round])
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


@pytest.mark.parametrize("changes", [{"server_round": 0}, {"count": -1}, {"feasible": np.ones(4)}])
def test_an_impossible_view_is_refused(view_of: ViewOf, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"need >= 1 and >= 0|must be bool \[4\]"):
        view_of(4, **({"count": 1} | changes))


@pytest.mark.slow
def test_a_million_clients(selector: Selector, view_of: ViewOf) -> None:
    rng = np.random.default_rng(0)
    clients = 10**6
    view = view_of(
        clients,
        100,
        last_round=rng.integers(0, 10, clients),
        utility=rng.random(clients),
        duration_s=rng.random(clients) * 100,
        samples=rng.integers(1, 500, clients),
        feasible=rng.random(clients) < 0.5,
    )
    check(view, select(selector, view))


class Chooses(Selector):
    """Chooses whatever it is told."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort = cohort

    def choose(
        self, view: View, candidates: np.ndarray, state: State, rng: np.random.Generator
    ) -> tuple[Cohort, State]:
        del view, candidates, rng
        return self.cohort, state


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([3, 3], "distinct and ascending"),
        ([4, 3], "distinct and ascending"),
        ([[3, 4]], "distinct and ascending"),
        ([1.0], "not int64"),
        ([-1, 3], "do not exist"),
        ([3, 9], "do not exist"),
        ([3, 8], "not known"),
    ],
)
def test_a_selector_that_names_wrongly_for_the_next_round_is_told(
    view_of: ViewOf, named: list[Any], said: str
) -> None:
    everyone = np.ones(9, dtype=np.bool_)
    view = view_of(9, 1, feasible=everyone, samples=[200] * 8 + [-1])
    cohort = Cohort(np.array([2]), np.array([8]), Reasons(["a"], {}, {}), np.array(named))
    with pytest.raises(InputError, match=f"chose clients for the next round that.* {said}"):
        Chooses(cohort).select(view, {}, np.random.default_rng(0))
    sound = replace(cohort, next=np.array([0, 3, 7]))
    assert Chooses(sound).select(view, {}, np.random.default_rng(0))[0] is sound


@pytest.mark.parametrize(
    ("clients", "steps", "why", "said"),
    [
        ([0, 0, 1], [8, 8, 8], ["a"] * 3, "a client twice"),
        ([0, 1], [8, 8], ["a"] * 2, "2 clients where 3 were wanted"),
        ([], [], [], "0 clients where 3 were wanted"),
        ([0, 1, 99], [8] * 3, ["a"] * 3, "client 99, which is not feasible"),
        ([0, 1, -1], [8] * 3, ["a"] * 3, "client -1, which is not feasible"),
        ([0, 1, 2], [8, 8], ["a"] * 3, "one positive number per client"),
        ([0, 1, 2], [8, 0, 8], ["a"] * 3, "one positive number per client"),
        ([0, 1, 2], [8] * 3, ["a"], "reasons that are not one per client"),
        ([0.0, 1.0, 2.0], [8] * 3, ["a"] * 3, "not int64"),
    ],
)
def test_a_selector_that_chooses_wrongly_is_named(
    view_of: ViewOf, clients: list[int], steps: list[int], why: list[str], said: str
) -> None:
    ids = np.array(clients) if clients else np.empty(0, np.int64)
    cohort = Cohort(ids, np.array(steps, np.int64), Reasons(why, {}, {}))
    with pytest.raises(InputError, match=f"round 10: selector Chooses chose .*{said}"):
        Chooses(cohort).select(view_of(9, 3), {}, np.random.default_rng(0))
    with pytest.raises(InputError, match="gave a list, not a Cohort"):
        Chooses([1, 2, 3]).select(view_of(9, 3), {}, np.random.default_rng(0))  # type: ignore[arg-type]


def test_whoever_says_so_names_the_next_and_nobody_else_does(
    selector: Selector, view_of: ViewOf
) -> None:
    view = replace(view_of(40, 5), staging=True)
    assert (len(select(selector, view).next) > 0) == selector.names_next


def test_clients_cannot_stage_for_a_selector_that_names_nobody() -> None:
    assert selector_of(Arm(selector=Spec(name="uniform"), staging=True)).names_next
    assert not selector_of(Arm(selector=Spec(name="oort"))).names_next
    with pytest.raises(InputError, match="selector 'oort' does not say who trains next"):
        selector_of(Arm(selector=Spec(name="oort"), staging=True))

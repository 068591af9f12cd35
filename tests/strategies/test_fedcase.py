"""FedCaSe's cohort by hand, and its learned share with both faults of the artifact guarded."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedio.errors import InputError
from strategies.fleet import Fleet
from strategies.selector import Cohort, State, View
from strategies.selectors import FedCaSe, Oort, Uniform
from strategies.selectors import share as share_module
from strategies.selectors.fedcase import experience, widened
from strategies.selectors.share import FixedShare, LearnedShare, features, question

ViewOf = Callable[..., View]
NAN, INF = np.nan, np.inf


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def select(
    selector: FedCaSe, view: View, state: State | None = None, seed: int = 0
) -> tuple[Cohort, State]:
    start = selector.initial_state(len(view.fleet)) if state is None else state
    return selector.select(view, start, rng(seed))


def test_experience_by_hand() -> None:
    seconds_s = np.array([10.0, 30.0, 20.0, NAN, 12.0])
    utility = np.array([5.0, 1.0, 4.0, 3.0, NAN])
    # The first term is of 30 s less t in 20 s, the second of u less 1 in 4.
    found = experience(seconds_s, utility, np.array([10.0, 30.0]), np.array([1.0, 5.0]))
    np.testing.assert_allclose(found, [1.0, 0.0, 0.05 + 0.675, NAN, NAN])
    equal = np.array([7.0, 7.0])
    found = experience(seconds_s, utility, equal, np.array([1.0, 5.0]))
    np.testing.assert_allclose(found, [0.9, 0.0, 0.675, NAN, NAN])
    found = experience(seconds_s, utility, equal, equal)
    np.testing.assert_allclose(found, [0, 0, 0, NAN, NAN])


def test_extremes_only_widen() -> None:
    nothing = np.array([INF, -INF])
    assert widened(nothing, np.array([NAN, NAN])).tolist() == [INF, -INF]
    seen = widened(nothing, np.array([3.0, NAN, 8.0]))
    assert seen.tolist() == [3, 8]
    assert widened(seen, np.array([5.0, 9.0])).tolist() == [3, 9]


@pytest.fixture
def known(view_of: ViewOf) -> View:
    """Of ten clients 5 has most experience, then 4, 3, 2, 1; 0 and 6 lack one figure."""
    return view_of(
        10,
        3,
        last_round=[1] * 7 + [0] * 3,
        utility=[9.0, 1.0, 2.0, 3.0, 4.0, 5.0, NAN, NAN, NAN, NAN],
        duration_s=[NAN, 5.0, 4.0, 3.0, 2.0, 1.0, 1.0, NAN, NAN, NAN],
    )


def test_the_most_experienced_are_appended(known: View) -> None:
    view = replace(known, wanted=5)
    cohort, state = select(FedCaSe("uniform", share=0.6), view)
    drawn, _ = Uniform().select(view, Uniform().initial_state(len(view.fleet)), rng())
    assert cohort.clients.tolist() == sorted({*drawn.clients.tolist(), 3, 4, 5})
    why = dict(zip(cohort.clients.tolist(), cohort.reasons.why, strict=True))
    assert {client for client, reason in why.items() if reason == "drawn"} == set(
        drawn.clients.tolist()
    )
    assert state["seconds_range"].tolist() == [1, 5]
    assert state["utility_range"].tolist() == [1, 9]
    # The first term is of 5 s less t in 4 s, the second of u less 1 in 8.
    told = dict(zip(cohort.clients.tolist(), cohort.reasons.details["experience"], strict=True))
    np.testing.assert_allclose([told[3], told[4], told[5]], [0.275, 0.4125, 0.55])
    # 0.7 of ten are seven, but only five are known.
    everyone, _ = select(FedCaSe("uniform", share=0.7), replace(known, wanted=10))
    assert {1, 2, 3, 4, 5} <= set(everyone.clients.tolist())


@pytest.mark.parametrize(
    ("share", "wanted", "appended"), [(0.7, 10, 7), (0.29, 100, 29), (0, 9, 0)]
)
def test_the_share_is_of_those_wanted(
    view_of: ViewOf, share: float, wanted: int, appended: int
) -> None:
    view = view_of(200, 1, last_round=1, utility=np.arange(200.0), duration_s=1.0)
    cohort, _ = select(FedCaSe("uniform", share=share), replace(view, wanted=wanted))
    best = set(range(200 - appended, 200))
    assert best <= set(cohort.clients.tolist())
    assert len(cohort.clients) - len(best) in {0, 1}  # the one drawn may be among them


def test_the_infeasible_take_a_place_and_are_dropped(known: View) -> None:
    view = replace(known, wanted=5, feasible=~np.isin(np.arange(10), [5, 3]))
    cohort, _ = select(FedCaSe("uniform", share=0.6), view)
    drawn, _ = Uniform().select(view, Uniform().initial_state(len(view.fleet)), rng())
    assert cohort.clients.tolist() == sorted({*drawn.clients.tolist(), 4})
    assert sum(cohort.reasons.rest.values()) == 10 - len(cohort.clients)
    assert cohort.reasons.rest["unavailable"] == 2


def test_extremes_of_earlier_rounds_count(known: View, view_of: ViewOf) -> None:
    selector = FedCaSe("uniform", share=1.0)
    _, state = select(selector, known)
    later = view_of(10, 10, last_round=1, utility=5.0, duration_s=3.0)
    cohort, state = select(selector, later, state)
    np.testing.assert_allclose(cohort.reasons.details["experience"], 0.05 + 0.45)
    assert state["utility_range"].tolist() == [1, 9]


def test_claims_that_are_no_number_are_no_experience(view_of: ViewOf) -> None:
    view = view_of(5, 5, last_round=1, utility=[INF, -1.0, NAN, 1.0, 2.0], duration_s=1.0)
    cohort, state = select(FedCaSe("uniform", share=1.0), view)
    np.testing.assert_allclose(cohort.reasons.details["experience"], [NAN, NAN, NAN, 0, 0.9])
    assert state["utility_range"].tolist() == [1, 2]


def test_the_base_is_oort_with_the_parameters_of_fedscale(known: View) -> None:
    cohort, state = select(FedCaSe(share=0.0), known)
    oort = Oort("fedscale")
    expected, own = oort.select(known, oort.initial_state(10), rng())
    assert cohort.clients.tolist() == expected.clients.tolist()
    assert cohort.reasons.why == expected.reasons.why
    for name, chosen in expected.reasons.details.items():
        assert cohort.reasons.details[f"base_{name}"].tolist() == chosen.tolist()
    for name, array in own.items():
        np.testing.assert_array_equal(state[f"base.{name}"], array)
    other = FedCaSe("oort", 0.0, parameters="repository", pacer_step=3)
    assert other.initial_state(10)["base.exploration"] == 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": "ort"}, "did you mean 'oort'"),
        ({"share": 1.5}, "share is 1.5"),
        ({"share": -0.1}, "share is -0.1"),
        ({"share": NAN}, "share is nan"),
        ({"share": "learnt"}, "share is 'learnt': use 'learned' or a number"),
        ({"base": "uniform", "pacer_step": 3}, "'uniform' does not take"),
        ({"pacer": 3}, "unknown parameter"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedCaSe(**arguments)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # noqa: ARG005
    with pytest.raises(InputError, match=r"fedio\[fedcase\]"):
        FedCaSe()
    assert isinstance(FedCaSe(share=0.5), FedCaSe)


def test_features_by_hand() -> None:
    found = features(np.array([0.5, -0.2]), np.array([10.0, 4.0]))
    np.testing.assert_allclose(found, [[0.5, 10, 0.05], [-0.2, 4, -0.05]])
    assert np.isfinite(features(np.array([1e30]), np.array([1e-30])).astype(np.float32)).all()


def test_the_question_by_hand() -> None:
    # dLoss 0.1, 0.5: std 0.2; dTime 10, 14: std 2.
    found = question(np.array([0.1, 0.5]), np.array([10.0, 14.0]))
    np.testing.assert_allclose(found, [[0.7, 8, 0.0875]])


def test_a_time_that_is_not_positive_is_never_asked_for() -> None:
    # dTime 1, 21: std 10, so 1 - 10 is asked for by the artifact.
    found = question(np.array([0.1, 0.1]), np.array([1.0, 21.0]))
    np.testing.assert_allclose(found, [[0.1, 0.1, 1.0]])


def test_until_round_nine_the_share_is_drawn(view_of: ViewOf) -> None:
    learned, state = LearnedShare(), taught()
    generator = rng(4)
    seen = [
        learned.choose(view_of(3, 1, server_round=turn % 9 + 1), state, generator)[0]
        for turn in range(900)
    ]
    shares, times = np.unique(seen, return_counts=True)
    np.testing.assert_allclose(shares, np.arange(1, 10) / 10)
    # The 99.99 % quantile of chi-square with 8 degrees of freedom is 31.8.
    assert np.sum((times - 100) ** 2 / 100) < 31.8


def taught(rounds: int = 12) -> State:
    """A history in which a share of 0.9 brought more progress in less time than one of 0.1."""
    good = np.arange(rounds) % 2 == 0
    return LearnedShare().initial_state() | {
        "rhos": np.where(good, 0.9, 0.1),
        "loss_falls": np.where(good, 0.5, 0.1) + np.arange(rounds) / 1000,
        "times_s": np.where(good, 10.0, 20.0) + np.arange(rounds) / 100,
        "round": np.array(rounds),
    }


def test_from_round_ten_the_forest_answers_and_a_tenth_explores(view_of: ViewOf) -> None:
    learned, view = LearnedShare(), view_of(3, 1, server_round=13)
    asked = [learned.choose(view, taught(), rng(seed))[0] for seed in range(30)]
    learned_well = np.array(asked) > 0.75
    # About 0.9 + 0.1 * 2/9 of the rounds; 30 of them have a standard deviation of 0.05.
    assert 0.7 < learned_well.mean() < 1
    assert learned.choose(view, taught(), rng(5))[0] == asked[5]


def test_without_a_history_the_share_is_drawn(view_of: ViewOf) -> None:
    learned = LearnedShare()
    view = view_of(3, 1, server_round=40)
    seen = {learned.choose(view, learned.initial_state(), rng(seed))[0] for seed in range(60)}
    assert len(seen) == 9


def test_what_a_round_brought(view_of: ViewOf) -> None:
    """Losses claimed for a round against those for the round before, between two selections."""
    learned = LearnedShare()
    state = learned.initial_state()
    told = [  # now, who claims for which round, and which loss
        (0.0, [0, 0, 0], [NAN, NAN, NAN]),
        (10.0, [1, 1, 0], [2.0, 4.0, NAN]),  # round 1: 3.0
        (25.0, [2, 1, 0], [2.5, 4.0, NAN]),  # round 2: 2.5 after 15 s
        (26.0, [2, 1, 0], [2.5, 4.0, NAN]),  # round 3: nobody
        (46.0, [4, 1, 4], [1.0, 4.0, 2.0]),  # round 4: 1.5 after 20 s
        (56.0, [4, 5, 5], [1.0, NAN, INF]),  # round 5: no number
    ]
    rhos = []
    for server_round, (now_s, claimed_round, loss) in enumerate(told, start=1):
        view = view_of(3, 1, server_round=server_round, loss=loss, claimed_round=claimed_round)
        rho, state = learned.choose(replace(view, now_s=now_s), state, rng(server_round))
        rhos.append(rho)
    np.testing.assert_allclose(state["loss_falls"], [0.5, 1.0])
    np.testing.assert_allclose(state["times_s"], [15, 20])
    assert state["rhos"].tolist() == [rhos[1], rhos[3]]
    assert state["loss"] == 1.5


def test_a_round_that_took_no_time_teaches_nothing(view_of: ViewOf) -> None:
    learned = LearnedShare()
    state = learned.initial_state()
    for server_round in (1, 2, 3):
        view = view_of(2, 1, server_round=server_round, loss=1.0, claimed_round=server_round - 1)
        _, state = learned.choose(view, state, rng())
    assert len(state["rhos"]) == 0


def rounds_of(selector: FedCaSe, view: View, carry: Callable[[State], State]) -> list[list[int]]:
    """Sixteen rounds in which losses fall and time goes on."""
    fleet = Fleet.from_arrays({name: a.copy() for name, a in view.fleet.arrays().items()})
    state, now_s, log = selector.initial_state(len(fleet)), 0.0, []
    for server_round in range(1, 17):
        seen = replace(view, fleet=fleet.read_only(), round=server_round, now_s=now_s)
        cohort, state = selector.select(seen, carry(state), rng(server_round))
        clients = cohort.clients
        log.append(clients.tolist())
        fleet.observed(clients, server_round, 1.0 + clients % 7)
        loss = (2.0 + clients % 3) / server_round
        fleet.claimed(clients, server_round, utility=clients * 13 % 11, loss=loss)
        now_s += 1.0 + clients.max() % 7
    assert len(state["share.rhos"]) == 14
    return log


def test_a_learned_share_follows_from_its_state(
    view_of: ViewOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    ask = share_module._forest_answer

    def watched(state: State, seed: int) -> float:
        answers.append(ask(state, seed))
        return answers[-1]

    monkeypatch.setattr(share_module, "_forest_answer", watched)

    def stored(state: State) -> State:
        raw = {name: (a.tobytes(), a.dtype.str, a.shape) for name, a in state.items()}
        return {
            name: np.frombuffer(data, dtype).reshape(shape)
            for name, (data, dtype, shape) in raw.items()
        }

    def global_states() -> tuple[object, ...]:
        _, keys, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
        torch_state = torch.get_rng_state().numpy().tobytes()
        return random.getstate(), keys.tobytes(), position, torch_state

    view = view_of(30, 6)
    before = global_states()
    kept = rounds_of(FedCaSe(), view, dict)
    assert global_states() == before
    assert len(answers) >= 4
    assert all(0.1 <= answer <= 0.9 for answer in answers)
    assert rounds_of(FedCaSe(), view, stored) == kept


def test_a_fixed_share_is_what_it_is(view_of: ViewOf) -> None:
    share = FixedShare(1)
    assert share.choose(view_of(3, 1), share.initial_state(), rng()) == (1.0, {})

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.errors import InputError
from strategies.selector import Cohort, State, View
from strategies.selectors.claims import predicted_s
from strategies.selectors.oort import Oort
from strategies.selectors.oort_parameters import PRESETS
from strategies.selectors.oort_scores import (
    confident_scores,
    discount,
    durations,
    exploitable,
    normalisation,
    preferred_s,
    registered_s,
)

ViewOf = Callable[..., View]


def select(oort: Oort, view: View, seed: int = 0, **state: object) -> tuple[Cohort, State]:
    start = oort.initial_state(len(view.fleet))
    start |= {name: np.asarray(value) for name, value in state.items()}
    return oort.select(view, start, np.random.default_rng(seed))


def scores(cohort: Cohort) -> dict[int, float]:
    figures = cohort.reasons.details["score"].tolist()
    return dict(zip(cohort.clients.tolist(), figures, strict=True))


# --- parameters -------------------------------------------------------------------------------


def test_published_parameter_sets() -> None:
    def row(name: str) -> tuple[float, ...]:
        p = PRESETS[name]
        explore = (p.exploration_factor, p.exploration_decay, p.exploration_min)
        pace = (p.pacer_step, p.pacer_delta, p.sample_window)
        return (*explore, p.round_threshold, p.round_penalty, p.clip_bound, p.cut_off_util, *pace)

    assert row("repository") == (0.9, 0.95, 0.2, 10, 2.0, 0.98, 0.7, 20, 5, 5.0)
    assert row("fedscale") == (0.9, 0.98, 0.3, 30, 2.0, 0.9, 0.05, 20, 5, 5.0)


def test_one_value_can_be_overridden() -> None:
    parameters = Oort("fedscale", round_penalty=1.0).parameters
    assert (parameters.round_penalty, parameters.clip_bound) == (1.0, 0.9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameters": "repositry"}, "did you mean 'repository'"),
        ({"round_penality": 1.0}, "did you mean 'round_penalty'"),
        ({"clip_bound": 1.5}, "clip_bound is 1.5"),
        ({"round_penalty": float("nan")}, "round_penalty is nan"),
        ({"pacer_step": 0}, "pacer_step"),
        ({"exploration_min": "much"}, "oort: "),
    ],
)
def test_impossible_parameters_are_the_users_error(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Oort(**arguments)  # type: ignore[arg-type]


# --- formulas by hand -------------------------------------------------------------------------


def test_normalised_utility_and_confidence_by_hand() -> None:
    # clip = 4, the value at position int(4 * 0.5); min = 0.999, range = 10 - 0.999 = 9.001;
    # sqrt(0.1 ln 10 / r) = 0.479853 for r = 1, 0.339307 for 2, 0.239926 for 4, 0.214597 for 5.
    utility = np.array([1.0, 2.0, 4.0, 10.0])
    bounds = normalisation(utility, 0.5)
    assert bounds == pytest.approx((4.0, 0.999, 9.001))
    result = confident_scores(utility, np.array([1, 2, 4, 5]), 10, bounds)
    expected = [0.000111 + 0.479853, 0.111210 + 0.339307, 0.333407 + 0.239926, 0.333407 + 0.214597]
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_a_narrow_range_counts_as_a_ten_thousandth() -> None:
    # min = 0.00999, so that the utility of all is 0.00001 above it: 0.1 of the least range.
    utility = np.full(3, 0.01)
    result = confident_scores(utility, np.array([1, 1, 1]), 1, normalisation(utility, 0.98))
    np.testing.assert_allclose(result, 0.1)


def test_preferred_duration_and_penalty_by_hand(view_of: ViewOf) -> None:
    # T = 30, the value at position int(5 * 0.5); beyond it (30/40)^2 and (30/50)^2.
    view = view_of(
        5, 5, server_round=1, last_round=1, utility=2.0, duration_s=[10.0, 50.0, 30.0, 40.0, 20.0]
    )
    cohort, _ = select(Oort(round_threshold=50), view)
    np.testing.assert_allclose(cohort.reasons.details["score"], [1.0, 0.36, 1.0, 0.5625, 1.0])
    assert cohort.reasons.details["assumed_s"].tolist() == [10.0, 50.0, 30.0, 40.0, 20.0]
    assert cohort.reasons.why == ["exploit"] * 5


def test_untried_clients_by_hand(view_of: ViewOf) -> None:
    # Registered: 1 s down, 160 * 0.01 s, 2 s up = 4.6 s. T = 2.3 s, observed of client 0, is at
    # position int(4 * 0.1); priors min(n, 160) times (2.3 / 4.6)^2.
    view = view_of(
        4,
        4,
        samples=[50, 100, 160, 500],
        last_round=[9, 0, 0, 0],
        utility=[1.0, np.nan, np.nan, np.nan],
        duration_s=[2.3, np.nan, np.nan, np.nan],
    )
    cohort, _ = select(Oort(), view)
    assert cohort.reasons.why == ["exploit", "explore", "explore", "explore"]
    np.testing.assert_allclose(cohort.reasons.details["score"][1:], [25.0, 40.0, 40.0])
    np.testing.assert_allclose(cohort.reasons.details["utility"], [1.0, 100.0, 160.0, 160.0])
    np.testing.assert_allclose(cohort.reasons.details["assumed_s"], [2.3, 4.6, 4.6, 4.6])


def test_registered_duration_knows_nothing_of_storage(view_of: ViewOf) -> None:
    slow = view_of(3, 3, origin_read_bytes_per_s=[1.0, 1e6, np.nan], decode_sample_s=[0, 9, np.nan])
    predicted = select(Oort(), slow)[0].reasons.details["assumed_s"]
    np.testing.assert_allclose(predicted, [4.6, 4.6, 4.6])


def test_registered_duration_is_the_cost_model_without_storage(view_of: ViewOf) -> None:
    figures = np.random.default_rng(0).lognormal(size=(4, 50))
    view = view_of(
        50,
        1,
        compute_s=figures[0],
        step_s=figures[1],
        download_bytes_per_s=figures[2],
        upload_bytes_per_s=figures[3],
        decode_sample_s=0.0,
        origin_read_latency_s=0.0,
        origin_read_bytes_per_s=np.inf,
    )
    clients = np.arange(3, 40)
    np.testing.assert_allclose(registered_s(view, clients), predicted_s(view, clients))


@pytest.mark.parametrize("claim", [np.nan, -1e30])
def test_a_registered_duration_that_is_none_is_unknown(view_of: ViewOf, claim: float) -> None:
    view = view_of(3, 3, compute_s=[0.01, claim, 0.02])
    cohort, _ = select(Oort(), view)
    np.testing.assert_allclose(cohort.reasons.details["assumed_s"], [4.6, np.nan, 6.2])
    assert scores(cohort) == pytest.approx({0: 160.0, 1: 160.0, 2: 160 * (4.6 / 6.2) ** 2})


def test_preferred_duration_is_a_percentile_of_observed_and_registered_ones(
    view_of: ViewOf,
) -> None:
    # Registered: 3 s + 160 * (0.01, 0.1) s = 4.6 and 19 s; observed 8 and 9; one does not fit, and
    # of one nothing is known. Of 4.6, 8, 9, 19 the value at position int(4 * 0.3) is 8.
    view = view_of(
        6,
        6,
        last_round=[9, 9, 0, 0, 0, 0],
        utility=1.0,
        duration_s=[8.0, 9.0, np.nan, np.nan, np.nan, np.nan],
        compute_s=[0.01, 0.01, 0.01, 0.1, 0.01, np.nan],
        fits=[True, True, True, True, False, True],
        feasible=np.array([True, True, True, True, False, True]),
    )
    np.testing.assert_allclose(durations(view), [8.0, 9.0, 4.6, 19.0, np.nan, np.nan])
    assert preferred_s(durations(view), 30) == 8.0
    by_client = scores(select(Oort("fedscale"), view)[0])
    assert [by_client[i] for i in (2, 3, 5)] == pytest.approx([160.0, 160 * (8 / 19) ** 2, 160.0])


def test_without_known_durations_nobody_is_slow(view_of: ViewOf) -> None:
    view = view_of(3, 3, compute_s=np.nan, samples=100)
    assert scores(select(Oort(), view)[0]) == {0: 100.0, 1: 100.0, 2: 100.0}


def test_priors_of_untried_clients_count_in_the_normalisation(view_of: ViewOf) -> None:
    # Of 2, 4 and the prior 160 the cap is 160, 0.999 of the least is 1.998, the range 158.002.
    view = view_of(3, 3, server_round=1, last_round=[1, 1, 0], utility=[2.0, 4.0, np.nan])
    by_client = scores(select(Oort(), view)[0])
    assert by_client == pytest.approx({0: 0.002 / 158.002, 1: 2.002 / 158.002, 2: 160.0})


def test_cut_off_by_hand() -> None:
    rng = np.random.default_rng(0)
    falling = np.arange(100, 0, -1) / 100
    # One exploited: the next is 0.99, so 0.693 and above are 31, more than ten times as many.
    assert sorted(exploitable(falling, 1, 0.7, rng)) == list(range(31))
    # The cut-off at 0.9801 leaves 2; but more than ten are taken before it counts.
    assert sorted(exploitable(falling, 1, 0.99, rng)) == list(range(11))
    # The cut-off at 0.905 leaves ten, which is not more than ten times as many.
    assert sorted(exploitable(falling, 1, 0.905 / 0.99, rng)) == list(range(11))
    # Four exploited: the next is 0.96; 0.5 * 0.96 = 0.48 leaves 53.
    assert sorted(exploitable(falling, 4, 0.5, rng)) == list(range(53))
    # None is beyond those that are exploited, and none is wanted.
    assert sorted(exploitable(falling, 100, 1.0, rng)) == list(range(100))
    assert len(exploitable(falling, 0, 0.5, rng)) == 0


def test_share_of_untried_clients_by_hand(view_of: ViewOf) -> None:
    view = view_of(100, 10, last_round=[1, 0] * 50, utility=1.0)
    cohort, state = select(Oort(), view)
    assert cohort.reasons.why.count("explore") == 8  # int(10 * 0.9 * 0.95)
    assert float(state["exploration"]) == pytest.approx(0.855)
    cohort, state = select(Oort(), view, exploration=0.21)
    assert cohort.reasons.why.count("explore") == 2  # the floor of 0.2
    assert float(state["exploration"]) == 0.2


def test_untried_window_by_hand(view_of: ViewOf) -> None:
    # One slot: the five largest are in the window, and the largest weighs five times the least.
    view = view_of(10, 1, samples=np.arange(10, 110, 10))
    oort = Oort(exploration_min=1.0)
    drawn = [select(oort, view, seed)[0] for seed in range(200)]
    assert {cohort.clients.item() for cohort in drawn} == {5, 6, 7, 8, 9}
    assert drawn[0].reasons.rest == {"lower score": 5, "not drawn": 4}


# --- pacer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gained", "before", "after"),
    [
        (11.0, 10.0, 15.0),  # windows 20 and 21: flat, slower clients are let in
        (12.5, 10.0, 10.0),  # 22.5: neither flat nor a jump
        (200.0, 10.0, 5.0),  # 210: a jump of more than five times
        (11.0, 98.0, 100.0),  # the cap
        (200.0, 7.0, 5.0),  # the floor
    ],
)
def test_pacer_by_hand(view_of: ViewOf, gained: float, before: float, after: float) -> None:
    view = view_of(6, 2, server_round=8, last_round=7, utility=gained)
    _, state = select(
        Oort(pacer_step=2),
        view,
        round=7,
        round_threshold=before,
        exploited=[1, 4],
        exploited_utility=[99.0, 10.0, 10.0, 10.0],
    )
    assert float(state["round_threshold"]) == after
    # Two clients gained that much; the artifact divides by 2.0001.
    np.testing.assert_allclose(state["exploited_utility"], [10, 10, 10, gained * 2 / 2.0001])


@pytest.mark.parametrize(("server_round", "history"), [(9, [10.0] * 3), (8, [10.0] * 2)])
def test_pacer_waits_for_its_round_and_two_windows(
    view_of: ViewOf, server_round: int, history: list[float]
) -> None:
    view = view_of(6, 2, server_round=server_round, last_round=7, utility=10.0)
    _, state = select(
        Oort(pacer_step=2), view, round=7, exploited=[1, 4], exploited_utility=history
    )
    assert float(state["round_threshold"]) == 10.0


def test_only_exploited_clients_that_answered_count(view_of: ViewOf) -> None:
    view = view_of(4, 2, server_round=8, last_round=[7, 7, 3, 7], utility=[5.0, 2.0, 50.0, 9.0])
    _, state = select(Oort(), view, round=7, exploited=[1, 2, 3])
    np.testing.assert_allclose(state["exploited_utility"], [(2.0 + 9.0) / 2.0001])
    _, state = select(Oort(), view, round=7, exploited=[2])
    assert state["exploited_utility"].tolist() == [0.0]


def test_threshold_of_100_is_any_duration(view_of: ViewOf) -> None:
    view = view_of(3, 3, server_round=1, last_round=1, utility=1.0, duration_s=[1.0, 50.0, 1e6])
    np.testing.assert_allclose(
        select(Oort(round_threshold=100), view)[0].reasons.details["score"], 1.0
    )


# --- faults of the public selector that must not occur ----------------------------------------


def test_nobody_has_been_explored(view_of: ViewOf) -> None:
    cohort, _ = select(Oort(), view_of(10, 4, server_round=1))
    assert cohort.reasons.why == ["explore"] * 4


def test_as_many_scores_as_are_exploited(view_of: ViewOf) -> None:
    view = view_of(10, 6, last_round=[5] * 2 + [0] * 8, utility=1.0)
    cohort, _ = select(Oort(exploration_factor=0.5), view)
    assert cohort.reasons.why == ["exploit"] * 2 + ["explore"] * 4


def test_exclusion_is_capped_at_a_whole_number(view_of: ViewOf) -> None:
    used = [1, 9, 2, 8, 3, 7, 4]
    view = view_of(7, 3, last_round=5, utility=1.0, times_selected=used)
    cohort, _ = select(Oort(blacklist_rounds=0), view)
    assert cohort.reasons.rest["excluded"] == 2  # int(0.3 * 7), the most used: 1 and 3
    assert not {1, 3} & set(cohort.clients.tolist())


def test_exclusion_of_everybody_leaves_as_many_as_are_wanted(view_of: ViewOf) -> None:
    view = view_of(6, 4, last_round=5, utility=1.0, times_selected=[5, 6, 7, 8, 9, 10])
    oort = Oort(blacklist_rounds=0, blacklist_max_len=1.0)
    cohort, _ = select(oort, view)
    assert cohort.clients.tolist() == [0, 1, 2, 3]
    assert cohort.reasons.rest == {"excluded": 2}
    view = view_of(6, 6, last_round=5, utility=1.0, times_selected=9)
    assert len(select(oort, view)[0].clients) == 6


def test_a_client_at_the_limit_is_not_excluded_yet(view_of: ViewOf) -> None:
    view = view_of(6, 1, last_round=5, utility=1.0, times_selected=[3, 3, 3, 3, 3, 4])
    assert select(Oort(blacklist_rounds=3), view)[0].reasons.rest["excluded"] == 1


def test_a_round_stamp_of_zero_is_an_untried_client(view_of: ViewOf) -> None:
    view = view_of(3, 3, last_round=[0, 4, 4], utility=[7.0, 7.0, 7.0])
    cohort, _ = select(Oort(), view)
    assert cohort.reasons.why == ["explore", "exploit", "exploit"]
    assert np.isfinite(cohort.reasons.details["score"]).all()


def test_all_utilities_are_zero(view_of: ViewOf) -> None:
    cohort, _ = select(Oort(), view_of(8, 5, server_round=1, last_round=1, utility=0.0))
    assert cohort.reasons.details["score"].tolist() == [0.0] * 5


@pytest.mark.parametrize("claim", [np.nan, np.inf, -np.inf, -5.0])
def test_a_utility_that_is_no_utility_is_zero(view_of: ViewOf, claim: float) -> None:
    view = view_of(4, 4, last_round=5, utility=[1.0, 2.0, claim, 3.0])
    cohort, _ = select(Oort(), view)
    honest, _ = select(Oort(), view_of(4, 4, last_round=5, utility=[1.0, 2.0, 0.0, 3.0]))
    assert scores(cohort) == scores(honest)


@pytest.mark.parametrize("utility", [[5.0, 5.0, 0.0, 5.0], [1e-6, 0.9, 0.0, 0.5]])
def test_a_client_without_utility_is_never_the_best(view_of: ViewOf, utility: list[float]) -> None:
    by_client = scores(select(Oort(), view_of(4, 4, last_round=5, utility=utility))[0])
    assert by_client[2] == min(by_client.values())
    assert by_client[2] < max(by_client.values())
    assert by_client[2] >= 0


@pytest.mark.parametrize("exploration", [0.9, 0.5])
def test_all_explored_gives_their_slots_to_exploitation(
    view_of: ViewOf, exploration: float
) -> None:
    view = view_of(20, 10, last_round=5, utility=1.0)
    cohort, _ = select(Oort(), view, exploration=exploration)
    assert cohort.reasons.why == ["exploit"] * 10


def test_no_pick_is_stale_or_infeasible(view_of: ViewOf) -> None:
    feasible = np.arange(12) >= 6
    view = view_of(12, 5, last_round=9, utility=[9.0] * 6 + [1.0] * 6, feasible=feasible)
    for seed in range(30):
        cohort, state = select(Oort(), view, seed, round=9, exploited=[0, 1, 2, 3])
        assert cohort.clients.min() >= 6
        assert state["exploited"].min() >= 6


# --- penalty ----------------------------------------------------------------------------------

SECONDS = st.one_of(st.floats(0, 1e12), st.sampled_from([np.nan, np.inf, 5e-324]))


@given(st.lists(SECONDS, min_size=1, max_size=10), st.floats(0, 1e12), st.floats(0, 10))
def test_a_penalty_never_raises_a_score(
    durations: list[float], preferred_s: float, penalty: float
) -> None:
    factor = discount(np.array(durations), preferred_s, penalty)
    assert ((factor >= 0) & (factor <= 1)).all()
    assert (discount(np.array(durations), np.inf, penalty) == 1).all()


@given(st.lists(SECONDS, min_size=2, max_size=8), st.floats(0, 1e12), st.integers(0, 2**16))
def test_a_slower_client_does_not_score_more(
    view_of: ViewOf, durations: list[float], more_s: float, seed: int
) -> None:
    known = np.array(durations)
    slower = known.copy()
    slower[0] += more_s
    shape = {"last_round": 5, "utility": np.arange(1.0, len(known) + 1)}
    before = scores(select(Oort("fedscale"), view_of(len(known), 8, duration_s=known, **shape))[0])
    view = view_of(len(known), 8, duration_s=slower, **shape)
    after = scores(select(Oort("fedscale"), view, seed)[0])
    assert after[0] <= before[0]


@pytest.mark.parametrize("duration_s", [0.0, np.nan, -1.0, np.inf])
def test_a_missing_duration_gives_a_finite_score(view_of: ViewOf, duration_s: float) -> None:
    durations = [duration_s, 5.0, 6.0, 7.0]
    view = view_of(4, 4, last_round=5, utility=1.0, duration_s=durations)
    assert np.isfinite(list(scores(select(Oort(), view)[0]).values())).all()
    view = view_of(4, 4, last_round=5, utility=1.0, duration_s=duration_s)
    assert np.isfinite(list(scores(select(Oort(), view)[0]).values())).all()

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedio.errors import InputError
from strategies.fleet import Fleet
from strategies.selector import Cohort, State, View
from strategies.selectors.claims import predicted_phases
from strategies.selectors.io_aware import IOAware
from tests.strategies.selection_runs import jain_index, phones, run

ViewOf = Callable[..., View]
COLD, SOME, WARM = 22.52, 18.2, 5.24  # seconds with 0, 50 and 200 of 200 samples cached


def step(
    selector: IOAware, view: View, state: State | None = None, seed: int = 0
) -> tuple[Cohort, State]:
    start = selector.initial_state(len(view.fleet)) if state is None else state
    return selector.select(view, start, np.random.default_rng(seed))


def details(view: View, **arguments: float) -> dict[str, np.ndarray]:
    """What is told of every client; ask for all of them."""
    cohort = step(IOAware(**arguments), view)[0]
    assert len(cohort.clients) == len(view.fleet)
    return cohort.reasons.details


def picks(cohort: Cohort) -> list[int]:
    return cohort.clients[np.array(cohort.reasons.why) != "spare"].tolist()


def table_of(view: View) -> Fleet:
    return Fleet.from_arrays({name: a.copy() for name, a in view.fleet.arrays().items()})


def test_predicted_seconds_by_hand(view_of: ViewOf) -> None:
    # Cold: 1 down + 160 * (0.01 + 0.1) origin + 160 * 0.002 decode + 160 * 0.01 + 2 up.
    # 50 of 200 cached: 120 * 0.11 origin + 40 * (0.001 + 0.001) cache; the rest is the same.
    view = view_of(4, 4, resident_samples=[0, 50, 200, -1])
    np.testing.assert_allclose(details(view)["assumed_s"], [COLD, SOME, WARM, COLD])


def test_warm_and_cold_differ_by_missed_bytes_and_latencies(view_of: ViewOf) -> None:
    cold, warm = details(view_of(2, 2, resident_samples=[0, 50]))["assumed_s"]
    hits = 160 * 50 / 200
    saved = hits * 1e5 / 1e6 + hits * 0.01 - (hits * 1e5 / 1e8 + hits * 0.001)
    assert cold - warm == pytest.approx(saved)


def test_the_share_of_hits_is_what_the_sampler_makes_of_the_cache(view_of: ViewOf) -> None:
    view = view_of(2, 2, resident_samples=[0, 50])
    uniform, pads = (details(replace(view, sampler=s))["assumed_s"] for s in ("uniform", "pads"))
    assert pads[0] == uniform[0]
    assert pads[1] < uniform[1]


def test_value_by_hand(view_of: ViewOf) -> None:
    # The median claim is 160. Client 3 is untried: int(3 * 0.75) is position 2 of 0.5, 1.0 and 1.5
    # per sample, so it is taken for 160 * 1.5. Claims count from 0.8 to 1.25 of the median.
    claims = {"last_round": [9, 8, 5, 0], "utility": [80.0, 160.0, 240.0, np.nan]}
    told = details(view_of(4, 4, **claims), power=2.0)
    np.testing.assert_allclose(told["waited_rounds"], 10)
    np.testing.assert_allclose(told["value"], (np.array([0.8, 1.0, 1.25, 1.25]) * 10) ** 2)
    np.testing.assert_allclose(told["correction"], 1.0)


def test_nobody_known_is_worth_its_samples(view_of: ViewOf) -> None:
    value = details(view_of(4, 4, samples=[10, 120, 140, 900]), power=1.0)["value"] / 10
    np.testing.assert_allclose(value, [0.8, 120 / 140, 1.0, 160 / 140])


@pytest.mark.parametrize("claim", [np.nan, np.inf, -np.inf, -2.0, 0.0, 1e300])
def test_a_claim_counts_within_what_others_claim(view_of: ViewOf, claim: float) -> None:
    view = view_of(4, 4, last_round=5, utility=[claim, 1.0, 1.0, 1.0])
    expected = 1.25 if claim > 1 else 0.8
    np.testing.assert_allclose(details(view, power=1.0)["value"] / 10, [expected, 1, 1, 1])


@pytest.mark.parametrize(("speed", "seconds"), [(1e-9, COLD * 10), (np.nan, COLD)])
def test_predictions_count_within_those_of_others(
    view_of: ViewOf, speed: float, seconds: float
) -> None:
    view = view_of(5, 5, origin_read_bytes_per_s=[speed, 1e6, 1e6, 1e6, 1e6])
    np.testing.assert_allclose(details(view)["assumed_s"], [seconds, *[COLD] * 4])


def test_who_fails_is_worth_less(view_of: ViewOf) -> None:
    view = view_of(3, 3, failures=[0, 1, 99], times_selected=[99, 3, 99])
    np.testing.assert_allclose(details(view, power=1.0)["value"] / 10, [1.0, 0.75, 0.1])


def test_the_warm_make_the_round_where_all_bring_the_same(view_of: ViewOf) -> None:
    warm = np.arange(12) % 3 == 0
    view = view_of(12, 4, server_round=5, resident_samples=np.where(warm, 150, 0))
    cohort, _ = step(IOAware(), view)
    assert cohort.clients.tolist() == np.flatnonzero(warm).tolist()
    assert cohort.reasons.why == ["best"] * 4
    assert cohort.reasons.rest == {"lower score": 8}


def test_a_claim_of_speed_is_found_out_by_the_first_answer(view_of: ViewOf) -> None:
    """Client 0 claims to have all in its cache and has nothing; 1 to 3 are cold and say so."""
    view = view_of(4, 1, server_round=1, resident_samples=[200, 0, 0, 0])
    fleet, selector, state = table_of(view), IOAware(), None
    chosen, assumed_s = [], []
    for server_round in range(1, 30):
        seen = replace(view, fleet=fleet.read_only(), round=server_round)
        cohort, state = step(selector, seen, state, seed=server_round)
        fleet.observed(cohort.clients, server_round, COLD)
        fleet.claimed(cohort.clients, server_round, utility=1.0)
        if cohort.clients.tolist() == [0]:
            assumed_s += cohort.reasons.details["assumed_s"].tolist()
        chosen += cohort.clients.tolist()
    np.testing.assert_allclose(assumed_s[0], WARM)
    np.testing.assert_allclose(assumed_s[1], WARM * (COLD / WARM) ** 0.75)
    assert assumed_s[2] == pytest.approx(COLD, rel=0.1)
    assert chosen.count(0) <= 9  # 29 turns of 4 clients


def test_slow_clients_come_in_rounds_of_their_own(view_of: ViewOf) -> None:
    """A slow round takes many of the slow at once, not one of them in each round."""
    slow = np.arange(40) % 4 == 0
    view = view_of(40, 5, server_round=1, compute_s=np.where(slow, 0.4, 0.01))
    fleet, selector, state = table_of(view), IOAware(), None
    shares = []
    for server_round in range(1, 101):
        seen = replace(view, fleet=fleet.read_only(), round=server_round)
        cohort, state = step(selector, seen, state, seed=server_round)
        fleet.observed(cohort.clients, server_round, cohort.reasons.details["assumed_s"])
        fleet.claimed(cohort.clients, server_round, utility=1.0)
        shares.append(slow[cohort.clients].mean())
    with_slow = list(filter(None, shares))
    assert 4 <= len(with_slow) <= 20
    assert np.mean(with_slow) > 0.9


@pytest.mark.parametrize("explore", [0.1, 0.5])
@pytest.mark.parametrize("patience", [1.0, 3.0])
def test_nobody_waits_longer_than_is_said(view_of: ViewOf, explore: float, patience: float) -> None:
    """Client 0 is the slowest by far and claims nothing; the others are what one wants."""
    clients, wanted = 30, 4
    view = view_of(
        clients, wanted, server_round=1, compute_s=[9.0] + [0.01] * (clients - 1), samples=160
    )
    fleet, selector, state = table_of(view), IOAware(explore=explore, patience=patience), None
    most = patience * clients / wanted + clients / math.ceil(explore * wanted)
    waited = np.zeros(clients)
    rng = np.random.default_rng(0)
    for server_round in range(1, 200):
        seen = replace(view, fleet=fleet.read_only(), round=server_round)
        cohort, state = step(selector, seen, state, seed=server_round)
        waited += 1
        assert (waited <= most).all()
        waited[cohort.clients] = 0
        fleet.selected(cohort.clients, server_round)
        fleet.observed(cohort.clients, server_round, cohort.reasons.details["assumed_s"])
        utility = np.where(cohort.clients == 0, 0.0, rng.uniform(50, 200, wanted))
        fleet.claimed(cohort.clients, server_round, utility=utility)
    assert fleet.times_selected[0] < fleet.times_selected[1:].min()


def test_all_take_part_and_none_all_the_time() -> None:
    for seed in range(2):
        done = run(IOAware(), phones(100, seed), 200, 10)
        assert done.picked.any(axis=0).all()
        assert jain_index(done.picked.sum(axis=0)) > 0.7
        assert jain_index(done.selected.sum(axis=0)) > 0.8


def test_more_power_makes_it_more_even_and_slower() -> None:
    index, median_s = {}, {}
    for power in (0.5, 2.0):
        done = run(IOAware(power=power, patience=math.inf), phones(100, 0), 150, 10)
        index[power] = jain_index(done.picked.sum(axis=0))
        median_s[power] = float(np.mean(done.round_s))
    assert index[2.0] > index[0.5] + 0.1
    assert median_s[2.0] > median_s[0.5]


def test_those_that_stand_by_are_slower_and_wait_on(view_of: ViewOf) -> None:
    speeds = np.linspace(0.01, 0.2, 30)
    view = replace(view_of(30, 8, compute_s=speeds), wanted=5)
    cohort, state = step(IOAware(), view)
    chosen = picks(cohort)
    stand_by = np.setdiff1d(cohort.clients, chosen)
    assert (len(chosen), len(stand_by)) == (5, 3)
    assert speeds[stand_by].min() > speeds[chosen].max()
    assert (state["picked_round"][chosen] == 10).all()
    assert (state["picked_round"][stand_by] == 0).all()
    assert sorted(state["asked"].tolist()) == cohort.clients.tolist()


def test_who_is_named_is_picked_when_its_round_comes(view_of: ViewOf) -> None:
    view = view_of(40, 6, staging=True, compute_s=np.linspace(0.01, 0.05, 40))
    first, state = step(IOAware(), view)
    assert len(first.next) == 6
    assert not set(first.next) & set(first.clients)
    feasible = view.feasible.copy()
    feasible[first.next[:2]] = False  # they are late
    then = replace(view, round=11, feasible=feasible)
    second, state = step(IOAware(), then, state)
    named = [c for c, why in zip(second.clients, second.reasons.why, strict=True) if why == "named"]
    assert named == first.next[2:].tolist()
    assert len(second.clients) == 6
    assert step(IOAware(), replace(then, staging=False), state)[1]["named"].tolist() == []


def test_whoever_stages_is_predicted_with_a_cache_as_full_as_it_can_be(view_of: ViewOf) -> None:
    """Client 1 has room for half of its samples, 2 for none of them, 3 holds more than that."""
    room = {"budget_bytes": [10**9, 100 * 10**5, 0, 10**5], "resident_samples": [0, 0, 0, 50]}
    view = view_of(4, 4, **room)
    state = IOAware().initial_state(4) | {"named": np.arange(4)}
    cohort, _ = step(IOAware(), view, state)
    share = np.array([1.0, 0.5, 0.0, 0.25])
    expected = predicted_phases(view, np.arange(4), share).total_s
    np.testing.assert_allclose(cohort.reasons.details["assumed_s"], expected)
    assert cohort.reasons.why == ["named"] * 4


def test_those_are_named_whom_staging_makes_quick(view_of: ViewOf) -> None:
    room = np.arange(12) % 2 == 0
    view = view_of(12, 2, server_round=3, staging=True, budget_bytes=np.where(room, 10**9, 0))
    for seed in range(5):
        cohort, _ = step(IOAware(), view, seed=seed)
        assert room[cohort.next].all()


@given(
    bandwidths=st.lists(st.floats(1e5, 1e8), min_size=3, max_size=9),
    residents=st.lists(st.integers(0, 200), min_size=9, max_size=9),
)
def test_who_is_blind_takes_all_storage_for_that_in_the_middle(
    view_of: ViewOf, bandwidths: list[float], residents: list[int]
) -> None:
    n = len(bandwidths)
    figures = {"origin_read_bytes_per_s": bandwidths, "resident_samples": residents[:n]}
    compute = {"compute_s": np.linspace(0.01, 0.02, n)}
    middle = {name: sorted(values)[n // 2] for name, values in figures.items()}
    told = details(view_of(n, n, **figures, **compute), io="alike")
    np.testing.assert_allclose(
        told["assumed_s"], details(view_of(n, n, **middle, **compute))["assumed_s"]
    )
    free = details(view_of(n, n, **figures, **compute), io="free")["assumed_s"]
    np.testing.assert_allclose(free, 3 + 160 * compute["compute_s"])


def test_who_is_blind_does_not_learn_it_from_durations(view_of: ViewOf) -> None:
    view = view_of(4, 4)
    for io, changes in (("claimed", True), ("alike", False), ("free", False)):
        _, state = step(IOAware(io=io), view)
        fleet = table_of(view)
        fleet.observed(np.arange(4), 10, [20.0, 40.0, 60.0, 80.0])
        _, state = step(IOAware(io=io), replace(view, fleet=fleet, round=11), state)
        assert (state["correction"] != 1.0).any() == changes


@given(st.lists(st.floats(1e5, 1e9), min_size=2, max_size=8), st.floats(0, 1))
def test_a_slower_client_is_not_taken_for_a_quicker_one(
    view_of: ViewOf, bandwidths: list[float], factor: float
) -> None:
    n, slower = len(bandwidths), [bandwidths[0] * factor, *bandwidths[1:]]
    before, after = (
        details(view_of(n, n, origin_read_bytes_per_s=b))["assumed_s"] for b in (bandwidths, slower)
    )
    assert after[0] >= before[0]


@pytest.mark.parametrize(
    "arguments",
    [{"explore": 1.1}, {"explore": math.nan}, {"patience": -1.0}, {"power": 0.0}],
)
def test_impossible_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 <= explore <= 1"):
        IOAware(**arguments)


def test_an_unknown_belief_is_refused() -> None:
    with pytest.raises(InputError, match="alike"):
        IOAware(io="alik")

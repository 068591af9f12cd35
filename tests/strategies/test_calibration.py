from __future__ import annotations

import numpy as np
import pytest

from strategies.fleet import Fleet
from strategies.selector import State
from strategies.selectors.calibration import calibrated, uncalibrated, with_asked


def asked(state: State, server_round: int, **expected_s: float) -> State:
    clients = np.array([int(name[1:]) for name in expected_s])
    return with_asked(state, server_round, clients, np.array(list(expected_s.values())))


def fleet_of(clients: int, **answers: tuple[int, float]) -> Fleet:
    """Clients that answered, each to a round after some seconds."""
    fleet = Fleet.unknown(clients)
    for name, (server_round, seconds) in answers.items():
        fleet.observed([int(name[1:])], server_round, [seconds])
    return fleet


def test_a_claim_of_half_the_time_is_soon_found_out() -> None:
    state, true_s = uncalibrated(1), 10.0
    for server_round, known in enumerate([0.5 ** (1 / 4), 0.5 ** (1 / 16), 0.5 ** (1 / 64)], 1):
        state = asked(state, server_round, c0=5.0 * float(state["correction"][0]))
        state = calibrated(state, fleet_of(1, c0=(server_round, true_s)))
        assert 5.0 * state["correction"][0] == pytest.approx(known * true_s)


def test_who_has_not_answered_is_learned_of_later() -> None:
    state = asked(asked(uncalibrated(3), 1, c0=5.0, c1=5.0), 2, c2=5.0)
    state = calibrated(state, fleet_of(3, c0=(1, 10.0)))
    assert state["asked"].tolist() == [1, 2]
    np.testing.assert_allclose(state["correction"], [2**0.75, 1.0, 1.0])
    state = calibrated(state, fleet_of(3, c0=(1, 99.0), c1=(1, 10.0), c2=(2, 2.5)))
    assert state["asked"].tolist() == []
    np.testing.assert_allclose(state["correction"], [2**0.75, 2**0.75, 0.5**0.75])


def test_an_earlier_answer_is_not_the_one_that_was_asked_for() -> None:
    state = asked(asked(uncalibrated(1), 1, c0=5.0), 4, c0=7.0)
    state = calibrated(state, fleet_of(1, c0=(1, 10.0)))
    assert state["correction"].tolist() == [1.0]
    assert (state["asked"].tolist(), state["asked_s"].tolist()) == ([0], [7.0])


@pytest.mark.parametrize("seconds", [np.nan, -1.0, 0.0, np.inf])
def test_what_is_no_duration_teaches_nothing(seconds: float) -> None:
    state = calibrated(asked(uncalibrated(1), 1, c0=5.0), fleet_of(1, c0=(1, seconds)))
    assert state["correction"].tolist() == [1.0]
    assert state["asked"].tolist() == []


def test_corrections_stay_finite() -> None:
    state = uncalibrated(1)
    for server_round in range(1, 10):
        state = asked(state, server_round, c0=1e-100)
        state = calibrated(state, fleet_of(1, c0=(server_round, 1e100)))
    assert state["correction"].tolist() == [1e9]


def test_the_last_bits_of_a_sum_do_not_count() -> None:
    state = asked(uncalibrated(1), 1, c0=3.0)
    state = calibrated(state, fleet_of(1, c0=(1, float(np.nextafter(3.0, 4.0)))))
    assert state["correction"].tolist() == [1.0]


def test_the_state_before_stays_as_it_was() -> None:
    before = asked(uncalibrated(1), 1, c0=5.0)
    kept = {name: array.copy() for name, array in before.items()}
    calibrated(before, fleet_of(1, c0=(1, 10.0)))
    for name, array in kept.items():
        np.testing.assert_array_equal(before[name], array)
